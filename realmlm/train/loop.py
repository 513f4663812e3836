"""The training loop of every stage: accumulate, clip, step, log, checkpoint; exact resume."""

import math
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from realmlm.device import pick_device, release_memory
from realmlm.errors import ArtefactDamaged, BadInput, Diverged, NotEnough, RealmError
from realmlm.heap import everything_kept
from realmlm.log import Clock, Metrics, Progress, say, tell
from realmlm.model.cut import clip_norm, cut_like, is_cut, whole
from realmlm.model.precision import half_precision
from realmlm.model.realm import Realm
from realmlm.parallel import cores, die_with_parent
from realmlm.ranks import ALONE, Ranks
from realmlm.settings import Loop, Optim
from realmlm.train.callbacks import Callback, Enough
from realmlm.train.objective import Group, Objective, Staged
from realmlm.train.recorded import Recorded
from realmlm.train.run import Checkpoint, Run, generator_state, load_generator_state, seed_everything

_MOST_WORKERS = 6  # processes that put batches together
_AHEAD = 4  # batches that each of them may be ahead
# Ctrl-C; what a scheduler (Slurm, Kubernetes) sends before it kills
_STOPPING = (signal.SIGINT, signal.SIGTERM)


def prepare(loop: Loop, ranks: Ranks = ALONE) -> torch.device:
    """Seed, threads and deterministic mode of this process; the device to train on."""
    if loop.threads:
        torch.set_num_threads(loop.threads)
    if loop.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(loop.deterministic)
    # it plans anew for each shape of a padded batch, which took 824 of 1,363 ms of a step (docs/log.md)
    torch.backends.cuda.enable_cudnn_sdp(False)
    seed_everything(loop.seed)
    return ranks.device(pick_device(loop.device))


def learning_rate(step: int, *, steps: int, warmup: float, peak: float) -> float:
    """Linear rise, then linear fall to zero."""
    rising = max(1, round(warmup * steps))
    return peak * min((step + 1) / rising, max(0.0, (steps - step) / max(1, steps - rising)))


def make_optimizer(
    groups: dict[str, Group], optim: Optim, *, recorded: bool = False, cut: bool = False
) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only; a pair of its parameter groups for each of ours.

    For steps that are recorded the rate is a tensor: a number would be recorded too. Where some parameters
    are cut, each moves by itself: torch moves none together with others that are not.
    """
    parts: list[dict[str, Any]] = []
    for name, group in groups.items():
        trained = [parameter for parameter in group.parameters if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter.ndim > 1]
        rest = [parameter for parameter in trained if parameter.ndim <= 1]
        of = {"name": name, "peak": group.lr}
        parts.append({"params": matrices, "weight_decay": optim.weight_decay, **of})
        parts.append({"params": rest, "weight_decay": 0.0, **of})
    # 0.98 is RoBERTa's choice, where BERT and REALM have 0.999: it suits short runs with large batches
    device = next(parameter.device for part in parts for parameter in part["params"])
    if recorded:
        parts = [{**part, "lr": torch.tensor(optim.lr, device=device)} for part in parts]
    how = {"fused": True, "capturable": recorded} if device.type == "cuda" else {}
    how = {"foreach": False} if cut else how
    return torch.optim.AdamW(parts, lr=optim.lr, betas=(0.9, 0.98), eps=1e-6, **how)


def make_room(optimizer: torch.optim.Optimizer) -> None:
    """Moments for all parameters that have none yet. A recorded step that made room for some, those of a
    retriever that was frozen until then for instance, would empty it again each time it is played back."""
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        if not optimizer.state[parameter]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All of the optimizer's state, one tensor after the other in the host's memory where they are cut."""
    state = optimizer.state_dict()["state"]
    named = {f"{number}.{name}": value for number, entry in state.items() for name, value in entry.items()}
    return {name: whole(value).cpu() if is_cut(value) else value for name, value in named.items()}


def _load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = cut_like(parameters[int(number)], tensor)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


class _Parts(Dataset[Any]):
    """The parts of all steps' batches by number, or this rank's share of each."""

    def __init__(self, objective: Objective, examples: int) -> None:
        self._objective = objective
        self._examples = examples
        self._share = objective.ranks.share(examples)
        self._first = objective.ranks.rank * self._share

    def __getitem__(self, number: int) -> Any:
        try:
            return self._objective.draw(number * self._examples + self._first, self._share)
        except RealmError as error:  # from another process it would come with that process's traceback
            return error


