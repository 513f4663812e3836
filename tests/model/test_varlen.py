"""Sequences end to end give what padded ones give. The attention itself needs a GPU (tests/test_gpu.py); here
a plain one stands in."""

import importlib.util
import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from realmlm.corpus.wordpieces import Layout
from realmlm.model import varlen
from realmlm.model.encoders import Encoder, build_encoder
from realmlm.model.inputs import Inputs
from realmlm.model.varlen import can_pack, encode_packed, packs_now

SHAPE: dict[str, Any] = {
    "vocab_size": 100,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "global_attn_every_n_layers": 1,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}


def sequence_by_sequence(query: Tensor, key: Tensor, value: Tensor, borders: Tensor, longest: int) -> Tensor:
    assert int(borders.diff().max()) <= longest
    seen = []
    for first, past in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        q, k, v = (part[first:past].transpose(0, 1)[None] for part in (query, key, value))
        seen.append(F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1))
    return torch.cat(seen)


def some_inputs(lengths: list[int]) -> Inputs:
    lengths_N = np.array(lengths)
    attention_NL = torch.from_numpy((np.arange(lengths_N.max()) < lengths_N[:, None]).astype(np.int64))
    tokens_NL = (
        torch.randint(4, 100, attention_NL.shape, generator=torch.Generator().manual_seed(0)) * attention_NL
    )
    layout = Layout(before=(), between=(), after=(), first=0, second=0, cls=0)
    return Inputs(
        layout,
        lengths_N,
        tokens_NL,
        attention_NL,
        torch.zeros_like(tokens_NL),
        torch.zeros(len(lengths), dtype=torch.int64),
    )


def test_the_same_vectors_and_gradients_as_with_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "within_sequences", sequence_by_sequence)
    torch.manual_seed(0)
    encoder = Encoder(modern())
    inputs = some_inputs([7, 1, 20, 13])
    seen = inputs.attention_NL.bool()
    gradients = []
    vectors = []
    for encode in (encoder, lambda inputs: encode_packed(encoder.body, inputs)):
        encoder.zero_grad()
        hidden = encode(inputs)
        (hidden[seen] ** 2).sum().backward()
        vectors.append(hidden)
        gradients.append(
            [parameter.grad.clone() for parameter in encoder.parameters() if parameter.grad is not None]
        )
    assert torch.allclose(vectors[0][seen], vectors[1][seen], atol=1e-5)
    assert not vectors[1][~seen].any()
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(*gradients, strict=True))
    assert encoder.body.config._attn_implementation != varlen.ATTENTION  # as it was


def test_who_encodes_beside_it_with_padding_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = threading.Event()
    go_on = threading.Event()

    def slowly(*given: Any) -> Tensor:
        inside.set()
        assert go_on.wait(30)
        return sequence_by_sequence(*given)

    monkeypatch.setattr(varlen, "within_sequences", slowly)
    encoder = Encoder(modern()).eval()
    inputs = some_inputs([7, 3])
    seen = []
    alone = encoder(inputs)
    threads = [
        threading.Thread(target=encode_packed, args=(encoder.body, inputs)),
        threading.Thread(target=lambda: seen.append(encoder(inputs))),
    ]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert torch.equal(seen[0], alone)


def modern(**changes: Any) -> Any:
    return build_encoder({"model_type": "modernbert", **SHAPE, **changes})


def test_which_encoders_can(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_pack(modern())
    assert not can_pack(modern(global_attn_every_n_layers=2)), "some layers see a window only"
    assert not can_pack(modern(attention_dropout=0.1))
    assert not can_pack(
        build_encoder(
            {"model_type": "bert", "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
        )
    )
    older = modern()
    monkeypatch.setattr(type(older), "forward", lambda self, input_ids, cu_seqlens: None)
    assert not can_pack(older), "its attention cannot be exchanged"
    monkeypatch.undo()
    assert can_pack(older)
    found = importlib.util.find_spec
    without = lambda name: None if name == "torch.nn.attention.varlen" else found(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert not can_pack(older), "torch is too old"


def test_not_on_a_cpu() -> None:
    assert not packs_now(some_inputs([3, 2]))
