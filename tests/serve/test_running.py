"""A service as it is run: starting, overloaded, left by its clients, stopped, and what it writes down."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service is not installed: pip install 'realmlm[serve]'")
pytest.importorskip("uvicorn", reason="the service is not installed: pip install 'realmlm[serve]'")
from fastapi import FastAPI

from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.errors import BadInput
from realmlm.log import progress
from realmlm.serve import listen
from realmlm.serve.around import Doors
from realmlm.serve.front import Front
from realmlm.serve.http import Running, create_app
from realmlm.serve.log import Log

WAIT_S = 30


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


class Served:
    """A server in a thread, and its address."""

    def __init__(self, load: Callable[[], FastAPI], *, log: Log | None = None) -> None:
        listener = listen.bind("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.front = Front(load, doors=Doors(host="127.0.0.1"), log=log)
        self.server = listen.Server(self.front, log=log)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=[listener])
        self.thread.start()

    def _run(self, listener: socket.socket) -> None:
        try:
            self.server.serve_at(listener)
        except Exception as error:
            self.error = error

    def get(self, path: str, *, method: str = "GET", body: Any = None) -> tuple[int, dict[str, str], Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, json.loads(text) if text[:1] in (b"{", b"[") else text

    def ask(self, question: str) -> tuple[int, dict[str, str], Any]:
        return self.get("/ask", method="POST", body={"question": question})

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@contextmanager
def running(load: Callable[[], FastAPI], **options: Any) -> Iterator[Served]:
    service = Served(load, **options)
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture
def engine(tiny_model_folder: Path, knowledge: Corpus) -> Engine:
    return Engine(tiny_model_folder, knowledge, device="cpu")


class Gate:
    """In place of the engine's answering: waits until it is let through, and remembers what was asked."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch, *, seconds: float = 0.0) -> None:
        self.open, self.begun, self.asked = threading.Event(), threading.Event(), []  # type: ignore[var-annotated]
        answer = engine.ask("Who?")

        def ask(questions: list[str], *, read: int) -> Any:
            self.begun.set()
            assert self.open.wait(WAIT_S)
            time.sleep(seconds)
            self.asked += questions
            return [answer] * len(questions)

        monkeypatch.setattr(engine, "ask", ask)


# --- starting -----------------------------------------------------------------------------------------------


def test_it_is_alive_at_once_and_tells_how_far_it_is_until_it_is_ready(engine: Engine) -> None:
    go = threading.Event()

    def load() -> FastAPI:
        with progress("embedding", 400, unit="passages") as bar:
            bar.advance(100)
            assert go.wait(WAIT_S)
        return create_app(engine, host="127.0.0.1")

    with running(load) as service:
        until(lambda: "embedding" in str(service.get("/readyz")[2]))
        assert service.get("/livez")[0] == 200
        status, headers, body = service.get("/readyz")
        assert (status, body["error"]["code"]) == (503, "busy")
        assert "100/400 (25%) passages" in body["error"]["message"]
        assert body["error"]["progress"] == 0.25
        assert int(headers["retry-after"]) > 0
        assert service.ask("Who?")[0] == service.get("/health")[0] == 503
        assert b"<title>realmlm</title>" in service.get("/")[2]  # the page shows it, too
        assert service.get("/page/app.js")[0] == 200
        assert service.get("/page/../http.py")[0] == 404
        assert service.get("/livez", method="HEAD")[0] == 200
        go.set()
        until(lambda: service.get("/readyz")[0] == 200)
        assert service.get("/livez")[2] == {"status": "alive"}
        assert service.ask("Who?")[2]["answer"]


def test_what_cannot_be_loaded_ends_it_with_the_reason() -> None:
    def load() -> FastAPI:
        raise BadInput("no corpus there")

    service = Served(load)
    service.thread.join(WAIT_S)
    assert isinstance(service.error, BadInput)


# --- connections --------------------------------------------------------------------------------------------


