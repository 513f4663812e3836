"""What is cached of documents that were searched: listed, and cleared."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import Timeout

from realmlm.errors import RealmError
from realmlm.log import counted
from realmlm.storage.artefacts import discard, read_manifest, sweep_abandoned
from realmlm.storage.cache import cache_folder
from realmlm.storage.locks import lock_on

DAY_S = 86_400


@dataclass(frozen=True)
class Cached:
    """The corpus of some documents with its index, or one that was put aside when they had changed often."""

    name: str
    place: Path
    bytes: int
    sources: str
    """What was named as --docs, without the way there."""
    passages: int | None
    """None: it is damaged, or was never finished."""
    changed: float
    """When, in seconds since 1970."""

    def __str__(self) -> str:
        days = int(max(0.0, time.time() - self.changed) // DAY_S)
        age = "today" if not days else f"{counted(days, 'day')} ago"
        what = "unfinished or damaged" if self.passages is None else counted(self.passages, "passage")
        return f"{self.name}  {self.bytes / 2**20:9,.1f} MiB  {what:>22}  {age:>12}  {self.sources}"


def cached() -> list[Cached]:
    """All there is, the largest first. What a killed process left half removed is removed."""
    folder = cache_folder() / "documents"
    sweep_abandoned(folder)
    places = [place for place in folder.glob("[!.]*") if place.is_dir()]
    return sorted(map(_entry, places), key=lambda entry: (-entry.bytes, entry.name))


def all_in_all(entries: list[Cached]) -> str:
    """How many these are, how large, and where."""
    return f"{len(entries)} cached, {_mebibytes(entries)}, in {cache_folder()}"


def removed(entries: list[Cached]) -> str:
    """How much room these took."""
    return f"{_mebibytes(entries)} removed"


def _mebibytes(entries: list[Cached]) -> str:
    return f"{sum(entry.bytes for entry in entries) / 2**20:,.1f} MiB"


def _entry(place: Path) -> Cached:
    files = [file.lstat() for file in place.rglob("*") if file.is_file()]
    sources = ""
    passages = None
    try:
        manifest = read_manifest(place, kind="corpus")
        sources = ", ".join(map(str, manifest.config.get("sources", [])))
        passages = int(manifest.counts["passages"])
    except (RealmError, OSError, KeyError, TypeError, ValueError):
        pass
    size = sum(status.st_size for status in files)
    changed = max((status.st_mtime for status in files), default=place.stat().st_mtime)
    return Cached(place.name, place, size, sources, passages, changed)


def clear(entry: Cached) -> bool:
    """Remove an entry; False: a process makes or changes it at this moment."""
    documents = entry.place.name.removesuffix("-former")
    lock = lock_on(entry.place.parent / f".{documents}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    try:
        if entry.passages is None:
            shutil.rmtree(entry.place)
        else:
            discard(entry.place)
        if documents == entry.name:
            entry.place.with_name(f"{documents}.seen.json").unlink(missing_ok=True)
    finally:
        lock.release()
    return True
