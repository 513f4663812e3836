"""Towers and reader: padding, sharing, span scores, saving."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import ArtefactDamaged, BadInput, Mismatch
from realmlm.model.config import ModelConfig
from realmlm.model.create import fresh_encoder, new_model
from realmlm.model.fingerprint import tower_fingerprint
from realmlm.model.inputs import GROUPED, Inputs, document_inputs, query_inputs, reader_inputs
from realmlm.model.realm import Realm
from realmlm.storage.artefacts import publish
from realmlm.worlds import world_wordpieces

WORDPIECES = world_wordpieces()


def small(family: str = "bert", **settings: object) -> Realm:
    encoder = fresh_encoder(
        WORDPIECES, family=family, layers=2, hidden=16, heads=2, dropout=0.0, positions=80
    )
    limits = {"max_query": 16, "max_passage": 40} | settings
    config = ModelConfig(tower=encoder, reader=encoder, projection=8, **limits)  # type: ignore[arg-type]
    return new_model(config, WORDPIECES, seed=1).eval()


def texts(*sentences: str) -> list[np.ndarray]:
    return [WORDPIECES.encode(sentence) for sentence in sentences]


@pytest.mark.parametrize("family", ["bert", "modernbert"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_padding_changes_nothing(family: str, pooling: str) -> None:
    model = small(family, pooling=pooling)
    short, long = texts(
        "the flag shows a heron", "the flag of the town shows a heron and a badger in the old forest"
    )
    alone = model.query(query_inputs([short], WORDPIECES, max_query=16))
    beside = model.query(query_inputs([short, long], WORDPIECES, max_query=16))
    assert torch.allclose(alone[0], beside[0], atol=1e-5)
    limits: dict[str, Any] = {"max_query": 16, "max_length": 60}
    positions = torch.tensor([[1]])
    alone = model.reader.masks(reader_inputs([short], [short], WORDPIECES, **limits), positions)
    beside = model.reader.masks(
        reader_inputs([short, short], [short, long], WORDPIECES, **limits), positions.expand(2, 1)
    )
    assert torch.allclose(alone[0], beside[0], atol=1e-4)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_groups_of_like_length_change_nothing(pooling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does with a large batch, here on a CPU."""
    model = small("bert", pooling=pooling)
    rng = np.random.default_rng(0)
    queries = [rng.integers(5, 200, size=count) for count in rng.integers(1, 16, size=GROUPED)]
    bodies = [rng.integers(5, 200, size=count) for count in rng.integers(0, 30, size=GROUPED)]
    inputs = reader_inputs(queries, bodies, WORDPIECES, max_query=16, max_length=60)
    plain = model.reader.encoder(inputs)
    pooled = model.query(inputs)
    monkeypatch.setattr(Inputs, "on_gpu", True)
    groups = inputs.alike()
    assert len(groups) == 4
    assert sorted(np.concatenate(groups).tolist()) == list(range(GROUPED))
    assert sum(len(rows) * inputs.rows(rows).tokens_NL.shape[1] for rows in groups) < inputs.tokens_NL.numel()
    hidden = inputs.attention_NL[:, :, None]
    assert torch.allclose(model.reader.encoder(inputs) * hidden, plain * hidden, atol=1e-5)
    assert torch.allclose(model.query(inputs), pooled, atol=1e-5)
    gradient = torch.autograd.grad(
        (model.reader.encoder(inputs) * hidden).square().sum(), model.reader.embedding.weight
    )[0]
    expected = torch.autograd.grad((plain * hidden).square().sum(), model.reader.embedding.weight)[0]
    assert torch.allclose(gradient, expected, atol=1e-3)


def test_scores_are_inner_products_with_the_scale_in_the_query() -> None:
    model = small(projection_norm=True)
    query = model.query(query_inputs(texts("the heron"), WORDPIECES, max_query=16))
    document = model.document(document_inputs(texts("heron"), texts("a bird"), WORDPIECES, max_length=60))
    assert query.norm().item() == pytest.approx(1.0, abs=1e-3)  # LayerNorm gives √D, the scale takes it away
    assert document.norm().item() == pytest.approx(8**0.5, abs=1e-3)


