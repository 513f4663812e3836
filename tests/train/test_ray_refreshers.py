"""A training has refreshers on a Ray cluster: the index of one refresher, byte for byte, whoever of them is killed."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from realmlm.corpus.spans import mark_spans, rule_tagger
from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput, MissingExtra
from realmlm.index.build import Encode
from realmlm.index.refresh import refresh_once, step_folder
from realmlm.model.realm import Realm
from realmlm.model.snapshot import load_snapshot, take_snapshot
from realmlm.settings import Refresh
from realmlm.train.refresher import RayRefreshers
from tests.calls import build_corpus
from tests.train.test_refreshers import STEP, HeldUp, claimers, content, run_of, wait_for

KILLS = 3
SHARD = 64


def test_it_is_for_refreshers_beside_training() -> None:
    for every, process in ((0, True), (2, False)):
        with pytest.raises(BadInput, match=r"--refresh.engine ray helps a refresher beside training"):
            Refresh(engine="ray", every_steps=every, process=process)


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_extra_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match=r"--refresh.engine ray needs 'ray': pip install 'realmlm\[ray\]'"):
        RayRefreshers(tmp_path, "cpu")


@pytest.fixture
def corpus(world: Path, knowledge: Corpus, tmp_path: Path) -> Corpus:
    """Some dozens of shards."""
    (tmp_path / "source.jsonl").write_text((world / "knowledge.jsonl").read_text("utf-8") * 10, "utf-8")
    tokenizer = str(world / "tokenizer.json")
    made = build_corpus(
        [tmp_path / "source.jsonl"], tmp_path / "corpus", tokenizer=tokenizer, max_wordpieces=64, workers=1
    )
    mark_spans(made, rule_tagger(made))
    return made


@pytest.fixture
def _own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs Ray: make test-scale")
    monkeypatch.setenv("RAY_ADDRESS", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def at_work_on_ray(run: Path) -> set[int]:
    """The Ray actors that have claimed a shard which is not finished."""
    found = set()
    for pid in claimers(run):
        with suppress(OSError):  # it has ended
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::_Worker"):
                found.add(pid)
    return found


def refresh(run: Path, corpus: Corpus, model: Path, *, after: threading.Event) -> threading.Thread:
    """The run's own refresher makes the index of a snapshot, but embeds nothing before that."""
    take_snapshot(Realm.from_pretrained(model), step=STEP)(step_folder(run / "snapshots", STEP))
    (run / "index").mkdir(exist_ok=True)

    def load(snapshot: Path, device: str) -> Encode:
        return HeldUp(load_snapshot(snapshot, device), until=after.wait)

    def work() -> None:
        refresh_once(run, corpus, load, device="cpu", dtype=torch.float16, shard=SHARD)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.scale
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_own_cluster")
def test_actors_that_are_killed_lose_nothing(corpus: Corpus, tiny_model_folder: Path, tmp_path: Path) -> None:
    alone, helped = (run_of(tmp_path / name, tiny_model_folder, corpus) for name in ("alone", "helped"))
    at_once = threading.Event()
    at_once.set()
    refresh(alone, corpus, tiny_model_folder, after=at_once).join(60)
    released = threading.Event()
    own = refresh(helped, corpus, tiny_model_folder, after=released)
    helpers = RayRefreshers(helped, "cpu")
    killed: set[int] = set()
    try:
        while len(killed) < KILLS:
            doomed = wait_for(lambda: at_work_on_ray(helped) - killed, seconds=120).pop()
            os.kill(doomed, signal.SIGKILL)
            killed.add(doomed)
        last = wait_for(lambda: at_work_on_ray(helped) - killed, seconds=120)  # Ray has started another
        released.set()
        own.join(120)
        assert content(helped) == content(alone)
        assert len(content(helped)) > 1
    finally:
        helpers.close()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in last))


@pytest.mark.scale
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_own_cluster")
def test_a_training_has_them_until_it_ends(corpus: Corpus, tiny_model_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = f"pretrain --model {tiny_model_folder} --corpus {corpus.folder} --out {run} --k 3"
    words += " --optim.steps 100000 --optim.batch 4 --loop.threads 1 --loop.device cpu"
    words += f" --refresh.engine ray --refresh.every-steps 5 --refresh.swap-after 5 --refresh.shard {SHARD}"
    with subprocess.Popen(
        [sys.executable, "-m", "realmlm", *words.split()], stderr=subprocess.PIPE, text=True
    ) as process:
        actors = wait_for(lambda: at_work_on_ray(run) or process.poll() is not None, seconds=240)
        process.send_signal(signal.SIGTERM)  # as a scheduler does
        _, said = process.communicate()
    assert actors is not True, said
    assert "on the Ray cluster will help" in said
    assert "stopping after this step" in said, "Ray's own handler of the signal is not the trainer's"
    assert any((run / "checkpoints").iterdir())
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in actors))
