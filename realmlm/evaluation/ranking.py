"""Measures of a ranking of documents by relevance judgements, defined as trec_eval defines them.

Documents that nobody judged count as not relevant. `relevance` says how relevant documents are for a query;
from 1 on they are.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

CUT = 10
"""Documents that nDCG and MRR look at."""
RECALL_CUTS = (1, 5, 10, 20, 100)


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Documents, best first. Of equal scores, in 32 bits, the id that sorts last comes first: trec_eval's."""
    return sorted(scores, key=lambda document: (np.float32(scores[document]), document), reverse=True)


def ndcg(ranking: Sequence[str], relevance: Mapping[str, int], k: int) -> float:
    """Σ relevance / log₂(rank + 1) over the first k documents, as a share of what the best order gives."""
    best = _gain(sorted(relevance.values(), reverse=True)[:k])
    return _gain([relevance.get(document, 0) for document in ranking[:k]]) / best if best else 0.0


def _gain(grades: Sequence[int]) -> float:
    return sum(max(grade, 0) / math.log2(rank + 1) for rank, grade in enumerate(grades, start=1))


def reciprocal_rank(ranking: Sequence[str], relevance: Mapping[str, int], k: int) -> float:
    """1 / rank of the first relevant document, 0 if none is among the first k."""
    ranks = (rank for rank, document in enumerate(ranking[:k], start=1) if relevance.get(document, 0) >= 1)
    return 1 / next(ranks, math.inf)


def recall(ranking: Sequence[str], relevance: Mapping[str, int], k: int) -> float:
    """The share of the relevant documents that are among the first k."""
    relevant = {document for document, grade in relevance.items() if grade >= 1}
    return len(relevant.intersection(ranking[:k])) / len(relevant) if relevant else 0.0


def measures(scores: Mapping[str, float], relevance: Mapping[str, int]) -> dict[str, float]:
    """All of them for one query, by name."""
    ranking = ranked(scores)
    return {
        f"nDCG@{CUT}": ndcg(ranking, relevance, CUT),
        f"MRR@{CUT}": reciprocal_rank(ranking, relevance, CUT),
        **{f"recall@{k}": recall(ranking, relevance, k) for k in RECALL_CUTS},
    }
