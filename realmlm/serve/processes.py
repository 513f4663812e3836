"""Several processes that answer at one port, each a whole service over the same files (docs/service.md).

Each listens at a socket of its own, and the system hands every connection to one of them (SO_REUSEPORT). This
process holds the port, starts them, starts others in place of those that die, and stops them all together; it
loads no model itself.
"""

import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from select import select as wait_to_write
from typing import TYPE_CHECKING

from realmlm.errors import BadInput, NotEnough, RealmError
from realmlm.log import heard_by, say
from realmlm.parallel import cores, die_with_parent, sheltered
from realmlm.serve.listen import END_S, GRACE_S, LOG_S, bind
from realmlm.serve.log import Log
from realmlm.serve.meters import SHARED_METERS
from realmlm.settings import Serve
from realmlm.storage.artefacts import os_error

if TYPE_CHECKING:
    from realmlm.engine import Engine  # brings torch along, which this process has no use for

STOPPING = (signal.SIGTERM, signal.SIGINT)
LOOK_S = 0.2  # seconds between two looks at what the processes said
METERS = "realmlm-meters-"
SILENT_S = 30.0  # seconds without a beat after which one that answered before is taken to hang
SOON_S = 60.0  # one that died sooner than that may do so again: others are started after a pause
LONGEST_PAUSE_S = 30.0


def serve_with_workers(settings: Serve, load_engine: Callable[[Serve], "Engine"]) -> None:
    """As `serve` does it, by `settings.workers` processes."""
    if sys.platform != "linux":
        raise BadInput("several --workers share a port on Linux alone; leave the option out here")
    with ExitStack() as held:
        told: list[int] = []  # signals, as they came
        for number in STOPPING:
            former = signal.signal(number, lambda came, _: told.append(came))
            held.callback(signal.signal, number, former)
        port = held.enter_context(bind(settings.host, settings.port, listen=False))
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # only now: nobody else had the port
        if settings.log_file is not None:
            log = Log(settings.log_file, level=settings.log_level)
            held.enter_context(heard_by(log))
            held.callback(log.flush_within, LOG_S)
        folder = held.enter_context(_meters())
        # both are read when libraries are imported there
        os.environ[SHARED_METERS] = folder
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // settings.workers)))
        _Processes(settings, load_engine, Path(folder), told).run()
    if signal.SIGTERM in told:
        signal.raise_signal(signal.SIGTERM)  # for whoever looks at how this ended


@contextmanager
def _meters() -> Iterator[str]:
    """A folder for the numbers of the processes. Those of services that were killed are removed: a folder is
    locked as long as its service lives."""
    import fcntl

    for former in Path(tempfile.gettempdir()).glob(f"{METERS}*"):
        with suppress(OSError), _opened(former) as number:
            about = os.fstat(number)
            if about.st_uid == os.getuid() and time.time() - about.st_mtime > SOON_S:  # not just being made
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(former)
    with tempfile.TemporaryDirectory(prefix=METERS) as folder, _opened(Path(folder)) as number:
        fcntl.flock(number, fcntl.LOCK_SH)
        yield folder


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield number
    finally:
        os.close(number)


@dataclass
class _Place:
    """The place of one process among the others, and who has it now."""

    number: int
    process: BaseProcess | None = None
    said: Connection | None = None
    ready: bool = False
    answered: bool = False  # was it ever ready?
    why: str = ""  # it cannot be
    since: float = 0.0
    heard: float = 0.0  # when it last said anything
    pause_s: float = 0.0
    after: float = 0.0  # when the next may be started


