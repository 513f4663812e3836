"""The service's log: a line of JSON for each request and for each message, for machines to read."""

import json
import sys
import threading
import time
from collections import deque
from collections.abc import MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from realmlm.log import Progress, say
from realmlm.serve.worker import Work
from realmlm.settings.base import STANDARD_INPUT

EVERY_S = 0.1  # seconds between two writes
LEVELS = ("debug", "info", "warning", "error")
PROBES = ("/livez", "/readyz", "/health", "/metrics")  # asked every few seconds

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
        self._stream: TextIO = sys.stdout if place == STANDARD_INPUT else open(place, "a", encoding="utf-8")
        self._lines: deque[tuple[float, str, dict[str, Any]]] = deque()
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
            "path": scope["path"],
            "status": status,
            "ms": {name: round(1000 * value, 2) for name, value in (phases | {"all": seconds}).items()},
        }
        line |= {name: notes[name] for name in ("together",) if name in notes}
        if self._questions and "question" in notes:
            line["question"] = notes["question"]
        if error:
            line["error"] = error
        self._write(level, line)

    def _write(self, level: str, line: dict[str, Any]) -> None:
        if LEVELS.index(level) >= self._least:
            self._lines.append((time.time(), level, line))

    def _keep_writing(self) -> None:
        while True:
            time.sleep(EVERY_S)
            self.flush()

    def flush(self) -> None:
        """Write what there is now; otherwise it takes a moment."""
        with self._writing:
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            if not lines:
                return
            try:
                self._stream.write("".join(map(_as_json, lines)))
                self._stream.flush()
            except (OSError, ValueError) as error:
                # a log that cannot be written must not keep anyone from an answer
                if not self._trouble:
                    self._trouble = True
                    say(f"the log cannot be written: {error}")


def _as_json(line: tuple[float, str, dict[str, Any]]) -> str:
    seconds, level, what = line
    now = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "level": level} | what, ensure_ascii=False) + "\n"


def _level(path: str, status: int) -> str:
    if status in (503, 507) or 400 <= status < 500:
        return "warning"
    if status >= 500:
        return "error"
    return "debug" if path in PROBES or path.startswith("/page/") else "info"
