"""How many questions a second does the service answer? `python benchmarks/serve_load.py --clients 1 64`

Starts the service on loopback and asks it over HTTP from processes of their own, each client on a connection
that it keeps: so many clients at once, in turns of a few seconds so that what else the machine does falls on
all alike. For each number of clients it prints how many questions were answered together on average, the
processor time that one took in the service's own process, where Python's threads take turns, and in those
beside it, failed requests, p50, p99 and questions a second; below that what the model does without a service,
one question a call and as many as there are clients. Exits with 1 if a request failed. With several numbers
of --workers a service of each runs, and they are asked in turns.

With --without-model passages and spans are drawn by lot: what is left is what the service itself costs, alone
or with --writers beside it. Without --corpus it searches made-up passages, --passages of them, and asks about
their words:
`python benchmarks/serve_load.py --passages 801031 --device cuda` measures the host and the GPU at that size.
"""

import argparse
import asyncio
import datetime
import gc
import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import NamedTuple, TypeVar

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command has it; read when torch is imported
import numpy as np
import torch

from realmlm.bundled import MINI, model_place, text_place
from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.defaults import READ
from realmlm.engine import Engine
from realmlm.parallel import cores
from realmlm.reading.answer import SPANS_KEPT
from realmlm.reading.combine import Combiner, ReadSpans
from realmlm.reading.records import Answer

T = TypeVar("T")
TURN_S = 10
WARM_S = 3
MOST_LOADERS = 4  # processes that ask
ASKED = 5_000  # made-up questions
WORDS = 113  # of a made-up passage of 128 wordpieces
SENTENCE = 17  # words
ARTICLE = 20  # passages
AHEAD = b"POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


# --- asking -------------------------------------------------------------------------------------------------


class Client(asyncio.Protocol):
    """Asks one question after the other until it is time to stop. Plain HTTP: a client library would take
    more of the machine than the service does."""

    def __init__(self, questions: "cycle[bytes]", until: float) -> None:
        self.times: list[float] = []
        self.failed = 0
        self.over = asyncio.get_running_loop().create_future()
        self._questions = questions
        self._until = until
        self._begun = 0.0
        self._said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._begun = time.perf_counter()
        if self._begun < self._until:
            self._transport.write(next(self._questions))
        else:
            self.over.set_result(None)
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._said += data
        head, end, body = self._said.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head) if end else None
        if length is None or len(body) < int(length[1]):
            return
        if head.startswith(b"HTTP/1.1 200") and b'"answer"' in body:
            self.times.append(time.perf_counter() - self._begun)
        else:
            self.failed += 1
        self._said = b""
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.failed += 1
            self.over.set_result(None)


class Saw(NamedTuple):
    """Seconds of each answer, requests that failed, and how long it all took."""

    times: list[float]
    failed: int
    seconds: float


def ask_for(seconds: float, port: int, questions: list[bytes], clients: int) -> Saw:
    """What so many clients of this process saw, which ask for some seconds."""

    async def ask() -> Saw:
        loop = asyncio.get_running_loop()
        several = cycle(questions)
        begun = time.perf_counter()
        until = begun + seconds
        opened = [
            loop.create_connection(lambda: Client(several, until), "127.0.0.1", port) for _ in range(clients)
        ]
        asking = [client for _, client in await asyncio.gather(*opened)]
        await asyncio.gather(*(client.over for client in asking))
        times = [one for client in asking for one in client.times]
        return Saw(times, sum(client.failed for client in asking), time.perf_counter() - begun)

    return asyncio.run(ask())


