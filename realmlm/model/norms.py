"""LayerNorm over a sum with dropout, as BERT's kind has it after attention and after feed-forward: one pass
over the memory forwards and one backwards.

On a GPU it is written in Triton (realmlm.model.norm_kernels). What is dropped is drawn again backwards, and
nothing is added up in an order that changes: gradients are the same bits every time. Nothing waits for the
GPU, so that it can be part of a CUDA graph; for torch.compile it is one operation. Elsewhere plain torch does
the same.

T rows of H numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from realmlm.model.attention import dropout_options, dropout_seed, for_kernels

WIDEST = 1024


def add_norm(
    new_TH: Tensor, old_TH: Tensor, weight_H: Tensor, bias_H: Tensor, *, eps: float, dropped: float = 0.0
) -> Tensor:
    """LayerNorm(dropout(new) + old) [T, H], in the type of `new`."""
    given = (new_TH, old_TH.to(new_TH.dtype), weight_H, bias_H)
    if not for_kernels(new_TH) or new_TH.shape[1] > WIDEST:
        return _plain(*given, eps, dropped)
    learns = torch.is_grad_enabled() and any(part.requires_grad for part in given)
    normed, _, _ = _forward(*given, dropout_seed(dropped, new_TH.device), eps, dropped, learns)
    return normed


def _plain(
    new_TH: Tensor, old_TH: Tensor, weight_H: Tensor, bias_H: Tensor, eps: float, dropped: float
) -> Tensor:
    sum_TH = F.dropout(new_TH, dropped) + old_TH
    with torch.autocast(sum_TH.device.type, enabled=False):  # it would copy all of it to float32 first
        weight_H, bias_H = (part.to(sum_TH.dtype) for part in (weight_H, bias_H))
        return F.layer_norm(sum_TH, sum_TH.shape[1:], weight_H, bias_H, eps)


# --- kernels ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tiles:
    """How a kernel walks over the rows: how many at a time, in parts of how many numbers, by how many warps,
    how many of them loaded ahead (1: none), the most registers of a thread (None: as the compiler likes), and
    how many programs there are for each multiprocessor."""

    rows: int
    width: int
    warps: int
    stages: int
    programs: int
    registers: int | None = None


# A warp has a row, so that a row is added up without a barrier. As many programs as there are registers for
# on sm_90, where none spills: one more than fit would walk when all others are done.
def forward_tiles(size: int) -> Tiles:
    width = 128 if size <= 512 else 256
    return Tiles(4, width, 4, 1, min(10, 2304 // _padded(size, width)))


def backward_tiles(size: int) -> Tiles:
    if size <= 512:
        return Tiles(4, 128, 4, 1, min(10, 1920 // _padded(size, 128)))
    return Tiles(4, 256, 4, 2, 3, 168) if size <= 768 else Tiles(4, 256, 4, 1, 2)


def _padded(size: int, width: int) -> int:
    return -(-size // width) * width


def launch_forward(
    parts: list[Tensor], seed: Tensor | None, eps: float, dropped: float, learns: bool, tiles: Tiles
) -> tuple[Tensor, Tensor, Tensor]:
    """What is normed; where gradients are to come, also the sum [T, H], and each row's mean and 1 / deviation
    [2, T]. `parts`: new, old, weight and bias."""
    from realmlm.model.norm_kernels import forward

    new, old, weight, bias = (part.contiguous() for part in parts)
    out = torch.empty_like(new)
    kept_rows = len(new) if learns else 0
    sums = new.new_empty(kept_rows, new.shape[1])
    moments = new.new_empty(2, kept_rows, dtype=torch.float32)
    forward[(_programs(new, tiles),)](
        new,
        old,
        weight,
        bias,
        seed,
        out,
        sums,
        moments,
        len(new),
        eps=eps,
        LEARNS=learns,
        **_shared(new, seed, dropped, tiles),
    )
    return out, sums, moments


def launch_backward(
    kept: list[Tensor],
    weight: Tensor,
    seed: Tensor | None,
    dropped: float,
    affine_learns: bool,
    tiles: Tiles,
) -> list[Tensor]:
    """Gradients of old, of new where it is another, and of weight and bias in float32 [2, H] where they
    learn. `kept`: the gradient of what was normed, the sum and the moments."""
    from realmlm.model.norm_kernels import backward

    grad, sums, moments = (part.contiguous() for part in kept)
    programs = _programs(sums, tiles)
    dold = torch.empty_like(sums)
    dnew = None if seed is None else torch.empty_like(sums)
    daffine = moments.new_empty(programs if affine_learns else 0, 2, sums.shape[1])
    backward[(programs,)](
        grad,
        sums,
        moments,
        weight.contiguous(),
        seed,
        dold,
        dnew,
        daffine,
        len(sums),
        AFFINE_LEARNS=affine_learns,
        **_shared(sums, seed, dropped, tiles),
    )
    return [
        dold,
        *([] if dnew is None else [dnew]),
        *([daffine.sum(0)] if affine_learns else []),
    ]


def _programs(rows: Tensor, tiles: Tiles) -> int:
    return min(-(-len(rows) // tiles.rows), tiles.programs * _multiprocessors(rows.device))


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _shared(rows: Tensor, seed: Tensor | None, dropped: float, tiles: Tiles) -> dict[str, Any]:
    """What both kernels take."""
    return {
        **dropout_options(seed, dropped),
        "H": rows.shape[1],
        "R": tiles.rows,
        "W": tiles.width,
        "STAGES": tiles.stages,
        "num_warps": tiles.warps,
        "maxnreg": tiles.registers,
    }


_operation: Callable[..., Any] = torch.library.custom_op


@_operation(
    "realmlm::add_norm",
    mutates_args=(),
    schema="(Tensor new, Tensor old, Tensor weight, Tensor bias, Tensor? seed, float eps, float dropped,"
    " bool learns) -> (Tensor, Tensor, Tensor)",
)
def _forward(
    new: Tensor,
    old: Tensor,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor | None,
    eps: float,
    dropped: float,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    tiles = forward_tiles(new.shape[1])
    with torch.cuda.device_of(new):  # Triton takes the current GPU, whatever the tensors are on
        return launch_forward([new, old, weight, bias], seed, eps, dropped, learns, tiles)


@_forward.register_fake
def _(new: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    total, size = new.shape
    kept_rows = total if rest[-1] else 0
    moments = new.new_empty(2, kept_rows, dtype=torch.float32)
    return new.new_empty(total, size), new.new_empty(kept_rows, size), moments


@_operation(
    "realmlm::add_norm_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor sums, Tensor moments, Tensor weight, Tensor? seed, float dropped,"
    " bool affine_learns) -> Tensor[]",
)
def _backward(
    grad: Tensor,
    sums: Tensor,
    moments: Tensor,
    weight: Tensor,
    seed: Tensor | None,
    dropped: float,
    affine_learns: bool,
) -> list[Tensor]:
    tiles = backward_tiles(sums.shape[1])
    with torch.cuda.device_of(sums):
        return launch_backward([grad, sums, moments], weight, seed, dropped, affine_learns, tiles)


@_backward.register_fake
def _(
    grad: Tensor,
    sums: Tensor,
    moments: Tensor,
    weight: Tensor,
    seed: Tensor | None,
    dropped: float,
    affine_learns: bool,
) -> list[Tensor]:
    tables = [sums.new_empty(sums.shape) for _ in range(1 if seed is None else 2)]
    return [*tables, moments.new_empty(2, sums.shape[1])] if affine_learns else tables


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, _, weight, bias, seed, _, ctx.dropped, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.types = (weight.dtype, bias.dtype)
    ctx.save_for_backward(*output[1:], weight, seed)


def _gradients(ctx: Any, grad: Tensor, *_: None) -> tuple[Any, ...]:
    sums, moments, weight, seed = ctx.saved_tensors
    needed = ctx.needs_input_grad[2:4]
    dold, *rest = _backward(grad, sums, moments, weight, seed, ctx.dropped, any(needed))
    dnew = dold if seed is None else rest[0]
    daffine = rest[-1].unbind(0) if any(needed) else (None, None)
    affine = [
        part.to(dtype) if need else None for part, dtype, need in zip(daffine, ctx.types, needed, strict=True)
    ]
    return dnew, dold, *affine, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_keep)
