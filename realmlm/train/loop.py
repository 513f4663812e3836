"""The training loop every stage runs in: accumulate, clip, step, log, checkpoint; exact resume."""

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from realmlm.config import JointOptim, Loop, Optim
from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.device import pick_device
from realmlm.errors import BadInput, NotEnough, RealmError
from realmlm.log import Metrics, Progress, say, show_row
from realmlm.model.realm import Realm
from realmlm.parallel import cores, die_with_parent
from realmlm.train.run import (
    Checkpoint,
    Run,
    generator_state,
    load_generator_state,
    note_amended,
    seed_everything,
)

_MOST_WORKERS = 6  # processes that put batches together
_AHEAD = 4  # batches that each of them may be ahead
# Ctrl-C; what a scheduler (Slurm, Kubernetes) sends before it kills
_STOPPING = (signal.SIGINT, signal.SIGTERM)


class Clock:
    """Seconds a step spends in each phase, the mean since the last row.

    A GPU works behind the program's back; waiting for it at every phase would slow it down. So there only one
    step of each row is measured.
    """

    def __init__(self, device: torch.device) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._gpu = device.type == "cuda"
        self._steps = 0
        self._on = False

    def begin_step(self, *, first_of_row: bool) -> None:
        self._on = first_of_row or not self._gpu
        self._steps += self._on

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        if not self._on:
            yield
            return
        begun = self._now()
        yield
        self._seconds[phase] += self._now() - begun

    def _now(self) -> float:
        if self._gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def take(self) -> dict[str, float]:
        seconds = {phase: round(value / max(1, self._steps), 5) for phase, value in self._seconds.items()}
        self._seconds.clear()
        self._steps = 0
        return seconds


class Objective(Protocol):
    """What is learned: a loss over the examples of a step, and what it needs between steps."""

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by name of their learning rate: `reader`, `retriever`."""

    def draw(self, first: int, count: int) -> Any:
        """The examples from position `first` on. It depends on nothing that is learned: it may happen ahead,
        in another process."""

    def loss(self, drawn: Any, step: int, clock: Clock) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean loss of drawn examples, a step's batch or a part of it, and numbers for the row."""

    def before_step(self, step: int, clock: Clock) -> dict[str, Any]:
        """Housekeeping before step number `step` (swap the index); numbers for the row."""

    def measure(self, done: int, clock: Clock) -> dict[str, Any]:
        """What is looked at beside training (a probe) after so many steps; numbers for the row of that
        step."""

    def state(self) -> dict[str, Any]:
        """What must be saved beside weights and optimizer, as JSON."""

    def load_state(self, state: dict[str, Any]) -> None: ...


class Stateless:
    """An objective with nothing to do between steps and nothing to remember."""

    def before_step(self, step: int, clock: Clock) -> dict[str, Any]:
        return {}

    def measure(self, done: int, clock: Clock) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        return None


def prepare(loop: Loop) -> torch.device:
    """Seed, threads and deterministic mode of this process; the device to train on."""
    if loop.threads:
        torch.set_num_threads(loop.threads)
    if loop.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(loop.deterministic)
    seed_everything(loop.seed)
    return pick_device(loop.device)


def learning_rate(step: int, *, steps: int, warmup: float, peak: float) -> float:
    """Linear rise, then linear fall to zero."""
    rising = max(1, round(warmup * steps))
    return peak * min((step + 1) / rising, max(0.0, (steps - step) / max(1, steps - rising)))


def make_optimizer(groups: dict[str, list[nn.Parameter]], optim: Optim) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only; one pair of parameter groups for each learning rate."""
    parts = []
    for name, parameters in groups.items():
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter.ndim > 1]
        rest = [parameter for parameter in trained if parameter.ndim <= 1]
        parts.append({"params": matrices, "weight_decay": optim.weight_decay, "rate": name})
        parts.append({"params": rest, "weight_decay": 0.0, "rate": name})
    # RoBERTa's choice where BERT and REALM have 0.999: gradients are forgotten faster, which suits short runs
    # with large batches
    return torch.optim.AdamW(parts, lr=optim.lr, betas=(0.9, 0.98), eps=1e-6)


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{number}.{name}": value
        for number, entry in optimizer.state_dict()["state"].items()
        for name, value in entry.items()
    }


def _load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


class _Parts(Dataset[Any]):
    """The parts of all steps' batches by number."""

    def __init__(self, objective: Objective, examples: int) -> None:
        self._objective = objective
        self._examples = examples

    def __getitem__(self, number: int) -> Any:
        try:
            return self._objective.draw(number * self._examples, self._examples)
        # from another process it would come with that process's traceback as its text
        except RealmError as error:
            return error


