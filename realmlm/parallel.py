"""Work in several processes: results in order, bounded memory, and no process left behind."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from realmlm.defaults import ENGINE
from realmlm.errors import NotEnough

In = TypeVar("In")
Out = TypeVar("Out")

_MOST_WORKERS = 16  # the one process that reads cannot supply more


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_workers() -> int:
    """How many worker processes are used if nothing else is asked for."""
    return min(cores(), _MOST_WORKERS)


def ordered_map(
    make: Callable[..., Callable[[In], Out]],
    setting: tuple[Any, ...],
    items: Iterable[In],
    *,
    workers: int,
    few: int,
    engine: str = ENGINE,
) -> Generator[Out, None, None]:
    """Apply a function to each item, in several processes, and yield the results in order. Each worker makes
    the function once, with `make(*setting)`.

    With one worker, or fewer than `few` items, it all happens in this process, sooner than others could
    start. Close the generator to stop the workers. With the engine ray they are those of a Ray cluster, as
    many as it has cores.
    """
    if engine == "ray":
        from realmlm.cluster import joined  # it starts clusters of this machine's `cores`

        with joined() as cluster:
            yield from cluster.map(make, setting, items)
        return
    rest = iter(items)
    head = list(islice(rest, few))
    if workers == 1 or len(head) < few:
        yield from map(make(*setting), chain(head, rest))
        return
    pool = worker_pool(make, setting, workers=workers)
    pending: deque[Future[Out]] = deque()
    try:
        for item in chain(head, rest):
            with sheltered():
                pending.append(pool.submit(apply, item))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        died = f"one of {workers} worker processes died, probably for lack of memory"
        guard = "in a program of yours, what it does must stand under `if __name__ == '__main__':`"
        raise NotEnough(f"{died}; try fewer: --workers 1 ({guard})") from error
    finally:
        pool.shutdown(cancel_futures=True)


def worker_pool(
    make: Callable[..., Callable[[Any], Any]], setting: tuple[Any, ...], *, workers: int
) -> ProcessPoolExecutor:
    """Processes that each make a function once, with `make(*setting)`; `submit(apply, item)` calls it. They
    start when something is submitted, which is done `sheltered`."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, spawn, initializer=_start, initargs=(make, setting))


@contextmanager
def sheltered() -> Iterator[None]:
    """Processes started in this block never see Ctrl-C, not even while they start. A terminal sends it to
    all; the parent decides what happens."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # started later, it would unblock the signal
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


_function: Callable[[Any], Any]  # that of this process, if it is a worker


def _start(make: Callable[..., Callable[[Any], Any]], setting: tuple[Any, ...]) -> None:
    global _function
    die_with_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _function = make(*setting)


def apply(item: Any) -> Any:
    """In a worker: its function of the item."""
    return _function(item)


def in_background(work: Callable[[], Out]) -> "Future[Out]":
    """Work in a thread that does not keep the process alive."""
    future: Future[Out] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def die_with_parent() -> None:
    """See to it that this process ends as soon as the one that started it is gone, whatever it is doing."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None, "only processes started by multiprocessing have a parent to watch"
        parent.join()
        os._exit(1)  # there is nothing to clean up: what is half-written has a temporary name

    threading.Thread(target=watch, daemon=True).start()
