"""A teacher and its student: the equations by plain loops, a student that comes to prefer what its teacher prefers, and
runs that go on with their teacher."""

import json
import math
from collections import defaultdict
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
from realmlm.corpus.wordpieces import Wordpieces
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
from realmlm.reading.read import read_spans
from realmlm.settings import Finetune, JointOptim, Loop
from realmlm.train.gold import locate_answers
from realmlm.train.hits import Candidates
from realmlm.train.interpreting import Columns, Interpreter, retell
from realmlm.train.objective import Mean
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


# --- another tokenizer --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_wordpieces(knowledge: Corpus) -> Wordpieces:
    """A tokenizer that takes the same passages apart otherwise."""
    return Wordpieces.train([knowledge.text(number) for number in knowledge.ids[:40].tolist()], 150)


def test_wordpieces_are_found_by_their_characters(knowledge: Corpus, other_wordpieces: Wordpieces) -> None:
    interpreter = Interpreter(knowledge, other_wordpieces)
    ids = knowledge.ids[[7, 3, 7, 11]]
    found = interpreter.passages(ids)
    assert found[0] is found[2], "taken apart once"
    finer = 0
    for number, passage in zip(ids.tolist(), found, strict=True):
        title = knowledge[number].title
        (head, body) = other_wordpieces.encode_batch([title, knowledge.text(number)])
        assert passage.title.tolist() == head.ids
        assert passage.body.tolist() == body.ids
        assert len(passage.places_T2) == len(head.ids) + len(body.ids)
        own_title = knowledge.title_chars(number)
        texts = [(head.offsets, own_title, len(own_title)), (body.offsets, knowledge.token_chars(number), 0)]
        places = iter(passage.places_T2.tolist())
        for offsets, chars, before in texts:
            for start, end in offsets:
                own = [n - before for n, (a, b) in enumerate(chars.tolist()) if a < end and start < b]
                assert next(places) == [own[0], own[-1] + 1]
        finer += len(body.ids) - len(knowledge.tokens(number))
    assert finer > 0


@pytest.mark.parametrize("titles", [False, True])
def test_spans_keep_their_probability_in_other_wordpieces(
    titles: bool, knowledge: Corpus, other_wordpieces: Wordpieces, tmp_path: Path
) -> None:
    """By a plain loop over all spans of the teacher, in columns as a student has them padded and packed."""
    teacher = foreign(other_wordpieces, tmp_path)
    teacher.config = replace(teacher.config, title_answers=titles)
    ids = knowledge.ids[[7, 3, 11, 5]]
    passages = Interpreter(knowledge, other_wordpieces).passages(ids)
    asked = other_wordpieces.encode_queries(["Who is it?"] * 4)
    given = teacher.reader_inputs(asked, [one.title for one in passages], [one.body for one in passages])
    with torch.no_grad():
        reading = read_spans(teacher, given, torch.linspace(0, 1, 4))
    body = torch.tensor([40, 33, 47, 60])
    for to in (Columns(body, 2, 120, 8), Columns(torch.full((4,), 32), 0, 32 + 60, 10)):
        told = retell(reading, passages, to)
        expected: dict[tuple[int, int, int], float] = defaultdict(float)
        for row, column, width in reading.allowed_NLW.nonzero().tolist():
            first = int(reading.firsts(torch.tensor([[column]] * 4))[row, 0])
            at = first + len(passages[row].title)
            start, past = passages[row].places_T2[at][0], passages[row].places_T2[at + width][1]
            place = int(to.body_N[row]) + int(start) - (to.apart if start < 0 else 0)
            if past - start <= to.widths and place < to.columns:
                expected[row, place, int(past - start) - 1] += float(
                    reading.log_NLW[row, column, width].exp()
                )
        got = {
            tuple(key): float(told.log_NLW[tuple(key)].exp()) for key in told.allowed_NLW.nonzero().tolist()
        }
        assert got == pytest.approx(dict(expected), abs=1e-6)
        assert any(column < int(to.body_N[row]) for row, column, _ in got) == titles
        assert told.log_NLW.exp().flatten(1).sum(-1).min() > 0.5, "most of it has a place"
        assert torch.equal(told.weight_N, reading.weight_N)


