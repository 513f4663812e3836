"""How far from the machine's limits are we? `python benchmarks/gpu.py --work work/speed --out results.jsonl`

Measures each kind of work by itself, through the same calls as the commands, on made-up material of real size
(benchmarks/material.py), and prints a table: what it took when the work on speed began ("before"), what it
takes now, what the machine's bandwidth or arithmetic allows ("floor": both measured in the same run), and
what we want to reach. Each row runs in a process of its own; one that fails or takes too long leaves the
others alone. Rows are appended to `--out`, and `--table FILE` prints the table of such a file, the last
measurement of each row.

`--rows joint embed` measures the rows whose names begin so; `--tiny` all in miniature, to see that it works.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from gpu_table import QUERIES, asking, table
from material import make_corpus, make_questions
from torch import Tensor

from realmlm.bundled import MINI, text_place
from realmlm.corpus.build import build_corpus
from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.device import pick_device
from realmlm.index.build import Embedding, build_index
from realmlm.index.exact import ExactIndex
from realmlm.model.create import create_model
from realmlm.model.encoders import Encoder
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.reading.retrieve import index_of
from realmlm.settings import (
    BuildCorpus,
    JointOptim,
    Loop,
    MakeModel,
    Optim,
    Pretrain,
    Refresh,
    Warmup,
)
from realmlm.train.callbacks import Callback
from realmlm.train.gold import locate_answers
from realmlm.train.stages import pretrain, warmup

HERE = Path(__file__).resolve().parent
K = 8
ENDLESS = 100_000  # steps: a run is stopped when it was measured
CHECKED = 16  # queries whose hits are compared with brute force
BEST_OF = 20  # searches timed


@dataclass(frozen=True)
class Size:
    """How large everything is."""

    passages: int = 801_031
    searched: int = 13_353_718
    some: int = 131_072  # passages embedded by a large encoder
    blocks: int = 65_536  # passages of up to 288 wordpieces
    warm: int = 4_096  # passages embedded before time is taken
    questions: int = 58_428
    asked: int = 58_428  # of them in `evaluate`
    clients: int = 64
    batches: int = 1  # by which batches are divided
    seconds: float = 25.0  # that steady training is measured for
    steps: int = 40  # before that, while compilers and caches work
    tiny: bool = False


TINY = Size(
    passages=300,
    searched=5_000,
    some=100,
    blocks=60,
    warm=20,
    questions=40,
    asked=8,
    clients=4,
    batches=32,
    seconds=0.2,
    steps=2,
    tiny=True,
)
SHAPES = {  # family, layers, hidden size, heads, corpus
    "modernbert": ("modernbert", 6, 384, 6, "passages"),
    "mpnet": ("mpnet", 12, 768, 12, "passages"),
    "base": ("bert", 12, 768, 12, "blocks"),
}
Found = dict[str, dict[str, float]]
"""What a row measured, by name: `value`, and `flops` and `bytes` that it takes at least."""


class Bench:
    """The material, made when it is first needed and kept in `work`."""

    def __init__(self, work: Path, size: Size, device: str) -> None:
        self.work = work
        self.size = size
        self.device = str(pick_device(device))

    def corpus(self, name: str) -> Corpus:
        """`passages`, `blocks`, `some` or `warm`, which is either's beginning."""
        longest = 288 if "blocks" in name else 128
        count = self.size.warm if name.startswith("warm") else getattr(self.size, name)
        return make_corpus(self.work / name, count, longest=longest)

    def questions(self) -> Path:
        return make_questions(self.work / "questions.jsonl", self.corpus("passages"), self.size.questions)

    def model(self, name: str) -> Path:
        """With random weights; `six` is of six layers of 384, as mini was when the work on speed began."""
        place = self.work / "models" / name
        if not place.exists():
            family, layers, hidden, heads, corpus = SHAPES.get(name, ("bert", 6, 384, 12, "passages"))
            if self.size.tiny:
                layers, hidden, heads = (1, 32, 2)
            reads = {"reading": "together", "read_titles": True}
            create_model(
                MakeModel(
                    corpus=self.corpus(corpus).folder,
                    out=place,
                    family=family,
                    layers=layers,
                    hidden=hidden,
                    heads=heads,
                    dropout=0.1 if family == "bert" else 0.0,
                    **reads,  # type: ignore[arg-type]
                )
            )
        return place

    def run_folder(self, name: str) -> Path:
        """A place for a run that was not there before."""
        place = self.work / "runs" / name
        shutil.rmtree(place, ignore_errors=True)
        return place

    def loop(self, *, compiled: bool) -> Loop:
        return Loop(
            device=self.device,
            compile=compiled and not self.size.tiny,
            log_every=2 if self.size.tiny else 20,
            checkpoint_every=ENDLESS,
            workers=0 if self.size.tiny else None,
        )

    def wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()


