"""Encoders over packed sequences: what BERT, RoBERTa, MPNet and ModernBERT of transformers compute, as
functions of the same weights.

T wordpieces, H hidden size, A heads of C numbers, R distances, U buckets of distances.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from realmlm.device import builds_kernels
from realmlm.model.attention import HEADS, Distance, attend, attend_qkv
from realmlm.model.norms import add_norm
from realmlm.model.packed import Packed

_POST_NORM = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet")  # LayerNorm after each sum
_COUNTED_FROM_PADDING = _POST_NORM[1:]  # positions begin after the padding's id
_SHAPES = 64  # kinds of call a function may be compiled for; beyond them it would run as it is, and slower


def can_pack(body: Any) -> bool:
    """Can this encoder's work be done by the functions here?"""
    config = body.config
    family = config.model_type
    heads = getattr(config, "num_attention_heads", 0)
    if not heads or config.hidden_size % heads or config.hidden_size // heads not in HEADS:
        return False
    if family in _POST_NORM:
        absolute = getattr(config, "position_embedding_type", "absolute") == "absolute"
        crossed = getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False)
        return absolute and not crossed and config.hidden_act == "gelu"
    return family == "modernbert" and _plain_modern(config)


def _plain_modern(config: Any) -> bool:
    rope = (getattr(config, "rope_parameters", None) or {}).get("full_attention") or {}
    full = set(getattr(config, "layer_types", ["sliding_attention"])) == {"full_attention"}
    biased = config.attention_bias or config.mlp_bias or config.norm_bias
    usual = config.hidden_activation == "gelu" and rope.get("rope_type", "default") == "default"
    return full and usual and "rope_theta" in rope and not biased


def encode(body: Any, packed: Packed, *, compiled: bool, places_R: Tensor | None = None) -> Tensor:
    """A vector a wordpiece [T, H], as the encoder gives it, or those at R places: there alone the last layer
    does what no other wordpiece needs."""
    way = _modern if body.config.model_type == "modernbert" else _post_norm
    return way(body, packed, call_compiled if compiled else call_plain, places_R)


Call = Callable[..., Any]


def call_plain(function: Call, *tensors: Any, **constants: Any) -> Any:
    return function(*tensors, **constants)


def call_compiled(function: Call, *tensors: Any, **constants: Any) -> Any:
    """Fused by torch.compile; of all sizes only the number of wordpieces is left open."""
    for tensor in tensors:
        if isinstance(tensor, Tensor) and not isinstance(tensor, nn.Parameter):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return _compile(function, tuple(sorted(constants.items())))(*tensors)


@cache
def _compile(function: Call, constants: tuple[tuple[str, Any], ...]) -> Call:
    torch._dynamo.config.recompile_limit = _SHAPES
    torch.compiler.assume_constant_result(builds_kernels)  # it is asked, not compiled
    given = dict(constants)
    return torch.compile(lambda *tensors: function(*tensors, **given))


class _Affine(NamedTuple):
    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, module: Any) -> "_Affine":
        return cls(module.weight, module.bias)


class _PostNormLayer(NamedTuple):
    query: _Affine
    key: _Affine
    value: _Affine
    output: _Affine
    norm: _Affine
    inner: _Affine
    outer: _Affine
    last_norm: _Affine


def _layer_weights(layer: Any, family: str) -> _PostNormLayer:
    if family == "mpnet":
        look = layer.attention.attn
        looks = (look.q, look.k, look.v, look.o)
        norm = layer.attention.LayerNorm
    else:
        look = getattr(layer.attention, "self")  # noqa: B009
        looks = (look.query, look.key, look.value, layer.attention.output.dense)
        norm = layer.attention.output.LayerNorm
    modules = (*looks, norm, layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm)
    return _PostNormLayer(*map(_Affine.of, modules))


