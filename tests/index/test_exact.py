"""Exact search against a loop over integers: small whole numbers make every score exact and ties frequent."""

import random
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.errors import BadInput, Diverged, NotEnough
from realmlm.index import exact
from realmlm.index.exact import ExactIndex, Index
from realmlm.index.ivf import IVFIndex, IVFSettings


def truth(
    passages: dict[int, list[int]], query: list[int], k: int, excluded: int = -1
) -> list[tuple[float, int]]:
    """Score every passage, sort by (score, smallest id), cut at k."""
    scored = [
        (-sum(a * b for a, b in zip(vector, query, strict=True)), number)
        for number, vector in passages.items()
        if number != excluded
    ]
    return [(float(-score), number) for score, number in sorted(scored)[:k]]


def assert_true(
    index: Index,
    passages: dict[int, list[int]],
    queries: list[list[int]],
    k: int,
    exclude: list[int] | None = None,
) -> None:
    hits = index.search(
        torch.tensor(queries).float(),
        k,
        exclude_QE=None if exclude is None else torch.tensor(exclude)[:, None],
    )
    assert hits.scores_QK.dtype == torch.float32
    assert hits.ids_QK.dtype == torch.int64
    for row, query in enumerate(queries):
        found = list(zip(hits.scores_QK[row].tolist(), hits.ids_QK[row].tolist(), strict=True))
        assert found == truth(passages, query, k, -1 if exclude is None else exclude[row])


