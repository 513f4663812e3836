"""Towers trained on questions and passages: what is told from what, and what comes of it."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from realmlm.corpus.questions import read_questions
from realmlm.corpus.spans import mark_spans
from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import PhraseTagger
from realmlm.errors import BadInput, NotEnough
from realmlm.index.exact import ExactIndex
from realmlm.log import Clock, read_metrics
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.settings import Finetune, JointOptim, Loop, Optim, Pretrain, Refresh, TrainTowers, Warmup
from realmlm.train import stages
from realmlm.train.data import SentenceSource
from realmlm.train.gold import locate_answers
from realmlm.train.hits import found_for
from realmlm.train.objectives.questions import QuestionAnswering
from realmlm.train.pairs import Contrasts, QuestionPairs, SpanPairs
from tests.calls import build_corpus, create_model, evaluate, finetune, pretrain, train_towers, warm_up
from tests.conftest import TINY_MODEL

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


# --- words that recur ---------------------------------------------------------------------------------------


def test_a_sentence_is_to_find_another_passage_with_its_words(tmp_path: Path) -> None:
    beasts = ["heron", "badger", "otter", "falcon", "beaver"]
    rows = []
    for number, beast in enumerate(beasts):
        parts = [f"Town{number} bears a {beast} on its arms.", f"The {beast} of Town{number} was painted."]
        parts += [f"Town{number} lies by a river that has many names.", "No one knows who built the tower."]
        rows.append(json.dumps({"title": f"Town{number}", "text": "\n\n".join(parts)}))
    (tmp_path / "towns.jsonl").write_text("\n".join(rows))
    towns = build_corpus(
        [tmp_path / "towns.jsonl"], tmp_path / "corpus", train_tokenizer=300, max_wordpieces=12, workers=1
    )
    mark_spans(towns, PhraseTagger(beasts), workers=1)
    source = SentenceSource(towns, "salient", max_query=32, seed=0)
    out = int(towns.ids[-1])
    pairs = SpanPairs(source, seed=0, held_out=[out])
    taken_out = 0
    hard = 0
    for position in range(40):
        drawn = pairs.draw(position, 1)
        passage = towns[int(drawn.ids_U[drawn.own_B[0]])]
        (beast,) = (beast for beast in beasts if beast in passage.text)
        query = towns.wordpieces.decode(drawn.queries[0].tolist())
        taken_out += beast not in query
        assert not any(other in query for other in beasts if other != beast)
        assert query[:20] not in passage.text, "not the passage that the sentence is from"
        told_from = [towns[number] for number in drawn.ids_U[drawn.others_BU[0]].tolist()]
        assert all(other.title == passage.title and beast not in other.text for other in told_from)
        assert out not in [other.id for other in told_from]
        hard += len(told_from)
    assert 8 < taken_out < 32
    assert hard > 8
    whole = pairs.draw(3, 6)
    again = [query.tolist() for part in (pairs.draw(3, 2), pairs.draw(5, 4)) for query in part.queries]
    assert again == [query.tolist() for query in whole.queries]


def test_sentences_become_as_short_as_questions_and_name_what_they_are_about(towns: Corpus) -> None:
    source = SentenceSource(towns, "salient", max_query=32, seed=0)
    sentences = SpanPairs(source, seed=0).draw(0, 40)
    titled = SpanPairs(source, seed=0, titled=1.0).draw(0, 40)
    for whole, named, place in zip(sentences.queries, titled.queries, sentences.own_B, strict=True):
        title = towns.title_tokens(int(sentences.ids_U[place])).tolist()
        assert named.tolist() == [*title, *whole.tolist()]
    cut = SpanPairs(source, seed=0, glimpses=1.0).draw(0, 40)
    shorter = 0
    for whole, seen in zip(sentences.queries, cut.queries, strict=True):
        text = " ".join(map(str, whole.tolist()))
        assert " ".join(map(str, seen.tolist())) in text
        assert len(seen) < 17
        shorter += len(seen) < len(whole)
    assert shorter > 2
    some = SpanPairs(source, seed=0, glimpses=0.5, titled=0.5)
    at_once = [query.tolist() for query in some.draw(3, 6).queries]
    in_parts = [query.tolist() for part in (some.draw(3, 2), some.draw(5, 4)) for query in part.queries]
    assert in_parts == at_once


def test_glimpses_are_of_words_that_recur() -> None:
    with pytest.raises(BadInput, match="--retriever-objective recurring"):
        Warmup(out=Path("out"), corpus=Path("corpus"), titled=0.5)
    with pytest.raises(BadInput, match="titled"):
        Warmup(out=Path("out"), corpus=Path("corpus"), retriever_objective="recurring", titled=1.5)


def test_towers_warm_up_on_words_that_recur(towns: Corpus, towns_model: Path, tmp_path: Path) -> None:
    warm_up(
        model=towns_model,
        corpus=towns.folder,
        out=tmp_path / "run",
        retriever_objective="recurring",
        reader=Optim(steps=0),
        retriever=Optim(steps=60, batch=16, lr=3e-3),
        loop=LOOP,
    )
    rows = read_metrics(tmp_path / "run" / "retriever" / "metrics.jsonl")
    assert rows[-1]["loss"] < 0.7 * rows[0]["loss"]


# --- in fine-tuning -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("refreshed", [False, True])
def test_passages_of_the_batch_are_told_apart_by_a_plain_loop(
    refreshed: bool, tiny_model: Realm, knowledge: Corpus, world: Path
) -> None:
    """−log of the share of a question's passages with an answer among all that the batch reads, each once."""
    asked = read_questions(world / "questions-train.jsonl")[:16]
    asked.append(replace(asked[0], context=f"It is {asked[0].answers[0]}, they say.", title="Said"))
    gold = locate_answers(knowledge, asked)
    vectors = torch.randn(len(knowledge), 32, generator=torch.Generator().manual_seed(0))
    index = ExactIndex(vectors, torch.from_numpy(knowledge.ids))
    live: Any = SimpleNamespace(index=index)
    settings = Finetune(
        questions=(), out=Path("o"), candidates=100, read=10, refresh=Refresh(every_steps=5 * refreshed)
    )
    tiny_model.eval()

    def loss(in_batch: float) -> float:
        how = replace(settings, in_batch=in_batch)
        objective = QuestionAnswering(how, tiny_model, knowledge, live, gold, learning=[])
        objective.prepare(tiny_model)
        with torch.no_grad():
            return float(objective.loss(np.arange(len(gold)), 0, Clock())[0])

    with torch.no_grad():
        query_BD = tiny_model.query(tiny_model.query_inputs(gold.questions))
        found = index.search(query_BD, 100).ids_QK.tolist()
        told = tiny_model.embed_passages(
            [gold.corpus[int(passage)].text for passage in gold.given_Q if passage >= 0], ["Said"]
        )[0]
        fresh = DocumentEncoder.of(tiny_model)(knowledge, knowledge.ids)
    read: list[list[int]] = []
    right: list[set[int]] = []
    for number, ids in enumerate(found):
        holding = set(np.array(ids)[gold.holds(number, np.array(ids))].tolist())
        given = int(gold.given_Q[number])
        if given >= 0:  # it stands in the last candidate's place, the rest that is read lacks the answer
            holding = {*holding - {ids[-1]}, given}
            read.append([given, *[one for one in ids[:-1] if one not in holding][:9]])
        else:
            read.append(ids[:10])
        right.append(holding)
    batch = sorted({passage for ids in read for passage in ids})

    def score(number: int, passage: int) -> float:
        if passage >= len(knowledge):
            return float(query_BD[number] @ told)
        return float(query_BD[number] @ (fresh if refreshed else vectors)[passage])

    plain = []
    for number, holding in enumerate(right):
        shares = {passage: np.exp(score(number, passage)) for passage in batch}
        mine = sum(share for passage, share in shares.items() if passage in holding)
        plain.append(np.log(mine / sum(shares.values())) if mine else 0.0)
    assert sum(map(bool, plain)) > 2
    assert loss(2.0) - loss(0.0) == pytest.approx(-2 * np.mean(plain), rel=1e-4)