@torch.no_grad()
def test_span_scores_against_a_loop_over_all_spans() -> None:
    model = small(max_answer=3)
    inputs = reader_inputs(
        texts("which bird", "who"),
        texts("a heron stands", "the badger eats honey"),
        WORDPIECES,
        max_query=16,
        max_length=60,
    )
    scores, allowed = model.reader.spans(inputs)
    hidden = model.reader.encoder(inputs)
    head = model.reader.span_head
    for n in range(2):
        body_start = int(inputs.second_N[n])
        body_end = int(inputs.attention_NL[n].sum()) - 1
        spans = {(s, e) for s in range(body_start, body_end) for e in range(s, min(s + 3, body_end))}
        assert {(s, s + w) for s, w in allowed[n].nonzero().tolist()} == spans
        for start, end in spans:
            first = head.start_end.weight.chunk(2)
            second = head.start_end.bias.chunk(2)
            inner = first[0] @ hidden[n, start] + second[0] + first[1] @ hidden[n, end] + second[1]
            assert scores[n, start, end - start].item() == pytest.approx(
                float(head.output(head.norm(inner.relu()))), abs=1e-4
            )


def test_null_document_has_no_span_and_no_nan() -> None:
    from realmlm.model.marginal import span_log_probabilities

    model = small()
    inputs = reader_inputs(
        texts("which bird"), [np.zeros(0, dtype=np.int64)], WORDPIECES, max_query=16, max_length=60
    )
    scores, allowed = model.reader.spans(inputs)
    assert not allowed.any()
    assert torch.isneginf(span_log_probabilities(scores, allowed)).all()


def test_masked_lm_head_gives_distributions_only_where_asked() -> None:
    model = small()
    inputs = reader_inputs(
        texts("the heron stands"), texts("a bird"), WORDPIECES, max_query=16, max_length=60
    )
    log_p = model.reader.masks(inputs, torch.tensor([[0, 2]]))
    assert log_p.shape == (1, 2, len(WORDPIECES))
    assert torch.allclose(log_p.exp().sum(-1), torch.ones(1, 2), atol=1e-4)


def test_shared_towers_are_saved_once_and_untie() -> None:
    model = small(share_towers=True)
    assert model.query.encoder is model.document.encoder
    assert not any(name.startswith("query.encoder.") for name in model.own_state())
    before = tower_fingerprint(model.config, model.document)
    model.untie()
    assert model.query.encoder is not model.document.encoder
    with torch.no_grad():
        next(model.query.encoder.parameters()).add_(1.0)
    assert tower_fingerprint(model.config, model.document) == before, (
        "training the query tower must leave the document tower alone"
    )


def test_a_tower_is_known_by_its_weights_and_by_how_it_uses_them() -> None:
    towers = [small(), small(), small(pooling="mean"), small(projection_norm=False), small(max_passage=30)]
    first, same, *others = [tower_fingerprint(model.config, model.document) for model in towers]
    assert same == first
    assert len({first, *others}) == 4


@pytest.mark.parametrize("share", [True, False])
def test_save_and_load_give_the_same_model(tmp_path: Path, share: bool) -> None:
    model = small(share_towers=share)
    model.save_pretrained(tmp_path / "model")
    again = Realm.from_pretrained(tmp_path / "model")
    wordpieces = again.wordpieces
    assert again.config == model.config
    assert wordpieces.fingerprint == WORDPIECES.fingerprint
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


