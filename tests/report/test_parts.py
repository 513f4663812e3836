"""What a report is put together from: how much retrieval changed, curves made short, pieces of passages,
names."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realmlm.reading.records import Evidence
from realmlm.report.html import piece
from realmlm.report.predictions import Prediction, amount, compare
from realmlm.report.sources import Points, bundle, names_of


def told(
    *shares: float, first: int = 0, rank: int | None = None, log_p: float | None = None, answer: str = "x"
) -> Prediction:
    read = tuple(
        Evidence(first + number, "", "", None, None, share, 0.0) for number, share in enumerate(shares)
    )
    return Prediction("q", (answer,), "", False, log_p, rank, read)


def test_retrieval_changed_by_half_the_sum_of_all_differences() -> None:
    assert amount(told(0.5, 0.5), told(0.5, 0.5)) == (0, 0, 0)
    assert amount(told(0.75, 0.25), told(0.25, 0.75)) == (0.5, 0, 0)
    assert amount(told(0.75, 0.25), told(1.0, first=1)) == (0.75, 0, 0)
    assert amount(told(1.0, rank=2, log_p=-4.0), told(1.0, first=1, log_p=-1.0)) == (1.0, 0.5, 3.0)


def test_the_most_changed_come_first_one_for_each_answer() -> None:
    before = {number: told(1.0, answer=answer) for number, answer in enumerate("aabc")}
    after = {
        0: told(0.9, 0.1, rank=1, answer="a"),
        1: told(0.5, 0.5, rank=1, answer="a"),
        2: told(0.6, 0.4, rank=3, answer="b"),
        3: told(1.0, first=5, answer="c"),  # changed most, and still without the answer
    }
    change = compare(before, after, examples=5)
    assert [new for _, new in change.nearer] == [after[1], after[2]]
    assert (change.counts, change.further) == ((3, 0), [])
    assert [new for _, new in compare(after, before, examples=1).further] == [before[0]]


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=300), st.integers(1, 40))
def test_a_long_curve_becomes_means_with_their_range(values: list[float | None], most: int) -> None:
    points: Points = list(enumerate(values))
    bundled = bundle(points, most=most)
    assert len(bundled) <= most
    if len(points) <= most:
        assert bundled == points
        return
    begin = 0
    for step, mean, *ends in bundled:
        assert step is not None
        stretch = values[begin : int(step) + 1]
        begin = int(step) + 1
        if None in stretch:
            assert (mean, ends) == (None, [])
        else:
            assert mean == pytest.approx(
                sum(value for value in stretch if value is not None) / len(stretch), rel=1e-5, abs=1e-5 * 1e6
            )
            assert ends == [min(stretch), max(stretch)]  # type: ignore[type-var]
    assert begin == len(points)


@given(
    st.text("ab c.", max_size=400),
    st.lists(st.text("ab ", min_size=1, max_size=5), max_size=3),
    st.integers(20, 60),
)
def test_a_piece_of_a_passage_stands_in_it_and_marks_an_answer(
    text: str, answers: list[str], most: int
) -> None:
    parts = [
        part if isinstance(part, str) else f"<{part.text}>" for part in piece(text, tuple(answers), most=most)
    ]
    shown = "".join(parts).replace("… ", "", 1) if parts[0].startswith("… ") else "".join(parts)
    shown = shown.removesuffix(" …")
    assert shown.replace("<", "").replace(">", "") in " ".join(text.split())
    assert len(shown) <= most + 2 + max(map(len, answers), default=0) + most // 2
    if len(parts) > 1:
        assert parts[1][1:-1] in answers


def test_names_take_as_many_parts_as_tell_them_apart() -> None:
    assert names_of([Path("a/x.json"), Path("b/y.jsonl")]) == ["x", "y"]
    assert names_of([Path("/r/a/x"), Path("/r/b/x")]) == ["a/x", "b/x"]
    assert names_of([Path("/r/a/../v1.2")]) == ["v1.2"]
    assert names_of([Path("/x"), Path("/r/x"), Path("/r/y")]) == ["/x", "r/x", "y"]
    assert names_of([Path("/r/warmup/reader"), Path("/r/reader.json")]) == ["warmup/reader", "reader"]
