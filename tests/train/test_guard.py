"""A retriever that forgets how to find answers learns more slowly."""

from copy import deepcopy
from pathlib import Path
from typing import cast

import pytest
import torch

from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.index.exact import Hits, Index
from realmlm.log import read_metrics
from realmlm.model.realm import Realm
from realmlm.settings import JointOptim, Loop, Refresh
from realmlm.train.guard import Guard
from tests.train.test_resume import joint_run, same, weights


class Finds:
    """An index that finds one passage, whatever is asked."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return 1

    def search(self, query_QD: torch.Tensor, k: int) -> Hits:
        self.asked = query_QD
        ids_QK = torch.full((len(query_QD), k), self.number)
        return Hits(torch.zeros(ids_QK.shape), ids_QK)


def finds(number: int) -> Index:
    return cast(Index, Finds(number))


def test_each_loss_beyond_half_a_point_halves_the_rate(
    tiny_model: Realm, knowledge: Corpus, world: Path
) -> None:
    question = read_questions(world / "questions-train.jsonl")[0]
    texts = knowledge.texts(list(range(len(knowledge))))
    holding = [place for place, text in enumerate(texts) if question.answers[0] in text]
    other = next(place for place in range(len(knowledge)) if place not in holding)
    guard = Guard(tiny_model.train(), knowledge, [question])
    assert guard.look(finds(holding[0]), 0) == {"guarded": 100.0, "retriever_rate": 1.0}
    assert guard.look(finds(other), 0) == {}  # the same index: nothing is measured again
    assert guard.look(finds(other), 1) == {"guarded": 0.0, "retriever_rate": 0.5}
    assert tiny_model.training
    resumed = Guard(tiny_model, knowledge, [question])
    resumed.load_state(guard.state())
    assert resumed.look(finds(other), 1) == {}
    assert resumed.look(finds(other), 2)["retriever_rate"] == 0.25
    assert resumed.look(finds(holding[0]), 3) == {"guarded": 100.0, "retriever_rate": 0.25}


def test_an_index_is_asked_by_the_tower_that_is_given(
    tiny_model: Realm, knowledge: Corpus, world: Path
) -> None:
    questions = read_questions(world / "questions-train.jsonl")[:3]
    guard = Guard(tiny_model, knowledge, questions)
    older = deepcopy(tiny_model)
    with torch.no_grad():
        for parameter in tiny_model.query.parameters():
            parameter.add_(0.1)
    texts = [question.text for question in questions]
    for swaps, tower, asked in ((0, None, tiny_model), (1, older.query, older)):
        index = Finds(0)
        guard.look(cast(Index, index), swaps, tower)
        torch.testing.assert_close(index.asked, asked.eval().embed_queries(texts))


def test_pretraining_looks_with_each_index_and_slows_the_retriever_alone(
    tiny_model_folder: Path,
    knowledge: Corpus,
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    how = {
        "guard": (world / "questions-train.jsonl",),
        "optim": JointOptim(steps=4, batch=4, lr=1e-3, retriever_lr=1e-3),
        "refresh": Refresh(every_steps=2, process=False),
        "loop": Loop(threads=1, device="cpu", log_every=1),
    }
    free = weights(joint_run(tiny_model_folder, knowledge, tmp_path / "free", **{**how, "guard": ()}))
    monkeypatch.setattr("realmlm.train.guard.ALLOWED", 100)
    assert same(weights(joint_run(tiny_model_folder, knowledge, tmp_path / "watched", **how)), free)
    looked = [row for row in read_metrics(tmp_path / "watched" / "metrics.jsonl") if "guarded" in row]
    assert looked[0]["step"] == 0
    assert looked[-1]["retriever_rate"] == 1
    monkeypatch.setattr("realmlm.train.guard.ALLOWED", -101)  # whatever is found is too little
    slowed = weights(joint_run(tiny_model_folder, knowledge, tmp_path / "slowed", **how))
    rows = read_metrics(tmp_path / "slowed" / "metrics.jsonl")
    assert [row["retriever_rate"] for row in rows if "guarded" in row] == [1, 0.5]
    changed = {name.split(".")[0] for name in free if not slowed[name].equal(free[name])}
    assert changed == {
        "document",
        "query",
    }  # it holds for the last step, which begins where the other run's does