def foreign(wordpieces: Wordpieces, out: Path) -> Realm:
    """A model of another tokenizer with preferences of its own."""
    lines = [json.dumps({"title": "T", "text": "A text."})]
    (out / "foreign.jsonl").write_text("\n".join(lines))
    wordpieces.save(out / "tokenizer.json")
    how: dict[str, Any] = {"tokenizer": str(out / "tokenizer.json"), "max_wordpieces": 90, "workers": 1}
    corpus = build_corpus([out / "foreign.jsonl"], out / "foreign-corpus", **how)
    return made_teacher(corpus, out)


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


@pytest.mark.parametrize("other", [False, True], ids=["one tokenizer", "two"])
def test_a_student_comes_to_prefer_what_its_teacher_prefers(
    other: bool, knowledge: Corpus, world: Path, tmp_path: Path, other_wordpieces: Wordpieces
) -> None:
    teacher = foreign(other_wordpieces, tmp_path) if other else made_teacher(knowledge, tmp_path)
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
    objective.teacher = Teacher(teacher, student, knowledge, name="teacher")
    learner = torch.optim.Adam(student.reader.parameters(), lr=3e-3)
    told = []
    for _ in range(45):
        learner.zero_grad()
        loss, row = objective.loss(np.arange(8), 0, Clock())
        loss.backward()
        learner.step()
        told.append({name: float(Mean.of(value)) for name, value in row.items()})
    assert told[-1]["from_teacher"] < 0.3 * told[0]["from_teacher"]
    assert told[0]["agreed"] <= 0.25
    assert told[-1]["agreed"] >= 0.75
    assert all(torch.equal(weight, before[name]) for name, weight in teacher.state_dict().items())
    assert all(weight.grad is None for weight in teacher.parameters())


def test_texts_tell_a_teacher_of_the_same_tokenizer_what_inputs_do(
    knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    teacher = made_teacher(knowledge, tmp_path)
    student = create_model(corpus=knowledge.folder, out=tmp_path / "student", **HOW)
    student.learn_passage_logit()
    gold = locate_answers(knowledge, read_questions(world / "questions-train.jsonl")[:4])
    found = Candidates(knowledge.ids[:36].reshape(4, 9), np.ones((4, 9), dtype=np.float32))
    settings = Finetune(
        questions=(),
        out=Path("unused"),
        candidates=9,
        read=3,
        teacher=tmp_path / "teacher",
        retriever_target="teacher",
    )
    live: Any = None
    student.eval()
    rows = []
    for same in (True, False):
        objective = QuestionAnswering(settings, student, knowledge, live, gold, learning=[], given=found)
        objective.teacher = Teacher(teacher, student, knowledge, name="teacher")
        assert objective.teacher.same_wordpieces
        objective.teacher.same_wordpieces = same
        loss, row = objective.loss(np.arange(4), 0, Clock())
        rows.append(
            {"loss": float(loss.detach())} | {name: float(Mean.of(number)) for name, number in row.items()}
        )
    assert rows[1] == pytest.approx(rows[0], rel=1e-5)
    assert rows[0]["from_teacher"] > 0.1


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
    Teacher(teacher, student, knowledge, name="it")

    def refused(words: str, kind: type[Exception] = BadInput, **changed: Any) -> None:
        student.config = replace(student.config, **changed)
        with pytest.raises(kind, match=words):
            Teacher(teacher, student, knowledge, name="it")

    refused("differ in --title-answers", title_answers=True)
    refused("differ in --read-titles", title_answers=False, read_titles=False)
    refused("need the same", read_titles=True, max_answer=7)
    refused("it reads up to", max_answer=10, max_together=9999)
    teacher.config = replace(teacher.config, trained_on_questions=False)
    refused("has not learned to answer")
    with pytest.raises(BadInput, match="--teacher MODEL"):
        Finetune(questions=(), out=Path("o"), retriever_target="teacher")
