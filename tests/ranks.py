"""Real processes that train or search together: as torchrun starts them, or sooner."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.forked import CONTEXT

ROOT = Path(__file__).parents[1]


def together(ranks: int, work: Callable[..., None], *arguments: Any) -> None:
    """Have so many ranks do the same; what one of them raises is on its stderr."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        CONTEXT.Process(target=_live, args=(rank, ranks, port, work, arguments), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * ranks


def _live(rank: int, ranks: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    told: dict[str, int | str] = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
    }
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in told.items()}
    torch.set_num_threads(1)
    work(*arguments)


def torchrun(ranks: int, *what: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """For `subprocess`: a module with its arguments, begun by so many ranks."""
    begin = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *options, "-m"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return {"args": [*begin, *what], "env": environment, "stderr": subprocess.PIPE, "text": True}
