"""What a training stage learns: parameters with their rates, examples, and a loss over them."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from realmlm.log import Clock
from realmlm.model.realm import Realm
from realmlm.ranks import ALONE, Ranks


@dataclass(frozen=True)
class Group:
    """Parameters that learn at one rate; their gradient is clipped apart from that of others."""

    parameters: list[nn.Parameter]
    """Of the model, or the objective's own: those are brought to the model's device before the first step and
    saved with every checkpoint, not with the model."""
    lr: float
    """The highest rate: it rises to it and falls again, as `realmlm.settings.Optim` says."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", list(self.parameters))


def retriever_groups(
    model: Realm, parameters: Sequence[nn.Parameter], *, lr: float, scale_lr: float
) -> dict[str, Group]:
    """These weights of a retriever, and if it is learned, the scale of f(x,z) at a rate of its own: at the
    1e-5 that suits a trained encoder it would take 69,000 steps to double."""
    scale = model.query.log_scale
    groups = {"retriever": Group([parameter for parameter in parameters if parameter is not scale], lr)}
    return groups if scale is None else groups | {"scale": Group([scale], scale_lr)}


def documents_learn(model: Realm, groups: dict[str, Group]) -> bool:
    """Does the document tower move? Else an index of it stays as good as new."""
    tower = set(model.document.parameters())
    return any(group.lr and tower & set(group.parameters) for group in groups.values())


def scale_of(model: Realm) -> dict[str, Tensor]:
    """For the row of metrics: the learned scale of f(x,z), if there is one."""
    scale = model.query.log_scale
    return {} if scale is None else {"scale": scale.exp()}


@dataclass(frozen=True)
class Mean:
    """A number for the row that only some examples have, as a sum over them and how many they are. Then a row
    has the mean over all of its examples that have it, and none where no example does, however many steps,
    parts of batches or ranks it comes from; a mean of means would not."""

    sum: Tensor
    count: Tensor

    @classmethod
    def where(cls, valid_B: Tensor, values_B: Tensor) -> "Mean":
        """The mean over the valid entries."""
        return cls(torch.where(valid_B, values_B.detach(), 0.0).sum(), valid_B.sum())

    @classmethod
    def of(cls, number: "Tensor | Mean") -> "Mean":
        """A plain number counts once for each step."""
        if isinstance(number, cls):
            return number
        value = torch.as_tensor(number).detach()
        return cls(value, torch.ones_like(value))

    def __float__(self) -> float:
        count = float(self.count)
        return float(self.sum) / count if count else float("nan")


Numbers = Mapping[str, Tensor | Mean]
"""What a row of metrics is to show, by name."""


@dataclass(frozen=True)
class Staged:
    """What a step computes from: tensors on the device, and all that is decided by numbers of the host."""

    tensors: dict[str, Tensor]
    sizes: tuple[Any, ...]
    way: Hashable = None
    """Which of several things is done with them, where steps are not all alike."""


class Objective(ABC):
    """A loss over the examples of a step, and what it needs between steps.

    A new one needs `groups`, `draw` and `loss`; everything else has a default that does nothing.
    """

    ranks: Ranks = ALONE
    """Those that train together, set before the first step. Each draws its share of a step's batch, and the
    loss is the mean over the ranks: only a loss that compares the examples of a batch needs to know."""

    @abstractmethod
    def groups(self) -> dict[str, Group]:
        """What learns, by name. The order must be the same each time: a resumed run relies on it."""

    @abstractmethod
    def draw(self, first: int, count: int) -> Any:
        """The examples from position `first` on. They must not depend on what is learned: another process may
        draw them ahead."""

    @abstractmethod
    def loss(self, drawn: Any, step: int, clock: Clock) -> tuple[Tensor, Numbers]:
        """Mean loss of what was drawn, a step's batch or a part of it, and a dict of numbers for the row of
        metrics: a mean over all examples as it is, one over some of them as `Mean`, by the same names on all
        ranks.

        `clock("read")` says that the phase of this name begins: the row shows the seconds of each.
        """

    def stage(self, drawn: Any, step: int, clock: Clock) -> Staged | None:
        """The part of `loss` that looks things up, if it can be told apart from what computes: then `compute`
        is recorded once for each kind of sizes and played back on a GPU. None: it cannot."""
        return None

    def compute(self, staged: Staged) -> tuple[Tensor, Numbers]:
        """What `loss` gives, from what `stage` gave: by tensors alone, nothing is asked of the device."""
        raise NotImplementedError

    def prepare(self, model: Realm) -> None:
        """Called before the first step that this process makes. Training makes a model's calibration untrue,
        so it is forgotten; an objective that hardly moves the scores may leave it."""
        model.config = replace(model.config, calibration=None)

    def before_step(self, step: int) -> dict[str, Any]:
        """Housekeeping before a step, such as swapping the index; numbers for the row."""
        return {}

    def measure(self, done: int, clock: Clock) -> dict[str, Any]:
        """What is looked at beside training (a probe) after so many steps; numbers for the row."""
        return {}

    def slowed(self) -> dict[str, float]:
        """By which factor a group's rate is lower than planned from now on, by its name."""
        return {}

    def remarks(self, last_row: dict[str, Any]) -> list[str]:
        """What is to be said of a finished run, given its last row of metrics."""
        return []

    def state(self) -> dict[str, Any]:
        """What must be saved beside weights and optimizer, as JSON."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        return None

    def kept(self) -> dict[str, Tensor]:
        """Tensors that do not learn and must be saved too, by name; a run that goes on fills them again."""
        return {}
