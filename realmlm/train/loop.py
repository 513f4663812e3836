"""The training loop of every stage: accumulate, clip, step, log, checkpoint; exact resume."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from realmlm.device import pick_device, release_memory
from realmlm.errors import ArtefactDamaged, BadInput, NotEnough
from realmlm.heap import everything_kept
from realmlm.log import Clock, Metrics, Progress, say
from realmlm.model.cut import clip_norm, is_cut
from realmlm.model.precision import half_precision
from realmlm.model.realm import Realm
from realmlm.ranks import ALONE, Ranks
from realmlm.settings import Loop, Optim
from realmlm.train.callbacks import Callback
from realmlm.train.drawing import default_workers, draw_ahead
from realmlm.train.objective import Group, Mean, Numbers, Objective, Staged
from realmlm.train.optimizer import (
    load_optimizer_tensors,
    make_optimizer,
    make_room,
    optimizer_tensors,
    set_rates,
    to_device,
)
from realmlm.train.recorded import Recorded
from realmlm.train.rows import Rows, Told, add_to
from realmlm.train.run import Checkpoint, Run, generator_state, load_generator_state, seed_everything
from realmlm.train.stopping import Stop


def prepare(loop: Loop, ranks: Ranks = ALONE) -> torch.device:
    """Seed, threads and deterministic mode of this process, for a stage; the device to train on."""
    if loop.threads:
        torch.set_num_threads(loop.threads)
    if loop.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(loop.deterministic)
    # it plans anew for each shape of a padded batch, which took 824 of 1,363 ms of a step (docs/log.md)
    torch.backends.cuda.enable_cudnn_sdp(False)
    seed_everything(loop.seed)
    return ranks.device(pick_device(loop.device))


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
    to_device(objective.groups(), device)
    # what ranks send each other is not recorded (docs/decisions/014)
    recorded = loop.compile and device.type == "cuda" and optim.accumulate == 1 and ranks.count == 1
    clock = Clock(torch.cuda.synchronize if device.type == "cuda" else None)
    rows = Rows()
    checkpoint = _restore(model, objective, rows, run, steps=optim.steps)
    start = checkpoint.step if checkpoint else 0
    ranks.copy_from_first([*model.parameters(), *_own_tensors(model, objective).values()])
    cut = loop.shard and ranks.count > 1
    if cut:
        model.cut_layers(ranks)
    groups = objective.groups()
    optimizer = make_optimizer(groups, optim, recorded=recorded, cut=cut)
    if checkpoint:
        load_optimizer_tensors(optimizer, checkpoint.optimizer)
    del checkpoint
    if recorded:
        make_room(optimizer)
    # what was measured before the first step will be again
    metrics = Metrics(run.folder / "metrics.jsonl", keep_until=start or -1) if ranks.first else None
    bar = Progress(title, optim.steps, unit="steps", start=start)
    workers = default_workers(device, ranks) if loop.workers is None else loop.workers
    drawn = draw_ahead(objective, start, optim=optim, workers=workers)
    if loop.compile:
        model.compile_layers()
    model.train()
    objective.prepare(model)
    told = Told(model, metrics, bar, callbacks)
    make_step = _Steps(
        model, objective, optimizer, groups, optim=optim, loop=loop, clock=clock, recorded=recorded
    )
    begun = time.monotonic()
    counted = start
    row: dict[str, Any] = {}
    try:
        if ranks.first:
            for callback in callbacks:
                callback.on_begin(run.stage)
        memory = everything_kept() if device.type == "cpu" else nullcontext()
        with Stop() as stop, closing(drawn), memory:
            for step in range(start, optim.steps):
                clock.begin_step(first_of_row=step % loop.log_every == 0 or step == start)
                clock("refresh")
                rows.latest |= objective.before_step(step)
                measured = objective.measure(0, clock) if step == 0 else {}
                if measured and told.row({"step": 0, **measured}):
                    stop.asked = True
                set_rates(optimizer, optim, step, objective.slowed())
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
                    if told.row(row):  # while which a signal may come too
                        stop.asked = True
                    begun = time.monotonic()
                    counted = done
                    if ranks.any(told.enough):
                        break
                stopping = ranks.any(stop.asked)
                if done < optim.steps and (done % loop.checkpoint_every == 0 or stopping):
                    clock("checkpoint")
                    rows.check(done)
                    if ranks.first or cut:
                        state = _state(model, objective, optimizer, rows, done)
                    if ranks.first:
                        told.checkpoint(done, run.save(state))
                    ranks.wait()
                    if stopping:
                        raise KeyboardInterrupt
    except torch.OutOfMemoryError as error:
        raise NotEnough(
            f"out of memory on {device} with a batch of {optim.batch}; raise `accumulate` or lower `batch`"
        ) from error
    finally:
        told.close()
        optimizer.zero_grad(set_to_none=True)  # gradients of recorded steps lie in their memory
        del make_step
        release_memory()
    model.join_layers()
    bar.close()
    for remark in objective.remarks(row):
        say(remark)


def _restore(model: Realm, objective: Objective, rows: Rows, run: Run, *, steps: int) -> Checkpoint | None:
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
    model: Realm, objective: Objective, optimizer: torch.optim.Optimizer, rows: Rows, step: int
) -> Checkpoint:
    with model.whole():
        weights = model.own_state() | _own_tensors(model, objective)
    return Checkpoint(
        step=step,
        weights=weights,
        optimizer=optimizer_tensors(optimizer),
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
        """Make a step with what is drawn next; gives the row's numbers, each as a sum and of how many [2]."""
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
            for name, value in _row(loss, numbers, parts=self._optim.accumulate * ranks.count).items():
                add_to(sums, name, value)
        self._clock("optimise")
        if ranks.count > 1:
            self._average(ranks, sums)
        self._move()
        return sums

    def _average(self, ranks: Ranks, sums: dict[str, Tensor]) -> None:
        """Make the gradients the means over the ranks, the row's numbers their sums. What has a gradient on
        some rank gets one on all; what has none on any keeps none, and does not move."""
        every = [parameter for group in self._groups.values() for parameter in group.parameters]
        learning = [parameter for parameter in every if not is_cut(parameter)]  # torch averages the rest
        has_P = [parameter.grad is not None for parameter in learning]
        gradients = []
        for parameter, some in zip(learning, ranks.numbers(*has_P).any(0).tolist(), strict=True):
            if some:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                gradients.append(parameter.grad)
        for name, value in sums.items():
            sums[name] = value.to(every[0].device) * ranks.count  # so that their mean is their sum
        ranks.average([*gradients, *sums.values()])

    def _learn(self, staged: Staged) -> dict[str, Tensor]:
        """A whole step from what was staged for it."""
        self._optimizer.zero_grad(set_to_none=True)
        with self._precision():
            loss, numbers = _checked(self._objective.compute(staged))
        loss.backward()
        self._move()
        return _row(loss, numbers, parts=1)

    def _move(self) -> None:
        for group in self._groups.values():
            clip_norm(group.parameters, self._optim.clip)
        self._optimizer.step()


