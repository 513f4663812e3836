"""An index over ranks, as real processes."""

import pytest

from tests.index import parted
from tests.ranks import together


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_find_what_one_index_finds_and_gather_with_gradients(ranks: int) -> None:
    together(ranks, parted.check)
