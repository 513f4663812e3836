"""Processes that kill themselves (SIGKILL) at a chosen file operation of a run: the worst moments are reached
surely, not by luck.

Python announces every open, rename and removal to audit hooks before it happens. A life is told to end at the
n-th operation on a path that contains some text.
"""

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from realmlm.cli import main
from realmlm.index import refresh
from tests.calls import pretrain
from tests.forked import CONTEXT

_WATCHED = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}


@dataclass(frozen=True)
class Death:
    """At the `number`-th file operation (from 1) on a path of the run that contains `where`."""

    where: str
    number: int


def arm(folder: Path, death: Death | None, log: Path) -> None:
    """Write every file operation on the run down, and die at the given one."""
    prefix = str(folder)
    seen = 0
    stream = open(log, "a", buffering=1)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in _WATCHED:
            return
        paths = [str(argument) for argument in arguments[:2] if isinstance(argument, str | os.PathLike)]
        inside = [path[len(prefix) :] for path in paths if path.startswith(prefix)]
        if not inside:
            return
        stream.write(f"{event} {inside[0]}\n")
        if death is not None and any(death.where in path for path in inside):
            seen += 1
            if seen == death.number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def train(arguments: dict[str, Any], death: Death | None, log: Path) -> None:
    """A trainer's life."""
    torch.set_num_threads(1)
    arm(arguments["out"], death, log)
    pretrain(**arguments)


def train_with_doomed_refreshers(arguments: dict[str, Any], plan: Path) -> None:
    """A trainer whose refreshers die one after the other, each by the next line of the plan."""
    torch.set_num_threads(1)
    _doom_refreshers(plan)
    pretrain(**arguments)


def _doom_refreshers(plan: Path) -> None:
    """Those that this process starts; they begin with the imports made, so that many can die in a short time."""
    os.environ["REFRESHER_DEATHS"] = str(plan)
    refresh.serve_refreshes = serve_and_die  # type: ignore[assignment]
    refresh.multiprocessing = SimpleNamespace(get_context=lambda _: CONTEXT)  # type: ignore[assignment]


_serve = refresh.serve_refreshes


def serve_and_die(folder: Path, *rest: Any) -> None:
    plan = Path(os.environ["REFRESHER_DEATHS"])
    deaths = json.loads(plan.read_text())
    if deaths:
        plan.write_text(json.dumps(deaths[1:]))
        arm(folder, Death(*deaths[0]), plan.with_suffix(".log"))
    _serve(folder, *rest)


def train_with_both_doomed(arguments: dict[str, Any], death: Death | None, plan: Path) -> None:
    """A trainer that dies, with refreshers that do."""
    _doom_refreshers(plan)
    train(arguments, death, plan.with_suffix(".trainer"))


def command(arguments: list[str], folder: Path, death: Death | None, log: Path) -> None:
    """The life of a command that works in a folder."""
    torch.set_num_threads(1)
    arm(folder, death, log)
    main(arguments)
