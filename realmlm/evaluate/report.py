"""Measuring a model on a question set: answers, retrieval, intervals; the baselines go through the same code."""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from realmlm.artefact import write_text
from realmlm.corpus.questions import Question, read_questions, spread
from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.device import pick_device
from realmlm.errors import NotEnough
from realmlm.evaluate.answers import f1, is_correct
from realmlm.evaluate.bm25 import BM25Index
from realmlm.evaluate.clozes import is_cloze, widen_masks
from realmlm.evaluate.intervals import bootstrap_interval
from realmlm.evaluate.matching import contains_answer
from realmlm.log import progress
from realmlm.model.answering import BATCH, Answer, Answerer
from realmlm.model.realm import Realm
from realmlm.model.retrieval import LearnedRetriever, NoRetriever, Query, Retrieved, Retriever, check_readable, index_for

CUTOFFS = (1, 5, 20, 50)


class BM25Retriever:
    """Word matching in place of the learned retriever; p(z|x) is the softmax of its scores."""

    def __init__(self, corpus: Corpus) -> None:
        self._index = BM25Index((number, f"{corpus[number].title} {corpus[number].text}") for number in corpus.ids.tolist())

    def __call__(self, queries: list[Query], k: int) -> Retrieved:
        scores, ids = self._index.search([query.text.replace("[MASK]", " ") for query in queries], k)
        return Retrieved(torch.from_numpy(ids), torch.from_numpy(scores), None)


@dataclass(frozen=True)
class Outcome:
    """One question measured."""

    question: Question
    answer: Answer
    correct: bool
    f1: float | None  # None: the answers are patterns
    found: list[bool]  # of the passages retrieved, best first: does it hold the answer?
    gold: list[bool]  # … is it a gold passage?


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
    """What `realmlm evaluate` says."""

    questions: int
    retriever: str
    read: int
    exact_match: Score
    f1: Score | None  # None: the answers are patterns
    recall: dict[int, Score] = field(default_factory=dict)
    gold_recall: dict[int, Score] = field(default_factory=dict)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def table(self) -> str:
        read = "nothing" if self.retriever == "none" else f"{self.read} passages"
        lines = [f"{self.questions:,} questions, retriever {self.retriever}, {read} read, {self.seconds:.1f} s", ""]
        rows: list[tuple[str, Score]] = [("exact match", self.exact_match)]
        rows += [("F1", self.f1)] if self.f1 else []
        rows += [(f"recall@{k} (answer string)", score) for k, score in self.recall.items()]
        rows += [(f"recall@{k} (gold passage)", score) for k, score in self.gold_recall.items()]
        return "\n".join(lines + [f"{name:26s} {score}" for name, score in rows])


def evaluate(
    *,
    model: Path,
    corpus: Path,
    questions: Path,
    retriever: str = "learned",
    read: int = 5,
    index: Path | None = None,
    limit: int | None = None,
    predictions: Path | None = None,
    device: str = "auto",
) -> Report:
    """Measure a model on a question set; with `predictions`, write every answer with its evidence as JSON lines."""
    realm, wordpieces = Realm.from_pretrained(model, device=pick_device(device))
    known = Corpus.open(corpus)
    check_readable(str(model), realm, wordpieces, known)
    if read > len(known):
        raise NotEnough(f"{read} passages cannot be read, {corpus} has {len(known)}; lower --read or use a larger corpus")
    asked = read_questions(questions)
    if limit is not None and limit < len(asked):
        asked = [asked[place] for place in spread(len(asked), limit)]
    if predictions is not None:
        Path(predictions).parent.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    begun = time.monotonic()
    chosen = make_retriever(retriever, realm, wordpieces, known, index=index)
    outcomes = list(measure(Answerer(realm, wordpieces, known, chosen), asked, read=read))
    if predictions is not None:
        write_text(Path(predictions), "".join(json.dumps(_prediction(outcome), ensure_ascii=False) + "\n" for outcome in outcomes))
    return summarise(outcomes, retriever=retriever, read=read, seconds=time.monotonic() - begun)


def make_retriever(name: str, model: Realm, wordpieces: Wordpieces, corpus: Corpus, *, index: Path | None) -> Retriever:
    if name == "none":
        return NoRetriever()
    if name == "bm25":
        return BM25Retriever(corpus)
    return LearnedRetriever(model, wordpieces, index_for(model, wordpieces, corpus, path=index))


def measure(answerer: Answerer, questions: list[Question], *, read: int) -> Iterable[Outcome]:
    """Retrieve for recall, read the first few, compare."""
    depth = min(max(*CUTOFFS, read), len(answerer.corpus))
    with progress("evaluating", len(questions), unit="questions") as bar:
        for first in range(0, len(questions), BATCH):
            some = questions[first : first + BATCH]
            yield from _measure_batch(answerer, some, depth=depth, read=read)
            bar.advance(len(some))


def _measure_batch(answerer: Answerer, questions: list[Question], *, depth: int, read: int) -> Iterable[Outcome]:
    cloze = np.array([is_cloze(question) for question in questions])
    queries = [
        widen_masks(question, answerer.wordpieces) if masked else answerer.query(question.text)
        for question, masked in zip(questions, cloze, strict=True)
    ]
    retrieved = answerer.retriever(queries, depth)
    answers: dict[int, Answer] = {}
    for rows, way in ((np.flatnonzero(cloze), answerer.fill_masks), (np.flatnonzero(~cloze), answerer.read_spans)):
        if len(rows):
            null_B = None if retrieved.null_B is None else retrieved.null_B[rows]
            offered = Retrieved(retrieved.ids_BK[rows, :read], retrieved.scores_BK[rows, :read], null_B)
            answers |= dict(zip(rows.tolist(), way([queries[row] for row in rows], offered), strict=True))
    for row, question in enumerate(questions):
        answer, ids = answers[row], retrieved.ids_BK[row].tolist()
        yield Outcome(
            question=question,
            answer=answer,
            correct=is_correct(answer.answer, question),
            f1=None if question.is_regex else f1(answer.answer, question.answers),
            found=[contains_answer(answerer.corpus[number].text, question) for number in ids],
            gold=[number in question.gold for number in ids],
        )


def summarise(outcomes: list[Outcome], *, retriever: str, read: int, seconds: float) -> Report:
    def score(values: list[float]) -> Score:
        low, high = bootstrap_interval(values)
        return Score(*(round(100 * value, 2) for value in (float(np.mean(values)), low, high)))

    def recalls(flags: list[list[bool]]) -> dict[int, Score]:
        depth = max((len(row) for row in flags), default=0)
        return {k: score([float(any(row[:k])) for row in flags]) for k in CUTOFFS if k <= depth}

    overlaps = [outcome.f1 for outcome in outcomes if outcome.f1 is not None]
    with_gold = [outcome.gold for outcome in outcomes if outcome.question.gold]
    return Report(
        questions=len(outcomes),
        retriever=retriever,
        read=read,
        exact_match=score([float(outcome.correct) for outcome in outcomes]),
        f1=score(overlaps) if overlaps else None,
        recall=recalls([outcome.found for outcome in outcomes]),
        gold_recall=recalls(with_gold),
        seconds=round(seconds, 2),
    )


def _prediction(outcome: Outcome) -> dict[str, Any]:
    found = next((rank + 1 for rank, hit in enumerate(outcome.found) if hit), None)
    asked = {"id": outcome.question.id, "question": outcome.question.text, "answers": outcome.question.answers}
    return {**asked, "correct": outcome.correct, "f1": outcome.f1, "first_passage_with_answer": found, **asdict(outcome.answer)}
