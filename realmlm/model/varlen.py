"""Sequences end to end instead of padded, for encoders on a GPU: no padding is computed.

N sequences, L wordpieces in the longest, T wordpieces in all, A heads of C numbers, H hidden size.
"""

import importlib.util
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from realmlm.model.inputs import Inputs, send

ATTENTION = "realmlm_packed"  # its name among transformers' implementations of attention
_NEEDED = "torch.nn.attention.varlen"  # torch 2.10 and later
_CAPABILITY = (8, 0)  # of a GPU: older ones have no flash attention
_FAMILIES = ("modernbert",)  # that hand positions and sequence borders through to their attention
# an encoder has one kind of attention for all threads: none may run it while another has exchanged it
ONE_AT_A_TIME = threading.RLock()


def can_pack(body: Any) -> bool:
    """Can this encoder take sequences end to end? Its attention must be full and without dropout."""
    config = body.config
    # ModernBERT as the first releases of transformers 5 have it
    older = "cu_seqlens" in inspect.signature(body.forward).parameters
    if older or config.model_type not in _FAMILIES or config.attention_dropout > 0:
        return False
    if importlib.util.find_spec(_NEEDED) is None or set(config.layer_types) != {"full_attention"}:
        return False
    return (config.hidden_size // config.num_attention_heads) % 8 == 0


def packs_now(inputs: Inputs) -> bool:
    """Only in half precision on a GPU, and only where the gradient need not be the same bits every time."""
    if not inputs.tokens_NL.is_cuda or torch.are_deterministic_algorithms_enabled():
        return False
    half = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    return half and torch.cuda.get_device_capability(inputs.tokens_NL.device) >= _CAPABILITY


def encode_packed(body: Any, inputs: Inputs) -> Tensor:
    """A vector a wordpiece [N, L, H], as the encoder gives it; 0 for padding."""
    count, width = inputs.tokens_NL.shape
    device = inputs.tokens_NL.device
    ends_N = np.cumsum(inputs.lengths_N)
    columns_T = np.arange(ends_N[-1]) - np.repeat(ends_N - inputs.lengths_N, inputs.lengths_N)
    first_T = np.repeat(np.arange(count) * width, inputs.lengths_N)
    places_T = send(torch.from_numpy(first_T + columns_T), device)
    borders = send(torch.from_numpy(np.append(0, ends_N).astype(np.int32)), device)
    # no need to be the longest of this batch: one value, one compiled layer
    longest = int(body.config.max_position_embeddings)
    tokens_1T = inputs.tokens_NL.flatten()[places_T][None]
    positions_1T = send(torch.from_numpy(columns_T), device)[None]
    ends = {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders}
    most = {"max_length_q": longest, "max_length_k": longest}
    with _packed_attention(body.config):
        hidden_TH = body(input_ids=tokens_1T, position_ids=positions_1T, **ends, **most)[0][0]
    padded = hidden_TH.new_zeros(count * width, hidden_TH.shape[-1])
    return padded.index_copy(0, places_T, hidden_TH).view(count, width, -1)


@contextmanager
def _packed_attention(config: Any) -> Iterator[None]:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION, _attend)
    AttentionMaskInterface.register(ATTENTION, _no_mask)
    with ONE_AT_A_TIME:
        before = config._attn_implementation
        config._attn_implementation = ATTENTION
        try:
            yield
        finally:
            config._attn_implementation = before


def _no_mask(*_: Any, **__: Any) -> None:
    """The borders say what belongs together."""


def _attend(
    module: Any,
    query_1ATC: Tensor,
    key_1ATC: Tensor,
    value_1ATC: Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention within each sequence, [1, T, A, C]; scores are divided by √C as usual."""
    query_TAC, key_TAC, value_TAC = (part[0].transpose(0, 1) for part in (query_1ATC, key_1ATC, value_1ATC))
    return within_sequences(query_TAC, key_TAC, value_TAC, cu_seq_lens_q, max_length_q)[None], None


def within_sequences(
    query_TAC: Tensor, key_TAC: Tensor, value_TAC: Tensor, borders: Tensor, longest: int
) -> Tensor:
    """Flash attention over sequences that lie end to end [T, A, C]."""
    from torch.nn.attention.varlen import varlen_attn  # its import takes as long as torch's own

    seen = varlen_attn(query_TAC, key_TAC, value_TAC, borders, borders, longest, longest)
    assert isinstance(seen, Tensor)
    return seen
