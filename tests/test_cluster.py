"""Work on a Ray cluster: the same bytes as here, whatever happens to its workers."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from realmlm.cluster import Cluster, joined
from realmlm.corpus.spans import mark_spans, rule_tagger
from realmlm.corpus.store import Corpus
from realmlm.errors import ArtefactMissing, BadInput, Mismatch, MissingExtra, NotEnough
from realmlm.index.build import Embedding, embed_in_parts
from realmlm.index.store import ShardedBuild
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.settings import BuildIndex, MarkSpans
from tests.calls import build_corpus, evaluate

ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1", "RAY_ADDRESS": ""}

# realmlm's command on a cluster with two workers. Whenever another shard is written, one of the workers that are
# at work is killed; which ones is printed.
HUNTED = """
import os, random, signal, sys, threading, time
from pathlib import Path
import ray
from realmlm.cli import main

_, folder, kills, *arguments = sys.argv
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
me = os.getpid()

def parent(process):
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])

def mine(process):
    number = int(process.name)
    while number not in (0, 1, me):
        number = parent(Path("/proc") / str(number))
    return number == me

def working():
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title = (process / "cmdline").read_bytes()
            if title.startswith(b"ray::_Worker.apply") and mine(process):
                found.append(int(process.name))
        except OSError:  # it has ended
            pass
    return found

def written():
    return len(list(Path(folder).rglob(".*.partial/shard-*.safetensors")))

def hunt():
    seen = 0
    for _ in range(int(kills)):
        while written() <= seen or not (prey := working()):
            time.sleep(0.01)
        seen = written()
        chosen = random.choice(prey)
        os.kill(chosen, signal.SIGKILL)
        print("killed", chosen, "after", seen, flush=True)

threading.Thread(target=hunt, daemon=True).start()
main(arguments)
"""


def realmlm(*arguments: object, hunted: tuple[Path, int] | None = None) -> list[str]:
    """Run a command in a process of its own, with one thread; gives what it printed."""
    words = list(map(str, arguments))
    start = ["-m", "realmlm"] if hunted is None else ["-c", HUNTED, *map(str, hunted)]
    done = subprocess.run(
        [sys.executable, *start, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ONE_THREAD,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the stamps of this copy, which say when its files were written."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != ".verified.json")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "note.txt").write_text("The heron is the bird of the town.")
    with pytest.raises(MissingExtra, match=r"--engine ray needs 'ray': pip install 'realmlm\[ray\]'"):
        build_corpus([tmp_path / "note.txt"], tmp_path / "corpus", train_tokenizer=200, engine="ray")
    assert not (tmp_path / "corpus").exists()


def test_what_only_this_machine_can_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="leave out --device"):
        BuildIndex(corpus=tmp_path, device="cuda", engine="ray")
    with pytest.raises(BadInput, match="--workers"):
        MarkSpans(corpus=tmp_path, workers=2, engine="ray")
    with pytest.raises(BadInput, match="--tagger learned"):
        MarkSpans(corpus=tmp_path, tagger="learned", learned=tmp_path, engine="ray")


def test_a_worker_that_does_not_see_the_folder_begins_no_build_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ArtefactMissing, match=r"does not see .*\.index\.partial; all machines must see"):
        ShardedBuild.begun(tmp_path / ".index.partial")
    assert not (tmp_path / ".index.partial").exists()


# --- with Ray -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two workers on this machine."""
    ray = pytest.importorskip("ray", reason="needs Ray: make test-scale")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    with joined() as cluster:
        yield cluster
    assert ray.is_initialized(), "a connection that was there before stays"
    ray.shutdown()


def slow_square(factor: int) -> Callable[[int], int]:
    """The earlier an item, the longer it takes."""

    def square(number: int) -> int:
        time.sleep(0.02 * (9 - number % 10))
        return factor * number * number

    return square


def refuse(names: str) -> Callable[[int], int]:
    def complain(number: int) -> int:
        if number == 3:
            raise Mismatch(f"{names}; do something else")
        return number

    return complain


def die(tries: Path) -> Callable[[int], int]:
    def end(number: int) -> int:
        if number != 1:
            return number
        with open(tries, "a") as file:
            file.write("died\n")
        os._exit(1)

    return end


class Other:
    """Someone else's work on the cluster."""

    def there(self) -> None: ...


@pytest.mark.scale
def test_results_come_in_order_whoever_is_first(cluster: Cluster) -> None:
    asked = []

    def items() -> Iterator[int]:
        for number in range(40):
            asked.append(number)
            yield number

    results = cluster.map(slow_square, (2,), items())
    assert next(results) == 0
    assert len(asked) < 20, "items are not taken long before they are needed"
    assert list(results) == [2 * number * number for number in range(1, 40)]
    assert list(cluster.map(slow_square, (2,), [])) == []


@pytest.mark.scale
def test_a_worker_that_others_leave_no_room_for_keeps_nothing_waiting(cluster: Cluster) -> None:
    ray = pytest.importorskip("ray")
    other = ray.remote(num_cpus=1)(Other).remote()
    ray.get(other.there.remote())  # it has one of the two cores until it is killed
    assert list(cluster.map(slow_square, (1,), range(5))) == [0, 1, 4, 9, 16]
    ray.kill(other)


