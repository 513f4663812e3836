"""The index that a run trains through: swapped for a newer one between steps.

A refresh, seen by the trainer; below the line what a thread does while steps go on:

    step 500    copy the document tower ──╮                   use the index of step 500, drop the old one
    ──────────────────────────────────────┼────────────────────────────────────────────↑─────────────────
    thread                   write the snapshot ··· (the refresher embeds) ··· read its index in, checked
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from realmlm.corpus.store import Corpus
from realmlm.device import pick_device
from realmlm.index.build import Embedding, build_index
from realmlm.index.exact import Index
from realmlm.index.parted import PartedIndex, over_ranks
from realmlm.index.refresh import Refresher, load_considerate
from realmlm.index.store import index_info, open_index
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder, load_snapshot, take_snapshot
from realmlm.parallel import in_background
from realmlm.settings import Loop, Refresh
from realmlm.storage.artefacts import discard
from realmlm.train.asker import Asker
from realmlm.train.refresher import RayRefreshers
from realmlm.train.run import Run

Out = TypeVar("Out")

_LEFT_FREE = 2 * 2**30  # bytes of a GPU's memory that a second index must leave to training


class LiveIndex:
    """Has the index refreshed every so many steps; swaps the new one in when ready, or at a fixed step."""

    def __init__(
        self,
        run: Run,
        model: Realm,
        corpus: Corpus,
        *,
        refresh: Refresh,
        loop: Loop,
        frozen: Index | None = None,
        asked_by_own: bool = False,
    ) -> None:
        """`frozen` is the index itself where the document tower does not learn: it never ages. With
        `asked_by_own`, an index is to be searched by the query tower of the step it was made at."""
        self._run = run
        self._ranks = run.ranks
        self._model = model
        self._corpus = corpus
        self._every = refresh.every_steps
        self._swap_after = refresh.swap_after
        if self._swap_after is None and refresh.process and loop.deterministic:
            # where the new index comes in must not depend on how fast the refresher was
            self._swap_after = max(1, self._every // 2)
        self._device = model.device
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._dtype = getattr(torch, refresh.dtype)
        device = self._refresher_device(refresh)
        beside = refresh.process and self._every > 0
        if beside and device == "cpu" and self._device.type == "cpu" and not loop.threads:
            torch.set_num_threads(max(1, torch.get_num_threads() - 1))
        count = max(1, torch.cuda.device_count())
        training = [_number(self._device), *(("cuda", rank % count) for rank in range(1, self._ranks.local))]
        shared = beside and self._device.type == "cuda" and _number(device) in training
        self._refresher = Refresher(
            run.folder,
            corpus,
            partial(load_considerate, load_snapshot) if shared else load_snapshot,
            device=device,
            dtype=self._dtype,
            process=beside,
            shard=refresh.shard,
        )
        helped = refresh.engine == "ray" and beside and self._ranks.first
        self._helpers = RayRefreshers(run.folder, torch.device(device).type) if helped else None
        self._in_line = not refresh.process
        self._step = 0  # that the index was made at
        self._pending = -1  # that of the snapshot being embedded, if any
        self._writing: Future[None] | None = None  # that snapshot, until it is published
        self._opening: Future[Index] | None = None  # its index, while it is read in and until it is used
        self._index = None if frozen is None else over_ranks(frozen, self._ranks)
        self._frozen = frozen is not None
        self.asker = Asker(model.query) if asked_by_own else None
        """The query tower that belongs to the index, if that is to search."""
        self.still_until = 0.0
        """The document tower does not learn before this step: an index made until then would be the same."""
        self._swaps = 0
        self._steps_refreshing = 0  # made while a snapshot was being embedded
        self._log_every = loop.log_every
        self._stood_still = 0.0  # seconds, since the last row, that training waited for the index

    def _refresher_device(self, refresh: Refresh) -> str:
        if refresh.device != "auto":
            return str(pick_device(refresh.device))
        count = torch.cuda.device_count()
        return f"cuda:{count - 1}" if self._device.type == "cuda" and count > 1 else str(self._device)

    @property
    def index(self) -> Index:
        """The index to search in this step."""
        assert self._index is not None, "before_step opens the index"
        return self._index

    @property
    def swaps(self) -> int:
        """How many indexes were swapped in so far."""
        return self._swaps

    def before_step(self, step: int) -> dict[str, Any]:
        """Swap in a new index if there is one, ask for the next if it is due, and give the row's numbers:
        the index's age in steps, swaps, steps made beside the refresher, seconds that training waited."""
        first = self._index is None
        if first:
            self._begin(step)
        if self._every:
            with self._standing_still():
                self._follow(step)
                if first:  # processes that draw batches are forked in this step: no thread may be at work
                    wait(self._under_way())
        self._steps_refreshing += self._pending >= 0
        row: dict[str, Any] = {"index_age": 0 if self._frozen else self._age(step)}
        if self._every:
            row |= {"swaps": self._swaps, "steps_beside": self._steps_refreshing}
            row["stood_still"] = round(self._stood_still, 4)
            if (step + 1) % self._log_every == 0:  # the row ends with this step
                self._stood_still = 0.0
        return row | ({"restarts": self._refresher.restarts} if self._refresher.restarts else {})

    def _age(self, step: int) -> int:
        """Steps of learning since the document tower was as the index has it."""
        return int(max(0, step - max(self._step, self.still_until)))

    def _under_way(self) -> list[Future[Any]]:
        return [work for work in (self._writing, self._opening) if work is not None]

    @contextmanager
    def _standing_still(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self._stood_still += time.perf_counter() - begun

    def _follow(self, step: int) -> None:
        if self._pending >= 0 and self._due(step):
            self._swap()
        if step % self._every == 0 and self._pending < 0 and step > max(self._step, self.still_until):
            if self.asker is not None:
                self.asker.note(self._model.query)
            self._ask(step)
            if self._in_line:
                self._swap()

    def _begin(self, step: int) -> None:
        """First step of this process: drop what a killed one left beyond it; open its index, or build the
        first."""
        with self._model.whole(), self._ranks.in_turn():
            if self._ranks.first:
                self._refresher.forget_after(step)
                self._build_first(step)
        self._use(self._open(self._step))
        if self._ranks.first:
            self._remove_unused()
        if self._pending >= 0:
            self._ask(self._pending)

    def _build_first(self, step: int) -> None:
        if step:
            return
        first = self._refresher.index_folder(self._step)
        encode = DocumentEncoder.of(self._model, training=True)
        if first.exists() and not _fits(first, self._corpus, encode, self._dtype):
            discard(first)
        if not first.exists():
            how = Embedding(dtype=self._dtype)
            build_index(first, self._corpus, encode, how, kind="exact", step=self._step)

    # --- the snapshot ---------------------------------------------------------------------------------------

    def _ask(self, step: int) -> None:
        """Copy the document tower and have a thread publish the copy for the refresher."""
        self._pending = step
        with self._model.whole():
            if not self._ranks.first or self._refresher.is_asked(step):
                return
            write = take_snapshot(self._model, step=step)

        def remove_and_write() -> None:
            self._remove_unused()
            write(self._refresher.snapshot_folder(step))

        self._writing = self._in_background(remove_and_write)

    def _remove_unused(self) -> None:
        """Remove the indexes that no one refers to, while none is built and no checkpoint is saved."""
        saved = [state[name] for state in self._run.kept_objectives() for name in ("index", "pending")]
        self._refresher.keep_only({self._step, *saved})

    def _written(self, *, waiting: bool) -> bool:
        """Is no snapshot being written? An error of the thread that wrote it ends the run here."""
        if self._writing is None:
            return True
        if not waiting and not self._writing.done():
            return False
        self._writing.result()
        self._writing = None
        return True

    # --- the new index --------------------------------------------------------------------------------------

    def _due(self, step: int) -> bool:
        """Is the new index to be used from this step on? All ranks must have read theirs in."""
        if self._swap_after is not None and step >= self._pending + self._swap_after:
            return True
        read_in = self._is_read_in()
        return self._swap_after is None and self._ranks.all(read_in)

    def _is_read_in(self) -> bool:
        """Is the new index read in, or too large to be so beside the old one? It is as soon as it is
        published."""
        if not self._written(waiting=False):
            return False
        if self._opening is None and self._is_published():
            if not self._has_room():
                return True
            self._opening = self._open(self._pending)
        return self._opening is not None and self._opening.done()

    def _is_published(self) -> bool:
        if self._ranks.first:
            return self._refresher.ready(self._pending)
        return self._refresher.index_folder(self._pending).exists()

    def _has_room(self) -> bool:
        return has_room(self._refresher.index_folder(self._pending), self._device, self._ranks.count)

    def _swap(self) -> None:
        """Use the index of the pending step, waiting for it if it is late."""
        self._written(waiting=True)
        if self._ranks.first:
            self._refresher.wait(self._pending)
        self._ranks.wait()
        if self._opening is None:
            if not self._has_room():
                self._index = None  # the old one goes before the new one comes
            self._opening = self._open(self._pending)
        self._use(self._opening)
        self._opening = None
        if self.asker is not None:
            self.asker.use()
        self._step = self._pending
        self._pending = -1
        self._swaps += 1

    def _open(self, step: int) -> Future[Index]:
        """Read in this rank's part of an index."""
        place = self._refresher.index_folder(step)
        fingerprint = self._corpus.fingerprint
        part = (self._ranks.rank, self._ranks.count)
        return self._in_background(
            lambda: open_index(place, device=self._device, expect_corpus=fingerprint, part=part)
        )

    def _use(self, opening: Future[Index]) -> None:
        part = opening.result()
        self._index = PartedIndex(part, self._ranks) if self._ranks.count > 1 else part

    def _in_background(self, work: Callable[[], Out]) -> Future[Out]:
        """Work beside training: in a thread and, on a GPU, on a stream of its own, which comes after all that
        training has given the GPU so far. What is made is complete when the thread is done."""
        stream = self._stream
        if stream is None:
            return in_background(work)
        stream.wait_stream(torch.cuda.current_stream(self._device))

        def on_stream() -> Out:
            with torch.cuda.stream(stream):
                made = work()
            stream.synchronize()
            return made

        return in_background(on_stream)

    # --- checkpoints ----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint must know of the index, as JSON. The snapshot that it names is published: a run
        that goes on from there could not take it again, its weights are those of a later step."""
        with self._standing_still():
            self._written(waiting=True)
        return {
            "index": self._step,
            "pending": self._pending,
            "swaps": self._swaps,
            "beside": self._steps_refreshing,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        self._step = state["index"]
        self._pending = state["pending"]
        self._swaps = state["swaps"]
        self._steps_refreshing = state["beside"]

    def close(self) -> None:
        """End the refresher, and let the threads end."""
        wait(self._under_way())
        self._refresher.close()
        if self._helpers is not None:
            self._helpers.close()


def has_room(index: Path, device: torch.device, parts: int = 1) -> bool:
    """Does one of the parts of a second index fit into the device's memory? On a CPU an index is a mapped
    file."""
    if device.type == "cpu":
        return True
    info = index_info(index)
    row = info.dim * getattr(torch, info.dtype).itemsize + torch.int64.itemsize
    return bool(torch.cuda.mem_get_info(device)[0] >= info.passages * row // parts + _LEFT_FREE)


def _number(device: torch.device | str) -> tuple[str, int]:
    """A device by type and number: `cuda` is the first GPU."""
    device = torch.device(device)
    return device.type, device.index or 0


def _fits(index: Path, corpus: Corpus, encode: DocumentEncoder, dtype: torch.dtype) -> bool:
    """Is it the one that would be built? Before the first step a run may be given another model or corpus."""
    info = index_info(index)
    made_of = (info.weights, info.corpus, info.corpus_edits, info.dtype)
    kind = str(dtype).removeprefix("torch.")
    return made_of == (encode.fingerprint, corpus.fingerprint, corpus.edits, kind)