def _drawn(objective: Objective, start: int, *, optim: Optim, workers: int) -> Generator[Any, None, None]:
    """What each part of each step from `start` on learns from, drawn when it is needed, or ahead by `workers`
    processes."""
    examples = optim.batch // optim.accumulate
    parts = _Parts(objective, examples)
    numbers = range(start * optim.accumulate, optim.steps * optim.accumulate)
    if not workers:
        for number in numbers:
            yield objective.draw(number * examples, examples)
        return
    ahead: dict[str, Any] = {
        "num_workers": workers,
        "prefetch_factor": _AHEAD,
        "multiprocessing_context": "fork",
        "collate_fn": _as_drawn,
    }
    ahead["generator"] = torch.Generator()  # the loader would draw from the one that training draws from
    for drawn in DataLoader(
        parts, batch_size=None, sampler=numbers, worker_init_fn=_wait_for_the_trainer, **ahead
    ):
        if isinstance(drawn, RealmError):
            raise drawn
        yield drawn


def _as_drawn(drawn: Any) -> Any:
    return drawn


def _wait_for_the_trainer(_: int) -> None:
    for number in _STOPPING:  # they go to all processes; the trainer finishes its step first
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()  # it has the trainer's files open too, and with them the run's lock


def _default_workers(device: torch.device) -> int:
    """A GPU would wait for one process's batches. Where processes cannot be forked, there is only this
    one."""
    return min(_MOST_WORKERS, cores() - 1) if device.type == "cuda" and hasattr(os, "fork") else 0


class _Rows:
    """Collects numbers over the steps of a row without waiting for the device at each step."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._count = 0
        self.latest: dict[str, Any] = {}  # numbers that are not summed up

    def add(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self._sums[name] = (
                self._sums[name] + value.detach() if name in self._sums else value.detach().clone()
            )
        self._count += 1

    def take(self) -> dict[str, Any]:
        means = {name: round(float(total) / self._count, 5) for name, total in self._sums.items()}
        row = means | self.latest
        self._sums = {}
        self._count = 0
        self.latest = {}
        return row

    def state(self) -> dict[str, Any]:
        """What was collected of the row so far, as JSON."""
        return {
            "sums": {name: float(total) for name, total in self._sums.items()},
            "count": self._count,
            "latest": self.latest,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._sums = {name: torch.tensor(total) for name, total in state["sums"].items()}
        self._count = state["count"]
        self.latest = state["latest"]


class _Stop:
    """Ctrl-C, or a scheduler's wish, waits for the step to end, so that it can be saved; a second one does
    not wait."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "_Stop":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in _STOPPING}
        return self

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        say("stopping after this step; interrupt again to stop at once")

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)


