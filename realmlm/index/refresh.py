"""The asynchronous refresh of the index (§3.3 of the paper): while training goes on, other processes embed
the corpus again with a snapshot of the document tower.

Trainer and refreshers share nothing but the folder of the run. While the index of step 500 is being built and
that of step 0 is still searched, it looks like this (published folders appear by a rename):

    RUN/
      snapshots/step-00000500/          weights; the trainer publishes them, its refresher removes them
      index/step-00000000/              in use; the trainer removes it when nothing refers to it any more
      index/.step-00000500-d1ff.partial/
        plan.json                       what is to be embedded, in which shards; its digest names the folder
        shard-00002.safetensors, .json  a finished shard and its checksum
        claim-00003-000                 a refresher is at work on this one (realmlm.storage.claims)
      index/step-00000500/              not there yet: the trainer's refresher publishes it
      .refresher.lock                   held by the trainer's refresher

A run has one refresher of its own, on the trainer's machine, which plans, publishes and cleans up. Any number
of others may join it (`join_refreshes`, the command `realmlm refresher`), from any machine that sees the
folder: all of them, the first too, claim shards and embed them. A plan that is dropped takes its folder
along, and no other has its name: what someone writes late for it cannot end up in another index.

Each process may be killed at any moment:

    the trainer                       its refresher sees that it is gone and ends; `--resume` removes what was
                                      asked for after the checkpoint (`forget_after`). A checkpoint waits for
                                      the snapshot that is being written: what it has asked for is there.
                                      Refreshers that have joined wait until it goes on
    a refresher, embedding            the others take over the shards that it had claimed. If it is the
                                      trainer's, another is started, which continues with the finished ones
    the refresher, having published   the next one finds the index and only removes snapshot and shards
    any of them, writing a folder     it has a temporary name, under which it is swept away later
"""

import hashlib
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.errors import ArtefactDamaged, Mismatch, RealmError
from realmlm.index.build import Embedding, Encode, embed_shards, whole_plan
from realmlm.index.store import ShardedBuild
from realmlm.log import counted, say
from realmlm.parallel import die_with_parent, sheltered
from realmlm.storage.artefacts import discard, sweep
from realmlm.storage.claims import Claims
from realmlm.storage.locks import locked

LoadEncoder = Callable[[Path, str], Encode]
"""Makes an encoder of a snapshot's folder, on a device."""

Tell = Callable[[str], None]

_POLL_S = 0.05
_POLL_JOINED_S = 0.5  # of a refresher that has joined: it may ask another machine each time
_POLL_OTHERS_S = (0.01, 1.0)  # for what others are at work on: soon at first, then less and less often
# The part of the time that a refresher is at work on a GPU which also trains. Both then have half of the GPU,
# so that training keeps 1 - SHARE / 2 of its speed.
SHARE = 0.4
_PATIENCE = {"failed": 5, "killed": 20}  # restarts without a single finished index before giving up


def _tell_no_one(_: str) -> None: ...


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
    """Build the index of the oldest snapshot, unless it is there, together with refreshers that have joined,
    and remove the snapshot. Gives its step, or None if there is no snapshot."""
    steps = _steps(folder / "snapshots")
    if not steps:
        return None
    step = steps[0]
    snapshot = step_folder(folder / "snapshots", step)
    index = step_folder(folder / "index", step)
    if not index.exists():
        encode = load(snapshot, device)
        plan = {"corpus_edits": corpus.edits, "kind": "exact", "step": step, "device": encode.device.type}
        how = Embedding(dtype=dtype, shard=shard)
        build = _begin(index, whole_plan(plan, corpus, len(corpus), encode, how))
        _embed_with_others(build, corpus, encode, build.missing)
        build.publish(index)
    _discard_builds(index)  # one that was killed just after it was published
    discard(snapshot)
    return step


def _begin(index: Path, plan: dict[str, Any]) -> ShardedBuild:
    """The build of an index by this plan, which others may join: gone on with if it was begun."""
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
    folder = index.with_name(f".{index.name}-{digest[:12]}.partial")
    _discard_builds(index, but=folder)
    return ShardedBuild(folder, plan)


def _discard_builds(index: Path, *, but: Path | None = None) -> None:
    for folder in index.parent.glob(f".{index.name}*.partial"):
        if folder != but:
            discard(folder)


# --- several refreshers -------------------------------------------------------------------------------------


