"""What an evaluation measured for each question, and the means with their intervals."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from realmlm.corpus.questions import Question
from realmlm.evaluation.intervals import bootstrap_interval
from realmlm.evaluation.matching import Recall
from realmlm.reading.records import Answer

CUTOFFS = (1, 5, 20, 50)


@dataclass(frozen=True)
class Outcome:
    """What was measured for one question."""

    question: Question
    answer: Answer | None  # None: nothing was read
    correct: bool
    f1: float | None  # None: the answers are patterns
    log_p: float | None  # log p(y|x) of what a masked sentence hides
    utility: float | None  # retrieval utility: log p(y|x) − log p(y|∅,x)
    found: list[bool]  # is it the first passage that contains the answer? For those retrieved, best first
    gold: list[bool]  # is it a gold passage?


@dataclass(frozen=True)
class Score:
    """A mean with its 95% interval, in percent."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:5.1f}  [{self.low:.1f}, {self.high:.1f}]"


@dataclass(frozen=True)
class Report:
    """The result of `realmlm evaluate`."""

    questions: int
    retriever: str
    read: int
    exact_match: Score | None  # None: nothing was read
    f1: Score | None  # None: the answers are patterns
    nats: dict[str, Score] = field(default_factory=dict)  # masked sentences: −log p(y|x), retrieval utility
    recall_definition: Recall = "dpr"
    recall: dict[int, Score] = field(default_factory=dict)
    gold_recall: dict[int, Score] = field(default_factory=dict)
    ranking: dict[str, Score] = field(default_factory=dict)  # of documents, by relevance judgements
    seconds: float = 0.0
    model: str = ""
    corpus: str = ""
    question_file: str = ""
    index: str = ""  # the one named with --index
    limit: int | None = None
    with_mask: bool = False
    hybrid: float = 0.0  # weight of BM25 in the search
    rerank: int = 0
    overlapping: str = "separate"  # as in reports that do not say it

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def table(self) -> str:
        """The report as lines of text."""
        read = "nothing" if self.retriever == "none" or self.read == 0 else f"{self.read} passages"
        read += f" of {self.rerank}" * (self.rerank > self.read)
        asked = f"{self.questions:,} questions" + " with a [MASK] after each" * self.with_mask
        matching = f" + {self.hybrid:g} · BM25" if self.hybrid else ""
        merged = ", overlapping spans merged" * (self.overlapping == "merged")
        how = f"retriever {self.retriever}{matching}, {read} read{merged}"
        lines = [f"{asked}, {how}, {self.seconds:.1f} s", ""]
        rows: list[tuple[str, Score]] = [("exact match", self.exact_match)] if self.exact_match else []
        rows += [(f"{name}, nats", score) for name, score in self.nats.items()]
        rows += [("F1", self.f1)] if self.f1 else []
        by = f"answer string, {self.recall_definition}"
        rows += [(f"recall@{k} ({by})", score) for k, score in self.recall.items()]
        rows += [(f"recall@{k} (gold passage)", score) for k, score in self.gold_recall.items()]
        rows += [(f"{name} (judged documents)", score) for name, score in self.ranking.items()]
        return "\n".join(lines + [f"{name:31s} {score}" for name, score in rows])


def mean_score(values: list[float], *, unit: float = 100.0, digits: int = 2) -> Score:
    """The mean of values with its interval, in this unit."""
    low, high = bootstrap_interval(values)
    return Score(*(round(unit * value, digits) for value in (float(np.mean(values)), low, high)))


def summarise(outcomes: list[Outcome], *, retriever: str, read: int, recall: Recall) -> Report:
    """The report of these outcomes; `read` is how many passages were read for each question."""

    def recalls(flags: list[list[bool]]) -> dict[int, Score]:
        depth = max((len(row) for row in flags), default=0)
        return {k: mean_score([float(any(row[:k])) for row in flags]) for k in CUTOFFS if k <= depth}

    was_read = any(outcome.answer is not None for outcome in outcomes)
    overlaps = [outcome.f1 for outcome in outcomes if outcome.f1 is not None] if was_read else []
    surprise = [-outcome.log_p for outcome in outcomes if outcome.log_p is not None]
    utility = [outcome.utility for outcome in outcomes if outcome.utility is not None]
    nats = {"−log p(y|x)": surprise, "retrieval utility": utility}
    with_gold = [outcome.gold for outcome in outcomes if outcome.question.gold]
    return Report(
        questions=len(outcomes),
        retriever=retriever,
        read=read,
        exact_match=mean_score([float(outcome.correct) for outcome in outcomes]) if was_read else None,
        f1=mean_score(overlaps) if overlaps else None,
        nats={name: mean_score(values, unit=1.0, digits=4) for name, values in nats.items() if values},
        recall_definition=recall,
        recall=recalls([outcome.found for outcome in outcomes]),
        gold_recall=recalls(with_gold),
    )


def summarise_ranking(measured: list[dict[str, float]], *, retriever: str) -> Report:
    """The report of what was measured for each query whose documents are judged."""
    names = measured[0] if measured else {}
    return Report(
        questions=len(measured),
        retriever=retriever,
        read=0,
        exact_match=None,
        f1=None,
        ranking={name: mean_score([row[name] for row in measured]) for name in names},
    )
