"""Answers to the same questions by a model before and after training: where retrieval changed most."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from realmlm.errors import BadInput
from realmlm.reading.records import Evidence
from realmlm.storage.files import json_lines, read_text

Key = TypeVar("Key")


@dataclass(frozen=True)
class Prediction:
    """A line of `evaluate --predictions`: what was answered to a question, and from which passages."""

    question: str
    answers: tuple[str, ...]
    """Those that count as right."""
    answer: str
    correct: bool
    log_p: float | None
    """log p(y|x) of what a masked sentence hides; None for questions."""
    rank: int | None
    """Of the first passage with the answer among those retrieved; None: none has it."""
    read: tuple[Evidence, ...]
    """Best retrieved first."""

    @property
    def nearness(self) -> float:
        """Reciprocal rank: 1 where the first passage has the answer, 0 where none has."""
        return 0.0 if self.rank is None else 1 / self.rank


@dataclass(frozen=True)
class Change:
    """Two sets of predictions compared; each pair is a question before and after."""

    both: int
    """Questions that stand in both sets."""
    right: tuple[int, int]
    """Right answers before and after."""
    gained: int
    lost: int
    counts: tuple[int, int]
    """Questions for which the first passage with the answer came nearer, and for which it moved away."""
    nearer: list[tuple[Prediction, Prediction]]
    """Those of the first kind that are shown."""
    further: list[tuple[Prediction, Prediction]]


def read_predictions(file: Path) -> dict[tuple[str, str], Prediction]:
    """What `evaluate --predictions` wrote, by id and question."""
    predictions = {}
    for number, row in json_lines(read_text(file)):
        if isinstance(row, dict) and "question" in row and "evidence" not in row:
            nothing = f"{file}:{number}: nothing was read for this question"
            raise BadInput(f"{nothing}; evaluate with --read 1 or more")
        try:
            predictions[str(row["id"]), str(row["question"])] = _prediction(row)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            command = f"realmlm evaluate … --predictions {file}"
            raise BadInput(f"{file}:{number}: not a prediction; make such a file: {command}") from error
    return predictions


def _prediction(row: dict[str, Any]) -> Prediction:
    """A line, checked: what is missing or of another kind raises KeyError, TypeError or ValueError."""
    rank = _whole(row["first_passage_with_answer"])
    return Prediction(
        question=str(row["question"]),
        answers=tuple(map(str, row["answers"])),
        answer=str(row["answer"]),
        correct=bool(row["correct"]),
        log_p=None if row["log_p"] is None else float(row["log_p"]),
        rank=None if rank is None else max(1, rank),
        read=tuple(sorted(map(_evidence, row["evidence"]), key=lambda one: -one.retrieval_probability)),
    )


def _evidence(row: dict[str, Any]) -> Evidence:
    return Evidence(
        passage_id=_whole(row["passage_id"]),
        title=str(row["title"]),
        passage=str(row["passage"]),
        start=_whole(row["start"]),
        end=_whole(row["end"]),
        retrieval_probability=float(row["retrieval_probability"]),
        reading_probability=float(row["reading_probability"]),
        file=str(row.get("file", "")),
        passage_logit=None if row.get("passage_logit") is None else float(row["passage_logit"]),
    )


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def compare(before: dict[Key, Prediction], after: dict[Key, Prediction], *, examples: int) -> Change:
    """Compare the questions of both; at most `examples` are shown of each kind, most changed first."""
    pairs = [(before[key], after[key]) for key in before if key in after]
    pairs.sort(key=lambda pair: amount(*pair), reverse=True)
    nearer = [(old, new) for old, new in pairs if new.nearness > old.nearness]
    further = [(old, new) for old, new in pairs if new.nearness < old.nearness]
    return Change(
        both=len(pairs),
        right=(sum(old.correct for old, _ in pairs), sum(new.correct for _, new in pairs)),
        gained=sum(new.correct and not old.correct for old, new in pairs),
        lost=sum(old.correct and not new.correct for old, new in pairs),
        counts=(len(nearer), len(further)),
        nearer=_various(nearer, examples),
        further=_various(further, examples),
    )


def amount(old: Prediction, new: Prediction) -> tuple[float, float, float]:
    """How much retrieval changed, ½ Σ_z |p − q| of p(z|x) to two digits; then what came of it."""
    p, q = ({one.passage_id: one.retrieval_probability for one in side.read} for side in (old, new))
    # fsum: in any order the same
    distance = math.fsum(abs(p.get(z, 0.0) - q.get(z, 0.0)) for z in p.keys() | q.keys()) / 2
    gain = 0.0 if old.log_p is None or new.log_p is None else abs(new.log_p - old.log_p)
    return round(distance, 2), abs(new.nearness - old.nearness), gain


def _various(pairs: list[tuple[Prediction, Prediction]], count: int) -> list[tuple[Prediction, Prediction]]:
    """The first few, one for each expected answer: wordings of one question would say the same."""
    first: dict[tuple[str, ...], tuple[Prediction, Prediction]] = {}
    for pair in pairs:
        first.setdefault(pair[0].answers, pair)
    return list(first.values())[:count]
