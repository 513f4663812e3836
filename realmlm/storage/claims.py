"""Claims: pieces of work that processes share out among themselves, on any machines that see the same folder.

A claim is a file that one process alone can create, and it says who that is. While its process lives, the
file's time is renewed every few seconds. Nothing else is asked of the file system: no locks, no clocks that
agree. For the third piece of work, say:

    claim-00003-000          the first process that worked on it; it is dead, as its file no longer changes
    claim-00003-001          the one that took it over, and finished it or gave it back:
    claim-00003-001.ended    is what the file is then called

A process that was only held up may go on after another has taken over: then both do the same work. Whoever
writes its result must therefore be able to write it twice.
"""

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

BEAT_S = 3.0  # between two signs of life
PATIENCE_S = 30.0  # without one: a process that was held up for longer is taken for dead
_NAME = re.compile(r"claim-(\d{5,})-(\d{3,})(\.ended)?")


class Claims:
    """This process's claims to numbered pieces of work in a folder. What it still holds when the block ends
    is given back."""

    def __init__(self, folder: Path, *, patience_s: float = PATIENCE_S) -> None:
        self._folder = folder
        self._patience_s = patience_s
        self._held: dict[int, Path] = {}
        self._seen: dict[Path, tuple[int, float]] = {}  # another's last sign of life, and since when we know
        self._over = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "Claims":
        self._beating.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._beating.join()
        for number in list(self._held):
            self.release(number)

    def take(self, numbers: Iterable[int]) -> int | None:
        """Claim the first of these pieces that no living process has; None: each is in someone's hands."""
        newest: dict[int, tuple[int, bool]] = {}
        for name in os.listdir(self._folder):
            if found := _NAME.fullmatch(name):
                claim = (int(found[2]), found[3] is not None)
                newest[int(found[1])] = max(newest.get(int(found[1]), claim), claim)
        for number in numbers:
            turn, ended = newest.get(number, (-1, True))
            if number in self._held or not (ended or self._is_dead(self._place(number, turn))):
                continue
            place = self._place(number, turn + 1)
            with suppress(FileExistsError):  # another was quicker
                with open(place, "x", encoding="utf-8") as file:
                    json.dump({"host": _host(), "pid": os.getpid(), "life": _life(os.getpid())}, file)
                self._held[number] = place
                return number
        return None

    def release(self, number: int) -> None:
        """Give a piece back, finished or not."""
        place = self._held.pop(number, None)
        if place is not None:
            with suppress(OSError):  # the folder may be gone, with all that was to be done in it
                place.rename(f"{place}.ended")

    def _place(self, number: int, turn: int) -> Path:
        return self._folder / f"claim-{number:05d}-{turn:03d}"

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            for place in list(self._held.values()):
                with suppress(OSError):
                    os.utime(place)

    def _is_dead(self, place: Path) -> bool:
        """Is the process gone that made this claim? On another machine it is if it gives no sign of life."""
        try:
            with open(place, encoding="utf-8") as file:  # opened: a network file system asks its server then
                beat = os.fstat(file.fileno()).st_mtime_ns
                text = file.read()
        except OSError:  # given back just now
            return False
        with suppress(ValueError, KeyError, TypeError):  # not yet written
            claimer = json.loads(text)
            if claimer["host"] == _host() and _life(claimer["pid"]) != claimer["life"]:
                return True
        now = time.monotonic()
        if self._seen.get(place, (None, now))[0] != beat:
            self._seen[place] = (beat, now)
        return now - self._seen[place][1] > self._patience_s


def _host() -> str:
    """Where numbers of processes mean the same: a machine, or a container in it."""
    numbered = ""
    with suppress(OSError):
        numbered = os.readlink("/proc/self/ns/pid")
    return f"{socket.gethostname()} {numbered}".strip()


def _life(pid: int) -> str:
    """Tells a living process from others that had its number before; empty if none has it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:  # another user's
        pass
    try:
        # after the name, which may hold anything: the state, and 19 fields later when it was started
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:  # no Linux
        return "there"
    return "" if fields[0] in "ZX" else fields[19]  # dead, though its parent has not asked yet
