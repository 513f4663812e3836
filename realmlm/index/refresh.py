"""The asynchronous refresh of the index (§3.3 of the paper): while training goes on, a second process embeds
the corpus again with a snapshot of the document tower.

Trainer and refresher share nothing but the folder of the run. While the index of step 500 is being built and
that of step 0 is still searched, it looks like this (published folders appear by a rename):

    RUN/
      snapshots/step-00000500/          weights; the trainer publishes them, the refresher removes them
      index/step-00000000/              in use; the trainer removes it when nothing refers to it any more
      index/.step-00000500.partial/     the refresher's finished shards
      index/step-00000500/              not there yet: the refresher publishes it
      .refresher.lock                   held by the one refresher

Either process may be killed at any moment:

    the trainer                       the refresher sees that it is gone and ends; `--resume` removes what was
                                      asked for after the checkpoint (`forget_after`). A checkpoint waits for
                                      the snapshot that is being written: what it has asked for is there
    the refresher, embedding          the trainer starts another, which continues with the finished shards
    the refresher, having published   the next one finds the index and only removes snapshot and shards
    either, writing a folder          it has a temporary name, under which it is swept away later
"""

import multiprocessing
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.errors import RealmError
from realmlm.index.build import Embedding, Encode, build_index
from realmlm.log import say
from realmlm.parallel import die_with_parent, sheltered
from realmlm.storage.artefacts import discard, sweep
from realmlm.storage.locks import locked

LoadEncoder = Callable[[Path, str], Encode]
"""Makes an encoder of a snapshot's folder, on a device."""

_POLL_S = 0.05
# The part of the time that a refresher is at work on a GPU which also trains. Both then have half of the GPU,
# so that training keeps 1 - SHARE / 2 of its speed.
SHARE = 0.4
_PATIENCE = {"failed": 5, "killed": 20}  # restarts without a single finished index before giving up


def step_folder(parent: Path, step: int) -> Path:
    """The folder of a snapshot or an index: `parent` is the run's `snapshots` or `index`."""
    return parent / f"step-{step:08d}"


def _steps(parent: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in parent.glob("step-*"))


class Considerate:
    """An encoder that leaves the GPU to the trainer for a while after each piece of work, in proportion to
    the time that the piece took."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self.dim = encode.dim
        self.fingerprint = encode.fingerprint
        self.device = encode.device
        self._rests_until = 0.0

    def __call__(self, corpus: Corpus, ids_N: np.ndarray) -> Tensor:
        time.sleep(max(0.0, self._rests_until - time.monotonic()))
        begun = time.monotonic()
        vectors_ND = self._encode(corpus, ids_N)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        ended = time.monotonic()
        self._rests_until = ended + (ended - begun) * (1 / SHARE - 1)
        return vectors_ND


def load_considerate(load: LoadEncoder, snapshot: Path, device: str) -> Encode:
    """What `load` makes of a snapshot, for a device that also trains."""
    return Considerate(load(snapshot, device))


def refresh_once(
    folder: Path, corpus: Corpus, load: LoadEncoder, *, device: str, dtype: torch.dtype, shard: int
) -> int | None:
    """Build the index of the oldest snapshot, unless it is there, and remove the snapshot. Gives its step, or
    None if there is no snapshot."""
    steps = _steps(folder / "snapshots")
    if not steps:
        return None
    snapshot = step_folder(folder / "snapshots", steps[0])
    index = step_folder(folder / "index", steps[0])
    if not index.exists():
        encode = load(snapshot, device)
        how = Embedding(dtype=dtype, shard=shard, quiet=True)
        build_index(index, corpus, encode, how, kind="exact", step=steps[0])
    # the shards of a build that was killed just after it was published
    shutil.rmtree(index.with_name(f".{index.name}.partial"), ignore_errors=True)
    discard(snapshot)
    return steps[0]


def serve_refreshes(
    folder: Path, corpus: Path, edits: int, load: LoadEncoder, device: str, dtype: torch.dtype, shard: int
) -> None:
    """What the refresher's process does: build the index of each snapshot until the trainer is gone."""
    die_with_parent()
    torch.set_num_threads(1)  # the trainer leaves it one
    try:
        with _alone(folder):
            sweep(folder / "index")
            passages = Corpus.open(corpus, edits=edits)
            while True:
                if refresh_once(folder, passages, load, device=device, dtype=dtype, shard=shard) is None:
                    time.sleep(_POLL_S)
    except RealmError as error:
        say(f"refresher: {error}")
        sys.exit(1)


def _alone(folder: Path) -> AbstractContextManager[None]:
    """Wait until no other refresher works in this folder: that of a killed trainer may not have ended yet."""
    return locked(folder / ".refresher.lock")


class Refresher:
    """The trainer's side: hands over snapshots, says when an index is ready, and restarts a process that has
    died. With `process` false there is none: each index is built while the trainer waits."""

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
        self._refresh = partial(refresh_once, folder, corpus, load, device=device, dtype=dtype, shard=shard)
        self._arguments = (folder, corpus.folder, corpus.edits, load, device, dtype, shard)
        self._has_process = process
        self._fruitless = 0  # restarts since an index was last ready
        self._worker: BaseProcess | None = None
        for name in ("snapshots", "index"):
            (folder / name).mkdir(exist_ok=True)

    def forget_after(self, step: int) -> None:
        """Remove the snapshots and indexes after `step`, that of the checkpoint a run is resumed from, once
        the refresher of the killed trainer is gone."""
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

    def is_asked(self, step: int) -> bool:
        """Is the snapshot of this step published, or its index already?"""
        return self.index_folder(step).exists() or self.snapshot_folder(step).exists()

    def ready(self, step: int) -> bool:
        """Is the index of this step published? If not, a process is started if none is alive; without a
        process of its own the index is built now."""
        if self.index_folder(step).exists():
            self._fruitless = 0
            return True
        if self._has_process:
            self._keep_alive()
            return False
        self._refresh()
        return True

    def wait(self, step: int) -> None:
        """Wait until the index of this step is published."""
        while not self.ready(step):
            time.sleep(_POLL_S)

    def keep_only(self, steps: set[int]) -> None:
        """Remove the indexes of all other steps."""
        for step in _steps(self.folder / "index"):
            if step not in steps:
                discard(self.index_folder(step))

    def _keep_alive(self) -> None:
        if self._worker is not None and self._worker.is_alive():
            return
        if self._worker is not None:
            self.restarts += 1
            self._fruitless += 1
            code = self._worker.exitcode or 0
            say(f"the refresher ended (exit code {code}); starting another")
            if self._fruitless > _PATIENCE["killed" if code < 0 else "failed"]:
                died = f"the refresher died {self._fruitless} times in a row"
                guard = "in a program of yours, what it does must stand under `if __name__ == '__main__':`"
                raise RealmError(f"{died}; see its error above ({guard}), or use --refresh.no-process")
        spawn = multiprocessing.get_context("spawn")
        self._worker = spawn.Process(target=serve_refreshes, args=self._arguments, daemon=True)
        with sheltered():
            self._worker.start()

    def close(self) -> None:
        """End the refresher's process."""
        if self._worker is not None:
            with suppress(ValueError):
                self._worker.kill()
                self._worker.join()
