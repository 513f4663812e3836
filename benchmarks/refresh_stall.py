"""What a refresh costs training on one device: `python benchmarks/refresh_stall.py [--passages 200000]`

Trains a model of BERT-base's size with random weights over passages of random wordpieces, with a refresher
beside it on the same device, until the minutes are over and an index was swapped in. Prints the speed without
and beside the refresher, the longest steps around a snapshot and a swap, and how long training stood still.
`--tiny` is for trying it out on a CPU.
"""

import argparse
import datetime
import os
import platform
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import safetensors
import torch

from realmlm.bundled import model_place
from realmlm.corpus.store import Block, SegmentWriter
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.log import read_metrics
from realmlm.model.create import create_model
from realmlm.settings import JointOptim, Loop, MakeModel, Pretrain, Refresh
from realmlm.storage.artefacts import publish
from realmlm.train.objectives.joint import JointPretraining
from realmlm.train.stages import pretrain

SENTENCE = 24  # wordpieces
AT_ONCE = 10_000  # passages made at a time
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


def make_corpus(folder: Path, size: Size, passages: int) -> None:
    """Passages of random wordpieces, each an article of its own; what they say in characters is not
    needed."""
    wordpieces = Wordpieces.load(model_place("mini"))
    rng = np.random.default_rng(0)
    with publish(folder, kind="corpus") as draft:
        wordpieces.save(draft.path / "tokenizer.json")
        writer = SegmentWriter(draft.path, token_dtype=wordpieces.dtype)
        for first in range(0, passages, AT_ONCE):
            writer.append(random_block(rng, min(AT_ONCE, passages - first), size.wordpieces, len(wordpieces)))
        writer.close()
        draft.config = {"max_wordpieces": size.wordpieces, "sources": ["random"], "tokenizer": "mini"}
        draft.counts = {name: getattr(writer, name) for name in ("passages", "articles", "wordpieces")}
        draft.counts["skipped"] = 0
        draft.parents["tokenizer"] = wordpieces.fingerprint


def random_block(rng: np.random.Generator, passages: int, length: int, vocabulary: int) -> Block:
    one = np.ones(passages, dtype=np.int64)
    starts = np.arange(0, length, SENTENCE)
    return Block(
        texts=np.full(passages, ord("."), dtype=np.uint8),
        text_lengths=one,
        titles=np.full(passages, ord("."), dtype=np.uint8),
        title_lengths=one,
        sources=np.zeros(0, dtype=np.uint8),
        source_lengths=0 * one,
        title_tokens=rng.integers(1000, vocabulary, passages),
        title_token_lengths=one,
        articles=np.arange(passages),
        tokens=rng.integers(1000, vocabulary, passages * length),
        token_lengths=one * length,
        token_chars=np.zeros((passages * length, 2), dtype=np.uint16),
        sentence_starts=np.tile(starts, passages),
        sentence_lengths=one * len(starts),
    )


def train(work: Path, size: Size, *, seconds: float, compiled: bool) -> list[Step]:
    """Train until the time is over and an index was swapped in."""
    steps: list[Step] = []

    class Timed(JointPretraining):
        def before_step(self, step: int) -> dict[str, Any]:
            begun = time.perf_counter()
            row = super().before_step(step)
            embedding = any((work / "run" / "index").glob(".step-*.partial"))
            steps.append(Step(begun, embedding, row["swaps"], row["steps_beside"]))
            over = len(steps) > WARM and begun - steps[WARM].begun > seconds
            if over and steps[-AROUND - 1].swaps:
                raise Over
            return row

    settings = Pretrain(
        model=work / "model",
        corpus=work / "corpus",
        out=work / "run",
        k=size.k,
        masking="whole-word",
        optim=JointOptim(steps=NO_END, batch=size.batch),
        refresh=Refresh(every_steps=size.every),
        loop=Loop(checkpoint_every=NO_END, compile=compiled),
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
    speed = len(alone) / sum(alone)
    print(f"without the refresher     {speed:8.2f} steps/s, median {_ms(median(alone))}, {len(alone)} steps")
    if embedding:
        beside = len(embedding) / sum(embedding)
        share = f"{beside / speed:.0%} of that"
        print(f"while it embeds           {beside:8.2f} steps/s, {share}, {len(embedding)} steps")
    print(f"longest step alone        {_ms(max(alone))}")
    for what, several in around.items():
        print(f"longest step around a {what:9s} {_ms(max(several, default=0.0))}")
    stood_still = [row["stood_still"] for row in rows]
    longest = f"longest in a row {_ms(max(stood_still))}"
    print(f"stood_still               {longest}, all {len(rows)} rows {_ms(sum(stood_still))}")


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=200_000)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    size = TINY if arguments.tiny else BASE
    passages = min(arguments.passages, 500) if arguments.tiny else arguments.passages
    seconds = 0.0 if arguments.tiny else 60 * arguments.minutes
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    versions = f"torch {torch.__version__}, safetensors {safetensors.__version__}"
    print(f"{datetime.date.today()}, {machine}, {os.cpu_count()} cores, {versions}, {passages:,} passages")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_corpus(work / "corpus", size, passages)
        made = MakeModel(
            corpus=work / "corpus",
            out=work / "model",
            family="bert",
            layers=size.layers,
            hidden=size.hidden,
            heads=size.heads,
        )
        create_model(made)
        steps = train(work, size, seconds=seconds, compiled=arguments.compile)
        report(steps, read_metrics(work / "run" / "metrics.jsonl"))


if __name__ == "__main__":
    main()
