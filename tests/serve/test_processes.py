"""Several processes behind one port: who edits through one is heard by the other, and nobody notices a death."""

import http.client
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service is not installed: pip install 'realmlm[serve]'")
pytest.importorskip("uvicorn", reason="the service is not installed: pip install 'realmlm[serve]'")
if sys.platform != "linux":
    pytest.skip("several processes share a port on Linux alone", allow_module_level=True)

from realmlm.corpus.store import Corpus
from realmlm.serve import processes

WAIT_S = 60
CLIENTS = 64


class Connection:
    """A connection that is kept, and the process that it leads to."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        self.process = ""

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"}
        self._http.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._http.getresponse()
        text = answer.read()
        self.process = (answer.getheader("x-request-id") or "").split("-")[0]
        return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()

    def ask(self, question: str) -> int:
        return self.request("POST", "/ask", {"question": question})[0]

    def found(self, question: str) -> set[str]:
        """The texts of all passages that a search finds."""
        status, body = self.request("POST", "/search", {"question": question, "k": 100})
        assert status == 200
        return {passage["text"] for passage in body["found"]}

    def close(self) -> None:
        self._http.close()


class Service:
    """`realmlm serve --workers 2`, running."""

    def __init__(self, command: list[str], port: int) -> None:
        self.port = port
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not true():
            assert time.monotonic() < end, "it took too long"
            assert self.popen.poll() is None, self.popen.stderr and self.popen.stderr.read()
            time.sleep(0.05)

    def numbers(self) -> dict[str, float]:
        """What /metrics says."""
        connection = Connection(self.port)
        try:
            status, text = connection.request("GET", "/metrics")
        except OSError:
            return {}
        finally:
            connection.close()
        lines = re.findall(r"(?m)^(\w\S*) (\S+)$", text) if status == 200 else []
        return {name: float(value) for name, value in lines}

    def answering(self) -> float:
        return self.numbers().get("realmlm_workers", 0)

    def one_of_each(self) -> list[Connection]:
        """Connections to two processes."""
        by_process: dict[str, Connection] = {}
        while len(by_process) < 2:
            connection = Connection(self.port)
            connection.request("GET", "/readyz")
            by_process.setdefault(connection.process, connection)
        return list(by_process.values())

    def workers(self) -> list[int]:
        """Numbers of the processes that have loaded a model."""
        tasks = Path(f"/proc/{self.popen.pid}/task").glob("*/children")
        started = [int(number) for task in tasks for number in task.read_text().split()]
        return [number for number in started if "spawn_main" in Path(f"/proc/{number}/cmdline").read_text()]


@pytest.fixture
def corpus(knowledge: Corpus, tmp_path: Path) -> Path:
    """So few passages that one search can find them all."""
    folder = shutil.copytree(knowledge.folder, tmp_path / "corpus", ignore=shutil.ignore_patterns("index"))
    Corpus.open(folder).edit(remove=range(50, len(knowledge)))
    return Path(folder)


@contextmanager
def serving(model: Path, corpus: Path, *more: str, workers: int = 2) -> Iterator[Service]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "realmlm", "serve", "--model", str(model), "--corpus", str(corpus)]
    command += ["--port", str(port), "--device", "cpu", "--workers", str(workers), *more]
    service = Service(command, port)
    try:
        service.until(lambda: service.answering() == workers)
        yield service
    finally:
        service.popen.terminate()
        service.popen.communicate(timeout=WAIT_S)


def quince(number: int) -> dict[str, str]:
    return {"title": "Nerrow", "text": f"There are {number} quinces in the arms of Nerrow."}


def edits_seen(service: Service, seconds: float) -> int:
    """Add and remove passages through one process, and search through the other at once, in turns."""
    one, other = service.one_of_each()
    until = time.monotonic() + seconds
    count = 0
    while time.monotonic() < until or count < 4:
        status, added = one.request("POST", "/passages", quince(count))
        assert status == 201
        assert quince(count)["text"] in other.found("How many quinces are there?")
        assert one.request("DELETE", f"/passages/{added[0]['id']}")[0] == 204
        assert quince(count)["text"] not in other.found("How many quinces are there?")
        one, other = other, one
        count += 1
    return count


def load(service: Service, seconds: float) -> Counter[int]:
    """Statuses of what so many clients asked, each on a connection that it keeps."""
    until = time.monotonic() + seconds

    def ask(client: int) -> Counter[int]:
        connection = Connection(service.port)
        statuses: Counter[int] = Counter()
        while time.monotonic() < until:
            statuses[connection.ask(f"Which bird is number {client + CLIENTS * statuses.total()}?")] += 1
        connection.close()
        return statuses

    with ThreadPoolExecutor(CLIENTS) as pool:
        return sum(pool.map(ask, range(CLIENTS)), Counter())


def under_load(service: Service, seconds: float) -> tuple[Counter[int], int]:
    """Statuses of the answers, and how many edits were seen meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        editing = pool.submit(edits_seen, service, seconds)
        statuses = load(service, seconds)
        return statuses, editing.result()


