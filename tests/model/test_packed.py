"""Sequences end to end give what padded ones give: vectors, gradients and joined texts."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from realmlm.corpus.wordpieces import Layout
from realmlm.model.encoders import Encoder, build_encoder
from realmlm.model.inputs import Inputs
from realmlm.model.packed import Packed, Piece, Size, Special, Text, pack
from realmlm.model.packed_encoders import can_pack, encode

SMALL: dict[str, Any] = {
    "vocab_size": 100,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"pad_token_id": 1, "type_vocab_size": 1},
    "xlm-roberta": {"pad_token_id": 1, "type_vocab_size": 1},
    "camembert": {"pad_token_id": 1, "type_vocab_size": 1},
    "mpnet": {"pad_token_id": 1},
    "modernbert": {"global_attn_every_n_layers": 1},
}


def encoder_of(family: str, **more: Any) -> Encoder:
    torch.manual_seed(0)
    return Encoder(build_encoder({"model_type": family, **SMALL, **FAMILIES.get(family, {}), **more})).eval()


def some_inputs(lengths: list[int], *, pad: int = 0) -> Inputs:
    lengths_N = np.array(lengths)
    attention_NL = torch.from_numpy((np.arange(lengths_N.max()) < lengths_N[:, None]).astype(np.int64))
    generator = torch.Generator().manual_seed(0)
    tokens_NL = torch.randint(4, 100, attention_NL.shape, generator=generator)
    tokens_NL = tokens_NL * attention_NL + pad * (1 - attention_NL)
    layout = Layout(before=(), between=(), after=(), first=0, second=0, cls=0)
    segments_NL = torch.randint(0, 2, attention_NL.shape, generator=generator) * attention_NL
    second_N = torch.zeros(len(lengths), dtype=torch.int64)
    return Inputs(layout, lengths_N, tokens_NL, attention_NL, segments_NL, second_N, second_N)


def vectors_and_gradients(encoder: Encoder, inputs: Inputs | Packed, chosen: Any) -> list[torch.Tensor]:
    encoder.zero_grad()
    hidden = encoder(inputs)[chosen]
    (hidden * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    gradients = [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]
    return [hidden.detach(), *gradients]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_vectors_and_gradients_as_with_padding(family: str) -> None:
    encoder = encoder_of(family)
    inputs = some_inputs([7, 1, 20, 13], pad=FAMILIES[family].get("pad_token_id", 0))
    padded = vectors_and_gradients(encoder, inputs, inputs.attention_NL.bool())
    packed = vectors_and_gradients(encoder, Packed.of(inputs), slice(None))
    assert len(padded) == len(packed)
    for one, other in zip(padded, packed, strict=True):
        assert torch.allclose(one, other, atol=2e-6 * max(1, float(one.abs().max())), rtol=1e-4)


def test_filling_takes_no_position_that_an_encoder_lacks() -> None:
    encoder = encoder_of("bert", max_position_embeddings=20)
    layout = Layout(before=(), between=(), after=(), first=0, second=0, cls=0)
    text = Text(torch.arange(4, 44), torch.tensor([0, 5]), torch.tensor([20, 7]), 0)
    packed = pack([text], layout=layout, body=0, size=Size(27 + 50, 22, 50))
    assert int(packed.columns_T.max()) == 19
    assert encoder(packed).shape == (77, encoder.hidden)


def test_an_encoder_that_has_embedded_can_learn() -> None:
    encoder = encoder_of("mpnet", max_position_embeddings=62)
    packed = Packed.of(some_inputs([7, 1, 20], pad=1))
    with torch.inference_mode():
        embedded = encoder(packed).clone()
    hidden, *gradients = vectors_and_gradients(encoder, packed, slice(None))
    assert torch.equal(hidden, embedded)
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pooled_alike(pooling: str) -> None:
    encoder = encoder_of("bert")
    inputs = some_inputs([7, 1, 20, 13])
    assert torch.allclose(
        encoder.pooled(inputs, pooling), encoder.pooled(Packed.of(inputs), pooling), atol=1e-5
    )


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("modernbert", {"global_attn_every_n_layers": 2}),
        ("modernbert", {"mlp_bias": True}),
        ("bert", {"hidden_act": "gelu_new"}),
        ("bert", {"hidden_size": 24}),
        ("electra", {}),
    ],
)
def test_what_it_cannot_compute_is_read_with_padding(family: str, more: dict[str, Any]) -> None:
    assert not can_pack(encoder_of(family, **more).body)


@pytest.mark.parametrize(
    "drops",
    [{"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}]
    + [{f"{part}_dropout": 0.3} for part in ("embedding", "attention", "mlp")],
)
def test_dropout_stands_where_transformers_has_it(
    drops: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a dropout that shrinks everything alike, in place of one that draws."""
    plain = F.scaled_dot_product_attention

    def shrink(given: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return given * (1 - p) if training else given

    def attend(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, **more: Any) -> Tensor:
        return plain(query, key, value, **more) * (1 - dropout_p)

    family = "bert" if "hidden_dropout_prob" in drops else "modernbert"
    none = dict.fromkeys(("embedding_dropout", "attention_dropout", "mlp_dropout"), 0.0)
    encoder = encoder_of(family, **(none if family == "modernbert" else {}) | drops)
    for weights in encoder.parameters():
        weights.data *= 10 if weights.ndim > 1 else 1  # fresh ones hardly change what comes in
    inputs = some_inputs([7, 1, 20, 13])
    without = encoder(Packed.of(inputs))
    encoder.train()
    monkeypatch.setattr(F, "dropout", shrink)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    packed = encoder(Packed.of(inputs))
    assert not torch.allclose(packed, without, atol=1e-3)
    assert torch.allclose(packed, encoder(inputs)[inputs.attention_NL.bool()], atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_dropout_only_while_training(family: str) -> None:
    drops = {"embedding_dropout": 0.1, "attention_dropout": 0.1, "mlp_dropout": 0.1}
    encoder = encoder_of(family, **(drops if family == "modernbert" else {}))
    packed = Packed.of(some_inputs([9, 4]))
    assert torch.equal(encoder(packed), encoder(packed))
    encoder.train()
    assert not torch.equal(encoder(packed), encoder(packed))


def test_pieces_are_joined_and_the_rest_is_filling() -> None:
    store = torch.arange(100, 130, dtype=torch.int32)
    own = torch.tensor([7, 8, 9, 0], dtype=torch.int32)
    there = torch.tensor([1, 1, 1])
    pieces: list[Piece] = [
        Special(2, 0, there),
        Text(own, torch.tensor([0, 2, 0]), torch.tensor([2, 1, 0]), 0),
        Special(3, 0, torch.tensor([1, 1, 0])),
        Text(store, torch.tensor([5, 0, 20]), torch.tensor([3, 0, 2]), 1),
    ]
    layout = Layout(before=(), between=(), after=())
    packed = pack(pieces, layout=layout, body=3, size=Size(17, 3, 6))
    assert packed.tokens_T.tolist() == [2, 7, 8, 3, 105, 106, 107, 2, 9, 3, 2, 120, 121, 0, 0, 0, 0]
    assert packed.segments_T.tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert packed.rows_T.tolist() == [0] * 7 + [1] * 3 + [2] * 3 + [3] * 4
    assert packed.columns_T.tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert packed.borders.tolist() == [0, 7, 10, 13, 16, 17]
    assert packed.second_N.tolist() == [4, 3, 1]
    assert packed.lengths_N.tolist() == [7, 3, 3]


def test_filling_changes_nothing() -> None:
    encoder = encoder_of("bert")
    store = torch.randint(4, 100, (60,), generator=torch.Generator().manual_seed(0))
    texts = [Text(store, torch.tensor([0, 7, 30]), torch.tensor([7, 11, 9]), 0)]
    layout = Layout(before=(), between=(), after=(), cls=0)
    exact = pack(texts, layout=layout, body=0, size=Size(27, 11, 0))
    roomy = pack(texts, layout=layout, body=0, size=Size.fitting(27, grain=20, longest=11))
    assert len(roomy.tokens_T) == 40
    assert torch.allclose(encode(encoder.body, exact, compiled=False), encoder(roomy)[:27], atol=1e-6)
    assert torch.allclose(encoder.pooled(exact, "mean"), encoder.pooled(roomy, "mean"), atol=1e-6)