class _Shared:
    """A build as one of several processes sees it: its shards are claimed, and given back once written."""

    def __init__(self, build: ShardedBuild, claims: Claims, tell: Tell) -> None:
        self.plan = build.plan
        self._build = build
        self._claims = claims
        self._tell = tell

    def shares(self, missing: Callable[[], list[int]]) -> Iterator[int]:
        """The shards that fall to this process, each claimed, until none is missing anywhere."""
        least, most = _POLL_OTHERS_S
        pause = least
        while wanted := missing():
            number = self._claims.take(wanted)
            if number is None:
                time.sleep(pause)
                pause = min(most, 1.5 * pause)
            elif number in missing():
                pause = least
                yield number
            else:  # finished since we looked
                self._claims.release(number)

    def put(self, shard: int, ids_N: Tensor, vectors_ND: Tensor) -> None:
        self._build.put(shard, ids_N, vectors_ND)
        self._claims.release(shard)
        embedded = f"shard {shard + 1} of {self._build.shards} embedded"
        self._tell(f"step {self.plan['step']}: {embedded}, {counted(len(ids_N), 'passage')}")


def _embed_with_others(
    build: ShardedBuild,
    corpus: Corpus,
    encode: Encode,
    missing: Callable[[], list[int]],
    tell: Tell = _tell_no_one,
) -> None:
    """Embed what no other process embeds until all shards are there."""
    with Claims(build.folder) as claims:
        shared = _Shared(build, claims, tell)
        embed_shards(shared.shares(missing), shared, corpus, corpus.ids, encode)


def join_refreshes(
    folder: Path, corpus: Corpus, load: LoadEncoder, device: str, *, over: Callable[[], bool], tell: Tell
) -> None:
    """Help a run's refresher to embed each snapshot until it is `over`; `tell` hears of each shard.

    Raises Mismatch where what this process would embed is not what the run embeds.
    """
    while not over():
        if not _help_once(folder, corpus, load, device, tell):
            time.sleep(_POLL_JOINED_S)


def _help_once(folder: Path, corpus: Corpus, load: LoadEncoder, device: str, tell: Tell) -> bool:
    """Embed shards of the oldest snapshot that has any left; is there one?"""
    for file in sorted((folder / "index").glob(".step-*.partial/plan.json")):
        try:
            build = ShardedBuild(file.parent, _read_plan(file), joins=True)
            snapshot = step_folder(folder / "snapshots", build.plan["step"])
            if snapshot.exists() and build.unwritten():
                encode = load(snapshot, device)
                if file.exists():
                    _check_same(build.plan, corpus, encode)
                _embed_with_others(build, corpus, encode, build.unwritten, tell)
                return True
        except Exception:
            if file.exists():
                raise
            # published, or dropped by a run that goes on from an earlier step: there is nothing more to do
    return False


def _read_plan(file: Path) -> dict[str, Any]:
    try:
        plan = json.loads(file.read_text("utf-8"))
        step_folder(file, plan["step"])
        return dict(plan)
    except (ValueError, KeyError, TypeError) as error:
        again = "end the training and resume it: it will be written again"
        raise ArtefactDamaged(f"{file} is damaged ({type(error).__name__}); {again}") from error


def _check_same(plan: dict[str, Any], corpus: Corpus, encode: Encode) -> None:
    """Refuse to embed other passages than the plan says, or with other weights, or with other rounding."""
    passages = (corpus.fingerprint, corpus.edits, len(corpus))
    if (plan.get("corpus"), plan.get("corpus_edits"), plan["borders"][-1]) != passages:
        given = f"the run embeds another corpus than {corpus.folder}, or another state of it"
        raise Mismatch(f"{given}; name its own: --corpus CORPUS")
    if (plan.get("weights"), plan.get("dim")) != (encode.fingerprint, encode.dim):
        other = "this process reads the snapshot as other weights than the run's own refresher"
        raise Mismatch(f"{other}; install the version of realmlm here that trains")
    if plan.get("device") != encode.device.type:
        here = f"the run's own refresher embeds on {plan.get('device')}, this one on {encode.device.type}"
        raise Mismatch(
            f"{here}: vectors would differ in their last digits; use --device {plan.get('device')}"
        )


# --- the trainer's own --------------------------------------------------------------------------------------


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
            for build in (self.folder / "index").glob(".step-*.partial"):
                if int(build.name[6:14]) > step:
                    discard(build)

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
