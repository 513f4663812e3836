"""What is recorded, and when: with a stand-in for a GPU, so nothing is really recorded (tests/test_gpu.py does
that)."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from realmlm.train.objective import Staged
from realmlm.train.recorded import Recorded


def test_each_way_is_done_once_as_it_is_before_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A joint run whose retriever holds still at first compiles again when it begins to learn, and nothing
    can be compiled while it is recorded: the rest of the run was four times as slow."""
    told: list[tuple[str, object]] = []
    doing = "as it is"

    @contextmanager
    def graph(*_: object, **__: object) -> Iterator[None]:
        nonlocal doing
        doing = "recorded"
        yield
        doing = "as it is"

    class Graph:
        def pool(self) -> None:
            pass

        def replay(self) -> None:
            told.append(("played", None))

    stream = SimpleNamespace(wait_stream=lambda other: None)
    stand_in: dict[str, Any] = {
        "Stream": lambda device: stream,
        "current_stream": lambda: stream,
        "stream": lambda stream: nullcontext(),
        "device": lambda device: nullcontext(),
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "CUDAGraph": Graph,
        "graph": graph,
    }
    for name, value in stand_in.items():
        monkeypatch.setattr(torch.cuda, name, value)

    def work(staged: Staged) -> dict[str, Tensor]:
        told.append((doing, staged.way))
        return {}

    recorded = Recorded(work, torch.device("cpu"))
    for way in (True, True, False, False):
        recorded(Staged({}, (8,), way))
    assert told == [
        ("as it is", True),
        ("recorded", True),
        ("played", None),
        ("as it is", False),
        ("recorded", False),
        ("played", None),
    ]