def random_passages(seed: int, count: int, dim: int, spread: int) -> dict[int, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(3 * count, generator=generator)[:count].tolist()
    return dict(
        zip(ids, torch.randint(-spread, spread + 1, (count, dim), generator=generator).tolist(), strict=True)
    )


def index_of(passages: dict[int, list[int]], dtype: torch.dtype = torch.float32) -> ExactIndex:
    return ExactIndex(torch.tensor(list(passages.values())).to(dtype), torch.tensor(list(passages)))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(2, 700),
    dim=st.integers(1, 4),
    spread=st.integers(0, 3),
    k=st.integers(1, 90),
    queries=st.integers(0, 5),
    excluding=st.booleans(),
    scratch=st.sampled_from([64 * 4, 64 * 4 * 3, 2**20]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_search_is_a_sort(seed, count, dim, spread, k, queries, excluding, scratch, dtype):
    passages = random_passages(seed, count, dim, spread)
    asked = (
        torch.randint(-2, 3, (queries, dim), generator=torch.Generator().manual_seed(seed))
        .view(queries, dim)
        .tolist()
    )
    exclude = (
        [[*passages, -1, 10**9][(seed + 7 * row) % (count + 2)] for row in range(queries)]
        if excluding
        else None
    )
    k = min(k, count - 1)
    with (
        patch.object(exact, "CPU_SCRATCH", scratch),
        patch.object(exact, "LEAST_CHUNK", 64),
        patch.object(exact, "PIECE", 50),
    ):
        index = index_of(passages, dtype)
        if not queries:
            hits = index.search(torch.zeros(0, dim), k)
            assert hits.ids_QK.shape == (0, k)
        else:
            assert_true(index, passages, asked, k, exclude)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    steps=st.lists(st.tuples(st.sampled_from(["add", "remove", "replace"]), st.integers(1, 40)), max_size=12),
    blocks=st.integers(1, 4),
)
def test_changes_in_place_equal_a_new_index(seed, steps, blocks):
    passages = random_passages(seed, 150, 2, 1)
    generator = torch.Generator().manual_seed(seed)
    index = ExactIndex.from_blocks(
        [
            (torch.tensor([passages[i] for i in part]).float(), torch.tensor(part))
            for part in (list(passages)[b::blocks] for b in range(blocks))
        ]
    )
    for action, count in steps:
        live = sorted(passages)
        chosen = [live[i] for i in torch.randperm(len(live), generator=generator)[:count].tolist()]
        if action == "add":
            chosen = [
                i
                for i in torch.randint(0, 600, (count,), generator=generator).unique().tolist()
                if i not in passages
            ][::-1]
        new = torch.randint(-1, 2, (len(chosen), 2), generator=generator)
        if action != "add":
            index.remove(torch.tensor(chosen))
            passages = {i: vector for i, vector in passages.items() if i not in chosen}
        if action != "remove":
            index.add(torch.tensor(chosen), new.float())
            passages |= dict(zip(chosen, new.tolist(), strict=True))
        assert index.ids.tolist() == sorted(passages)
        assert len(index) == len(passages)
        if passages:
            assert_true(index, passages, [[1, 0], [1, 1], [0, 0]], max(1, len(passages) // 2))
    asked = sorted(passages)[::-1] * 2
    assert index.vectors(torch.tensor(asked)).tolist() == [[float(x) for x in passages[i]] for i in asked]


def test_float_scores_match_float64():
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(9000, 32, generator=generator)
    queries = torch.randn(600, 32, generator=generator)
    hits = ExactIndex(vectors, torch.arange(9000)).search(queries, 10)
    whole = queries.double() @ vectors.double().T
    torch.testing.assert_close(
        hits.scores_QK.double(), whole.sort(1, descending=True).values[:, :10], atol=1e-4, rtol=0
    )
    torch.testing.assert_close(hits.scores_QK.double(), whole.gather(1, hits.ids_QK), atol=1e-4, rtol=0)


def test_single_additions_stay_few_blocks():
    index = ExactIndex(torch.ones(5, 2), torch.arange(5))
    for number in range(5, 205):
        index.add(torch.tensor([number]), torch.full((1, 2), float(number)))
    assert len(index.blocks) <= 12
    assert index.search(torch.ones(1, 2), 2).ids_QK.tolist() == [[204, 203]]


def test_an_added_tensor_may_be_changed_afterwards():
    index = ExactIndex(torch.ones(1, 2), torch.tensor([0]))
    vectors = torch.full((1, 2), 2.0)
    index.add(torch.tensor([1]), vectors)
    vectors.zero_()
    assert index.vectors(torch.tensor([1])).tolist() == [[2.0, 2.0]]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda index: index.add(torch.tensor([1, 7]), torch.ones(2, 3)),
            "passage ids 7 are in the index already; remove them first",
        ),
        (lambda index: index.add(torch.tensor([1, 1]), torch.ones(2, 3)), "come twice"),
        (lambda index: index.add(torch.tensor([-4]), torch.ones(1, 3)), "negative"),
        (lambda index: index.add(torch.tensor([1]), torch.ones(1, 4)), "vectors of 3 numbers"),
        (lambda index: index.add(torch.tensor([1]), torch.ones(2, 3)), "1 passage ids came with 2 vectors"),
        (
            lambda index: index.add(torch.tensor([1, 2]), torch.tensor([[1.0] * 3, [torch.nan] * 3])),
            "passage ids 2 have vectors with NaN",
        ),
        (lambda index: index.add(torch.tensor([1.5]), torch.ones(1, 3)), "give one row of int64"),
        (lambda index: index.remove(torch.tensor([8, 99])), "passage ids 99 are not in the index"),
        (lambda index: index.remove(torch.tensor([8, 8])), "come twice"),
        (lambda index: index.vectors(torch.tensor([7, 6])), "passage ids 6 are not in the index"),
        (lambda index: index.search(torch.ones(1, 4), 1), "vectors of 3 numbers"),
        (lambda index: index.search(torch.full((1, 3), torch.nan), 1), "NaN or infinity"),
        (lambda index: index.search(torch.ones(1, 3), 0), "at least one"),
        (
            lambda index: index.search(torch.ones(2, 3), 1, exclude_QE=torch.tensor([[7]])),
            r"2 queries came with exclusions of the shape \(1, 1\)",
        ),
    ],
)
def test_bad_input_changes_nothing(act, message):
    index = ExactIndex(torch.arange(6.0).view(2, 3), torch.tensor([8, 7]))
    with pytest.raises((BadInput, Diverged), match=message):
        act(index)
    assert index.ids.tolist() == [7, 8]
    assert index.vectors(torch.tensor([8, 7])).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_not_enough_passages():
    index = ExactIndex(torch.ones(3, 2), torch.arange(3))
    with pytest.raises(
        NotEnough, match="k is 4, but 3 passages can be searched; use --k 3 or a larger corpus"
    ):
        index.search(torch.ones(1, 2), 4)
    with pytest.raises(NotEnough, match="k is 3, but 2 passages"):
        index.search(torch.ones(2, 2), 3, exclude_QE=torch.tensor([[-1], [1]]))
    assert index.search(torch.ones(1, 2), 3, exclude_QE=torch.tensor([[77]])).ids_QK.tolist() == [[0, 1, 2]]


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 200),
    queries=st.integers(1, 4),
    excluded=st.integers(0, 12),
    lists=st.sampled_from([0, 1, 7]),
)
def test_any_number_of_passages_can_be_left_out(
    seed: int, count: int, queries: int, excluded: int, lists: int
) -> None:
    passages = random_passages(seed, count + excluded, 3, 2)
    chooser = random.Random(seed)
    rows = [
        (some := chooser.sample(list(passages), chooser.randint(0, excluded))) + [-1] * (excluded - len(some))
        for _ in range(queries)
    ]
    asked = torch.randint(-2, 3, (queries, 3), generator=torch.Generator().manual_seed(seed)).float()
    index: Index = index_of(passages)
    if lists:  # all of them are looked into
        index = IVFIndex.build(index_of(passages), IVFSettings(lists=lists, target=1.1))
    k = min(5, count)
    hits = index.search(asked, k, exclude_QE=torch.tensor(rows, dtype=torch.int64).view(queries, excluded))
    for row, query in enumerate(asked.tolist()):
        left = {number: vector for number, vector in passages.items() if number not in rows[row]}
        assert list(zip(hits.scores_QK[row].tolist(), hits.ids_QK[row].tolist(), strict=True)) == truth(
            left, query, k
        )


