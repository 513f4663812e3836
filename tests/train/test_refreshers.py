"""Several refreshers embed one snapshot: the index is that of one, byte for byte, whoever of them is killed."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from realmlm.cli import main
from realmlm.corpus.store import Corpus
from realmlm.errors import RealmError
from realmlm.index.build import Encode
from realmlm.index.refresh import Refresher, join_refreshes, refresh_once, step_folder
from realmlm.model.realm import Realm
from realmlm.model.snapshot import load_snapshot, take_snapshot
from realmlm.settings import Pretrain, Refresh
from realmlm.train.run import Run
from tests.forked import CONTEXT

SHARDS = 6
STEP = 5
SLOW = 0.3  # seconds for a shard


class HeldUp:
    """An encoder that waits before each piece of work."""

    def __init__(self, encode: Encode, until: Callable[[], Any]) -> None:
        self._encode = encode
        self._until = until
        self.dim = encode.dim
        self.fingerprint = encode.fingerprint
        self.device = encode.device

    def __call__(self, corpus: Corpus, ids_N: np.ndarray) -> Tensor:
        self._until()
        return self._encode(corpus, ids_N)


def load_slowed(snapshot: Path, device: str) -> Encode:
    """What leaves time to be killed in mid-shard."""
    torch.set_num_threads(1)
    return HeldUp(load_snapshot(snapshot, device), until=lambda: time.sleep(SLOW))


def join(run: Path, corpus: Path, told: Path, first: Path) -> None:
    """The life of a refresher that has joined; `told` gets a line for each of its shards. Before it joins, it
    has embedded with the snapshot of the run `first`."""

    def tell(text: str) -> None:
        with open(told, "a") as file:
            file.write(f"{text}\n")

    passages = Corpus.open(corpus)
    load_slowed(step_folder(first / "snapshots", STEP), "cpu")(passages, passages.ids)  # imports take seconds
    told.touch()
    join_refreshes(run, passages, load_slowed, "cpu", over=lambda: False, tell=tell)


@pytest.fixture
def snapshot_in(towns: Corpus, towns_model: Path) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        for name in ("index", "snapshots"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        take_snapshot(Realm.from_pretrained(towns_model), step=STEP)(step_folder(folder / "snapshots", STEP))
        return folder

    return write


@pytest.fixture
def expected(snapshot_in: Callable[[Path], Path], towns: Corpus, tmp_path: Path) -> dict[str, bytes]:
    """The index that one refresher alone makes."""
    folder = snapshot_in(tmp_path / "alone")
    refresh_once(folder, towns, load_snapshot, device="cpu", dtype=torch.float16, shard=size(towns))
    return content(folder)


def size(corpus: Corpus) -> int:
    return -(-len(corpus) // SHARDS)


def content(run: Path) -> dict[str, bytes]:
    """Every file of the run's only index, but for the stamps, which are of its inodes."""
    index = step_folder(run / "index", STEP)
    files = [file for file in index.rglob("*") if file.is_file() and file.name != ".verified.json"]
    return {file.name: file.read_bytes() for file in files}


def own_refresher(run: Path, corpus: Corpus) -> Refresher:
    """The trainer's side of it: starts the refresher's process, and another when it is killed."""
    return Refresher(
        run, corpus, load_slowed, device="cpu", dtype=torch.float16, process=True, shard=size(corpus)
    )


def joined(run: Path, corpus: Corpus, first: Path | None = None) -> Any:
    (run / "told").unlink(missing_ok=True)
    told = (run, corpus.folder, run / "told", first or run)
    process = CONTEXT.Process(target=join, args=told, daemon=True)
    process.start()
    wait_for((run / "told").exists)
    return process


def claimers(run: Path) -> set[int]:
    """The processes that have claimed a shard which is not finished."""
    found = set()
    try:
        for claim in run.glob("index/.step-*.partial/claim-*[0-9]"):
            with suppress(OSError, ValueError):  # it was released
                found.add(int(json.loads(claim.read_text())["pid"]))
    except OSError:  # the index was published while we looked
        pass
    return found


def at_work(run: Path, pid: int) -> bool:
    """Has this process claimed a shard that is not finished?"""
    return pid in claimers(run)


