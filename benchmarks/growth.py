"""How it grows with the corpus: `python benchmarks/growth.py --work work/growth --sizes 10000 100000 1000000`

For each number of passages (made up, up to 128 wordpieces; benchmarks/material.py) seconds and bytes of
building an exact and an IVF index, opening, asking one question and refreshing, in a process of its own. The
model has random weights, six layers of 384 (mini's size) and vectors of 128 numbers, float16. Up to
`--embedded` passages are embedded by it; above that, vectors are drawn around random centres and written,
hashed and published the same way, so "build" and "refresh" are without the encoder there, and the table says
so. Opening drops the files from the system's cache first. A refresh is what happens beside training: the
index made anew for another step, opened in place of the old. The IVF index is made of the exact one's
vectors.

Results are appended to results.jsonl in `--work`; the table and, with `--plot FILE.png` (Chromium draws it),
the plot are of all sizes in it, so that a larger machine can add one. At the paper's size, on a machine with
a GPU: `python benchmarks/growth.py --work work/growth --sizes 13353718 --embedded 13353718`.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from math import log10
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from exact_search import cpu_name
from material import make_corpus, make_questions

from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.device import pick_device
from realmlm.engine import Engine
from realmlm.index.build import Embedding, Known, build_index
from realmlm.index.exact import Index
from realmlm.index.store import SHARD, ShardedBuild, index_info, open_index
from realmlm.model.create import create_model
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.settings import MakeModel

CROWD = 200  # passages around each centre of random vectors
ASKED = 15  # questions; the median counts
KINDS = ("exact", "ivf")


@contextmanager
def timed(found: dict[str, Any], name: str) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    found[name] = time.perf_counter() - begun


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def drop_from_cache(*folders: Path) -> None:
    """Ask the system to forget the files' pages, so that they are read from the disk."""
    for file in (file for folder in folders for file in folder.rglob("*") if file.is_file()):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


