"""BERT's encoder as quickly as a CPU computes it, for models that answer and learn no more.

Most of the work are products with the layers' matrices. They can be computed in float32, in bfloat16 or,
with matrices held in 8 bits, in 8 bits; which is fastest depends on the CPU and is measured once (`fastest`).
All else stays in float32, and nothing is computed for padding.

N sequences, L wordpieces in the longest, T in all of them, H hidden size, A heads, R rows and C columns of a
matrix.
"""

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from realmlm.heap import keep_freed
from realmlm.model.bert import Bert, Hidden
from realmlm.model.int8 import Int8Linear

_ALIGNED = 16  # numbers in a register of AVX-512: attention over other lengths takes a quarter longer
_MEASURED = (128, 384, 1536)  # wordpieces, columns and rows of the product that is timed
_TURNS = 10
_WORTH = 1.1  # a way that rounds more must be this much faster
_CLOSE = 0.02  # and give what float32 gives, up to this part of the largest number
_FINER = 254  # steps in one step: half a step up and down are 127
_LEAST_GELU = -0.17
_APART = 8
_USUAL_LARGEST = 4  # of numbers that a LayerNorm has normed


class BFloat16:
    """x · Wᵀ + b in bfloat16, for one layer or several over the same x; what comes out is float32."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._weight_RC = torch.cat([layer.weight.detach() for layer in layers]).bfloat16()
        self._bias_R = torch.cat([layer.bias.detach() for layer in layers]).bfloat16()

    def __call__(self, x_TC: Tensor, firsts: int) -> Tensor:
        return F.linear(x_TC.bfloat16(), self._weight_RC, self._bias_R).float()


class EightBits:
    """The same with matrices as they are held in 8 bits, and x rounded to 8 bits, each row by a scale of its
    own: what comes out for a wordpiece does not depend on what else is computed with it.

    What is rounded off the first rows is computed too: they are [CLS] and [SEP] of all sequences. Where a
    head has nothing to look for it looks there: what they are off by would be added to every wordpiece.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._rows_RC = torch.cat([layer.rows_RC for layer in layers])
        self._packed = torch.ops.onednn.qlinear_prepack(self._rows_RC, None)
        self._scale_R = torch.cat([layer.scale_R for layer in layers])
        self._bias_R = torch.cat([layer.bias.detach() for layer in layers])
        self._zero_R = torch.zeros(len(self._scale_R), dtype=torch.int64)

    def __call__(self, x_TC: Tensor, firsts: int) -> Tensor:
        scale_T1 = _scale(x_TC)
        return self._times(x_TC * scale_T1.reciprocal(), firsts).mul_(scale_T1).add_(self._bias_R)

    def _times(self, x_TC: Tensor, firsts: int) -> Tensor:
        """The product with x from −128 to 127, which is overwritten."""
        rows = len(x_TC)
        steps_tC = torch.empty(rows + firsts, x_TC.shape[1], dtype=torch.int8)  # and what is rounded off
        rest_FC = x_TC[:firsts].clone()
        steps_tC[:rows] = x_TC.round_()
        steps_tC[rows:] = rest_FC.sub_(x_TC[:firsts]).mul_(_FINER).round_()
        # oneDNN is fast for unsigned numbers alone: 128 more is the highest bit flipped
        shifted_tC = steps_tC.bitwise_xor_(-128).view(torch.uint8)
        given = (shifted_tC, 1.0, 128, self._packed, self._scale_R, self._zero_R, None, 1.0, 0)
        out_tR = torch.ops.onednn.qlinear_pointwise(*given, torch.float32, "none", [], "none")
        out_tR[:firsts].add_(out_tR[rows:], alpha=1 / _FINER)
        return out_tR[:rows]


class EightBitsAfterGelu(EightBits):
    """The same for x from gelu: never less than −0.17, so that no step of 8 bits is spent on that side. What
    is given is overwritten."""

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__(layers)
        sum_R = self._scale_R * self._rows_RC.sum(1)
        self._least_R = 128 * sum_R
        self._bias_R = self._bias_R + _LEAST_GELU * sum_R

    def __call__(self, x_TC: Tensor, firsts: int) -> Tensor:
        scale_T1 = x_TC.amax(-1, keepdim=True).sub_(_LEAST_GELU).div_(255)
        steps_T1 = scale_T1.reciprocal()
        from_least_TC = x_TC.mul_(steps_T1).sub_(_LEAST_GELU * steps_T1 + 128)
        return self._times(from_least_TC, firsts).add_(self._least_R).mul_(scale_T1).add_(self._bias_R)