def _post_norm(body: Any, packed: Packed, call: Call, places_R: Tensor | None) -> Tensor:
    """BERT's kind: absolute positions, LayerNorm after each sum, dropout."""
    config = body.config
    family = config.model_type
    parts = body.embeddings
    words = parts.word_embeddings
    first = (words.padding_idx or 0) + 1 if family in _COUNTED_FROM_PADDING else 0
    segments = getattr(parts, "token_type_embeddings", None)
    segments_T = packed.segments_T if getattr(config, "type_vocab_size", 0) > 1 else 0 * packed.segments_T
    eps = config.layer_norm_eps
    dropped = config.hidden_dropout_prob if body.training else 0.0
    hidden_TH = call(
        embed_sum,
        packed.tokens_T,
        packed.columns_T,
        segments_T,
        (words.weight, parts.position_embeddings.weight, None if segments is None else segments.weight),
        _Affine.of(parts.LayerNorm),
        first=first,
        eps=eps,
        dropped=dropped,
        dtype=working_dtype(packed.tokens_T.device.type),
    )
    attention_dropped = config.attention_probs_dropout_prob if body.training else 0.0
    table_AU = body.encoder.relative_attention_bias.weight.T.float() if family == "mpnet" else None
    bucket_R = _buckets(packed.longest, hidden_TH.device) if family == "mpnet" else None
    last = body.encoder.layer[-1]
    for layer in body.encoder.layer:
        hidden_TH = call(
            post_norm_layer,
            hidden_TH,
            packed.borders,
            _layer_weights(layer, family),
            table_AU,
            bucket_R,
            places_R if layer is last else None,
            longest=packed.longest,
            heads=config.num_attention_heads,
            dropped=dropped,
            attention_dropped=attention_dropped,
            eps=eps,
        )
    return hidden_TH


def embed_sum(
    tokens_T: Tensor,
    columns_T: Tensor,
    segments_T: Tensor,
    tables: tuple[Tensor, Tensor, Tensor | None],
    norm: _Affine,
    **given: Any,
) -> Tensor:
    """Embeddings of word, position and segment, summed."""
    words_VH, positions_LH, kinds_SH = tables
    sum_TH = F.embedding(tokens_T, words_VH) + F.embedding(columns_T + given["first"], positions_LH)
    if kinds_SH is not None:
        sum_TH = sum_TH + F.embedding(segments_T, kinds_SH)
    normed_TH = F.layer_norm(sum_TH, sum_TH.shape[1:], *norm, given["eps"]).to(given["dtype"])
    return F.dropout(normed_TH, given["dropped"])


def post_norm_layer(
    hidden_TH: Tensor,
    borders: Tensor,
    weights: _PostNormLayer,
    table_AU: Tensor | None,
    bucket_R: Tensor | None,
    places_R: Tensor | None,
    **given: Any,
) -> Tensor:
    """Self-attention and feed-forward, each followed by LayerNorm over its sum with what came in."""
    looks = (weights.query, weights.key, weights.value)
    weight = torch.cat([look.weight for look in looks])
    bias = torch.cat([look.bias for look in looks])
    qkv_T3AC = F.linear(hidden_TH, weight, bias).unflatten(-1, (3, given["heads"], -1))
    distance = None if table_AU is None or bucket_R is None else Distance(table_AU, bucket_R)
    seen_TAC = attend_qkv(
        qkv_T3AC,
        borders,
        longest=given["longest"],
        dropped=given["attention_dropped"],
        distance=distance,
    )
    seen_TH = seen_TAC.flatten(1)
    if places_R is not None:
        seen_TH = seen_TH.index_select(0, places_R)
        hidden_TH = hidden_TH.index_select(0, places_R)

    def add(new_TH: Tensor, norm: _Affine, old_TH: Tensor) -> Tensor:
        return add_norm(new_TH, old_TH, *norm, eps=given["eps"], dropped=given["dropped"])

    hidden_TH = add(F.linear(seen_TH, *weights.output), weights.norm, hidden_TH)
    inner = gelu_linear(hidden_TH, *weights.inner)
    return add(F.linear(inner, *weights.outer), weights.last_norm, hidden_TH)