class Service:
    """A running service, and what it says of itself."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, workers: int) -> None:
        self.port = port
        self._process = process
        while f"realmlm_workers {workers}." not in self._get("/metrics"):
            if process.poll() is not None:
                sys.exit("the service did not start")
            time.sleep(0.2)

    def _get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def counts(self) -> np.ndarray:
        """Batches, questions in them, and seconds of processor time so far, of the service's process and of
        those that it started (Linux only)."""
        said = self._get("/metrics")
        sizes = [re.search(rf"realmlm_batch_size_{name} (\S+)", said) for name in ("count", "sum")]
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/children")
        started = [int(number) for task in tasks for number in task.read_text().split()]
        seconds = (_cpu_s(self._process.pid), sum(map(_cpu_s, started)))
        return np.array([*(float(size[1]) if size else 0 for size in sizes), *seconds])


def _cpu_s(process: int) -> float:
    """Seconds of processor time that a process took; 0 where that cannot be known."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0.0
    return sum(map(int, stat.rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


class Asked:
    """What some clients saw, and what the service counted meanwhile."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.failed = 0
        self.seconds = 0.0
        self.counted = np.zeros(4)

    def turn(
        self, pool: Executor, service: Service, questions: list[bytes], *, clients: int, seconds: float
    ) -> None:
        """Ask for some seconds. Each process has its own questions: the same, asked by two at once, are
        answered once."""
        processes = min(clients, MOST_LOADERS, max(1, cores() // 2))
        before = service.counts()
        shares = [clients // processes + (number < clients % processes) for number in range(processes)]
        asking = [
            pool.submit(ask_for, seconds, service.port, questions[number::processes], share)
            for number, share in enumerate(shares)
        ]
        saw = [one.result() for one in asking]
        self.times += [one for some in saw for one in some.times]
        self.failed += sum(some.failed for some in saw)
        self.seconds += max(some.seconds for some in saw)
        self.counted += service.counts() - before

    def alone(
        self, ask: Callable[[list[str]], object], questions: list[str], *, together: int, seconds: float
    ) -> None:
        """The same without a service, so many questions a call."""
        several = cycle(questions)
        ask([next(several) for _ in range(together)])  # warm
        begun = time.perf_counter()
        cpu_s = time.process_time()
        while (since := time.perf_counter()) < begun + seconds:
            ask([next(several) for _ in range(together)])
            self.times += [time.perf_counter() - since] * together
        self.seconds = time.perf_counter() - begun
        self.counted = np.array([1, together, time.process_time() - cpu_s, 0])

    def row(self) -> str:
        batches, questions, *cpu_s = self.counted
        p50, p99 = (1000 * np.quantile(self.times or [0.0], share) for share in (0.5, 0.99))
        own_us, beside_us = (1e6 * seconds / max(len(self.times), 1) for seconds in cpu_s)
        together = f"{questions / max(batches, 1):10.1f}  {own_us:11.0f}  {beside_us:9.0f}"
        rate = len(self.times) / self.seconds
        return f"{together}  {len(self.times):9d}  {self.failed:6d}  {p50:6.0f}  {p99:6.0f}  {rate:11.1f}"


# --- what answers -------------------------------------------------------------------------------------------


class DrawnReadings(Engine):
    """Reads passages and spans drawn by lot, and computes nothing; answers are made of them as ever."""

    at_once = 96
    editable = False
    up_to_date = True

    def __init__(self, corpus: Path) -> None:
        self._drawn_from = Corpus.open(corpus)
        self._random = np.random.default_rng(0)

    @property
    def corpus(self) -> Corpus:
        return self._drawn_from

    @property
    def combiner(self) -> Combiner:
        return Combiner(self._drawn_from, max_query=64, released=False, calibration=None)

    def follow(self) -> None:
        self._drawn_from.newest()

    def ask(self, questions: list[str], *, read: int = READ) -> list[Answer]:  # type: ignore[override]
        return self.ask_through(Combiner.answers, questions, read=read)

    def ask_through(
        self, combine: Callable[[Combiner, ReadSpans], Sequence[T]], questions: list[str], *, read: int = READ
    ) -> list[T | Answer]:
        self.follow()
        return list(combine(self.combiner, self._drawn(questions, read)))

    def _drawn(self, questions: list[str], read: int) -> ReadSpans:
        ids_BK = self._random.integers(len(self.corpus), size=(len(questions), read))
        lengths = [len(self.corpus.tokens(number)) for number in ids_BK.flatten().tolist()]
        lengths_N1 = np.array(lengths)[:, None]
        more_NS = self._random.integers(4, size=(ids_BK.size, SPANS_KEPT)) % lengths_N1
        first_NS = (self._random.random(more_NS.shape) * (lengths_N1 - more_NS)).astype(np.int64)
        p_NS = self._random.dirichlet(np.ones(SPANS_KEPT), len(more_NS)).astype(np.float32)
        return ReadSpans(
            questions,
            [9] * len(questions),
            ids_BK,
            relevance_B=np.ones(len(questions), dtype=np.float32),
            p_BK=np.full(ids_BK.shape, 1 / read, dtype=np.float32),
            first_NS=first_NS,
            more_NS=more_NS,
            p_NS=np.sort(p_NS)[:, ::-1],
        )


def serve_without_model(corpus: Path, port: int, writers: int) -> None:
    """As `realmlm serve` does it."""
    import uvicorn

    from realmlm.serve.http import create_app

    app = create_app(DrawnReadings(corpus), host="127.0.0.1", writers=writers)
    gc.collect()
    gc.freeze()
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


# --- what is asked ------------------------------------------------------------------------------------------


def make_up(folder: Path, model: Path, passages: int) -> tuple[Path, list[str]]:
    """A corpus of about so many passages of drawn words, frequent ones more often, and questions of such."""
    from realmlm.corpus.build import build_corpus
    from realmlm.corpus.wordpieces import Wordpieces
    from realmlm.settings import BuildCorpus

    vocabulary = Wordpieces.load(model).tokenizer.get_vocab()
    words = sorted(filter(re.compile("[a-z]{3,12}").fullmatch, vocabulary), key=vocabulary.__getitem__)
    generator = np.random.default_rng(0)

    def text(sentences: int, length: int) -> str:
        # the n-th word about 1/n as often as the first
        ranks = len(words) ** generator.random(sentences * length)
        drawn = np.array(words)[ranks.astype(int).clip(max=len(words) - 1)].reshape(sentences, length)
        return " ".join(" ".join(sentence).capitalize() + "." for sentence in drawn)

    source = folder / "made_up.jsonl"
    with open(source, "w", encoding="utf-8") as stream:
        for _ in range(-(-passages // ARTICLE)):
            article = {"title": text(1, 3), "text": text(ARTICLE * WORDS // SENTENCE, SENTENCE)}
            stream.write(json.dumps(article) + "\n")
    out = folder / "corpus"
    build_corpus(BuildCorpus(sources=(source,), out=out, tokenizer=str(model), max_wordpieces=128))
    return out, [f"Which {text(1, 9)[:-1].lower()}?" for _ in range(ASKED)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=MINI)
    parser.add_argument("--corpus", type=Path, help="default: made-up passages")
    parser.add_argument(
        "--index", type=Path, help="default: the one beside the corpus, built if there is none"
    )
    parser.add_argument("--questions", type=Path, help="default: those of the pocket encyclopedia")
    parser.add_argument("--passages", type=int, default=2_000, help="how many to make up")
    parser.add_argument("--read", type=int, default=READ, help="passages read for a question")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--workers", type=int, nargs="+", default=[1], help="processes of the service")
    parser.add_argument("--batch", type=int, help="default: the service's own")
    parser.add_argument("--seconds", type=float, default=30, help="for each number of clients")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--without-model", action="store_true", help="what does the service itself cost?")
    parser.add_argument("--writers", type=int, default=0, help="processes beside the service without a model")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)  # of the service without a model
    options = parser.parse_args()
    if options.without_model and options.workers != [1]:
        parser.error("--without-model is one process")
    if options.port is not None:
        serve_without_model(options.corpus, options.port, options.writers)
        return
    with ExitStack() as held:
        corpus = options.corpus
        texts: list[str] = []
        if corpus is None:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
            corpus, texts = make_up(folder, model_place(options.model), options.passages)
        if options.questions or not texts:
            file = options.questions or text_place("pocket").with_name("questions.jsonl")
            texts = [question.text for question in read_questions(file)]
        measure(options, corpus, texts, held)


def measure(options: argparse.Namespace, corpus: Path, texts: list[str], held: ExitStack) -> None:
    """Run the services, ask them in turns, and print the table."""
    bodies = [json.dumps({"question": text, "read": options.read}).encode() for text in texts]
    requests = [AHEAD % len(body) + body for body in bodies]
    seen = {(clients, workers): Asked() for clients in options.clients for workers in options.workers}
    turn_s = min(TURN_S, options.seconds)
    with ExitStack() as running:
        services = {workers: started(options, corpus, workers, running) for workers in options.workers}
        pool = held.enter_context(ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")))
        for service in services.values():
            Asked().turn(pool, service, requests, clients=max(options.clients), seconds=WARM_S)
        while any(asked.seconds < options.seconds for asked in seen.values()):
            for (clients, workers), asked in seen.items():
                asked.turn(pool, services[workers], requests, clients=clients, seconds=turn_s)
    alone = {(together, 0): Asked() for together in options.clients}
    machine = "no model"
    if options.without_model:
        engine: Engine = DrawnReadings(corpus)
    else:
        engine = Engine(options.model, corpus, index=options.index, device=options.device)
        on_gpu = engine.model.device.type == "cuda"
        machine = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} threads"
    for (together, _), asked in alone.items():
        asked.alone(
            lambda some: engine.ask(some, read=options.read), texts, together=together, seconds=turn_s
        )
    searched = f"{len(engine.corpus):,} passages, {options.read} read"
    print(f"{datetime.date.today()}  {cores()} cores, {machine}, {searched}")
    print(f"{'':22}mean batch  CPU µs each  beside it  questions  failed  p50 ms  p99 ms  questions/s")
    for name, group in (("clients", seen), ("a call, no service", alone)):
        for (number, workers), asked in group.items():
            of = f", {workers} workers" if workers > 1 else ""
            print(f"{number:3d} {name + of:18}{asked.row()}")
    sys.exit(any(asked.failed for asked in seen.values()))


def started(options: argparse.Namespace, corpus: Path, workers: int, running: ExitStack) -> Service:
    """A service of so many processes, which is told to stop in the end."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    command = [sys.executable, "-m", "realmlm", "serve", "--model", str(options.model), "--port", str(port)]
    command += ["--corpus", str(corpus), "--device", options.device, "--workers", str(workers)]
    for flag in ("index", "batch"):
        if (value := getattr(options, flag)) is not None:
            command += [f"--{flag}", str(value)]
    if options.without_model:
        command = [sys.executable, __file__, "--port", str(port), "--corpus", str(corpus)]
        command += ["--writers", str(options.writers)]
    process = running.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
    running.callback(process.terminate)
    return Service(process, port, workers)


if __name__ == "__main__":
    main()
