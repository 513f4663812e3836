"""Reports: what stands in them, and that no text becomes markup."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from realmlm.cli import main
from realmlm.corpus.store import Corpus
from realmlm.settings import JointOptim, Loop, Pretrain, Refresh
from tests.calls import run_pretrain
from tests.report.made import (
    EVIL,
    evaluation,
    make_run,
    prediction,
    refused,
    report,
    rows,
    score,
    write_lines,
)


def test_a_pipeline_is_reported_from_what_its_commands_wrote(
    world: Path, knowledge: Corpus, tiny_model_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "joint"
    optim = JointOptim(steps=3, batch=4)
    refresh = Refresh(every_steps=2, process=False)
    loop = Loop(log_every=1, threads=1, device="cpu")
    run_pretrain(
        Pretrain(
            model=tiny_model_folder,
            corpus=knowledge.folder,
            out=run,
            k=3,
            optim=optim,
            refresh=refresh,
            loop=loop,
        )
    )
    for name, model in (("begin", tiny_model_folder), ("joint", run / "model")):
        files = ["--report", str(tmp_path / f"{name}.json"), "--predictions", str(tmp_path / f"{name}.jsonl")]
        asked = ["--questions", str(world / "questions-held-out.jsonl"), "--limit", "20", "--device", "cpu"]
        main(["evaluate", "--model", str(model), "--corpus", str(knowledge.folder), *asked, *files])
    predictions = ["--before", tmp_path / "begin.jsonl", "--after", tmp_path / "joint.jsonl"]
    page = report(
        run,
        "--evaluations",
        tmp_path / "begin.json",
        tmp_path / "joint.json",
        *predictions,
        out=tmp_path / "new" / "report.html",
    )
    (drawn,) = json.loads(page.texts["script"][0])
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert drawn["curves"]["loss"] == [[row["step"], row["loss"]] for row in metrics]
    measured = json.loads((tmp_path / "joint.json").read_text())
    assert f"{measured['exact_match']['value']:.1f}" in page.cells()
    assert "20 questions were put to begin (before) and to joint (after)" in page.text


def test_runs_lie_over_one_another_with_the_settings_in_which_they_differ(tmp_path: Path) -> None:
    one = make_run(
        tmp_path / "realm", rows(), refresh={"every_steps": 50}, k=5, model="/home/someone/warmup/model"
    )
    two = make_run(
        tmp_path / "stale",
        rows(pace=0.2),
        refresh={"every_steps": 0},
        k=5,
        model="/home/someone/other/model",
        text="/x",
    )
    page = report(one, two, out=tmp_path / "report.html")
    drawn = json.loads(page.texts["script"][0])
    assert [(run["name"], run["place"]) for run in drawn] == [("realm", 0), ("stale", 1)]
    assert drawn[1]["curves"]["loss"][:2] == [[10, 5.8], [20, 5.6]]
    assert set(drawn[0]["curves"]) == {"loss", "utility", "index_age"}
    assert page.cells() == ["50", "0", "warmup/model", "other/model"]
    assert page.texts["h1"] == ["realm, stale"]


def test_the_parts_of_a_warm_up_and_runs_of_one_name(tmp_path: Path) -> None:
    for seed in (1, 2):
        for part in ("reader", "retriever"):
            make_run(tmp_path / f"seed-{seed}" / "warmup" / part, rows())
        (tmp_path / f"seed-{seed}" / "warmup" / "run.json").write_text("{}")
    page = report(
        tmp_path / "seed-1" / "warmup", tmp_path / "seed-2" / "warmup", out=tmp_path / "report.html"
    )
    names = [run["name"] for run in json.loads(page.texts["script"][0])]
    assert names == [f"seed-{seed}/warmup/{part}" for seed in (1, 2) for part in ("reader", "retriever")]


def test_a_part_of_a_warm_up_has_the_settings_of_the_whole(tmp_path: Path) -> None:
    for name, rate, pairing in (("low", 1e-4, "own"), ("high", 3e-4, "sibling")):
        config = {
            "pairing": pairing,
            "reader": {"steps": 20, "lr": rate},
            "retriever": {"steps": 30, "lr": 1e-3},
        }
        for part in ("reader", "retriever"):
            write_lines(tmp_path / name / part / "metrics.jsonl", rows())
            (tmp_path / name / part / "run.json").write_text(
                json.dumps({"stage": f"warmup-{part}", "config": {}})
            )
        (tmp_path / name / "run.json").write_text(json.dumps({"stage": "warmup", "config": config}))
    page = report(tmp_path / "low" / "reader", tmp_path / "high" / "reader", out=tmp_path / "readers.html")
    assert page.cells() == ["own", "sibling", "0.0001", "0.0003"]
    page = report(tmp_path / "low", out=tmp_path / "parts.html")
    assert page.cells() == ["warmup-reader", "warmup-retriever", "20", "30", "0.0001", "0.001"]
    (tmp_path / "low" / "run.json").unlink()
    page = report(tmp_path / "low" / "reader", tmp_path / "high" / "reader", out=tmp_path / "copied.html")
    assert "own" not in page.cells(), "a part alone is drawn all the same"


def test_adapting_is_found_in_the_folder_that_adapt_made(tmp_path: Path) -> None:
    for name in ("first", "second"):
        make_run(tmp_path / name / "adapting", rows())
    page = report(tmp_path / "first", tmp_path / "second" / "adapting", out=tmp_path / "report.html")
    first, second = json.loads(page.texts["script"][0])
    assert (first["name"], second["name"]) == ("first", "second/adapting")
    assert first["curves"] == second["curves"]


def test_the_verdict_of_an_adapt_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, kept in (("better", True), ("same", False)):
        make_run(tmp_path / name / "adapting", rows())
        measures = {
            "recall@1": {"before": score(40.0), "after": score(50.0)},
            "utility, nats": {"before": score(-1.0), "after": score(1.0)},
        }
        gain = {
            "gained": "rank gained",
            "gain": 0.1 if kept else -0.1,
            "low": -0.2,
            "high": 0.2,
            "kept": kept,
        }
        (tmp_path / name / "verdict.json").write_text(
            json.dumps({"held_out": 1234, "measures": measures, **gain})
        )
    page = report(tmp_path / "better", tmp_path / "same", out=tmp_path / "report.html")
    assert page.texts["h2"] == ["Adapting: better", "Adapting: same", "Training"]
    assert page.cells()[:4] == ["40.0", "50.0", "−1.00", "1.00"]
    assert page.texts["b"] == ["Better on these: the model was kept.", "Not surely better: nothing was kept."]
    assert "Rank gained: −0.100 [−0.200, +0.200]. " in page.texts["p"]
    (tmp_path / "same" / "verdict.json").write_text('{"held_out": 3}')
    assert "verdict.json is damaged" in refused(capsys, tmp_path / "same", out=tmp_path / "other.html")


def test_a_row_cut_off_is_left_out_and_what_is_no_number_breaks_the_line(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": math.nan}, {"step": 3, "loss": 1.0}]
    )
    with open(run / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 4, "lo')
    page = report(run, out=tmp_path / "report.html")
    assert json.loads(page.texts["script"][0])[0]["curves"] == {"loss": [[1, 2.0], [2, None], [3, 1.0]]}


def test_evaluations_are_one_table_with_a_gap_where_nothing_was_measured(tmp_path: Path) -> None:
    nats = {
        "−log p(y|x)": {"value": 2.106, "low": 2.07, "high": 2.14},
        "retrieval utility": {"value": -0.5, "low": -0.6, "high": -0.4},
    }
    (tmp_path / "clozes.json").write_text(
        json.dumps(evaluation(nats=nats, recall={"5": score(80), "1": score(40), "20": score(90)}))
    )
    (tmp_path / "questions.json").write_text(
        json.dumps(
            evaluation(
                exact_match=None,
                retriever="bm25",
                gold_recall={"1": score(33)},
                model="/a/qa/model",
                corpus="corpus",
            )
        )
    )
    page = report(
        "--evaluations", tmp_path / "clozes.json", tmp_path / "questions.json", out=tmp_path / "report.html"
    )
    heads = ["answers, %", "nats", "recall of the answer string (dpr), %", "recall of the gold passage, %"]
    columns = ["exact match", "−log p(y|x)", "retrieval utility", "@1", "@5", "@20", "@1"]
    assert page.texts["th"] == [*heads, *columns, "clozes", "questions"]
    assert page.cells() == [
        "60.0",
        "2.11",
        "−0.50",
        "40.0",
        "80.0",
        "90.0",
        "–",
        "–",
        "–",
        "–",
        "40.2",
        "–",
        "–",
        "33.0",
    ]
    assert {
        "1,200 questions",
        "bm25, 4 read",
        "model qa/model",
        "corpus corpus",
        "[−0.60, −0.40]",
        "[38.8, 41.8]",
    } <= set(page.texts["small"])
    assert [attributes["colspan"] for tag, attributes in page.tags if tag == "th" and attributes] == [
        "1",
        "2",
        "3",
        "1",
    ]


def test_examples_show_question_answers_and_passages_of_both(tmp_path: Path) -> None:
    long = "word " * 100 + "The seal shows an Answer 0, gilded. " + "more " * 100
    before = write_lines(
        tmp_path / "ict.jsonl",
        [prediction(0), prediction(1, rank=1, correct=True), prediction(2), prediction(3)],
    )
    found = prediction(0, passage=long, title="Seals", at=3, rank=2, correct=True, answer="gold", log_p=-0.25)
    after = write_lines(
        tmp_path / "realm.jsonl", [found, prediction(1, rank=4), prediction(2), prediction(9)]
    )
    page = report("--before", before, "--after", after, out=tmp_path / "report.html")
    assert "3 questions were put to ict (before) and to realm (after)" in page.text
    assert (
        "came nearer for 1 and moved away for 1; 1 answers were right before and 1 after (1 gained, 1 lost)"
        in page.text
    )
    assert page.texts["h4"] == ["Question 0?", "Question 1?"]
    assert page.texts["mark"] == ["Answer 0"]
    assert page.texts["h5"] == ["before: ict", "after: realm"] * 2
    assert page.texts["b"] == ["answer 0", "wrong", "gold", "answer 1", "wrong", "wrong"]
    assert "no passage retrieved has the answer" in page.text
    assert "log p(y|x) −0.25; first passage with the answer: 2" in page.text
    assert "nothing read (the null document)" in page.text
    assert not any(len(text) > 300 for text in page.texts["p"] if "questions were put" not in text)


def test_a_report_is_the_same_every_time(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows())
    for name in ("a", "b"):
        report(run, out=tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# --- texts are texts ----------------------------------------------------------------------------------------


def test_texts_never_become_markup(evil: list[Any], tmp_path: Path) -> None:
    page = report(*evil, out=tmp_path / "report.html")
    tags = [tag for tag, _ in page.tags]
    assert "img" not in tags
    assert tags.count("script") == 2
    assert page.text.count(EVIL) >= 10
    assert EVIL in json.loads(page.texts["script"][0])[0]["curves"]
    assert page.texts["title"] == [f"{EVIL.replace('/', '')}, other"]


def test_nothing_is_loaded_from_elsewhere(evil: list[Any], tmp_path: Path) -> None:
    page = report(*evil, out=tmp_path / "report.html")
    assert not any({"src", "href"} & set(attributes) for _, attributes in page.tags)
    (style,) = page.texts["style"]
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = [attributes["content"] for _, attributes in page.tags if attributes.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
