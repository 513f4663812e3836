"""Callbacks: told what happens in a run, beside what the run itself writes down."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from realmlm.errors import require

if TYPE_CHECKING:
    from realmlm.model.realm import Realm


class Enough(Exception):
    """Raised by a callback in `on_row`: train no further, as if this had been the last step."""


class Callback:
    """Override what you want to hear of. What a callback raises ends the run; its last checkpoint stays."""

    def on_begin(self, stage: str) -> None:
        """Training begins, or goes on; the rows that follow are this stage's, by its name in `run.json`:
        `pretrain`, and the two of a warm-up, whose steps are counted apart, `warmup-reader` and
        `warmup-retriever`."""

    def on_row(self, row: dict[str, Any]) -> None:
        """A row of metrics, as `metrics.jsonl` has it: `step`, `loss` and what the objective measures; before
        the first step, where something is measured then, without `loss`.

        Raising KeyboardInterrupt stops the run as Ctrl-C does: a checkpoint is written first, and the same
        call goes on from there. Raising `Enough` ends training: the model is saved as it is.
        """

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """A checkpoint was written to `folder`."""

    def on_end(self, model: "Realm") -> None:
        """The stage is over; the model is about to be saved."""


class TensorBoard(Callback):
    """Writes every number of every row for TensorBoard, as `warmup-reader/loss`: `tensorboard --logdir
    FOLDER`."""

    def __init__(self, folder: str | Path) -> None:
        require("tensorboard", extra="tensorboard", why="the TensorBoard callback")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))
        self._stage = ""

    def on_begin(self, stage: str) -> None:
        self._stage = f"{stage.split()[0]}/"  # without the classes that it was given

    def on_row(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            for part, number in value.items() if isinstance(value, dict) else [("", value)]:
                if isinstance(number, int | float) and name != "step":
                    tag = f"{name}/{part}" if part else name
                    self._writer.add_scalar(self._stage + tag, number, row["step"])

    def on_end(self, model: "Realm") -> None:
        self._writer.close()
