"""A run's rows of metrics: collected over steps, written down, and told to callbacks."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from realmlm.errors import BadInput, Diverged
from realmlm.log import Metrics, Progress, tell
from realmlm.model.realm import Realm
from realmlm.train.callbacks import Callback, Enough


def add_to(sums: dict[str, Tensor], name: str, value: Tensor) -> None:
    """Add a number, a sum and of how many [2], to what was collected by its name."""
    sums[name] = sums[name].to(value.device) + value if name in sums else value.clone()


class Rows:
    """Collects numbers over the steps of a row without waiting for the device at each step."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}  # by name a sum, and of how many [2]
        self.latest: dict[str, Any] = {}  # numbers that are not summed up

    def add(self, values: dict[str, Tensor]) -> None:
        """The numbers of a step, each as a sum and of how many [2]."""
        for name, value in values.items():
            add_to(self._sums, name, value)

    def check(self, step: int) -> None:
        """Raise if the steps since the last row led to where there are no numbers: what comes after them is
        worth nothing, and must not take the place of a checkpoint that is."""
        if "loss" in self._sums and not math.isfinite(loss := self._means()["loss"]):
            cure = "lower the learning rate (--optim.lr, or --reader.lr and --retriever.lr) and begin again"
            raise Diverged(f"the loss is {loss} before step {step}; {cure}, or go on from a checkpoint")

    def take(self) -> dict[str, Any]:
        if taken := self._sums.keys() & self.latest.keys():
            raise BadInput(f"a row has its own '{min(taken)}'; give the objective's number another name")
        row = {name: round(mean, 5) for name, mean in self._means().items()} | self.latest
        self.load_state({"sums": {}, "counts": {}, "latest": {}})
        return row

    def _means(self) -> dict[str, float]:
        """Of what some example had."""
        numbers = {name: value.tolist() for name, value in self._sums.items()}
        return {name: total / count for name, (total, count) in numbers.items() if count}

    def state(self) -> dict[str, Any]:
        """What was collected of the row so far, as JSON."""
        sums, counts = (
            {name: float(value[place]) for name, value in self._sums.items()} for place in range(2)
        )
        return {"sums": sums, "counts": counts, "latest": self.latest}

    def load_state(self, state: dict[str, Any]) -> None:
        # an older checkpoint has one count, that of the steps
        counts = state["counts"] if "counts" in state else dict.fromkeys(state["sums"], state["count"])
        self._sums = {
            name: torch.tensor([total, counts[name]], dtype=torch.float32)
            for name, total in state["sums"].items()
        }
        self.latest = state["latest"]


class Told:
    """Who hears of rows and checkpoints: `metrics.jsonl`, the terminal and callbacks, from the first rank.

    Callbacks may ask the model something, for which it leaves the mode that it trains in: afterwards every
    module is in the mode again that it was in when this was made.
    """

    def __init__(
        self, model: Realm, metrics: Metrics | None, bar: Progress, callbacks: Sequence[Callback]
    ) -> None:
        """`metrics`: None on the other ranks."""
        self.enough = False
        """A callback has raised `Enough`."""
        self._metrics = metrics
        self._bar = bar
        self._callbacks = callbacks
        self._modes = {module: module.training for module in model.modules()}

    def row(self, row: dict[str, Any]) -> bool:
        """Write a row down and let callbacks hear it; True: one of them wants to stop."""
        if self._metrics is None:
            return False
        tell(row, self._metrics, self._bar)
        try:
            for callback in self._callbacks:
                callback.on_row(row)
        except KeyboardInterrupt:
            return True
        except Enough:
            self.enough = True
        finally:
            self._train_again()
        return False

    def checkpoint(self, step: int, folder: Path) -> None:
        """Let callbacks hear of a checkpoint."""
        for callback in self._callbacks:
            callback.on_checkpoint(step, folder)
        self._train_again()

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()

    def _train_again(self) -> None:
        for module, mode in self._modes.items():
            module.training = mode
