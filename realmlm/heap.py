"""Memory that was freed is kept for what comes next, instead of given back to the system and asked for again.

The system fills what it gives with zeros, a page of 4 KiB at a time, when it is first touched: where large
tensors come and go that takes longer than computing them. These are settings of glibc's malloc, for the whole
process; with another C library nothing happens.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt
# bytes: the largest that glibc lets one be; and several numbers for each wordpiece that is read at once
_KEPT_ONE = 2**25
_KEPT_ALL = 2**27
_EVERYTHING = 2**31 - 1
_USUAL_MAPPED = 65536  # how many blocks glibc asks the system for by itself


def keep_freed() -> None:
    """For answering: whether freed memory is kept depends else on what was allocated before, and 20,000 page
    faults a question take 40 ms."""
    _set(_MMAP_THRESHOLD, _KEPT_ONE)
    _set(_TRIM_THRESHOLD, _KEPT_ALL)


@contextmanager
def everything_kept() -> Iterator[None]:
    """For training, whose tensors are larger than what `keep_freed` keeps; in the end it is given back."""
    _set(_MMAP_MAX, 0)
    _set(_TRIM_THRESHOLD, _EVERYTHING)
    try:
        yield
    finally:
        _set(_MMAP_MAX, _USUAL_MAPPED)
        keep_freed()
        if trim := _function("malloc_trim"):
            trim(0)


def _set(option: int, value: int) -> None:
    if set_option := _function("mallopt"):
        set_option(option, value)


@cache
def _function(name: str) -> Callable[..., int] | None:
    """One of glibc's; None with another C library."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return function
