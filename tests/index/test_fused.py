"""The search of `realmlm.index.fused` against the index on a CPU; it needs a GPU."""

import pytest
import torch
from torch import Tensor

from realmlm.errors import BadInput
from realmlm.index.exact import ExactIndex, Hits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
SHAPES = [
    (1, 128, 1, 1),
    (63, 16, 2, 5),
    (64, 64, 1, 64),
    (1000, 48, 17, 9),
    (30_000, 80, 33, 20),
    (50_001, 384, 70, 8),
]
SHAPES += [
    (131_073, 128, 1, 1),
    (200_000, 128, 130, 3),
    (300_000, 64, 300, 100),
    (40_000, 1024, 65, 8),
    (40_000, 400, 5, 8),
    (20_000, 640, 129, 2),
]


def draw(count: int, dim: int, dtype: torch.dtype, seed: int, *, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, dim, generator=generator) * spread).to(dtype)


def same(
    vectors: Tensor,
    queries: Tensor,
    k: int,
    *,
    ids: Tensor | None = None,
    gone: Tensor | None = None,
    exclude: Tensor | None = None,
) -> Hits:
    """Search on both; ids are equal wherever scores in float64 differ by more than float32 can tell, and
    scores everywhere."""
    ids = torch.arange(len(vectors)) if ids is None else ids
    ours = ExactIndex(vectors, ids, device="cuda")
    theirs = ExactIndex(vectors, ids)
    if gone is not None and len(gone):
        ours.remove(gone.cuda())
        theirs.remove(gone)
    hits = ours.search(queries.cuda(), k, exclude_QE=None if exclude is None else exclude.cuda())
    truth = theirs.search(queries, k, exclude_QE=exclude)
    scores = hits.scores_QK.cpu()
    found = hits.ids_QK.cpu()
    room = 2e-6 * queries.norm(dim=1, keepdim=True) * vectors.float().norm(dim=1).max() + 1e-30
    assert ((scores - truth.scores_QK).abs() <= room).all()
    row = torch.empty(int(ids.max()) + 1, dtype=torch.int64)
    row[ids] = torch.arange(len(ids))
    exact = torch.einsum("qd,qkd->qk", queries.double(), vectors[row[found]].double())
    expected = torch.einsum("qd,qkd->qk", queries.double(), vectors[row[truth.ids_QK]].double())
    assert (
        (exact - expected).abs() <= room
    ).all()  # another passage stands there only if its score is the same to float32
    assert all(len(set(some)) == k for some in found.tolist())
    alike = (found == truth.ids_QK).float().mean()
    assert alike > 0.99
    return hits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("count", "dim", "queries", "k"), SHAPES)
def test_any_shape(count: int, dim: int, queries: int, k: int, dtype: torch.dtype) -> None:
    same(draw(count, dim, dtype, 1), draw(queries, dim, torch.float32, 2), k)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("queries", [1, 16, 100])
def test_removed_and_excluded_passages_never_count(queries: int, dtype: torch.dtype) -> None:
    vectors = draw(60_000, 64, dtype, 3)
    asked = draw(queries, 64, torch.float32, 4)
    best = ExactIndex(vectors, torch.arange(60_000)).search(asked, 12).ids_QK
    gone = best[:, 0].unique()
    exclude = torch.cat([best[:, 1:3], torch.full((queries, 1), -1), best[:, 5:6]], 1)
    exclude = exclude.where(~torch.isin(exclude, gone), -1)
    hits = same(vectors, asked, 6, gone=gone, exclude=exclude)
    assert not torch.isin(hits.ids_QK.cpu(), gone).any()
    assert not (hits.ids_QK.cpu()[:, :, None] == exclude[:, None]).any()
    most = torch.randperm(60_000, generator=torch.Generator().manual_seed(5))[:59_980]
    same(vectors, asked, 20, gone=most)  # few are left, far apart


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_equal_passages_come_by_the_smallest_id(dtype: torch.dtype) -> None:
    vectors = draw(100_000, 128, dtype, 6)
    asked = draw(9, 128, torch.float32, 7)
    for first, last in ((10, 14), (70_000, 70_300), (99_990, 100_000)):
        vectors[first:last] = vectors[3]
    asked[0] = vectors[3].float() * 2
    asked[1] = vectors[3].float() + 0.01
    equal = [3, 10, 11, 12, 13, *range(70_000, 70_300), *range(99_990, 100_000)]
    for k in (1, 4, 8, 40):
        hits = same(vectors, asked, k)
        assert hits.ids_QK[0].tolist() == equal[:k]
        assert len(set(hits.scores_QK[0].tolist())) == 1
    backwards = torch.arange(100_000).flip(0) * 3  # ids that do not stand in order
    hits = same(vectors, asked, 8, ids=backwards)
    assert hits.ids_QK[0].tolist() == sorted(backwards[equal].tolist())[:8]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_many_passages_alike(dtype: torch.dtype) -> None:
    """Scores closer together than rounding tells apart: decided in another way, and right."""
    vectors = draw(1, 128, dtype, 8).repeat(70_000, 1)
    vectors[::7] = (vectors[::7].float() * (1 + 2**-7)).to(dtype)
    asked = draw(70, 128, torch.float32, 9)
    hits = ExactIndex(vectors, torch.arange(70_000), device="cuda").search(asked.cuda(), 10)
    longer = asked.double() @ vectors[0].double() > asked.double() @ vectors[1].double()
    assert hits.ids_QK.cpu()[longer].unique(dim=0).tolist() == [list(range(0, 70, 7))]
    assert hits.ids_QK.cpu()[~longer].unique(dim=0).tolist() == [[1, 2, 3, 4, 5, 6, 8, 9, 10, 11]]


