"""What several ranks give: `python benchmarks/ranks.py [--ranks 1 2] [--passages 1000000] [--steps 50]`

Searches an index of made-up vectors that R ranks hold a part of each, with as many queries in all whatever R
is: memory of a rank's part, milliseconds to search it (on a CPU, those of the processor), and in all, with
what ranks send each other. Then R ranks train jointly over made-up passages: queries a second, peak memory of
the first rank, and how far its losses are from those of the first number of ranks. Ranks that are more than
there are GPUs share them. `--tiny` trains a tiny model, for CPUs.
"""

import argparse
import datetime
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from exact_search import cpu_name
from material import make_corpus

from realmlm.device import pick_device
from realmlm.index.exact import ExactIndex
from realmlm.index.parted import PartedIndex
from realmlm.log import read_metrics
from realmlm.model.create import create_model
from realmlm.ranks import Ranks
from realmlm.settings import JointOptim, Loop, MakeModel, Pretrain, Refresh
from realmlm.train.stages import pretrain

K = 8
TURNS = 10


@dataclass(frozen=True)
class Size:
    """What is trained."""

    layers: int
    hidden: int
    heads: int
    passages: int
    wordpieces: int
    """Of a passage."""
    batch: int


SMALL = Size(layers=4, hidden=256, heads=4, passages=20_000, wordpieces=128, batch=32)
TINY = Size(layers=1, hidden=32, heads=2, passages=400, wordpieces=48, batch=8)


# --- what each rank does ------------------------------------------------------------------------------------


def search(options: argparse.Namespace) -> dict[str, Any]:
    """Search a part, and with the others the whole."""
    ranks = Ranks.join()
    device = ranks.device(pick_device(options.device))
    generator = torch.Generator().manual_seed(ranks.rank)
    rows = options.passages // ranks.count
    vectors_ND = torch.randn(rows, options.dim, generator=generator).half()
    ids_N = torch.arange(rows) + ranks.rank * rows
    part = ExactIndex(vectors_ND, ids_N, device=device)
    index = PartedIndex(part, ranks)
    queries_AD = torch.randn(options.queries, options.dim, generator=torch.Generator().manual_seed(99))
    queries_AD = queries_AD.to(device)
    mine_QD = queries_AD.chunk(ranks.count)[ranks.rank]
    # ranks that share cores, with each other or with others, would wait for them
    own_time = time.process_time if device.type == "cpu" else time.perf_counter
    alone: list[float] = []
    together: list[float] = []
    for _ in range(TURNS + 1):  # the first warms up
        for times, clock, work in (
            (alone, own_time, lambda: part.search(queries_AD, K)),
            (together, time.perf_counter, lambda: index.search(mine_QD, K)),
        ):
            ranks.wait()
            times.append(_seconds(work, device, clock))
    mib = (vectors_ND.nbytes + ids_N.nbytes) / 2**20
    return {
        "MiB": round(mib, 1),
        "part ms": round(1000 * median(alone[1:]), 2),
        "search ms": round(1000 * median(together[1:]), 2),
    }


def _seconds(work: Callable[[], Any], device: torch.device, clock: Callable[[], float]) -> float:
    begun = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - begun


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Train a few steps."""
    size = TINY if options.tiny else SMALL
    settings = Pretrain(
        model=options.work / "model",
        corpus=options.work / "corpus",
        out=options.work / f"run-{options.as_one_of}",
        k=K,
        optim=JointOptim(steps=options.steps, batch=size.batch),
        refresh=Refresh(every_steps=max(1, options.steps // 3), process=False),
        loop=Loop(log_every=1, device=options.device, checkpoint_every=max(1, options.steps // 2)),
    )
    pretrain(settings)
    cuda = torch.cuda.is_initialized()
    peak = (
        torch.cuda.max_memory_allocated()
        if cuda
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    rows = read_metrics(settings.out / "metrics.jsonl")
    warm = rows[len(rows) // 5 :]
    return {
        "queries/s": round(median(row["queries/s"] for row in warm), 1),
        "peak MiB": round(peak / 2**20),
        "losses": [row["loss"] for row in rows],
    }


# --- the tables ---------------------------------------------------------------------------------------------


def by_ranks(what: str, count: int, work: Path) -> dict[str, Any]:
    """Have so many ranks do it; gives what the first of them found."""
    begin = ["-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    again = [*sys.argv, "--do", what, "--as-one-of", str(count), "--work", str(work)]
    subprocess.run([sys.executable, *begin, *again], check=True)
    found: dict[str, Any] = json.loads((work / f"{what}-{count}.json").read_text())
    return found


def make_material(work: Path, size: Size) -> None:
    make_corpus(work / "corpus", size.passages, longest=size.wordpieces)
    create_model(
        MakeModel(
            corpus=work / "corpus",
            out=work / "model",
            family="bert",
            layers=size.layers,
            hidden=size.hidden,
            heads=size.heads,
            max_query=64,
            dropout=0.0,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--passages", type=int, default=1_000_000, help="of the index that is searched")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=64, help="of all ranks together")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--do", choices=["search", "train"], help=argparse.SUPPRESS)
    parser.add_argument("--as-one-of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.do:
        torch.set_num_threads(1)
        found = (search if options.do == "search" else train)(options)
        ranks = Ranks.join()
        if ranks.first:
            (options.work / f"{options.do}-{options.as_one_of}.json").write_text(json.dumps(found))
        ranks.wait()
        os._exit(0)  # as the command line does
    size = TINY if options.tiny else SMALL
    device = pick_device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_material(work, size)
        searched = {count: by_ranks("search", count, work) for count in options.ranks}
        trained = {count: by_ranks("train", count, work) for count in options.ranks}
    print(f"{datetime.date.today()}  {name}  torch {torch.__version__}, one thread a rank")
    print(f"{options.passages:,} × {options.dim} float16, {options.queries} queries in all, k = {K}\n")
    print(
        "| ranks | MiB of a rank's part | its search, ms | with the exchange, ms |\n| --- | --- | --- | --- |"
    )
    for count, found in searched.items():
        print(f"| {count} | {found['MiB']:,} | {found['part ms']} | {found['search ms']} |")
    print(f"\n{size}, {options.steps} steps\n")
    print("| ranks | queries/s | peak MiB of a rank | losses apart, at most |\n| --- | --- | --- | --- |")
    first = trained[options.ranks[0]]["losses"]
    for count, found in trained.items():
        apart = max(abs(one - other) for one, other in zip(first, found["losses"], strict=True))
        print(f"| {count} | {found['queries/s']} | {found['peak MiB']:,} | {apart:.1g} |")


if __name__ == "__main__":
    main()
