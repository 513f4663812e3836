"""How many questions a second does the service answer? `python benchmarks/serve_load.py --model MODEL
--corpus CORPUS --questions FILE`

Starts the service on loopback and asks it over HTTP: one client that asks one question after the other, and
64 at once, in turns of a few seconds so that what else the machine does falls on both. Prints failed
requests, p50, p99 and questions a second of each; beside them what the model does without a service, one
question a call and 16: no service can gain more by answering together than the model does. Exits with 1 if
any request failed or together they are less than three times as fast as one after the other.
"""

import argparse
import asyncio
import datetime
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np

from realmlm.corpus.questions import read_questions

TURN_S = 10
TOGETHER = 16  # the service's own default
Ask = Callable[[list[str]], object]


class Asked:
    """What some clients saw: seconds of each answer, requests that failed, and seconds that they asked
    for."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.failed = 0
        self.seconds = 0.0

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds

    def row(self) -> str:
        p50, p99 = (1000 * np.quantile(self.times or [0.0], share) for share in (0.5, 0.99))
        return f"{len(self.times):9d}  {self.failed:6d}  {p50:6.0f}  {p99:6.0f}  {self.rate:11.1f}"


async def turn(
    port: int, questions: list[str], numbers: "count[int]", asked: Asked, *, clients: int, seconds: float
) -> None:
    """Ask for some seconds, each client on a connection of its own."""
    begun = time.monotonic()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < begun + seconds:
            since = time.monotonic()
            if await answered(reader, writer, questions[next(numbers) % len(questions)]):
                asked.times.append(time.monotonic() - since)
            else:
                asked.failed += 1
        writer.close()

    for result in await asyncio.gather(*(client() for _ in range(clients)), return_exceptions=True):
        asked.failed += result is not None  # its connection broke
    asked.seconds += time.monotonic() - begun


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: str) -> bool:
    """One question over plain HTTP: a client library would take more of the same processor than the service
    does."""
    body = json.dumps({"question": question}).encode()
    head = (
        b"POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        b"%d\r\n\r\n" % len(body)
    )
    writer.write(head + body)
    head = await reader.readuntil(b"\r\n\r\n")
    said = await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))  # type: ignore[index]
    return head.startswith(b"HTTP/1.1 200") and b'"answer"' in said


def ask_model(
    ask_all: Ask, questions: list[str], numbers: "count[int]", asked: Asked, *, together: int, seconds: float
) -> None:
    """The same without a service: so many questions a call."""
    begun = time.monotonic()
    while (since := time.monotonic()) < begun + seconds:
        ask_all([questions[next(numbers) % len(questions)] for _ in range(together)])
        asked.times += [time.monotonic() - since] * together
    asked.seconds += time.monotonic() - begun


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        if process.poll() is not None:
            sys.exit("the service did not start")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
            return
        except OSError:
            time.sleep(0.2)
    sys.exit("the service does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("model", "corpus", "questions"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    questions = [question.text for question in read_questions(options.questions)]
    port = free_port()
    numbers = count()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command has it; read when torch is imported
    import torch

    from realmlm.engine import Engine

    engine = Engine(options.model, options.corpus, device=options.device)
    command = [sys.executable, "-m", "realmlm", "serve", "--model", options.model, "--corpus", options.corpus]
    with subprocess.Popen(
        [*command, "--port", str(port), "--device", options.device], stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_for(port, process)
            asyncio.run(turn(port, questions, numbers, Asked(), clients=options.clients, seconds=2))  # warm
            seen, alone = (
                {number: Asked() for number in pair} for pair in ((1, options.clients), (1, TOGETHER))
            )
            length = min(TURN_S, options.seconds)
            while seen[options.clients].seconds < options.seconds:
                for clients, asked in seen.items():
                    asyncio.run(turn(port, questions, numbers, asked, clients=clients, seconds=length))
                for together, asked in alone.items():
                    ask_model(engine.ask, questions, numbers, asked, together=together, seconds=length / 2)
        finally:
            process.terminate()
    print(
        f"{datetime.date.today()}  {os.cpu_count()} cores, {torch.get_num_threads()} threads, device "
        f"{options.device}"
    )
    print("                     questions  failed  p50 ms  p99 ms  questions/s")
    for name, group in (("clients", seen), ("a call, no service", alone)):
        for number, asked in group.items():
            print(f"{number:2d} {name:18}{asked.row()}")
    print(f"the model itself answers {alone[TOGETHER].rate / alone[1].rate:.1f} times as fast together")
    ratio = seen[options.clients].rate / max(seen[1].rate, 1e-9)
    print(f"the service {ratio:.1f} times as fast for all at once as for one after the other")
    sys.exit(0 if ratio >= 3 and not any(asked.failed for asked in seen.values()) else 1)


if __name__ == "__main__":
    main()
