"""One thread that owns the engine: questions of many people are answered together, edits one at a time."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from realmlm.errors import BadInput, NotEnough

GATHER_S = 0.025  # seconds that a batch waits at most for those who were just answered
MOMENT_S = 0.005  # seconds after an answer in which the next question may come


class Busy(NotEnough):
    """Too many are waiting already."""


@dataclass(eq=False)
class _Job:
    work: Callable[[list[Any]], list[Any]]
    together: Any  # jobs with an equal key may be worked off in one call; None: alone
    item: Any
    future: "Future[Any]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class Worker:
    """Takes jobs from a bounded queue. Those that go together are given to one call of their work.

    What comes while a batch is worked off makes up the next one. Work may give futures in place of results:
    then others finish it while the next batch is worked off.

    Where a batch costs the same whatever its size, as on a GPU, it can be told to gather: who was just
    answered often asks again at once, and those who are waiting already are kept a few milliseconds so that
    all go together. Whoever asks an idle service never waits.
    """

    def __init__(
        self,
        *,
        most_waiting: int,
        most_together: int,
        gather: bool = False,
        on_batch: Callable[[int, float], None] | None = None,
    ) -> None:
        """`on_batch` is told each batch's size and the seconds that its first job waited."""
        self._most_waiting = most_waiting
        self._most_together = most_together
        self._gathers = gather
        self._expected = 0  # jobs: as many as there were at the last batch
        self._unanswered = 0
        self._answered = 0.0  # when, the last
        self._on_batch = on_batch
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._open = True
        self.busy = False
        """Is it at work?"""
        self._thread = threading.Thread(target=self._run, name="realmlm-worker", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._jobs)

    def together(self, work: Callable[[list[Any]], list[Any]], item: Any, *, key: Any) -> "Future[Any]":
        """Work on the item, possibly with others of an equal key; `work` gives a result for each item."""
        return self._put(_Job(work, key, item))

    def alone(self, work: Callable[[], Any]) -> "Future[Any]":
        """Work that nothing else runs beside."""
        return self._put(_Job(lambda _: [work()], None, None))

    def _put(self, job: _Job) -> "Future[Any]":
        with self._changed:
            if not self._open:
                raise Busy("the service is stopping; ask again in a moment")
            if len(self._jobs) >= self._most_waiting:
                raise Busy(f"{len(self._jobs)} requests are waiting; ask again in a moment")
            self._jobs.append(job)
            if len(self._jobs) >= self._expected or len(self._jobs) == 1 or job.together is None:
                self._changed.notify()
        return job.future

    def close(self) -> None:
        """Finish what is waiting, then stop."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while taken := self._next():
            # some may have been given up
            batch = [job for job in taken if job.future.set_running_or_notify_cancel()]
            if batch:
                if self._on_batch is not None and batch[0].together is not None:
                    self._on_batch(len(batch), time.monotonic() - batch[0].since)
                gathers = self._gathers and batch[0].together is not None
                if gathers:
                    self._note(batch)
                _work_off(batch)
                if gathers:
                    self._expected = min(len(batch) + len(self._jobs), self._most_together)

    def _note(self, batch: list[_Job]) -> None:
        """Note how many have no answer yet, and when the last one got it."""

        def answered(_: "Future[Any]") -> None:
            with self._changed:
                self._unanswered -= 1
                self._answered = time.monotonic()

        with self._changed:
            self._unanswered += len(batch)
        for job in batch:
            job.future.add_done_callback(answered)

    def _gather(self) -> None:
        """Wait for as many as there were at the last batch, while they are being answered or come in."""
        if not self._unanswered and self._jobs[0].since > self._answered + MOMENT_S:
            return
        until = time.monotonic() + GATHER_S
        while (
            self._open
            and len(self._jobs) < self._expected
            and all(job.together is not None for job in self._jobs)
        ):
            now = time.monotonic()
            last = now if self._unanswered else max(self._answered, self._jobs[-1].since)
            left = min(last + MOMENT_S, until) - now
            if left <= 0:
                return
            self._changed.wait(left)

    def _next(self) -> list[_Job]:
        """The first job and those that go with it, up to one that runs alone; none once all is done."""
        with self._changed:
            while not self._jobs:
                self.busy = False
                if not self._open:
                    return []
                self._changed.wait()
            self.busy = True
            self._gather()
            batch = [self._jobs.popleft()]
            if batch[0].together is None:
                return batch
            others: deque[_Job] = deque()
            while self._jobs and self._jobs[0].together is not None and len(batch) < self._most_together:
                job = self._jobs.popleft()
                (batch if job.together == batch[0].together else others).append(job)
            self._jobs.extendleft(reversed(others))
            return batch


def _work_off(batch: list[_Job]) -> None:
    different = list(dict.fromkeys(job.item for job in batch))  # what several ask is answered once
    try:
        results = dict(zip(different, batch[0].work(different), strict=True))
    except BadInput as error:
        if len(batch) == 1:
            batch[0].future.set_exception(error)
            return
        for job in batch:  # one of them is bad: the others must not suffer for it
            _work_off([job])
    except Exception as error:
        for job in batch:
            job.future.set_exception(error)
    else:
        for job in batch:
            result = results[job.item]
            if isinstance(result, Future):
                result.add_done_callback(partial(_pass_on, to=job.future))
            else:
                job.future.set_result(result)


def _pass_on(made: "Future[Any]", *, to: "Future[Any]") -> None:
    if error := made.exception():
        to.set_exception(error)
    else:
        to.set_result(made.result())


class Results:
    """Brings what a worker's thread finished to the event loop: one wake-up for all that is ready.

    A wake-up for each, as `asyncio.wrap_future` does it, is a system call for each, and after every one of
    them the worker waits for its turn to run.
    """

    def __init__(self) -> None:
        self._ready: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Future[Any]]]] = {}
        self._lock = threading.Lock()

    async def result(self, future: "Future[Any]") -> Any:
        """What the future of a worker gives."""
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()

        def finished(future: "Future[Any]") -> None:
            with self._lock:
                ready = self._ready.setdefault(loop, [])
                ready.append((waiting, future))
                first = len(ready) == 1
            if first and not loop.is_closed():
                loop.call_soon_threadsafe(self._hand_out, loop)

        future.add_done_callback(finished)
        try:
            return await waiting
        finally:
            future.cancel()  # if it is given up

    def _hand_out(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            ready = self._ready.pop(loop)
        for waiting, future in ready:
            if waiting.done():  # it was given up
                continue
            if error := future.exception():
                waiting.set_exception(error)
            else:
                waiting.set_result(future.result())
