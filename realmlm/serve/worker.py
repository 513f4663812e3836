"""One thread that owns the engine: questions of many people are answered together, edits one at a time."""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from realmlm.errors import BadInput, NotEnough, is_device_lost

GATHER_S = 0.025  # seconds that a batch waits at most for those who were just answered
MOMENT_S = 0.005  # seconds after an answer in which the next question may come
REMEMBERED = 9  # batches that tell how long the next will take
STUCK_S = 120.0  # seconds after which a batch is no longer expected to end
FAILURES = 3  # batches in a row, after which the next is expected to fail too


class Busy(NotEnough):
    """Too many are waiting already, or the service is stopping."""

    def __init__(self, why: str, *, retry_s: float = 0.0) -> None:
        super().__init__(why)
        self.retry_s = max(1, math.ceil(retry_s))
        """Whole seconds after which it is worth asking again."""


class Work(Future[Any]):
    """What will come of a job, and when it was begun, with how many others."""

    begun: float = 0.0
    together: int = 0

    def __init__(self) -> None:
        super().__init__()
        self.since = time.monotonic()


@dataclass(eq=False)
class _Job:
    work: Callable[[list[Any]], list[Any]]
    together: Any  # jobs with an equal key may be worked off in one call; None: alone
    item: Any
    future: Work = field(default_factory=Work)

    @property
    def since(self) -> float:
        return self.future.since


