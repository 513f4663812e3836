"""What ranks check of an index that each holds a part of."""

import pytest
import torch
from torch import Tensor

from realmlm.errors import NotEnough
from realmlm.index.exact import ExactIndex
from realmlm.index.parted import over_ranks
from realmlm.ranks import Ranks

ROUNDS = 30


def search() -> None:
    """An index over the ranks finds what one index does: few different numbers, so that many scores are equal;
    passages removed; exclusions; more and fewer queries on one rank than on another."""
    ranks = Ranks.join()
    for seed in range(ROUNDS):
        same = torch.Generator().manual_seed(seed)  # on all ranks
        mine = torch.Generator().manual_seed(seed * 100 + ranks.rank)

        def number(least: int, most: int, generator: torch.Generator = same) -> int:
            return int(torch.randint(least, most + 1, (), generator=generator))

        passages = number(1, 40) if seed % 3 else number(100, 300)
        dim = number(1, 4)
        ids_N = torch.randperm(passages * 2, generator=same)[:passages]
        vectors_ND = torch.randint(-2, 3, (passages, dim), generator=same).float()
        whole = ExactIndex(vectors_ND, ids_N)
        if passages > 4:
            whole.remove(ids_N[: number(0, 3)])
        parted = over_ranks(whole, ranks)
        assert len(parted) == len(whole)
        assert parted.ids.equal(whole.ids)
        queries_QD = torch.randint(-2, 3, (number(0, 5, mine), dim), generator=mine).float()
        k = number(1, len(whole))
        exclude_QE = None
        if seed % 2:
            width = number(0, min(3, len(whole) - k), mine)
            exclude_QE = torch.randint(-1, passages * 2, (len(queries_QD), width), generator=mine)
        expected = whole.search(queries_QD, k, exclude_QE=_each_once(exclude_QE))
        found = parted.search(queries_QD, k, exclude_QE=exclude_QE)
        assert found.ids_QK.equal(expected.ids_QK), (seed, ranks.rank)
        assert found.scores_QK.equal(expected.scores_QK), (seed, ranks.rank)
        asked_N = whole.ids[torch.randint(len(whole), (number(0, 9, mine),), generator=mine)]
        assert parted.vectors(asked_N).equal(whole.vectors(asked_N))
        asked_N = torch.arange(number(0, 9, mine))
        assert parted.contains(asked_N).equal(whole.contains(asked_N))
        gathered = ranks.gather(torch.full((2, 3), float(ranks.rank)).requires_grad_())
        assert gathered[:, 0].tolist() == [rank for rank in range(ranks.count) for _ in range(2)]
    with pytest.raises(NotEnough, match=f"{len(whole)} passages can be searched"):
        parted.search(vectors_ND[:1], len(whole) + 1)


def _each_once(exclude_QE: Tensor | None) -> Tensor | None:
    """One index counts an exclusion that is given twice as two."""
    if exclude_QE is None:
        return None
    rows = [
        row.where(torch.tensor([value not in row[:at] for at, value in enumerate(row)], dtype=torch.bool), -1)
        for row in exclude_QE
    ]
    return torch.stack(rows) if rows else exclude_QE


def gradients() -> None:
    """What is gathered has the gradient that it has in one process: of the mean over the ranks' losses."""
    ranks = Ranks.join()
    everyone_AD = torch.arange(8.0 * ranks.count).view(-1, 2).requires_grad_()
    weights_RA = torch.randn(ranks.count, len(everyone_AD), generator=torch.Generator().manual_seed(0))
    (weights_RA @ everyone_AD.square()).sum(1).mean().backward()
    rows = slice(4 * ranks.rank, 4 * ranks.rank + 4)
    mine_BD = everyone_AD.detach()[rows].clone().requires_grad_()
    (weights_RA[ranks.rank] @ ranks.gather(mine_BD).square()).sum().backward()
    assert mine_BD.grad is not None
    assert everyone_AD.grad is not None
    torch.testing.assert_close(mine_BD.grad / ranks.count, everyone_AD.grad[rows])
    parts = [torch.full((3, 2), float(ranks.rank)), torch.tensor(2.0 * ranks.rank)]
    ranks.average(parts)
    middle = (ranks.count - 1) / 2
    assert [part.unique().tolist() for part in parts] == [[middle], [2 * middle]]


def check() -> None:
    """All of it: starting ranks takes longer."""
    search()
    gradients()
