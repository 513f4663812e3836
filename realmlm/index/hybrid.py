"""Hybrid search: f(x,z) + λ · BM25(x,z), over the best passages by f and the best by BM25, each with both.

Q queries, K hits each, C candidates, E passages never among them, D vector size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from realmlm.index.bm25 import BM25Index
from realmlm.index.exact import Index, each_once

DEPTH = 100  # candidates by f and as many by BM25, at least
SCRATCH = 2**26  # numbers of vectors at once


@dataclass(frozen=True)
class Candidates:
    """Passages with both scores. One that both searches found stands twice, the second time with −inf."""

    ids_QC: Tensor
    near_QC: Tensor  # f(x,z)
    words_QC: Tensor  # BM25(x,z)

    def best(self, weight: float, k: int) -> "Candidates":
        """The k best by f + weight · BM25."""
        best_QK = self.order(self.near_QC + weight * self.words_QC, k)
        return Candidates(*(part.gather(1, best_QK) for part in (self.ids_QC, self.near_QC, self.words_QC)))

    def order(self, scores_QC: Tensor, k: int) -> Tensor:
        """The places of the k best by these scores, equal ones by the smallest id."""
        by_id_QC = self.ids_QC.argsort(dim=1)
        order_QK = scores_QC.gather(1, by_id_QC).argsort(dim=1, descending=True, stable=True)[:, :k]
        return by_id_QC.gather(1, order_QK)


@dataclass(frozen=True)
class Hybrid:
    """Word matching beside the search by vectors, and its weight λ."""

    words: BM25Index
    weight: float

    def search(
        self,
        index: Index,
        vectors_QD: Tensor,
        queries: Sequence[np.ndarray],
        k: int,
        *,
        exclude_QE: Tensor | None = None,
    ) -> Candidates:
        """The k best passages of queries, given as vectors and in wordpieces; without those in a query's row
        of `exclude_QE` (−1: none)."""
        exclude_QE = None if exclude_QE is None else each_once(exclude_QE)
        excluded = 0 if exclude_QE is None else exclude_QE.shape[1]
        depth = max(k, min(DEPTH, len(index) - excluded))
        found = candidates(index, self.words, vectors_QD, queries, depth, exclude_QE=exclude_QE)
        return found.best(self.weight, k)


def candidates(
    index: Index,
    words: BM25Index,
    vectors_QD: Tensor,
    queries: Sequence[np.ndarray],
    depth: int,
    *,
    exclude_QE: Tensor | None = None,
) -> Candidates:
    """The `depth` best passages by f and the `depth` best by BM25."""
    near = index.search(vectors_QD, depth, exclude_QE=exclude_QE)
    device = near.ids_QK.device
    matches = words.search(queries, depth, exclude_QE=exclude_QE, ask_QC=near.ids_QK)
    matching_QC = matches.hits.ids_QK.to(device)
    sorted_QC = near.ids_QK.sort(dim=1).values
    places_QC = torch.searchsorted(sorted_QC, matching_QC).clamp_(max=depth - 1)
    twice_QC = sorted_QC.gather(1, places_QC) == matching_QC
    ids_QC = torch.cat([near.ids_QK, matching_QC], dim=1)
    near_QC = _products(index, vectors_QD.detach().to(device, torch.float32), ids_QC)
    near_QC[:, depth:].masked_fill_(twice_QC, -torch.inf)
    words_QC = torch.cat([matches.asked_QC, matches.hits.scores_QK], dim=1)
    return Candidates(ids_QC, near_QC, words_QC.to(device))


def _products(index: Index, vectors_QD: Tensor, ids_QC: Tensor) -> Tensor:
    """f(x,z) of all candidates, computed alike: equal passages must have equal scores."""
    rows = max(1, SCRATCH // (ids_QC.shape[1] * index.dim))
    parts = []
    for vectors_qD, ids_qC in zip(vectors_QD.split(rows), ids_QC.split(rows), strict=True):
        vectors_qCD = index.vectors(ids_qC.flatten()).view(*ids_qC.shape, index.dim)
        parts.append((vectors_qCD * vectors_qD[:, None]).sum(-1))
    return torch.cat(parts)
