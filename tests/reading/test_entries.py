"""Of a list, the entry that a question names holds the answer."""

import numpy as np
import pytest

from realmlm.corpus.store import Passage
from realmlm.reading.entries import in_named_entry

CLAUSES = (
    "There are two: one in English, led by Sven; and one in Portuguese, led by Aurelio.\nBoth are small."
)
LINES = "3BSD (1980)\n4.3BSD came in 1986.\n4.4BSD came in 1993 and is the last."


def weighed(question: str, text: str, spans: dict[str, float], title: str = "") -> dict[str, float]:
    starts = np.array([[text.index(words) for words in spans]])
    ends = starts + np.array([[len(words) for words in spans]])
    p = np.array([list(spans.values())])
    found = in_named_entry(question, [Passage(0, title, text)], starts, ends, p)
    assert found.sum() == pytest.approx(p.sum())
    assert p.tolist() == [list(spans.values())]
    return dict(zip(spans, found[0].tolist(), strict=True))


@pytest.mark.parametrize(
    ("question", "text", "spans", "best"),
    [
        ("Who leads the Portuguese list?", CLAUSES, {"Sven": 0.5, "Aurelio": 0.35}, "Aurelio"),
        ("Who leads the English list?", CLAUSES, {"Sven": 0.35, "Aurelio": 0.5}, "Sven"),
        ("When did 4.4BSD come out?", LINES, {"1980": 0.4, "1986": 0.1, "1993": 0.3}, "1993"),
        ("When did 4.3BSD come out?", LINES, {"1980": 0.4, "1986": 0.3, "1993": 0.1}, "1986"),
    ],
)
def test_what_stands_in_the_entry_that_is_named_counts_most(
    question: str, text: str, spans: dict[str, float], best: str
) -> None:
    found = weighed(question, text, spans)
    assert max(found, key=found.__getitem__) == best


@pytest.mark.parametrize(
    ("question", "text", "title"),
    [
        ("Who leads the list?", CLAUSES, ""),  # no name
        ("Portuguese leader?", CLAUSES, ""),  # every first word has a capital
        ("Who leads English and Portuguese?", CLAUSES, ""),  # two entries
        ("Who leads the Portuguese list?", CLAUSES, "Portuguese lists"),  # all is about it
        ("Who leads in Portuguese?", CLAUSES.replace(";", ",").replace("\n", " "), ""),  # no list
        ("Who leads in Portuguese?", f"List: Portuguese; Of: Sven\n{CLAUSES}", ""),  # a table
    ],
)
def test_elsewhere_everything_counts_as_it_did(question: str, text: str, title: str) -> None:
    spans = {"Sven": 0.5, "Aurelio": 0.35}
    assert weighed(question, text, spans, title) == spans


def test_the_reader_that_has_nothing_in_the_entry_loses_no_probability() -> None:
    text = f"{CLAUSES}\nNone is in Dutch."
    assert weighed("Who leads the Dutch list?", text, {"Sven": 0.5}) == {"Sven": 0.5}
