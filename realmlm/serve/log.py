"""The service's log: a line of JSON for each request and for each message, for machines to read."""

import json
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from realmlm.log import Progress, say
from realmlm.serve.worker import Work
from realmlm.settings.base import STANDARD_INPUT

EVERY_S = 0.1  # seconds between two writes
MOST_LINES = 10_000  # that wait to be written; any more are counted, and left out
LONGEST = 2_000  # characters of a path or an error
LEVELS = ("debug", "info", "warning", "error")
PROBES = ("/livez", "/readyz", "/health", "/metrics")  # asked every few seconds

_Line = tuple[float, str, dict[str, Any]]  # when, its level, what it says

NOTES: ContextVar[dict[str, Any] | None] = ContextVar("notes", default=None)
"""What a route notes of the request at hand, if there is a log to write it into."""


def note(**what: Any) -> None:
    """For the request's line in the log."""
    if (notes := NOTES.get()) is not None:
        notes |= what


def note_work(work: Work) -> None:
    """How long a request waited for the model and how long that took, now that it is done; with what it had
    done before, if that was not all."""
    if (notes := NOTES.get()) is not None and work.begun:
        waited = notes.get("wait", 0) + work.begun - work.since
        worked = notes.get("work", 0) + time.monotonic() - work.begun
        note(wait=waited, work=worked, together=work.together)


class Log:
    """Lines of at least some level. A request that went well is `info`, or `debug` if it only asked how the
    service is; one that was refused is a `warning`, one that failed here an `error`."""

    def __init__(self, place: Path, *, level: str, questions: bool = False) -> None:
        """`place` is a file to append to, - for standard output. What was asked is written into it only if
        `questions`."""
        self._least = LEVELS.index(level)
        self._questions = questions
        append = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        # not a stream of Python's: at the end it would wait for whoever is writing
        self._number = sys.stdout.fileno() if place == STANDARD_INPUT else os.open(place, append, 0o666)
        self._lines: deque[_Line] = deque()
        self._dropped = 0
        self._dropping = threading.Lock()
        self._writing = threading.Lock()
        self._trouble = False
        # a write for each request would hand the processor to another thread each time
        threading.Thread(target=self._keep_writing, name="realmlm-log", daemon=True).start()

    def said(self, text: str) -> None:
        """A message that was shown at the terminal too."""
        self._write("info", {"message": text})

    def doing(self, bar: Progress | None) -> None:
        """How far something is, is not written down."""

    def request(
        self, scope: MutableMapping[str, Any], status: int, *, number: str, seconds: float, error: str = ""
    ) -> None:
        """A request that has ended, with what was noted of it. Not what stands behind a ? in its address: it
        may be what somebody looks for."""
        notes = NOTES.get() or {}
        error = error or notes.get("failed", "")
        level = "error" if error else _level(scope["path"], status)
        if LEVELS.index(level) < self._least:
            return
        phases = {name: notes[name] for name in ("receive", "wait", "work") if name in notes}
        line = {
            "id": number,
            "client": (scope.get("client") or ("",))[0],
            "method": scope["method"],
            "path": scope["path"][:LONGEST],
            "status": status,
            "ms": {name: round(1000 * value, 2) for name, value in (phases | {"all": seconds}).items()},
        }
        line |= {name: notes[name] for name in ("together",) if name in notes}
        if self._questions and "question" in notes:
            line["question"] = notes["question"]
        if error:
            line["error"] = error[:LONGEST]
        self._write(level, line)

    def _write(self, level: str, line: dict[str, Any]) -> None:
        if LEVELS.index(level) < self._least:
            return
        if len(self._lines) < MOST_LINES:
            self._lines.append((time.time(), level, line))
        else:
            with self._dropping:
                self._dropped += 1

    def _keep_writing(self) -> None:
        while True:
            time.sleep(EVERY_S)
            self.flush()

    def flush(self) -> None:
        """Write what there is now; otherwise it takes a moment."""
        with self._writing:
            try:
                if lines := self._taken():
                    self._put("".join(map(_as_json, lines)).encode("utf-8", "backslashreplace"))
            except (OSError, ValueError) as error:
                # a log that cannot be written must not keep anyone from an answer
                if not self._trouble:
                    self._trouble = True
                    say(f"the log cannot be written: {error}")

    def flush_within(self, seconds: float) -> None:
        """The same, but no longer: where nobody takes what is written, nobody is to wait for it."""
        thread = threading.Thread(target=self.flush, daemon=True)
        thread.start()
        thread.join(seconds)

    def _taken(self) -> list[_Line]:
        """The lines that wait; how many had no room among them is a line, too."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        with self._dropping:
            dropped = self._dropped
            self._dropped = 0
        if dropped:
            lost = f"{dropped} lines are missing here: {MOST_LINES} were waiting to be written"
            lines.append((time.time(), "warning", {"message": lost, "dropped": dropped}))
        return lines

    def _put(self, text: bytes) -> None:
        """Write it as a whole: other processes may write to the same place."""
        with _alone_at(self._number):
            rest = memoryview(text)
            while rest:
                try:
                    rest = rest[os.write(self._number, rest) :]
                except BlockingIOError:  # whoever started it made the pipe so
                    select.select([], [self._number], [])


@contextmanager
def _alone_at(number: int) -> Iterator[None]:
    """Keeps others that ask for the same from writing to this file or pipe meanwhile (Linux, as several
    processes are)."""
    own = -1
    try:
        import fcntl

        # opened anew: a descriptor that processes have in common would let each of them in
        own = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
        fcntl.flock(own, fcntl.LOCK_EX)
    except (ImportError, OSError):  # a socket, or another system
        pass
    try:
        yield
    finally:
        if own >= 0:
            os.close(own)


def _as_json(line: _Line) -> str:
    seconds, level, what = line
    now = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "level": level} | what, ensure_ascii=False) + "\n"


def _level(path: str, status: int) -> str:
    if status in (503, 507) or 400 <= status < 500:
        return "warning"
    if status >= 500:
        return "error"
    return "debug" if path in PROBES or path.startswith("/page/") else "info"
