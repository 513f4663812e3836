"""Answers made by other processes: the same bytes, from the same state of the corpus, whatever happens to them."""

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service is not installed: pip install 'realmlm[serve]'")
from fastapi.testclient import TestClient

from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.errors import BadInput
from realmlm.reading.combine import Combiner, ReadSpans
from realmlm.serve import writers as module
from realmlm.serve.http import create_app
from realmlm.serve.writers import PART, Writers, bodies
from realmlm.sources.article import Article

QUESTIONS = [f"Which bird is the symbol of town {number}?" for number in range(2 * PART + 3)]
OWN = {"title": "Nerrow", "text": "The arms of Nerrow show a golden quince."}


@pytest.fixture
def engine(tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path) -> Engine:
    shutil.copytree(knowledge.folder, tmp_path / "corpus", ignore=shutil.ignore_patterns("index", "answers"))
    return Engine(tiny_model_folder, tmp_path / "corpus", device="cpu")


@pytest.fixture
def writers(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writers]:
    monkeypatch.setattr(module, "FEW", 0)
    writers = Writers(engine.combiner, count=2)
    writers.wait()
    yield writers
    writers.close()


def made_of(body: "bytes | Future[bytes] | Any") -> bytes:
    return body.result(30) if isinstance(body, Future) else bytes(body)


def refuse(combiner: Combiner, read: ReadSpans) -> list[bytes]:
    raise BadInput("made in this process")


def soon(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + 30
    while not (held := holds()) and time.monotonic() < until:
        time.sleep(0.02)
    return held


def readings(engine: Engine, questions: list[str], *, read: int = 5) -> list[tuple[Combiner, ReadSpans]]:
    """What was read for them, and what makes answers of it."""
    found = []

    def keep(combiner: Combiner, read: ReadSpans) -> list[None]:
        found.append((combiner, read))
        return [None] * len(read.questions)

    engine.ask_through(keep, questions, read=read)
    return found


def test_parts_are_the_questions_with_what_was_read_for_them(engine: Engine) -> None:
    read = readings(engine, QUESTIONS)
    expected = [answer for combiner, whole in read for answer in combiner.answers(whole)]
    parts = [part for _, whole in read for part in whole.parts(3)]
    assert [question for part in parts for question in part.questions] == QUESTIONS
    assert max(len(part.questions) for part in parts) == 3
    assert [answer for part in parts for answer in engine.combiner.answers(part)] == expected


def test_other_processes_write_the_same_bytes(
    engine: Engine, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = engine.ask_through(bodies, QUESTIONS)
    monkeypatch.setattr(module, "bodies", refuse)
    made = engine.ask_through(writers.bodies, QUESTIONS)
    assert [made_of(body) for body in made] == expected
    monkeypatch.setattr(module, "FEW", len(QUESTIONS) + 1)
    with pytest.raises(BadInput, match="made in this process"):
        engine.ask_through(writers.bodies, QUESTIONS)


def test_every_state_of_a_corpus_is_that_which_was_read(
    engine: Engine, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    for number in range(4):
        read += readings(engine, QUESTIONS[:1], read=300)
        engine.edit(replace={0: Article("Nerrow", f"The arms of Nerrow show {number} golden quinces.", "")})
    expected = [bodies(*one)[0] for one in read]
    assert len(set(expected)) == 4
    monkeypatch.setattr(module, "bodies", refuse)
    for place in (0, 2, 1, 3):
        assert made_of(writers.bodies(*read[place])[0]) == expected[place]


def test_a_corpus_that_cannot_be_opened_again_is_read_here(
    engine: Engine, writers: Writers, capsys: pytest.CaptureFixture[str]
) -> None:
    ((combiner, read),) = readings(engine, QUESTIONS[:1])
    expected = bodies(combiner, read)
    shutil.rmtree(combiner.corpus.folder)
    for _ in range(2):
        assert made_of(writers.bodies(combiner, read)[0]) == expected[0]
    assert capsys.readouterr().err.count("a process that makes answers failed") == 1


def test_one_that_dies_takes_no_answer_with_it_and_others_start(
    engine: Engine, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = engine.ask_through(bodies, QUESTIONS)
    former = multiprocessing.active_children()
    assert len(former) >= 2
    for child in former:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
    made = engine.ask_through(writers.bodies, QUESTIONS)
    assert [made_of(body) for body in made] == expected
    writers.wait()
    monkeypatch.setattr(module, "bodies", refuse)
    assert [made_of(body) for body in engine.ask_through(writers.bodies, QUESTIONS)] == expected


def headers(answer: Any) -> dict[str, str]:
    """All but the number of the request."""
    return {name: value for name, value in answer.headers.items() if name != "x-request-id"}


def test_a_service_with_writers_answers_as_one_without(
    engine: Engine, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEW", 0)
    asked: list[dict[str, Any]] = [{"question": question} for question in QUESTIONS[:3]]
    asked += [
        asked[0] | {"without_reading": True},
        asked[0] | {"read": 2},
        {"question": "   "},
        {"question": 5},
    ]
    with TestClient(create_app(engine)) as plain:
        expected = [plain.post("/ask", json=body) for body in asked]
    with TestClient(create_app(engine, writers=2), raise_server_exceptions=False) as client:
        at_first = [client.post("/ask", json=body) for body in asked]  # perhaps not by writers
        monkeypatch.setattr(module, "bodies", refuse)
        assert soon(lambda: client.post("/ask", json=asked[0]).status_code == 200)
        later = [client.post("/ask", json=body) for body in asked]
        for answers in (at_first, later):
            assert [(answer.status_code, answer.content) for answer in answers] == [
                (answer.status_code, answer.content) for answer in expected
            ]
            assert list(map(headers, answers)) == list(map(headers, expected))
        (added,) = client.post("/passages", json=OWN).json()
        all_read = {"question": QUESTIONS[0], "read": 50}
        engine.edit(remove=engine.corpus.ids[:-40].tolist())
        evidence = client.post("/ask", json=all_read).json()["evidence"]
        assert [read["passage"] for read in evidence if read["passage_id"] == added["id"]] == [OWN["text"]]
    assert soon(lambda: not multiprocessing.active_children())
