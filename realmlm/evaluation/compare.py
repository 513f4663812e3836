"""Two arms on the same questions, compared question by question from what `evaluate --predictions` wrote.

N questions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from realmlm.errors import BadInput, Mismatch, NotEnough
from realmlm.evaluation.intervals import paired_interval
from realmlm.storage.files import json_lines, read_text

DEPTHS = (1, 5, 10, 20)
# in percent, but for log p(y|x), which is in nats
PERCENT = 100.0

Key = tuple[str, ...]
Scored = Mapping[Key, Mapping[str, float]]
"""What each question counts in each measure, by its id and its words."""


@dataclass(frozen=True)
class Difference:
    """A measure of two arms, and by how much the first is above the second."""

    first: float
    second: float
    difference: float
    low: float
    """Where the difference's 95% interval begins, by the bootstrap over questions."""
    high: float
    """Where it ends: the arms differ if 0 is not within."""


@dataclass(frozen=True)
class Comparison:
    """Two arms on the same questions."""

    questions: int
    measures: dict[str, Difference]

    def table(self) -> str:
        """A line for each measure: of the first, of the second, the difference and its interval."""
        lines = [f"{self.questions:,} questions"]
        for name, one in self.measures.items():
            interval = f"{one.difference:+.2f} [{one.low:+.2f}, {one.high:+.2f}]"
            lines.append(f"{name:12s} {one.first:6.2f} {one.second:6.2f}   {interval}")
        return "\n".join(lines)


def compare(
    first: str | Path | Sequence[str | Path], second: str | Path | Sequence[str | Path]
) -> Comparison:
    """Compare two files of predictions of the same questions. An arm may be several files, one for each seed:
    then every question's mean over them is compared.

    Questions are matched by id and words; other sets of questions are refused. Measures are those that both
    have for every question: exact match and F1 where passages were read, recall of the answer, and for masked
    sentences log p(y|x).
    """
    sides = [[side] if isinstance(side, str | Path) else side for side in (first, second)]
    one, other = ({str(file): scored(Path(file)) for file in side} for side in sides)
    return compare_scored(one, other)


def compare_scored(first: Mapping[str, Scored], second: Mapping[str, Scored]) -> Comparison:
    """The same of what was read already, by names to complain with."""
    if not first or not second:
        raise BadInput("a comparison needs predictions of both arms; give at least one file of each")
    every = {**first, **second}
    name, questions = next(iter(every.items()))
    if not questions:
        raise NotEnough(f"{name} has no predictions; evaluate at least one question")
    for other, scores in every.items():
        if alone := questions.keys() ^ scores.keys():
            example = " · ".join(min(alone))
            raise Mismatch(
                f"{name} and {other} are not of the same questions: {len(alone):,} stand in one of them "
                f"alone, such as '{example}'; evaluate both on one set"
            )
    # what one arm lacks for some question, as it was not read or is no masked sentence, is not compared
    shared = [measures.keys() for scores in every.values() for measures in scores.values()]
    names = [name for name in next(iter(questions.values())) if all(name in measures for measures in shared)]

    def means(arm: Mapping[str, Scored], name: str) -> np.ndarray:
        return np.mean([[scores[key][name] for key in questions] for scores in arm.values()], axis=0)

    measures = {}
    for name in names:
        one_N = means(first, name)
        other_N = means(second, name)
        ends = paired_interval(one_N, other_N)
        found = (float(one_N.mean()), float(other_N.mean()), float((one_N - other_N).mean()))
        measures[name] = Difference(*found, *ends)
    return Comparison(len(questions), measures)


def scored(file: Path) -> dict[Key, dict[str, float]]:
    """What each question of a file of predictions counts in each measure."""
    scores: dict[Key, dict[str, float]] = {}
    for number, row in json_lines(read_text(file)):
        try:
            key = (str(row["id"]), str(row["question"]))
            measures = _measures(row)
        except (KeyError, TypeError, ValueError) as error:
            command = f"realmlm evaluate … --predictions {file}"
            raise BadInput(f"{file}:{number}: not a prediction; make such a file: {command}") from error
        if key in scores:
            raise BadInput(
                f"{file}:{number}: the question '{key[0]}' stands there twice; give ids of their own"
            )
        scores[key] = measures
    return scores


def _measures(row: dict[str, Any]) -> dict[str, float]:
    rank = row["first_passage_with_answer"]
    first = np.inf if rank is None else int(rank)
    given = {"exact match": (row["correct"], PERCENT), "F1": (row.get("f1"), PERCENT)}
    given["log p(y|x)"] = (row.get("log_p"), 1.0)
    measures = {name: scale * float(value) for name, (value, scale) in given.items() if value is not None}
    return measures | {f"recall@{depth}": PERCENT * (first <= depth) for depth in DEPTHS}
