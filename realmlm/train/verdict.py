"""Did a model get better? Measures of the same held-out examples before and after adapting."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from realmlm.evaluation.clozes import is_cloze
from realmlm.evaluation.intervals import paired_interval
from realmlm.evaluation.scores import Outcome, Report, Score, mean_score, summarise
from realmlm.train.budget import READ


@dataclass(frozen=True)
class Answers:
    """Answers to the same questions before and after: how many were right, how many are others now, and the
    mean gain with its 95% interval."""

    questions: int
    before: Score
    after: Score
    changed: int
    gain: float
    low: float
    high: float

    def plainly(self) -> str:
        """In a sentence or two, without measures' names."""
        right = [round(score.value * self.questions / 100) for score in (self.before, self.after)]
        made = "Asked as questions instead, and answered from other passages"
        said = f"{made}, {right[0]} were right before and {right[1]} after"
        if not self.changed:
            return f"{said}; no answer changed."
        sure = "better" if self.low > 0 else "worse" if self.high < 0 else "not surely better or worse"
        changed = f"{self.changed} of {self.questions} answers changed: they are {sure}"
        return f"{said}; {changed} ({self.gain:+.3f} [{self.low:+.3f}, {self.high:+.3f}])."


@dataclass(frozen=True)
class Verdict:
    """Measures of the same examples before and after, and the mean gain with its 95% interval."""

    before: Report
    after: Report
    gained: str
    gain: float
    low: float
    high: float
    answers: Answers | None = None
    """To questions made of the sentences, where the model has learned to answer questions."""

    @property
    def kept(self) -> bool:
        """Is the gain certain enough for the model to be saved?"""
        return self.low > 0

    @property
    def examples(self) -> str:
        """What was held out."""
        return "sentences" if self.before.nats else "questions"

    def rows(self) -> list[tuple[str, Score, Score]]:
        """Each measure before and after."""
        recall = [(k, score) for k, score in self.before.recall.items() if k <= READ]
        rows = [(f"recall@{k}", score, self.after.recall[k]) for k, score in recall]
        rows += [(f"{name}, nats", score, self.after.nats[name]) for name, score in self.before.nats.items()]
        if self.before.exact_match and self.after.exact_match:
            name = "exact match of hidden words" if self.before.nats else "exact match"
            rows.append((name, self.before.exact_match, self.after.exact_match))
        if self.answers is not None:
            rows.append(("exact match of answers", self.answers.before, self.answers.after))
        return rows

    def as_json(self) -> dict[str, Any]:
        """For `verdict.json`, which reports show."""
        rows = self.rows()
        measures = {name: {"before": asdict(first), "after": asdict(then)} for name, first, then in rows}
        gain = {name: getattr(self, name) for name in ("gained", "gain", "low", "high", "kept")}
        answers = None if self.answers is None else asdict(self.answers)
        return {"held_out": self.before.questions, "measures": measures, **gain, "answers": answers}

    def plainly(self) -> str:
        """The verdict in a sentence or two, without measures' names."""
        masked = bool(self.before.nats)
        sides = (self.before, self.after)
        scores = [report.recall[1] if masked else report.exact_match for report in sides]
        counts = [round((score.value if score else 0.0) * self.before.questions / 100) for score in scores]
        what = "a passage with the hidden words came first" if masked else "the answer was right"
        held_out = f"{self.before.questions} held-out {self.examples}"
        said = f"Of {held_out}, {what} for {counts[0]} before and {counts[1]} after."
        if self.answers is not None:
            return f"{said}\n{self.answers.plainly()}"
        where = "Measured on sentences of the documents with words hidden, not on questions"
        return f"{said}\n{where}: answers may stay the same." if masked else said

    def table(self) -> str:
        """For a terminal."""
        lines = [self.plainly(), ""]
        lines += [f"{f'{self.before.questions} held out':28s} {'before':>20s} {'after':>22s}"]
        lines += [f"{name:28s} {before!s:>20s} {after!s:>22s}" for name, before, after in self.rows()]
        gain = f"{self.gained}: {self.gain:+.3f}  [{self.low:+.3f}, {self.high:+.3f}]"
        return "\n".join([*lines, "", gain])


def compare(before: list[Outcome], after: list[Outcome], *, labelled: bool) -> Verdict:
    """By the questions answered, or by the rank of the first passage with the hidden words."""
    if labelled:
        gained = "gain in share answered exactly"
        gain, low, high = _gain(before, after, lambda outcome: float(outcome.correct), by_passage=False)
        return Verdict(_summary(before), _summary(after), gained, gain, low, high)
    (masked, asked), (masked_after, asked_after) = (
        ([one for one in side if is_cloze(one.question)], [one for one in side if not is_cloze(one.question)])
        for side in (before, after)
    )
    gained = "gain in mean reciprocal rank of the first passage with the hidden words"
    gain, low, high = _gain(masked, masked_after, _reciprocal_rank)
    answers = _answers(asked, asked_after) if asked else None
    return Verdict(_summary(masked), _summary(masked_after), gained, gain, low, high, answers)


def _summary(outcomes: list[Outcome]) -> Report:
    return summarise(outcomes, retriever="learned", read=READ, recall="dpr")


def _reciprocal_rank(outcome: Outcome) -> float:
    return 1 / (outcome.found.index(True) + 1) if True in outcome.found else 0.0


def _gain(
    before: list[Outcome],
    after: list[Outcome],
    value: Callable[[Outcome], float],
    *,
    by_passage: bool = True,
) -> tuple[float, float, float]:
    """The mean gain and its 95% interval; sentences of one passage count as one."""

    def values(outcomes: list[Outcome]) -> list[float]:
        groups: defaultdict[int | None, list[float]] = defaultdict(list)
        for number, outcome in enumerate(outcomes):
            groups[outcome.question.source if by_passage else number].append(value(outcome))
        return [float(np.mean(group)) for group in groups.values()]

    low, high = paired_interval(values(after), values(before))
    return float(np.mean(values(after)) - np.mean(values(before))), low, high


def _answers(before: list[Outcome], after: list[Outcome]) -> Answers:
    def words(outcome: Outcome) -> str:
        return outcome.answer.answer if outcome.answer else ""

    scores = [mean_score([float(outcome.correct) for outcome in side]) for side in (before, after)]
    changed = sum(words(first) != words(then) for first, then in zip(before, after, strict=True))
    gain, low, high = _gain(before, after, lambda outcome: float(outcome.correct))
    return Answers(len(before), scores[0], scores[1], changed, gain, low, high)
