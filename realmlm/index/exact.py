"""Exact maximum inner product search with torch, and the interface that every index has.

How it is fast: the scores of a chunk of passages are reduced to the maximum of each group of 64, and only
groups whose maximum reaches the k-th best score so far are looked into (`_take_best` draws an example). After
the first chunks these are almost none, and the search costs little more than its matrix products.

Legend: Q queries, K hits each, E passages never among them, N passages, D vector size, C passages of a chunk,
G groups of a chunk, R queries with news in a chunk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from realmlm.device import builds_kernels
from realmlm.errors import BadInput, Diverged, NotEnough

GROUP = 64  # passages reduced to one maximum; 32 and 128 differed by less than 20%, on a busy machine
_NO_ID = torch.iinfo(torch.int64).max  # stands where no passage was found: sorts after every id
CPU_SCRATCH = 8 * 2**20  # bytes of scores computed at a time: what stays in cache
_DEVICE_SCRATCH = 512 * 2**20  # and what keeps a GPU busy
LEAST_CHUNK = 4096  # passages scored at a time, at least
PIECE = 4096  # rows converted or multiplied at a time on a CPU, to stay in cache
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Hits:
    """The best passages of each query: highest score first, equal scores by the smallest passage id."""

    scores_QK: Tensor
    ids_QK: Tensor


class Index(Protocol):
    """Passage vectors that can be searched by inner product and changed in place. A passage is live from when
    it is added until it is removed. A call that raises changes nothing."""

    @property
    def dim(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def ids(self) -> Tensor:
        """Ids of the live passages, ascending."""

    def __len__(self) -> int:
        """Number of live passages."""

    def search(self, queries_QD: Tensor, k: int, *, exclude_QE: Tensor | None = None) -> Hits:
        """The k best passages of each query, without those in its row of `exclude_QE` (the passage that the
        query was taken from and its copies; -1: none). All come from any device."""

    def contains(self, ids_N: Tensor) -> Tensor:
        """Which of these passages are live."""

    def vectors(self, ids_N: Tensor) -> Tensor:
        """The vectors of live passages, float32 [N, D], in the order of the ids, which may repeat."""

    def add(self, ids_N: Tensor, vectors_ND: Tensor) -> None:
        """Make new passages live."""

    def remove(self, ids_N: Tensor) -> None:
        """Make live passages impossible to find."""


class ExactIndex:
    """Exact search over float32, float16 or bfloat16 vectors on any device; scores are computed in float32.

    The vectors are used where they are, memory-mapped ones too, and copied only to another `device`.
    """

    def __init__(
        self, vectors_ND: Tensor, ids_N: Tensor, *, device: torch.device | str | None = None
    ) -> None:
        if vectors_ND.dtype not in _DTYPES:
            wrong = f"index vectors are {vectors_ND.dtype}"
            raise BadInput(f"{wrong}; convert them to float32, float16 or bfloat16")
        if vectors_ND.ndim != 2 or not vectors_ND.shape[1]:
            shape = tuple(vectors_ND.shape)
            raise BadInput(f"index vectors have the shape {shape}; give one row per passage")
        self.device = torch.device(device) if device is not None else vectors_ND.device
        self.dim = vectors_ND.shape[1]
        self.dtype = vectors_ND.dtype
        ids_N, vectors_ND = self._checked(ids_N, vectors_ND)
        self.blocks = [Rows(vectors_ND, ids_N)] if len(ids_N) else []

    @classmethod
    def from_blocks(
        cls, blocks: Sequence[tuple[Tensor, Tensor]], *, device: torch.device | str | None = None
    ) -> "ExactIndex":
        """An index over pairs of vectors and ids that were checked when they were written: nothing is read
        before it is needed.

        On a GPU they become one block, because each costs a search a dozen small steps, whatever its size.
        """
        index = cls(blocks[0][0][:0], blocks[0][1][:0], device=device)
        if index.device.type != "cpu":
            vectors_ND, ids_N = (_gather(parts, index.device) for parts in zip(*blocks, strict=True))
            blocks = [(vectors_ND, ids_N)]
        index.blocks = [Rows(vectors, ids) for vectors, ids in blocks if len(ids)]
        return index

    def __len__(self) -> int:
        return sum(block.count for block in self.blocks)

    @property
    def ids(self) -> Tensor:
        none = torch.empty(0, dtype=torch.int64, device=self.device)
        return torch.cat([none, *(block.live_ids() for block in self.blocks)]).sort().values

    def vectors(self, ids_N: Tensor) -> Tensor:
        ids_N = as_ids(ids_N, self.device)
        vectors_ND = torch.empty(len(ids_N), self.dim, device=self.device)
        absent_N = torch.ones(len(ids_N), dtype=torch.bool, device=self.device)
        for block in self.blocks:
            rows_N = block.find(ids_N)
            here_N = rows_N >= 0
            vectors_ND[here_N] = block.vectors_ND[rows_N[here_N]].float()
            absent_N &= ~here_N
        _refuse(ids_N[absent_N], "are not in the index; see `index.ids` for those that are")
        return vectors_ND

    def add(self, ids_N: Tensor, vectors_ND: Tensor) -> None:
        ids_N, vectors_ND = self._checked(ids_N, vectors_ND)
        _refuse(ids_N[self.contains(ids_N)], "are in the index already; remove them first")
        self._append(ids_N, vectors_ND.clone())

    def remove(self, ids_N: Tensor) -> None:
        ids_N = as_ids(ids_N, self.device)
        _refuse_repeats(ids_N)
        _refuse(ids_N[~self.contains(ids_N)], "are not in the index; nothing was removed")
        for block in self.blocks:
            block.kill(ids_N)
        self.blocks = [block for block in self.blocks if block.count]

    def search(self, queries_QD: Tensor, k: int, *, exclude_QE: Tensor | None = None) -> Hits:
        queries_QD, exclude_QE = self.prepared(queries_QD, k, exclude_QE)
        # the best k + E passages contain the best k of those that are not excluded
        wanted = min(k + exclude_QE.shape[1], len(self))
        return drop(self.best(queries_QD, wanted, self.blocks), exclude_QE, k)

    def prepared(self, queries_QD: Tensor, k: int, exclude_QE: Tensor | None) -> tuple[Tensor, Tensor]:
        """The queries as float32 and the exclusions as int64, on the device of the index; an error if they
        cannot be searched."""
        shape = tuple(queries_QD.shape)
        if len(shape) != 2 or shape[1] != self.dim:
            raise BadInput(f"queries have the shape {shape}; this index holds vectors of {self.dim} numbers")
        queries_QD = queries_QD.detach().to(self.device, torch.float32)
        if k < 1:
            raise BadInput(f"k is {k}; ask for at least one passage")
        if exclude_QE is None:
            exclude_QE = torch.empty(len(queries_QD), 0, dtype=torch.int64, device=self.device)
        if exclude_QE.ndim != 2 or len(exclude_QE) != len(queries_QD):
            wrong = f"exclusions of the shape {tuple(exclude_QE.shape)}"
            raise BadInput(f"{len(queries_QD)} queries came with {wrong}; give each a row")
        exclude_QE = each_once(as_ids(exclude_QE.flatten(), self.device).view(exclude_QE.shape))
        searchable = len(self)
        if exclude_QE.numel():
            searchable -= int(self.contains(exclude_QE.flatten()).view(exclude_QE.shape).sum(1).max())
        if k > searchable:
            cure = f"use --k {searchable} or a larger corpus"
            raise NotEnough(f"k is {k}, but {searchable} passages can be searched; {cure}")
        return queries_QD, exclude_QE

    def best(self, queries_QD: Tensor, k: int, blocks: Sequence["Rows"]) -> Hits:
        """The k best passages of these blocks for each query; if there are fewer, the rest score -inf."""
        fused = _fused() if self.device.type == "cuda" and blocks and len(queries_QD) else None
        if fused is None or not all(fused.suits(block.vectors_ND, k) for block in blocks):
            return self._best_in_chunks(queries_QD, k, blocks)
        parts = [block.best(queries_QD, k) for block in blocks]
        scores_QK = torch.cat([part.scores_QK for part, _ in parts], 1)
        ids_QK = torch.cat([part.ids_QK for part, _ in parts], 1)
        best = Hits(scores_QK, ids_QK) if len(parts) == 1 else ranked(scores_QK, ids_QK, k)
        decided_Q = torch.stack([decided_Q for _, decided_Q in parts]).all(0)
        if not decided_Q.all():
            undecided_R = (~decided_Q).nonzero()[:, 0]
            again = self._best_in_chunks(queries_QD[undecided_R], k, blocks)
            best.scores_QK[undecided_R] = again.scores_QK
            best.ids_QK[undecided_R] = again.ids_QK
        return best

    def _best_in_chunks(self, queries_QD: Tensor, k: int, blocks: Sequence["Rows"]) -> Hits:
        """The same by products in float32, chunk by chunk."""
        if not queries_QD.isfinite().all():  # such queries are never decided by the other way
            diverged = "the query tower has diverged: go back to an earlier checkpoint"
            raise Diverged(f"queries hold NaN or infinity; {diverged}")
        best = nothing(len(queries_QD), k, self.device)
        rows, columns = self._chunking(len(queries_QD), k)
        scratch = torch.empty(columns * rows, device=self.device)
        for first in range(0, len(queries_QD), rows):
            some = slice(first, first + rows)
            part = Hits(best.scores_QK[some], best.ids_QK[some])  # views, changed in place
            for block in blocks:
                for ids_C, scores_CQ in block.scores(queries_QD[some], columns, scratch):
                    _take_best(part, ids_C, scores_CQ)
        return best

    def _chunking(self, queries: int, k: int) -> tuple[int, int]:
        """How many queries and how many passages are scored at a time, so that the scores fit into the
        scratch memory (unless k alone exceeds it)."""
        places = (CPU_SCRATCH if self.device.type == "cpu" else _DEVICE_SCRATCH) // 4
        least = max(LEAST_CHUNK, 16 * k)  # merging a chunk costs time in proportion to k: it must be worth it
        rows = max(1, min(queries, places // least))
        most = 2**16 if self.device.type == "cpu" else 2**22  # a few queries gain nothing from more
        return rows, _whole_groups(max(least, min(places // rows, most)))

    def contains(self, ids_N: Tensor) -> Tensor:
        ids_N = as_ids(ids_N, self.device)
        live_N = torch.zeros(len(ids_N), dtype=torch.bool, device=self.device)
        for block in self.blocks:
            live_N |= block.find(ids_N) >= 0
        return live_N

    def _append(self, ids_N: Tensor, vectors_ND: Tensor) -> None:
        if len(ids_N):
            self.blocks.append(Rows(vectors_ND, ids_N, owned=True))
        # Blocks of added passages are merged in doubling sizes: a million single additions leave ~20 blocks.
        while len(self.blocks) > 1:
            left, right = self.blocks[-2:]
            if not left.owned or left.count > 2 * right.count:
                break
            vectors = torch.cat([block.vectors_ND[block.live_rows()] for block in (left, right)])
            ids = torch.cat([left.live_ids(), right.live_ids()])
            self.blocks[-2:] = [Rows(vectors, ids, owned=True)]

    def _checked(self, ids_N: Tensor, vectors_ND: Tensor) -> tuple[Tensor, Tensor]:
        vectors_ND = vectors_ND.detach().to(self.device, self.dtype)
        check_vectors(ids_N, vectors_ND, self.dim)
        return as_ids(ids_N, self.device), vectors_ND


@cache
def _fused() -> Any:
    """The search for GPUs, where kernels can be built; None elsewhere."""
    if not builds_kernels():
        return None
    from realmlm.index import fused

    return fused


def part_of(blocks: Sequence[tuple[Tensor, Tensor]], number: int, count: int) -> list[tuple[Tensor, Tensor]]:
    """Of pairs of vectors and ids one of `count` parts of equal size, the same in every block."""
    parts = [slice(len(ids) * number // count, len(ids) * (number + 1) // count) for _, ids in blocks]
    return [(vectors[part], ids[part]) for (vectors, ids), part in zip(blocks, parts, strict=True)]


def _whole_groups(passages: int) -> int:
    """This many passages, rounded up to whole groups."""
    return -(-passages // GROUP) * GROUP


def _gather(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """All parts joined on the device, without a second copy there."""
    whole = torch.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype=parts[0].dtype, device=device)
    for piece, part in zip(whole.split([len(part) for part in parts]), parts, strict=True):
        piece.copy_(part)
    return whole


class Rows:
    """A block of passages that were added together, in any order of their ids. Removed passages stay, as dead
    rows that are masked in a search."""

    def __init__(self, vectors_ND: Tensor, ids_N: Tensor, *, owned: bool = False) -> None:
        self.vectors_ND = vectors_ND
        self.ids_N = ids_N
        self.owned = owned
        self.count = len(ids_N)
        self.live_N: Tensor | None = None  # None: all

    @cached_property
    def _by_id(self) -> tuple[Tensor, Tensor | None]:
        """The ids ascending and the row of each (None: the rows are in that order); made at first use, so
        that opening an index reads nothing."""
        if (self.ids_N[1:] > self.ids_N[:-1]).all():
            return self.ids_N, None
        ids_N, rows_N = self.ids_N.sort()
        return ids_N, rows_N

    def find(self, ids_N: Tensor) -> Tensor:
        """The row of each id, -1 where it is not a live row of this block."""
        sorted_N, order_N = self._by_id
        places_N = torch.searchsorted(sorted_N, ids_N).clamp_(max=len(sorted_N) - 1)
        found_N = sorted_N[places_N] == ids_N
        rows_N = places_N if order_N is None else order_N[places_N]
        if self.live_N is not None:
            found_N &= self.live_N[rows_N]
        return rows_N.where(found_N, -1)

    def kill(self, ids_N: Tensor) -> None:
        """Make those of these passages dead that are in this block."""
        rows_N = self.find(ids_N)
        rows_N = rows_N[rows_N >= 0]
        if not len(rows_N):
            return
        if self.live_N is None:
            self.live_N = torch.ones(len(self.ids_N), dtype=torch.bool, device=self.ids_N.device)
        self.live_N[rows_N] = False
        self.count -= len(rows_N)

    def live_rows(self) -> Tensor:
        if self.live_N is None:
            return torch.arange(len(self.ids_N), device=self.ids_N.device)
        return self.live_N.nonzero()[:, 0]

    def live_ids(self) -> Tensor:
        return self.ids_N if self.live_N is None else self.ids_N[self.live_N]

    def best(self, queries_QD: Tensor, k: int) -> tuple[Hits, Tensor]:
        """The k best rows of each query by one pass on a GPU, and which queries it has decided."""
        ids_N, _ = self._by_id
        found = self._repeated.search(queries_QD, k, self.live_N)
        there = found.rows_QK.shape[1]
        hits = nothing(len(queries_QD), k, ids_N.device)  # there may be fewer than k
        hits.scores_QK[:, :there] = found.scores_QK
        hits.ids_QK[:, :there] = ids_N[found.rows_QK.clamp(min=0)].where(found.rows_QK >= 0, _NO_ID)
        return hits, found.decided_Q

    @cached_property
    def _repeated(self) -> Any:
        """What searches these rows on a GPU, by their rank among the sorted ids where they are not sorted."""
        from realmlm.index import fused

        rows_N = self._by_id[1]
        rank_N = None
        if rows_N is not None:
            rank_N = torch.empty(len(rows_N), dtype=torch.int32, device=rows_N.device)
            rank_N[rows_N] = torch.arange(len(rows_N), dtype=torch.int32, device=rows_N.device)
        return fused.Repeated(self.vectors_ND, fused.largest_norm(self.vectors_ND), rank_N)

    def scores(self, queries_QD: Tensor, columns: int, scratch: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The ids [C] and scores [C', Q] of each chunk of `columns` passages, C' being C rounded up to whole
        groups; dead and surplus rows score -inf. Each chunk is in `scratch` and overwrites the one before."""
        queries = len(queries_QD)
        queries_DQ = queries_QD.t().contiguous()
        for start in range(0, len(self.ids_N), columns):
            chunk = slice(start, start + columns)
            ids_C = self.ids_N[chunk]
            padded = _whole_groups(len(ids_C))
            scores_CQ = scratch[: padded * queries].view(padded, queries)
            _products(self.vectors_ND[chunk], queries_DQ, scores_CQ[: len(ids_C)])
            scores_CQ[len(ids_C) :] = -torch.inf
            if self.live_N is not None:
                scores_CQ[: len(ids_C)][~self.live_N[chunk]] = -torch.inf
            yield ids_C, scores_CQ