def test_connections_that_send_nothing_or_half_a_request_are_closed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "HEADER_S", 0.5)
    monkeypatch.setattr(listen, "BODY_S", 0.5)
    halves = [
        b"",
        b"POST /ask HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\n{",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    with running(lambda: create_app(engine, host="127.0.0.1")) as service:
        until(lambda: service.get("/readyz")[0] == 200)
        connections = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(80)]
        for number, connection in enumerate(connections):
            connection.sendall(halves[number % len(halves)])
            connection.settimeout(WAIT_S)
            if number % len(halves) == 3:  # a whole one, and then half of another
                said = b""
                while b"alive" not in said:  # headers and body may come one after the other
                    said += connection.recv(4096)
                    assert said
                connection.sendall(halves[1])
        assert service.ask("Who?")[0] == 200
        for connection in connections:
            while _received(connection):
                pass
            connection.close()
        until(lambda: not service.server.server_state.connections)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionError:
        return b""


def test_a_slow_answer_does_not_close_the_connection(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADER_S", "BODY_S", "UNREAD_S"):
        monkeypatch.setattr(listen, name, 0.2)
    gate = Gate(engine, monkeypatch)
    with (
        running(lambda: create_app(engine, host="127.0.0.1")) as service,
        ThreadPoolExecutor(1) as pool,
    ):
        until(lambda: service.get("/readyz")[0] == 200)
        asked = pool.submit(service.ask, "Who?")
        assert gate.begun.wait(WAIT_S)
        time.sleep(2.5)
        gate.open.set()
        assert asked.result(WAIT_S)[0] == 200


def test_when_descriptors_run_short_idle_connections_make_room(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "room_for_connections", lambda: 20)
    with running(lambda: create_app(engine, host="127.0.0.1")) as service:
        until(lambda: service.get("/readyz")[0] == 200)
        connections = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(60)]
        until(lambda: 0 < len(service.server.server_state.connections) <= 20)
        for _ in range(5):  # who comes last is not who goes
            more = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(25)]
            assert service.ask("Who?")[0] == 200
            connections += more
        for connection in connections:
            connection.close()


def test_questions_of_those_who_left_are_not_answered(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate = Gate(engine, monkeypatch)
    log = Log(tmp_path / "log", level="info")
    app = create_app(engine, host="127.0.0.1", running=Running(log=log))
    with running(lambda: app, log=log) as service, ThreadPoolExecutor(1) as pool:
        until(lambda: service.get("/readyz")[0] == 200)
        first = pool.submit(service.ask, "First?")
        assert gate.begun.wait(WAIT_S)
        leaving = []
        for number in range(30):
            connection = http.client.HTTPConnection("127.0.0.1", service.port)
            connection.request("POST", "/ask", json.dumps({"question": f"Left {number}?"}))
            leaving.append(connection)
        until(lambda: service.get("/health")[2]["waiting"] == 30)
        for connection in leaving:
            connection.close()

        def left() -> list[int]:
            log.flush()
            return [json.loads(line).get("status") for line in (tmp_path / "log").read_text().splitlines()]

        until(lambda: left().count(499) == 30)
        gate.open.set()
        assert first.result(WAIT_S)[0] == 200
        assert service.ask("Last?")[0] == 200
        assert gate.asked == ["First?", "Last?"]


# --- too many, and the end ----------------------------------------------------------------------------------


def test_who_would_wait_too_long_is_told_at_once_when_to_come_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(engine, monkeypatch, seconds=0.5)
    gate.open.set()
    app = create_app(engine, host="127.0.0.1", batch=1, running=Running(patience_s=1.2))
    with running(lambda: app) as service, ThreadPoolExecutor(12) as pool:
        until(lambda: service.get("/readyz")[0] == 200)
        assert service.ask("How long does it take?")[0] == 200

        def timed(number: int) -> tuple[int, dict[str, str], float]:
            begun = time.monotonic()
            status, headers, _ = service.ask(f"Question {number}?")
            return status, headers, time.monotonic() - begun

        seen = list(pool.map(timed, range(12)))
        refused = [(headers, seconds) for status, headers, seconds in seen if status == 503]
        answered = [seconds for status, _, seconds in seen if status == 200]
        assert len(refused) + len(answered) == 12
        assert 2 <= len(answered) <= 5
        assert all(seconds < 0.5 for _, seconds in refused)
        assert max(answered) < 1.2 + 2 * 0.5 + 1
        (retry_s,) = {int(headers["retry-after"]) for headers, _ in refused}
        time.sleep(retry_s)
        assert service.ask("Now?")[0] == 200


def test_at_the_end_everybody_is_answered_or_told(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "STOP_S", 0.6)
    monkeypatch.setattr(listen, "GRACE_S", 4)
    gate = Gate(engine, monkeypatch, seconds=0.25)
    app = create_app(engine, host="127.0.0.1", batch=2)
    service = Served(lambda: app)
    until(lambda: service.get("/readyz")[0] == 200)
    with ThreadPoolExecutor(40) as pool:
        asked = [pool.submit(service.ask, f"Question {number}?") for number in range(40)]
        until(lambda: service.get("/health")[2]["waiting"] >= 38)
        service.server.should_exit = True
        gate.open.set()
        answers = [one.result(WAIT_S) for one in asked]
    service.stop()
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 503}
    assert 2 <= statuses.count(200) <= 12
    assert all(int(headers["retry-after"]) > 0 for status, headers, _ in answers if status == 503)


