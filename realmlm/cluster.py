"""Bulk work on a Ray cluster: what `realmlm.parallel.ordered_map` does with processes of this machine, by
actors on any, in the same order. An actor that dies is started again and does its item once more."""

import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from realmlm import __version__
from realmlm.errors import Mismatch, NotEnough, require
from realmlm.parallel import cores

In = TypeVar("In")
Out = TypeVar("Out")

_TRIES = 4  # of an item: one that kills whoever takes it must not go round for ever
_AHEAD = 4  # items for each actor that may be done before an earlier one is


@contextmanager
def joined() -> Iterator["Cluster"]:
    """The cluster that RAY_ADDRESS names, or else one of this machine's cores and GPUs, which ends with the
    block. A program that is connected to one already works there."""
    ray = require("ray", extra="ray", why="--engine ray")
    if ray.is_initialized():
        yield Cluster(ray)
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    here: dict[str, Any] = {}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody asked for a word to Ray's makers
        here = {"num_cpus": cores(), "include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **here)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        token = "the cluster's token (RAY_AUTH_MODE=token and RAY_AUTH_TOKEN)"
        cure = f"check RAY_ADDRESS and {token}, or unset it to work on this machine alone"
        raise NotEnough(f"no Ray cluster can be used at '{address}' ({error}); {cure}") from error
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()


class Cluster:
    """A cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    @property
    def device(self) -> str:
        """What its workers compute on: GPUs where it has any."""
        return "cuda" if self._ray.cluster_resources().get("GPU", 0) else "cpu"

    def for_a_model(self, threads: int) -> dict[str, int]:
        """What a worker takes that computes with a model: a GPU, or else a core for each thread."""
        return {"cpus": 1, "gpus": 1} if self.device == "cuda" else {"cpus": threads, "gpus": 0}

    def map(
        self,
        make: Callable[..., Callable[[In], Out]],
        setting: tuple[Any, ...],
        items: Iterable[In],
        *,
        cpus: int = 1,
        gpus: int = 0,
        tries: int = _TRIES,
    ) -> Generator[Out, None, None]:
        """Apply a function to each item and yield the results in order. Actors, each with so many cores and
        GPUs, make the function once with `make(*setting)`; as many of them as the cluster has room for join
        in, each from when it is up. An item over which so many died is not tried again; 0: it always is."""
        ray = self._ray
        kind = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=tries - 1)(_Worker)
        shared = ray.put((make, setting, _versions()))
        actors = [kind.remote(shared) for _ in range(self.room(cpus, gpus))]
        begun: dict[Any, tuple[int | None, Any]] = {actor.ready.remote(): (None, actor) for actor in actors}
        waiting = enumerate(items)
        results: dict[int, Out] = {}
        idle: list[Any] = []
        given = 0
        taken = 0
        more = True
        try:
            while more or taken < given:
                while more and idle and given - taken < _AHEAD * len(actors):
                    number, item = next(waiting, (None, None))
                    more = number is not None
                    if more:
                        actor = idle.pop()
                        begun[actor.apply.remote(item)] = (number, actor)
                        given += 1
                if not more and taken == given:
                    break
                [done], _ = ray.wait(list(begun), num_returns=1)
                number, actor = begun.pop(done)
                idle.append(actor)
                result = self._result(done)
                if number is not None:
                    results[number] = result
                while taken in results:
                    yield results.pop(taken)
                    taken += 1
        finally:
            for actor in actors:
                ray.kill(actor)

    def room(self, cpus: int, gpus: int) -> int:
        """How many actors with so many cores and GPUs find a place."""
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        places = [
            min(machine.get(name, 0) // count for name, count in (("CPU", cpus), ("GPU", gpus)) if count)
            for machine in machines
        ]
        if room := int(sum(places)):
            return room
        needs = f"{cpus} cores" + (f" and {gpus} GPUs" if gpus else "")
        lacking = f"no machine of the Ray cluster has {needs}, which a worker takes"
        raise NotEnough(f"{lacking}; with OMP_NUM_THREADS=1 it takes one core")

    def _result(self, done: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(done)
        except errors.RayTaskError as error:
            raise error.cause from error
        except errors.RayActorError as error:
            died = f"a worker of the Ray cluster died {_TRIES} times over the same piece of work"
            raise NotEnough(f"{died}, probably for lack of memory: {error}") from error


class _Worker:
    """An actor: makes its function when it is first needed, so that what goes wrong then is told like all
    else."""

    def __init__(self, shared: tuple[Callable[..., Callable[[Any], Any]], tuple[Any, ...], str]) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._make, self._setting, self._versions = shared
        self._function: Callable[[Any], Any] | None = None

    def ready(self) -> None:
        if (here := _versions()) != self._versions:
            differs = f"a worker of the Ray cluster has {here}, this machine {self._versions}"
            raise Mismatch(f"{differs}; install the same there")

    def apply(self, item: Any) -> Any:
        if self._function is None:
            self._function = self._make(*self._setting)
        return self._function(item)


def _versions() -> str:
    """Those that decide what bytes come out."""
    try:
        torch = version("torch").partition("+")[0]  # what follows names the build, for CPUs or CUDA
        return f"realmlm {__version__}, torch {torch}"
    except PackageNotFoundError:  # built by someone who left no record of it
        return f"realmlm {__version__}"