@pytest.mark.scale
def test_what_goes_wrong_there_is_told_here(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(Mismatch, match=r"^these two; do something else$"):
        list(cluster.map(refuse, ("these two",), range(5)))
    with pytest.raises(NotEnough, match="died 4 times over the same piece of work"):
        list(cluster.map(die, (tmp_path / "tries",), range(5)))
    assert (tmp_path / "tries").read_text() == "died\n" * 4
    with pytest.raises(NotEnough, match="no machine of the Ray cluster has 99 cores"):
        list(cluster.map(slow_square, (1,), range(5), cpus=99))


@pytest.mark.scale
def test_a_corpus_and_its_spans_are_the_same(cluster: Cluster, corpus: Corpus, tmp_path: Path) -> None:
    tokenizer = str(corpus.folder / "tokenizer.json")
    source = corpus.folder.parent / "source.jsonl"
    there = build_corpus([source], tmp_path / "corpus", tokenizer=tokenizer, max_wordpieces=64, engine="ray")
    assert contents(there.folder) == contents(corpus.folder)
    here = Path(shutil.copytree(corpus.folder, tmp_path / "here"))
    mark_spans(Corpus.open(here), rule_tagger(corpus), workers=1)
    mark_spans(there, rule_tagger(corpus), engine="ray")
    assert contents(there.folder) == contents(here)
    assert len(contents(here)) > len(contents(corpus.folder))


@pytest.fixture(scope="module")
def corpus(world: Path, knowledge: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Enough passages for a dozen shards."""
    folder = tmp_path_factory.mktemp("large")
    lines = (world / "knowledge.jsonl").read_text("utf-8")
    repeated = -(-12 * 512 // len(knowledge))
    (folder / "source.jsonl").write_text(lines * repeated, "utf-8")
    tokenizer = str(world / "tokenizer.json")
    return build_corpus(
        [folder / "source.jsonl"], folder / "corpus", tokenizer=tokenizer, max_wordpieces=64, workers=1
    )


@pytest.fixture(scope="module")
def local(corpus: Corpus, tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index as it is made here."""
    folder = tmp_path_factory.mktemp("local") / "index"
    realmlm("index", "--model", tiny_model_folder, "--corpus", corpus.folder, "--out", folder)
    return folder


@pytest.mark.scale
def test_questions_are_answered_alike(
    cluster: Cluster,
    world: Path,
    knowledge: Corpus,
    tiny_model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # here too all is computed as it is outside of tests
    asked: dict[str, Any] = {"questions": world / "questions-held-out.jsonl", "corpus": knowledge.folder}
    asked |= {"model": tiny_model_folder, "limit": 60, "read": 2}
    here = evaluate(**asked, predictions=tmp_path / "here")
    there = evaluate(**asked, predictions=tmp_path / "there", engine="ray")
    assert replace(there, seconds=here.seconds) == here
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()
    assert len((tmp_path / "here").read_text("utf-8").splitlines()) == 60


@pytest.mark.scale
def test_only_the_shards_that_are_missing_are_embedded(
    cluster: Cluster, corpus: Corpus, tiny_model: Realm, tmp_path: Path
) -> None:
    encode = DocumentEncoder.of(tiny_model)
    plan = {"corpus_edits": 0, "kind": "exact", "step": 0}

    def embedded(how: Embedding) -> ShardedBuild:
        return embed_in_parts(tmp_path / "index", corpus, corpus.ids, encode, how, plan=plan)

    def shards() -> dict[str, tuple[int, bytes]]:
        files = sorted((tmp_path / ".index.partial").glob("*.safetensors"))
        return {file.name: (file.stat().st_ino, file.read_bytes()) for file in files}

    begun = embedded(Embedding())
    before = shards()
    (begun.folder / "shard-00003.safetensors").unlink()
    (begun.folder / "shard-00005.safetensors").write_bytes(b"cut off")
    assert embedded(Embedding(elsewhere=encode.on("cpu").on)).missing() == []
    after = shards()
    assert {name: data for name, (_, data) in after.items()} == {
        name: data for name, (_, data) in before.items()
    }
    anew = [name for name in before if after[name][0] != before[name][0]]
    assert set(anew) <= {"shard-00003.safetensors", "shard-00005.safetensors"}


@pytest.mark.scale
@pytest.mark.timeout(600)
def test_workers_that_are_killed_lose_nothing(
    corpus: Corpus, local: Path, tiny_model_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="needs Ray: make test-scale")
    out = tmp_path / "index"
    asked = ["--model", tiny_model_folder, "--corpus", corpus.folder, "--out", out, "--engine", "ray"]
    said = realmlm("index", *asked, hunted=(tmp_path, 3))
    killed = [line for line in said if line.startswith("killed")]  # Ray speaks of it too
    assert len(killed) == 3, "they were killed while shards were missing"
    assert contents(out) == contents(local)


@pytest.mark.scale
@pytest.mark.timeout(600)
def test_without_an_address_a_cluster_is_started(
    knowledge: Corpus, tiny_model_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="needs Ray: make test-scale")
    # without the index that another test may have had made beside it, whose vectors would be copied
    corpus = shutil.copytree(knowledge.folder, tmp_path / "corpus", ignore=shutil.ignore_patterns("index"))
    asked = ["--model", tiny_model_folder, "--corpus", corpus, "--out"]
    realmlm("index", *asked, tmp_path / "here")
    realmlm("index", *asked, tmp_path / "own", "--engine", "ray")
    assert contents(tmp_path / "own") == contents(tmp_path / "here")
