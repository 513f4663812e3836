"""Hybrid search against f and BM25 of every passage, added up and sorted."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.corpus.store import Corpus
from realmlm.index import hybrid
from realmlm.index.bm25 import BM25Index
from realmlm.index.exact import ExactIndex, Index
from realmlm.index.hybrid import Hybrid, candidates
from realmlm.index.ivf import IVFIndex, IVFSettings

QUESTIONS = ["Which animal is the symbol of Tekebra?", "Who rules Taremo?", "history of the the river", "—"]


@pytest.fixture(scope="module")
def words(knowledge: Corpus) -> BM25Index:
    return BM25Index(knowledge)


def vectors_of(corpus: Corpus, seed: int) -> torch.Tensor:
    """Whole numbers, so that sums are exact, with many ties."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, (len(corpus), 4), generator=generator).float()


@given(
    seed=st.integers(0, 99),
    weight=st.sampled_from([0.0, 0.25, 1.0, 8.0]),
    k=st.integers(1, 30),
    depth=st.integers(1, 40),
    approximate=st.booleans(),
)
@settings(max_examples=40)
def test_the_union_has_both_scores_and_the_best_come_first(
    knowledge: Corpus, words: BM25Index, seed: int, weight: float, k: int, depth: int, approximate: bool
) -> None:
    vectors_ND = vectors_of(knowledge, seed)
    index: Index = ExactIndex(vectors_ND, torch.from_numpy(knowledge.ids))
    if approximate:
        index = IVFIndex.build(
            ExactIndex(vectors_ND, torch.from_numpy(knowledge.ids)), IVFSettings(target=1.1)
        )
    query_QD = torch.tensor([[1.0, 2, 0, 1], [0, 0, 0, 0], [-1, 1, 1, 0], [1, 1, 1, 1]])
    tokens = [knowledge.wordpieces.encode_query(text) for text in QUESTIONS]
    rng = np.random.default_rng(seed)
    exclude_QE = torch.from_numpy(rng.choice(knowledge.ids, (4, 2), replace=False))
    exclude_QE[0, 1] = -1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hybrid, "DEPTH", depth)
        found = Hybrid(words, weight).search(index, query_QD, tokens, k, exclude_QE=exclude_QE)
    every_QN = torch.from_numpy(knowledge.ids).expand(4, -1)
    near_QN = query_QD @ vectors_ND.T
    words_QN = words.scores(tokens, every_QN)
    for row in range(4):
        near, matching = (dict(enumerate(part[row].tolist())) for part in (near_QN, words_QN))
        left = [number for number in near if number not in exclude_QE[row]]
        by_near, by_words = (
            sorted(left, key=lambda number, part=part: (-part[number], number))[: max(k, depth)]  # type: ignore[misc]
            for part in (near, matching)
        )
        total = {number: near[number] + weight * matching[number] for number in {*by_near, *by_words}}
        best = sorted(total, key=lambda number: (-total[number], number))[:k]
        assert found.ids_QC[row].tolist() == best
        assert found.near_QC[row].tolist() == [near[number] for number in best]
        assert found.words_QC[row].tolist() == [matching[number] for number in best]


def test_in_parts_as_at_once(knowledge: Corpus, words: BM25Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index = ExactIndex(vectors_of(knowledge, 0), torch.from_numpy(knowledge.ids))
    tokens = [knowledge.wordpieces.encode_query(text) for text in QUESTIONS]
    query_QD = vectors_of(knowledge, 1)[:4]
    whole = candidates(index, words, query_QD, tokens, 7)
    monkeypatch.setattr(hybrid, "SCRATCH", 1)
    parts = candidates(index, words, query_QD, tokens, 7)
    assert all(torch.equal(a, b) for a, b in zip(vars(whole).values(), vars(parts).values(), strict=True))
    nothing = candidates(index, words, query_QD[:0], [], 7)
    assert nothing.ids_QC.shape == nothing.near_QC.shape == nothing.words_QC.shape == (0, 14)
