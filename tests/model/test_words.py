"""Towers of words: a vector and a weight for each wordpiece, added up."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput
from realmlm.log import read_metrics
from realmlm.model.encoders import Tower
from realmlm.model.packed import Packed
from realmlm.model.realm import Realm
from realmlm.model.words import Words
from realmlm.settings import Loop, Optim
from tests.calls import create_model, warm_up
from tests.conftest import TINY_MODEL

LOOP = Loop(log_every=10, threads=1, device="cpu")


@pytest.fixture
def words(knowledge: Corpus, tmp_path: Path) -> Realm:
    made = create_model(corpus=knowledge.folder, out=tmp_path / "words", **TINY_MODEL, towers="words").eval()
    with torch.no_grad():
        made.query.encoder.body.log_weight_V.add_(torch.randn(len(knowledge.wordpieces)))
    return made


def table_of(tower: Tower) -> tuple[Tensor, Tensor]:
    body = tower.encoder.body
    assert isinstance(body, Words)
    return body.embeddings.weight.double(), body.log_weight_V.double()


def by_hand(tower: Tower, rows: Sequence[Sequence[int]]) -> Tensor:
    """LayerNorm(W · Σ exp(a) e) · scale, each wordpiece once, in a loop and float64."""
    embedding_VH, log_weight_V = table_of(tower)
    vectors = []
    for row in rows:
        total_H = torch.zeros(32, dtype=torch.float64)
        for token in set(row):
            total_H += log_weight_V[token].exp() * embedding_VH[token]
        projected_D = tower.projection.weight.double() @ total_H + tower.projection.bias.double()
        normed_D = (projected_D - projected_D.mean()) / (projected_D.var(correction=0) + 1e-5).sqrt()
        vectors.append(normed_D * tower.scale)
    return torch.stack(vectors)


def test_a_text_is_the_weighted_sum_of_the_wordpieces_it_has(words: Realm, knowledge: Corpus) -> None:
    texts = [knowledge.tokens(number)[:length] for number, length in ((0, 3), (1, 9), (2, 1))]
    inputs = words.query_inputs([*texts, np.concatenate([texts[1], texts[1][::-1]]), texts[1][:0]])
    rows = [
        row[: int(length)].tolist() for row, length in zip(inputs.tokens_NL, inputs.lengths_N, strict=True)
    ]
    with torch.no_grad():
        expected_ND = by_hand(words.query, rows)
        assert torch.allclose(words.query(inputs).double(), expected_ND, atol=1e-5)
        assert torch.allclose(words.query(Packed.of(inputs)).double(), expected_ND, atol=1e-5)
        assert torch.allclose(expected_ND[3], expected_ND[1]), "order and repetitions do not count"


class _OnDevice(torch.nn.Embedding):
    """What is no plain table is summed as on a GPU."""


def test_both_ways_to_a_sum_have_the_same_gradient(words: Realm, knowledge: Corpus) -> None:
    body = words.query.encoder.body
    tokens_T = torch.tensor([5, 6, 5, 7, 8, 8, 9, 10, 5])
    rows_T = torch.tensor([0, 0, 0, 1, 3, 3, 3, 4, 6])  # the third has none; the last two are filling
    found = []
    for on_gpu in (False, True):
        words.zero_grad()
        with pytest.MonkeyPatch.context() as patched:
            if on_gpu:
                patched.setattr("realmlm.model.words.nn.Embedding", _OnDevice)
            sums_NH = body.sums(tokens_T, rows_T, 4)
        assert (sums_NH[2] == 0).all()
        (sums_NH * torch.arange(1.0, 5.0)[:, None]).square().sum().backward()
        found.append([sums_NH.detach(), body.embeddings.weight.grad, body.log_weight_V.grad])
    for bag, indexed in zip(*found, strict=True):
        assert bag.abs().max() > 0
        assert torch.allclose(bag, indexed, rtol=1e-5, atol=1e-6)
    gradient_VH = found[0][1]
    assert gradient_VH is not None
    assert (gradient_VH[10] == 0).all(), "filling is learned from by no one"


def test_weights_begin_with_rarity(knowledge: Corpus, tmp_path: Path) -> None:
    model = create_model(corpus=knowledge.folder, out=tmp_path / "model", **TINY_MODEL, towers="words")
    having = np.zeros(len(knowledge.wordpieces))
    for number in knowledge.ids:
        for token in {*knowledge.tokens(number).tolist(), *knowledge.title_tokens(number).tolist()}:
            having[token] += 1
    passages = len(knowledge)
    rarity = [math.log((passages - n + 0.5) / (n + 0.5) + 1) for n in having]
    mean = sum(rarity) / len(rarity)
    weight_V = model.document.encoder.body.log_weight_V.exp()
    pieces = knowledge.wordpieces
    special = {pieces.cls, pieces.sep, pieces.pad, pieces.mask}
    for token, value in enumerate(rarity):
        expected = 0.05 if token in special else max(value / mean, 0.05)
        assert weight_V[token].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_saved_and_loaded_it_embeds_the_same(words: Realm, tmp_path: Path, dtype: str) -> None:
    words.save_pretrained(tmp_path / "saved", dtype=dtype)
    texts = ["a heron", "the badger of the forest", ""]
    expected = words.embed_queries(texts)
    loaded = Realm.from_pretrained(tmp_path / "saved")
    held = Realm.from_pretrained(tmp_path / "saved", int8=True)
    tolerance = {"float32": 0.0, "float16": 2e-3, "int8": 5e-2}[dtype]
    assert torch.allclose(loaded.embed_queries(texts), expected, atol=tolerance)
    assert torch.allclose(held.embed_queries(texts), loaded.embed_queries(texts), atol=1e-5)


def test_they_find_by_rare_words_before_they_have_learned(knowledge: Corpus, tmp_path: Path) -> None:
    model = create_model(
        corpus=knowledge.folder, out=tmp_path / "model", **{**TINY_MODEL, "projection": 256}, towers="words"
    )
    ids = knowledge.ids[:200].tolist()
    passages = knowledge.passages(ids)
    found = model.embed_queries([passage.text for passage in passages])
    place = model.embed_passages([p.text for p in passages], [p.title for p in passages])
    right = (found @ place.T).argmax(1) == torch.arange(len(ids))
    assert right.float().mean() > 0.9


def test_they_learn_to_find(knowledge: Corpus, tmp_path: Path) -> None:
    create_model(corpus=knowledge.folder, out=tmp_path / "begin", **TINY_MODEL, towers="words")
    warm_up(
        model=tmp_path / "begin",
        corpus=knowledge.folder,
        out=tmp_path / "warmup",
        reader=Optim(steps=0),
        retriever=Optim(steps=60, batch=64, lr=1e-2),
        loop=LOOP,
    )
    first, *_, last = read_metrics(tmp_path / "warmup" / "retriever" / "metrics.jsonl")
    assert last["found"] > first["found"] + 0.2


def test_what_does_not_go_with_words_is_refused(knowledge: Corpus, tmp_path: Path) -> None:
    for wrong in ({"pooling": "cls"}, {"checkpoint": "bert"}, {"freeze_embeddings": True}):
        with pytest.raises(BadInput, match="towers of words"):
            create_model(
                corpus=knowledge.folder, out=tmp_path / "no", towers="words", **{**TINY_MODEL, **wrong}
            )
