"""An index over ranks, as real processes."""

import pytest

from tests.index import parted
from tests.ranks import together


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_find_together_what_one_index_finds(ranks: int) -> None:
    together(ranks, parted.search)


def test_what_ranks_gather_has_the_gradient_of_one_process() -> None:
    together(2, parted.gradients)
