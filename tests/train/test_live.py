"""Training goes on while a snapshot is written and a new index read in."""

import errno
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.index.exact import Index
from realmlm.index.refresh import SHARE, Considerate, refresh_once
from realmlm.index.store import open_index
from realmlm.log import read_metrics
from realmlm.model.realm import Realm
from realmlm.model.snapshot import load_snapshot
from realmlm.settings import JointOptim, Loop, Pretrain, Refresh
from realmlm.train.live import LiveIndex
from realmlm.train.run import Run
from tests.calls import run_pretrain

ROOT = Path(__file__).parents[2]
EVERY = 2
SLOW = 0.3  # seconds


class Trainer:
    """Makes steps that train nothing; what the refresher's process does is done when the test says so."""

    def __init__(
        self, folder: Path, model: Realm, corpus: Corpus, swap_after: int | None = None, own: bool = False
    ) -> None:
        self.model = model
        self.corpus = corpus
        self.run = Run(folder)
        refresh = Refresh(every_steps=EVERY, swap_after=swap_after)
        loop = Loop(threads=1, device="cpu", log_every=4)
        self.live = LiveIndex(self.run, model, corpus, refresh=refresh, loop=loop, asked_by_own=own)
        self.step = 0

    def steps(self, until: int) -> dict[str, Any]:
        """Make the steps before this one; the row of the last."""
        row: dict[str, Any] = {}
        while self.step < until:
            row = self.live.before_step(self.step)
            self.step += 1
        return row

    def refresh(self) -> None:
        """Build the index of the snapshot, once it is published."""
        self.live.state()
        made = refresh_once(
            self.run.folder, self.corpus, load_snapshot, device="cpu", dtype=torch.float16, shard=64
        )
        assert made is not None

    def indexes(self) -> set[str]:
        return {path.name for path in (self.run.folder / "index").glob("step-*")}

    def close(self) -> None:
        self.live.close()
        self.run.close()


@pytest.fixture
def begin(towns: Corpus, towns_model: Path, tmp_path: Path) -> Iterator[Callable[..., Trainer]]:
    begun: list[Trainer] = []

    def begin(swap_after: int | None = None, own: bool = False) -> Trainer:
        model = Realm.from_pretrained(towns_model)
        begun.append(Trainer(tmp_path / f"run{len(begun)}", model, towns, swap_after, own))
        return begun[-1]

    yield begin
    for trainer in begun:
        trainer.close()


def slow_opening(monkeypatch: pytest.MonkeyPatch, until: Callable[[], object]) -> None:
    """An index other than the first is open only when `until` returns."""

    def slowly(place: Path, **how: Any) -> Index:
        if place.name != "step-00000000":
            until()
        return open_index(place, **how)

    monkeypatch.setattr("realmlm.train.live.open_index", slowly)


