"""Processes beside this one."""

import multiprocessing
import signal
import sys

import pytest

from realmlm.parallel import sheltered


def interrupted() -> None:
    signal.raise_signal(signal.SIGINT)
    sys.exit(7)


def test_ctrl_c_does_not_reach_what_was_started_sheltered_and_reaches_us() -> None:
    process = multiprocessing.get_context("spawn").Process(target=interrupted)
    with sheltered():
        process.start()
    process.join()
    assert process.exitcode == 7
    with pytest.raises(KeyboardInterrupt), sheltered():
        signal.raise_signal(signal.SIGINT)  # while it is sheltered it waits
