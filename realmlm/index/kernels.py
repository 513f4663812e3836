# mypy: disable-error-code="no-untyped-def,import-not-found,import-untyped,untyped-decorator"
# Kernels are written in Triton, which has no types of Python.
"""The kernels of the search for GPUs (realmlm.index.fused), in Triton.

Q queries, N passages (rows), D vector size, R rows of a tile.
"""

import triton
import triton.language as tl


@triton.jit
def prepare(Queries, Halves, Errors, Norm, queries, dim, SPLIT: tl.constexpr, WIDTH: tl.constexpr):
    """A query in half precision, scaled by a power of two so that nothing over- or underflows, and ε in
    that scale."""
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    inside = columns < dim
    query = tl.load(Queries + row * dim + columns, mask=inside, other=0.0)
    exponent = (tl.max(tl.abs(query), axis=0).to(tl.int32, bitcast=True) >> 23) & 255
    # largest number: 128 to 256
    scale = (tl.minimum(tl.maximum(261 - exponent, 1), 254) << 23).to(tl.float32, bitcast=True)
    query = query * scale
    high = query.to(Halves.dtype.element_ty)
    left = query - high.to(tl.float32)
    tl.store(Halves + row * dim + columns, high, mask=inside)
    # D · 2^-22: sums on tensor cores (D · 2^-23 · 18/16) and of the final scores (D · 2^-24)
    roundings = dim * 2.384185791015625e-07
    if SPLIT:
        low = left.to(Halves.dtype.element_ty)
        left = left - low.to(tl.float32)
        tl.store(Halves + (queries + row) * dim + columns, low, mask=inside)
        roundings = roundings * 2
    error = tl.load(Norm) * (
        tl.sqrt(tl.sum(left * left, axis=0)) + roundings * tl.sqrt(tl.sum(query * query, axis=0))
    )
    tl.store(Errors + row, error * 1.001 + 1e-30)


@triton.jit
def _part(pointer, rows, limit, chunk, columns, D: tl.constexpr, WIDTH: tl.constexpr):
    """Rows [R, WIDTH] of a matrix with D columns, from column chunk · WIDTH on."""
    places = pointer + rows[:, None].to(tl.int64) * D + chunk * WIDTH + columns[None, :]
    if D % WIDTH == 0:
        return tl.load(places, mask=rows[:, None] < limit, other=0.0)
    return tl.load(places, mask=(rows[:, None] < limit) & (chunk * WIDTH + columns[None, :] < D), other=0.0)


