"""What no report is made of: each file is named, with what to do, and nothing is written."""

import json
from pathlib import Path

import pytest

from tests.report.made import evaluation, make_run, prediction, refused, rows, score, write_lines


def test_a_file_that_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.html"
    run = make_run(tmp_path / "run", rows())
    out.write_text("mine")
    assert "report.html already exists" in refused(capsys, run, out=out)
    assert out.read_text() == "mine"


def test_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "report.html"
    run = make_run(tmp_path / "run", rows())
    assert f"no run in {tmp_path}: it has no run.json; name the --out" in refused(
        capsys, run, tmp_path, out=out
    )
    assert f"no run in {Path('nowhere').absolute()}" in refused(capsys, "nowhere", out=out)
    assert f"{run} is named twice" in refused(capsys, run, run, out=out)
    empty = make_run(tmp_path / "empty", [])
    assert f"{empty} has no metrics yet" in refused(capsys, empty, out=out)
    (run / "run.json").write_text('{"stage": ')
    assert "run.json is damaged" in refused(capsys, run, out=out)
    assert not out.parent.exists()


@pytest.mark.parametrize(
    "line", ['{"step": 2, "los', "[1, 2]", '{"loss": 1}', '{"step": "2"}', '{"step": NaN}', '{"step": true}']
)
def test_a_damaged_row_of_metrics_is_named(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", rows())
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines[:2], line, *lines[2:], ""]))
    assert f"{run / 'metrics.jsonl'}:3: not a row of metrics; remove the line" in refused(
        capsys, run, out=tmp_path / "report.html"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        json.dumps(evaluation(recall={"one": score(1)})),
        json.dumps(evaluation(exact_match={"value": 1})),
    ],
)
def test_a_report_that_is_none(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.json").write_text(text)
    assert "e.json is not a report; make one: realmlm evaluate" in refused(
        capsys, "--evaluations", tmp_path / "e.json", out=tmp_path / "r.html"
    )


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "latin.json").write_bytes(b"\xe9\xff")
    assert "missing.json: no such file" in refused(
        capsys, "--evaluations", tmp_path / "missing.json", out=tmp_path / "r.html"
    )
    for file in ("latin.json", "."):
        assert "cannot be read as UTF-8 text" in refused(
            capsys, "--evaluations", tmp_path / file, out=tmp_path / "r.html"
        )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "p.jsonl:2: not a prediction; make such a file"),
        ("[]", "p.jsonl:2: not a prediction"),
        (
            json.dumps({"question": "Who?", "answers": []}),
            "p.jsonl:2: nothing was read for this question; evaluate with --read 1 or more",
        ),
        (json.dumps(prediction(1, evidence=[{"passage_id": []}])), "p.jsonl:2: not a prediction"),
        (json.dumps(prediction(1, first_passage_with_answer="first")), "p.jsonl:2: not a prediction"),
    ],
)
def test_predictions_that_are_none(
    row: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_lines(tmp_path / "good.jsonl", [prediction(0)])
    (tmp_path / "p.jsonl").write_text(json.dumps(prediction(0)) + "\n" + row + "\n")
    assert said in refused(capsys, "--before", good, "--after", tmp_path / "p.jsonl", out=tmp_path / "r.html")


def test_predictions_that_do_not_belong_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_lines(tmp_path / "1.jsonl", [prediction(1)])
    two = write_lines(tmp_path / "2.jsonl", [prediction(2)])
    assert "no question in common; evaluate both on the same --questions" in refused(
        capsys, "--before", one, "--after", two, out=tmp_path / "r"
    )
    assert "--before FILE and --after FILE go together" in refused(
        capsys, "--before", one, out=tmp_path / "r"
    )
    assert "nothing to report" in refused(capsys, out=tmp_path / "r")
