"""Locks between processes: files that one process at a time can hold."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from realmlm.errors import ArtefactDamaged


def lock_on(file: Path) -> FileLock:
    """The lock that a file stands for, not yet held. It is free again when its holder dies; the file itself
    is never written to."""
    if file.is_symlink():  # of a folder that came from elsewhere: it may lead to a file of the user
        raise ArtefactDamaged(
            f"{file} is a link, where only a lock belongs: do not trust this folder, or remove the link"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(file, thread_local=False)  # opens without following links or truncating


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock file while the block runs; another process that wants it waits."""
    with lock_on(file):
        yield
