"""Lists in passages, lines or clauses of which each is about one thing: a question that names one of them
asks for what stands there, "one list in English, led by Sven; and one in Portuguese, led by Aurelio"."""

import re
from collections.abc import Sequence

import numpy as np

from realmlm.corpus.store import Passage
from realmlm.reading.wholes import borders
from realmlm.rows import rows

# K passages, S spans of each

BESIDE = 0.3  # what the reader's p counts for outside the entry that was asked for
_FEWEST = 3  # entries that are a list
_WORD = re.compile(r"\w+(?:[.^+-]\w+)*")  # "4.4BSD" is one


def in_named_entry(
    question: str, passages: Sequence[Passage], starts_KS: np.ndarray, ends_KS: np.ndarray, p_KS: np.ndarray
) -> np.ndarray:
    """p(s|z,x) with the entries of lists in view: spans outside the one entry that a question names count for
    less beside those within. Rows of tables are looked up elsewhere (tables.py)."""
    names = {word.casefold() for word in _WORD.findall(question)[1:] if re.search(r"[A-Z\d]", word)}
    if not names:
        return p_KS
    p_KS = p_KS.copy()
    for number, passage in enumerate(passages):
        if (entry := _named(names - _words(passage.title), passage.text)) is not None:
            start, end = entry
            within_S = (starts_KS[number] < end) & (ends_KS[number] > start)
            if p_KS[number, within_S].sum() > 0:
                weighed_S = p_KS[number] * np.where(within_S, 1.0, BESIDE)
                p_KS[number] = weighed_S * (p_KS[number].sum() / weighed_S.sum())
    return p_KS


def _named(names: set[str], text: str) -> tuple[int, int] | None:
    """The entry of a list that has most of the names that no other has; None if that is not one alone."""
    few = text.count("\n") + text.count("; ") < _FEWEST - 1
    if few or not names & _words(text) or next(rows(text), None) is not None:
        return None
    between = [place for place in borders(text) if re.search(r"[;\n]", text[place - 1 : place + 1])]
    entries = list(zip([0, *between], [*between, len(text)], strict=True))
    if len(entries) < _FEWEST:
        return None
    found = [names & _words(text[start:end]) for start, end in entries]
    alone = [sum(sum(name in other for other in found) == 1 for name in some) for some in found]
    most = max(alone)
    return entries[alone.index(most)] if most and alone.count(most) == 1 else None


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}