@pytest.mark.scale
def test_two_workers_answer_follow_each_other_survive_a_death_and_stop(
    tiny_model_folder: Path, corpus: Path, tmp_path: Path
) -> None:
    with serving(tiny_model_folder, corpus, "--log-file", str(tmp_path / "log")) as service:
        statuses, _ = under_load(service, 1.0)
        assert set(statuses) == {200}
        # whichever process is asked, it knows what all have done
        assert service.numbers()['realmlm_requests_total{route="/ask",status="200"}'] == statuses[200]

        time.sleep(0.3)  # the log is written every tenth of a second
        killed, left = service.workers()
        os.kill(killed, signal.SIGKILL)
        service.until(lambda: service.answering() == 1)
        service.until(lambda: service.answering() == 2)
        assert left in service.workers()
        assert killed not in service.workers()
        assert edits_seen(service, 0.0) == 4

        stopping = threading.Event()
        seen: Counter[int] = Counter()

        def ask(client: int) -> None:
            """Until the connection is closed: what was sent before must have been answered."""
            connection = Connection(service.port)
            try:
                while not stopping.is_set() or service.popen.poll() is None:
                    seen[connection.ask(f"Which bird is number {client}?")] += 1
            except (OSError, http.client.HTTPException):
                assert stopping.is_set()

        with ThreadPoolExecutor(16) as pool:
            asking = [pool.submit(ask, client) for client in range(16)]
            time.sleep(0.3)
            stopping.set()
            service.popen.send_signal(signal.SIGTERM)
            _, said = service.popen.communicate(timeout=WAIT_S)
            for one in asking:
                one.result()
        assert set(seen) == {200}
        assert service.popen.returncode == -signal.SIGTERM
    assert f"process {killed}, died: it was ended by SIGKILL" in said
    assert "Traceback" not in said
    written = [json.loads(line) for line in (tmp_path / "log").read_text("utf-8").splitlines()]
    assert any("died" in line.get("message", "") for line in written)
    asked = [line for line in written if line.get("path") == "/ask"]
    assert len(asked) == statuses[200] + seen[200]
    with pytest.raises(ConnectionRefusedError):
        Connection(service.port).request("GET", "/livez")


@pytest.mark.scale
def test_one_that_hangs_is_replaced(tiny_model_folder: Path, corpus: Path) -> None:
    with serving(tiny_model_folder, corpus) as service:
        hanging, left = service.workers()
        os.kill(hanging, signal.SIGSTOP)
        service.until(lambda: not Path(f"/proc/{hanging}").exists())
        service.until(lambda: service.answering() == 2)
        assert left in service.workers()
        assert hanging not in service.workers()


class Process:
    """In place of one that was started."""

    pid = 2**22 + 1
    exitcode = None
    sentinel = 0

    def is_alive(self) -> bool:
        return self.exitcode is None

    def kill(self) -> None:
        self.exitcode = -signal.SIGKILL

    def join(self) -> None:
        pass


def test_one_without_a_sign_of_life_is_ended_unless_all_were_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: now))
    told, saying = multiprocessing.Pipe(duplex=False)
    process: Any = Process()
    place = processes._Place(0, process=process, said=told, since=now)
    settings: Any = None
    all_of_them = processes._Processes(settings, settings, tmp_path, [], _places=[place])

    def passes(seconds: float, *, says: Any = ...) -> bool:
        nonlocal now
        for _ in range(10):
            now += seconds / 10
            if says is not ...:
                saying.send(says)
            all_of_them._look()
        return place.process is not None and process.is_alive()

    assert passes(100)  # it is being loaded, perhaps for an hour
    saying.send("")
    assert passes(20)
    assert passes(100, says=None)
    assert passes(25)
    now += 3600  # whoever looks was stopped itself
    assert passes(25)
    assert not passes(10)
    assert place.process is None
    assert "it hung, without a sign of life for 30 s; another is started" in capsys.readouterr().err


def test_numbers_of_services_that_were_killed_are_removed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes.tempfile, "tempdir", str(tmp_path))
    killed = tmp_path / "realmlm-meters-killed"
    killed.mkdir()
    (killed / "counter_17.db").write_bytes(b"1")
    new = tmp_path / "realmlm-meters-new"
    new.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "realmlm-meters-link"
    link.symlink_to(elsewhere)
    with processes._meters() as living:
        for one in (killed, elsewhere, living):
            os.utime(one, (0, 0))
        with processes._meters():
            assert set(tmp_path.glob("realmlm-meters-*")) >= {Path(living), new, link}
            assert not killed.exists()
    assert set(tmp_path.iterdir()) == {new, elsewhere, link}


def test_nobody_who_listens_keeps_no_one_from_answering() -> None:
    told, saying = multiprocessing.Pipe(duplex=False)
    for _ in range(20_000):  # more than a pipe holds
        processes._beat(saying)
    assert told.recv() is None
    told.close()
    processes._beat(saying)


@pytest.mark.scale
def test_what_cannot_be_loaded_ends_it_with_the_reason(tiny_model_folder: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "realmlm",
        "serve",
        "--workers",
        "2",
        "--device",
        "cpu",
        "--port",
        "8462",
    ]
    command += ["--model", str(tiny_model_folder), "--corpus", str(tmp_path / "nothing")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: no corpus in {tmp_path / 'nothing'}")


@pytest.mark.scale
def test_two_workers_under_64_clients_for_a_minute(tiny_model_folder: Path, corpus: Path) -> None:
    with serving(tiny_model_folder, corpus) as service:
        statuses, edits = under_load(service, 60.0)
    print(f"{statuses[200]} answers and {edits} edits in 60 s by 2 workers")
    assert set(statuses) == {200}
