"""What the objectives see: never the passage a sentence came from, the same examples whatever the parts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from realmlm.corpus.masking import window
from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput
from realmlm.index.exact import ExactIndex
from realmlm.log import Clock
from realmlm.model.realm import Realm
from realmlm.reading.read import places_of
from realmlm.settings import JointOptim, Optim, Refresh, Warmup
from realmlm.train.data import ClozePairs, SentenceSource, epoch_positions
from realmlm.train.gold import locate_answers
from realmlm.train.objective import Group
from realmlm.train.objectives.ict import InverseCloze
from realmlm.train.optimizer import learning_rate, make_optimizer, make_room, to_device
from tests.calls import build_corpus
from tests.train.test_resume import joint_run


@given(st.integers(1, 30), st.integers(0, 50), st.integers(1, 40), st.integers(0, 3))
def test_every_thing_once_an_epoch(size: int, first: int, count: int, seed: int) -> None:
    whole = epoch_positions(size, seed=seed, first=0, count=first + count)
    assert np.array_equal(epoch_positions(size, seed=seed, first=first, count=count), whole[first:])
    for start in range(0, len(whole) - size + 1, size):
        assert sorted(whole[start : start + size]) == list(range(size))


@given(st.integers(1, 40), st.integers(1, 20), st.data())
def test_windows_keep_the_first_mask(length: int, most: int, data: st.DataObject) -> None:
    tokens = np.arange(100, 100 + length)
    positions = np.array(sorted(data.draw(st.sets(st.integers(0, length - 1), min_size=1))))
    cut, kept = window(tokens, positions, most)
    assert len(cut) == min(length, most)
    assert tokens[positions[0]] in cut[kept]
    assert set(cut[kept]) <= set(tokens[positions])


@given(st.integers(1, 300), st.floats(0, 1), st.floats(1e-6, 1))
def test_the_learning_rate_rises_and_falls(steps: int, warmup: float, peak: float) -> None:
    rates = [learning_rate(step, steps=steps, warmup=warmup, peak=peak) for step in range(steps)]
    assert all(0 < rate <= peak * (1 + 1e-9) for rate in rates)
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_a_sentences_own_passage_is_never_retrieved(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X = Z: every search names the passage to leave out, and gets k − 1 others."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    search = ExactIndex.search

    def spy(self: ExactIndex, queries: torch.Tensor, k: int, *, exclude_QE: Any = None) -> Any:
        hits = search(self, queries, k, exclude_QE=exclude_QE)
        seen.append((exclude_QE, hits.ids_QK))
        return hits

    monkeypatch.setattr(ExactIndex, "search", spy)
    refresh = Refresh(every_steps=0)
    joint_run(
        tiny_model_folder,
        knowledge,
        tmp_path / "run",
        k=4,
        optim=JointOptim(steps=3, batch=8),
        refresh=refresh,
    )
    assert len(seen) == 3
    for own, ids in seen:
        assert own is not None
        assert ids.shape == (8, 3)
        assert not (ids[:, :, None] == own[:, None]).any()


def test_masked_sentences_hide_salient_values(sentences: Corpus, world: Path) -> None:
    source = SentenceSource(sentences, "salient", max_query=32, seed=1)
    values = set((world / "phrases.txt").read_text("utf-8").split("\n"))
    drawn = source.draw(0, 20)
    for row, query in enumerate(drawn.masked.queries):
        valid = drawn.masked.valid_BM[row]
        hidden = sentences.wordpieces.decode(drawn.masked.targets_BM[row, valid].tolist())
        assert hidden in values
        assert (query == sentences.wordpieces.mask).sum() == valid.sum()
    parts = [source.draw(0, 8), source.draw(8, 12)]
    again = [query.tolist() for part in parts for query in part.masked.queries]
    assert again == [query.tolist() for query in drawn.masked.queries], "parts must draw what the whole draws"


@pytest.mark.parametrize(
    "hidden", [[], [1, 1], [-1], [2, 1], [10_000], list(range(1000)), [[1]], [True], [0.5]]
)
def test_a_scheme_of_ones_own_that_breaks_its_promise_is_refused(
    hidden: list[Any], sentences: Corpus, world: Path
) -> None:
    class Own:
        needs_spans = False

        def choose(self, tokens_L: np.ndarray, spans_N2: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            return np.array(hidden[: len(tokens_L)])

    with pytest.raises(BadInput, match=r"Own\.choose gave .* ascending, at least one and never all"):
        SentenceSource(sentences, Own(), max_query=32, seed=0).draw(0, 4)


def test_of_a_sentence_that_is_cut_something_is_left(sentences: Corpus) -> None:
    """A word may be longer than a query has room for: then a wordpiece of it stays."""

    class AllButTheLast:
        needs_spans = False

        def choose(self, tokens_L: np.ndarray, spans_N2: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            return np.arange(len(tokens_L) - 1)

    for room in (32, 4):
        source = SentenceSource(sentences, AllButTheLast(), max_query=room, seed=0)
        for example in source.examples(0, 20):
            assert len(example.tokens) <= room
            assert 1 <= len(example.positions) < len(example.tokens)


def test_an_objectives_own_parameters_come_to_the_models_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no other device here: what comes back from it is one more."""
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: tensor + 1)
    own = torch.nn.Parameter(torch.zeros(3))
    group = Group([own], 1.0)
    to_device({"own": group}, torch.device("cpu"))
    assert group.parameters[0] is own
    assert own.tolist() == [1.0, 1.0, 1.0]