def wait_for(ready: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return found


def check_whole(run: Path, expected: dict[str, bytes]) -> None:
    wait_for(lambda: not any((run / "snapshots").iterdir()))  # what comes last, after the index's stamps
    assert content(run) == expected
    assert [path.name for path in (run / "index").iterdir()] == [f"step-{STEP:08d}"], "nothing else is left"


def test_two_make_the_index_of_one(
    snapshot_in: Callable[[Path], Path], expected: dict[str, bytes], towns: Corpus, tmp_path: Path
) -> None:
    run = snapshot_in(tmp_path / "run")
    other = joined(run, towns)

    def load(snapshot: Path, device: str) -> Encode:
        return HeldUp(load_snapshot(snapshot, device), until=lambda: wait_for((run / "told").read_text))

    try:
        refresh_once(run, towns, load, device="cpu", dtype=torch.float16, shard=size(towns))
        check_whole(run, expected)
        assert 1 <= len((run / "told").read_text().splitlines()) < SHARDS, "both have worked"
    finally:
        other.kill()


def test_the_shard_of_a_killed_one_is_taken_over(
    snapshot_in: Callable[[Path], Path], expected: dict[str, bytes], towns: Corpus, tmp_path: Path
) -> None:
    run = snapshot_in(tmp_path / "run")
    other = joined(run, towns)
    killed = threading.Event()

    def load(snapshot: Path, device: str) -> Encode:
        return HeldUp(load_snapshot(snapshot, device), until=killed.wait)

    refresh = threading.Thread(
        target=refresh_once,
        args=(run, towns, load),
        kwargs={"device": "cpu", "dtype": torch.float16, "shard": size(towns)},
        daemon=True,
    )
    refresh.start()
    wait_for(lambda: at_work(run, other.pid))
    os.kill(other.pid, signal.SIGKILL)
    killed.set()
    begun = time.monotonic()
    refresh.join(60)
    assert time.monotonic() - begun < 10, "a dead process of the same machine is not waited for"
    check_whole(run, expected)


@pytest.mark.scale
@pytest.mark.timeout(900)
def test_twenty_random_kills_lose_nothing(
    snapshot_in: Callable[[Path], Path], expected: dict[str, bytes], towns: Corpus, tmp_path: Path
) -> None:
    """Of the run's own refresher and of one that has joined, ten each, in mid-shard."""
    chance = random.Random(0)
    victims = ["own", "joined"] * 10
    chance.shuffle(victims)
    first = snapshot_in(tmp_path / "first")
    run = tmp_path / "run"
    run.mkdir()
    own = own_refresher(run, towns)
    own.ready(STEP)
    other = joined(run, towns, first)
    try:
        for number, victim in enumerate(victims):
            snapshot_in(run)
            own.ready(STEP)
            (started,) = [child for child in multiprocessing.active_children() if child.pid != other.pid]
            doomed = other if victim == "joined" else started
            wait_for(partial(at_work, run, doomed.pid or 0))
            time.sleep(SLOW * chance.random())
            os.kill(doomed.pid or 0, signal.SIGKILL)
            doomed.join()
            own.wait(STEP)
            check_whole(run, expected)
            assert own.restarts == victims[: number + 1].count("own")
            shutil.rmtree(step_folder(run / "index", STEP))
            if victim == "joined":
                other = joined(run, towns, first)
    finally:
        own.close()
        other.kill()
        other.join()


# --- the command --------------------------------------------------------------------------------------------


def run_of(folder: Path, model: Path, corpus: Corpus, every: int = 4) -> Path:
    """A run whose training is yet to take its first step."""
    settings = Pretrain(model=model, corpus=corpus.folder, out=folder, refresh=Refresh(every_steps=every))
    with Run.begin(folder, stage="pretrain", settings=settings) as run:
        run.open_corpus(corpus.folder)
    return folder


def command(run: Path, log: Path) -> None:
    """The life of the command; what it says goes to `log`."""
    sys.stderr = open(log, "w", buffering=1)
    main(["refresher", str(run), "--device", "cpu"])


def test_it_ends_with_the_run_or_when_it_is_told_to(
    snapshot_in: Callable[[Path], Path],
    expected: dict[str, bytes],
    towns: Corpus,
    towns_model: Path,
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path / "run", towns_model, towns)
    logs = [tmp_path / name for name in ("told", "stays")]
    told, stays = (CONTEXT.Process(target=command, args=(run, log), daemon=True) for log in logs)
    for process, log in zip((told, stays), logs, strict=True):
        process.start()
        wait_for(lambda log=log: log.exists() and "joined, on cpu" in log.read_text())  # type: ignore[misc]
    os.kill(told.pid or 0, signal.SIGTERM)
    told.join(30)
    assert told.exitcode == 0
    assert "was told to end: 0 shards" in logs[0].read_text()

    def load(snapshot: Path, device: str) -> Encode:
        return HeldUp(
            load_snapshot(snapshot, device),
            until=lambda: wait_for(lambda: "embedded, " in logs[1].read_text()),
        )

    snapshot_in(run)
    refresh_once(run, towns, load, device="cpu", dtype=torch.float16, shard=size(towns))
    check_whole(run, expected)
    assert stays.is_alive(), "it waits for the next snapshot"
    (run / "model").mkdir()
    (run / "model" / "manifest.json").write_text("{}")
    stays.join(30)
    assert stays.exitcode == 0
    assert "is finished: " in logs[1].read_text()


@pytest.mark.parametrize("wrong", ["no run", "no refresh", "corpus", "state", "device"])
def test_what_does_not_match_is_refused(
    wrong: str,
    snapshot_in: Callable[[Path], Path],
    towns: Corpus,
    knowledge: Corpus,
    towns_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    expected = {
        "no run": f"no run in {run}; name the --out",
        "no refresh": "does not refresh an index",
        "corpus": "is not the corpus that",
    }
    if wrong in expected:
        if wrong != "no run":
            run_of(run, towns_model, towns, every=0 if wrong == "no refresh" else 4)
        with pytest.raises(SystemExit) as end:
            main(["refresher", str(run), "--device", "cpu", "--corpus", str(knowledge.folder)])
        assert end.value.code == 2
        assert expected[wrong] in capsys.readouterr().err
        return
    snapshot_in(run)
    folder = run / "index" / f".step-{STEP:08d}-0.partial"
    folder.mkdir()
    encode = load_snapshot(step_folder(run / "snapshots", STEP), "cpu")
    plan = {"corpus": towns.fingerprint, "corpus_edits": towns.edits, "weights": encode.fingerprint}
    plan |= {"dim": encode.dim, "dtype": "float16", "kind": "exact", "step": STEP, "device": "cpu"}
    plan |= {"borders": [0, len(towns)]}
    plan |= {"device": "cuda"} if wrong == "device" else {"corpus_edits": 7}
    (folder / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(RealmError, match="on cuda, this one on cpu" if wrong == "device" else "state of it"):
        join_refreshes(run, towns, load_snapshot, "cpu", over=lambda: False, tell=print)
    assert [file.name for file in folder.iterdir()] == ["plan.json"], "nothing was claimed"