# --- what the work takes at least ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Lengths:
    """Wordpieces of what is encoded, special tokens included, of a sample of a corpus."""

    query: float
    documents_N: np.ndarray
    titles_N: np.ndarray

    @classmethod
    def of(cls, corpus: Corpus, *, query: float | None = None) -> "Lengths":
        sample = corpus.ids[:: max(1, len(corpus) // 1000)]
        titles, bodies = corpus.tokens_of(sample.tolist())
        titles_N, bodies_N = (np.array([len(tokens) for tokens in parts]) for parts in (titles, bodies))
        sentence = bodies_N.sum() / corpus.sentence_counts[:: max(1, len(corpus) // 1000)].sum()
        return cls(query or sentence, titles_N + bodies_N + 3, titles_N)

    def pairs_N(self, *, read_titles: bool) -> np.ndarray:
        """A query and a passage, read together."""
        return self.documents_N + self.query - (0 if read_titles else self.titles_N)


def forward(encoder: Encoder, lengths_N: Any) -> float:
    """Flops of encoding a sequence, the mean over these lengths: two for each weight of a matrix and
    wordpiece, and the products of queries with keys and of weights with values."""
    matrices = {
        name: weight
        for name, weight in encoder.named_parameters()
        if weight.ndim == 2 and "embed" not in name and "relative" not in name
    }
    lengths_N = np.asarray(lengths_N, dtype=np.float64)
    config = encoder.body.config
    attention = 4 * config.num_hidden_layers * encoder.hidden * lengths_N**2
    return float(np.mean(2 * sum(weight.numel() for weight in matrices.values()) * lengths_N + attention))


def joint_flops(model: Realm, corpus: Corpus, masks: float = 2.0) -> float:
    """Of a sentence in joint training, backwards twice what forwards takes: query, K − 1 passages embedded
    and read, the null document read, hidden words predicted."""
    lengths = Lengths.of(corpus)
    pairs_N = lengths.pairs_N(read_titles=model.config.read_titles)
    towers = forward(model.query.encoder, lengths.query + 2)
    towers += (K - 1) * forward(model.document.encoder, lengths.documents_N)
    reader = (K - 1) * forward(model.reader.encoder, pairs_N)
    reader += forward(model.reader.encoder, lengths.query + 3)
    predicted = K * masks * 2 * model.reader.embedding.weight.numel()
    return 3 * (towers + reader + predicted)


# --- rows ---------------------------------------------------------------------------------------------------


def machine(bench: Bench) -> Found:
    """Bandwidth of copying (bytes read and written), and of products in bfloat16."""
    large = 2**20 if bench.size.tiny else 2**31
    wide = 256 if bench.size.tiny else 8192
    source = torch.zeros(large, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    factor = torch.randn(wide, wide, device=bench.device).bfloat16()
    copy = best_seconds(bench, lambda: target.copy_(source))
    product = best_seconds(bench, lambda: factor @ factor)
    return {"copy": {"value": 2 * large / copy}, "product": {"value": 2 * wide**3 / product}}


def best_seconds(bench: Bench, work: Callable[[], object]) -> float:
    """Median of some calls, each waited for, after a few that are not counted."""
    seconds = []
    for number in range(BEST_OF + 5):
        begun = time.perf_counter()
        work()
        bench.wait()
        if number >= 5:
            seconds.append(time.perf_counter() - begun)
    return median(seconds)


def search(bench: Bench, passages: int, dim: int) -> Found:
    """Exact top 8 of vectors in half precision."""
    torch.manual_seed(0)
    vectors_ND = torch.empty(passages, dim, dtype=torch.float16, device=bench.device)
    for part in vectors_ND.split(2**20):
        part.copy_(torch.randn(part.shape, device=bench.device))
    index = ExactIndex(vectors_ND, torch.arange(passages, device=bench.device))
    on_gpu = bench.device.startswith("cuda")
    found: Found = {}
    for queries in QUERIES:
        query_QD = torch.randn(queries, dim, device=bench.device)
        check_hits(index, vectors_ND, query_QD[:CHECKED])
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        seconds = best_seconds(bench, lambda asked=query_QD: index.search(asked, K))  # type: ignore[misc]
        peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
        found[asking(queries)] = {
            "value": 1000 * seconds,
            "flops": 2.0 * passages * dim * queries,
            "bytes": 2.0 * passages * dim,
        }
        found["peak"] = {"value": peak, "bytes": 2.0 * passages * dim}
    return found


def check_hits(index: ExactIndex, vectors_ND: Tensor, query_QD: Tensor) -> None:
    """Are the hits those of brute force in float64? Passages may be exchanged whose scores float32 cannot
    tell apart."""
    scores_QK = torch.full((len(query_QD), 0), 0.0, dtype=torch.float64, device=query_QD.device)
    ids_QK = scores_QK.long()
    for first in range(0, len(vectors_ND), 2**20):
        some_QN = query_QD.double() @ vectors_ND[first : first + 2**20].double().T
        best_QK, place_QK = some_QN.topk(min(K, some_QN.shape[1]))
        scores_QK = torch.cat([scores_QK, best_QK], 1)
        ids_QK = torch.cat([ids_QK, place_QK + first], 1)
    scores_QK, place_QK = scores_QK.topk(K)
    ids_QK = ids_QK.gather(1, place_QK)
    hits = index.search(query_QD, K)
    own_QK = (query_QD.double()[:, None] * vectors_ND[hits.ids_QK].double()).sum(-1)
    close_QK = (own_QK - scores_QK).abs() <= 1e-6 * scores_QK.abs()
    assert ((hits.ids_QK == ids_QK) | close_QK).all(), "hits differ from brute force"


class Measured(Exception):
    """Ends a run, without a checkpoint."""


class Steady(Callback):
    """Ends a run when it was measured for some seconds, not counting its first steps."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._begun = time.monotonic()
        self._first = (0.0, 0)
        self._last = (0.0, 0)
        self._phases: dict[str, float] = {}

    def on_row(self, row: dict[str, Any]) -> None:
        now = (time.monotonic(), int(row["step"]))
        if not self._first[1]:
            self._first = now if now[1] >= self._size.steps else self._first
            return
        self._last = now
        self._phases = row.get("seconds", {})
        if now[0] - self._first[0] >= self._size.seconds:
            raise Measured

    def measured(self, batch: int, flops: float) -> dict[str, Any]:
        """Examples a second; the seconds before the steady part, and the last row's phases, in ms."""
        seconds = self._last[0] - self._first[0]
        return {
            "value": (self._last[1] - self._first[1]) * batch / seconds,
            "flops": flops,
            "start": self._first[0] - self._begun,
            "steps": self._last[1] - self._first[1],
            **{f"{phase} ms": 1000 * value for phase, value in self._phases.items()},
        }


def joint(bench: Bench, name: str, corpus_name: str, batch: int, *, compiled: bool = True) -> Found:
    """Joint training with pointing over an index that stays as it is."""
    corpus = bench.corpus(corpus_name)
    batch = max(4, batch // bench.size.batches)
    model = bench.model(name)
    settings = Pretrain(
        model=model,
        corpus=corpus.folder,
        out=bench.run_folder(f"joint-{name}-{batch}"),
        k=K,
        pointing=1.0,
        optim=JointOptim(steps=ENDLESS, batch=batch),
        refresh=Refresh(every_steps=0),
        loop=bench.loop(compiled=compiled),
    )
    flops = joint_flops(Realm.from_pretrained(model), corpus)
    steady = Steady(bench.size)
    until_measured(lambda: pretrain(settings, callbacks=[steady]))
    return {"sentences/s": steady.measured(batch, flops)}


def until_measured(stage: Callable[[], object]) -> None:
    """Run a stage until its callback ends it."""
    try:
        stage()
    except Measured:
        return
    raise AssertionError("the run ended before it was measured")


def reader_warmup(bench: Bench) -> Found:
    corpus = bench.corpus("passages")
    batch = max(4, 128 // bench.size.batches)
    model = bench.model("mpnet")
    settings = Warmup(
        model=model,
        corpus=corpus.folder,
        out=bench.run_folder("warmup"),
        pointing=1.0,
        reader=Optim(steps=ENDLESS, batch=batch),
        retriever=Optim(steps=0),
        loop=bench.loop(compiled=True),
    )
    realm = Realm.from_pretrained(model)
    pairs_N = Lengths.of(corpus).pairs_N(read_titles=realm.config.read_titles)
    flops = 3 * forward(realm.reader.encoder, pairs_N)
    steady = Steady(bench.size)
    until_measured(lambda: warmup(settings, callbacks=[steady]))
    return {"pairs/s": steady.measured(batch, flops)}


def embedding(bench: Bench, name: str, corpus_name: str, warm: str) -> Found:
    """An index built from the first passage to the published folder."""
    model = Realm.from_pretrained(bench.model(name)).to(bench.device).eval()
    encode = DocumentEncoder.of(model)
    corpus = bench.corpus(corpus_name)
    place = bench.run_folder(f"index-{name}")
    build_index(place / "warm", bench.corpus(warm), encode, Embedding(), kind="exact")
    bench.wait()
    begun = time.perf_counter()
    build_index(place / "index", corpus, encode, Embedding(), kind="exact")
    seconds = time.perf_counter() - begun
    shutil.rmtree(place)
    flops = forward(model.document.encoder, Lengths.of(corpus).documents_N)
    return {"passages/s": {"value": len(corpus) / seconds, "flops": flops, "seconds": seconds}}


def evaluation(bench: Bench) -> Found:
    """`realmlm evaluate` over an index that is there, 20 passages read; opening the index counts, compiling
    kernels does not."""
    corpus = bench.corpus("passages")
    model = Realm.from_pretrained(bench.model("six")).to(bench.device)
    index_of(model, corpus)
    questions = bench.questions()
    file = bench.run_folder("evaluate").with_suffix(".json")
    file.unlink(missing_ok=True)
    options = {"model": bench.model("six"), "corpus": corpus.folder, "questions": questions, "read": 20}
    options |= {"device": bench.device}
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "realmlm", "evaluate", *flags, "--limit"]
    subprocess.run([*command, str(max(1, bench.size.asked // 16))], check=True)
    begun = time.perf_counter()
    subprocess.run([*command, str(bench.size.asked), "--report", str(file)], check=True)
    whole = time.perf_counter() - begun
    seconds = json.loads(file.read_text("utf-8"))["seconds"]
    query = np.mean([len(corpus.wordpieces.encode(q.text)) for q in read_questions(questions)[:500]])
    pairs_N = Lengths.of(corpus, query=float(query)).pairs_N(read_titles=model.config.read_titles)
    flops = 20 * forward(model.reader.encoder, pairs_N) + forward(model.query.encoder, query + 2)
    rate = bench.size.asked / seconds
    return {"questions/s": {"value": rate, "flops": flops, "with loading": bench.size.asked / whole}}


def service(bench: Bench) -> Found:
    """benchmarks/serve_load.py over the pocket encyclopedia."""
    place = bench.work / "pocket"
    text = text_place("pocket")
    if not place.exists():
        sources = (text,)
        build_corpus(
            BuildCorpus(sources=sources, out=place, tokenizer=str(MINI), max_wordpieces=128, workers=1)
        )
    options = ["--model", str(bench.model("six")), "--corpus", str(place), "--device", bench.device]
    options += ["--questions", str(text.with_name("questions.jsonl"))]
    options += ["--clients", str(bench.size.clients), "--seconds", "3" if bench.size.tiny else "10"]
    said = program("serve_load.py", *options)
    wanted = f"{bench.size.clients} clients"
    line = next(line for line in said.splitlines() if line.strip().startswith(wanted))
    _, failed, p50, p99, rate = map(float, re.findall(r"[\d.]+", line)[-5:])
    assert not failed, f"{failed:.0f} requests failed"
    return {"questions/s": {"value": rate, "p50": p50}, "p99": {"value": p99}}


def refreshing(bench: Bench) -> Found:
    """benchmarks/refresh_stall.py: how long training stood still, and its speed while the corpus is embedded
    beside it."""
    options = ["--compile", "--minutes", "1", "--passages", str(bench.size.blocks)]
    said = program("refresh_stall.py", *(["--tiny", "--minutes", "0.2"] if bench.size.tiny else options))
    record = json.loads(said.splitlines()[-1])
    return {"stall": {"value": record["stall_s"]}, "beside": {"value": 100 * record["speed_beside"]}}


def program(name: str, *options: str) -> str:
    """What a benchmark prints; it may say by its exit code that it is not content."""
    done = subprocess.run(
        [sys.executable, str(HERE / name), *options], stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout, file=sys.stderr)
    return done.stdout


def locating(bench: Bench) -> Found:
    """Where the answers of all questions stand, looked for by all cores."""
    corpus = bench.corpus("passages")
    questions = read_questions(bench.questions())
    shutil.rmtree(corpus.folder / "answers", ignore_errors=True)
    begun = time.perf_counter()
    locate_answers(corpus, questions)
    return {"seconds": {"value": time.perf_counter() - begun}}


ROWS: dict[str, Callable[[Bench], Found]] = {
    "machine": machine,
    "search-13m": lambda bench: search(bench, bench.size.searched, 128),
    "search-801k": lambda bench: search(bench, bench.size.passages, 384),
    "embed-six": lambda bench: embedding(bench, "six", "passages", "warm"),
    "embed-mpnet": lambda bench: embedding(bench, "mpnet", "some", "warm"),
    "embed-blocks": lambda bench: embedding(bench, "base", "blocks", "warm-blocks"),
    "joint-six-128": lambda bench: joint(bench, "six", "passages", 128),
    "joint-six-512": lambda bench: joint(bench, "six", "passages", 512),
    "joint-modernbert-128": lambda bench: joint(bench, "modernbert", "passages", 128),
    "joint-modernbert-512": lambda bench: joint(bench, "modernbert", "passages", 512),
    "joint-base-compiled": lambda bench: joint(bench, "base", "blocks", 64),
    "joint-base-eager": lambda bench: joint(bench, "base", "blocks", 64, compiled=False),
    "warmup": reader_warmup,
    "evaluate": evaluation,
    "answers": locating,
    "serve": service,
    "refresh": refreshing,
}


# --- all ----------------------------------------------------------------------------------------------------


def hardware(device: str) -> str:
    cores = f"{os.cpu_count()} cores"
    named = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    return f"{named}, {cores}, torch {torch.__version__}"


def run_row(name: str, options: argparse.Namespace) -> None:
    """Measure a row in this process and append it to the results."""
    size = TINY if options.tiny else Size(seconds=options.seconds, passages=options.passages)
    bench = Bench(options.work.absolute(), size, options.device)
    begun = time.monotonic()
    found = ROWS[name](bench)
    record = {
        "row": name,
        "date": str(datetime.date.today()),
        "hardware": hardware(bench.device),
        "found": found,
        "took": time.monotonic() - begun,
    }
    append(options.out, record)


def append(file: Path, record: dict[str, Any]) -> None:
    with open(file, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(record, ensure_ascii=False) + "\n")


def watch_row(name: str, options: argparse.Namespace) -> None:
    """Measure a row in a process of its own; if that fails, the results say why."""
    log = options.work / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *sys.argv, "--alone", name]
    begun = time.monotonic()
    with (
        open(log, "wb") as stream,
        subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True) as process,
    ):
        try:
            code = process.wait(options.limit)
            why = log.read_text("utf-8", errors="replace").strip().splitlines()[-1:] if code else []
        except subprocess.TimeoutExpired:
            why = [f"not done after {options.limit:.0f} s"]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(
                    process.pid, signal.SIGKILL
                )  # and what it started: the next row wants the GPU alone
    if why:
        append(options.out, {"row": name, "error": why[0][-200:]})
    said = why[0] if why else "done"
    print(f"{name:22s} {time.monotonic() - begun:6.1f} s  {said}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("work/speed"), help="where the material is kept")
    parser.add_argument(
        "--out", type=Path, help="file to append results to; default: results.jsonl in --work"
    )
    parser.add_argument("--rows", nargs="*", default=[""], help=f"beginnings of: {', '.join(ROWS)}")
    parser.add_argument("--limit", type=float, default=300, help="seconds that a row may take")
    parser.add_argument("--seconds", type=float, default=25, help="that steady training is measured for")
    parser.add_argument("--passages", type=int, default=801_031, help="of the corpus that most rows use")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true", help="all in miniature")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of these results alone")
    parser.add_argument("--alone", choices=ROWS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a row does not outlive it
    options.work.mkdir(parents=True, exist_ok=True)
    options.out = options.out or options.work / "results.jsonl"
    if options.alone:
        run_row(options.alone, options)
        return
    for name in ROWS:
        if name == "machine" or name.startswith(tuple(options.rows)):
            watch_row(name, options)
    print(table(options.out))


if __name__ == "__main__":
    main()
