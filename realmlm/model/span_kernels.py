# mypy: disable-error-code="no-untyped-def,import-not-found,import-untyped,untyped-decorator"
# Kernels are written in Triton, which has no types of Python.
"""The kernel of the span head (realmlm.model.packed_heads), in Triton: nothing of the size of all spans'
hidden vectors is ever in memory."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["total"])
def score_spans(
    StartEnd,
    Slope,
    Level,
    Scores,
    total,
    widths,
    eps,
    S: tl.constexpr,
    COLUMNS: tl.constexpr,
    R: tl.constexpr,
):
    """Of spans that begin at R wordpieces, of all widths: LayerNorm(relu(start + end)) · output, where Slope
    is the norm's weight times the output's and Level what the biases bring."""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.arange(0, COLUMNS)
    inside = (columns < S)[None, :]
    slope = tl.load(Slope + columns, mask=columns < S, other=0.0)[None, :]
    level = tl.load(Level)
    starts = StartEnd + rows[:, None].to(tl.int64) * (2 * S) + columns[None, :]
    start = tl.load(starts, mask=inside & (rows < total)[:, None], other=0.0).to(tl.float32)
    for width in range(widths):
        there = inside & (rows + width < total)[:, None]
        end = tl.load(starts + (width * 2 * S + S), mask=there, other=0.0).to(tl.float32)
        span = tl.where(inside, tl.maximum(start + end, 0.0), 0.0)
        mean = tl.sum(span, axis=1) / S
        apart = tl.where(inside, span - mean[:, None], 0.0)
        scale = tl.rsqrt(tl.sum(apart * apart, axis=1) / S + eps)
        score = tl.sum(apart * slope, axis=1) * scale + level
        tl.store(Scores + rows.to(tl.int64) * widths + width, score, mask=rows < total)