@dataclass
class _Processes:
    settings: Serve
    load_engine: Callable[[Serve], "Engine"]
    meters: Path
    told: list[int]
    _places: list[_Place] = field(default_factory=list)
    _looked: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Until it is told to stop."""
        self._places = [_Place(number) for number in range(self.settings.workers)]
        try:
            while not self.told:
                self._start_next()
                wait([place.process.sentinel for place in self._places if place.process], LOOK_S)
                self._look()
            if signal.SIGINT in self.told and not self._answering():
                raise KeyboardInterrupt
        finally:
            self._stop()

    def _answering(self) -> bool:
        return any(place.ready for place in self._places)

    def _start_next(self) -> None:
        """Start one that is missing, unless another is being loaded: what the first makes, an index for
        example, the others find. Where none answers yet it listens at once, to say how far it is; else when
        it can answer."""
        if any(place.process is not None and not place.ready for place in self._places):
            return
        now = time.monotonic()
        missing = (place for place in self._places if place.process is None and place.after <= now)
        if (place := next(missing, None)) is None:
            return
        place.said, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("spawn").Process(
            target=_work,
            args=(self.settings, self.load_engine, place.number, not self._answering(), theirs),
            name=f"realmlm-serve-{place.number}",
        )
        with sheltered():
            process.start()
        theirs.close()
        place.process = process
        place.since = now

    def _look(self) -> None:
        """At all of them. Where it was stopped itself, perhaps with them, their time begins anew."""
        now = time.monotonic()
        paused = now - self._looked > SILENT_S / 2
        self._looked = now
        for place in self._places:
            if paused:
                place.heard = now
            self._look_at(place)

    def _look_at(self, place: _Place) -> None:
        """Hear what a process said; where it has died, see to it that there will be another."""
        if place.process is None or place.said is None:
            return
        with suppress(EOFError):
            while place.said.poll():
                place.heard = time.monotonic()
                if (told := place.said.recv()) is None:
                    continue
                place.why = told
                place.ready = not told
                place.answered |= place.ready
        if place.process.is_alive():
            if place.ready and time.monotonic() - place.heard > SILENT_S:
                place.why = place.why or f"it hung, without a sign of life for {SILENT_S:.0f} s"
                place.process.kill()
            return
        from prometheus_client.multiprocess import mark_process_dead

        process = place.process
        process.join()
        assert process.pid is not None
        mark_process_dead(process.pid, str(self.meters))
        place.said.close()
        told = place.why
        why = told or _ending(process.exitcode or 0)
        answered = place.answered
        place.process = None
        place.ready = place.answered = False
        place.why = ""
        if not answered and not self._answering():
            raise NotEnough(told or f"a worker died before it could answer: {why}")
        lived = time.monotonic() - place.since
        place.pause_s = min(2 * place.pause_s or 1.0, LONGEST_PAUSE_S) if lived < SOON_S else 0.0
        place.after = time.monotonic() + place.pause_s
        soon = f" in {place.pause_s:.0f} s" if place.pause_s else ""
        say(f"worker {place.number + 1}, process {process.pid}, died: {why}; another is started{soon}")

    def _stop(self) -> None:
        """Tell all that answer to stop, and wait until they have; there is nothing under way elsewhere."""
        for place in self._places:
            if place.process is not None:
                (place.process.terminate if place.ready else place.process.kill)()
        until = time.monotonic() + GRACE_S + END_S
        for place in self._places:
            if place.process is not None:
                while place.process.is_alive() and time.monotonic() < until:
                    place.process.join(LOOK_S)
                    if self.told.count(signal.SIGINT) > 1:  # Ctrl-C once more: now
                        until = 0.0
                place.process.kill()
                place.process.join()


def _ending(code: int) -> str:
    if code >= 0:
        return f"it ended with status {code}, and what it said is above"
    lack = ", perhaps for lack of memory (fewer --workers take less)" if -code == signal.SIGKILL else ""
    return f"it was ended by {signal.Signals(-code).name}{lack}"


# --- in each of them ----------------------------------------------------------------------------------------


def _work(
    settings: Serve, load_engine: Callable[[Serve], "Engine"], number: int, at_once: bool, said: Connection
) -> None:
    """Answer until told to stop. Says "" once it is ready, or why it cannot be; None: it is alive."""
    die_with_parent()
    from realmlm.serve.command import answer_at

    try:
        settings = replace(settings, device=_device(settings, number))
        answer_at(
            bind(settings.host, settings.port, shared=True, listen=at_once),
            settings,
            lambda: load_engine(settings),
            at_once=at_once,
            ready=lambda: said.send(""),
            beat=lambda: _beat(said),
        )
    except Exception as error:
        if not isinstance(error, RealmError) and os_error(error) is None:
            raise
        said.send(str(error))
        sys.exit(2)


def _beat(said: Connection) -> None:
    """Say so, unless nobody has listened for long: that must not keep it from answering."""
    with suppress(OSError):
        if wait_to_write([], [said], [], 0)[1]:
            said.send(None)


def _device(settings: Serve, number: int) -> str:
    """Where the model of this process runs: GPUs are dealt out in turn."""
    import torch

    from realmlm.device import pick_device

    device = pick_device(settings.device)
    if device.type != "cuda" or device.index is not None:
        gpus = 1
    else:
        gpus = torch.cuda.device_count()
        device = torch.device("cuda", number % gpus)
    if device.type == "cuda" and number == gpus:
        say(f"{settings.workers} workers share {gpus} GPU: each has model and vectors there for itself")
    return str(device)
