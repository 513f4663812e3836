"""Processes beside this one."""

import multiprocessing
import signal
import sys
from collections.abc import Iterator

import pytest

from realmlm.parallel import sheltered


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as in a terminal: whoever started us in the background may have had it ignored."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def interrupted() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)
    sys.exit(7)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_does_not_reach_what_was_started_sheltered_and_reaches_us() -> None:
    process = multiprocessing.get_context("spawn").Process(target=interrupted)
    with sheltered():
        process.start()
    process.join()
    assert process.exitcode == 7
    with pytest.raises(KeyboardInterrupt), sheltered():
        signal.raise_signal(signal.SIGINT)  # while it is sheltered it waits
