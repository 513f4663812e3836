"""Locks between processes, each a file that one process at a time can hold."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from realmlm.errors import ArtefactDamaged

_PATIENCE_S = 5  # for another program that holds the lock and lets go of it


def lock_on(file: Path) -> FileLock:
    """A lock on this file, not yet held. The system frees it when its holder dies; nothing is ever written
    to the file."""
    if file.is_symlink():  # in a folder from someone else it may point to one of the user's own files
        raise ArtefactDamaged(
            f"{file} is a link, where only a lock belongs: do not trust this folder, or remove the link"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file, thread_local=False)  # opens without following links or truncating
    # asked as multiprocessing itself does
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        _refuse_to_wait(lock)
    return lock


def _refuse_to_wait(lock: FileLock) -> None:
    """In a worker that is importing the program that started it: one that holds the lock meanwhile waits for
    this worker, and so for ever."""
    try:
        lock.acquire(timeout=_PATIENCE_S)
    except Timeout:
        guard = "if __name__ == '__main__':"
        what = "a program's file is imported by its worker processes"
        raise RuntimeError(f"{what}: put what it does under {guard}") from None
    lock.release()


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock while the block runs; another process that wants it waits."""
    with lock_on(file):
        yield