def _products(vectors_CD: Tensor, queries_DQ: Tensor, out_CQ: Tensor) -> None:
    """out = vectors @ queries in float32. Vectors in half precision are converted first: their product in
    half precision would be rounded."""
    one_on_cpu = vectors_CD.device.type == "cpu" and queries_DQ.shape[1] == 1
    if vectors_CD.device.type != "cpu" or (vectors_CD.dtype == torch.float32 and not one_on_cpu):
        torch.mm(vectors_CD.float(), queries_DQ, out=out_CQ)
        return
    for piece_CD, piece_CQ in zip(vectors_CD.split(PIECE), out_CQ.split(PIECE), strict=True):
        if one_on_cpu:  # MKL's product of a matrix and a vector reads memory at less than half this speed
            torch.sum(piece_CD.float() * queries_DQ[:, 0], 1, out=piece_CQ[:, 0])
        else:
            torch.mm(piece_CD.float(), queries_DQ, out=piece_CQ)


def _take_best(best: Hits, ids_C: Tensor, scores_CQ: Tensor) -> None:
    """Merge the scores of a chunk into `best`, in place.

    For one query, k = 2 and groups of 4 instead of 64:

        best so far   9.5  6.0                                  what is below 6.0 cannot enter
        chunk         3 5 1 2 | 8 4 7 6 | 2 0 1 3 | 7 9 5 1
        maxima        5         8         3         9
        looked into             8 4 7 6             7 9 5 1     maxima of at least 6.0, k + 1 groups at most
        their k + 1   9 8 7                                     9 and 8 are merged: the best are 9.5 and 9

    The k + 1 groups with the highest maxima contain the k + 1 highest scores of the chunk. If the k-th of
    these is above the next, the k passages are determined. If both are equal (9 8 8, say), a passage with
    that score and a smaller id may be in any group, so the whole chunk is searched for it (`_equals`).
    """
    k = best.scores_QK.shape[1]
    groups = len(scores_CQ) // GROUP
    scores_GgQ = scores_CQ.view(groups, GROUP, -1)
    maxima_GQ = scores_GgQ.amax(1)
    # >=, not >: an equal score with a smaller id enters. A group of dead rows never counts.
    news_Q = ((maxima_GQ >= best.scores_QK[:, -1]) & (maxima_GQ > -torch.inf)).sum(0)
    rows_R = news_Q.nonzero()[:, 0]
    if not len(rows_R):
        return
    looked = min(k + 1, int(news_Q.max()))
    groups_RG = maxima_GQ.t()[rows_R].topk(looked, dim=1, sorted=False).indices
    within = torch.arange(GROUP, device=ids_C.device)
    scores_RC = scores_GgQ[groups_RG[:, :, None], within, rows_R[:, None, None]].flatten(1)
    top = scores_RC.topk(min(k + 1, scores_RC.shape[1]), dim=1)
    places_RK = groups_RG.gather(1, top.indices // GROUP) * GROUP + top.indices % GROUP
    scores_RK = top.values[:, :k]
    ids_RK = ids_C[places_RK[:, :k].clamp(max=len(ids_C) - 1)]
    ids_RK = ids_RK.where(scores_RK > -torch.inf, _NO_ID)
    if top.values.shape[1] > k:
        edge_R = top.values[:, k]
        matters_R = (edge_R >= best.scores_QK[rows_R, -1]) & (edge_R > -torch.inf)
        tied = ((top.values[:, k - 1] == edge_R) & matters_R).nonzero()[:, 0]
        for row in tied.split(GROUP):
            _merge(best, rows_R[row], *_equals(ids_C, scores_CQ[: len(ids_C), rows_R[row]], edge_R[row], k))
            scores_RK[row] = scores_RK[row].where(scores_RK[row] > edge_R[row, None], -torch.inf)
            ids_RK[row] = ids_RK[row].where(scores_RK[row] > -torch.inf, _NO_ID)
    _merge(best, rows_R, scores_RK, ids_RK)


def _equals(ids_C: Tensor, scores_CR: Tensor, edge_R: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The scores and ids of the k smallest ids whose score is `edge_R`; -inf where there are fewer."""
    ids_CR = torch.where(scores_CR == edge_R, ids_C[:, None], _NO_ID)
    ids_RK = ids_CR.topk(min(k, len(ids_C)), dim=0, largest=False).values.t()
    return edge_R[:, None].expand(ids_RK.shape).where(ids_RK < _NO_ID, -torch.inf), ids_RK


def _merge(best: Hits, rows_R: Tensor, scores_RK: Tensor, ids_RK: Tensor) -> None:
    scores_RN = torch.cat([best.scores_QK[rows_R], scores_RK], 1)
    ids_RN = torch.cat([best.ids_QK[rows_R], ids_RK], 1)
    merged = ranked(scores_RN, ids_RN, best.scores_QK.shape[1])
    best.scores_QK[rows_R] = merged.scores_QK
    best.ids_QK[rows_R] = merged.ids_QK


def ranked(scores_QN: Tensor, ids_QN: Tensor, k: int) -> Hits:
    """The first k by score, equal scores by the smallest id."""
    by_id = ids_QN.argsort(dim=1)
    scores_QN = scores_QN.gather(1, by_id)
    ids_QN = ids_QN.gather(1, by_id)
    by_score = scores_QN.argsort(dim=1, descending=True, stable=True)[:, :k]
    return Hits(scores_QN.gather(1, by_score), ids_QN.gather(1, by_score))


def each_once(exclude_QE: Tensor) -> Tensor:
    """Each excluded passage once in its row, in no more columns than are used, up to a power of two: a search
    finds so many more passages, and as many kinds of searches are compiled. −1: none."""
    if not exclude_QE.numel():
        return exclude_QE
    found_QE = exclude_QE.sort(dim=1, descending=True).values
    again_QE = found_QE[:, 1:] == found_QE[:, :-1]
    found_QE[:, 1:].masked_fill_(again_QE, -1)
    found_QE = found_QE.sort(dim=1, descending=True).values
    used = int((found_QE >= 0).sum(1).max())
    return found_QE[:, : 2 ** (used - 1).bit_length() if used else 0]


def drop(hits: Hits, exclude_QE: Tensor, k: int) -> Hits:
    """The first k hits of each query that are none of the excluded passages."""
    if not exclude_QE.shape[1]:
        return hits
    sorted_QE = exclude_QE.sort(dim=1).values
    places_QK = torch.searchsorted(sorted_QE, hits.ids_QK).clamp_(max=sorted_QE.shape[1] - 1)
    excluded_QK = sorted_QE.gather(1, places_QK) == hits.ids_QK
    first_QK = excluded_QK.to(torch.uint8).argsort(dim=1, stable=True)[:, :k]
    return Hits(hits.scores_QK.gather(1, first_QK), hits.ids_QK.gather(1, first_QK))


def nothing(queries: int, k: int, device: torch.device) -> Hits:
    """Hits of a search that has found nothing yet."""
    scores_QK = torch.full((queries, k), -torch.inf, device=device)
    return Hits(scores_QK, torch.full((queries, k), _NO_ID, device=device))


# --- checks -------------------------------------------------------------------------------------------------


def check_vectors(ids_N: Tensor, vectors_ND: Tensor, dim: int) -> None:
    """Raise BadInput unless these are distinct passage ids, each with a finite vector of `dim` numbers."""
    ids_N = as_ids(ids_N, vectors_ND.device)
    if vectors_ND.ndim != 2 or vectors_ND.shape[1] != dim:
        needed = f"this index holds vectors of {dim} numbers, one row per passage"
        raise BadInput(f"vectors have the shape {tuple(vectors_ND.shape)}; {needed}")
    if len(vectors_ND) != len(ids_N):
        wrong = f"{len(ids_N)} passage ids came with {len(vectors_ND)} vectors"
        raise BadInput(f"{wrong}; give one vector per id")
    _refuse(ids_N[ids_N < 0], "are negative; passage ids start at 0")
    _refuse_repeats(ids_N)
    for ids, vectors in zip(ids_N.split(2**16), vectors_ND.split(2**16), strict=True):
        _refuse(ids[~vectors.isfinite().all(1)], "have vectors with NaN or infinity; embed them again")


def as_ids(ids_N: Tensor, device: torch.device) -> Tensor:
    """Passage ids as int64, or BadInput. An empty tensor may have any type: `torch.tensor([])` is float32."""
    if ids_N.ndim != 1 or (len(ids_N) and ids_N.dtype not in (torch.int64, torch.int32)):
        wrong = f"{ids_N.dtype} of the shape {tuple(ids_N.shape)}"
        raise BadInput(f"passage ids are {wrong}; give one row of int64")
    return ids_N.to(device, torch.int64)


def _refuse_repeats(ids_N: Tensor) -> None:
    ids_N = ids_N.sort().values
    _refuse(ids_N[1:][ids_N[1:] == ids_N[:-1]], "come twice; give each once")


def _refuse(ids_N: Tensor, why: str) -> None:
    if len(ids_N):
        more = f" and {len(ids_N) - 5} more" if len(ids_N) > 5 else ""
        raise BadInput(f"passage ids {', '.join(map(str, ids_N[:5].tolist()))}{more} {why}")
