"""Work on an S3 server of this machine, with both engines; the Ray cluster is one that was started by others, with
a token, and whose machines share no folder with the command."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from realmlm.corpus.spans import mark_spans, rule_tagger
from realmlm.corpus.store import Corpus
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import index_of
from tests.calls import build_corpus, evaluate

pytestmark = [pytest.mark.scale, pytest.mark.timeout(600)]

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
ONE_THREAD = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
ONE_THREAD |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """What a program must be told to find the server, which has a bucket of the name `bucket`."""
    moto = pytest.importorskip("moto.server", reason="needs moto: make test-scale")
    pytest.importorskip("s3fs", reason="needs s3fs: make test-scale")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield KEYS | {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    server.stop()


@pytest.fixture(scope="module")
def bucket(store: dict[str, str]) -> Any:
    s3fs = pytest.importorskip("s3fs")
    files = s3fs.S3FileSystem(
        key=store["AWS_ACCESS_KEY_ID"],
        secret=store["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=store["AWS_ENDPOINT_URL"],
        use_listings_cache=False,
    )
    files.mkdir("bucket")
    return files


@dataclass(frozen=True)
class Cluster:
    address: dict[str, str]
    """What a program must be told to join it."""
    cache: Path
    """Where its workers keep what they fetch."""


@pytest.fixture(scope="module")
def cluster(store: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two cores; it asks for a token."""
    pytest.importorskip("ray", reason="needs Ray: make test-scale")
    folder = tmp_path_factory.mktemp("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    cache = folder / "cache"
    # a socket's path may have 107 characters, and Ray adds half of them
    options = (
        f"--head --port {port} --num-cpus 2 --include-dashboard=false --temp-dir /tmp/ray-{port} --block"
    )
    with (
        open(folder / "log", "w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *options.split()],
            env=ONE_THREAD | store | token | {"XDG_CACHE_HOME": str(cache)},
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            while "Ray runtime started" not in (said := (folder / "log").read_text()):
                assert process.poll() is None, said
                time.sleep(0.1)
            yield Cluster(token | {"RAY_ADDRESS": f"127.0.0.1:{port}"}, cache / "realmlm")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


Run = Callable[..., str]


@pytest.fixture
def realmlm(store: dict[str, str], tmp_path: Path) -> Run:
    def run(*arguments: object, told: dict[str, str] | None = None, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "realmlm", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ONE_THREAD | store | {"XDG_CACHE_HOME": str(tmp_path / "cache")} | (told or {}),
            timeout=300,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    return run


def stored(bucket: Any, root: str) -> dict[str, bytes]:
    return {name.removeprefix(f"{root}/"): bucket.cat_file(name) for name in bucket.find(root)}


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def local(
    world: Path, tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Corpus with spans and index, and the report, as they are made here."""
    folder = tmp_path_factory.mktemp("local")
    cut: dict[str, Any] = {"tokenizer": str(world / "tokenizer.json"), "max_wordpieces": 64, "workers": 1}
    corpus = build_corpus([world / "knowledge.jsonl"], folder / "corpus", **cut)
    mark_spans(corpus, rule_tagger(corpus))
    made: dict[str, Any] = {"model": tiny_model_folder, "corpus": corpus.folder}
    index_of(Realm.from_pretrained(tiny_model_folder), corpus)
    report = evaluate(**made, questions=world / "questions-held-out.jsonl", limit=40, read=2)
    return contents(corpus.folder), json.loads(json.dumps(report.as_json()))


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_all_four_commands_work_there(
    engine: str,
    bucket: Any,
    realmlm: Run,
    world: Path,
    tiny_model_folder: Path,
    local: tuple[dict[str, bytes], dict[str, Any]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    there = f"s3://bucket/{engine}"
    root = f"bucket/{engine}"
    bucket.put_file(str(world / "knowledge.jsonl"), f"{root}/in/knowledge.jsonl")
    bucket.put_file(str(world / "questions-held-out.jsonl"), f"{root}/dev.jsonl")
    bucket.put(str(tiny_model_folder), f"{root}/model", recursive=True)
    told = request.getfixturevalue("cluster").address if engine == "ray" else {}

    def work(*arguments: object, **more: str) -> None:
        realmlm(*arguments, "--engine", engine, told=told | more)

    cut = ["--tokenizer", world / "tokenizer.json", "--max-wordpieces", 64]
    made = ["--model", f"{there}/model", "--corpus", f"{there}/corpus"]
    work("corpus", f"{there}/in/knowledge.jsonl", "--out", f"{there}/corpus", *cut)
    work("spans", f"{there}/corpus")
    work("index", *made)
    assert stored(bucket, f"{root}/corpus") == local[0]
    asked = ["--questions", f"{there}/dev.jsonl", "--limit", 40, "--read", 2]
    other = str(tmp_path / "another machine's cache")
    work("evaluate", *made, *asked, "--report", f"{there}/report.json", XDG_CACHE_HOME=other)
    report = json.loads(bucket.cat_file(f"{root}/report.json"))
    assert report["corpus"] == f"{there}/corpus"
    differs = ("seconds", "model", "corpus", "question_file")
    assert {name: report[name] for name in report if name not in differs} == {
        name: local[1][name] for name in local[1] if name not in differs
    }
    if engine == "ray":
        mirrors = request.getfixturevalue("cluster").cache / "objects" / "s3:" / "bucket" / "ray"
        fetched = {path.relative_to(mirrors).parts[0] for path in mirrors.rglob("manifest.json")}
        assert fetched == {"corpus", "model"}, "its workers fetched what they needed by themselves"


def test_a_folder_there_is_walked(bucket: Any, realmlm: Run, notes: Path, tmp_path: Path) -> None:
    bucket.put(str(notes), "bucket/notes", recursive=True)
    cut = ["--tokenizer", "mini", "--max-wordpieces", 64]
    realmlm("corpus", "s3://bucket/notes", "--out", tmp_path / "there", *cut)
    realmlm("corpus", notes, "--out", tmp_path / "here", *cut)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_what_cannot_be_reached_is_said(bucket: Any, realmlm: Run) -> None:
    said = realmlm("passages", "s3://bucket/none", code=2)
    assert "s3://bucket/none: name a place on this machine" in said
    said = realmlm("spans", "s3://bucket/none", code=2)
    assert "error: no corpus in s3://bucket/none; make one" in said
    said = realmlm("spans", "s3://nobucket/none", code=2)
    assert "error: no corpus in s3://nobucket/none" in said
    gone = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    said = realmlm("spans", "s3://bucket/none", told=gone, code=2)
    assert "s3://bucket/none" in said
    assert "cannot be reached" in said
    assert "Traceback" not in said


def test_without_its_token_the_variables_are_named(
    realmlm: Run, knowledge: Corpus, tiny_model_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="needs Ray: make test-scale")
    told = {"RAY_ADDRESS": "127.0.0.1:9", "RAY_AUTH_MODE": "token", "HOME": str(tmp_path)}
    # without the index that another test may have had made beside it, whose vectors would do
    corpus = shutil.copytree(knowledge.folder, tmp_path / "corpus", ignore=shutil.ignore_patterns("index"))
    made = ["--model", tiny_model_folder, "--corpus", corpus]
    said = realmlm("index", *made, "--engine", "ray", told=told, code=2)
    assert "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in said
    assert "Traceback" not in said
