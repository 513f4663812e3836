"""Approximate maximum inner product search: an inverted file (IVF), its vectors in the order of its lists.

Each passage belongs to the list of its nearest centroid, and vectors are stored list after list, so that a
list is a slice of them (docs/decisions/007). With 9 passages in L = 3 lists:

    list         0          1       2
    row          0  1  2 |  3  4 |  5  6  7  8        offsets_L = [0, 3, 5, 9]
    passage id  14  2  7 |  0  9 |  5  1 12  3

A query whose nearest centroids are those of lists 2 and 0 reads rows 5 to 8 and 0 to 2 (nprobe = 2) and no
others, even of a memory-mapped file, and scores them exactly. The user need not choose nprobe: building the
index doubles it until the measured recall, at 1 hit and at k, reaches a target. Passages added later are in
no list, and every query is compared with all of them.

Legend: Q queries, K hits each, N passages, D vector size, L lists, P lists a query looks into, C passages in
them, R queries that look into one list, M passages that may be hits, G groups of lists.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from realmlm.errors import ArtefactDamaged, BadInput
from realmlm.index.exact import ExactIndex, Hits, Rows, drop, nothing, ranked
from realmlm.log import Progress, progress, say

_TRAINING = 32  # passages for each list that the centroids are learned from
_ROUNDS = 6  # of k-means
_SAMPLE = 256  # queries to measure recall with
_PIECE = 2**14  # passages sorted into lists or scored at a time
FEW_LISTS = 4096  # more are grouped, to find the list of a passage sooner
NEAR_GROUPS = 16  # whose lists are compared: with 14,617 lists 3.7 times as fast as all (decision 007)
SCRATCH = 2**24  # scores at a time

Pieces = Iterator[tuple[Tensor, Tensor]]  # (ids, vectors)


@dataclass(frozen=True, kw_only=True)
class IVFSettings:
    """How an approximate index is built."""

    lists: int | None = None
    """Lists that the passages are sorted into; 4·√N if not given."""
    target: float = 0.95
    """Recall to be reached at 1 hit and at `k`, compared with exact search."""
    k: int = 8
    """Hits for each query at which recall is measured, beside the first."""
    seed: int = 0
    """Seed of the centroids and of the sampled queries."""


def in_memory(pieces: Pieces) -> ExactIndex:
    """All pieces in one block."""
    ids, vectors = zip(*pieces, strict=True)
    return ExactIndex.from_blocks([(torch.cat(vectors), torch.cat(ids))])


class IVFIndex(ExactIndex):
    """An index on the CPU whose search looks into some of its lists only. It finds k hits with exact scores,
    of which the share `recall` are those of exact search.

    If the lists that a query looks into hold fewer than k passages, all are searched; `recall` is measured
    without that.
    """

    def __init__(
        self,
        exact: ExactIndex,
        centroids_LD: Tensor,
        offsets_L: Tensor,
        *,
        settings: IVFSettings,
        nprobe: int,
        recall: float,
    ) -> None:
        """Lists over the one block of `exact`: list i is its rows from offsets[i] up to, not including,
        offsets[i + 1]."""
        (self._listed,) = exact.blocks
        super().__init__(self._listed.vectors_ND[:0], self._listed.ids_N[:0])
        self.blocks = [self._listed]
        fits = len(offsets_L) == len(centroids_LD) + 1 and offsets_L[-1] == len(self._listed.ids_N)
        if not fits or (offsets_L.diff() < 0).any() or centroids_LD.shape[1] != self.dim:
            raise ArtefactDamaged(
                "the lists of the approximate index do not fit its vectors; build the index again"
            )
        self.centroids_LD = centroids_LD
        self.offsets_L = offsets_L
        self._centroids = ExactIndex(centroids_LD, torch.arange(len(centroids_LD)))
        self.settings = settings
        self.nprobe = nprobe
        self.recall = recall

    @classmethod
    def build(
        cls,
        exact: ExactIndex,
        settings: IVFSettings | None = None,
        *,
        queries_QD: Tensor | None = None,
        place: Callable[[Pieces], ExactIndex] = in_memory,
    ) -> "IVFIndex":
        """Sort the passages of `exact` into lists and raise nprobe until recall reaches the target.

        `place` is given ids and vectors in the order of the lists and makes one block of them, in memory or
        on disk. Recall is measured with `queries_QD`, or with a sample of the vectors plus noise half as
        large as their spread.
        """
        settings = settings or IVFSettings()
        if exact.device.type != "cpu":
            wrong = f"approximate search works on the CPU, the vectors lie on {exact.device}"
            raise BadInput(f"{wrong}; use exact search there")
        if not len(exact):
            cure = "use exact search or add passages first"
            raise BadInput(f"an approximate index of no passages cannot be built; {cure}")
        generator = torch.Generator().manual_seed(settings.seed)
        stored = _Stored(exact.blocks)
        lists = min(settings.lists or max(1, round(4 * len(exact) ** 0.5)), len(exact))
        shuffled_N = torch.randperm(len(exact), generator=generator)
        nearest = _centroids(stored.vectors(shuffled_N[: lists * _TRAINING]).float(), lists)
        with progress("sorting into lists", len(stored), unit="passages") as bar:
            pieces = (stored.vectors(some_N).float() for some_N in torch.arange(len(stored)).split(_PIECE))
            list_N = _in_pieces(nearest, pieces, bar)
        offsets_L = torch.cat([torch.zeros(1, dtype=torch.int64), list_N.bincount(minlength=lists).cumsum(0)])
        placed = place(stored.pieces(list_N.argsort(stable=True)))
        index = cls(placed, nearest.centroids_LD, offsets_L, settings=settings, nprobe=1, recall=0.0)
        if queries_QD is None:
            some_QD = stored.vectors(shuffled_N[:_SAMPLE]).float()
            noise_QD = torch.randn(some_QD.shape, generator=generator)
            queries_QD = some_QD + 0.5 * some_QD.std(0, correction=0) * noise_QD
        index._raise_nprobe(queries_QD, exact.search(queries_QD, min(settings.k, len(exact))))
        return index

    def _raise_nprobe(self, queries_QD: Tensor, truth: Hits) -> None:
        k = truth.ids_QK.shape[1]
        while True:
            found = self._in_lists(queries_QD, k)
            at_1, at_k = (share_found(truth.ids_QK[:, :hits], found.ids_QK[:, :hits]) for hits in (1, k))
            self.recall = min(at_1, at_k)
            if self.recall >= self.settings.target or self.nprobe >= len(self.centroids_LD):
                break
            self.nprobe = min(2 * self.nprobe, len(self.centroids_LD))
        looked = f"looking into {self.nprobe} of {len(self.centroids_LD)} lists"
        recall = f"recall@1 {at_1:.3f}, recall@{k} {at_k:.3f} of exact search"
        say(f"approximate index: {recall}, {looked}, measured on {len(queries_QD)} queries")

    def search(self, queries_QD: Tensor, k: int, *, exclude_QE: Tensor | None = None) -> Hits:
        queries_QD, exclude_QE = self.prepared(queries_QD, k, exclude_QE)
        wanted = min(k + exclude_QE.shape[1], len(self))
        added = self.best(queries_QD, wanted, [block for block in self.blocks if block is not self._listed])
        listed = self._in_lists(queries_QD, wanted)
        scores_QN = torch.cat([added.scores_QK, listed.scores_QK], 1)
        hits = ranked(scores_QN, torch.cat([added.ids_QK, listed.ids_QK], 1), wanted)
        hits = drop(hits, exclude_QE, k)
        short_Q = (hits.scores_QK == -torch.inf).any(1)  # the lists held too few
        if short_Q.any():
            whole = super().search(queries_QD[short_Q], k, exclude_QE=exclude_QE[short_Q])
            hits.scores_QK[short_Q] = whole.scores_QK
            hits.ids_QK[short_Q] = whole.ids_QK
        return hits

    def _in_lists(self, queries_QD: Tensor, k: int) -> Hits:
        """The k best in the lists that each query looks into, for as many queries at a time as have room for
        their scores in the scratch memory."""
        hits = nothing(len(queries_QD), k, queries_QD.device)
        if not len(queries_QD):
            return hits
        lists_QP = self._centroids.search(queries_QD, self.nprobe).ids_QK
        most = int(self.offsets_L.diff()[lists_QP].sum(1).max())
        for some_Q in torch.arange(len(queries_QD)).split(max(1, SCRATCH // max(most, 1))):
            part = self._scan(queries_QD[some_Q], lists_QP[some_Q], k)
            hits.scores_QK[some_Q, : part.scores_QK.shape[1]] = part.scores_QK
            hits.ids_QK[some_Q, : part.ids_QK.shape[1]] = part.ids_QK
        return hits

    def _scan(self, queries_QD: Tensor, lists_QP: Tensor, k: int) -> Hits:
        """The best in these lists, at most k for each query.

        The scores of a query stand in one row, list after list. A query that looks into lists 2 and 0 of the
        example at the top has s5, the score of row 5, first:

            place       0  1  2  3   4  5  6   7 …
            scores_QC  s5 s6 s7 s8  s0 s1 s2  -∞ …      ends_QP = [4, 7]

        A place in the p-th of its lists, list l, is row offsets[l + 1] - ends[p] + place: 3 - 7 + 5 = 1.
        """
        sizes_QP = self.offsets_L.diff()[lists_QP]
        ends_QP = sizes_QP.cumsum(1)
        scores_QC = torch.full((len(queries_QD), max(1, int(ends_QP[:, -1].max()))), -torch.inf)
        # in the order of the lists on disk, each read once for all queries that look into it
        lists, by_list = lists_QP.flatten().sort(stable=True)
        lists, counts = lists.unique_consecutive(return_counts=True)
        asking = (by_list // lists_QP.shape[1]).split(counts.tolist())
        ends = ends_QP.flatten()[by_list].split(counts.tolist())
        firsts = self.offsets_L[lists].tolist()
        pasts = self.offsets_L[lists + 1].tolist()
        for first, past, asking_R, ends_R in zip(firsts, pasts, asking, ends, strict=True):
            scores_RN = self._scores(queries_QD[asking_R], first, past)
            for row, end, scores_N in zip(asking_R.tolist(), ends_R.tolist(), scores_RN, strict=True):
                scores_QC[row, end - (past - first) : end] = scores_N
        # all that equal the k-th score may be hits: those with the smallest ids are
        edge_Q = scores_QC.topk(min(k, scores_QC.shape[1]), dim=1).values[:, -1]
        query_M, place_M = ((scores_QC >= edge_Q[:, None]) & (scores_QC > -torch.inf)).nonzero(as_tuple=True)
        begin_Q = torch.arange(len(queries_QD)) * scores_QC.shape[1]
        all_ends = (begin_Q[:, None] + ends_QP).flatten()
        pair_M = torch.searchsorted(all_ends, begin_Q[query_M] + place_M, right=True)  # (query, list)
        row_M = self.offsets_L[lists_QP.flatten()[pair_M] + 1] - ends_QP.flatten()[pair_M] + place_M
        counts_Q = query_M.bincount(minlength=len(queries_QD))
        column_M = torch.arange(len(query_M)) - (counts_Q.cumsum(0) - counts_Q)[query_M]
        near = nothing(len(queries_QD), max(1, int(counts_Q.max())), queries_QD.device)
        near.scores_QK[query_M, column_M] = scores_QC[query_M, place_M]
        near.ids_QK[query_M, column_M] = self._listed.ids_N[row_M]
        return ranked(near.scores_QK, near.ids_QK, k)

    def _scores(self, queries_RD: Tensor, first: int, past: int) -> Tensor:
        """Scores of the listed rows from `first` to `past`, in float32; dead ones -inf."""
        # in pieces: if all vectors are alike, one list has all passages of the corpus
        pieces = self._listed.vectors_ND[first:past].split(_PIECE)
        scores_RN = torch.cat([queries_RD @ piece_ND.float().t() for piece_ND in pieces], 1)
        if self._listed.live_N is not None:
            scores_RN[:, ~self._listed.live_N[first:past]] = -torch.inf
        return scores_RN


# --- building -----------------------------------------------------------------------------------------------


def share_found(truth_QK: Tensor, found_QK: Tensor) -> float:
    """The share of the true hits that were found."""
    return (truth_QK[:, :, None] == found_QK[:, None, :]).any(2).double().mean().item()


class _Stored:
    """The live rows of some blocks, numbered across all of them."""

    def __init__(self, blocks: list[Rows]) -> None:
        self._parts = [(block.live_ids(), block.vectors_ND, block.live_rows()) for block in blocks]
        self._ends = torch.tensor([len(ids) for ids, _, _ in self._parts]).cumsum(0)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def vectors(self, rows_N: Tensor) -> Tensor:
        """The vectors of these rows, in this order and in the type they are stored in."""
        part_N = torch.searchsorted(self._ends, rows_N, right=True)
        vectors_ND = self._parts[0][1].new_empty(len(rows_N), self._parts[0][1].shape[1])
        for number in part_N.unique().tolist():
            here_N = (part_N == number).nonzero()[:, 0]
            ids, vectors, live = self._parts[number]
            vectors_ND[here_N] = vectors[live[rows_N[here_N] - (self._ends[number] - len(ids))]]
        return vectors_ND

    def pieces(self, order_N: Tensor) -> Pieces:
        """Ids and vectors in this order."""
        ids_N = torch.cat([ids for ids, _, _ in self._parts])
        with progress("writing lists", len(self), unit="passages") as bar:
            for some_N in order_N.split(_PIECE):
                yield ids_N[some_N], self.vectors(some_N)
                bar.advance(len(some_N))


class _Nearest:
    """Finds the nearest of many centroids to a vector: the largest inner product, of equal ones the first.

    More than `FEW_LISTS` centroids are grouped, and only those of the groups nearest to a vector are
    compared.
    """

    def __init__(self, centroids_LD: Tensor) -> None:
        self.centroids_LD = centroids_LD
        self._all = ExactIndex(centroids_LD, torch.arange(len(centroids_LD)))
        self._groups: list[Tensor] = []
        if len(centroids_LD) > FEW_LISTS:
            heads = _centroids(centroids_LD, round(len(centroids_LD) ** 0.5), quiet=True)
            group_L = heads(centroids_LD)
            used_G = group_L.unique()
            self._groups = [(group_L == group).nonzero()[:, 0] for group in used_G]
            self._heads_DG = heads.centroids_LD[used_G].t()

    def __call__(self, vectors_ND: Tensor) -> Tensor:
        if not self._groups:
            return self._all.search(vectors_ND, 1).ids_QK[:, 0]
        list_N = torch.zeros(len(vectors_ND), dtype=torch.int64)
        best_N = torch.full((len(vectors_ND),), -torch.inf)
        to_heads_NG = vectors_ND @ self._heads_DG
        near = min(NEAR_GROUPS, len(self._groups))
        looked_NG = to_heads_NG >= to_heads_NG.topk(near, dim=1).values[:, -1:]
        for members_L, looked_N in zip(self._groups, looked_NG.t(), strict=True):
            rows_R = looked_N.nonzero()[:, 0]
            scores_R, places_R = (vectors_ND[rows_R] @ self.centroids_LD[members_L].t()).max(1)
            list_R = members_L[places_R]
            best_R = best_N[rows_R]
            better_R = (scores_R > best_R) | ((scores_R == best_R) & (list_R < list_N[rows_R]))
            best_N[rows_R[better_R]] = scores_R[better_R]
            list_N[rows_R[better_R]] = list_R[better_R]
        return list_N


def _centroids(sample_ND: Tensor, lists: int, *, quiet: bool = False) -> _Nearest:
    """Spherical k-means: centroids of length 1, each the mean direction of the vectors nearest to it. One
    that no vector is nearest to stays."""
    centroids_LD = normalize(sample_ND[:lists], dim=1)  # the sample is in random order
    comparisons = _ROUNDS * len(sample_ND)
    with nullcontext() if quiet else progress("finding centroids", comparisons, unit="comparisons") as bar:
        for _ in range(_ROUNDS):
            nearest_N = _in_pieces(_Nearest(centroids_LD), sample_ND.split(_PIECE), bar)
            sums_LD = torch.zeros(lists, sample_ND.shape[1]).index_add_(0, nearest_N, sample_ND)
            centroids_LD = torch.where(sums_LD.any(1, keepdim=True), normalize(sums_LD, dim=1), centroids_LD)
    return _Nearest(centroids_LD)


def _in_pieces(nearest: _Nearest, pieces: Iterable[Tensor], bar: Progress | None) -> Tensor:
    lists = []
    for vectors_ND in pieces:
        lists.append(nearest(vectors_ND))
        if bar is not None:
            bar.advance(len(vectors_ND))
    return torch.cat(lists)
