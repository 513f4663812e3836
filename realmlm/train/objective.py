"""What a training stage learns: parameters with their rates, examples, and a loss over them."""

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from realmlm.model.realm import Realm


@dataclass(frozen=True)
class Group:
    """Parameters that learn at one rate; their gradient is clipped apart from that of others."""

    parameters: list[nn.Parameter]
    lr: float
    """The highest rate: it rises to it and falls again, as `realmlm.settings.Optim` says."""


class Clock:
    """Seconds a step spends in each phase, the mean since the last row.

    A GPU works behind the program's back; waiting for it at every phase would slow it down. So there only one
    step of each row is measured.
    """

    def __init__(self, device: torch.device) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._gpu = device.type == "cuda"
        self._steps = 0
        self._on = False

    def begin_step(self, *, first_of_row: bool) -> None:
        self._on = first_of_row or not self._gpu
        self._steps += self._on

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        if not self._on:
            yield
            return
        begun = self._now()
        yield
        self._seconds[phase] += self._now() - begun

    def _now(self) -> float:
        if self._gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def take(self) -> dict[str, float]:
        seconds = {phase: round(value / max(1, self._steps), 5) for phase, value in self._seconds.items()}
        self._seconds.clear()
        self._steps = 0
        return seconds


class Objective(ABC):
    """A loss over the examples of a step, and what it needs between steps.

    A new one needs `groups`, `draw` and `loss`; everything else has a default that does nothing.
    """

    @abstractmethod
    def groups(self) -> dict[str, Group]:
        """What learns, by name. The order must be the same each time: a resumed run relies on it."""

    @abstractmethod
    def draw(self, first: int, count: int) -> Any:
        """The examples from position `first` on. They depend on nothing that is learned: this may happen
        ahead of time, in another process."""

    @abstractmethod
    def loss(self, drawn: Any, step: int, clock: Clock) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean loss of what was drawn, a step's batch or a part of it, and numbers for the row of metrics."""

    def prepare(self, model: Realm) -> None:
        """Called before the first step that this process makes. A model's calibration was of the weights as
        they were, so it is forgotten; an objective that hardly moves the scores may keep it."""
        model.config = replace(model.config, calibration=None)

    def before_step(self, step: int) -> dict[str, Any]:
        """Housekeeping before a step, such as swapping the index; numbers for the row."""
        return {}

    def measure(self, done: int) -> dict[str, Any]:
        """What is looked at beside training (a probe) after so many steps; numbers for the row."""
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
