"""Processes beside this one."""

import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


UNGUARDED = """
from pathlib import Path
from realmlm.parallel import ordered_map
from realmlm.storage.locks import locked

def twice():
    return lambda number: 2 * number

with locked(Path("of this")):
    print(list(ordered_map(twice, (), range(4), workers=2, few=1)))
"""


def test_a_program_without_a_guard_ends_and_is_told_so(tmp_path: Path) -> None:
    """Its workers import it, and would wait for the lock that it holds while it waits for them."""
    (tmp_path / "program.py").write_text(UNGUARDED, "utf-8")
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 1
    assert "if __name__ == '__main__':" in ran.stderr.splitlines()[-1]
    guarded = UNGUARDED.replace("with locked", "if __name__ == '__main__':\n  with locked")
    (tmp_path / "program.py").write_text(guarded, "utf-8")
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "[0, 2, 4, 6]\n"


ENGINES = """
import multiprocessing
from pathlib import Path
from realmlm.storage.locks import locked

with locked(Path("of this")):  # as a module-level `realmlm.load().read("notes/")` does
    made = 20

def more(number):
    return made + number

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(more, range(3)))
"""


def test_a_program_may_hold_a_lock_before_its_guard_and_let_go_of_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ENGINES, "utf-8")
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "[20, 21, 22]\n"