@pytest.mark.parametrize("family", ["bert", "modernbert"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_frozen_embeddings_held_once_are_saved_for_both_towers(
    tmp_path: Path, family: str, dtype: str
) -> None:
    model = small(family, freeze_embeddings=True)
    model.free_query("tower")
    model.save_pretrained(tmp_path / "first")
    loaded = Realm.from_pretrained(tmp_path / "first")
    words = [tower.encoder.body.get_input_embeddings() for tower in (loaded.query, loaded.document)]
    assert words[0] is words[1]
    loaded.save_pretrained(tmp_path / "second", dtype=dtype)
    again = Realm.from_pretrained(tmp_path / "second")
    assert again.own_state().keys() == model.own_state().keys()
    close = {"float32": 0.0, "int8": 0.02}[dtype]
    for name, tensor in model.own_state().items():
        assert torch.allclose(again.own_state()[name], tensor, atol=close, rtol=0), name


def test_a_model_saved_without_the_querys_frozen_embeddings_is_recovered() -> None:
    model = small(freeze_embeddings=True)
    model.free_query("tower")
    lacking = model.own_state()
    name = "encoder.body.embeddings.word_embeddings.weight"
    del lacking[f"query.{name}"]
    other = Realm(model.config, WORDPIECES)
    other.load_own_state(lacking)
    assert torch.equal(other.query.get_parameter(name), model.document.get_parameter(name))
    learning = small()
    learning.untie()
    del (state := learning.own_state())[f"query.{name}"]
    with pytest.raises(BadInput, match="missing"):  # what learns cannot be taken from elsewhere
        learning.load_own_state(state)


def test_fresh_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    first = small().own_state()
    torch.manual_seed(6)
    second = small().own_state()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    small().save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ArtefactDamaged, match=r"model\.safetensors"):
        Realm.from_pretrained(tmp_path / "model")


def test_a_model_of_a_later_version_says_what_to_do(tmp_path: Path) -> None:
    with publish(tmp_path / "model", kind="model") as draft:
        draft.config = asdict(small().config) | {"dreams": True}
    with pytest.raises(
        Mismatch, match=r"model has settings this version does not know \(dreams\); upgrade realmlm"
    ):
        Realm.from_pretrained(tmp_path / "model")


def test_wrong_weights_are_listed() -> None:
    model = small()
    state = model.own_state()
    state["surplus.weight"] = torch.zeros(1)
    del state["query.projection.bias"]
    with pytest.raises(BadInput, match=r"query\.projection\.bias.*surplus\.weight"):
        model.load_own_state(state)


def test_an_encoder_can_come_from_a_published_checkpoint(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDPIECES),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=80,
    )
    published = BertModel(config)
    published.save_pretrained(tmp_path / "bert")
    model = new_model(
        ModelConfig(max_query=16, max_passage=40), WORDPIECES, checkpoint=str(tmp_path / "bert")
    )
    source = published.state_dict()
    for encoder in (model.document.encoder, model.query.encoder, model.reader.encoder):
        loaded = encoder.body.state_dict()
        assert all(torch.equal(loaded[name], source[name]) for name in loaded)
    model.save_pretrained(tmp_path / "realm")
    again = Realm.from_pretrained(tmp_path / "realm")
    assert torch.equal(
        again.document.encoder.body.embeddings.word_embeddings.weight,
        source["embeddings.word_embeddings.weight"],
    )


def test_a_checkpoint_that_is_not_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput, match="no encoder to load at '/nowhere/bert'"):
        new_model(ModelConfig(), Wordpieces(WORDPIECES.tokenizer), checkpoint="/nowhere/bert")


def test_a_checkpoint_must_fit_the_corpus(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(WORDPIECES), max_position_embeddings=64, **shape)).save_pretrained(
        tmp_path / "short"
    )
    with pytest.raises(BadInput, match=r"reads 64 wordpieces.*--max-wordpieces 29"):
        new_model(ModelConfig(max_query=16, max_passage=40), WORDPIECES, checkpoint=str(tmp_path / "short"))
    with pytest.raises(BadInput, match=r"reads 64 wordpieces.*take 343; choose a smaller --max-query$"):
        new_model(ModelConfig(max_query=300, max_passage=40), WORDPIECES, checkpoint=str(tmp_path / "short"))
    BertModel(BertConfig(vocab_size=len(WORDPIECES), max_position_embeddings=128, **shape)).save_pretrained(
        tmp_path / "other"
    )
    Wordpieces.from_pieces(["other", "words"]).save(tmp_path / "other" / "tokenizer.json")
    with pytest.raises(Mismatch, match="another tokenizer"):
        new_model(ModelConfig(max_query=16, max_passage=40), WORDPIECES, checkpoint=str(tmp_path / "other"))
