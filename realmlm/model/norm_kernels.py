# mypy: disable-error-code="no-untyped-def,import-not-found,import-untyped,untyped-decorator,assignment"
# Kernels are written in Triton, which has no types of Python.
"""The kernels of LayerNorm over a sum (realmlm.model.norms), in Triton.

T rows of H numbers; a program takes R rows at a time, each in parts of W numbers, for sizes in Triton are
powers of two and 384 is not. All parts lie alike in the threads, so that a row is added up part by part
within threads first and once between them.
"""

import triton
import triton.language as tl

from realmlm.model.dropout_kernels import column_keys, row_keys, stay, table_key


@triton.jit
def _columns(part, W: tl.constexpr):
    return part * W + tl.arange(0, W)


@triton.jit
def _inside(rows, total, part, H: tl.constexpr, W: tl.constexpr):
    """Which places of a part lie in the table."""
    inside = rows[:, None] < total
    return inside if (part + 1) * W <= H else inside & (_columns(part, W) < H)[None, :]


@triton.jit
def _vector(Vector, part, H: tl.constexpr, W: tl.constexpr):
    """A part of a weight or bias [1, W]."""
    columns = _columns(part, W)
    return tl.load(Vector + columns, mask=columns < H, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _vectors(Vector, H: tl.constexpr, W: tl.constexpr, PARTS: tl.constexpr):
    parts = ()
    for part in tl.static_range(PARTS):
        parts += (_vector(Vector, part, H, W),)
    return parts


@triton.jit
def _load(Table, rows, total, H: tl.constexpr, W: tl.constexpr, PARTS: tl.constexpr):
    """Rows in parts [R, W], 0 outside of the table."""
    parts = ()
    for part in tl.static_range(PARTS):
        places = Table + rows[:, None].to(tl.int64) * H + _columns(part, W)[None, :]
        parts += (tl.load(places, mask=_inside(rows, total, part, H, W), other=0.0).to(tl.float32),)
    return parts


@triton.jit
def _store(Table, number, rows, total, part, H: tl.constexpr, W: tl.constexpr):
    places = Table + rows[:, None].to(tl.int64) * H + _columns(part, W)[None, :]
    tl.store(places, number.to(Table.dtype.element_ty), mask=_inside(rows, total, part, H, W))


@triton.jit(do_not_specialize=["total", "border"])
def forward(
    New,
    Old,
    Weight,
    Bias,
    Seed,
    Out,
    Sum,
    Moments,
    total,
    border,
    kept,
    eps,
    H: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
    STAGES: tl.constexpr,
    DROPS: tl.constexpr,
    LEARNS: tl.constexpr,
):
    """LayerNorm(dropout(new) + old); for gradients also the sum and each row's mean and 1 / deviation."""
    PARTS: tl.constexpr = (H + W - 1) // W
    weight = _vectors(Weight, H, W, PARTS)
    bias = _vectors(Bias, H, W, PARTS)
    if DROPS:
        key = table_key(Seed, 0)
    for start in tl.range(tl.program_id(0) * R, total, tl.num_programs(0) * R, num_stages=STAGES):
        rows = start + tl.arange(0, R)
        new = _load(New, rows, total, H, W, PARTS)
        old = _load(Old, rows, total, H, W, PARTS)
        sums = ()
        whole = tl.zeros((R, W), dtype=tl.float32)
        for part in tl.static_range(PARTS):
            some = new[part]
            if DROPS:
                drawn = row_keys(key, rows)[:, None]
                stays = stay(drawn, column_keys(_columns(part, W))[None, :], border)
                some = tl.where(stays, some * kept, 0.0)
            some += old[part]
            whole += some
            if LEARNS:
                _store(Sum, some, rows, total, part, H, W)
            sums += (some,)
        mean = tl.sum(whole, axis=1) / H
        squares = tl.zeros((R, W), dtype=tl.float32)
        for part in tl.static_range(PARTS):
            apart = sums[part] - mean[:, None]
            if (part + 1) * W > H:
                apart = tl.where((_columns(part, W) < H)[None, :], apart, 0.0)
            squares += apart * apart
        scale = tl.rsqrt(tl.sum(squares, axis=1) / H + eps)
        if LEARNS:
            tl.store(Moments + rows, mean, mask=rows < total)
            tl.store(Moments + total + rows, scale, mask=rows < total)
        for part in tl.static_range(PARTS):
            normed = (sums[part] - mean[:, None]) * scale[:, None]
            _store(Out, normed * weight[part] + bias[part], rows, total, part, H, W)


@triton.jit(do_not_specialize=["total", "border"])
def backward(
    Grad,
    Sum,
    Moments,
    Weight,
    Seed,
    DOld,
    DNew,
    DAffine,
    total,
    border,
    kept,
    H: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
    STAGES: tl.constexpr,
    DROPS: tl.constexpr,
    AFFINE_LEARNS: tl.constexpr,
):
    """Gradients of old and new, and what this program's rows bring to those of weight and bias [2, H]."""
    PARTS: tl.constexpr = (H + W - 1) // W
    weight = _vectors(Weight, H, W, PARTS)
    dweight = ()
    dbias = ()
    for _ in tl.static_range(PARTS if AFFINE_LEARNS else 0):
        dweight += (tl.zeros((R, W), dtype=tl.float32),)
        dbias += (tl.zeros((R, W), dtype=tl.float32),)
    if DROPS:
        key = table_key(Seed, 0)
    for start in tl.range(tl.program_id(0) * R, total, tl.num_programs(0) * R, num_stages=STAGES):
        rows = start + tl.arange(0, R)
        grad = _load(Grad, rows, total, H, W, PARTS)
        sums = _load(Sum, rows, total, H, W, PARTS)
        mean = tl.load(Moments + rows, mask=rows < total, other=0.0)[:, None]
        scale = tl.load(Moments + total + rows, mask=rows < total, other=0.0)[:, None]
        level = tl.zeros((R, W), dtype=tl.float32)
        slope = tl.zeros((R, W), dtype=tl.float32)
        dweight_before = dweight
        dbias_before = dbias
        dweight = ()
        dbias = ()
        for part in tl.static_range(PARTS):
            normed = (sums[part] - mean) * scale
            level += grad[part] * weight[part]
            slope += grad[part] * weight[part] * normed
            if AFFINE_LEARNS:
                dweight += (dweight_before[part] + grad[part] * normed,)
                dbias += (dbias_before[part] + grad[part],)
        level = (tl.sum(level, axis=1) / H)[:, None]
        slope = (tl.sum(slope, axis=1) / H)[:, None]
        for part in tl.static_range(PARTS):
            normed = (sums[part] - mean) * scale
            dsum = (grad[part] * weight[part] - level - normed * slope) * scale
            _store(DOld, dsum, rows, total, part, H, W)
            if DROPS:
                drawn = row_keys(key, rows)[:, None]
                stays = stay(drawn, column_keys(_columns(part, W))[None, :], border)
                _store(DNew, tl.where(stays, dsum * kept, 0.0), rows, total, part, H, W)
    DAffine += tl.program_id(0) * 2 * H
    for part in tl.static_range(PARTS if AFFINE_LEARNS else 0):
        columns = _columns(part, W)
        tl.store(DAffine + columns, tl.sum(dweight[part], axis=0), mask=columns < H)
        tl.store(DAffine + H + columns, tl.sum(dbias[part], axis=0), mask=columns < H)
