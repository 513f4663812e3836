"""How long a GPU takes for something, without what the program does between launches."""

import statistics
from collections.abc import Callable

import torch

_AHEAD = 2_000_000  # cycles that the GPU is kept busy for while work is launched


def milliseconds(work: Callable[[], object], repeats: int = 12) -> float:
    """The median of some calls, after one that is not counted."""
    work()
    taken = []
    for _ in range(repeats):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_AHEAD)
        begun.record()
        work()
        ended.record()
        torch.cuda.synchronize()
        taken.append(begun.elapsed_time(ended))
    return statistics.median(taken)
