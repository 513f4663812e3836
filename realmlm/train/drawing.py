"""What the steps of training learn from, drawn ahead by processes of their own."""

import os
import signal
from collections.abc import Generator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from realmlm.errors import RealmError
from realmlm.parallel import cores, die_with_parent
from realmlm.ranks import Ranks
from realmlm.settings import Optim
from realmlm.train.objective import Objective
from realmlm.train.stopping import STOP_SIGNALS

_MOST_WORKERS = 6  # processes that put batches together
_AHEAD = 4  # batches that each of them may be ahead


class _Parts(Dataset[Any]):
    """The parts of all steps' batches by number, or this rank's share of each."""

    def __init__(self, objective: Objective, examples: int) -> None:
        self._objective = objective
        self._examples = examples
        self._share = objective.ranks.share(examples)
        self._first = objective.ranks.rank * self._share

    def __getitem__(self, number: int) -> Any:
        try:
            return self._objective.draw(number * self._examples + self._first, self._share)
        except RealmError as error:  # from another process it would come with that process's traceback
            return error


def draw_ahead(objective: Objective, start: int, *, optim: Optim, workers: int) -> Generator[Any, None, None]:
    """What each part of each step from `start` on learns from, drawn ahead by `workers` processes, if any."""
    parts = _Parts(objective, optim.batch // optim.accumulate)
    numbers = range(start * optim.accumulate, optim.steps * optim.accumulate)
    ahead: Any = map(parts.__getitem__, numbers)
    if workers:
        ahead = DataLoader(
            parts,
            batch_size=None,
            sampler=numbers,
            num_workers=workers,
            prefetch_factor=_AHEAD,
            multiprocessing_context="fork",
            collate_fn=lambda drawn: drawn,
            worker_init_fn=_wait_for_the_trainer,
            generator=torch.Generator(),  # else the loader would draw from the one that training draws from
        )
    for drawn in ahead:
        if isinstance(drawn, RealmError):
            raise drawn
        yield drawn


def _wait_for_the_trainer(_: int) -> None:
    for number in STOP_SIGNALS:  # they go to all processes; the trainer finishes its step first
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()  # it has the trainer's files open too, and with them the run's lock


def default_workers(device: torch.device, ranks: Ranks) -> int:
    """Processes that draw batches: some for a GPU, which would wait for one alone; none if none can be
    forked."""
    free = cores() // ranks.local - 1
    return min(_MOST_WORKERS, max(0, free)) if device.type == "cuda" and hasattr(os, "fork") else 0