# --- the learned scale --------------------------------------------------------------------------------------


def test_a_scale_changes_how_sure_a_model_is_and_not_what_it_finds(tiny_model: Realm, tmp_path: Path) -> None:
    asked = ["Which animal is the symbol of Tekebra?", "What is Tekebra famous for?"]
    plain = tiny_model.embed_queries(asked)
    document = tiny_model.embed_passages(["The heron is a bird."])
    fingerprint = DocumentEncoder.of(tiny_model).fingerprint
    tiny_model.learn_scale()
    assert torch.equal(tiny_model.embed_queries(asked), plain), "1 to begin with"
    assert tiny_model.query.log_scale is not None
    tiny_model.query.log_scale.data.fill_(0.7)
    for dtype in ("float32", "int8", "float16"):
        tiny_model.save_pretrained(tmp_path / dtype, dtype=dtype)
    again = Realm.from_pretrained(tmp_path / "float32")
    assert torch.allclose(again.embed_queries(asked), plain * np.exp(0.7), rtol=1e-6)
    assert torch.equal(again.embed_passages(["The heron is a bird."]), document)
    assert DocumentEncoder.of(again).fingerprint == fingerprint
    for dtype in ("int8", "float16"):
        scale = Realm.from_pretrained(tmp_path / dtype).query.log_scale
        assert scale is not None
        assert scale.item() == pytest.approx(0.7, abs=1e-3)
    assert Realm.from_pretrained(tmp_path / "int8", int8=True).query.log_scale is not None
    assert again.free_query("projection")[-1] is again.query.log_scale


