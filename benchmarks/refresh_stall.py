"""What a refresh costs training on one device: `python benchmarks/refresh_stall.py [--passages 200000]`

Trains a model of BERT-base's size with random weights over made-up passages, or those that are given, with a
refresher beside it on the same device, until the minutes are over and an index was swapped in. Prints the
speed without and beside the refresher, the longest steps around a snapshot and a swap, and how long training
stood still; on the last line, as JSON, by how much the longest of those steps exceeds the usual one
(`stall_s`) and the share of its speed that training keeps while the refresher embeds (`speed_beside`).
`--tiny` is for trying it out on a CPU.
"""

import argparse
import datetime
import json
import math
import os
import platform
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import safetensors
import torch
from material import make_corpus

from realmlm.log import read_metrics
from realmlm.model.create import create_model
from realmlm.settings import JointOptim, Loop, MakeModel, Pretrain, Refresh
from realmlm.train.objectives.joint import JointPretraining
from realmlm.train.stages import pretrain

WARM = 20  # first steps, which are not counted: kernels are compiled, memory is allocated
AROUND = 3  # steps after a snapshot or a swap in which it may be felt
NO_END = 10**6


@dataclass(frozen=True)
class Size:
    """What is trained."""

    layers: int
    hidden: int
    heads: int
    wordpieces: int
    """Of a passage."""
    batch: int
    k: int
    every: int
    """Steps between snapshots."""


BASE = Size(layers=12, hidden=768, heads=12, wordpieces=288, batch=64, k=8, every=50)
TINY = Size(layers=2, hidden=32, heads=2, wordpieces=48, batch=4, k=3, every=30)


@dataclass(frozen=True)
class Step:
    """When a step began, and what went on beside it."""

    begun: float
    embedding: bool
    """Has the refresher embedded some of the passages?"""
    swaps: int
    """Indexes swapped in so far."""
    beside: int
    """Steps so far that were made while an index was wanted."""


class Over(Exception):
    """The time is over."""


def train(run: Path, size: Size, options: argparse.Namespace) -> list[Step]:
    """Train until the time is over and an index was swapped in."""
    steps: list[Step] = []

    class Timed(JointPretraining):
        def before_step(self, step: int) -> dict[str, Any]:
            begun = time.perf_counter()
            row = super().before_step(step)
            embedding = any((run / "index").glob(".step-*.partial"))
            steps.append(Step(begun, embedding, row["swaps"], row["steps_beside"]))
            over = len(steps) > WARM and begun - steps[WARM].begun > 60 * options.minutes
            if over and steps[-AROUND - 1].swaps:
                raise Over
            return row

    settings = Pretrain(
        model=options.model,
        corpus=options.corpus,
        out=run,
        k=size.k,
        optim=JointOptim(steps=NO_END, batch=size.batch),
        refresh=Refresh(every_steps=size.every),
        loop=Loop(checkpoint_every=NO_END, device=options.device, compile=options.compile),
    )
    with suppress(Over):
        pretrain(settings, objective=Timed)
    return steps


def report(steps: list[Step], rows: list[dict[str, Any]]) -> None:
    """Print what the steps and the rows of a run say."""
    alone: list[float] = []
    embedding: list[float] = []
    around: dict[str, list[float]] = {"snapshot": [], "swap": []}
    felt = {"snapshot": 0, "swap": 0}  # steps in which it may still be felt
    for number in range(WARM, len(steps) - 1):
        last, step, following = steps[number - 1 : number + 2]
        seconds = following.begun - step.begun
        wanted = step.beside > last.beside
        swapped = step.swaps > last.swaps
        was_wanted = last.beside > steps[number - 2].beside
        if swapped:
            felt["swap"] = AROUND
        if wanted and (swapped or not was_wanted):
            felt["snapshot"] = AROUND
        for what, left in felt.items():
            if left:
                around[what].append(seconds)
                felt[what] = left - 1
        if step.embedding and following.embedding:
            embedding.append(seconds)
        elif not wanted:
            alone.append(seconds)
    usual = median(alone)
    speed = len(alone) / sum(alone)
    print(f"without the refresher     {speed:8.2f} steps/s, median {_ms(usual)}, {len(alone)} steps")
    kept = len(embedding) / sum(embedding) / speed if embedding else math.nan
    print(
        f"while it embeds           {kept * speed:8.2f} steps/s, {kept:.0%} of that, {len(embedding)} steps"
    )
    print(f"longest step alone        {_ms(max(alone))}")
    for what, several in around.items():
        print(f"longest step around a {what:9s} {_ms(max(several))}")
    stood_still = [row["stood_still"] for row in rows]
    longest = f"longest in a row {_ms(max(stood_still))}"
    print(f"stood_still               {longest}, all {len(rows)} rows {_ms(sum(stood_still))}")
    stall = max(max(several) for several in around.values()) - usual
    print(json.dumps({"stall_s": round(stall, 4), "speed_beside": round(kept, 4)}))


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=200_000)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--corpus", type=Path, help="default: made up")
    parser.add_argument("--model", type=Path, help="default: made, with random weights")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    size = TINY if options.tiny else BASE
    if options.tiny:
        options.passages = 500
        options.minutes = 0.0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if options.corpus is None:
            options.corpus = work / "corpus"
            make_corpus(options.corpus, options.passages, longest=size.wordpieces)
        if options.model is None:
            options.model = work / "model"
            create_model(
                MakeModel(
                    corpus=options.corpus,
                    out=options.model,
                    family="bert",
                    layers=size.layers,
                    hidden=size.hidden,
                    heads=size.heads,
                )
            )
        steps = train(work / "run", size, options)
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
        versions = f"torch {torch.__version__}, safetensors {safetensors.__version__}"
        print(f"{datetime.date.today()}, {device}, {os.cpu_count()} cores, {versions}")
        report(steps, read_metrics(work / "run" / "metrics.jsonl"))


if __name__ == "__main__":
    main()