@pytest.mark.parametrize(("spread", "size"), [(1e-4, 1.0), (100.0, 1e-20), (1.0, 1e20), (0.01, 1e-6)])
def test_small_and_large_numbers(spread: float, size: float) -> None:
    same(draw(50_000, 64, torch.float16, 10, spread=spread), draw(70, 64, torch.float32, 11, spread=size), 8)


@pytest.mark.parametrize("queries", [1, 70])
def test_queries_that_half_precision_rounds_away(queries: int) -> None:
    """Passages that differ by less than a query's rounding: two thousand near the best."""
    base = draw(1, 128, torch.float32, 12)
    vectors = (base + 0.002 * draw(100_000, 128, torch.float32, 13)).to(torch.float16)
    same(vectors, base + 0.3 * draw(queries, 128, torch.float32, 14), 8)


def test_blocks_that_were_added() -> None:
    index, other = (
        ExactIndex(draw(70_000, 64, torch.float16, 15), torch.arange(70_000), device=place)
        for place in ("cuda", "cpu")
    )
    for number in range(3):
        ids = torch.arange(100) + 10**6 + 1000 * number
        vectors = draw(100, 64, torch.float16, 16 + number)
        vectors[:3] = draw(70_000, 64, torch.float16, 15)[:3]
        index.add(ids.cuda(), vectors.cuda())
        other.add(ids, vectors)
    asked = torch.cat([draw(70_000, 64, torch.float16, 15)[:3].float(), draw(5, 64, torch.float32, 20)])
    hits = index.search(asked.cuda(), 5)
    truth = other.search(asked, 5)
    assert hits.ids_QK.cpu().tolist() == truth.ids_QK.tolist()
    assert hits.ids_QK[1].tolist()[:4] == [1, 10**6 + 1, 10**6 + 1001, 10**6 + 2001]


def test_drawn_at_random() -> None:
    generator = torch.Generator().manual_seed(21)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    for seed in range(40):
        count = 2 ** pick(6, 17) + pick(0, 70)
        dim = 16 * pick(1, 30)
        queries = pick(1, 200)
        k = pick(1, max(2, min(100, count // 4)))
        dtype = (torch.float16, torch.bfloat16)[pick(0, 2)]
        vectors = draw(count, dim, dtype, seed)
        vectors[pick(0, count) :: 5] = vectors[pick(0, count)]
        gone = torch.randperm(count, generator=generator)[: pick(0, count // 2)]
        exclude = torch.randint(-1, count, (queries, pick(0, 4)), generator=generator)
        if k + len(gone) + exclude.shape[1] >= count:
            continue
        asked = draw(queries, dim, torch.float32, seed + 1000)
        index = ExactIndex(vectors, torch.arange(count), device="cuda")
        index.remove(gone.cuda())
        hits = index.search(asked.cuda(), k, exclude_QE=exclude.cuda())
        truth = asked.double().cuda() @ vectors.cuda().double().T
        truth[:, gone.cuda()] = -torch.inf
        for place in range(exclude.shape[1]):
            rows = (exclude[:, place] >= 0).nonzero()[:, 0].cuda()
            truth[rows, exclude[:, place].cuda()[rows]] = -torch.inf
        best = truth.topk(k).values
        room = 2e-6 * asked.norm(dim=1, keepdim=True).cuda() * vectors.float().norm(dim=1).max().cuda()
        assert ((hits.scores_QK - best).abs() <= room).all()
        assert ((truth.gather(1, hits.ids_QK) - best).abs() <= room).all()
        order = (hits.scores_QK[:, 1:] < hits.scores_QK[:, :-1]) | (
            (hits.scores_QK[:, 1:] == hits.scores_QK[:, :-1]) & (hits.ids_QK[:, 1:] > hits.ids_QK[:, :-1])
        )
        assert order.all()


@pytest.mark.parametrize("queries", [1, 40])
def test_searches_that_are_repeated_follow_the_index(queries: int) -> None:
    """A recorded search gives what a fresh one gives, whatever was removed in between; results of an
    earlier one stay as they were."""
    vectors = draw(50_000, 64, torch.float16, 30)
    index = ExactIndex(vectors, torch.arange(50_000), device="cuda")
    before = None
    for turn in range(6):
        asked = draw(queries, 64, torch.float32, 40 + turn)
        hits = index.search(asked.cuda(), 5)
        truth = asked.double() @ vectors.double().T
        truth[:, ~torch.isin(torch.arange(50_000), index.ids.cpu())] = -torch.inf
        assert hits.ids_QK.cpu().tolist() == truth.topk(5).indices.tolist()
        if before is not None:
            assert before[0].ids_QK.cpu().tolist() == before[1]
        before = hits, hits.ids_QK.cpu().tolist()
        index.remove(hits.ids_QK[:, 0].unique())


def test_queries_that_are_no_numbers_are_refused() -> None:
    index = ExactIndex(draw(50_000, 64, torch.float16, 30), torch.arange(50_000), device="cuda")
    for bad in (torch.nan, torch.inf):
        asked = draw(3, 64, torch.float32, 1).cuda()
        asked[1, 5] = bad
        with pytest.raises(BadInput):
            index.search(asked, 5)
