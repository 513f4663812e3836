"""Approximate search: exact where it looks everywhere, as good as it says elsewhere."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.errors import ArtefactDamaged, BadInput, NotEnough
from realmlm.index import ivf
from realmlm.index.exact import ExactIndex
from realmlm.index.ivf import IVFIndex, IVFSettings
from tests.index.test_exact import assert_true, index_of, random_passages, truth


def clustered(count: int, dim: int = 16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(40, dim, generator=generator)
    return centres[torch.randint(40, (count,), generator=generator)] + torch.randn(
        count, dim, generator=generator
    )


def found_in_lists(index: IVFIndex, queries: torch.Tensor, k: int) -> float:
    """Share of the true k best that stand in the lists each query looks into."""
    home = homes(index)
    shares = []
    true = ExactIndex(index.vectors(index.ids).float(), index.ids).search(queries, k)
    looked = ExactIndex(index.centroids_LD, torch.arange(len(index.centroids_LD))).search(
        queries, index.nprobe
    )
    for ids, lists in zip(true.ids_QK.tolist(), looked.ids_QK.tolist(), strict=True):
        shares.append(sum(home[i] in lists for i in ids) / k)
    return sum(shares) / len(shares)


def test_recall_is_measured_and_reached():
    vectors = clustered(3000)
    plain = ExactIndex(vectors, torch.arange(3000))
    index = IVFIndex.build(ExactIndex(vectors, torch.arange(3000)), queries_QD=vectors[:100] + 0.1)
    assert index.recall == pytest.approx(min(found_in_lists(index, vectors[:100] + 0.1, k) for k in (1, 8)))
    assert index.recall >= 0.95
    assert index.nprobe < len(index.centroids_LD)
    assert (
        IVFIndex.build(plain, IVFSettings(target=0.5)).nprobe
        < IVFIndex.build(plain, IVFSettings(target=1.0)).nprobe
    )


def test_recall_is_that_of_the_lists_not_of_the_search_of_everything_where_they_hold_too_few(capsys):
    vectors = torch.randn(300, 16, generator=torch.Generator().manual_seed(0))
    queries = vectors[:100] + torch.randn(100, 16, generator=torch.Generator().manual_seed(1))
    index = IVFIndex.build(ExactIndex(vectors, torch.arange(300)), queries_QD=queries)
    assert index.nprobe > 1  # one list holds about 4 passages: `search` for 8 finds them all, elsewhere
    at_1, at_8 = (found_in_lists(index, queries, k) for k in (1, 8))
    assert min(at_1, at_8) == pytest.approx(index.recall)
    assert index.recall >= 0.95
    assert (
        f"recall@1 {at_1:.3f}, recall@8 {at_8:.3f} of exact search, looking into {index.nprobe} of 69"
        in capsys.readouterr().err
    )


def test_deterministic_by_seed():
    vectors = clustered(1500)
    first, second = (IVFIndex.build(ExactIndex(vectors, torch.arange(1500))) for _ in range(2))
    assert torch.equal(first.centroids_LD, second.centroids_LD)
    assert torch.equal(first.offsets_L, second.offsets_L)
    assert torch.equal(first.vectors(first.ids), second.vectors(second.ids))
    assert (first.recall, first.nprobe) == (second.recall, second.nprobe)


@pytest.mark.parametrize("count", [1, 2, 9, 60])
def test_small_corpora_with_all_lists_are_exact(count):
    passages = random_passages(count, count, 3, 50)
    index = IVFIndex.build(index_of(passages), IVFSettings(target=1.0))
    index.nprobe = len(index.centroids_LD)
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
    index.nprobe = len(index.centroids_LD)
    gone = list(passages)[:10]
    kept = list(passages)[10:20]
    new = list(range(1000, 1010))
    index.remove(torch.tensor(gone + kept))
    index.add(torch.tensor(kept), torch.arange(30).view(10, 3).float())
    index.add(torch.tensor(new), torch.arange(30).view(10, 3).float() - 40)
    passages = {i: vector for i, vector in passages.items() if i not in gone}
    passages |= dict(zip(kept, torch.arange(30).view(10, 3).tolist(), strict=True))
    passages |= dict(zip(new, (torch.arange(30).view(10, 3) - 40).tolist(), strict=True))
    assert index.ids.tolist() == sorted(passages)
    assert len(index) == 80
    assert_true(index, passages, [[1, 7, -3], [-50, 11, 2]], 20)
    with pytest.raises(BadInput):
        index.remove(torch.tensor(gone))
    assert len(index) == 80


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(2, 300),
    spread=st.integers(0, 3),
    k=st.integers(1, 20),
    nprobe=st.integers(1, 12),
    queries=st.integers(0, 5),
    excluding=st.booleans(),
    edited=st.booleans(),
    scratch=st.sampled_from([1, 400, 2**24]),
)
def test_a_query_sees_the_lists_of_its_nearest_centroids_and_what_was_added(
    seed, count, spread, k, nprobe, queries, excluding, edited, scratch
):
    passages = random_passages(seed, count, 3, spread)
    index = IVFIndex.build(index_of(passages), IVFSettings(lists=12, k=1))
    index.nprobe = min(nprobe, len(index.centroids_LD))
    home = homes(index)
    if edited:
        gone = list(passages)[::3]
        new = {10**6 + number: [number % 3, 1, -1] for number in range(5)}
        index.remove(torch.tensor(gone))
        index.add(torch.tensor(list(new)), torch.tensor(list(new.values())).float())
        passages = {i: vector for i, vector in passages.items() if i not in gone} | new
    asked = torch.randint(-2, 3, (queries, 3), generator=torch.Generator().manual_seed(seed)).float()
    exclude = (
        [[*passages, -1][(seed + 7 * row) % (len(passages) + 1)] for row in range(queries)]
        if excluding
        else [-1] * queries
    )
    k = max(1, min(k, len(passages) - 1))
    with patch.object(ivf, "SCRATCH", scratch):
        hits = index.search(
            asked, k, exclude_QE=torch.tensor(exclude, dtype=torch.int64)[:, None] if excluding else None
        )
    for row, query in enumerate(asked.tolist()):
        looked = (
            ExactIndex(index.centroids_LD, torch.arange(len(index.centroids_LD)))
            .search(asked, index.nprobe)
            .ids_QK[row]
            .tolist()
        )
        seen = {
            i: vector
            for i, vector in passages.items()
            if home.get(i, looked[0]) in looked and i != exclude[row]
        }
        expected = truth(seen if len(seen) >= k else passages, query, k, exclude[row])
        assert list(zip(hits.scores_QK[row].tolist(), hits.ids_QK[row].tolist(), strict=True)) == expected


def homes(index: IVFIndex) -> dict[int, int]:
    """The list of each passage."""
    lists = torch.arange(len(index.centroids_LD)).repeat_interleave(index.offsets_L.diff())
    return dict(zip(index.blocks[0].ids_N.tolist(), lists.tolist(), strict=True))


@pytest.mark.parametrize(
    ("few", "looked", "least", "most"), [(4096, 16, 1.0, 1.0), (100, 4, 0.99, 1.0), (8, 1, 0.5, 0.99)]
)
def test_a_passage_is_in_the_list_of_its_nearest_centroid(few, looked, least, most):
    """Where there are many, only those of the nearest groups are compared: fewer groups, more often another
    than the nearest."""
    vectors = clustered(4000)
    with patch.object(ivf, "FEW_LISTS", few), patch.object(ivf, "NEAR_GROUPS", looked):
        index = IVFIndex.build(ExactIndex(vectors, torch.arange(4000)))
    scores = vectors.double() @ index.centroids_LD.double().t()
    assert scores.shape == (4000, 253)
    home = torch.tensor([number for _, number in sorted(homes(index).items())])
    chosen = scores[torch.arange(4000), home]
    best = scores.max(1).values
    assert least <= (chosen >= best - 1e-4).double().mean().item() <= most


def test_lists_that_do_not_fit_are_refused():
    index = IVFIndex.build(ExactIndex(clustered(50), torch.arange(50)), IVFSettings(lists=4))
    about = {"settings": index.settings, "nprobe": 1, "recall": 1.0}
    short = index.offsets_L.clone()
    backward = index.offsets_L.clone()
    short[-1] -= 1
    backward[1] = backward[2] + 1
    wrong = [
        (index.centroids_LD, short),
        (index.centroids_LD, backward),
        (index.centroids_LD[:3], index.offsets_L),
    ]
    for centroids, offsets in [*wrong, (torch.ones(4, 9), index.offsets_L)]:
        with pytest.raises(ArtefactDamaged, match="build the index again"):
            IVFIndex(index, centroids, offsets, **about)  # type: ignore[arg-type]


def test_nothing_to_build_from():
    with pytest.raises(BadInput, match="no passages"):
        IVFIndex.build(ExactIndex(torch.ones(0, 2), torch.tensor([], dtype=torch.int64)))
