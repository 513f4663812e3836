# mypy: disable-error-code="no-untyped-def,import-not-found,import-untyped,untyped-decorator"
# Kernels are written in Triton, which has no types of Python.
"""The kernels of attention within sequences that lie end to end (realmlm.model.attention), in Triton.

T wordpieces of all sequences, A heads of C numbers; a program has a sequence and a head, and tiles of
M queries and N keys. Scores and their sums are in units of log 2, for a GPU has a power of two and no other.
"""

import triton
import triton.language as tl

from realmlm.model.dropout_kernels import column_keys, row_keys, stay, table_key

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rows(pointer, rows, columns, stride, length):
    """Rows [.., C] of a sequence, 0 past its end."""
    return tl.load(
        pointer + rows[:, None] * stride + columns[None, :], mask=rows[:, None] < length, other=0.0
    )


@triton.jit
def _bias(Line, head, apart, reach):
    """What is added to scores for how far apart key and query stand; past the end of a sequence it is read
    from within the line."""
    within = tl.minimum(tl.maximum(apart, 1 - reach), reach - 1)
    return tl.load(Line + head * (2 * reach - 1) + reach - 1 + within) * LOG2E


@triton.jit
def _no_sequence(pointer, first, past, share, shares, row, columns, BLOCK: tl.constexpr):
    """Zeros for wordpieces past the last border, each share of the programs its part."""
    zeros = tl.zeros((BLOCK, columns.shape[0]), dtype=pointer.dtype.element_ty)
    for start in range(first + share * BLOCK, past, shares * BLOCK):
        rows = start + tl.arange(0, BLOCK)
        places = pointer + rows[:, None].to(tl.int64) * row + columns[None, :]
        tl.store(places, zeros, mask=rows[:, None] < past)


@triton.jit(do_not_specialize=["total", "sequences", "tiles", "reach", "border"])
def forward(
    Query,
    Key,
    Value,
    Borders,
    Seed,
    Line,
    Out,
    Sums,
    query_row,
    query_head,
    key_row,
    key_head,
    value_row,
    value_head,
    total,
    sequences,
    tiles,
    reach,
    border,
    kept,
    scale,
    A: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    FILLING: tl.constexpr,
    DROPS: tl.constexpr,
    LINE: tl.constexpr,
):
    """What M queries of a sequence see [M, C], and the logarithm of their sum of exponentials."""
    tile = tl.program_id(0) % tiles
    pair = tl.program_id(0) // tiles
    head = pair % A
    sequence = pair // A
    columns = tl.arange(0, C)
    first = tl.load(Borders + tl.minimum(sequence, sequences))
    Out += head * C
    if sequence >= sequences:
        share = (sequence - sequences) * tiles + tile
        _no_sequence(Out, first, total, share, tiles * FILLING, A * C, columns, M)
        return
    length = tl.load(Borders + sequence + 1) - first
    if tile * M >= length:
        return
    first = first.to(tl.int64)
    Key += first * key_row + head * key_head
    Value += first * value_row + head * value_head
    rows = tile * M + tl.arange(0, M)
    query = _rows(Query + first * query_row + head * query_head, rows, columns, query_row, length)
    if DROPS:
        queries = row_keys(table_key(Seed, pair), rows)
    highest = tl.full((M,), float("-inf"), dtype=tl.float32)
    sums = tl.zeros((M,), dtype=tl.float32)
    seen = tl.zeros((M, C), dtype=tl.float32)
    for start in range(0, length, N):
        keys = start + tl.arange(0, N)
        key = _rows(Key, keys, columns, key_row, length)
        value = _rows(Value, keys, columns, value_row, length)
        scores = tl.dot(query, tl.trans(key))
        scores = scores * (scale * LOG2E) + tl.where(keys < length, 0.0, float("-inf"))[None, :]
        if LINE:
            scores += _bias(Line, head, keys[None, :] - rows[:, None], reach)
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        shrunk = tl.exp2(highest - higher)
        weights = tl.exp2(scores - higher[:, None])
        sums = sums * shrunk + tl.sum(weights, axis=1)
        if DROPS:
            weights = tl.where(stay(queries[:, None], column_keys(keys)[None, :], border), weights, 0.0)
        seen = tl.dot(weights.to(value.dtype), value, seen * shrunk[:, None])
        highest = higher
    seen = seen * (kept / sums)[:, None]
    places = Out + first * (A * C) + rows[:, None] * (A * C) + columns[None, :]
    tl.store(places, seen.to(Out.dtype.element_ty), mask=rows[:, None] < length)
    tl.store(Sums + head.to(tl.int64) * total + first + rows, highest + tl.log2(sums), mask=rows < length)