class EightBitsAfterNorm(EightBits):
    """The same for x from a LayerNorm. In BERT a few columns are far larger than the others, mostly those
    where the norm's own weights are: they are computed in float32, and the scale is that of the others."""

    def __init__(self, layers: Sequence[Any], norm: Any) -> None:
        super().__init__(layers)
        sizes_C = _USUAL_LARGEST * norm.weight.detach().abs() + norm.bias.detach().abs()
        self._apart_K = sizes_C.topk(min(_APART, len(sizes_C))).indices
        apart_KR = (self._rows_RC[:, self._apart_K] * self._scale_R[:, None]).T
        self._apart_KR = torch.cat([apart_KR, self._bias_R[None]])

    def __call__(self, x_TC: Tensor, firsts: int) -> Tensor:
        apart_TK = F.pad(x_TC.index_select(1, self._apart_K), (0, 1), value=1.0)  # a 1 for the bias
        x_TC = x_TC.index_fill(1, self._apart_K, 0.0)
        scale_T1 = _scale(x_TC)
        out_TR = self._times(x_TC.mul_(scale_T1.reciprocal()), firsts)
        return out_TR.mul_(scale_T1).addmm_(apart_TK, self._apart_KR)


def _scale(x_TC: Tensor) -> Tensor:
    """One step of 8 bits in each row."""
    largest_T1 = torch.maximum(x_TC.amax(-1, keepdim=True), -x_TC.amin(-1, keepdim=True))
    return largest_T1.clamp_(min=1e-20).div_(127)


Product = Callable[[Tensor, int], Tensor]
"""Of x [T, C] and a matrix; the first so many rows of x are those of [CLS] and [SEP]."""


class Way(NamedTuple):
    """How the products of a layer are computed, so that what comes out stays close to float32."""

    usual: Callable[[Sequence[Any]], Product]
    after_norm: Callable[[Sequence[Any], Any], Product]
    after_gelu: Callable[[Sequence[Any]], Product]


BFLOAT16 = Way(BFloat16, lambda layers, _: BFloat16(layers), BFloat16)
EIGHT_BITS = Way(EightBits, EightBitsAfterNorm, EightBitsAfterGelu)


@cache
def fastest(int8: bool) -> Way | None:
    """How this CPU is fastest, 8 bits only with matrices held so (`int8`); None: in float32.

    A way that rounds more must be a tenth faster. One that this torch or CPU does not have is left out, and
    so is one that gives something else: without VNNI, sums of products in 8 bits may overflow.
    """
    rows, columns, outputs = _MEASURED
    random = torch.Generator().manual_seed(0)
    x_TC = torch.randn(rows, columns, generator=random)
    matrix_RC = torch.randint(-127, 128, (outputs, columns), generator=random, dtype=torch.int8)
    x_TC[0] = 1.0  # the largest sums there are
    matrix_RC[0] = 127
    with torch.random.fork_rng(devices=[]):  # layers draw their weights; what is trained draws on as before
        layer = Int8Linear(nn.Linear(columns, outputs), matrix_RC, torch.full((outputs,), 1 / 127))
        plain = nn.Linear(columns, outputs)
    with torch.inference_mode():
        plain.weight.copy_(layer.weight)
        plain.bias.copy_(layer.bias)
        products: dict[Way | None, Product] = {None: lambda x_TC, _: plain(x_TC)}
        exact_TR = plain(x_TC)
        for way in (BFLOAT16, EIGHT_BITS) if int8 else (BFLOAT16,):
            try:
                product = way.usual([layer])
                far = (product(x_TC, 1) - exact_TR).abs().max() / exact_TR.abs().max()
            except (RuntimeError, AttributeError):
                continue
            if far <= _CLOSE:
                products[way] = product
        seconds = _seconds(products, x_TC)
    best: Way | None = None
    for other, taken in seconds.items():
        if taken * _WORTH < seconds[best]:
            best = other
    return best


