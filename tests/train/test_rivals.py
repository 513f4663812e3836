"""Paragraphs of other questions, read beside a question's own."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput
from realmlm.model.realm import Realm
from realmlm.settings import Finetune
from realmlm.train.gold import Gold, locate_answers
from realmlm.train.hits import Rivals, find_rivals, given_vectors
from realmlm.train.objectives.questions import QuestionAnswering
from tests.calls import run_finetune

CONTEXTS = (
    "The mill was built by Arn Holt. The bridge is older.",
    "The mill was sold to Bea Lind in spring. Arn Holt had built it.",
    "The bridge was painted by Cai Moss.",
    "The tower was never finished, they say.",
    "In the tower lives Dee Fay.",
)
ASKED = (
    {"question": "Who built the mill?", "answer": ["Arn Holt"], "context": CONTEXTS[0]},
    {"question": "Who bought the mill?", "answer": ["Bea Lind"], "context": CONTEXTS[1]},
    {"question": "Who painted the bridge?", "answer": ["Cai Moss"], "context": CONTEXTS[2]},
    {"question": "What was never finished?", "answer": ["The tower"], "context": CONTEXTS[3]},
    {"question": "Who lives there?", "answer": ["Dee Fay"], "context": CONTEXTS[4]},
)


@pytest.fixture
def file(world: Path, tmp_path: Path) -> Path:
    rows = [json.loads(line) for line in (world / "questions-train.jsonl").read_text("utf-8").splitlines()]
    alone = [{"question": row["question"], "answer": row["answer"]} for row in rows[:4]]
    (tmp_path / "asked.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*alone, *ASKED]), "utf-8"
    )
    return tmp_path / "asked.jsonl"


def found(model: Realm, corpus: Corpus, file: Path, count: int) -> tuple[Gold, Rivals]:
    gold = locate_answers(corpus, read_questions(file))
    everyone = np.arange(len(gold))
    return gold, find_rivals(model, corpus, gold, everyone, count=count, scale_learns=False)


def test_they_are_the_nearest_that_do_not_hold_the_answer(
    tiny_model: Realm, knowledge: Corpus, file: Path
) -> None:
    gold, rivals = found(tiny_model.eval(), knowledge, file, 2)
    vectors_GD = given_vectors(tiny_model, gold)
    assert vectors_GD is not None
    told = 0
    for number in range(len(gold)):
        ids, scores = rivals.of(number)
        own = int(gold.given_Q[number])
        if own < 0:
            assert not len(ids)
            continue
        told += 1
        answer = next(row["answer"][0] for row in ASKED if row["question"] == gold.texts[number])
        with torch.no_grad():
            query_1D = tiny_model.query(tiny_model.query_inputs([gold.questions[number]]))
        by_score = (query_1D @ vectors_GD.T)[0].sort(descending=True, stable=True)
        others = [
            (int(place) + gold.first_given, float(score))
            for score, place in zip(*by_score, strict=True)
            if int(place) + gold.first_given != own
            and answer.lower() not in gold.corpus.text(int(place) + gold.first_given).lower()
        ]
        assert ids.tolist() == [passage for passage, _ in others[:2]]
        assert scores == pytest.approx([score for _, score in others[:2]], abs=1e-4)
    assert told == len(ASKED)
    built = gold.texts.index("Who built the mill?")
    assert CONTEXTS[1] not in [gold.corpus.text(passage) for passage in rivals.of(built)[0].tolist()]


def test_they_are_read_beside_the_own_paragraph(
    tiny_model: Realm, knowledge: Corpus, file: Path, tmp_path: Path
) -> None:
    gold, rivals = found(tiny_model.eval(), knowledge, file, 2)
    settings = Finetune(questions=(file,), out=tmp_path / "out", read=5, rivals=2)
    objective = QuestionAnswering(settings, tiny_model, knowledge, None, gold, learning=[], rivals=rivals)  # type: ignore[arg-type]
    numbers = np.arange(len(gold))
    ids_BC, _, holds_BC, _ = objective._first_to_read(numbers, np.tile(knowledge.ids[:9], (len(gold), 1)))
    for number, (ids, holds) in enumerate(zip(ids_BC, holds_BC, strict=True)):
        own = gold.given_Q[number]
        if own >= 0:
            assert ids[:3].tolist() == [own, *rivals.of(number)[0]]
            assert holds[:3].tolist() == [True, False, False]
            assert not holds[:5][1:].any()
        assert len(set(ids.tolist())) == len(ids)


def test_a_run_with_them_ends(tiny_model_folder: Path, knowledge: Corpus, file: Path, tmp_path: Path) -> None:
    settings = Finetune(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=(file,),
        out=tmp_path / "out",
        read=4,
        rivals=2,
        candidates=20,
    )
    optim = dataclasses.replace(settings.optim, steps=3, batch=4, retriever_lr=1e-3)
    assert run_finetune(dataclasses.replace(settings, optim=optim)).exists()


@pytest.mark.parametrize("wrong", [{"rivals": 5}, {"rivals": -1}, {"rivals": 1, "retriever": "bm25"}])
def test_what_cannot_be_is_refused(wrong: dict[str, object], file: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="rivals"):
        Finetune(questions=(file,), out=tmp_path, read=5, **wrong)  # type: ignore[arg-type]
