"""A teacher and its student: the equations by plain loops, a student that comes to prefer what its teacher prefers, and
runs that go on with their teacher."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput, Mismatch
from realmlm.log import Clock, read_metrics
from realmlm.model.marginal import (
    passage_distillation,
    passages_and_spans,
    posterior,
    span_distillation,
    span_log_probabilities,
    taught_apart,
    weighed_together,
)
from realmlm.model.realm import Realm
from realmlm.settings import Finetune, JointOptim, Loop
from realmlm.train.gold import locate_answers
from realmlm.train.hits import Candidates
from realmlm.train.objectives.questions import QuestionAnswering
from realmlm.train.teaching import Teacher
from tests.calls import build_corpus, create_model, run_finetune
from tests.conftest import TINY_MODEL
from tests.train.steps import fail_at

HOW: dict[str, Any] = {**TINY_MODEL, "family": "bert", "read_titles": True, "reading": "together"}


# --- the equations ------------------------------------------------------------------------------------------


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(0, 4))
def test_spans_are_taught_as_a_plain_loop_says(seed: int, most: int, missing: int) -> None:
    """The teacher's likeliest one by one, all others as one; what is no span is none for both."""
    teacher, student = drawn(seed, 2, 9), drawn(seed + 1, 2, 9)
    for log in (teacher, student):
        log[:, 9 - missing :] = -torch.inf
    teacher, student = teacher.log_softmax(-1), student.log_softmax(-1)
    found = span_distillation(teacher, student, most)
    for row in range(2):
        q, p = teacher[row].exp().tolist(), student[row].exp().tolist()
        best = sorted(range(9), key=lambda place: -q[place])[:most]
        pairs = [(q[place], p[place]) for place in best]
        rest = [place for place in range(9) if place not in best]
        pairs.append((sum(q[place] for place in rest), sum(p[place] for place in rest)))
        expected = sum(a * math.log(a / b) for a, b in pairs if a > 0)
        assert float(found[row]) == pytest.approx(expected, abs=1e-9)
    assert float(span_distillation(student, student, most).abs().max()) < 1e-9


def test_the_gradient_of_teaching_is_that_of_differences() -> None:
    teacher = drawn(0, 2, 8)
    student = drawn(1, 2, 8).requires_grad_()
    blocked = torch.zeros(2, 8, dtype=torch.bool)
    blocked[0, 5:] = True

    def of_scores(scores: Tensor) -> Tensor:
        logs = [each.masked_fill(blocked, -torch.inf).log_softmax(-1) for each in (teacher, scores)]
        return span_distillation(logs[0], logs[1], most=6)

    assert torch.autograd.gradcheck(of_scores, student)
    judged = drawn(2, 2, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda logit: passage_distillation(drawn(3, 2, 4), logit), judged)


def test_judgements_are_taught_as_yes_or_no() -> None:
    teacher, student = drawn(0, 3, 4), drawn(1, 3, 4)
    p, q = teacher.sigmoid(), student.sigmoid()
    expected = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean(-1)
    assert torch.allclose(passage_distillation(teacher, student), expected)
    assert passage_distillation(teacher, teacher).abs().max() < 1e-12
    sure = torch.tensor([[90.0, -90.0]])
    assert torch.isfinite(passage_distillation(sure, -sure)).all()


def test_passages_and_their_spans_make_one_distribution() -> None:
    scores, allowed = drawn(0, 6, 5, 2), torch.ones(6, 5, 2, dtype=torch.bool)
    allowed[1, 3:] = False
    allowed[2] = False  # a passage without a span
    weight = drawn(1, 2, 3)
    logs = span_log_probabilities(scores, allowed)
    joint = passages_and_spans(weighed_together(weight, scores, allowed), logs)
    whole = (scores + weight.flatten()[:, None, None]).masked_fill(~allowed, -torch.inf).reshape(2, -1)
    assert torch.allclose(joint.exp(), whole.softmax(-1))
    apart = passages_and_spans(weight[1:], logs[3:]).exp().reshape(3, -1).sum(-1)
    assert torch.allclose(apart, weight[1].softmax(-1)), "apart, a passage keeps its own weight"


def test_a_teachers_posterior_is_taught_to_the_retriever() -> None:
    retrieval = drawn(0, 2, 3).requires_grad_()
    reader, other = drawn(1, 2, 3), posterior(drawn(2, 2, 3), drawn(3, 2, 3))
    weight, apart = taught_apart(retrieval, retrieval, reader, "teacher", other)
    (gradient,) = torch.autograd.grad(apart.sum(), retrieval, retain_graph=True)
    assert torch.allclose(gradient, retrieval.softmax(-1) - other)
    assert torch.equal(torch.autograd.grad(weight.sum(), retrieval)[0], torch.zeros(2, 3))


# --- a student ----------------------------------------------------------------------------------------------


def made_teacher(knowledge: Corpus, out: Path) -> Realm:
    """A model with preferences of its own, as if it had learned."""
    teacher = create_model(corpus=knowledge.folder, out=out / "fresh", **{**HOW, "hidden": 48, "seed": 5})
    teacher.learn_passage_logit()
    generator = torch.Generator().manual_seed(1)
    for layer in (teacher.reader.span_head.output, teacher.reader.passage_head):
        assert isinstance(layer, nn.Linear)
        nn.init.normal_(layer.weight, std=0.5, generator=generator)
    teacher.config = replace(teacher.config, trained_on_questions=True)
    teacher.save_pretrained(out / "teacher")
    return Realm.from_pretrained(out / "teacher")