def gelu_linear(hidden_TH: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(hidden · weightᵀ + bias). In half precision on a GPU, where no gradient is needed, one kernel does
    both: it takes GELU by tanh, at most 0.0005 away, where half precision itself is 0.002 away from 1."""
    half = hidden_TH.dtype in (torch.bfloat16, torch.float16)
    if not (hidden_TH.is_cuda and half) or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return F.gelu(F.linear(hidden_TH, weight, bias))
    weight, bias = (part.to(hidden_TH.dtype) for part in (weight, bias))
    return torch._addmm_activation(bias, hidden_TH, weight.T, use_gelu=True)


def working_dtype(device: str) -> torch.dtype:
    """What products come out in: here the vectors between them are kept in it too."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32


_BUCKETS = 32
_FARTHEST = 128


@cache
@torch.inference_mode(False)  # what is kept from embedding an index is needed for gradients later
def _buckets(longest: int, device: torch.device) -> Tensor:
    """The bucket of each distance from 1 − longest to longest − 1, as MPNet counts them: exact when near, in
    growing steps when far, those behind apart from those ahead."""
    distance_R = torch.arange(1 - longest, longest)
    half = _BUCKETS // 2
    near = half // 2
    far_R = distance_R.abs()
    steps_R = (torch.log(far_R.float() / near) / math.log(_FARTHEST / near) * (half - near)).long()
    bucket_R = torch.where(far_R < near, far_R, (near + steps_R).clamp(max=half - 1))
    return (bucket_R + half * (distance_R > 0)).to(device, torch.int32)


class _ModernLayer(NamedTuple):
    norm: Tensor | None  # the first layer has none
    look: Tensor
    output: Tensor
    last_norm: Tensor
    inner: Tensor
    outer: Tensor


def _modern(body: Any, packed: Packed, call: Call, places_R: Tensor | None) -> Tensor:
    """ModernBERT: rotary positions, LayerNorm before each part, gated feed-forward, dropout."""
    config = body.config
    eps = config.norm_eps
    words_VH = body.embeddings.tok_embeddings.weight
    drops = (config.embedding_dropout, config.attention_dropout, config.mlp_dropout)
    at_first, attention_dropped, dropped = drops if body.training else (0.0, 0.0, 0.0)
    norm_H = body.embeddings.norm.weight
    hidden_TH = call(embed_words, packed.tokens_T, words_VH, norm_H, eps=eps, dropped=at_first)
    half = config.hidden_size // config.num_attention_heads // 2
    turns_C = torch.arange(half, device=hidden_TH.device).float() / half
    theta = config.rope_parameters["full_attention"]["rope_theta"]
    angle_TC = packed.columns_T[:, None].float() * theta**-turns_C
    cos_TC = angle_TC.cos()
    sin_TC = angle_TC.sin()
    last = body.layers[-1]
    for layer in body.layers:
        norm = getattr(layer.attn_norm, "weight", None)
        modules = (layer.attn.Wqkv, layer.attn.Wo, layer.mlp_norm, layer.mlp.Wi, layer.mlp.Wo)
        weights = _ModernLayer(norm, *(module.weight for module in modules))
        heads = config.num_attention_heads
        given = {"longest": packed.longest, "heads": heads, "eps": eps}
        given |= {"attention_dropped": attention_dropped, "dropped": dropped}
        chosen_R = places_R if layer is last else None
        turned = (cos_TC, sin_TC)
        hidden_TH = call(modern_layer, hidden_TH, packed.borders, turned, weights, chosen_R, **given)
    return F.layer_norm(hidden_TH, hidden_TH.shape[1:], body.final_norm.weight, None, eps)


def embed_words(tokens_T: Tensor, words_VH: Tensor, norm_H: Tensor, *, eps: float, dropped: float) -> Tensor:
    """Word embeddings, normed."""
    return F.dropout(
        F.layer_norm(F.embedding(tokens_T, words_VH), words_VH.shape[1:], norm_H, None, eps), dropped
    )


def modern_layer(
    hidden_TH: Tensor,
    borders: Tensor,
    turned: tuple[Tensor, Tensor],
    weights: _ModernLayer,
    places_R: Tensor | None,
    **given: Any,
) -> Tensor:
    """Self-attention and gated feed-forward, each added to what came in."""
    size = hidden_TH.shape[1:]
    eps = given["eps"]
    attention_dropped = given["attention_dropped"]
    normed_TH = hidden_TH if weights.norm is None else F.layer_norm(hidden_TH, size, weights.norm, None, eps)
    # not chunk: the gradient of rotation and chunk together takes four times as long (docs/log.md)
    parts = F.linear(normed_TH, weights.look).unflatten(-1, (3, given["heads"], -1)).unbind(1)
    query_TAC, key_TAC = (_rotated(part_TAC, *turned) for part_TAC in parts[:2])
    seen_TAC = attend(
        query_TAC, key_TAC, parts[2], borders, longest=given["longest"], dropped=attention_dropped
    )
    seen_TH = seen_TAC.flatten(1)
    if places_R is not None:
        seen_TH = seen_TH.index_select(0, places_R)
        hidden_TH = hidden_TH.index_select(0, places_R)
    hidden_TH = hidden_TH + F.dropout(F.linear(seen_TH, weights.output), attention_dropped)
    normed_TH = F.layer_norm(hidden_TH, size, weights.last_norm, None, eps)
    inner, gate = F.linear(normed_TH, weights.inner).chunk(2, dim=-1)
    return hidden_TH + F.linear(F.dropout(F.gelu(inner) * gate, given["dropped"]), weights.outer)


def _rotated(part_TAC: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
    first, second = part_TAC.float().chunk(2, dim=-1)
    cos_T1C = cos_TC[:, None]
    sin_T1C = sin_TC[:, None]
    turned = (first * cos_T1C - second * sin_T1C, second * cos_T1C + first * sin_T1C)
    return torch.cat(turned, dim=-1).to(part_TAC.dtype)
