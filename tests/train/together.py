"""Stages that ranks train in tests."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from realmlm.settings import Finetune, JointOptim, Loop, Optim, Pretrain, Refresh, TrainTowers, Warmup
from realmlm.train import stages
from realmlm.train.callbacks import Callback

STEPS = 4
MORE_STEPS = 20  # of pre-training
LOOP = Loop(log_every=1, checkpoint_every=4, deterministic=True, threads=1, seed=3, device="cpu")
OPTIM = JointOptim(steps=STEPS, batch=4, lr=1e-4, retriever_lr=1e-4)
Stage = Callable[..., Any]


class StopAt(Callback):
    """Stops a run after a step, as Ctrl-C would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_row(self, row: dict[str, Any]) -> None:
        if row["step"] == self.step:
            raise KeyboardInterrupt


def some_stages(root: Path, loop: Loop = LOOP) -> dict[str, Stage]:
    """Training stages by name, each a function of its folder."""
    common: dict[str, Any] = {"model": root / "model", "corpus": root / "knowledge", "loop": loop}
    asked: dict[str, Any] = {"questions": (root / "world" / "questions-train.jsonl",), "candidates": 20}
    joint: dict[str, Any] = {"text": root / "sentences", "k": 3, "freeze_retriever": 1, "scale_lr": 1e-3}
    joint |= {"optim": replace(OPTIM, steps=MORE_STEPS), "refresh": Refresh(every_steps=7, process=False)}
    in_parts = Optim(steps=STEPS, batch=8, accumulate=2, lr=1e-4)
    return {
        "warmup": lambda out, **given: stages.warmup(
            Warmup(**common, out=out, masking="uniform", pairing="own", reader=in_parts, retriever=OPTIM),
            **given,
        ),
        "pretrain": lambda out, **given: stages.pretrain(Pretrain(**common, **joint, out=out), **given),
        "probed": lambda out, **given: stages.pretrain(
            Pretrain(
                **common, **joint, out=out, probe=root / "world" / "clozes-held-out.jsonl", probe_every=10
            ),
            **given,
        ),
        "towers": lambda out, **given: stages.train_towers(
            TrainTowers(**common, **asked, out=out, negatives=2, scale_lr=1e-3, optim=OPTIM), **given
        ),
        "finetune": lambda out, **given: stages.finetune(
            Finetune(
                **common,
                **asked,
                out=out,
                read=2,
                closed_book=0.1,
                in_batch=0.5,
                optim=OPTIM,
                # rounded to float16, a vector may differ by 2⁻¹¹ for a difference of 2⁻²⁴
                refresh=Refresh(every_steps=3, process=False, dtype="float32"),
            ),
            **given,
        ),
        "finetune-frozen": lambda out, **given: stages.finetune(
            Finetune(
                **common,
                **asked,
                out=out,
                read=2,
                closed_book=0.1,
                optim=OPTIM,
                refresh=Refresh(every_steps=0),
            ),
            **given,
        ),
        "finetune-settled": lambda out, **given: stages.finetune(
            Finetune(
                **common,
                **asked,
                out=out,
                read=2,
                scale_lr=1e-3,
                optim=replace(OPTIM, retriever_lr=0),
                refresh=Refresh(every_steps=0),
            ),
            **given,
        ),
    }


def train(root: Path, plan: dict[str, dict[str, Any]]) -> None:
    """Stages by name of their folder: which, the step to stop at, if any, whether layers are cut, and whether
    the run may be gone on with by other settings."""
    for name, what in plan.items():
        made = some_stages(root, replace(LOOP, shard=what.get("shard", False)))
        stop = [StopAt(what["stop"])] if "stop" in what else []
        with suppress(KeyboardInterrupt):
            made[what["stage"]](root / name, callbacks=stop, resume=what.get("resume", False))
