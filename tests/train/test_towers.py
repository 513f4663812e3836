"""Towers trained on questions and passages: what is told from what, and what comes of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput, NotEnough
from realmlm.log import read_metrics
from realmlm.model.realm import Realm
from realmlm.settings import Loop, Optim, TrainTowers
from realmlm.train.gold import locate_answers
from realmlm.train.hits import found_for
from realmlm.train.pairs import Contrasts, QuestionPairs
from tests.calls import evaluate, train_towers

LOOP = Loop(threads=1, device="cpu", log_every=10)


@given(st.data())
def test_every_passage_of_a_batch_is_told_from_unless_it_would_be_right(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    more = data.draw(
        st.lists(st.lists(st.integers(-1, 8), min_size=2, max_size=2), min_size=count, max_size=count)
    )
    own = data.draw(st.lists(st.integers(0, 8), min_size=count, max_size=count))
    spared = [
        np.array([*data.draw(st.lists(st.integers(0, 8), max_size=4)), mine], dtype=np.int64) for mine in own
    ]
    ids_BJ = np.array([[mine, *rest] for mine, rest in zip(own, more, strict=True)])
    made = Contrasts.of([np.zeros(1)] * count, ids_BJ, spared)
    there = {passage for row in ids_BJ.tolist() for passage in row if passage >= 0}
    assert sorted(made.ids_U.tolist()) == [-1] * (ids_BJ.size - len(there)) + sorted(there)
    for row, (mine, right) in enumerate(zip(own, spared, strict=True)):
        assert made.ids_U[made.own_B[row]] == mine
        assert set(made.ids_U[made.others_BU[row]].tolist()) == there - set(right.tolist())


def fake_gold(holding: dict[int, set[int]], given_Q: list[int]) -> Any:
    def holds(question: int, ids: np.ndarray) -> np.ndarray:
        return np.array([passage in holding.get(question, set()) for passage in ids.tolist()])

    class Counted(SimpleNamespace):
        def __len__(self) -> int:
            return len(given_Q)

    questions = [np.array([number]) for number in range(len(given_Q))]
    return Counted(holds=holds, given_Q=np.array(given_Q), questions=questions)


def test_the_best_hit_with_an_answer_is_to_be_found_and_hits_without_one_are_not() -> None:
    hits = np.array([[5, 3, 4, 8], [6, 7, 3, 2], [1, 2, 3, 4]])
    gold = fake_gold({0: {3, 8}, 1: {2}}, [-1, 20, -1])
    pairs = QuestionPairs(gold, hits, negatives=3, seed=0)
    assert pairs.numbers.tolist() == [0, 1], "the last one has no passage that answers it"
    drawn = pairs.draw(0, 2)
    by_question = {int(query[0]): row for row, query in enumerate(drawn.queries)}
    zero = by_question[0]
    one = by_question[1]
    assert drawn.ids_U[drawn.own_B].tolist() == [3 if row == zero else 20 for row in range(2)]
    assert set(drawn.ids_U.tolist()) == {-1, 3, 4, 5, 6, 7, 20}
    assert set(drawn.ids_U[drawn.others_BU[zero]].tolist()) == {4, 5, 6, 7, 20}
    # its own hit that holds no answer is a negative, though it is the other's passage
    assert set(drawn.ids_U[drawn.others_BU[one]].tolist()) == {3, 4, 5, 6, 7}


def test_what_is_drawn_depends_on_its_position_alone() -> None:
    hits = np.arange(40).reshape(4, 10)
    gold = fake_gold({number: {number * 10} for number in range(4)}, [-1] * 4)
    pairs = QuestionPairs(gold, hits, negatives=2, seed=1)
    whole = pairs.draw(0, 8)
    parts = [pairs.draw(0, 4), pairs.draw(4, 4)]
    assert [int(query[0]) for part in parts for query in part.queries] == [int(q[0]) for q in whole.queries]
    drawn = {passage for part in parts for passage in part.ids_U.tolist()}
    assert drawn == set(whole.ids_U.tolist()) - {-1}  # more positives meet than in a part
    rows = [set(part.ids_U.tolist()) for part in parts]
    assert rows[0] != rows[1], "negatives are drawn anew"


def test_no_passage_no_training() -> None:
    with pytest.raises(NotEnough, match="fewer than two questions have one"):
        QuestionPairs(fake_gold({0: {1}}, [-1, -1]), np.array([[1, 2], [3, 4]]), negatives=1, seed=0)


def test_hits_are_found_once_and_kept(
    tiny_model: Realm, knowledge: Corpus, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gold = locate_answers(knowledge, read_questions(world / "questions-train.jsonl")[:8])
    both = found_for("both", tiny_model, knowledge, gold, candidates=6)
    monkeypatch.setattr("realmlm.train.hits.word_matches", None)
    monkeypatch.setattr("realmlm.train.hits.own_matches", None)
    own = found_for("learned", tiny_model, knowledge, gold, candidates=6)
    matched = found_for("bm25", tiny_model, knowledge, gold, candidates=6)
    assert np.array_equal(both[:, 1::2], own)
    assert np.array_equal(both[:, ::2], matched)
    assert not np.array_equal(own, matched)
    tiny_model.query.projection.weight.data.add_(1)
    with pytest.raises(TypeError):  # another model finds others
        found_for("learned", tiny_model, knowledge, gold, candidates=6)


def test_trained_towers_find_more(
    tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    questions = world / "questions-train.jsonl"

    def recall(model: Path) -> float:
        report = evaluate(model=model, corpus=knowledge.folder, questions=questions, read=0, device="cpu")
        return report.gold_recall[1].value

    before = recall(tiny_model_folder)
    trained = train_towers(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=(questions,),
        out=tmp_path / "run",
        retriever="bm25",
        negatives=2,
        scale_lr=1e-2,
        optim=Optim(steps=60, batch=32, lr=5e-3),
        loop=LOOP,
    )
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[-1]["scale"] != 1
    assert recall(trained) > before + 20
    former = Realm.from_pretrained(tiny_model_folder)
    reader = Realm.from_pretrained(trained).reader.state_dict()
    assert all(bool((reader[name] == weight).all()) for name, weight in former.reader.state_dict().items())


def test_settings_that_leave_nothing_to_tell_apart_are_refused() -> None:
    with pytest.raises(BadInput, match=r"optim\.batch 4 in 4 parts leaves no others"):
        TrainTowers(questions=(), out=Path("o"), optim=Optim(steps=1, batch=4, accumulate=4))
    with pytest.raises(BadInput, match="negatives must be 0 or more"):
        TrainTowers(questions=(), out=Path("o"), negatives=-1)