@triton.jit
def maxima(
    Vectors,
    Halves,
    Live,
    Maxima,
    count,
    queries,
    blocks,
    side_by_side,
    row_tiles,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNKS: tl.constexpr,
    BQ: tl.constexpr,
    BN: tl.constexpr,
    SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    DEAD: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """The largest score of each group for each query. A program keeps its queries and goes through every
    so-many-th tile of passages."""
    block = tl.program_id(0) % blocks
    first = tl.program_id(0) // blocks
    own = block * BQ + tl.arange(0, BQ)
    columns = tl.arange(0, WIDTH)
    low = Halves + queries * D
    if WHOLE:  # a list would do if Triton had one
        tl.static_assert(CHUNKS <= 4)
        high0 = _part(Halves, own, queries, 0, columns, D, WIDTH)
        if CHUNKS > 1:
            high1 = _part(Halves, own, queries, 1, columns, D, WIDTH)
        if CHUNKS > 2:
            high2 = _part(Halves, own, queries, 2, columns, D, WIDTH)
        if CHUNKS > 3:
            high3 = _part(Halves, own, queries, 3, columns, D, WIDTH)
        if SPLIT:
            low0 = _part(low, own, queries, 0, columns, D, WIDTH)
            if CHUNKS > 1:
                low1 = _part(low, own, queries, 1, columns, D, WIDTH)
            if CHUNKS > 2:
                low2 = _part(low, own, queries, 2, columns, D, WIDTH)
            if CHUNKS > 3:
                low3 = _part(low, own, queries, 3, columns, D, WIDTH)
    for tile in range(first, row_tiles, side_by_side):
        rows = tile * BN + tl.arange(0, BN)
        if WHOLE:
            part0 = tl.trans(_part(Vectors, rows, count, 0, columns, D, WIDTH))
            scores = tl.dot(high0, part0)
            if SPLIT:
                scores = tl.dot(low0, part0, scores)
            if CHUNKS > 1:
                part1 = tl.trans(_part(Vectors, rows, count, 1, columns, D, WIDTH))
                scores = tl.dot(high1, part1, scores)
                if SPLIT:
                    scores = tl.dot(low1, part1, scores)
            if CHUNKS > 2:
                part2 = tl.trans(_part(Vectors, rows, count, 2, columns, D, WIDTH))
                scores = tl.dot(high2, part2, scores)
                if SPLIT:
                    scores = tl.dot(low2, part2, scores)
            if CHUNKS > 3:
                part3 = tl.trans(_part(Vectors, rows, count, 3, columns, D, WIDTH))
                scores = tl.dot(high3, part3, scores)
                if SPLIT:
                    scores = tl.dot(low3, part3, scores)
        else:
            scores = tl.zeros((BQ, BN), dtype=tl.float32)
            for chunk in range(CHUNKS):
                part = tl.trans(_part(Vectors, rows, count, chunk, columns, D, WIDTH))
                scores = tl.dot(_part(Halves, own, queries, chunk, columns, D, WIDTH), part, scores)
                if SPLIT:
                    scores = tl.dot(_part(low, own, queries, chunk, columns, D, WIDTH), part, scores)
        if DEAD:
            alive = tl.load(Live + rows, mask=rows < count, other=0)
            scores = tl.where(alive[None, :] != 0, scores, float("-inf"))
        elif tile == row_tiles - 1:  # zeros past the end are no passages
            scores = tl.where(rows[None, :] < count, scores, float("-inf"))
        best = tl.max(tl.reshape(scores, (BQ, BN // SIZE, SIZE)), axis=2)
        groups = tile * (BN // SIZE) + tl.arange(0, BN // SIZE)
        places = Maxima + groups[None, :].to(tl.int64) * queries + own[:, None]
        tl.store(places, best, mask=(own[:, None] < queries) & (groups[None, :] * SIZE < count))


@triton.jit
def reduce(Maxima, Coarse, groups, queries, coarse, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The maximum of each run of SIZE groups, one row a query."""
    place = tl.program_id(0)
    own = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rows = place * SIZE + tl.arange(0, SIZE)
    inside = (rows[:, None] < groups) & (own[None, :] < queries)
    some = tl.load(
        Maxima + rows[:, None].to(tl.int64) * queries + own[None, :], mask=inside, other=float("-inf")
    )
    tl.store(Coarse + own.to(tl.int64) * coarse + place, tl.max(some, axis=0), mask=own < queries)


@triton.jit
def gather(Maxima, Chosen, Fine, groups, queries, taken, SIZE: tl.constexpr):
    """The maxima of the groups in a coarse group that was chosen."""
    query = tl.program_id(0)
    slot = tl.program_id(1)
    rows = tl.load(Chosen + query * taken + slot) * SIZE + tl.arange(0, SIZE)
    some = tl.load(Maxima + rows.to(tl.int64) * queries + query, mask=rows < groups, other=float("-inf"))
    tl.store(Fine + (query.to(tl.int64) * taken + slot) * SIZE + tl.arange(0, SIZE), some)


@triton.jit
def look(
    Vectors,
    Queries,
    Best,
    Coarse,
    Live,
    Ranks,
    Keys,
    count,
    dim,
    taken,
    TWO: tl.constexpr,
    DEAD: tl.constexpr,
    RANKED: tl.constexpr,
    SIZE: tl.constexpr,
    COARSE_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Scores in float32 of the passages of a group, each with its rank as one number that sorts by score,
    then by rank."""
    query = tl.program_id(0)
    slot = tl.program_id(1)
    group = tl.load(Best + query * taken + slot)
    if TWO:
        group = tl.load(Coarse + query * taken + group // COARSE_SIZE) * COARSE_SIZE + group % COARSE_SIZE
    rows = group.to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = rows < count
    sums = tl.zeros((SIZE, WIDTH), dtype=tl.float32)
    for first in range(0, dim, WIDTH):
        columns = first + tl.arange(0, WIDTH)
        vectors = tl.load(
            Vectors + rows[:, None] * dim + columns[None, :],
            mask=inside[:, None] & (columns[None, :] < dim),
            other=0.0,
        )
        own = tl.load(Queries + query.to(tl.int64) * dim + columns, mask=columns < dim, other=0.0)
        sums += vectors.to(tl.float32) * own[None, :]
    scores = tl.sum(sums, axis=1) + 0.0  # no -0: it would sort below 0
    counted = inside
    if DEAD:
        counted = inside & (tl.load(Live + rows, mask=inside, other=0) != 0)
    bits = scores.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)  # sorts as the numbers do
    ranks = rows
    if RANKED:
        ranks = tl.load(Ranks + rows, mask=inside, other=0).to(tl.int64)
    keys = (bits << 32) | (0xFFFFFFFF - ranks)
    keys = tl.where(counted, keys, -0x8000000000000000)
    tl.store(Keys + (query.to(tl.int64) * taken + slot) * SIZE + tl.arange(0, SIZE), keys)


@triton.jit
def decode(Keys, Best, Errors, Scores, Rows, Decided, kept, k, taken, ALL: tl.constexpr, WIDTH: tl.constexpr):
    """Scores and ranks of the keys, and whether nothing that was left out can count."""
    query = tl.program_id(0)
    places = tl.arange(0, WIDTH)
    keys = tl.load(Keys + query * kept + places, mask=places < kept, other=0)
    bits = (keys >> 32).to(tl.int32)
    scores = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
    there = keys != -0x8000000000000000
    tl.store(Scores + query * kept + places, tl.where(there, scores, float("-inf")), mask=places < kept)
    tl.store(
        Rows + query * kept + places,
        tl.where(there, 0xFFFFFFFF - (keys & 0xFFFFFFFF), -1),
        mask=places < kept,
    )
    last = tl.load(Best + query * taken + taken - 1)
    error = tl.load(Errors + query)
    needed = tl.load(Best + query * taken + k - 1) - 2 * error
    decided = (last < needed) | (last == float("-inf")) | ALL
    tl.store(Decided + query, decided & (error < float("inf")))  # never where a query holds NaN or infinity