def _checked(learned: Any) -> tuple[Tensor, Numbers]:
    """What an objective gave, which may be someone's own."""
    pair = isinstance(learned, tuple) and len(learned) == 2 and isinstance(learned[1], dict)
    if not pair or not isinstance(learned[0], Tensor):
        raise BadInput("an objective gives a loss, a tensor, and a dict of numbers to be shown: loss, {}")
    loss, numbers = learned
    if loss.ndim or not loss.requires_grad:
        what = f"of the shape {tuple(loss.shape)}" if loss.ndim else "without a gradient"
        raise BadInput(f"an objective's loss is one number that depends on the model's weights, not {what}")
    for name, value in numbers.items():
        parts = (value.sum, value.count) if isinstance(value, Mean) else (value,)
        if any(torch.as_tensor(part).numel() != 1 for part in parts):
            raise BadInput(f"an objective's '{name}' is not one number; take its mean")
    return loss, numbers


def _row(loss: Tensor, numbers: Numbers, *, parts: int) -> dict[str, Tensor]:
    """The numbers of one of the parts of a step, each as a sum and of how many [2]."""
    if taken := numbers.keys() & {"loss", "step", "seconds", "queries/s"}:
        raise BadInput(f"a row has its own '{min(taken)}'; give the objective's number another name")
    found = {}
    for name, value in {"loss": loss, **numbers}.items():
        mean = Mean.of(value)
        both = [torch.as_tensor(part).detach().float().reshape(()) for part in (mean.sum, mean.count)]
        share = 1 if isinstance(value, Mean) else parts
        found[name] = torch.stack(both) / share
    return found