def fit(
    model: Realm,
    objective: Objective,
    run: Run,
    *,
    optim: Optim,
    loop: Loop,
    device: torch.device,
    title: str,
) -> None:
    """Train to the last step; begin at the run's newest checkpoint if it has one."""
    groups = objective.groups()
    clock = Clock(device)
    rows = _Rows()
    optimizer = make_optimizer(groups, optim)
    start = _restore(model, objective, optimizer, rows, run, steps=optim.steps)
    # what was measured before the first step will be again
    metrics = Metrics(run.folder / "metrics.jsonl", keep_until=start or -1)
    bar = Progress(title, optim.steps, unit="steps", start=start)
    drawn = _drawn(
        objective,
        start,
        optim=optim,
        workers=_default_workers(device) if loop.workers is None else loop.workers,
    )
    if loop.compile:
        model.compile_layers()
    model.train()
    model.config = replace(model.config, calibration=None)  # it was of the weights as they were
    begun = time.monotonic()
    counted = start
    last: dict[str, Any] = {}
    try:
        with _Stop() as stop, closing(drawn):
            for step in range(start, optim.steps):
                clock.begin_step(first_of_row=step % loop.log_every == 0 or step == start)
                rows.latest |= objective.before_step(step, clock)
                if step == 0 and (measured := objective.measure(0, clock)):
                    metrics.row({"step": 0, **measured})
                    say(show_row({"step": 0, **measured}))
                rows.add(
                    _one_step(
                        objective,
                        optimizer,
                        groups,
                        step,
                        drawn=drawn,
                        optim=optim,
                        loop=loop,
                        device=device,
                        clock=clock,
                    )
                )
                note_amended()
                bar.advance()
                done = step + 1
                rows.latest |= objective.measure(done, clock)
                if done % loop.log_every == 0 or done == optim.steps:
                    elapsed = time.monotonic() - begun
                    row = {
                        "step": done,
                        **rows.take(),
                        "queries/s": round((done - counted) * optim.batch / elapsed, 1),
                        "seconds": clock.take(),
                    }
                    metrics.row(row)
                    bar.clear()
                    say(show_row(row))
                    last = row
                    begun = time.monotonic()
                    counted = done
                if done < optim.steps and (done % loop.checkpoint_every == 0 or stop.asked):
                    with clock("checkpoint"):
                        run.save(_state(model, objective, optimizer, rows, done))
                    if stop.asked:
                        raise KeyboardInterrupt
    except torch.OutOfMemoryError as error:
        raise NotEnough(
            f"out of memory on {device} with a batch of {optim.batch}; raise `accumulate` or lower `batch`"
        ) from error
    finally:
        metrics.close()
    bar.close()
    if last.get("null_share", 0) > 0.9:
        say(
            "nearly everything goes to the null document: retrieval was not learned. Warm up longer, lower "
            "--optim.retriever-lr, or cut"
        )
        say(
            "the documents into smaller passages (--max-wordpieces), so that there is something to retrieve "
            "besides a sentence's own."
        )


def train_model(
    model: Realm,
    wordpieces: Wordpieces,
    objective: Objective,
    run: Run,
    *,
    corpus: Corpus,
    optim: Optim,
    loop: Loop,
    device: torch.device,
    title: str,
) -> Path:
    """Train to the last step and write the model into the run; gives its place."""
    fit(model, objective, run, optim=optim, loop=loop, device=device, title=title)
    place = run.folder / "model"
    model.save_pretrained(place, wordpieces, parents={"corpus": corpus.fingerprint})
    say(f"the model is in {place}")
    return place


def _restore(
    model: Realm, objective: Objective, optimizer: torch.optim.Optimizer, rows: _Rows, run: Run, *, steps: int
) -> int:
    checkpoint = run.newest()
    if checkpoint is None:
        return 0
    if checkpoint.step > steps:
        raise BadInput(
            f"{run.folder} has already made {checkpoint.step} steps, more than the {steps} asked for; ask "
            "for more, or start a new run"
        )
    model.load_own_state(checkpoint.weights)
    _load_optimizer_tensors(optimizer, checkpoint.optimizer)
    load_generator_state(checkpoint.generators)
    objective.load_state(checkpoint.objective)
    if checkpoint.row:
        rows.load_state(checkpoint.row)
    say(f"resumed at step {checkpoint.step} of {run.folder}")
    return checkpoint.step


def _state(
    model: Realm, objective: Objective, optimizer: torch.optim.Optimizer, rows: _Rows, step: int
) -> Checkpoint:
    return Checkpoint(
        step=step,
        weights=model.own_state(),
        optimizer=_optimizer_tensors(optimizer),
        generators=generator_state(),
        objective=objective.state(),
        row=rows.state(),
    )


def _one_step(
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    groups: dict[str, list[nn.Parameter]],
    step: int,
    *,
    drawn: Iterator[Any],
    optim: Optim,
    loop: Loop,
    device: torch.device,
    clock: Clock,
) -> dict[str, Tensor]:
    peaks = {
        "reader": optim.lr,
        "retriever": optim.retriever_lr if isinstance(optim, JointOptim) else optim.lr,
    }
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, steps=optim.steps, warmup=optim.warmup, peak=peaks[group["rate"]])
    optimizer.zero_grad(set_to_none=True)
    sums: dict[str, Tensor] = {}
    for _ in range(optim.accumulate):
        with clock("data"):
            examples = next(drawn)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=loop.bf16 and device.type == "cuda"):
            loss, numbers = objective.loss(examples, step, clock)
        with clock("backward"):
            (loss / optim.accumulate).backward()
        for name, value in {"loss": loss, **numbers}.items():
            share = value.detach().float() / optim.accumulate
            sums[name] = sums[name] + share if name in sums else share
    with clock("optimise"):
        for parameters in groups.values():
            nn.utils.clip_grad_norm_(parameters, optim.clip)
        optimizer.step()
    return sums
