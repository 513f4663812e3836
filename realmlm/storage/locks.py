"""Locks between processes, each a file that one process at a time can hold."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from realmlm.errors import ArtefactDamaged


def lock_on(file: Path) -> FileLock:
    """A lock on this file, not yet held. The system frees it when its holder dies; nothing is ever written
    to the file."""
    # asked as multiprocessing itself does: the holder of the lock would wait for this process for ever
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        guard = "if __name__ == '__main__':"
        raise RuntimeError(
            f"a program's file is imported by its worker processes: put what it does under {guard}"
        )
    if file.is_symlink():  # in a folder from someone else it may point to one of the user's own files
        raise ArtefactDamaged(
            f"{file} is a link, where only a lock belongs: do not trust this folder, or remove the link"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(file, thread_local=False)  # opens without following links or truncating


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock while the block runs; another process that wants it waits."""
    with lock_on(file):
        yield
