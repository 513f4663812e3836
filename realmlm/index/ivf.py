"""Approximate maximum inner product search: an inverted file (IVF) of faiss finds candidates, stored vectors score them exactly.

Passages are sorted into lists by their nearest centroid and a query looks into `nprobe` lists only. How many is not for the user to
know: it is doubled when the index is built until the measured recall reaches a target.

Legend: Q queries, K hits or candidates each, N passages, D vector size, L lists.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from realmlm.errors import ArtefactDamaged, BadInput, require
from realmlm.index.exact import ExactIndex, Hits, as_ids, drop, ranked
from realmlm.log import say

_TRAINING = 32  # sampled passages a list, for the centroids
_ROUNDS = 6  # of k-means
_SAMPLE = 256  # queries that measure recall
_ADDED = 2**17  # passages sorted into lists at a time


@dataclass(frozen=True, kw_only=True)
class IVFSettings:
    """How an approximate index is made."""

    lists: int | None = None
    """Lists the passages are sorted into; 4·√N if not given."""
    target: float = 0.95
    """Recall at `k` to be reached, as measured against exact search."""
    k: int = 8
    """Hits a query at which recall is measured."""
    seed: int = 0
    """Seed of the centroids and of the sample queries."""


class IVFIndex:
    """Same interface as ExactIndex, on the CPU: k hits always, the scores exact, `recall` of them the true ones."""

    def __init__(self, exact: ExactIndex, lists: Any, *, settings: IVFSettings, nprobe: int, recall: float) -> None:
        """Join stored vectors with the faiss lists made of them; `IVFIndex.build` makes them."""
        if lists.d != exact.dim or lists.ntotal != len(exact):
            raise ArtefactDamaged(f"the lists hold {lists.ntotal} passages, the vectors {len(exact)}; build the index again")
        self._exact, self._lists = exact, lists
        self.settings, self.nprobe, self.recall = settings, nprobe, recall

    @classmethod
    def build(cls, exact: ExactIndex, settings: IVFSettings | None = None, *, queries_QD: Tensor | None = None) -> "IVFIndex":
        """Sort the passages of `exact` into lists and raise nprobe until recall reaches the target.

        Recall is measured on `queries_QD`, or on some of the stored vectors plus noise half as large as their spread.
        """
        settings = settings or IVFSettings()
        if exact.device.type != "cpu":
            raise BadInput(f"approximate search works on the CPU, the vectors lie on {exact.device}; use exact search there")
        if not len(exact):
            raise BadInput("an approximate index of no passages cannot be built; use exact search or add passages first")
        generator = torch.Generator().manual_seed(settings.seed)
        ids_N = exact.ids
        lists = min(settings.lists or max(1, round(4 * len(exact) ** 0.5)), len(exact))
        index = cls(exact, _sorted_into_lists(exact, ids_N, lists, generator), settings=settings, nprobe=1, recall=0.0)
        if queries_QD is None:
            some_QD = exact.vectors(ids_N[torch.randperm(len(ids_N), generator=generator)[:_SAMPLE]])
            queries_QD = some_QD + 0.5 * some_QD.std(0, correction=0) * torch.randn(some_QD.shape, generator=generator)
        index._raise_nprobe(queries_QD)
        return index

    def _raise_nprobe(self, queries_QD: Tensor) -> None:
        k = min(self.settings.k, len(self))
        truth = self._exact.search(queries_QD, k)
        while True:
            found = self.search(queries_QD, k)
            self.recall = (truth.ids_QK[:, :, None] == found.ids_QK[:, None, :]).any(2).double().mean().item()
            if self.recall >= self.settings.target or self.nprobe >= self._lists.nlist:
                break
            self.nprobe = min(2 * self.nprobe, self._lists.nlist)
        say(f"approximate index: recall@{k} {self.recall:.3f}, looking into {self.nprobe} of {self._lists.nlist} lists")

    @property
    def dim(self) -> int:
        return self._exact.dim

    @property
    def ids(self) -> Tensor:
        return self._exact.ids

    def __len__(self) -> int:
        return len(self._exact)

    def vectors(self, ids_N: Tensor) -> Tensor:
        return self._exact.vectors(ids_N)

    def search(self, queries_QD: Tensor, k: int, *, exclude_Q: Tensor | None = None) -> Hits:
        queries_QD, exclude_Q = self._exact.prepared(queries_QD, k, exclude_Q)
        # Twice k: the lists hold half precision, and the order at the edge is decided by the exact scores.
        candidates = min(2 * k + 1, len(self))
        _faiss().omp_set_num_threads(torch.get_num_threads())
        self._lists.nprobe = self.nprobe
        ids_QK = torch.from_numpy(self._lists.search(np.ascontiguousarray(queries_QD.numpy()), candidates)[1])
        real_QK = ids_QK >= 0  # faiss fills up with -1 where the lists hold fewer
        scores_QK = torch.full(ids_QK.shape, -torch.inf)
        scores_QK[real_QK] = (self.vectors(ids_QK[real_QK]) * queries_QD[real_QK.nonzero()[:, 0]]).sum(1)
        hits = ranked(scores_QK, ids_QK, candidates)
        hits = hits if exclude_Q is None else drop(hits, exclude_Q, candidates)
        hits = Hits(hits.scores_QK[:, :k].contiguous(), hits.ids_QK[:, :k].contiguous())
        short_Q = (hits.scores_QK == -torch.inf).any(1)
        if short_Q.any():
            whole = self._exact.search(queries_QD[short_Q], k, exclude_Q=None if exclude_Q is None else exclude_Q[short_Q])
            hits.scores_QK[short_Q], hits.ids_QK[short_Q] = whole.scores_QK, whole.ids_QK
        return hits

    def add(self, ids_N: Tensor, vectors_ND: Tensor) -> None:
        self._exact.add(ids_N, vectors_ND)
        self._sort_in(ids_N)

    def remove(self, ids_N: Tensor) -> None:
        self._exact.remove(ids_N)
        self._take_out(ids_N)

    def replace(self, ids_N: Tensor, vectors_ND: Tensor) -> None:
        self._exact.replace(ids_N, vectors_ND)
        self._take_out(ids_N)
        self._sort_in(ids_N)

    def _sort_in(self, ids_N: Tensor) -> None:
        if len(ids_N):
            self._lists.add_with_ids(self.vectors(ids_N).numpy(), as_ids(ids_N, self._exact.device).numpy())

    def _take_out(self, ids_N: Tensor) -> None:
        if len(ids_N):
            self._lists.remove_ids(as_ids(ids_N, self._exact.device).numpy())

    def to_bytes(self) -> np.ndarray:
        """The lists as uint8, for `IVFIndex(exact, lists_from_bytes(...), ...)`."""
        return np.asarray(_faiss().serialize_index(self._lists))


def lists_from_bytes(data: np.ndarray) -> Any:
    """What `to_bytes` wrote."""
    try:
        return _faiss().deserialize_index(np.ascontiguousarray(data))
    except RuntimeError as error:
        raise ArtefactDamaged(f"the lists of the approximate index cannot be read ({error}); build the index again") from error


def _sorted_into_lists(exact: ExactIndex, ids_N: Tensor, lists: int, generator: torch.Generator) -> Any:
    """A faiss IVF of half-precision vectors, filled.

    Half precision: 54 MB instead of 105 for 200,000 × 128, recall equal to 4 digits, and no slower.
    Centroids and assignment are torch's: our exact search is several times as fast as the flat search faiss would use for both.
    """
    faiss = _faiss()
    sample_N = ids_N[torch.randperm(len(ids_N), generator=generator)[: lists * _TRAINING]]
    centroids = _centroids(exact.vectors(sample_N), lists)
    quantizer = faiss.IndexFlatIP(exact.dim)
    quantizer.add(centroids.vectors(centroids.ids).numpy())
    filled = faiss.IndexIVFScalarQuantizer(quantizer, exact.dim, lists, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT, False)
    filled.train(exact.vectors(sample_N[:1]).numpy())  # nothing is learned: the centroids are there and half precision needs none
    for some_N in ids_N.split(_ADDED):
        vectors_ND = exact.vectors(some_N)
        list_N = centroids.search(vectors_ND, 1).ids_QK[:, 0].contiguous()
        pointers = [faiss.swig_ptr(array.numpy()) for array in (vectors_ND, some_N, list_N)]
        filled.add_core(len(some_N), *pointers)
    return filled


def _centroids(sample_ND: Tensor, lists: int) -> ExactIndex:
    """Spherical k-means: unit centroids, a passage belongs to the one with the largest inner product. A list left empty keeps its own."""
    list_L = torch.arange(lists)
    centroids_LD = normalize(sample_ND[:lists], dim=1)  # the sample is in random order
    for _ in range(_ROUNDS):
        nearest_N = ExactIndex(centroids_LD, list_L).search(sample_ND, 1).ids_QK[:, 0]
        sums_LD = torch.zeros(lists, sample_ND.shape[1]).index_add_(0, nearest_N, sample_ND)
        centroids_LD = torch.where(sums_LD.any(1, keepdim=True), normalize(sums_LD, dim=1), centroids_LD)
    return ExactIndex(centroids_LD, list_L)


def _faiss() -> ModuleType:
    # imported here, hence after torch: each brings an OpenMP runtime of its own, and torch's should be the first
    return require("faiss", extra="ann", why="approximate search")