def _seconds(products: dict[Way | None, Product], x_TC: Tensor) -> dict[Way | None, float]:
    """The shortest time of each, in turns and by one thread alone, its waiting not counted: what else the
    machine does then changes little."""
    seconds = dict.fromkeys(products, float("inf"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(_TURNS):
            for way, product in products.items():
                begun = time.thread_time()
                product(x_TC, 1)
                seconds[way] = min(seconds[way], time.thread_time() - begun)
    finally:
        torch.set_num_threads(threads)
    return seconds


class QuickBert:
    """What a Bert gives, without gradient, by products of one kind.

    With `finely`, what comes from gelu is multiplied in bfloat16 in the first half of the layers, where
    rounding it to 8 bits matters most: choosing among spans is closer than choosing among passages.
    """

    def __init__(self, bert: Bert, way: Way, *, finely: bool = False) -> None:
        keep_freed()
        layers: Any = bert.encoder["layer"]
        self._embeddings: Any = bert.embeddings
        self._heads = bert.config.num_attention_heads
        fine = len(layers) // 2 if finely else 0
        self._layers = [_QuickLayer(layer, way, finely=place < fine) for place, layer in enumerate(layers)]

    def __call__(self, tokens_NL: Tensor, attention_NL: Tensor, segments_NL: Tensor) -> Hidden:
        mask_NL = attention_NL.bool()
        last_N = tokens_NL[torch.arange(len(mask_NL)), mask_NL.sum(1) - 1]
        special_NL = mask_NL & torch.isin(tokens_NL, torch.cat([tokens_NL[:, 0], last_N]).unique())
        groups = [each_NL.nonzero() for each_NL in (special_NL, mask_NL & ~special_NL)]
        # kernels are made for a number of wordpieces, each in a millisecond: the last is computed again
        counted = 2 * len(groups[0]) + len(groups[1])  # of the first, what is rounded off too
        groups.append(groups[-1][-1:].repeat(-counted % _ALIGNED, 1))
        rows_T, columns_T = torch.cat(groups).T
        parts = self._embeddings
        sum_TH = parts["word_embeddings"](tokens_NL[rows_T, columns_T])
        sum_TH += parts["token_type_embeddings"](segments_NL[rows_T, columns_T])
        hidden_TH = parts["LayerNorm"](sum_TH + parts["position_embeddings"](columns_T))
        attend = _Attention(mask_NL, rows_T, columns_T, self._heads)
        for layer in self._layers:
            hidden_TH = layer(hidden_TH, attend, len(groups[0]))
        hidden_NLH = hidden_TH.new_zeros(*mask_NL.shape, hidden_TH.shape[1])
        hidden_NLH[rows_T, columns_T] = hidden_TH
        return Hidden(hidden_NLH)

    def __deepcopy__(self, memo: object) -> None:
        """A copy of its model makes its own: packed matrices cannot be copied."""


class _Attention:
    """Attention within sequences that lie end to end: each is laid out in a row of a width that suits."""

    def __init__(self, mask_NL: Tensor, rows_T: Tensor, columns_T: Tensor, heads: int) -> None:
        count, length = mask_NL.shape
        padded_NL = F.pad(mask_NL, (0, -length % _ALIGNED))
        self._places_T = rows_T * padded_NL.shape[1] + columns_T
        self._rows = (count, padded_NL.shape[1], 3, heads)
        # what is padding gets the vectors of some wordpiece: nothing looks at them
        self._sources_P = torch.zeros(padded_NL.numel(), dtype=torch.int64)
        self._sources_P[self._places_T] = torch.arange(len(rows_T))
        self._bias_N1LL: Tensor | None = None
        if not padded_NL.all():
            bias_NL = torch.zeros(padded_NL.shape).masked_fill_(~padded_NL, -torch.inf)
            self._bias_N1LL = bias_NL[:, None, None, :].expand(-1, 1, padded_NL.shape[1], -1)

    def __call__(self, looks_T3H: Tensor) -> Tensor:
        laid_out = looks_T3H.index_select(0, self._sources_P).view(*self._rows, -1)
        query_NALC, key_NALC, value_NALC = laid_out.permute(2, 0, 3, 1, 4)
        seen_NALC = F.scaled_dot_product_attention(
            query_NALC, key_NALC, value_NALC, attn_mask=self._bias_N1LL
        )
        return seen_NALC.transpose(1, 2).flatten(0, 1).flatten(1).index_select(0, self._places_T)


class _QuickLayer:
    def __init__(self, layer: Any, way: Way, *, finely: bool) -> None:
        looks = layer.attention["self"]
        self._looks = way.usual([looks["query"], looks["key"], looks["value"]])
        self._seen = way.usual([layer.attention["output"]["dense"]])
        self._seen_norm = layer.attention["output"]["LayerNorm"]
        self._inner = way.after_norm([layer.intermediate["dense"]], self._seen_norm)
        self._outer = (BFLOAT16 if finely else way).after_gelu([layer.output["dense"]])
        self._outer_norm = layer.output["LayerNorm"]

    def __call__(self, hidden_TH: Tensor, attend: _Attention, firsts: int) -> Tensor:
        seen_TH = self._seen(attend(self._looks(hidden_TH, firsts)), firsts)
        hidden_TH = self._seen_norm(seen_TH.add_(hidden_TH))
        inner_TR = torch.ops.aten.gelu_(self._inner(hidden_TH, firsts))
        return self._outer_norm(self._outer(inner_TR, firsts).add_(hidden_TH))
