"""How fast the bundled model learns on a CPU: `python benchmarks/cpu_training.py [--threads 2] [--steps 6]`

Reader and towers warm up (masked words, ICT), learn together (joint training, three passages a sentence) and
from questions (five passages each), over the pocket encyclopedia, in bfloat16 and in float32: each in a
process of its own, in turns. The median of the steps after the first, which takes longer.
"""

import argparse
import datetime
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from exact_search import cpu_name

from realmlm.bundled import TEXT
from realmlm.log import read_metrics
from realmlm.model.precision import cpu_has_bfloat16

BATCH = 16
QUESTIONS = TEXT.parent / "questions.jsonl"
STAGES = {
    "reading, warm-up": ("reader", "warmup --pointing 1 --retriever.steps 0", "reader"),
    "finding, warm-up (ICT)": ("retriever", "warmup --reader.steps 0", "retriever"),
    "joint training": ("", "pretrain --k 4 --pointing 1 --refresh.every-steps 0", "optim"),
    "questions": ("", f"finetune --questions {QUESTIONS} --read 5", "optim"),
}
"""Where the metrics are, the command, and what it calls its optimizer."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    way = "bfloat16" if cpu_has_bfloat16() else "float32"
    print(f"{datetime.date.today()}  {cpu_name()}, {options.threads} threads; chosen here: {way}\n")
    print(f"| steps of {BATCH}, a second: queries | float32 | bfloat16 | ratio | GB: float32 | bfloat16 |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as place:
        corpus = Path(place) / "corpus"
        realmlm(f"corpus {TEXT} --out {corpus} --tokenizer mini --max-wordpieces 128")
        realmlm(f"spans {corpus}")
        for number, (name, (within, command, optim)) in enumerate(STAGES.items()):
            speeds, peaks = [], []
            for flag in ("no-bf16", "bf16"):
                out = Path(place) / f"{number}-{flag}"
                how = f"--{optim}.steps {options.steps} --{optim}.batch {BATCH} --loop.{flag}"
                loop = f"--loop.device cpu --loop.threads {options.threads} --loop.log-every 1"
                peaks.append(realmlm(f"{command} --from mini --corpus {corpus} --out {out} {how} {loop}"))
                rows = read_metrics(out / within / "metrics.jsonl")
                speeds.append(statistics.median(row["queries/s"] for row in rows if row["step"] > 1))
                shutil.rmtree(out)
            exact, half = speeds
            cells = [f"{exact:.1f}", f"{half:.1f}", f"{half / exact:.2f}", *(f"{peak:.1f}" for peak in peaks)]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def realmlm(command: str) -> float:
    """Run a command; gives the most memory it held, in GB."""
    process = subprocess.Popen(
        [sys.executable, "-m", "realmlm", *command.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"failed: realmlm {command}")
    return used.ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