def test_a_student_comes_to_prefer_what_its_teacher_prefers(
    knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    teacher = made_teacher(knowledge, tmp_path)
    before = {name: weight.clone() for name, weight in teacher.state_dict().items()}
    student = create_model(corpus=knowledge.folder, out=tmp_path / "student", **HOW)
    student.learn_passage_logit()
    gold = locate_answers(knowledge, read_questions(world / "questions-train.jsonl")[:8])
    ids = np.stack([knowledge.ids[3 * number : 3 * number + 9] for number in range(8)])
    found = Candidates(ids, np.zeros((8, 9), dtype=np.float32))
    settings = Finetune(
        questions=(), out=Path("unused"), candidates=9, read=3, closed_book=0.0, teaching=20.0
    )
    live: Any = None
    objective = QuestionAnswering(settings, student, knowledge, live, gold, learning=[], given=found)
    objective.teacher = Teacher(teacher, student, name="teacher")
    learner = torch.optim.Adam(student.reader.parameters(), lr=3e-3)
    told = []
    for _ in range(45):
        learner.zero_grad()
        loss, row = objective.loss(np.arange(8), 0, Clock())
        loss.backward()
        learner.step()
        told.append({name: float(value.detach()) for name, value in row.items()})
    assert told[-1]["from_teacher"] < 0.3 * told[0]["from_teacher"]
    assert told[0]["agreed"] <= 0.25
    assert told[-1]["agreed"] >= 0.75
    assert all(torch.equal(weight, before[name]) for name, weight in teacher.state_dict().items())
    assert all(weight.grad is None for weight in teacher.parameters())


def settings_of(tmp_path: Path, knowledge: Corpus, world: Path, out: str, **changed: Any) -> Finetune:
    usual: dict[str, Any] = {
        "model": tmp_path / "begin",
        "teacher": tmp_path / "teacher",
        "read": 3,
        "candidates": 9,
        "passage_logit": True,
        "optim": JointOptim(steps=3, batch=4, lr=1e-3),
        "loop": Loop(threads=1, device="cpu", log_every=1, checkpoint_every=1, deterministic=True),
    }
    places: dict[str, Any] = {
        "corpus": knowledge.folder,
        "questions": (world / "questions-train.jsonl",),
        "out": tmp_path / out,
    }
    return Finetune(**places, **(usual | changed))


def test_a_run_goes_on_with_its_teacher_and_with_no_other(
    knowledge: Corpus, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_teacher(knowledge, tmp_path)
    create_model(corpus=knowledge.folder, out=tmp_path / "begin", **{**HOW, "dropout": 0.2})

    def run(out: str, **changed: Any) -> Realm:
        how = {"retriever_target": "teacher", **changed}
        return Realm.from_pretrained(run_finetune(settings_of(tmp_path, knowledge, world, out, **how)))

    whole = run("whole")
    rows = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    assert all(row["from_teacher"] > 0 and 0 <= row["agreed"] <= 1 for row in rows)
    with monkeypatch.context() as patch:
        fail_at(2, KeyboardInterrupt(), patch)
        for out in ("cut", "other"):
            with pytest.raises(KeyboardInterrupt):
                run(out)
    again = run("cut")
    assert all(torch.equal(weight, again.own_state()[name]) for name, weight in whole.own_state().items())
    untaught = run("untaught", teaching=0.0, retriever_target="marginal")
    different = [
        name for name, weight in whole.own_state().items() if (weight != untaught.own_state()[name]).any()
    ]
    assert any(name.startswith("reader.") for name in different)
    assert any(name.startswith("query.") for name in different)
    teacher = Realm.from_pretrained(tmp_path / "teacher")
    nn.init.zeros_(teacher.reader.span_head.output.weight)
    teacher.save_pretrained(tmp_path / "changed")
    (tmp_path / "teacher").rename(tmp_path / "moved")
    (tmp_path / "changed").rename(tmp_path / "teacher")
    with pytest.raises(Mismatch, match="was changed since"):
        run("other")


def test_who_cannot_teach_is_refused(knowledge: Corpus, world: Path, tmp_path: Path) -> None:
    teacher = made_teacher(knowledge, tmp_path)
    student = create_model(corpus=knowledge.folder, out=tmp_path / "student", **HOW)
    Teacher(teacher, student, name="it")

    def refused(words: str, kind: type[Exception] = BadInput, **changed: Any) -> None:
        student.config = replace(student.config, **changed)
        with pytest.raises(kind, match=words):
            Teacher(teacher, student, name="it")

    refused("differ in --title-answers", title_answers=True)
    refused("differ in --read-titles", title_answers=False, read_titles=False)
    refused("need the same", read_titles=True, max_answer=7)
    refused("it reads up to", max_answer=10, max_together=9999)
    teacher.config = replace(teacher.config, trained_on_questions=False)
    refused("has not learned to answer")
    (tmp_path / "other.txt").write_text("Wholly other words make other wordpieces.")
    other = build_corpus(
        [tmp_path / "other.txt"], tmp_path / "other", train_tokenizer=200, max_wordpieces=60, workers=1
    )
    foreign = create_model(corpus=other.folder, out=tmp_path / "foreign", **HOW)
    with pytest.raises(Mismatch, match="another tokenizer"):
        Teacher(foreign, student, name="it")
    with pytest.raises(BadInput, match="--teacher MODEL"):
        Finetune(questions=(), out=Path("o"), retriever_target="teacher")