def test_the_weights_written_are_those_of_the_moment(
    begin: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though they are trained on before the first byte is written."""
    trained_on = Event()

    def late(tensors: dict[str, Tensor], file: Path) -> None:
        assert trained_on.wait(60)
        save_file(tensors, file)

    monkeypatch.setattr("realmlm.model.snapshot.save_file", late)
    trainer = begin()
    trainer.steps(EVERY + 1)
    document = trainer.model.document
    then = {name: tensor.clone() for name, tensor in document.state_dict().items()}
    with torch.no_grad():
        for parameter in document.parameters():
            parameter.add_(1.0)
    folder = trainer.run.folder / "snapshots" / f"step-{EVERY:08d}"
    assert not folder.exists()
    trained_on.set()
    trainer.live.state()
    written = load_file(folder / "document.safetensors")
    assert written.keys() == then.keys()
    assert all(torch.equal(written[name], then[name]) for name in then)


def test_a_checkpoint_waits_for_the_snapshot_it_names(
    begin: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the row says how long training stood still."""

    def late(tensors: dict[str, Tensor], file: Path) -> None:
        time.sleep(SLOW)
        save_file(tensors, file)

    monkeypatch.setattr("realmlm.model.snapshot.save_file", late)
    trainer = begin()
    row = trainer.steps(EVERY + 1)
    assert row["stood_still"] < SLOW
    assert trainer.live.state()["pending"] == EVERY
    assert (trainer.run.folder / "snapshots" / f"step-{EVERY:08d}").exists()
    trainer.refresh()
    last_of_its_row = trainer.steps(4)
    assert last_of_its_row["stood_still"] > 0.5 * SLOW
    assert trainer.steps(5)["stood_still"] < 0.5 * SLOW, "a new row begins"


@pytest.mark.parametrize("at", ["the next step", "a checkpoint"])
def test_a_snapshot_that_cannot_be_written_ends_the_run(
    at: str, begin: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensors: dict[str, Tensor], file: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("realmlm.model.snapshot.save_file", full)
    trainer = begin()
    trainer.steps(EVERY + 1)
    go_on = trainer.live.state if at == "a checkpoint" else lambda: trainer.steps(10**6)
    with pytest.raises(OSError, match=r"No space left on device: .*/snapshots/step-00000002"):
        go_on()


def test_steps_go_on_while_an_index_is_read_in(
    begin: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = Event()
    slow_opening(monkeypatch, lambda: go_on.wait(60))
    trainer = begin()
    trainer.steps(EVERY + 1)
    old = trainer.live.index
    trainer.refresh()
    row = trainer.steps(40)
    assert trainer.live.index is old
    assert (row["swaps"], row["index_age"], row["steps_beside"]) == (0, 39, 40 - EVERY)
    go_on.set()
    while not row["swaps"]:
        row = trainer.steps(trainer.step + 1)
        time.sleep(0.01)
    new = trainer.live.index
    assert new is not old
    assert trainer.indexes() == {"step-00000000", "step-00000002"}
    later = trainer.step + EVERY - trainer.step % EVERY
    row = trainer.steps(later + 1)
    trainer.live.state()
    assert row["index_age"] == later - EVERY
    assert trainer.indexes() == {"step-00000002"}, "with the next snapshot goes what no one needs"


def test_a_fixed_swap_waits_for_its_index(
    begin: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_opening(monkeypatch, lambda: time.sleep(SLOW))
    trainer = begin(swap_after=1)
    trainer.steps(EVERY + 1)
    trainer.refresh()
    row = trainer.steps(EVERY + 2)
    assert (row["swaps"], row["index_age"]) == (1, 1)
    assert row["stood_still"] > 0.5 * SLOW


@pytest.mark.parametrize("room", [True, False])
def test_where_two_do_not_fit_the_old_index_goes_first(
    room: bool, begin: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("realmlm.train.live.has_room", lambda place, device, parts: room)
    old_ones: list[weakref.ref[Any]] = []
    beside: list[bool] = []
    slow_opening(monkeypatch, lambda: beside.append(old_ones[0]() is not None))
    trainer = begin()
    trainer.steps(EVERY + 1)
    old_ones.append(weakref.ref(trainer.live.index))
    trainer.refresh()
    row = trainer.steps(EVERY + 2)
    while not row["swaps"]:
        row = trainer.steps(trainer.step + 1)
    assert beside == [room]
    assert old_ones[0]() is None


def test_rows_say_how_long_training_stood_still(towns: Corpus, towns_model: Path, tmp_path: Path) -> None:
    """All the while where the index is built in line."""
    run_pretrain(
        Pretrain(
            model=towns_model,
            corpus=towns.folder,
            out=tmp_path / "run",
            k=3,
            optim=JointOptim(steps=6, batch=4),
            refresh=Refresh(every_steps=4, process=False),
            loop=Loop(log_every=1, threads=1, device="cpu"),
        )
    )
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    stood_still = [row["stood_still"] for row in rows]
    assert max(stood_still) == stood_still[4]  # before step 4, the fifth
    refreshing = rows[4]["seconds"]["refresh"]
    assert 0.5 * refreshing < stood_still[4] < refreshing + 1e-3


def test_a_refresher_leaves_a_shared_device_to_the_trainer(towns: Corpus) -> None:
    class Slow:
        dim = 4
        fingerprint = "slow"
        device = torch.device("cpu")

        def __call__(self, corpus: Corpus, ids_N: np.ndarray) -> Tensor:
            time.sleep(0.02)
            return torch.from_numpy(ids_N)[:, None].expand(-1, self.dim)

    encode = Considerate(Slow())
    begun = time.monotonic()
    pieces = [encode(towns, np.arange(count)) for count in range(1, 6)]
    at_work = 5 * 0.02
    assert time.monotonic() - begun >= at_work + 0.8 * at_work * (1 / SHARE - 1)
    assert [piece[:, 0].tolist() for piece in pieces] == [list(range(count)) for count in range(1, 6)]


def test_closing_lets_the_snapshot_end(
    begin: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written after the run is tidied up would stay."""

    def late(tensors: dict[str, Tensor], file: Path) -> None:
        time.sleep(SLOW)
        save_file(tensors, file)

    monkeypatch.setattr("realmlm.model.snapshot.save_file", late)
    trainer = begin()
    with closing(trainer.live):
        trainer.steps(EVERY + 1)
    assert [path.name for path in (trainer.run.folder / "snapshots").iterdir()] == ["step-00000002"]


@pytest.mark.slow
def test_the_benchmark_runs() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "refresh_stall.py"), "--tiny"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for said in ("without the refresher", "longest step around a snapshot", "around a swap", "stood_still"):
        assert said in done.stdout


def test_an_index_brings_the_query_tower_of_its_snapshot(begin: Callable[..., Trainer]) -> None:
    """Not that of the moment when it is swapped in."""
    trainer = begin(own=True)
    asker = trainer.live.asker
    assert asker is not None

    def weights() -> list[Tensor]:
        return [parameter.detach().clone() for parameter in trainer.model.query.parameters()]

    def moves() -> None:
        with torch.no_grad():
            for parameter in trainer.model.query.parameters():
                parameter.add_(1.0)

    first = weights()
    trainer.steps(EVERY)
    moves()
    snapshot = weights()
    trainer.steps(EVERY + 1)  # the snapshot is taken before this step
    moves()
    assert all(map(torch.equal, asker.tower.parameters(), first))
    trainer.refresh()
    deadline = time.monotonic() + 60
    while trainer.live.swaps == 0 and time.monotonic() < deadline:
        trainer.steps(trainer.step + 1)
        time.sleep(0.01)
    assert trainer.live.swaps == 1
    assert all(map(torch.equal, asker.tower.parameters(), snapshot))
