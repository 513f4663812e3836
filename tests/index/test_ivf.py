"""Approximate search: exact where it looks everywhere, as good as it says elsewhere."""

import pytest
import torch

from realmlm.errors import BadInput, NotEnough
from realmlm.index.exact import ExactIndex
from realmlm.index.ivf import IVFIndex, IVFSettings, lists_from_bytes
from tests.index.test_exact import assert_true, index_of, random_passages

pytest.importorskip("faiss")


def clustered(count: int, dim: int = 16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(40, dim, generator=generator)
    return centres[torch.randint(40, (count,), generator=generator)] + torch.randn(count, dim, generator=generator)


def test_recall_is_measured_and_reached():
    vectors = clustered(3000)
    plain = ExactIndex(vectors, torch.arange(3000))
    index = IVFIndex.build(ExactIndex(vectors, torch.arange(3000)), queries_QD=vectors[:100] + 0.1)
    found, true = index.search(vectors[:100] + 0.1, 8), plain.search(vectors[:100] + 0.1, 8)
    hits = sum(len(set(a) & set(b)) for a, b in zip(found.ids_QK.tolist(), true.ids_QK.tolist(), strict=True))
    assert index.recall == pytest.approx(hits / 800)
    assert index.recall >= 0.95
    assert index.nprobe < index._lists.nlist
    assert IVFIndex.build(plain, IVFSettings(target=0.5)).nprobe < IVFIndex.build(plain, IVFSettings(target=1.0)).nprobe


def test_deterministic_by_seed():
    vectors = clustered(1500)
    first, second = (IVFIndex.build(ExactIndex(vectors, torch.arange(1500))) for _ in range(2))
    assert (first.to_bytes() == second.to_bytes()).all()
    assert (first.recall, first.nprobe) == (second.recall, second.nprobe)


@pytest.mark.parametrize("count", [1, 2, 9, 60])
def test_small_corpora_with_all_lists_are_exact(count):
    passages = random_passages(count, count, 3, 50)
    index = IVFIndex.build(index_of(passages), IVFSettings(target=1.0))
    index.nprobe = index._lists.nlist
    assert_true(index, passages, [[1, 7, -3], [-50, 11, 2]], min(count, 5))


def test_k_hits_even_where_few_lists_are_looked_into():
    passages = random_passages(5, 50, 3, 50)
    index = IVFIndex.build(index_of(passages))
    index.nprobe = 1
    excluded = index.search(torch.tensor([[1.0, 0, 0]]), 1).ids_QK[0].tolist()
    assert_true(index, passages, [[1, 0, 0]], 49, excluded)
    with pytest.raises(NotEnough, match="k is 51"):
        index.search(torch.ones(1, 3), 51)


def test_changes_without_rebuilding():
    passages = random_passages(6, 80, 3, 50)
    index = IVFIndex.build(index_of(passages))
    index.nprobe = index._lists.nlist
    gone, kept, new = list(passages)[:10], list(passages)[10:20], list(range(1000, 1010))
    index.remove(torch.tensor(gone))
    index.replace(torch.tensor(kept), torch.arange(30).view(10, 3).float())
    index.add(torch.tensor(new), torch.arange(30).view(10, 3).float() - 40)
    passages = {i: vector for i, vector in passages.items() if i not in gone}
    passages |= dict(zip(kept, torch.arange(30).view(10, 3).tolist(), strict=True))
    passages |= dict(zip(new, (torch.arange(30).view(10, 3) - 40).tolist(), strict=True))
    assert index.ids.tolist() == sorted(passages)
    assert len(index) == index._lists.ntotal == 80
    assert_true(index, passages, [[1, 7, -3], [-50, 11, 2]], 20)
    with pytest.raises(BadInput):
        index.remove(torch.tensor(gone))
    assert index._lists.ntotal == 80


def test_bytes_round_trip():
    vectors = clustered(500)
    index = IVFIndex.build(ExactIndex(vectors, torch.arange(500)))
    again = IVFIndex(
        ExactIndex(vectors, torch.arange(500)),
        lists_from_bytes(index.to_bytes()),
        settings=index.settings,
        nprobe=index.nprobe,
        recall=index.recall,
    )
    assert again.search(vectors[:20], 5).ids_QK.tolist() == index.search(vectors[:20], 5).ids_QK.tolist()


def test_nothing_to_build_from():
    with pytest.raises(BadInput, match="no passages"):
        IVFIndex.build(ExactIndex(torch.ones(0, 2), torch.tensor([], dtype=torch.int64)))