class Worker:
    """Takes jobs from a bounded queue. Those that go together are given to one call of their work.

    Who would wait longer than `patience_s`, going by how long the last batches took, is refused at once. What
    was given up while it waited is not worked on.

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
        patience_s: float = math.inf,
        gather: bool = False,
        on_batch: Callable[[int, float], None] | None = None,
        on_lost: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """`on_batch` is told each batch's size and the seconds that its first job waited; `on_lost` is called
        when the device is lost to this process."""
        self._most_waiting = most_waiting
        self._most_together = most_together
        self._patience_s = patience_s
        self._lasted: dict[bool, deque[float]] = {alone: deque(maxlen=REMEMBERED) for alone in (False, True)}
        self._usual_s = {False: 0.0, True: 0.0}  # seconds of a batch, and of a job that runs alone
        self._at_work: tuple[float, bool] | None = None  # since when, and is it alone?
        self._gathers = gather
        self._expected = 0  # jobs: as many as there were at the last batch
        self._unanswered = 0
        self._answered = 0.0  # when, the last
        self._on_batch = on_batch
        self._on_lost = on_lost
        self._failures = 0  # of batches, since one went well
        self._jobs: deque[_Job] = deque()
        self._alone = 0  # of them
        self._changed = threading.Condition()
        self._open = True
        self._until = math.inf  # when what still waits is refused
        self.busy = False
        """Is it at work?"""
        self._thread = threading.Thread(target=self._run, name="realmlm-worker", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._jobs)

    @property
    def takes_more(self) -> bool:
        """Or is it stopping?"""
        return self._open

    def trouble(self) -> str:
        """Why what is asked now will hardly be answered, if so."""
        # what runs alone, embedding what an edit wrote for instance, may take long and be well
        at_work = self._at_work
        if at_work is not None and not at_work[1] and time.monotonic() - at_work[0] > STUCK_S:
            return f"the model has been at work on one batch for more than {STUCK_S:.0f} s"
        if self._failures >= FAILURES:
            return f"the model failed {self._failures} times in a row; the service's log says more"
        return ""

    def wait_s(self) -> float:
        """Seconds that a new job would wait, about."""
        batches = (len(self._jobs) - self._alone) // self._most_together
        wait_s = batches * self._usual_s[False] + self._alone * self._usual_s[True]
        if self._at_work is not None:
            since, kind = self._at_work
            # what takes longer than usual may take as long again
            wait_s += abs(self._usual_s[kind] - (time.monotonic() - since))
        return wait_s

    def together(self, work: Callable[[list[Any]], list[Any]], item: Any, *, key: Any) -> Work:
        """Work on the item, possibly with others of an equal key; `work` gives a result for each item."""
        return self._put(_Job(work, key, item))

    def alone(self, work: Callable[[], Any]) -> Work:
        """Work that nothing else runs beside."""
        return self._put(_Job(lambda _: [work()], None, None))

    def _put(self, job: _Job) -> Work:
        with self._changed:
            if not self._open:
                raise _stopping()
            if self._refusal() is not None:
                self._drop_given_up()
                if (refusal := self._refusal()) is not None:
                    raise refusal
            self._jobs.append(job)
            self._alone += job.together is None
            if len(self._jobs) >= self._expected or len(self._jobs) == 1 or job.together is None:
                self._changed.notify()
        return job.future

    def _refusal(self) -> Busy | None:
        """Why a new job cannot wait here, if it cannot."""
        waiting = len(self._jobs)
        # an idle service, or one with nothing to go by, refuses no one
        wait_s = self.wait_s() if waiting or self._at_work else 0.0
        if wait_s > self._patience_s:
            long = f"{waiting} requests are waiting, and the next would wait about {wait_s:.0f} s"
            return Busy(f"{long}; ask again in a while", retry_s=wait_s - self._patience_s)
        if waiting >= self._most_waiting:
            soon_s = wait_s / (1 + waiting // self._most_together)  # until there is room
            return Busy(f"{waiting} requests are waiting; ask again in a moment", retry_s=soon_s)
        return None

    def _drop_given_up(self) -> None:
        self._jobs = deque(job for job in self._jobs if not job.future.cancelled())
        self._alone = sum(job.together is None for job in self._jobs)

    def stop(self, within_s: float) -> None:
        """Take nothing more; what is not begun within so many seconds is refused."""
        with self._changed:
            self._open = False
            self._until = min(self._until, time.monotonic() + within_s)
            self._changed.notify()

    def close(self) -> None:
        """Finish what is waiting, then stop."""
        self.stop(math.inf)
        self._thread.join()

    def _run(self) -> None:
        while taken := self._next():
            # some may have been given up
            batch = [job for job in taken if job.future.set_running_or_notify_cancel()]
            begun = time.monotonic()
            for job in batch:
                job.future.begun = begun
                job.future.together = len(batch)
            if batch:
                alone = batch[0].together is None
                self._at_work = (begun, alone)
                if self._on_batch is not None and not alone:
                    self._on_batch(len(batch), begun - batch[0].since)
                if self._gathers and not alone:
                    self._note(batch)
                    failed = _work_off(batch, worked=partial(self._expect, len(batch)))
                else:
                    failed = _work_off(batch)
                if not alone:
                    self._count(failed)
                if failed is not None and is_device_lost(failed):
                    self._on_lost(failed)
                self._lasted[alone].append(time.monotonic() - begun)
                self._usual_s[alone] = median(self._lasted[alone])
                self._at_work = None

    def _count(self, failed: Exception | None) -> None:
        """What a client can cause says nothing of the model."""
        if failed is None:
            self._failures = 0
        elif not isinstance(failed, BadInput):
            self._failures += 1

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

    def _expect(self, worked_off: int) -> None:
        """Note how many there are, before any of those worked off is answered and may ask again."""
        self._expected = min(worked_off + len(self._jobs), self._most_together)

    def _gather(self) -> None:
        """Wait for as many as there were at the last batch, while they are being answered or come in."""
        if not self._unanswered and self._jobs[0].since > self._answered + MOMENT_S:
            return
        until = time.monotonic() + GATHER_S
        while self._open and 0 < len(self._jobs) < self._expected and not self._alone:
            now = time.monotonic()
            last = now if self._unanswered else max(self._answered, self._jobs[-1].since)
            left = min(last + MOMENT_S, until) - now
            if left <= 0:
                return
            self._changed.wait(left)

    def _ready(self) -> bool:
        """Is there something to do, now that who may come with it has come?"""
        if not self._jobs:
            return False
        self.busy = True
        self._gather()
        self._drop_given_up()
        if time.monotonic() > self._until:
            for job in self._jobs:
                if job.future.set_running_or_notify_cancel():
                    job.future.set_exception(_stopping())
            self._jobs.clear()
            self._alone = 0
        return bool(self._jobs)

    def _next(self) -> list[_Job]:
        """The first job and those that go with it, up to one that runs alone; none once all is done."""
        with self._changed:
            while not self._ready():
                self.busy = False
                if not self._open:
                    return []
                self._changed.wait()
            batch = [self._jobs.popleft()]
            if batch[0].together is None:
                self._alone -= 1
                return batch
            others: deque[_Job] = deque()
            while self._jobs and self._jobs[0].together is not None and len(batch) < self._most_together:
                job = self._jobs.popleft()
                (batch if job.together == batch[0].together else others).append(job)
            self._jobs.extendleft(reversed(others))
            return batch


def _stopping() -> Busy:
    return Busy("the service is stopping; ask again in a moment")


def _work_off(batch: list[_Job], *, worked: Callable[[], None] = lambda: None) -> Exception | None:
    """What failed, unless something went well. `worked` is called when the work is done and no one has been
    answered yet."""
    different = list(dict.fromkeys(job.item for job in batch))  # what several ask is answered once
    try:
        try:
            results = dict(zip(different, batch[0].work(different), strict=True))
        finally:
            worked()
    except BadInput as error:
        if len(batch) == 1:
            batch[0].future.set_exception(error)
            return error
        # one of them is bad: the others must not suffer for it
        failed = [_work_off([job]) for job in batch]
        return None if None in failed else min(failed, key=lambda one: isinstance(one, BadInput))
    except Exception as error:
        for job in batch:
            job.future.set_exception(error)
        return error
    for job in batch:
        result = results[job.item]
        if isinstance(result, Future):
            result.add_done_callback(partial(_pass_on, to=job.future))
        else:
            job.future.set_result(result)
    return None


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
