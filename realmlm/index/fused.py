# mypy: disable-error-code="import-not-found,import-untyped"
"""Exact maximum inner product search on a GPU in one pass over half-precision vectors, written in Triton.

How it is fast: tensor cores multiply the queries with every passage, and of each group of 64 passages only
the maximum leaves the chip. The best groups are looked into again, with scores in float32.

Why it is exact: a query is rounded to half precision, or to the sum of two such numbers, before it is
multiplied; products are summed in float32 in some order. By Cauchy and Schwarz a group's maximum is off by
at most ε = ‖v‖max · (‖what rounding left‖ + c · ‖q‖), known for each query. k groups have a maximum of at
least m, the k-th largest, so the k-th best score is at least m − ε; a group that holds such a score has a
maximum of at least m − 2ε. If the last group looked into lies below that, no group that was left out
counts. Where it does not (many passages alike), the query is reported as undecided, and the caller
searches for it in another way.

A score is a function of query and passage alone, the same bits wherever the passage lies: equal passages
are equal hits, and the smallest id comes first.

Legend: Q queries, N passages (rows), D vector size, G groups, S coarse groups of groups, K hits, T groups
looked into.
"""

from dataclasses import dataclass
from functools import cache
from threading import Lock

import torch
import triton
from torch import Tensor

from realmlm.index.kernels import decode, gather, look, maxima, prepare, reduce

GROUP = 64  # passages reduced to one maximum
COARSE = 64  # groups reduced to one maximum
# groups looked into beyond the k that are needed, and one for every four of those: what rounding may have
# brought out of order
SPARE = 8
MOST_DIM = 1024
DIM_STEP = 16
MAXIMA_BYTES = 512 * 2**20  # scratch for maxima: so many queries are searched at a time
LOOKED_BYTES = 256 * 2**20  # scratch for what is looked into
_SPLIT_UP_TO = 64  # queries for which the second product costs nothing: the vectors are being waited for
_ONE_LEVEL = 2**12  # maxima up to which they are sorted through as they are
# scratch of a search that is worth recording, and how many are kept
_RECORDED_BYTES = 64 * 2**20
_RECORDED = 8
_SHARED_BYTES = 224 * 2**10  # memory of a multiprocessor that a program may use


@dataclass(frozen=True)
class Found:
    """Scores and rows of the best passages; rows of −1, with −inf, where there are none. Which queries are
    decided."""

    scores_QK: Tensor
    rows_QK: Tensor
    decided_Q: Tensor


def suits(vectors_ND: Tensor, k: int) -> bool:
    """Can these be searched so, and is it worth it? With k groups of 64 to look into, a large k is no less
    work than all passages."""
    count, dim = vectors_ND.shape
    half = vectors_ND.dtype in (torch.float16, torch.bfloat16)
    shaped = dim % DIM_STEP == 0 and dim <= MOST_DIM and vectors_ND.is_contiguous() and 0 < count < 2**31
    return vectors_ND.is_cuda and half and shaped and _taken(k) * GROUP * 4 <= max(count, 2**15)


def _taken(k: int) -> int:
    """How many groups are looked into."""
    return k + SPARE + k // 4


def largest_norm(vectors_ND: Tensor) -> Tensor:
    """‖v‖max [1], rounded up; to be computed once for an index."""
    largest = torch.zeros(1, device=vectors_ND.device)
    for some in vectors_ND.split(2**20):
        torch.maximum(
            largest, torch.linalg.vector_norm(some, dim=1, dtype=torch.float32).max()[None], out=largest
        )
    return largest * 1.0001


