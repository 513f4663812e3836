"""The refresh: a second job re-embeds the corpus with a snapshot of the weights while training goes on.

Trainer and refresher share nothing but a folder. The trainer publishes `snapshots/step-N`; the refresher
embeds the corpus with it, shard by shard, and publishes `index/step-N`. Both appear by rename. Either may die
at any moment: what was published stays, finished shards are not embedded twice, and a refresher whose trainer
is gone ends by itself.
"""

import multiprocessing
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from realmlm.corpus.store import Corpus
from realmlm.errors import RealmError
from realmlm.index.build import Encode, build_index
from realmlm.log import say
from realmlm.parallel import die_with_parent, sheltered
from realmlm.storage.artefacts import discard, sweep
from realmlm.storage.locks import locked

LoadEncoder = Callable[[Path, str], Encode]  # (snapshot folder, device)

_POLL_S = 0.05
_PATIENCE = {"failed": 5, "killed": 20}  # restarts without a single finished index before giving up


def step_folder(parent: Path, step: int) -> Path:
    return parent / f"step-{step:08d}"


def _steps(parent: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in parent.glob("step-*"))


def refresh_once(
    folder: Path, corpus: Corpus, load: LoadEncoder, *, device: str, dtype: torch.dtype, shard: int
) -> int | None:
    """Build the index of the oldest snapshot that has none, then drop the snapshot. Gives its step, or None
    if there is nothing to do."""
    for step in _steps(folder / "snapshots"):
        snapshot = step_folder(folder / "snapshots", step)
        index = step_folder(folder / "index", step)
        if not index.exists():
            build_index(
                index, corpus, load(snapshot, device), step=step, dtype=dtype, shard=shard, quiet=True
            )
        # of a build killed just after it was published
        shutil.rmtree(index.with_name(f".{index.name}.partial"), ignore_errors=True)
        discard(snapshot)
        return step
    return None


def serve_refreshes(
    folder: Path, corpus: Path, edits: int, load: LoadEncoder, device: str, dtype: torch.dtype, shard: int
) -> None:
    """The refresher's process: build what is asked for until the trainer is gone."""
    die_with_parent()
    torch.set_num_threads(1)  # the one that the trainer leaves it
    try:
        with _alone(folder):
            sweep(folder / "index")
            known = Corpus.open(corpus, edits=edits)
            while True:
                if refresh_once(folder, known, load, device=device, dtype=dtype, shard=shard) is None:
                    time.sleep(_POLL_S)
    except RealmError as error:
        say(f"refresher: {error}")
        sys.exit(1)


def _alone(folder: Path) -> AbstractContextManager[None]:
    """Only one refresher works in a folder; a successor waits until the one of a killed trainer is gone."""
    return locked(folder / ".refresher.lock")


class Refresher:
    """The trainer's side: hands snapshots over, says when an index is there, keeps the process alive."""

    def __init__(
        self,
        folder: Path,
        corpus: Corpus,
        load: LoadEncoder,
        *,
        device: str,
        dtype: torch.dtype,
        process: bool,
        shard: int,
    ) -> None:
        self.folder = folder
        self.restarts = 0
        self._corpus = corpus
        self._load = load
        self._device = device
        self._dtype = dtype
        self._shard = shard
        self._in_process = process
        self._fruitless = 0
        self._worker: BaseProcess | None = None
        for name in ("snapshots", "index"):
            (folder / name).mkdir(exist_ok=True)

    def forget_after(self, step: int) -> None:
        """Drop what an earlier life of this run handed over after `step`, once its refresher is gone."""
        with _alone(self.folder):
            for name in ("snapshots", "index"):
                sweep(self.folder / name)
                for late in _steps(self.folder / name):
                    if late > step:
                        discard(step_folder(self.folder / name, late))

    def snapshot_folder(self, step: int) -> Path:
        return step_folder(self.folder / "snapshots", step)

    def index_folder(self, step: int) -> Path:
        return step_folder(self.folder / "index", step)

    def ask(self, step: int, write: Callable[[Path], None]) -> None:
        """Hand over the weights of this step; in line, the index is there when this returns."""
        if not (self.index_folder(step).exists() or self.snapshot_folder(step).exists()):
            write(self.snapshot_folder(step))
        if self._in_process:
            self._keep_alive()
        else:
            refresh_once(
                self.folder,
                self._corpus,
                self._load,
                device=self._device,
                dtype=self._dtype,
                shard=self._shard,
            )

    def ready(self, step: int) -> bool:
        """Is the index of this step published? Starts a process in place of a dead one."""
        if self.index_folder(step).exists():
            self._fruitless = 0
            return True
        if self._in_process:
            self._keep_alive()
        return False

    def wait(self, step: int) -> None:
        while not self.ready(step):
            time.sleep(_POLL_S)

    def keep_only(self, steps: set[int]) -> None:
        """Drop index versions that nothing refers to any more."""
        for step in _steps(self.folder / "index"):
            if step not in steps:
                discard(self.index_folder(step))

    def _keep_alive(self) -> None:
        if self._worker is not None and self._worker.is_alive():
            return
        if self._worker is not None:
            self.restarts = self.restarts + 1
            self._fruitless = self._fruitless + 1
            code = self._worker.exitcode or 0
            say(f"the refresher ended (exit code {code}); starting another")
            if self._fruitless > _PATIENCE["killed" if code < 0 else "failed"]:
                raise RealmError(
                    f"the refresher died {self._fruitless} times in a row; see its error above, or use "
                    "--refresh.no-process"
                )
        arguments = (
            self.folder,
            self._corpus.folder,
            self._corpus.edits,
            self._load,
            self._device,
            self._dtype,
            self._shard,
        )
        self._worker = multiprocessing.get_context("spawn").Process(
            target=serve_refreshes, args=arguments, daemon=True
        )
        with sheltered():
            self._worker.start()

    def close(self) -> None:
        if self._worker is not None:
            with suppress(ValueError):
                self._worker.kill()
                self._worker.join()