def test_a_question_that_takes_too_long_at_the_end_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "STOP_S", 0.1)
    monkeypatch.setattr(listen, "GRACE_S", 1)
    gate = Gate(engine, monkeypatch)
    service = Served(lambda: create_app(engine, host="127.0.0.1"))
    until(lambda: service.get("/readyz")[0] == 200)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(service.ask, "Who?")
        assert gate.begun.wait(WAIT_S)
        service.server.should_exit = True
        status, _, body = asked.result(WAIT_S)
        gate.open.set()
    service.stop()
    assert (status, body["error"]["message"]) == (503, "the service is stopping; ask again in a moment")


def test_a_model_that_hangs_keeps_no_one_from_stopping_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listen, "STOP_S", 0.1)
    monkeypatch.setattr(listen, "GRACE_S", 1)
    monkeypatch.setattr("realmlm.serve.http.CLOSE_S", 0.5)
    gate = Gate(engine, monkeypatch)
    service = Served(lambda: create_app(engine, host="127.0.0.1"))
    until(lambda: service.get("/readyz")[0] == 200)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(service.ask, "Who?")
        assert gate.begun.wait(WAIT_S)
        service.server.should_exit = True
        try:
            assert asked.result(WAIT_S)[0] == 503
            service.thread.join(10)
            assert not service.thread.is_alive()
        finally:
            gate.open.set()
            service.stop()
    assert "the service ends without it" in capsys.readouterr().err


HANGS = """
import signal, threading, time
from contextlib import asynccontextmanager
from fastapi import FastAPI
from realmlm.serve import listen
from realmlm.serve.around import Doors
from realmlm.serve.front import Front

@asynccontextmanager
async def life(_):
    threading.Timer(0.5, signal.raise_signal, [signal.SIGTERM]).start()
    yield
    time.sleep(1000)

listen.GRACE_S, listen.END_S = 1, 1
front = Front(lambda: FastAPI(lifespan=life), doors=Doors(), log=None)
listen.Server(front, own_process=True).serve_at(listen.bind("127.0.0.1", 0))
"""


def test_whatever_hangs_the_process_ends_in_the_time_that_was_said() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "could not stop as it should" in done.stderr


# --- what is written down -----------------------------------------------------------------------------------


def lines(file: Path, log: Log) -> list[dict[str, Any]]:
    log.flush()
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("questions", [False, True])
def test_each_request_is_a_line_with_its_id_and_phases_and_no_question_unless_asked_for(
    engine: Engine, tmp_path: Path, questions: bool
) -> None:
    log = Log(tmp_path / "log", level="info", questions=questions)
    app = create_app(engine, host="127.0.0.1", running=Running(log=log))
    with running(lambda: app, log=log) as service:
        until(lambda: service.get("/readyz")[0] == 200)
        _, headers, _ = service.ask("Which bird?")
        service.get("/passages?text=heron")
        service.get("/nowhere")
        service.get("/health")
        written = [line for line in lines(tmp_path / "log", log) if line.get("path") != "/readyz"]
        asked, found, unknown = written
        assert asked["id"] == headers["x-request-id"]
        assert [asked[name] for name in ("level", "method", "path", "status", "client", "together")] == [
            "info", "POST", "/ask", 200, "127.0.0.1", 1,
        ]  # fmt: skip
        assert set(asked["ms"]) == {"receive", "wait", "work", "all"}
        parts = sum(asked["ms"][name] for name in ("receive", "wait", "work"))
        assert 0 < parts <= asked["ms"]["all"] + 0.1
        assert asked.get("question") == ("Which bird?" if questions else None)
        assert (found["path"], unknown["status"], unknown["level"]) == ("/passages", 404, "warning")
        assert "heron" not in json.dumps(found)
        assert len({line["id"] for line in written}) == 3