def search(
    vectors_ND: Tensor,
    queries_QD: Tensor,
    k: int,
    norm: Tensor,
    *,
    live_N: Tensor | None = None,
    rank_N: Tensor | None = None,
) -> Found:
    """The k best rows of each query. `live_N`: which rows count (None: all); `rank_N`: their order among
    equals (None: as they stand).

    With `rank_N` what is given as a row is its rank. Nothing here waits for the GPU.
    """
    groups = -(-len(vectors_ND) // GROUP)
    taken = min(_taken(k), groups)
    at_once = max(1, min(MAXIMA_BYTES // (4 * groups), LOOKED_BYTES // (12 * GROUP * taken)))
    parts = [
        _search(vectors_ND, some, k, taken, norm, live_N, rank_N)
        for some in queries_QD.float().contiguous().split(at_once)
    ]
    if len(parts) == 1:
        return parts[0]
    return Found(
        *(
            torch.cat([getattr(part, name) for part in parts])
            for name in ("scores_QK", "rows_QK", "decided_Q")
        )
    )


def _search(
    vectors_ND: Tensor,
    queries_QD: Tensor,
    k: int,
    taken: int,
    norm: Tensor,
    live_N: Tensor | None,
    rank_N: Tensor | None,
) -> Found:
    (count, dim) = vectors_ND.shape
    queries = len(queries_QD)
    device = vectors_ND.device
    split = queries <= _SPLIT_UP_TO or vectors_ND.dtype == torch.bfloat16
    halves = torch.empty(2 if split else 1, queries, dim, dtype=vectors_ND.dtype, device=device)
    error_Q = torch.empty(queries, device=device)
    prepare[(queries,)](
        queries_QD,
        halves,
        error_Q,
        norm,
        queries,
        dim,
        SPLIT=split,
        WIDTH=triton.next_power_of_2(dim),
        num_warps=1,
    )

    groups = -(-count // GROUP)
    maxima_GQ = torch.empty(groups, queries, device=device)
    _launch_maxima(vectors_ND, halves, maxima_GQ, live_N)

    coarse = -(-groups // COARSE)
    two_levels = coarse >= 2 * taken and groups * queries > _ONE_LEVEL
    if two_levels:
        maxima_QS = torch.empty(queries, coarse, device=device)
        block = min(64, max(16, triton.next_power_of_2(queries)))
        grid = (coarse, triton.cdiv(queries, block))
        reduce[grid](maxima_GQ, maxima_QS, groups, queries, coarse, SIZE=COARSE, BLOCK=block, num_warps=4)
        coarse_QT = maxima_QS.topk(taken, dim=1, sorted=False).indices
        fine_QF = torch.empty(queries, taken * COARSE, device=device)
        gather[(queries, taken)](
            maxima_GQ, coarse_QT, fine_QF, groups, queries, taken, SIZE=COARSE, num_warps=1
        )
    else:
        coarse_QT = error_Q.view(-1)  # not read
        fine_QF = maxima_GQ.t().contiguous()
    best_QT = fine_QF.topk(taken, dim=1)

    keys_QF = torch.empty(queries, taken * GROUP, dtype=torch.int64, device=device)
    given = (
        vectors_ND,
        queries_QD,
        best_QT.indices,
        coarse_QT,
        vectors_ND if live_N is None else live_N.view(torch.uint8),
    )
    flags = {
        "TWO": two_levels,
        "DEAD": live_N is not None,
        "RANKED": rank_N is not None,
        "SIZE": GROUP,
        "COARSE_SIZE": COARSE,
    }
    ranks = best_QT.indices if rank_N is None else rank_N
    look[(queries, taken)](
        *given,
        ranks,
        keys_QF,
        count,
        dim,
        taken,
        **flags,
        WIDTH=min(128, triton.next_power_of_2(dim)),
        num_warps=4,
    )
    kept = min(k, taken * GROUP)
    best_QK = keys_QF.topk(kept, dim=1).values
    scores_QK = torch.empty(queries, kept, device=device)
    rows_QK = torch.empty(queries, kept, dtype=torch.int64, device=device)
    decided_Q = torch.empty(queries, dtype=torch.bool, device=device)
    width = triton.next_power_of_2(kept)
    decode[(queries,)](
        best_QK,
        best_QT.values,
        error_Q,
        scores_QK,
        rows_QK,
        decided_Q,
        kept,
        min(k, taken),
        taken,
        ALL=taken == groups,
        WIDTH=width,
        num_warps=1,
    )
    return Found(scores_QK, rows_QK, decided_Q)


class Repeated:
    """Searches in the same vectors, again and again: one whose shape has come before is recorded and
    played back as one launch.

    That takes the program a tenth of the time, which is what few queries over few passages wait for.
    """

    def __init__(self, vectors_ND: Tensor, norm: Tensor, rank_N: Tensor | None) -> None:
        self._vectors_ND = vectors_ND
        self._norm = norm
        self._rank_N = rank_N
        self._seen: set[tuple[int, int, int]] = set()
        self._kept: dict[tuple[int, int, int], tuple[torch.cuda.CUDAGraph, Tensor, Found]] = {}
        self._lock = Lock()

    def search(self, queries_QD: Tensor, k: int, live_N: Tensor | None) -> Found:
        with torch.cuda.device_of(self._vectors_ND):  # Triton takes the current GPU, whatever these are on
            return self._search(queries_QD, k, live_N)

    def _search(self, queries_QD: Tensor, k: int, live_N: Tensor | None) -> Found:
        key = (len(queries_QD), k, 0 if live_N is None else live_N.data_ptr())
        small = 4 * len(queries_QD) * -(-len(self._vectors_ND) // GROUP) <= _RECORDED_BYTES
        if not small or torch.cuda.is_current_stream_capturing():
            return self._once(queries_QD, k, live_N)
        with self._lock:
            if key not in self._kept:
                if key not in self._seen:
                    self._seen.add(key)
                    return self._once(queries_QD, k, live_N)
                while len(self._kept) >= _RECORDED:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = self._record(queries_QD, k, live_N)
            graph, given_QD, found = self._kept[key]
            given_QD.copy_(queries_QD)
            graph.replay()
            return Found(found.scores_QK.clone(), found.rows_QK.clone(), found.decided_Q.clone())

    def _once(self, queries_QD: Tensor, k: int, live_N: Tensor | None) -> Found:
        return search(self._vectors_ND, queries_QD, k, self._norm, live_N=live_N, rank_N=self._rank_N)

    def _record(
        self, queries_QD: Tensor, k: int, live_N: Tensor | None
    ) -> tuple[torch.cuda.CUDAGraph, Tensor, Found]:
        given_QD = queries_QD.float().clone()
        graph = torch.cuda.CUDAGraph()
        # not `torch.cuda.graph`: it would wait for all work and give all cached memory back, while training
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                found = self._once(given_QD, k, live_N)
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        return graph, given_QD, found


@dataclass(frozen=True)
class Tiles:
    """How the pass over all vectors is cut: queries and passages of a tile, warps, tiles that are loaded
    ahead, programs a multiprocessor.

    `whole`: the queries of a tile stay on the chip; otherwise they are loaded again with every piece of
    the passages.
    """

    queries: int
    passages: int
    warps: int
    stages: int
    programs: int
    whole: bool = True

    def fits(self, dim: int, *, split: bool) -> bool:
        width = triton.cdiv(dim, _width(dim)) * _width(dim)
        ahead = self.stages - (self.queries < 64)
        return 2 * width * (self.queries * (1 + split) + self.passages * ahead) <= _SHARED_BYTES


def _width(dim: int) -> int:
    return min(128 if dim <= 512 else 256, triton.next_power_of_2(dim))


# What was fastest on an H200 (docs/log.md), the first that fits; all give the same maxima.
_FEW = (
    Tiles(16, 128, 4, 3, 2),
    Tiles(16, 64, 4, 3, 2),
    Tiles(16, 64, 4, 2, 2),
    Tiles(16, 64, 4, 3, 2, whole=False),
)
_NARROW = {
    64: Tiles(64, 64, 4, 4, 2),
    128: Tiles(128, 128, 8, 4, 1),
    256: Tiles(256, 128, 8, 3, 1),
}  # vectors of up to 128 numbers
_WIDE = {
    64: Tiles(64, 128, 4, 4, 2, whole=False),
    128: Tiles(128, 128, 8, 3, 2, whole=False),
    256: Tiles(128, 256, 8, 3, 1, whole=False),
}


@cache
def tiles(queries: int, dim: int, split: bool) -> Tiles:
    """How the pass for so many queries is cut."""
    if queries <= 16:
        return next(some for some in _FEW if not some.whole or some.fits(dim, split=split))
    known = _NARROW if dim <= 128 else _WIDE
    return known[64 if queries <= 64 else 128 if queries <= 128 or (split and dim <= 128) else 256]


def _launch_maxima(
    vectors_ND: Tensor, halves: Tensor, maxima_GQ: Tensor, live_N: Tensor | None, chosen: Tiles | None = None
) -> None:
    (count, dim) = vectors_ND.shape
    (parts, queries, _) = halves.shape
    how = chosen or tiles(queries, dim, parts == 2)
    width = _width(dim) if how.whole else min(64, triton.next_power_of_2(dim))
    blocks = triton.cdiv(queries, how.queries)
    row_tiles = triton.cdiv(count, how.passages)
    side_by_side = max(1, min(row_tiles, how.programs * _multiprocessors(vectors_ND.device) // blocks))
    maxima[(side_by_side * blocks,)](
        vectors_ND,
        halves,
        vectors_ND if live_N is None else live_N.view(torch.uint8),
        maxima_GQ,
        count,
        queries,
        blocks,
        side_by_side,
        row_tiles,
        D=dim,
        WIDTH=width,
        CHUNKS=triton.cdiv(dim, width),
        BQ=how.queries,
        BN=how.passages,
        SIZE=GROUP,
        SPLIT=parts == 2,
        DEAD=live_N is not None,
        WHOLE=how.whole,
        num_warps=how.warps,
        num_stages=how.stages,
    )


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