def _drawn(objective: Objective, start: int, *, optim: Optim, workers: int) -> Generator[Any, None, None]:
    """What each part of each step from `start` on learns from, drawn ahead by `workers` processes, if any."""
    parts = _Parts(objective, optim.batch // optim.accumulate)
    numbers = range(start * optim.accumulate, optim.steps * optim.accumulate)
    ahead: Any = map(parts.__getitem__, numbers)
    if workers:
        ahead = DataLoader(
            parts,
            batch_size=None,
            sampler=numbers,
            num_workers=workers,
            prefetch_factor=_AHEAD,
            multiprocessing_context="fork",
            collate_fn=lambda drawn: drawn,
            worker_init_fn=_wait_for_the_trainer,
            generator=torch.Generator(),  # else the loader would draw from the one that training draws from
        )
    for drawn in ahead:
        if isinstance(drawn, RealmError):
            raise drawn
        yield drawn


def _wait_for_the_trainer(_: int) -> None:
    for number in _STOPPING:  # they go to all processes; the trainer finishes its step first
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()  # it has the trainer's files open too, and with them the run's lock


def _default_workers(device: torch.device, ranks: Ranks) -> int:
    """Processes that draw batches: some for a GPU, which would wait for one alone; none if none can be
    forked."""
    free = cores() // ranks.local - 1
    return min(_MOST_WORKERS, max(0, free)) if device.type == "cuda" and hasattr(os, "fork") else 0


class _Rows:
    """Collects numbers over the steps of a row without waiting for the device at each step."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._count = 0
        self.latest: dict[str, Any] = {}  # numbers that are not summed up

    def add(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
        self._count += 1

    def check(self, step: int) -> None:
        """Raise if the steps since the last row led to where there are no numbers: what comes after them is
        worth nothing, and must not take the place of a checkpoint that is."""
        if "loss" in self._sums and not math.isfinite(loss := float(self._sums["loss"]) / self._count):
            cure = "lower the learning rate (--optim.lr, or --reader.lr and --retriever.lr) and begin again"
            raise Diverged(f"the loss is {loss} before step {step}; {cure}, or go on from a checkpoint")

    def take(self) -> dict[str, Any]:
        if taken := self._sums.keys() & self.latest.keys():
            raise BadInput(f"a row has its own '{min(taken)}'; give the objective's number another name")
        means = {name: round(float(total) / self._count, 5) for name, total in self._sums.items()}
        row = means | self.latest
        self.load_state({"sums": {}, "count": 0, "latest": {}})
        return row

    def state(self) -> dict[str, Any]:
        """What was collected of the row so far, as JSON."""
        sums = {name: float(total) for name, total in self._sums.items()}
        return {"sums": sums, "count": self._count, "latest": self.latest}

    def load_state(self, state: dict[str, Any]) -> None:
        self._sums = {name: torch.tensor(total) for name, total in state["sums"].items()}
        self._count = state["count"]
        self.latest = state["latest"]


class _Stop:
    """Ctrl-C, or a scheduler's signal, waits for the step to end and be saved; a second one does not."""

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
    title: str,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Train to the last step; begin at the run's newest checkpoint if it has one."""
    device = model.device
    ranks = run.ranks
    ranks.share(optim.batch // optim.accumulate)  # said before anything is built
    objective.ranks = ranks
    # what ranks send each other is not recorded (docs/decisions/014)
    recorded = loop.compile and device.type == "cuda" and optim.accumulate == 1 and ranks.count == 1
    clock = Clock(torch.cuda.synchronize if device.type == "cuda" else None)
    rows = _Rows()
    checkpoint = _restore(model, objective, rows, run, steps=optim.steps)
    start = checkpoint.step if checkpoint else 0
    ranks.copy_from_first([*model.parameters(), *_own_tensors(model, objective).values()])
    cut = loop.shard and ranks.count > 1
    if cut:
        model.cut_layers(ranks)
    groups = objective.groups()
    optimizer = make_optimizer(groups, optim, recorded=recorded, cut=cut)
    if checkpoint:
        _load_optimizer_tensors(optimizer, checkpoint.optimizer)
    del checkpoint
    if recorded:
        make_room(optimizer)
    # what was measured before the first step will be again
    metrics = Metrics(run.folder / "metrics.jsonl", keep_until=start or -1) if ranks.first else None
    bar = Progress(title, optim.steps, unit="steps", start=start)
    workers = _default_workers(device, ranks) if loop.workers is None else loop.workers
    drawn = _drawn(objective, start, optim=optim, workers=workers)
    if loop.compile:
        model.compile_layers()
    model.train()
    objective.prepare(model)
    training = {module: module.training for module in model.modules()}
    make_step = _Steps(
        model, objective, optimizer, groups, optim=optim, loop=loop, clock=clock, recorded=recorded
    )
    begun = time.monotonic()
    counted = start
    row: dict[str, Any] = {}
    enough = False

    def report(row: dict[str, Any]) -> bool:
        """Write a row down and let callbacks hear it; True: one of them wants to stop."""
        nonlocal enough
        if metrics is None:
            return False
        tell(row, metrics, bar)
        try:
            for callback in callbacks:
                callback.on_row(row)
        except KeyboardInterrupt:
            return True
        except Enough:
            enough = True
        finally:
            as_before()
        return False

    def as_before() -> None:
        """Callbacks may have asked the model something, for which it leaves the mode that it trains in."""
        for module, was in training.items():
            module.training = was

    try:
        memory = everything_kept() if device.type == "cpu" else nullcontext()
        with _Stop() as stop, closing(drawn), memory:
            for step in range(start, optim.steps):
                clock.begin_step(first_of_row=step % loop.log_every == 0 or step == start)
                clock("refresh")
                rows.latest |= objective.before_step(step)
                measured = objective.measure(0, clock) if step == 0 else {}
                if measured and report({"step": 0, **measured}):
                    stop.asked = True
                _set_rates(optimizer, optim, step, objective.slowed())
                rows.add(make_step(step, drawn))
                if step == start and ranks.first:
                    run.stepped()
                bar.advance()
                done = step + 1
                rows.latest |= objective.measure(done, clock)
                if done % loop.log_every == 0 or done == optim.steps:
                    rows.check(done)
                    taken = rows.take()  # waits for the steps that a GPU has still to make: they count too
                    speed = round((done - counted) * optim.batch / (time.monotonic() - begun), 1)
                    row = {"step": done, **taken, "queries/s": speed, "seconds": clock.take()}
                    if report(row):  # while which a signal may come too
                        stop.asked = True
                    begun = time.monotonic()
                    counted = done
                    if ranks.any(enough):
                        break
                stopping = ranks.any(stop.asked)
                if done < optim.steps and (done % loop.checkpoint_every == 0 or stopping):
                    clock("checkpoint")
                    rows.check(done)
                    if ranks.first or cut:
                        state = _state(model, objective, optimizer, rows, done)
                    if ranks.first:
                        place = run.save(state)
                        for callback in callbacks:
                            callback.on_checkpoint(done, place)
                        as_before()
                    ranks.wait()
                    if stopping:
                        raise KeyboardInterrupt
    except torch.OutOfMemoryError as error:
        raise NotEnough(
            f"out of memory on {device} with a batch of {optim.batch}; raise `accumulate` or lower `batch`"
        ) from error
    finally:
        if metrics is not None:
            metrics.close()
        optimizer.zero_grad(set_to_none=True)  # gradients of recorded steps lie in their memory
        del make_step
        release_memory()
    model.join_layers()
    bar.close()
    for remark in objective.remarks(row):
        say(remark)


def _restore(model: Realm, objective: Objective, rows: _Rows, run: Run, *, steps: int) -> Checkpoint | None:
    """Take up the run's newest checkpoint, but for the optimizer; None if there is none."""
    checkpoint = run.newest()
    if checkpoint is None:
        return None
    if checkpoint.step > steps:
        made = f"{run.folder} has already made {checkpoint.step} steps, more than the {steps} asked for"
        raise BadInput(f"{made}; ask for more, or start a new run")
    own = _own_tensors(model, objective)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(checkpoint.weights[name])
    model.load_own_state({name: value for name, value in checkpoint.weights.items() if name not in own})
    load_generator_state(checkpoint.generators)
    try:
        objective.load_state(checkpoint.objective)
    except KeyError as error:
        lacks = f"the newest checkpoint of {run.folder} lacks {error} of its objective"
        raise ArtefactDamaged(f"{lacks}: do not trust it, or start a new run") from error
    if checkpoint.row:
        rows.load_state(checkpoint.row)
    say(f"resumed at step {checkpoint.step} of {run.folder}")
    return checkpoint


def _state(
    model: Realm, objective: Objective, optimizer: torch.optim.Optimizer, rows: _Rows, step: int
) -> Checkpoint:
    with model.whole():
        weights = model.own_state() | _own_tensors(model, objective)
    return Checkpoint(
        step=step,
        weights=weights,
        optimizer=_optimizer_tensors(optimizer),
        generators=generator_state(),
        objective=objective.state(),
        row=rows.state(),
    )


def _own_tensors(model: Realm, objective: Objective) -> dict[str, Tensor]:
    """What an objective learns beside the model, a temperature for instance, and what else it keeps."""
    of_model = set(model.parameters())
    learned = {
        f"objective.{name}.{number}": parameter
        for name, group in objective.groups().items()
        for number, parameter in enumerate(group.parameters)
        if parameter not in of_model
    }
    return learned | {f"objective.{name}": tensor for name, tensor in objective.kept().items()}


def _set_rates(optimizer: torch.optim.Optimizer, optim: Optim, step: int, slowed: dict[str, float]) -> None:
    for group in optimizer.param_groups:
        peak = group["peak"] * slowed.get(group["name"], 1.0)
        rate = learning_rate(step, steps=optim.steps, warmup=optim.warmup, peak=peak)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class _Steps:
    """Gradients of all parts of a batch, clipped group by group, and a step of the optimizer."""

    def __init__(
        self,
        model: Realm,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        groups: dict[str, Group],
        *,
        optim: Optim,
        loop: Loop,
        clock: Clock,
        recorded: bool,
    ) -> None:
        self._objective = objective
        self._optimizer = optimizer
        self._groups = groups
        self._optim = optim
        self._seed = loop.seed
        self._clock = clock
        # weights that were cast once must not be kept: what is recorded would not see them change
        narrowest = min(encoder.hidden for encoder in model.encoders)
        self._precision = partial(
            half_precision, model.device, narrowest, wanted=loop.bf16, cache_enabled=not recorded
        )
        self._recorded = Recorded(self._learn, model.device) if recorded else None

    def __call__(self, step: int, drawn: Iterator[Any]) -> dict[str, Tensor]:
        """Make a step with what is drawn next; gives the means for the row."""
        if self._recorded is not None:
            self._clock("data")
            examples = next(drawn)
            with self._precision():
                staged = self._objective.stage(examples, step, self._clock)
            if staged is not None:
                self._clock("learn")
                return self._recorded(staged)
            drawn = chain([examples], drawn)
        ranks = self._objective.ranks
        if ranks.count > 1:  # dropout is another on each rank, and the same if the run is resumed
            torch.manual_seed(
                int(np.random.SeedSequence([self._seed, step, ranks.rank]).generate_state(1)[0])
            )
        self._optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for _ in range(self._optim.accumulate):
            self._clock("data")
            examples = next(drawn)
            with self._precision():
                loss, numbers = _checked(self._objective.loss(examples, step, self._clock))
            self._clock("backward")
            (loss / self._optim.accumulate).backward()
            for name, value in _row(loss, numbers).items():
                share = value / self._optim.accumulate
                sums[name] = sums[name] + share if name in sums else share
        self._clock("optimise")
        if ranks.count > 1:
            self._average(ranks, sums)
        self._move()
        return sums

    def _average(self, ranks: Ranks, sums: dict[str, Tensor]) -> None:
        """Make the gradients and the row's numbers the means over the ranks. What has a gradient on some rank
        gets one on all; what has none on any keeps none, and does not move."""
        every = [parameter for group in self._groups.values() for parameter in group.parameters]
        learning = [parameter for parameter in every if not is_cut(parameter)]  # torch averages the rest
        has_P = [parameter.grad is not None for parameter in learning]
        gradients = []
        for parameter, some in zip(learning, ranks.numbers(*has_P).any(0).tolist(), strict=True):
            if some:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                gradients.append(parameter.grad)
        for name, value in sums.items():
            sums[name] = value.to(every[0].device)
        ranks.average([*gradients, *sums.values()])

    def _learn(self, staged: Staged) -> dict[str, Tensor]:
        """A whole step from what was staged for it."""
        self._optimizer.zero_grad(set_to_none=True)
        with self._precision():
            loss, numbers = _checked(self._objective.compute(staged))
        loss.backward()
        self._move()
        return _row(loss, numbers)

    def _move(self) -> None:
        for group in self._groups.values():
            clip_norm(group.parameters, self._optim.clip)
        self._optimizer.step()


def _checked(learned: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """What an objective gave, which may be someone's own."""
    pair = isinstance(learned, tuple) and len(learned) == 2 and isinstance(learned[1], dict)
    if not pair or not isinstance(learned[0], Tensor):
        raise BadInput("an objective gives a loss, a tensor, and a dict of numbers to be shown: loss, {}")
    loss, numbers = learned
    if loss.ndim or not loss.requires_grad:
        what = f"of the shape {tuple(loss.shape)}" if loss.ndim else "without a gradient"
        raise BadInput(f"an objective's loss is one number that depends on the model's weights, not {what}")
    for name, value in numbers.items():
        if torch.as_tensor(value).numel() != 1:
            raise BadInput(f"an objective's '{name}' is not one number; take its mean")
    return loss, numbers


def _row(loss: Tensor, numbers: dict[str, Tensor]) -> dict[str, Tensor]:
    if taken := numbers.keys() & {"loss", "step", "seconds", "queries/s"}:
        raise BadInput(f"a row has its own '{min(taken)}'; give the objective's number another name")
    return {
        name: torch.as_tensor(value).detach().float() for name, value in {"loss": loss, **numbers}.items()
    }
