"""Rows of metrics: a mean over all examples of the row, whatever steps, parts and ranks it is put together
from."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from realmlm.log import Clock, read_metrics
from realmlm.model.realm import Realm
from realmlm.settings import Loop, Optim, TrainObjective
from realmlm.train.objective import Group, Mean, Numbers, Objective
from realmlm.train.rows import Rows
from realmlm.train.stages import train_objective
from tests.ranks import together
from tests.train.together import StopAt

BATCH = 8
STEPS = 6
# of examples by their number: the last two steps have none
HAVE = np.array([number % 5 == 0 and number < 32 for number in range(STEPS * BATCH)])


class Numbered(Objective):
    """Every fifth example has a value, its number; all weigh alike in a loss."""

    def __init__(self, model: Realm) -> None:
        self.model = model

    def groups(self) -> dict[str, Group]:
        return {"reader": Group(list(self.model.reader.parameters()), 1e-3)}

    def draw(self, first: int, count: int) -> np.ndarray:
        return np.arange(first, first + count)

    def loss(self, drawn: np.ndarray, step: int, clock: Clock) -> tuple[torch.Tensor, Numbers]:
        value_B = torch.from_numpy(drawn).float()
        nothing = sum(weight.sum() * 0 for weight in self.model.reader.parameters())
        some = Mean.where(torch.from_numpy(HAVE[drawn]), value_B)
        numbers: dict[str, torch.Tensor | Mean] = {"some": some, "all": value_B.mean()}
        odd = {"odd": value_B.mean()} if step % 2 else {}
        return nothing + value_B.mean(), numbers | odd


def numbered(model: Path, out: Path, stop: int | None = None, every: int = 1, parts: int = 1) -> None:
    settings = TrainObjective(
        out=out,
        optim=Optim(steps=STEPS, batch=BATCH, accumulate=parts),
        loop=Loop(device="cpu", threads=1, log_every=every, checkpoint_every=STEPS),
    )
    realm = Realm.from_pretrained(model)
    with suppress(KeyboardInterrupt):
        train_objective(
            settings, Numbered(realm), model=realm, callbacks=[] if stop is None else [StopAt(stop)]
        )


def rows_of(run: Path) -> list[dict[str, Any]]:
    names = ("step", "loss", "some", "all", "odd")
    return [{name: row[name] for name in names if name in row} for row in read_metrics(run / "metrics.jsonl")]


def expected(every: int) -> list[dict[str, Any]]:
    rows = []
    for first in range(0, STEPS, every):
        steps = np.arange(first, min(first + every, STEPS))
        examples = (steps[:, None] * BATCH + np.arange(BATCH)).flatten()
        row = {"step": int(steps[-1]) + 1, "loss": examples.mean(), "all": examples.mean()}
        if len(having := examples[HAVE[examples]]):
            row["some"] = having.mean()
        if len(odd := steps[steps % 2 == 1]):
            row["odd"] = (odd[:, None] * BATCH + np.arange(BATCH)).mean()
        rows.append({name: pytest.approx(value, abs=1e-4) for name, value in row.items()})
    return rows


@pytest.mark.parametrize("every", [1, 2, 6])
@pytest.mark.parametrize("parts", [1, 4])
def test_a_row_has_the_mean_over_the_examples_that_have_the_number(
    tiny_model_folder: Path, tmp_path: Path, every: int, parts: int
) -> None:
    """A step without any used to count as one whose mean was 0."""
    numbered(tiny_model_folder, tmp_path / "run", every=every, parts=parts)
    rows = rows_of(tmp_path / "run")
    assert rows == expected(every)
    assert ("some" in rows[-1]) == (every > 2)


def some_runs(model: Path, out: Path) -> None:
    for parts in (1, 2):
        numbered(model, out / f"run-{parts}", every=3, parts=parts)


def test_a_row_is_the_same_with_several_ranks(tiny_model_folder: Path, tmp_path: Path) -> None:
    together(2, some_runs, tiny_model_folder, tmp_path)
    assert rows_of(tmp_path / "run-1") == rows_of(tmp_path / "run-2") == expected(3)


def collected(rows: Rows, number: Callable[[int], Mean | torch.Tensor], steps: range) -> None:
    for step in steps:
        mean = Mean.of(number(step))
        rows.add({"some": torch.stack([mean.sum.float(), mean.count.float()])})


def test_a_row_cut_off_in_between_goes_on_exactly() -> None:
    def some(step: int) -> Mean:
        return Mean.where(torch.arange(5) < step % 3, torch.full((5,), step / 3))

    whole = Rows()
    collected(whole, some, range(7))
    cut = Rows()
    collected(cut, some, range(4))
    again = Rows()
    again.load_state(cut.state())
    collected(again, some, range(4, 7))
    assert again.state() == whole.state()
    assert again.take() == whole.take()
    assert again.take() == {}


def test_the_row_of_an_older_checkpoint_is_taken_up() -> None:
    """It had one count, that of the steps."""
    rows = Rows()
    rows.load_state({"sums": {"some": 6.0}, "count": 2, "latest": {"swaps": 1}})
    collected(rows, lambda step: torch.tensor(9.0), range(1))
    assert rows.take() == {"some": 5.0, "swaps": 1}
