"""Two arms on the same questions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import realmlm
from realmlm.errors import BadInput, Mismatch, NotEnough
from realmlm.evaluation.intervals import paired_interval

RANKS: list[list[int | None]] = [[1, 2, None, 7, 1, None], [3, 2, 1, None, 30, None]]


def rows_of(arm: int, **more: Any) -> list[dict[str, Any]]:
    rows = []
    for number, rank in enumerate(RANKS[arm]):
        row = {"id": f"q{number}", "question": f"Which is {number}?", "first_passage_with_answer": rank}
        rows.append(
            row | {"correct": (number + arm) % 2 == 0, "f1": number / 10 + arm / 20, "log_p": None} | more
        )
    return rows


def written(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def test_questions_are_matched_whatever_their_order(tmp_path: Path) -> None:
    first = written(tmp_path / "first.jsonl", rows_of(0))
    second = written(tmp_path / "second.jsonl", rows_of(1)[::-1])
    found = realmlm.compare(str(first), second)
    assert found.questions == 6
    assert list(found.measures) == ["exact match", "F1", "recall@1", "recall@5", "recall@10", "recall@20"]
    for depth in (1, 5, 10, 20):
        hits = [[100.0 * (rank is not None and rank <= depth) for rank in ranks] for ranks in RANKS]
        one = found.measures[f"recall@{depth}"]
        assert (one.first, one.second) == pytest.approx(tuple(np.mean(hits, axis=1)))
        assert one.difference == pytest.approx(one.first - one.second)
        assert (one.low, one.high) == paired_interval(*hits)
    f1 = found.measures["F1"]
    assert (f1.difference, f1.low, f1.high) == pytest.approx((-5, -5, -5)), "the same for every question"
    assert "6 questions\n" in found.table()
    assert "F1            25.00  30.00   -5.00 [-5.00, -5.00]" in found.table()


def test_of_several_seeds_the_means_are_compared(tmp_path: Path) -> None:
    files = [written(tmp_path / f"{arm}.jsonl", rows_of(arm)) for arm in (0, 1)]
    found = realmlm.compare(files, [files[1]])
    assert found.measures["F1"].first == pytest.approx(27.5)
    assert found.measures["F1"].second == pytest.approx(30)


def test_what_one_arm_lacks_is_not_compared(tmp_path: Path) -> None:
    unread = written(tmp_path / "unread.jsonl", rows_of(0, correct=None, f1=None, log_p=-2.0))
    read = written(tmp_path / "read.jsonl", rows_of(1, log_p=-1.5))
    measures = realmlm.compare(unread, read).measures
    assert list(measures) == ["log p(y|x)", "recall@1", "recall@5", "recall@10", "recall@20"]
    assert measures["log p(y|x)"].difference == pytest.approx(-0.5)


def test_other_questions_are_refused(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.jsonl", rows_of(0))
    fewer = written(tmp_path / "fewer.jsonl", rows_of(1)[:5])
    with pytest.raises(Mismatch, match="1 stand in one of them alone, such as 'q5 · Which is 5"):
        realmlm.compare(whole, fewer)
    others = written(tmp_path / "others.jsonl", [row | {"question": "Where?"} for row in rows_of(1)])
    with pytest.raises(Mismatch, match="not of the same questions: 12 stand in one"):
        realmlm.compare(whole, others)


def test_what_is_no_file_of_predictions_is_refused(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.jsonl", rows_of(0))
    twice = written(tmp_path / "twice.jsonl", [*rows_of(0), rows_of(0)[2]])
    with pytest.raises(BadInput, match=r"twice.jsonl:7: the question 'q2' stands there twice"):
        realmlm.compare(whole, twice)
    for wrong in ('{"id": 1}\n', "[]\n", "{\n"):
        (tmp_path / "wrong.jsonl").write_text(wrong)
        with pytest.raises(BadInput, match=r"wrong.jsonl:1: not a prediction"):
            realmlm.compare(whole, tmp_path / "wrong.jsonl")
    with pytest.raises(BadInput, match="no such file"):
        realmlm.compare(whole, tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(NotEnough, match="has no predictions"):
        realmlm.compare(tmp_path / "empty.jsonl", tmp_path / "empty.jsonl")
    with pytest.raises(BadInput, match="at least one file"):
        realmlm.compare([], whole)
