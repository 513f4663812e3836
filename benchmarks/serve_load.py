"""How many questions a second does the service answer? `python benchmarks/serve_load.py --model MODEL --corpus CORPUS --questions FILE`

Starts the service on loopback, lets one client ask for a minute, then 64, and prints errors, p50, p99 and questions a second.
Exits with 1 if any request failed or together they are less than three times as fast as one after the other.
"""

import argparse
import asyncio
import datetime
import socket
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import httpx
import numpy as np

from realmlm.corpus.questions import read_questions


async def ask_all(url: str, questions: list[str], *, clients: int, seconds: float) -> tuple[list[float], int]:
    """Seconds of each answer, and how many requests failed."""
    number, times, failed = count(), [], 0
    until = time.monotonic() + seconds

    async def client(session: httpx.AsyncClient) -> None:
        nonlocal failed
        while time.monotonic() < until:
            begun = time.monotonic()
            response = await session.post(f"{url}/ask", json={"question": questions[next(number) % len(questions)]})
            if response.status_code == 200:
                times.append(time.monotonic() - begun)
            else:
                failed += 1

    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(timeout=60, limits=limits) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return times, failed


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        if process.poll() is not None:
            sys.exit("the service did not start")
        try:
            httpx.get(f"{url}/health", timeout=1)
            return
        except httpx.HTTPError:
            time.sleep(0.2)
    sys.exit("the service does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "corpus", "questions"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    questions = [question.text for question in read_questions(options.questions)]
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "realmlm", "serve", "--model", options.model, "--corpus", options.corpus, "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(url, process)
            asyncio.run(ask_all(url, questions, clients=4, seconds=2))  # warm
            rates = {}
            print(f"{datetime.date.today()}  {options.seconds:.0f} s each\nclients  questions  failed  p50 ms  p99 ms  questions/s")
            for clients in (1, options.clients):
                times, failed = asyncio.run(ask_all(url, questions, clients=clients, seconds=options.seconds))
                p50, p99 = (1000 * np.quantile(times, share) for share in (0.5, 0.99))
                rates[clients] = len(times) / options.seconds if not failed else 0.0
                print(f"{clients:7d}  {len(times):9d}  {failed:6d}  {p50:6.0f}  {p99:6.0f}  {len(times) / options.seconds:11.1f}")
        finally:
            process.terminate()
    ratio = rates[options.clients] / max(rates[1], 1e-9)
    print(f"together {ratio:.1f} times as fast as one after the other")
    sys.exit(0 if ratio >= 3 else 1)


if __name__ == "__main__":
    main()
