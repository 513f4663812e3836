"""Answers beside those that count as right, and passages beside them: work for processes without a model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from realmlm.corpus.questions import Question
from realmlm.corpus.store import Corpus
from realmlm.evaluation.answers import f1, is_correct
from realmlm.evaluation.matching import Recall, first_with_answer
from realmlm.evaluation.scores import Outcome
from realmlm.reading.combine import Combiner, ReadSpans
from realmlm.reading.confidence import Calibration
from realmlm.reading.records import Answer


@dataclass(frozen=True)
class Reading:
    """What was read for a question."""

    answer: Answer | None
    log_p: float | None = None
    utility: float | None = None


@dataclass(frozen=True)
class Batch:
    """Some questions, what was retrieved for them and what was read: answers, or spans to make them of."""

    questions: list[Question]
    ids_BK: np.ndarray
    known: dict[int, Reading]  # by place
    asked: list[int]  # the places of those in `spans`
    spans: ReadSpans | None


def judge(combiner: Combiner, batch: Batch, *, recall: Recall) -> list[Outcome]:
    """The outcome of each question."""
    readings = dict(batch.known)
    if batch.spans is not None:
        readings |= zip(batch.asked, map(Reading, combiner.answers(batch.spans)), strict=True)
    ids_U, place_N = np.unique(batch.ids_BK.flatten(), return_inverse=True)
    place_BK = place_N.reshape(batch.ids_BK.shape)
    texts = combiner.corpus.texts(ids_U.tolist())
    outcomes = []
    for row, (question, ids) in enumerate(zip(batch.questions, batch.ids_BK.tolist(), strict=True)):
        reading = readings.get(row, Reading(None))
        words = "" if reading.answer is None else reading.answer.answer
        retrieved = map(texts.__getitem__, place_BK[row].tolist())
        first = first_with_answer(retrieved, question, recall=recall)
        outcomes.append(
            Outcome(
                question=question,
                answer=reading.answer,
                correct=is_correct(words, question),
                f1=None if question.is_regex else f1(words, question.answers),
                log_p=reading.log_p,
                utility=reading.utility,
                found=[place == first for place in range(len(ids))],
                gold=[number in question.gold for number in ids],
            )
        )
    return outcomes


def make_judge(
    folder: Path,
    edits: int,
    max_query: int,
    released: bool,
    calibration: Calibration | None,
    overlapping: str,
    recall: Recall,
) -> Callable[[Batch], list[Outcome]]:
    """What a process needs to do it."""
    combiner = Combiner(Corpus.open(folder, edits=edits), max_query, released, calibration, overlapping)
    return lambda batch: judge(combiner, batch, recall=recall)