@triton.jit(do_not_specialize=["total", "sequences", "reach", "border", "line_width", "line_middle"])
def backward(
    Query,
    Key,
    Value,
    Borders,
    Seed,
    Line,
    Out,
    Sums,
    Grad,
    DQuery,
    DKey,
    DValue,
    Unfinished,
    DLine,
    query_row,
    query_head,
    key_row,
    key_head,
    value_row,
    value_head,
    grad_row,
    grad_head,
    dquery_row,
    dkey_row,
    dvalue_row,
    total,
    sequences,
    reach,
    border,
    kept,
    scale,
    line_width,
    line_middle,
    A: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    FILLING: tl.constexpr,
    WHOLE: tl.constexpr,
    DROPS: tl.constexpr,
    LINE: tl.constexpr,
    LINE_LEARNS: tl.constexpr,
):
    """Gradients of a sequence's queries, keys and values for one head.

    N keys stay on the chip while all queries pass by; what these bring to the gradient of a query is complete
    where all keys fit (WHOLE), and is otherwise gathered in float32. Nothing is added up by two programs.
    """
    pair = tl.program_id(0)
    head = pair % A
    sequence = pair // A
    columns = tl.arange(0, C)
    first = tl.load(Borders + tl.minimum(sequence, sequences))
    DQuery += head * C
    DKey += head * C
    DValue += head * C
    if sequence >= sequences:
        share = sequence - sequences
        _no_sequence(DQuery, first, total, share, FILLING, dquery_row, columns, M)
        _no_sequence(DKey, first, total, share, FILLING, dkey_row, columns, M)
        _no_sequence(DValue, first, total, share, FILLING, dvalue_row, columns, M)
        return
    length = tl.load(Borders + sequence + 1) - first
    first = first.to(tl.int64)
    Query += first * query_row + head * query_head
    Key += first * key_row + head * key_head
    Value += first * value_row + head * value_head
    Grad += first * grad_row + head * grad_head
    Out += first * (A * C) + head * C
    Sums += head.to(tl.int64) * total + first
    DQuery += first * dquery_row
    Unfinished += first * (A * C) + head * C
    DLine += pair.to(tl.int64) * line_width + line_middle
    for start_key in range(0, length, N):
        keys = start_key + tl.arange(0, N)
        key = _rows(Key, keys, columns, key_row, length)
        value = _rows(Value, keys, columns, value_row, length)
        dkey = tl.zeros((N, C), dtype=tl.float32)
        dvalue = tl.zeros((N, C), dtype=tl.float32)
        for start in range(0, length, M):
            rows = start + tl.arange(0, M)
            query = _rows(Query, rows, columns, query_row, length)
            grad = _rows(Grad, rows, columns, grad_row, length)
            out = _rows(Out, rows, columns, A * C, length)
            sums = tl.load(Sums + rows, mask=rows < length, other=float("inf"))
            mean = tl.sum(out.to(tl.float32) * grad.to(tl.float32), axis=1)
            scores = tl.dot(key, tl.trans(query)) * (scale * LOG2E) - sums[None, :]
            if LINE:
                scores += _bias(Line, head, keys[:, None] - rows[None, :], reach)
            weights = tl.exp2(tl.where(keys[:, None] < length, scores, float("-inf")))
            dweights = tl.dot(value, tl.trans(grad))
            if DROPS:
                queries = row_keys(table_key(Seed, pair), rows)
                stays = stay(queries[None, :], column_keys(keys)[:, None], border)
                dweights = tl.where(stays, dweights * kept, 0.0)
                dvalue = tl.dot(tl.where(stays, weights * kept, 0.0).to(grad.dtype), grad, dvalue)
            else:
                dvalue = tl.dot(weights.to(grad.dtype), grad, dvalue)
            dscores = weights * (dweights - mean[None, :])
            if LINE_LEARNS:
                _add_diagonals(DLine, dscores, start_key - start)
            dscores = dscores.to(query.dtype)
            dkey = tl.dot(dscores, query, dkey)
            dquery = tl.dot(tl.trans(dscores), key) * scale
            inside = rows[:, None] < length
            places = DQuery + rows[:, None] * dquery_row + columns[None, :]
            if WHOLE:
                tl.store(places, dquery.to(DQuery.dtype.element_ty), mask=inside)
            else:
                gathered = Unfinished + rows[:, None] * (A * C) + columns[None, :]
                if start_key > 0:
                    dquery += tl.load(gathered, mask=inside, other=0.0)
                if start_key + N < length:
                    tl.store(gathered, dquery, mask=inside)
                else:
                    tl.store(places, dquery.to(DQuery.dtype.element_ty), mask=inside)
        inside = keys[:, None] < length
        places = DKey + first * dkey_row + keys[:, None] * dkey_row + columns[None, :]
        tl.store(places, (dkey * scale).to(DKey.dtype.element_ty), mask=inside)
        places = DValue + first * dvalue_row + keys[:, None] * dvalue_row + columns[None, :]
        tl.store(places, dvalue.to(DValue.dtype.element_ty), mask=inside)
        if not WHOLE:
            tl.debug_barrier()  # what was gathered is read by other threads than those that wrote it


@triton.jit
def _add_diagonals(DLine, dscores, apart):
    """Adds a tile [N, M] up along each distance of key and query, to what this program has added before.

    Row j is turned by j, so that column c holds the distances c + m · M for a few m, which are told apart.
    """
    N: tl.constexpr = dscores.shape[0]
    M: tl.constexpr = dscores.shape[1]
    rows = tl.arange(0, N)[:, None]
    columns = tl.arange(0, M)
    taken = (rows - columns[None, :] + M) % M
    turned = tl.gather(dscores, taken, axis=1)
    number = (rows - taken - columns[None, :] + M) // M
    for m in tl.static_range((N + M - 1) // M + 1):
        places = DLine + apart + (m - 1) * M + columns
        some = tl.sum(tl.where(number == m, turned, 0.0), axis=0)
        tl.debug_barrier()  # the threads of a program add to the same places in turn
        tl.store(places, tl.load(places) + some)
