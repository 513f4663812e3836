"""Two sets of predictions for the same questions: where retrieval changed most."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from realmlm.errors import BadInput
from realmlm.storage.files import json_lines, read_text

Key = TypeVar("Key")


@dataclass(frozen=True)
class Read:
    """A passage that was read, and p(z|x). The null document has no id."""

    id: int | None
    title: str
    text: str
    share: float


@dataclass(frozen=True)
class Prediction:
    """What was answered to a question, and from what."""

    question: str
    answers: tuple[str, ...]
    answer: str
    correct: bool
    log_p: float | None
    rank: int | None
    """Of the first passage with the answer among those retrieved."""
    read: tuple[Read, ...]
    """Best retrieved first."""

    @property
    def nearness(self) -> float:
        """Reciprocal rank: 1 where the first passage has the answer, 0 where none has."""
        return 0.0 if self.rank is None else 1 / self.rank


@dataclass(frozen=True)
class Change:
    """Two sets of predictions for the same questions, compared."""

    both: int
    right: tuple[int, int]
    gained: int
    lost: int
    counts: tuple[int, int]
    """Questions whose answer came nearer, and from which it moved away."""
    nearer: list[tuple[Prediction, Prediction]]
    further: list[tuple[Prediction, Prediction]]


def read_predictions(file: Path) -> dict[tuple[str, str], Prediction]:
    predictions = {}
    for number, row in json_lines(read_text(file)):
        if isinstance(row, dict) and "question" in row and "evidence" not in row:
            raise BadInput(
                f"{file}:{number}: nothing was read for this question; evaluate with --read 1 or more"
            )
        try:
            read = [
                Read(
                    None if one["passage_id"] is None else int(one["passage_id"]),
                    str(one["title"]),
                    str(one["passage"]),
                    float(one["retrieval_probability"]),
                )
                for one in row["evidence"]
            ]
            predictions[str(row["id"]), str(row["question"])] = Prediction(
                question=str(row["question"]),
                answers=tuple(map(str, row["answers"])),
                answer=str(row["answer"]),
                correct=bool(row["correct"]),
                log_p=None if row["log_p"] is None else float(row["log_p"]),
                rank=None
                if row["first_passage_with_answer"] is None
                else max(1, int(row["first_passage_with_answer"])),
                read=tuple(sorted(read, key=lambda one: -one.share)),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadInput(
                f"{file}:{number}: not a prediction; make such a file: realmlm evaluate … --predictions "
                f"{file}"
            ) from error
    return predictions


def compare(before: dict[Key, Prediction], after: dict[Key, Prediction], *, examples: int) -> Change:
    """Where retrieval changed most: so many questions whose first passage with the answer came nearer, as
    many where it moved away."""
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
    """How much retrieval changed: the distance of p(z|x) before and after (½ Σ_z |p − q|), to two digits;
    then what it did."""
    shares: list[dict[int | None, float]] = [{one.id: one.share for one in side.read} for side in (old, new)]
    ids = shares[0].keys() | shares[1].keys()
    # fsum: in any order the same
    distance = math.fsum(abs(shares[0].get(number, 0.0) - shares[1].get(number, 0.0)) for number in ids) / 2
    gain = 0.0 if old.log_p is None or new.log_p is None else abs(new.log_p - old.log_p)
    return round(distance, 2), abs(new.nearness - old.nearness), gain


def _various(pairs: list[tuple[Prediction, Prediction]], count: int) -> list[tuple[Prediction, Prediction]]:
    """The first few, one for each expected answer: wordings of one question would say the same."""
    first: dict[tuple[str, ...], tuple[Prediction, Prediction]] = {}
    for pair in pairs:
        first.setdefault(pair[0].answers, pair)
    return list(first.values())[:count]
