"""What a user sees while something runs: messages, progress with the time left, and rows of metrics."""

import json
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from realmlm.storage.artefacts import write_text

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """A text whose control characters are written out: a document or a file's name may hold sequences that
    would move a terminal's cursor, colour it, or type for the user."""
    return text.translate(_CONTROLS)


class Listener(Protocol):
    """Hears what is said and shown at the terminal."""

    def said(self, text: str) -> None:
        """A message."""

    def doing(self, bar: "Progress | None") -> None:
        """What has just been begun, None once it is done."""


_listeners: list[Listener] = []


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """While the block runs, someone hears what is said, whatever thread says it."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _speaks() -> bool:
    """Of the processes that torchrun starts only the first tells how it goes: the others would say the
    same."""
    return os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE", "1") == "1"


def say(text: str, *, whoever: bool = False) -> None:
    """A message for the person at the terminal, on stderr: stdout is for results. `whoever`: from any rank,
    an error for instance."""
    text = printable(text)
    if not (whoever or _speaks()):
        return
    print(text, file=sys.stderr, flush=True)
    for listener in _listeners:
        listener.said(text)


def counted(number: int, thing: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


class Progress:
    """Counts towards a total and shows speed and time left: as a bar on a terminal, elsewhere as a line every
    few seconds."""

    def __init__(
        self, description: str, total: int | None, *, unit: str = "", every_s: float = 10.0, start: int = 0
    ) -> None:
        self.description = description
        self.total = total
        self.unit = unit
        self.done = start
        self._start = start
        self._begun = time.monotonic()
        self._shown = self._begun
        self._terminal = sys.stderr.isatty() and "CI" not in os.environ and _speaks()
        self._every_s = 0.2 if self._terminal else every_s

    def advance(self, count: int = 1) -> None:
        self.done += count
        now = time.monotonic()
        if now - self._shown >= self._every_s:
            self._shown = now
            self._show(now)

    def line(self, now: float) -> str:
        rate = (self.done - self._start) / max(now - self._begun, 1e-9)
        text = f"{self.description}  {self.done:,}"
        if self.total:
            text += f"/{self.total:,} ({100 * self.done / self.total:.0f}%)"
        text += f" {self.unit}  {rate:,.0f}/s" if rate >= 10 else f" {self.unit}  {rate:.2f}/s"
        if self.total and rate:
            text += f"  {duration((self.total - self.done) / rate)} left"
        return text

    def clear(self) -> None:
        """Remove the bar, before something else is printed."""
        if self._terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)

    def _show(self, now: float) -> None:
        if not self._terminal:
            say(self.line(now))
            return
        width = 24
        filled = round(width * self.done / self.total) if self.total else 0
        bar = "█" * filled + "░" * (width - filled) if self.total else ""
        print(f"\r\x1b[2K{bar} {self.line(now)}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        self.clear()
        elapsed = time.monotonic() - self._begun
        say(f"{self.description}  {self.done:,} {self.unit} in {duration(elapsed)}")


@contextmanager
def progress(description: str, total: int | None = None, *, unit: str = "") -> Iterator[Progress]:
    """Progress that is closed when the block ends, with a line that says how long it took."""
    bar = Progress(description, total, unit=unit)
    listeners = list(_listeners)
    for listener in listeners:
        listener.doing(bar)
    try:
        yield bar
    except BaseException:
        bar.clear()
        raise
    finally:
        for listener in listeners:
            listener.doing(None)
    bar.close()


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 07 min`."""
    if not math.isfinite(seconds):
        return "?"
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


class Metrics:
    """Writes rows of numbers to a file, each as a line of JSON. A resumed run removes the rows after step
    `keep_until`, that of its checkpoint."""

    def __init__(self, file: Path, *, keep_until: int = -1) -> None:
        self.file = file
        if file.exists():
            rows = [row for row in read_metrics(file) if row.get("step", math.inf) <= keep_until]
            write_text(file, "".join(json.dumps(row) + "\n" for row in rows))
        self._stream = open(file, "a", encoding="utf-8")

    def row(self, values: dict[str, Any]) -> None:
        self._stream.write(json.dumps(values) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file, without lines that are not a record: a killed process may leave half of
    one."""
    rows = []
    for line in file.read_text("utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def tell(row: dict[str, Any], metrics: Metrics, bar: Progress) -> None:
    """Write a row down and show it, above the bar."""
    metrics.row(row)
    bar.clear()
    say(show_row(row))


def show_row(values: dict[str, Any]) -> str:
    """A row for the screen: `step 120  loss 3.21  …`. Of the phases of a step only the longer ones are shown;
    the file has them all."""
    shown = dict(values)
    if phases := shown.pop("seconds", {}):
        least = 0.1 * sum(phases.values())
        shown["ms/step"] = {name: round(1000 * value) for name, value in phases.items() if value >= least}
    return "  ".join(f"{name} {_number(value)}" for name, value in shown.items() if value is not None)


def _number(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={_number(number)}" for name, number in value.items())
    if not isinstance(value, float):
        return str(value)
    if value and abs(value) < 0.01:
        return f"{value:.3g}"
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"


class Clock:
    """Seconds a step spends in each phase, the mean since the last row.

    `clock("read")` begins a phase and ends the one before. A GPU works behind the program's back; waiting for
    it at every phase would slow it down. So where there is something to `wait` for, only the first step of
    each row is measured.
    """

    def __init__(self, wait: Callable[[], None] | None = None) -> None:
        self._wait = wait
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._steps = 0
        self._on = False
        self._phase = ""
        self._since = 0.0

    def begin_step(self, *, first_of_row: bool) -> None:
        """A step begins; what went on since the last one belongs to no phase of it."""
        self("")
        self._on = first_of_row or self._wait is None
        self._steps += self._on

    def __call__(self, phase: str) -> None:
        if not self._on:
            return
        if self._wait is not None:
            self._wait()
        now = time.perf_counter()
        if self._phase:
            self._seconds[self._phase] += now - self._since
        self._phase = phase
        self._since = now

    def take(self) -> dict[str, float]:
        """The phases since the last row; the one that was going on has ended."""
        self("")
        seconds = {phase: round(value / max(1, self._steps), 5) for phase, value in self._seconds.items()}
        self._seconds.clear()
        self._steps = 0
        return seconds
