"""What speaks for an answer and against it: the signs that a calibration weighs."""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from realmlm.reading.kinds import fits, repeats
from realmlm.reading.records import Answer, Evidence
from realmlm.reading.tables import lacks, names_other

# as things are numbered: ORD-199999, KX-4411; not COVID-19, 1990s
_CODE = re.compile(r"\b[A-Za-z]{1,6}[-/]?\d{3,}(?:[-/]?\w+)*")
LEAST_P = 1e-6  # an answer less likely counts as this likely


class Signs(NamedTuple):
    """Of one answer."""

    p: float
    """log p(y|x)."""
    relevance: float
    """max f(x,z): how well the question fits the best passage at all."""
    logit: float = 0.0
    """g(x,z) of the passage that the answer comes from most: does it answer the question? 0 if the model has
    not learned to say, or the passage has no title."""
    amiss: float = 0.0
    """1: the answer is of another kind than was asked for, says nothing but words of the question, or is
    about another code, cell or row than it names."""


def signs_of(question: str, answer: Answer) -> Signs:
    """The signs of an answer to a question."""
    first = answer.evidence[0] if answer.evidence else None
    # mini's reader says yes to every passage without a title, as those of SQuAD were (docs/log.md)
    logit = first.passage_logit if first and first.title else None
    return Signs(
        p=math.log(max(answer.probability, LEAST_P)),
        relevance=answer.relevance or 0.0,
        logit=logit or 0.0,
        amiss=float(
            fits(question, answer.answer) < 0
            or repeats(question, answer.answer)
            or names_unknown(question, (f"{one.title} {one.passage}" for one in answer.evidence))
            or (first is not None and first.start is not None and _beside_it(question, first, first.start))
        ),
    )


def _beside_it(question: str, read: Evidence, start: int) -> bool:
    """Does the answer stand in a table that lacks what the question names, a cell or a row?"""
    return lacks(question, read.passage, start) or names_other(question, read.title, read.passage, start)


def names_unknown(question: str, read: Iterable[str]) -> bool:
    """Does the question name something by a code that stands in nothing of what was read?"""
    codes = {_letters(code) for code in _CODE.findall(question)}
    return bool(codes) and not any(code in text for text in map(_letters, read) for code in codes)


def _letters(text: str) -> str:
    """Letters and figures alone: "KX 4411" is "KX-4411"."""
    return re.sub(r"\W+", "", text).casefold()