@pytest.mark.parametrize(
    ("level", "paths"),
    [
        ("debug", ["/health", "/ask", "/nowhere", "/fill"]),
        ("info", ["/ask", "/nowhere", "/fill"]),
        ("warning", ["/nowhere", "/fill"]),
        ("error", ["/fill"]),
    ],
)
def test_levels(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, paths: list[str]
) -> None:
    from fastapi.testclient import TestClient

    log = Log(tmp_path / "log", level=level)
    monkeypatch.setattr(engine, "fill_with_words", lambda *_, **__: 1 / 0)
    app = create_app(engine, running=Running(log=log))
    with TestClient(app, raise_server_exceptions=False) as client:
        client.get("/health", headers={"x-request-id": "mine-1"})
        client.post("/ask", json={"question": "Who?"}, headers={"x-request-id": "no\tgood"})
        client.get("/nowhere", headers={"x-request-id": "x" * 200})
        client.post("/fill", json={"sentence": "the [MASK]"})
    written = lines(tmp_path / "log", log)
    assert [line["path"] for line in written] == paths
    assert "ZeroDivisionError" in written[-1]["error"]
    assert [line["id"] for line in written if line["path"] == "/health"] == ["mine-1"] * (level == "debug")
    assert all(len(line["id"]) < 30 and "\t" not in line["id"] for line in written)


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_stops_at_sigterm_with_everybody_told(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "realmlm", "serve", "--model", str(tiny_model_folder)]
    command += ["--corpus", str(knowledge.folder), "--port", str(port), "--device", "cpu", "--batch", "1"]
    command += ["--log-file", str(tmp_path / "log")]
    process = subprocess.Popen(
        command, env={**os.environ, "REALMLM_TOKEN": "a-long-secret"}, stderr=subprocess.PIPE, text=True
    )
    service = object.__new__(Served)
    service.port = port

    def status_of(path: str) -> int:
        try:
            return service.get(path)[0]
        except OSError:
            return 0

    try:
        until(lambda: status_of("/livez") == 200)
        until(lambda: status_of("/readyz") == 200)
        assert service.get("/passages/0", method="DELETE")[0] == 401

        def ask(number: int) -> int:
            try:
                return service.ask(f"Question {number}?")[0]
            except OSError:
                return 0  # it no longer listens

        with ThreadPoolExecutor(40) as pool:
            asked = [pool.submit(ask, number) for number in range(40)]
            time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            statuses = {one.result(WAIT_S) for one in asked}
        assert statuses <= {200, 503, 0}
        assert 200 in statuses
        process.wait(WAIT_S)
    finally:
        process.kill()
        process.wait()
    written = [json.loads(line) for line in (tmp_path / "log").read_text("utf-8").splitlines()]
    assert any("Ctrl-C stops" in line.get("message", "") for line in written)
    assert {line["status"] for line in written if line.get("path") == "/ask"} <= {200, 503}


LOST = """
import sys
from realmlm.cli import main
from realmlm.engine import Engine

def broken(*_, **__):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")

Engine.ask = broken
sys.exit(main(sys.argv[1:]))
"""


def test_a_process_that_lost_its_gpu_ends_with_a_failure(tiny_model_folder: Path, knowledge: Corpus) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", LOST, "serve", "--model", str(tiny_model_folder), "--device", "cpu"]
    command += ["--corpus", str(knowledge.folder), "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    service = object.__new__(Served)
    service.port = port

    def ready() -> bool:
        try:
            return service.get("/readyz")[0] == 200
        except OSError:
            return False

    try:
        until(ready)
        assert service.ask("Who?")[0] == 500
        _, said = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 2, said
    assert "error: the GPU is lost to this process" in said


def test_ctrl_c_while_it_embeds_keeps_what_was_embedded(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "realmlm",
            "serve",
            "--docs",
            "pocket",
            "--port",
            str(port),
            "--device",
            "cpu",
        ],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    service = object.__new__(Served)
    service.port = port

    def embeds() -> bool:
        try:
            return "embedding" in str(service.get("/readyz")[2])
        except OSError:
            return False

    try:
        until(embeds)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, said
    assert "stopped; what was embedded is kept" in said
    assert "Traceback" not in said