@pytest.mark.parametrize("stage", ["warmup", "pretrain", "finetune", "towers"])
def test_every_stage_can_learn_the_scale_and_at_its_own_rate(
    stage: str, tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    """Adam's first step moves it by its rate; a stage that is not told to leaves it as it is."""
    common: dict[str, Any] = {"corpus": knowledge.folder, "loop": LOOP}
    asking: dict[str, Any] = {"questions": (world / "questions-train.jsonl",)}
    steps: dict[str, Any] = {"steps": 1, "batch": 8, "lr": 1e-3, "warmup": 0.0}
    joint = JointOptim(**steps, retriever_lr=1e-3)
    still = Refresh(every_steps=0)

    def run(model: Path, out: Path, scale_lr: float) -> Realm:
        given = {**common, "model": model, "out": out, "scale_lr": scale_lr}
        if stage == "warmup":
            warm_up(**given, reader=Optim(steps=0), retriever=Optim(**steps))
        elif stage == "pretrain":
            pretrain(**given, k=3, optim=joint, refresh=still)
        elif stage == "finetune":
            finetune(**given, **asking, candidates=300, query="projection", optim=joint)
        else:
            train_towers(**given, **asking, candidates=20, optim=Optim(**steps))
        return Realm.from_pretrained(out / "model")

    first = run(tiny_model_folder, tmp_path / "first", 0.05)
    assert first.query.log_scale is not None
    assert abs(first.query.log_scale.item()) == pytest.approx(0.05, rel=1e-3)
    second = run(tmp_path / "first" / "model", tmp_path / "second", 0.0)
    assert second.query.log_scale is not None
    assert torch.equal(second.query.log_scale, first.query.log_scale)
    assert not torch.equal(second.query.projection.weight, first.query.projection.weight)


def test_what_cannot_be_taught_is_refused() -> None:
    for how in ({"in_batch": 0.1}, {"scale_lr": 0.1}, {"retriever_target": "posterior"}):
        with pytest.raises(BadInput, match="BM25 cannot learn"):
            Finetune(questions=(), out=Path("o"), retriever="bm25", **how)
    with pytest.raises(BadInput, match="per-token"):
        Pretrain(out=Path("o"), marginal="per-token", retriever_target="perplexity")
    with pytest.raises(BadInput, match="scale-lr must be 0 or more"):
        Warmup(out=Path("o"), scale_lr=-1.0)


# --- encoders that do not learn -----------------------------------------------------------------------------


def test_what_does_not_learn_does_not_waver(knowledge: Corpus, tmp_path: Path) -> None:
    how = {**TINY_MODEL, "dropout": 0.5}
    model = create_model(corpus=knowledge.folder, out=tmp_path / "model", **how).train()
    inputs = model.query_inputs([knowledge.tokens(0)[:9]])
    assert not torch.equal(model.query(inputs), model.query(inputs)), "there is dropout"
    model.free_query("projection")
    model.train()
    assert torch.equal(model.query(inputs), model.query(inputs))
    before = [module.training for module in model.modules()]
    DocumentEncoder.of(model)(knowledge, knowledge.ids[:1])
    assert [module.training for module in model.modules()] == before, "embedding passages changes nothing"
    assert model.reader.encoder.training
    assert not model.eval().reader.encoder.training


@pytest.mark.parametrize(
    "how", [{"freeze_retriever": 2}, {"optim": JointOptim(steps=3, batch=4, retriever_lr=0)}]
)
def test_a_retriever_that_is_frozen_for_a_while_does_not_waver(
    how: dict[str, Any], knowledge: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_model(corpus=knowledge.folder, out=tmp_path / "model", **{**TINY_MODEL, "dropout": 0.5})
    wavers = []
    search = ExactIndex.search

    def spy(self: ExactIndex, queries: torch.Tensor, k: int, **given: Any) -> Any:
        wavers.append(model.query.encoder.training)
        assert model.document.encoder.training == model.query.encoder.training
        assert model.reader.encoder.training
        return search(self, queries, k, **given)

    monkeypatch.setattr(ExactIndex, "search", spy)
    model = Realm.from_pretrained(tmp_path / "model")
    settings = Pretrain(
        corpus=knowledge.folder,
        out=tmp_path / "run",
        k=3,
        refresh=Refresh(every_steps=0),
        loop=LOOP,
        **{"optim": JointOptim(steps=3, batch=4), **how},
    )
    before = {name: weight.clone() for name, weight in model.query.named_parameters()}
    stages.pretrain(settings, model=model)
    frozen = "optim" in how
    assert wavers == [False, False, not frozen]
    moved = any(not torch.equal(before[name], weight) for name, weight in model.query.named_parameters())
    assert moved != frozen
