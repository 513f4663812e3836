"""The query tower of the step that an index was made at, for searching that index."""

from copy import deepcopy

import torch
from torch import Tensor

from realmlm.model.encoders import Tower


class Asker:
    """Copies of the query tower: the one that belongs to the index in use, and that of the next one.

    A tower that goes on learning moves away from the vectors of an older index, however good it is: what it
    finds there is worse with every step, until the next index. Asked by the tower it belongs to, an index
    finds what it would have found when it was made.
    """

    def __init__(self, tower: Tower) -> None:
        """`tower` is that of the first index."""
        self.tower = deepcopy(tower).eval().requires_grad_(False)
        self._next = deepcopy(self.tower)

    def note(self, tower: Tower) -> None:
        """An index is about to be made beside this tower."""
        _copy(tower, self._next)

    def use(self) -> None:
        """That index is in use from now on. The weights stay where they are: what was recorded finds them."""
        _copy(self._next, self.tower)

    def kept(self) -> dict[str, Tensor]:
        """The weights of both, which a checkpoint needs."""
        towers = (("used", self.tower), ("next", self._next))
        return {
            f"asker.{which}.{name}": tensor
            for which, tower in towers
            for name, tensor in tower.named_parameters()
        }


@torch.no_grad()
def _copy(tower: Tower, to: Tower) -> None:
    """Weights alone: what else a tower has does not learn."""
    for mine, new in zip(to.parameters(), tower.parameters(), strict=True):
        mine.copy_(new)