def test_too_large_for_half_precision():
    index = ExactIndex(torch.ones(1, 2).half(), torch.tensor([0]))
    with pytest.raises(BadInput, match="infinity"):
        index.add(torch.tensor([1]), torch.full((1, 2), 1e6))


def test_wrong_dtype():
    with pytest.raises(BadInput, match="float64"):
        ExactIndex(torch.ones(1, 2).double(), torch.tensor([0]))


def test_what_is_excluded_counts_once_and_costs_what_is_used() -> None:
    vectors = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    index = ExactIndex(vectors, torch.arange(9))
    queries = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    once = index.search(queries, 7, exclude_QE=torch.tensor([[3, -1], [5, 0]]))
    many = torch.full((2, 5000), -1)
    many[0, [7, 99, 4000]] = 3
    many[1, [0, 1, 4999]] = torch.tensor([5, 0, 5])
    with patch.object(index, "best", wraps=index.best) as best:
        again = index.search(queries, 7, exclude_QE=many)
    assert again.ids_QK.tolist() == once.ids_QK.tolist()
    assert again.scores_QK.tolist() == once.scores_QK.tolist()
    assert best.call_args.args[1] == 9, "k and two more"
    assert not (set(again.ids_QK[0].tolist()) & {3} | set(again.ids_QK[1].tolist()) & {0, 5})
    with pytest.raises(NotEnough, match="7 passages can be searched"):
        index.search(queries, 8, exclude_QE=many)


@given(st.lists(st.lists(st.integers(-1, 6), min_size=5, max_size=5), min_size=1, max_size=4))
def test_each_excluded_passage_stands_once_in_its_row(rows: list[list[int]]) -> None:
    found = exact.each_once(torch.tensor(rows))
    kept = [{number for number in row if number >= 0} for row in rows]
    assert [sorted(number for number in row if number >= 0) for row in found.tolist()] == list(
        map(sorted, kept)
    )
    most = max(map(len, kept))
    assert found.shape[1] <= max(0, 2 * most - 1)
