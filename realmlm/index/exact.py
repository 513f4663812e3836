"""Exact maximum inner product search with torch, and the interface every index has.

How it is fast: scores of a chunk of passages are reduced to the maximum of each group of 64; only groups
whose maximum reaches the k-th best score so far are looked into. After the first chunks that is almost none,
and the search costs little more than its matrix products.

Legend: Q queries, K hits each, E passages never among them, N passages, D vector size, C passages of a chunk,
G groups of a chunk, R queries with news in a chunk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from realmlm.errors import BadInput, NotEnough

# passages reduced to one maximum; 32 and 128 differed by less than 20% either way, on a busy machine
GROUP = 64
_NO_ID = torch.iinfo(torch.int64).max  # fills places that no passage has taken: sorts behind every id
# bytes of scores at a time: what stays in cache; what keeps a GPU busy
_CPU_SCRATCH = 8 * 2**20
_DEVICE_SCRATCH = 512 * 2**20
_LEAST = 4096  # passages of a chunk
_PIECE = 4096  # rows widened or multiplied at a time on a CPU, to stay in cache
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Hits:
    """The best passages of each query: highest score first, equal scores by the smallest passage id."""

    scores_QK: Tensor
    ids_QK: Tensor


class Index(Protocol):
    """Passage vectors that can be searched by inner product and changed in place. Errors change nothing."""

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
        """The k best passages of each query, never one in its row of `exclude_QE` (the passage x came from,
        its copies; -1: none)."""

    def contains(self, ids_N: Tensor) -> Tensor:
        """Which of these passages are live."""

    def vectors(self, ids_N: Tensor) -> Tensor:
        """float32 [N, D]: the vectors of live passages, in the order asked, repeats welcome."""

    def add(self, ids_N: Tensor, vectors_ND: Tensor) -> None:
        """Make new passages live."""

    def remove(self, ids_N: Tensor) -> None:
        """Make live passages unfindable."""


class ExactIndex:
    """Exact search over float32, float16 or bfloat16 vectors on any device; scores are computed in float32.

    The vectors are used where they lie (memory-mapped ones too) and never copied whole, unless `device` moves
    them.
    """

    def __init__(
        self, vectors_ND: Tensor, ids_N: Tensor, *, device: torch.device | str | None = None
    ) -> None:
        if vectors_ND.dtype not in _DTYPES:
            raise BadInput(
                f"index vectors are {vectors_ND.dtype}; convert them to float32, float16 or bfloat16"
            )
        if vectors_ND.ndim != 2 or not vectors_ND.shape[1]:
            raise BadInput(
                f"index vectors have the shape {tuple(vectors_ND.shape)}; give one row per passage"
            )
        self.device = torch.device(device) if device is not None else vectors_ND.device
        self.dim = vectors_ND.shape[1]
        self.dtype = vectors_ND.dtype
        ids_N, vectors_ND = self._checked(ids_N, vectors_ND)
        self.blocks = [Rows(vectors_ND, ids_N)] if len(ids_N) else []

    @classmethod
    def from_blocks(
        cls, blocks: Sequence[tuple[Tensor, Tensor]], *, device: torch.device | str | None = None
    ) -> "ExactIndex":
        """An index over (vectors, ids) pairs that were checked when they were written: nothing is read before
        it is needed.

        On a GPU they become one block: each costs a search a dozen small steps, whatever its size.
        """
        index = cls(blocks[0][0][:0], blocks[0][1][:0], device=device)
        if index.device.type != "cpu":
            blocks = [
                (
                    _gather([block[0] for block in blocks], index.device),
                    _gather([block[1] for block in blocks], index.device),
                )
            ]
        index.blocks = [Rows(vectors, ids) for vectors, ids in blocks if len(ids)]
        return index

    def __len__(self) -> int:
        return sum(block.count for block in self.blocks)

    @property
    def ids(self) -> Tensor:
        return (
            torch.cat(
                [
                    torch.empty(0, dtype=torch.int64, device=self.device),
                    *(block.live_ids() for block in self.blocks),
                ]
            )
            .sort()
            .values
        )

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
        # E more than asked make room for dropping the excluded passages: top-(k+E) less E contains the top-k
        # of the others.
        wanted = min(k + exclude_QE.shape[1], len(self))
        return drop(self.best(queries_QD, wanted, self.blocks), exclude_QE, k)

    def prepared(self, queries_QD: Tensor, k: int, exclude_QE: Tensor | None) -> tuple[Tensor, Tensor]:
        """Queries as float32 and exclusions as int64 where the index lies, or the error that says why they
        cannot be searched."""
        if queries_QD.ndim != 2 or queries_QD.shape[1] != self.dim:
            raise BadInput(
                f"queries have the shape {tuple(queries_QD.shape)}; this index holds vectors of {self.dim} "
                "numbers"
            )
        queries_QD = queries_QD.detach().to(self.device, torch.float32)
        if not queries_QD.isfinite().all():
            raise BadInput(
                "queries hold NaN or infinity; the query tower has diverged: go back to an earlier checkpoint"
            )
        if k < 1:
            raise BadInput(f"k is {k}; ask for at least one passage")
        if exclude_QE is None:
            exclude_QE = torch.empty(len(queries_QD), 0, dtype=torch.int64)
        if exclude_QE.ndim != 2 or len(exclude_QE) != len(queries_QD):
            raise BadInput(
                f"{len(queries_QD)} queries came with exclusions of the shape {tuple(exclude_QE.shape)}; "
                "give each a row"
            )
        exclude_QE = as_ids(exclude_QE.flatten(), self.device).view(exclude_QE.shape)
        searchable = len(self)
        if exclude_QE.numel():
            searchable -= int(self.contains(exclude_QE.flatten()).view(exclude_QE.shape).sum(1).max())
        if k > searchable:
            raise NotEnough(
                f"k is {k}, but {searchable} passages can be searched; use --k {searchable} or a larger "
                "corpus"
            )
        return queries_QD, exclude_QE

    def best(self, queries_QD: Tensor, k: int, blocks: Sequence["Rows"]) -> Hits:
        """The k best of these blocks; places that no passage takes score -inf."""
        best = nothing(len(queries_QD), k, self.device)
        rows, columns = self._chunking(len(queries_QD), k)
        scratch = torch.empty(columns * rows, device=self.device)
        for first in range(0, len(queries_QD), rows):
            # views: merged in place
            part = Hits(best.scores_QK[first : first + rows], best.ids_QK[first : first + rows])
            for block in blocks:
                for ids_C, scores_CQ in block.scores(queries_QD[first : first + rows], columns, scratch):
                    _take_best(part, ids_C, scores_CQ)
        return best

    def _chunking(self, queries: int, k: int) -> tuple[int, int]:
        """How many queries and how many passages are scored at a time, within the scratch budget (unless k
        alone exceeds it)."""
        places = (_CPU_SCRATCH if self.device.type == "cpu" else _DEVICE_SCRATCH) // 4
        least = max(_LEAST, 16 * k)  # merging a chunk costs ~k: a chunk must be worth it
        rows = max(1, min(queries, places // least))
        most = 2**16 if self.device.type == "cpu" else 2**22  # beyond, a few queries gain nothing
        return rows, -(-max(least, min(places // rows, most)) // GROUP) * GROUP

    def contains(self, ids_N: Tensor) -> Tensor:
        ids_N = as_ids(ids_N, self.device)
        live_N = torch.zeros(len(ids_N), dtype=torch.bool, device=self.device)
        for block in self.blocks:
            live_N |= block.find(ids_N) >= 0
        return live_N

    def _append(self, ids_N: Tensor, vectors_ND: Tensor) -> None:
        if len(ids_N):
            self.blocks.append(Rows(vectors_ND, ids_N, owned=True))
        # Blocks made by small additions are merged in doubling sizes, so that a million single additions
        # leave ~20 blocks.
        while (
            len(self.blocks) > 1
            and self.blocks[-2].owned
            and self.blocks[-2].count <= 2 * self.blocks[-1].count
        ):
            right = self.blocks.pop()
            left = self.blocks.pop()
            vectors = torch.cat([left.vectors_ND[left.live_rows()], right.vectors_ND[right.live_rows()]])
            self.blocks.append(Rows(vectors, torch.cat([left.live_ids(), right.live_ids()]), owned=True))

    def _checked(self, ids_N: Tensor, vectors_ND: Tensor) -> tuple[Tensor, Tensor]:
        vectors_ND = vectors_ND.detach().to(self.device, self.dtype)
        check_vectors(ids_N, vectors_ND, self.dim)
        return as_ids(ids_N, self.device), vectors_ND


def _gather(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """All parts on the device, one after the other, without a second copy there."""
    whole = torch.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype=parts[0].dtype, device=device)
    for piece, part in zip(whole.split([len(part) for part in parts]), parts, strict=True):
        piece.copy_(part)
    return whole


class Rows:
    """Rows added together. Dead rows stay and are masked. Rows may come in any order of ids; the sorted ids
    find them."""

    def __init__(self, vectors_ND: Tensor, ids_N: Tensor, *, owned: bool = False) -> None:
        self.vectors_ND = vectors_ND
        self.ids_N = ids_N
        self.owned = owned
        self.count = len(ids_N)
        self.live_N: Tensor | None = None  # None: all

    @cached_property
    def _by_id(self) -> tuple[Tensor, Tensor | None]:
        """The ids ascending and the row of each (None: they stand in that order); made at first use, for
        opening is to read nothing."""
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
        rows_N = self.find(ids_N)
        rows_N = rows_N[rows_N >= 0]
        if not len(rows_N):
            return
        if self.live_N is None:
            self.live_N = torch.ones(len(self.ids_N), dtype=torch.bool, device=self.ids_N.device)
        self.live_N[rows_N] = False
        self.count -= len(rows_N)

    def live_rows(self) -> Tensor:
        return (
            torch.arange(len(self.ids_N), device=self.ids_N.device)
            if self.live_N is None
            else self.live_N.nonzero()[:, 0]
        )

    def live_ids(self) -> Tensor:
        return self.ids_N if self.live_N is None else self.ids_N[self.live_N]

    def scores(self, queries_QD: Tensor, columns: int, scratch: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Ids [C] and scores [C', Q] of each chunk, C' being C rounded up to whole groups; dead and surplus
        rows score -inf."""
        queries = len(queries_QD)
        queries_DQ = queries_QD.t().contiguous()
        for start in range(0, len(self.ids_N), columns):
            ids_C = self.ids_N[start : start + columns]
            padded = -(-len(ids_C) // GROUP) * GROUP
            scores_CQ = scratch[: padded * queries].view(padded, queries)
            _products(self.vectors_ND[start : start + len(ids_C)], queries_DQ, scores_CQ[: len(ids_C)])
            scores_CQ[len(ids_C) :] = -torch.inf
            if self.live_N is not None:
                scores_CQ[: len(ids_C)][~self.live_N[start : start + len(ids_C)]] = -torch.inf
            yield ids_C, scores_CQ


def _products(vectors_CD: Tensor, queries_DQ: Tensor, out_CQ: Tensor) -> None:
    """out = vectors @ queries in float32. Half precision is widened first: a half-precision product would
    round the scores."""
    one_on_cpu = vectors_CD.device.type == "cpu" and queries_DQ.shape[1] == 1
    if vectors_CD.device.type != "cpu" or (vectors_CD.dtype == torch.float32 and not one_on_cpu):
        torch.mm(vectors_CD.float(), queries_DQ, out=out_CQ)
        return
    for piece_CD, piece_CQ in zip(vectors_CD.split(_PIECE), out_CQ.split(_PIECE), strict=True):
        if one_on_cpu:  # MKL's matrix-vector product reads memory at less than half the speed of this
            torch.sum(piece_CD.float() * queries_DQ[:, 0], 1, out=piece_CQ[:, 0])
        else:
            torch.mm(piece_CD.float(), queries_DQ, out=piece_CQ)


def _take_best(best: Hits, ids_C: Tensor, scores_CQ: Tensor) -> None:
    """Merge a chunk into `best`, in place.

    The k+1 groups with the highest maxima contain the k+1 highest scores of the chunk (as values). If the
    k-th of those is above the (k+1)-th, the k passages are determined; if they are equal, a passage with a
    smaller id may lie anywhere: all of the chunk is compared.
    """
    k = best.scores_QK.shape[1]
    groups = len(scores_CQ) // GROUP
    scores_GgQ = scores_CQ.view(groups, GROUP, -1)
    maxima_GQ = scores_GgQ.amax(1)
    # >=, not >: an equal score with a smaller id replaces. A group of dead rows only never counts.
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
        tied = (
            (top.values[:, k - 1] == edge_R) & (edge_R >= best.scores_QK[rows_R, -1]) & (edge_R > -torch.inf)
        ).nonzero()[:, 0]
        for row in tied.split(GROUP):
            _merge(best, rows_R[row], *_equals(ids_C, scores_CQ[: len(ids_C), rows_R[row]], edge_R[row], k))
            scores_RK[row] = scores_RK[row].where(scores_RK[row] > edge_R[row, None], -torch.inf)
            ids_RK[row] = ids_RK[row].where(scores_RK[row] > -torch.inf, _NO_ID)
    _merge(best, rows_R, scores_RK, ids_RK)


def _equals(ids_C: Tensor, scores_CR: Tensor, edge_R: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest ids whose score equals `edge_R`; -inf where there are fewer."""
    ids_CR = torch.where(scores_CR == edge_R, ids_C[:, None], _NO_ID)
    ids_RK = ids_CR.topk(min(k, len(ids_C)), dim=0, largest=False).values.t()
    return edge_R[:, None].expand(ids_RK.shape).where(ids_RK < _NO_ID, -torch.inf), ids_RK


def _merge(best: Hits, rows_R: Tensor, scores_RK: Tensor, ids_RK: Tensor) -> None:
    k = best.scores_QK.shape[1]
    merged = ranked(
        torch.cat([best.scores_QK[rows_R], scores_RK], 1), torch.cat([best.ids_QK[rows_R], ids_RK], 1), k
    )
    best.scores_QK[rows_R] = merged.scores_QK
    best.ids_QK[rows_R] = merged.ids_QK


def ranked(scores_QN: Tensor, ids_QN: Tensor, k: int) -> Hits:
    """The first k by score, equal scores by the smallest id."""
    by_id = ids_QN.argsort(dim=1)
    scores_QN = scores_QN.gather(1, by_id)
    ids_QN = ids_QN.gather(1, by_id)
    by_score = scores_QN.argsort(dim=1, descending=True, stable=True)[:, :k]
    return Hits(scores_QN.gather(1, by_score), ids_QN.gather(1, by_score))


def drop(hits: Hits, exclude_QE: Tensor, k: int) -> Hits:
    """The first k hits of each query that are none of the excluded passages."""
    if not exclude_QE.shape[1]:
        return hits
    sorted_QE = exclude_QE.sort(dim=1).values
    places_QK = torch.searchsorted(sorted_QE, hits.ids_QK).clamp_(max=sorted_QE.shape[1] - 1)
    kept = (sorted_QE.gather(1, places_QK) == hits.ids_QK).to(torch.uint8).argsort(dim=1, stable=True)[:, :k]
    return Hits(hits.scores_QK.gather(1, kept), hits.ids_QK.gather(1, kept))


def nothing(queries: int, k: int, device: torch.device) -> Hits:
    """Hits with all places free."""
    return Hits(
        torch.full((queries, k), -torch.inf, device=device), torch.full((queries, k), _NO_ID, device=device)
    )


# --- checks -------------------------------------------------------------------------------------------------


def check_vectors(ids_N: Tensor, vectors_ND: Tensor, dim: int) -> None:
    """Raise BadInput unless these are distinct passage ids, each with a finite vector of `dim` numbers."""
    ids_N = as_ids(ids_N, vectors_ND.device)
    if vectors_ND.ndim != 2 or vectors_ND.shape[1] != dim:
        raise BadInput(
            f"vectors have the shape {tuple(vectors_ND.shape)}; this index holds vectors of {dim} numbers, "
            "one row per passage"
        )
    if len(vectors_ND) != len(ids_N):
        raise BadInput(
            f"{len(ids_N)} passage ids came with {len(vectors_ND)} vectors; give one vector per id"
        )
    _refuse(ids_N[ids_N < 0], "are negative; passage ids start at 0")
    _refuse_repeats(ids_N)
    for ids, vectors in zip(ids_N.split(2**16), vectors_ND.split(2**16), strict=True):
        _refuse(ids[~vectors.isfinite().all(1)], "have vectors with NaN or infinity; embed them again")


def as_ids(ids_N: Tensor, device: torch.device) -> Tensor:
    """Passage ids as int64, or BadInput. An empty tensor may have any type: `torch.tensor([])` is float32."""
    if ids_N.ndim != 1 or (len(ids_N) and ids_N.dtype not in (torch.int64, torch.int32)):
        raise BadInput(
            f"passage ids are {ids_N.dtype} of the shape {tuple(ids_N.shape)}; give one row of int64"
        )
    return ids_N.to(device, torch.int64)


def _refuse_repeats(ids_N: Tensor) -> None:
    ids_N = ids_N.sort().values
    _refuse(ids_N[1:][ids_N[1:] == ids_N[:-1]], "come twice; give each once")


def _refuse(ids_N: Tensor, why: str) -> None:
    if len(ids_N):
        some = ", ".join(map(str, ids_N[:5].tolist())) + (
            f" and {len(ids_N) - 5} more" if len(ids_N) > 5 else ""
        )
        raise BadInput(f"passage ids {some} {why}")
