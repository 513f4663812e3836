"""Memory that was freed is used again, and what training kept is given back."""

import platform
import resource
from pathlib import Path

import pytest
import torch

from realmlm.heap import everything_kept, keep_freed

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")

PAGE = resource.getpagesize()


def faults(megabytes: int) -> int:
    """Page faults of three arrays of that size that are held together."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(megabytes * 2**18) for _ in range(3)]
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_what_is_freed_is_used_again() -> None:
    keep_freed()
    assert min(faults(10) for _ in range(15)) < 1000  # each has 2,560 pages


def test_training_keeps_what_is_larger_and_gives_it_back() -> None:
    before = resident()
    with everything_kept():
        assert min(faults(100) for _ in range(15)) < 1000  # of 25,600 pages
        assert resident() - before > 200 * 2**20
    assert resident() - before < 150 * 2**20