class Builder:
    """Builds indexes of a corpus, embedded or of random vectors."""

    def __init__(self, corpus: Corpus, model: Realm, *, embedded: bool) -> None:
        self._corpus = corpus
        self._encode = DocumentEncoder.of(model)
        self._embedded = embedded

    def __call__(self, place: Path, kind: str, *, known: Index | None = None, step: int = 0) -> None:
        """Build an index at `place`, of the vectors that are `known`, if they are."""
        if self._embedded:
            vectors = None if known is None else _all_of(known)
            how = Embedding(known=vectors)
            build_index(place, self._corpus, self._encode, how, kind=kind, step=step)
            return
        passages = len(self._corpus)
        dim = self._encode.dim
        borders = [*range(0, passages, SHARD), passages]
        plan: dict[str, Any] = {"weights": self._encode.fingerprint, "corpus": self._corpus.fingerprint}
        plan |= {"corpus_edits": 0, "dim": dim, "dtype": "float16", "kind": kind, "step": step}
        build = ShardedBuild(place.parent / f".{place.name}.partial", plan | {"borders": borders})
        centres = torch.randn(passages // CROWD + 1, dim, generator=torch.Generator().manual_seed(1))
        for shard in range(build.shards):
            generator = torch.Generator().manual_seed(2 + shard)
            ids = torch.arange(*borders[shard : shard + 2])
            near = centres[torch.randint(len(centres), ids.shape, generator=generator)]
            build.put(shard, ids, near + 0.8 * torch.randn(near.shape, generator=generator))
        build.publish(place)


def _all_of(index: Index) -> Known:
    return lambda ids_N: (np.ones(len(ids_N), dtype=bool), index.vectors(torch.from_numpy(ids_N)))


def measure(work: Path, passages: int, *, embedded: bool, device: str) -> dict[str, Any]:
    """One size, all steps; the folder is removed before and after but for the corpus."""
    found: dict[str, Any] = {"passages": passages, "embedded": embedded}
    place = work / str(passages)
    with timed(found, "corpus_s"):
        corpus = make_corpus(place / "corpus", passages, longest=128)
    found["corpus_bytes"] = size_of(corpus.folder)
    asked = [q.text for q in read_questions(make_questions(place / "questions.jsonl", corpus, ASKED + 1))]
    model = Realm.from_pretrained(_model(work, corpus)).to(device).eval()
    build = Builder(corpus, model, embedded=embedded)
    for name in (*KINDS, "refreshed"):
        shutil.rmtree(place / name, ignore_errors=True)
    for kind in KINDS:
        known = open_index(place / "exact") if kind == "ivf" else None
        with timed(found, f"{kind}_s"):
            build(place / kind, kind, known=known)
        found[f"{kind}_bytes"] = size_of(place / kind)
    found["recall"] = index_info(place / "ivf").recall
    for kind in KINDS:
        drop_from_cache(place)
        where = device if kind == "exact" else "cpu"
        with timed(found, f"{kind}_open_s"):
            Corpus.open(place / "corpus")
            index = open_index(place / kind, device=where)
        with timed(found, f"{kind}_first_s"):  # reads the vectors from the disk
            index.search(torch.randn(1, index.dim, device=where), 8)
        query = torch.randn(1, index.dim, device=where)
        found[f"{kind}_search_s"] = median_s(lambda index=index, query=query: index.search(query, 8))  # type: ignore[misc]
        engine = Engine(work / "model", place / "corpus", index=place / kind, device=device)
        engine.ask(asked[0])
        numbers = iter(range(1, len(asked)))
        found[f"{kind}_ask_s"] = median_s(
            lambda engine=engine, numbers=numbers: engine.ask(asked[next(numbers)])  # type: ignore[misc]
        )
    with timed(found, "refresh_s"):
        build(place / "refreshed", "exact", step=1)
        open_index(place / "refreshed", device=device)
    for name in (*KINDS, "refreshed"):
        shutil.rmtree(place / name)
    return found


def median_s(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(ASKED):
        begun = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return median(seconds)


def _model(work: Path, corpus: Corpus) -> Path:
    if not (work / "model").exists():
        shape = {"family": "bert", "layers": 6, "hidden": 384, "heads": 12}
        create_model(MakeModel(corpus=corpus.folder, out=work / "model", projection=128, **shape))  # type: ignore[arg-type]
    return work / "model"


# --- table and plot -----------------------------------------------------------------------------------------


def records(file: Path) -> list[dict[str, Any]]:
    """The last measurement of each size."""
    found = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return sorted({record["passages"]: record for record in found}.values(), key=lambda r: r["passages"])


def seconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def size(value: int) -> str:
    return f"{value / 1e6:.3g} MB" if value < 1e9 else f"{value / 1e9:.3g} GB"


def table(found: list[dict[str, Any]]) -> str:
    head = ["", *(f"{record['passages']:,}" for record in found)]
    rows: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("vectors", lambda r: "embedded" if r["embedded"] else "random"),
        ("corpus on disk", lambda r: size(r["corpus_bytes"])),
        ("exact index: build", lambda r: seconds(r["exact_s"])),
        ("on disk", lambda r: size(r["exact_bytes"])),
        ("open, with the corpus", lambda r: seconds(r["exact_open_s"])),
        ("first search, from disk", lambda r: seconds(r["exact_first_s"])),
        ("search, one query", lambda r: seconds(r["exact_search_s"])),
        ("a question, 5 passages read", lambda r: seconds(r["exact_ask_s"])),
        ("refresh", lambda r: seconds(r["refresh_s"])),
        ("IVF index: build", lambda r: seconds(r["ivf_s"])),
        ("on disk", lambda r: size(r["ivf_bytes"])),
        ("recall@1 and @8, at least", lambda r: f"{r['recall']:.3f}"),
        ("open, with the corpus", lambda r: seconds(r["ivf_open_s"])),
        ("first search, from disk", lambda r: seconds(r["ivf_first_s"])),
        ("search, one query", lambda r: seconds(r["ivf_search_s"])),
        ("a question, 5 passages read", lambda r: seconds(r["ivf_ask_s"])),
        ("machine", lambda r: r["machine"]),
        ("date", lambda r: r["date"]),
    ]
    lines = [head, ["---"] * len(head), *([name, *(show(r) for r in found)] for name, show in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


CURVES = {  # name: seconds of a record, colour, dashed
    "build exact": ("exact_s", "#1f6fb4", False),
    "build IVF": ("ivf_s", "#1f6fb4", True),
    "refresh": ("refresh_s", "#8a8a8a", False),
    "open exact": ("exact_open_s", "#2c8c4a", False),
    "open IVF": ("ivf_open_s", "#2c8c4a", True),
    "search exact": ("exact_search_s", "#c8502b", False),
    "search IVF": ("ivf_search_s", "#c8502b", True),
}
WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 80, 150, 30, 60


def svg(found: list[dict[str, Any]]) -> str:
    """Seconds by passages, both logarithmic."""
    passages = [log10(record["passages"]) for record in found]
    values = [log10(record[key]) for record in found for key, _, _ in CURVES.values()]
    first, last = (min(passages), max(passages))
    low, high = (int(min(values)) - 1, int(max(values)) + 1)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - first) / ((last - first) or 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="13"><rect width="100%" height="100%" fill="white"/>'
    ]
    for power in range(low, high + 1):
        parts.append(f'<path d="M{LEFT} {y(power):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        label = seconds(10.0**power)
        parts.append(f'<text x="{LEFT - 8}" y="{y(power) + 4:.1f}" text-anchor="end">{label}</text>')
    for record, place in zip(found, passages, strict=True):
        label = f"{record['passages']:,}"
        under = f'x="{x(place):.1f}" y="{HEIGHT - BOTTOM + 22}"'
        parts.append(f'<text {under} text-anchor="middle">{label}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 14}">passages</text>')
    taken: list[float] = []
    for name, (key, colour, dashed) in sorted(CURVES.items(), key=lambda c: -found[-1][c[1][0]]):
        heights = [y(log10(record[key])) for record in found]
        points = " ".join(f"{x(at):.1f},{height:.1f}" for at, height in zip(passages, heights, strict=True))
        stroke = f'stroke="{colour}" stroke-width="2"' + (' stroke-dasharray="6 4"' if dashed else "")
        parts.append(f'<polyline points="{points}" fill="none" {stroke}/>')
        height = max(heights[-1] + 4, (taken[-1] if taken else 0) + 16)  # names do not overlap
        taken.append(height)
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{height:.1f}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"])


def draw(found: list[dict[str, Any]], file: Path) -> None:
    drawing = file.with_suffix(".svg")
    drawing.write_text(svg(found), "utf-8")
    chromium = [str(shutil.which("chromium")), "--headless", "--no-sandbox", "--disable-gpu"]
    picture = [f"--screenshot={file.absolute()}", f"--window-size={WIDTH},{HEIGHT}", "--hide-scrollbars"]
    command = [*chromium, *picture, drawing.absolute().as_uri()]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    drawing.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("work/growth"))
    parser.add_argument("--sizes", type=int, nargs="*", default=[])
    parser.add_argument("--embedded", type=int, default=10_000, help="the most passages that are embedded")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    if options.alone:
        device = str(pick_device(options.device))
        embedded = options.alone <= options.embedded
        found = measure(work, options.alone, embedded=embedded, device=device)
        machine = torch.cuda.get_device_name() if device.startswith("cuda") else cpu_name()
        found["machine"] = f"{machine}, {torch.get_num_threads()} threads"
        found["date"] = str(datetime.date.today())
        with open(work / "results.jsonl", "a", encoding="utf-8") as stream:
            stream.write(json.dumps(found) + "\n")
        return
    for passages in options.sizes:
        subprocess.run([sys.executable, *sys.argv, "--alone", str(passages)], check=True)
    found_all = records(work / "results.jsonl")
    print(table(found_all))
    if options.plot:
        draw(found_all, options.plot)


if __name__ == "__main__":
    main()