def test_inverse_cloze_takes_the_sentence_out_most_of_the_time(knowledge: Corpus) -> None:
    pairs = ClozePairs(knowledge, remove=0.9, seed=0)
    drawn = pairs.draw(0, len(pairs))
    both = zip(drawn.sentences, drawn.bodies, strict=True)
    inside = [any(body[i : i + len(s)].tolist() == s.tolist() for i in range(len(body))) for s, body in both]
    assert 0.03 < np.mean(inside) < 0.2


def test_a_copy_of_ones_own_passage_is_no_negative(tiny_model: Realm, towns: Corpus, tmp_path: Path) -> None:
    texts = [f"{name} lies by a river. People like {name}." for name in ("One", "Two", "One", "Three")]
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"title": str(n), "text": text}) + "\n" for n, text in enumerate(texts))
    )
    corpus = build_corpus(
        [tmp_path / "rows.jsonl"], tmp_path / "corpus", tokenizer=str(towns.folder), workers=1
    )
    pairs = ClozePairs(corpus, remove=0.5, seed=0)
    model = tiny_model.eval()
    objective = InverseCloze(Warmup(out=Path("unused")), model, pairs)
    drawn = objective.draw(0, 4)
    with torch.no_grad():
        loss, _ = objective.loss(drawn, 0, Clock())
        scores_BN = model.query(drawn[0]) @ model.document(drawn[1]).T
    told = [corpus[int(number)].text for number in pairs.draw(0, 4).passages]
    total = 0.0
    for own, text in enumerate(told):
        among = [other for other in range(4) if other == own or told[other] != text]
        total += float(scores_BN[own, among].logsumexp(0) - scores_BN[own, own])
    assert len(set(told)) == 3
    assert float(loss) == pytest.approx(total / 4, rel=1e-5)


def test_located_answers_are_the_answers(knowledge: Corpus, world: Path, tmp_path: Path) -> None:
    from realmlm.corpus.questions import read_questions

    questions = read_questions(world / "questions-train.jsonl")[:60]
    gold = locate_answers(knowledge, questions)
    wordpieces = knowledge.wordpieces
    for number, question in enumerate(questions):
        ids = knowledge.ids
        holds = ids[gold.holds(number, ids)].tolist()
        assert set(question.gold) <= set(holds)
        for passage in holds:
            found = {
                wordpieces.decode(knowledge.tokens(passage)[a:b])
                for a, b in gold.spans(number, passage).tolist()
            }
            assert found == set(question.answers)
        missing = (set(knowledge.ids.tolist()) - set(holds)).pop()
        assert not len(gold.spans(number, missing))


def test_words_are_found_as_a_whole() -> None:
    tokens = np.array([5, 6, 7, 5, 8])
    none = np.zeros(10, dtype=bool)
    assert places_of(np.array([5, 8]), tokens, none).tolist() == [3]
    assert places_of(np.array([5]), tokens, none).tolist() == [0, 3]
    for absent in ([6, 5], [8, 5], [5, 6, 7, 5, 8, 9], [5, 6, 7, 5, 8, 5, 6]):
        assert places_of(np.array(absent), tokens, none).tolist() == []
    assert places_of(np.array([5, 6, 7, 8]), tokens[:2], none).tolist() == []
    longer = none.copy()
    longer[[6, 8]] = True
    assert places_of(np.array([5]), tokens, longer).tolist() == []
    assert places_of(np.array([5, 6]), tokens, longer).tolist() == [0]
    assert places_of(np.array([5]), tokens[:4], longer).tolist() == [3]


def test_room_made_ahead_changes_no_step() -> None:
    """Nor does it for a parameter that gets its first gradient later, as those of a frozen retriever do."""

    def learned(*, ahead: bool) -> list[torch.Tensor]:
        weights = [torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(2))]
        optimizer = make_optimizer({"all": Group(weights, 0.1)}, Optim(), recorded=ahead)
        if ahead:
            make_room(optimizer)
            room = [optimizer.state[weight]["exp_avg"] for weight in weights]
        for step in range(4):
            weights[0].grad = torch.full((3, 2), step + 1.0)
            weights[1].grad = torch.tensor([0.5, step]) if step > 1 else None
            optimizer.step()
        if ahead:
            kept = [optimizer.state[weight]["exp_avg"] for weight in weights]
            assert all(one is other for one, other in zip(room, kept, strict=True))
            assert all(moments.any() for moments in kept)
        return [weight.detach() for weight in weights]

    for one, other in zip(learned(ahead=False), learned(ahead=True), strict=True):
        assert torch.equal(one, other)
