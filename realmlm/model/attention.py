"""Attention within short sequences that lie end to end, forwards and backwards: no padding is computed.

On a GPU it is written in Triton (realmlm.model.attention_kernels), made for sequences of a few hundred
wordpieces and small heads, where what is done to each score costs more than the products do: scores are
computed once forwards and once backwards. A program backwards has a whole sequence, so that nothing is added
up in an order that changes: gradients are the same bits every time. Nothing waits for the GPU, so that it can
be part of a CUDA graph; for torch.compile it is one operation. Elsewhere plain torch does the same.

T wordpieces of all S sequences, A heads of C numbers, U buckets of distances, R the most distance + 1.
"""

import importlib.util
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from realmlm.device import builds_kernels

LONGEST = 1024
HEADS = (16, 32, 64, 128)  # sizes of a head that there are tiles for
_FILLING = 16  # programs a head that write zeros where wordpieces belong to no sequence
_SEEDS = 2**31 - 1
# kernels are run by Triton's interpreter, on a CPU: that is for tests
INTERPRETED = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True)
class Distance:
    """A learned number that is added to a score for how far apart query and key stand (MPNet, T5)."""

    table_AU: Tensor
    """A number a head and bucket, float32; gradients go into it."""
    bucket_R: Tensor
    """The bucket of each distance [2R − 1]: of a key j and a query i at j − i + R − 1."""

    def line(self) -> Tensor:
        """The number for each distance [A, 2R − 1]."""
        return self.table_AU.float()[:, self.bucket_R].contiguous()


def attend(
    query_TAC: Tensor,
    key_TAC: Tensor,
    value_TAC: Tensor,
    borders: Tensor,
    *,
    longest: int,
    dropped: float = 0.0,
    distance: Distance | None = None,
) -> Tensor:
    """What each wordpiece sees in its own sequence [T, A, C]; 0 where it belongs to none.

    Sequence s is `borders[s]` to `borders[s + 1]` (int32, on the device) and may be empty; none is longer
    than `longest`. The three may be views of one product (with C side by side). `dropped`: dropout of the
    probabilities.
    """
    return _attend([query_TAC, key_TAC, value_TAC], borders, longest, dropped, distance)


def attend_qkv(
    qkv_T3AC: Tensor,
    borders: Tensor,
    *,
    longest: int,
    dropped: float = 0.0,
    distance: Distance | None = None,
) -> Tensor:
    """As `attend`, of a product that holds queries, keys and values: its gradient is one tensor as well."""
    return _attend([qkv_T3AC], borders, longest, dropped, distance)


def _attend(
    parts: list[Tensor], borders: Tensor, longest: int, dropped: float, distance: Distance | None
) -> Tensor:
    line = None if distance is None else distance.line()
    if not _by_kernels(parts[0]):
        return _plain(parts, borders, dropped, line)
    seed = dropout_seed(dropped, borders.device)
    seen, _ = _forward(parts, borders, seed, line, longest, dropped)
    return seen


def _by_kernels(part: Tensor) -> bool:
    return INTERPRETED or (for_kernels(part) and part.shape[-1] in HEADS)


def for_kernels(part: Tensor) -> bool:
    """Is it in half precision on a GPU that kernels can be built for, or are kernels interpreted?"""
    half = part.dtype in (torch.float16, torch.bfloat16)
    return INTERPRETED or (part.is_cuda and half and builds_kernels())


def dropout_seed(dropped: float, device: torch.device) -> Tensor | None:
    """What kernels draw from; nothing waits for it."""
    return torch.randint(_SEEDS, (1,), dtype=torch.int32, device=device) if dropped > 0 else None


def dropout_options(seed: Tensor | None, dropped: float) -> dict[str, Any]:
    """What kernels that drop take."""
    return {
        "border": round(dropped * 2**32) - 2**31,  # of signed numbers
        "kept": 1 / (1 - dropped),
        "DROPS": seed is not None,
    }


def _three(parts: list[Tensor]) -> list[Tensor]:
    return list(parts[0].unbind(1)) if len(parts) == 1 else parts


# --- plain torch --------------------------------------------------------------------------------------------


