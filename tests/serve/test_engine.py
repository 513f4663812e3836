"""The engine: what is answered together is answered as it would be alone."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.model import answering, inputs
from realmlm.model.answering import Answer
from realmlm.model.inputs import Inputs
from realmlm.serve.engine import Engine


def same(one: Answer, other: Answer) -> bool:
    def places(answer: Answer) -> list[tuple[int | None, int | None, int | None]]:
        return [(evidence.passage_id, evidence.start, evidence.end) for evidence in answer.evidence]

    def numbers(answer: Answer) -> list[float]:
        return [answer.probability, *(p for item in answer.evidence for p in (item.retrieval_probability, item.reading_probability))]

    return one.answer == other.answer and places(one) == places(other) and numbers(one) == pytest.approx(numbers(other), abs=1e-5)


@pytest.mark.parametrize("reading", ["paper", "released"])
def test_together_as_alone(tiny_model_folder: Path, knowledge: Corpus, world: Path, monkeypatch: pytest.MonkeyPatch, reading: str) -> None:
    engine = Engine(tiny_model_folder, knowledge.folder, device="cpu")
    engine.model.config = replace(engine.model.config, reading=reading)  # type: ignore[arg-type]
    questions = [question.text for question in read_questions(world / "questions-held-out.jsonl")][:7]
    questions[3] += " and who was it that asked for this, and when, and why?"
    monkeypatch.setattr(inputs, "_AT_ONCE", 10**9)
    monkeypatch.setattr(answering, "SCORED_AT_ONCE", 10**9)
    alone = [engine.ask(question, read=4) for question in questions]
    read: list[int] = []
    score = engine._answerer._span_scores

    def noted(alike: Inputs) -> tuple[Tensor, Tensor]:
        read.append(len(alike))
        return score(alike)

    monkeypatch.setattr(engine._answerer, "_span_scores", noted)
    for at_once, groups in ((1, range(28, 29)), (200, range(3, 28)), (10**9, range(1, 2))):  # pair by pair, in several groups, all
        monkeypatch.setattr(inputs, "_AT_ONCE", at_once)
        monkeypatch.setattr(answering, "SCORED_AT_ONCE", at_once)
        read.clear()
        assert all(map(same, engine.ask_all(questions, read=4), alone))
        assert (len(read) in groups, sum(read)) == (True, 28)
    monkeypatch.setattr(Inputs, "on_gpu", True)  # as a GPU groups them, where they are many
    monkeypatch.setattr(inputs, "_GROUPED", 28)
    monkeypatch.setattr(inputs, "_PADDING", 0.0)
    read.clear()
    assert all(map(same, engine.ask_all(questions, read=4), alone))
    assert read == [7] * 4


def test_what_was_retrieved_stays_as_it_was(tiny_model_folder: Path, knowledge: Corpus) -> None:
    engine = Engine(tiny_model_folder, knowledge.folder, device="cpu")
    engine.model.config = replace(engine.model.config, reading="released")
    queries = [engine._answerer.query("Which bird is the symbol of the town?")]
    retrieved = engine._answerer.retriever(queries, 4)
    assert all(map(same, engine._answerer.read_spans(queries, retrieved), engine._answerer.read_spans(queries, retrieved)))
