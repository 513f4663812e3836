"""Clients that are many, slow, rude or gone, for some time: the service answers the polite ones throughout and
is well afterwards."""

import http.client
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

READY_S = 60.0
JSON = {"content-type": "application/json"}
FINE = (200, 503)  # answered, or told to come back later


class Clients:
    """A call is the one case: all clients for all the time."""

    def __init__(self, laboratory: Path, seconds: int, count: int) -> None:
        self._laboratory = laboratory
        self._seconds = seconds
        self._count = count
        self.statuses: Counter[int] = Counter()

    def __call__(self, rng: random.Random) -> tuple[str, str | None]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        corpus = ["--model", f"{self._laboratory}/model", "--corpus", f"{self._laboratory}/corpus"]
        command = [
            sys.executable,
            "-m",
            "realmlm",
            "serve",
            *corpus,
            "--port",
            str(self._port),
            "--device",
            "cpu",
        ]
        service = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            wrong = self._attack(rng, service)
        finally:
            service.terminate()
            service.wait(60)
        counted = ", ".join(f"{count:,} × {status}" for status, count in sorted(self.statuses.items()))
        return f"{self._count} clients for {self._seconds} s: {counted}", wrong

    def _attack(self, rng: random.Random, service: "subprocess.Popen[bytes]") -> str | None:
        end = time.monotonic() + READY_S
        while self._ask("Who?") != 200:
            if time.monotonic() > end or service.poll() is not None:
                return "it did not start"
            time.sleep(0.2)
        self.statuses.clear()
        self._end = time.monotonic() + self._seconds
        threads = [
            threading.Thread(target=self._client, args=[random.Random(rng.random())])
            for _ in range(self._count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if service.poll() is not None:
            return f"it ended with {service.returncode}"
        if wrong := {status: count for status, count in self.statuses.items() if status not in FINE}:
            return f"answers {wrong}"
        if not self.statuses[200]:
            return "it answered none of them"
        begun = time.monotonic()
        while (status := self._ask("Who lives by salt?")) == 503 and time.monotonic() < begun + 30:
            time.sleep(0.5)
        return None if status == 200 else f"afterwards it answers {status}"

    def _client(self, rng: random.Random) -> None:
        while time.monotonic() < self._end:
            manner = rng.choice((self._polite, self._polite, self._garbage, self._vanish, self._slow))
            try:
                manner(rng)
            except (OSError, http.client.HTTPException):  # it is refused, or sent away
                time.sleep(0.05)

    def _polite(self, rng: random.Random) -> None:
        self.statuses[self._ask(f"What do the people of Town{rng.randrange(9)} live by?")] += 1

    def _ask(self, question: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            connection.request("POST", "/ask", json.dumps({"question": question}), JSON)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except ConnectionRefusedError:
            return 0
        finally:
            connection.close()

    def _garbage(self, rng: random.Random) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=10) as connection:
            connection.sendall(rng.randbytes(rng.randint(1, 3000)))
            connection.recv(1000)

    def _vanish(self, rng: random.Random) -> None:
        body = b'{"question": "Who?"}'
        head = f"POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", self._port), timeout=10) as connection:
            connection.sendall((head + body)[: rng.randint(1, len(head + body))])

    def _slow(self, rng: random.Random) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=10) as connection:
            for byte in b"POST /ask HTTP/1.1\r\n":
                if time.monotonic() > self._end:
                    return
                connection.sendall(bytes([byte]))
                time.sleep(rng.random() / 2)