def _plain(parts: list[Tensor], borders: Tensor, dropped: float, line: Tensor | None) -> Tensor:
    """Sequence by sequence; it waits for the borders."""
    query_TAC, key_TAC, value_TAC = _three(parts)
    ends = borders.tolist()
    seen = []
    for first, past in pairwise(ends):
        if past > first:
            query, key, value = (part[first:past].transpose(0, 1) for part in (query_TAC, key_TAC, value_TAC))
            bias = None if line is None else _bias(line, past - first).to(query_TAC.dtype)
            seen.append(F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropped))
    rest = query_TAC.new_zeros(query_TAC.shape[1], len(query_TAC) - ends[-1], query_TAC.shape[2])
    return torch.cat([*seen, rest], 1).transpose(0, 1)


def _bias(line: Tensor, length: int) -> Tensor:
    places = torch.arange(length, device=line.device)
    return line[:, places[None, :] - places[:, None] + line.shape[1] // 2]


# --- kernels ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tiles:
    """How a kernel cuts a sequence: queries and keys of a tile, warps, tiles that are loaded ahead, and the
    most registers of a thread (None: as the compiler likes): 168 let three programs of four warps share a
    multiprocessor, 128 four."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None


# The fastest on an H200 (benchmarks/attention.py --sweep, 2026-11-16); where a distance is added or heads are
# large, those that spill least. What a distance adds is not loaded ahead: that would be number by number.
def forward_tiles(size: int, *, line: bool) -> Tiles:
    return Tiles(64, 32 if line and size > 64 else 64, 4, 1 if line or size > 64 else 3)


def backward_tiles(size: int, *, line_learns: bool) -> Tiles:
    if size > 64:
        return Tiles(32, 32, 4, 1) if line_learns else Tiles(32, 64, 8, 1)
    if line_learns:
        return Tiles(32, 64, 4, 1)
    return Tiles(64, 64, 4, 1, 168) if size <= 32 else Tiles(64, 128, 8, 2)


def launch_forward(
    parts: list[Tensor],
    borders: Tensor,
    seed: Tensor | None,
    line: Tensor | None,
    longest: int,
    dropped: float,
    tiles: Tiles,
) -> tuple[Tensor, Tensor]:
    """What is seen [T, A, C], and the logarithm to base 2 of each query's sum of exponentials [A, T]."""
    from realmlm.model.attention_kernels import forward

    query, key, value = _three(parts)
    total, heads, size = query.shape
    assert borders.dtype == torch.int32
    assert longest <= LONGEST
    out = query.new_empty(total, heads, size)
    sums = torch.empty(heads, total, dtype=torch.float32, device=query.device)
    side_by_side = -(-longest // tiles.queries)
    forward[((len(borders) - 1 + _FILLING) * heads * side_by_side,)](
        query,
        key,
        value,
        borders,
        seed,
        line,
        out,
        sums,
        *_strides(query, key, value),
        total,
        len(borders) - 1,
        side_by_side,
        **_shared(size, heads, seed, line, dropped, tiles),
    )
    return out, sums


def launch_backward(
    kept: list[Tensor],
    parts: list[Tensor],
    borders: Tensor,
    seed: Tensor | None,
    line: Tensor | None,
    line_learns: bool,
    options: tuple[int, float],
    tiles: Tiles,
) -> list[Tensor]:
    """Gradients of the parts, then of the line where it learns. `kept`: the gradient of what was seen, what
    was seen, and the sums; `options`: `longest` and `dropped`."""
    from realmlm.model.attention_kernels import backward

    longest, dropped = options
    grad, out, sums = kept
    if grad.stride(-1) != 1:
        grad = grad.contiguous()
    query, key, value = _three(parts)
    total, heads, size = query.shape
    whole = longest <= tiles.keys
    dparts = [torch.empty(part.shape, dtype=part.dtype, device=part.device) for part in parts]
    dquery, dkey, dvalue = _three(dparts)
    unfinished = query.new_empty(0 if whole else query.numel(), dtype=torch.float32)
    middle = -(-longest // tiles.queries) * tiles.queries
    width = middle + -(-longest // tiles.keys) * tiles.keys + tiles.queries
    sequences = len(borders) - 1
    dlines = sums.new_zeros(sequences if line_learns else 0, heads, width)
    backward[((sequences + _FILLING) * heads,)](
        query,
        key,
        value,
        borders,
        seed,
        line,
        out,
        sums,
        grad,
        dquery,
        dkey,
        dvalue,
        unfinished,
        dlines,
        *_strides(query, key, value, grad),
        dquery.stride(0),
        dkey.stride(0),
        dvalue.stride(0),
        total,
        sequences,
        line_width=width,
        line_middle=middle,
        WHOLE=whole,
        LINE_LEARNS=line_learns,
        **_shared(size, heads, seed, line, dropped, tiles),
    )
    if line is None or not line_learns:
        return dparts
    reach = line.shape[1] // 2 + 1
    assert longest <= reach, (longest, reach)
    dline = dlines.sum(0)[:, middle - longest + 1 : middle + longest]
    return [*dparts, F.pad(dline, (reach - longest, reach - longest))]


def _strides(*parts: Tensor) -> list[int]:
    return [part.stride(place) for part in parts for place in (0, 1)]


def _shared(
    size: int, heads: int, seed: Tensor | None, line: Tensor | None, dropped: float, tiles: Tiles
) -> dict[str, Any]:
    """What both kernels take."""
    return {
        "reach": 0 if line is None else line.shape[1] // 2 + 1,
        **dropout_options(seed, dropped),
        "scale": 1 / math.sqrt(size),
        "A": heads,
        "C": size,
        "M": tiles.queries,
        "N": tiles.keys,
        "FILLING": _FILLING,
        "LINE": line is not None,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
        "maxnreg": tiles.registers,
    }


_NUMBERS = "Tensor borders, Tensor? seed, Tensor? line"
_operation: Callable[..., Any] = torch.library.custom_op


@_operation(
    "realmlm::attend",
    mutates_args=(),
    schema=f"(Tensor[] parts, {_NUMBERS}, SymInt longest, float dropped) -> (Tensor, Tensor)",
)
def _forward(
    parts: list[Tensor],
    borders: Tensor,
    seed: Tensor | None,
    line: Tensor | None,
    longest: int,
    dropped: float,
) -> tuple[Tensor, Tensor]:
    parts = [part if part.stride(-1) == 1 else part.contiguous() for part in parts]
    tiles = forward_tiles(parts[0].shape[-1], line=line is not None)
    with torch.cuda.device_of(parts[0]):  # Triton takes the current GPU, whatever the tensors are on
        return launch_forward(parts, borders, seed, line, longest, dropped, tiles)


@_forward.register_fake
def _(parts: list[Tensor], *_: Any) -> tuple[Tensor, Tensor]:
    query = _three(parts)[0]
    total, heads, size = query.shape
    return query.new_empty(total, heads, size), query.new_empty(heads, total, dtype=torch.float32)


@_operation(
    "realmlm::attend_backward",
    mutates_args=(),
    schema=f"(Tensor[] kept, Tensor[] parts, {_NUMBERS}, bool line_learns, SymInt longest, float dropped)"
    " -> Tensor[]",
)
def _backward(
    kept: list[Tensor],
    parts: list[Tensor],
    borders: Tensor,
    seed: Tensor | None,
    line: Tensor | None,
    line_learns: bool,
    longest: int,
    dropped: float,
) -> list[Tensor]:
    parts = [part if part.stride(-1) == 1 else part.contiguous() for part in parts]
    tiles = backward_tiles(parts[0].shape[-1], line_learns=line_learns)
    with torch.cuda.device_of(parts[0]):
        return launch_backward(kept, parts, borders, seed, line, line_learns, (longest, dropped), tiles)


@_backward.register_fake
def _(
    kept: list[Tensor],
    parts: list[Tensor],
    borders: Tensor,
    seed: Tensor | None,
    line: Tensor | None,
    line_learns: bool,
    *_: Any,
) -> list[Tensor]:
    like = [part.new_empty(part.shape) for part in parts]
    return [*like, line.new_empty(line.shape)] if line is not None and line_learns else like


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    parts, borders, seed, line, ctx.longest, ctx.dropped = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, borders, seed, line, *parts)


def _gradients(ctx: Any, grad: Tensor, _: None) -> tuple[Any, ...]:
    out, sums, borders, seed, line, *parts = ctx.saved_tensors
    line_learns = ctx.needs_input_grad[3]
    grads = _backward([grad, out, sums], parts, borders, seed, line, line_learns, ctx.longest, ctx.dropped)
    return grads[: len(parts)], None, None, grads[-1] if line_learns else None, None, None


_forward.register_autograd(_gradients, setup_context=_keep)
