"""Fine-tuning that teaches which passages answer a question, and that titles can be answers."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from realmlm.cli import main
from realmlm.corpus.questions import Question, read_questions
from realmlm.corpus.store import Corpus
from realmlm.evaluation.matching import answer_spans
from realmlm.log import Clock, read_metrics
from realmlm.model.realm import Realm
from realmlm.settings import Finetune, JointOptim, Loop
from realmlm.sources.article import Article
from realmlm.train.gold import Gold, locate_answers
from realmlm.train.hits import Candidates
from realmlm.train.objective import Mean
from realmlm.train.objectives.questions import QuestionAnswering
from tests.calls import build_corpus, create_model, run_finetune
from tests.conftest import TINY_MODEL
from tests.train.steps import fail_at

LONG = "of the very long chronicle " * 8  # more than is read of a title


@pytest.fixture
def towns(world: Path, tmp_path: Path) -> Corpus:
    articles = [
        ("Heron Tower", "The heron tower was built near the otter. " * 20),  # several passages
        ("", "The heron is a bird."),
        (f"Heron {LONG} Otter", "Nothing is said here."),
        ("Otter", "The heron and the otter live by the river."),
    ]
    lines = [json.dumps({"title": title, "text": text}) for title, text in articles]
    (tmp_path / "towns.jsonl").write_text("\n".join(lines), "utf-8")
    how: dict[str, Any] = {"tokenizer": str(world / "tokenizer.json"), "max_wordpieces": 64, "workers": 1}
    corpus = build_corpus([tmp_path / "towns.jsonl"], tmp_path / "towns", **how)
    return corpus.edit(add=[Article("The new tower", "It has a heron.")])[0]


def spans_by_reading(corpus: Corpus, passage: int, question: Question) -> set[tuple[int, int]]:
    """Every span of wordpieces of title or body whose characters are those of an answer."""
    body = (corpus.text(passage), corpus.token_chars(passage), 0)
    title = corpus.title_chars(passage)
    found = set()
    for text, chars, before in (body, (corpus[passage].title, title, len(title))):
        for start, end in answer_spans(text, question):
            touched = [n for n, (first, past) in enumerate(chars.tolist()) if first < end and start < past]
            if touched and chars[touched[-1]][1] >= end:
                found.add((touched[0] - before, touched[-1] + 1 - before))
    return found


@pytest.mark.parametrize("later", [False, True])
def test_answers_are_found_in_titles(towns: Corpus, later: bool) -> None:
    candidates = 0 if later else None  # so few that patterns are looked up when they are needed
    questions = [
        Question("Which bird?", ("Heron",)),
        Question("What was built?", ("heron tower", "Otter")),
        Question("What is it?", ("(new )?tower",), is_regex=True),
    ]
    gold = locate_answers(towns, questions, candidates=candidates, titles=True)
    bodies = locate_answers(towns, questions, candidates=candidates)
    assert [question.text for question in questions] == gold.texts
    in_titles = 0
    for number, question in enumerate(questions):
        holds = gold.holds(number, towns.ids)
        for passage, held in zip(towns.ids.tolist(), holds.tolist(), strict=True):
            expected = spans_by_reading(towns, passage, question)
            got = set(map(tuple, gold.spans(number, passage).tolist()))
            assert got == expected
            assert held == bool(expected)
            in_titles += sum(start < 0 for start, _ in got)
            body = {span for span in expected if span[0] >= 0}
            assert set(map(tuple, bodies.spans(number, passage).tolist())) == body
    assert in_titles > 5


def test_an_answer_of_a_pattern_may_be_a_title(towns: Corpus) -> None:
    gold = locate_answers(towns, [Question("Which?", ("The new tower",), is_regex=True)], titles=True)
    words = towns.wordpieces.decode(gold.answers[0])
    assert words == "the new tower"


def asking(model: Realm, corpus: Corpus, gold: Gold, given: Candidates, **changed: Any) -> QuestionAnswering:
    settings = Finetune(questions=(), out=Path("unused"), candidates=9, closed_book=0.0, **changed)
    live: Any = None
    return QuestionAnswering(settings, model, corpus, live, gold, learning=[], given=given)


def offered(gold: Gold, corpus: Corpus) -> Candidates:
    """For each question a passage that holds the answer, anywhere among some that do not."""
    rows = []
    for number in range(len(gold)):
        holds = gold.holds(number, corpus.ids)
        row = [*corpus.ids[~holds][number : number + 8].tolist()]
        row.insert(number % 5, int(corpus.ids[holds][0]))
        rows.append(row)
    return Candidates(np.array(rows), np.zeros((len(rows), 9), dtype=np.float32))


def test_judging_is_learned(knowledge: Corpus, world: Path, tmp_path: Path) -> None:
    how = {**TINY_MODEL, "family": "bert", "read_titles": True}
    model = create_model(corpus=knowledge.folder, out=tmp_path / "model", **how)
    model.learn_passage_logit()
    gold = locate_answers(knowledge, read_questions(world / "questions-train.jsonl")[:12])
    objective = asking(model, knowledge, gold, offered(gold, knowledge), read=5)
    learner = torch.optim.Adam(model.reader.parameters(), lr=2e-3)
    told = []
    for _ in range(40):
        learner.zero_grad()
        loss, row = objective.loss(np.arange(12), 0, Clock())
        loss.backward()
        learner.step()
        told.append({name: float(Mean.of(value)) for name, value in row.items()})
    assert told[0]["judged"] == pytest.approx(-math.log(2)), "a fresh head takes no side"
    assert told[-1]["judged"] > -0.2
    assert told[-1]["reranked@1"] > 0.9


def test_what_judging_weighs_is_a_setting_and_the_marginal_teaches_it_too(
    knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    how = {**TINY_MODEL, "family": "bert", "read_titles": True}
    model = create_model(corpus=knowledge.folder, out=tmp_path / "model", **how)
    model.learn_passage_logit()
    head = model.reader.passage_head
    assert isinstance(head, nn.Linear)
    nn.init.constant_(head.bias, 0.5)
    gold = locate_answers(knowledge, read_questions(world / "questions-train.jsonl")[:12])
    losses = {}
    for judging in (0.0, 1.0, 3.0):
        model.zero_grad()
        objective = asking(model, knowledge, gold, offered(gold, knowledge), read=5, judging=judging)
        loss, row = objective.loss(np.arange(12), 0, Clock())
        loss.backward()
        losses[judging] = float(loss.detach()) + judging * float(Mean.of(row["judged"]))
        assert head.weight.grad is not None
        assert head.weight.grad.abs().max() > 0
        # what is the same for all passages is no matter of the marginal
        assert (head.bias.grad.abs().max() < 1e-6) == (judging == 0)  # type: ignore[union-attr]
    assert losses[1.0] == pytest.approx(losses[0.0], rel=1e-6)
    assert losses[3.0] == pytest.approx(losses[0.0], rel=1e-6)


def test_finetune_makes_a_model_that_judges_and_reranks(
    knowledge: Corpus, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    how = {**TINY_MODEL, "family": "bert", "read_titles": True, "reading": "together"}
    create_model(corpus=knowledge.folder, out=tmp_path / "begin", **how)

    def settings(out: str, **changed: Any) -> Finetune:
        return Finetune(
            model=tmp_path / "begin",
            corpus=knowledge.folder,
            questions=(world / "questions-train.jsonl",),
            out=tmp_path / out,
            read=3,
            candidates=9,
            passage_logit=True,
            title_answers=True,
            reading="paper",
            optim=JointOptim(steps=4, batch=4, lr=1e-3),
            loop=Loop(threads=1, device="cpu", log_every=1, checkpoint_every=1),
            **changed,
        )

    made = Realm.from_pretrained(run_finetune(settings("whole")))
    assert made.config.passage_logit
    assert made.config.title_answers
    assert made.config.reading == "paper"
    head = made.reader.passage_head
    assert isinstance(head, nn.Linear)
    assert head.weight.abs().max() > 0
    rows = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    assert all("judged" in row for row in rows)
    assert all(("reranked@1" in row) == (row["gold_read"] > 0) for row in rows), "of questions with an answer"
    with monkeypatch.context() as patched:
        fail_at(2, KeyboardInterrupt(), patched)
        with pytest.raises(KeyboardInterrupt):
            run_finetune(settings("cut"))
    again = Realm.from_pretrained(run_finetune(settings("cut")))
    assert all(torch.equal(weight, again.own_state()[name]) for name, weight in made.own_state().items())
    capsys.readouterr()
    where = ["--model", str(tmp_path / "whole/model"), "--corpus", str(knowledge.folder), "--device", "cpu"]
    main(["ask", "Who built the harbour?", "--read", "2", "--rerank", "6", "--json", *where])
    evidence = json.loads(capsys.readouterr().out)["evidence"]
    assert len(evidence) == 2
    assert all(isinstance(item["passage_logit"], float) for item in evidence)
    asked = ["--questions", str(world / "questions-held-out.jsonl"), "--limit", "3"]
    main(["evaluate", *asked, "--read", "2", "--rerank", "6", "--json", *where])
    report = json.loads(capsys.readouterr().out)
    assert (report["read"], report["rerank"]) == (2, 6)
    with pytest.raises(SystemExit):
        main(["evaluate", *asked, "--read", "0", "--rerank", "6", *where])
    assert "--rerank is for passages that are retrieved and read" in capsys.readouterr().err
