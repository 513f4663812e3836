"""The index that a run trains through: swapped for a newer one between steps."""

from pathlib import Path
from typing import Any

import torch

from realmlm.corpus.store import Corpus
from realmlm.device import pick_device
from realmlm.index.build import Embedding, build_index
from realmlm.index.exact import Index
from realmlm.index.refresh import Refresher
from realmlm.index.store import index_info, open_index
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder, load_snapshot, write_snapshot
from realmlm.settings import Loop, Refresh
from realmlm.storage.artefacts import discard
from realmlm.train.run import Run


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
    ) -> None:
        """`frozen` is the index itself where the document tower does not learn: it never ages."""
        self._run = run
        self._model = model
        self._corpus = corpus
        self._every = refresh.every_steps
        self._swap_after = refresh.swap_after
        if self._swap_after is None and refresh.process and loop.deterministic:
            # where the new index comes in must not depend on how fast the refresher was
            self._swap_after = max(1, self._every // 2)
        self._device = model.device
        self._dtype = getattr(torch, refresh.dtype)
        device = self._refresher_device(refresh)
        beside = refresh.process and self._every > 0
        if beside and device == "cpu" and self._device.type == "cpu" and not loop.threads:
            torch.set_num_threads(max(1, torch.get_num_threads() - 1))
        self._refresher = Refresher(
            run.folder,
            corpus,
            load_snapshot,
            device=device,
            dtype=self._dtype,
            process=beside,
            shard=refresh.shard,
        )
        self._in_line = not refresh.process
        self._step = 0  # that the index was made at
        self._pending = -1  # that of the snapshot being embedded, if any
        self._index = frozen
        self._frozen = frozen is not None
        self._swaps = 0
        self._beside = 0

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

    def before_step(self, step: int) -> dict[str, Any]:
        """Swap, ask, and say how old the index is and whether a new one is in the making."""
        if self._index is None:
            self._begin(step)
        if self._every:
            if self._pending >= 0 and self._due(step):
                self._swap(self._pending)
            if step and step % self._every == 0 and self._pending < 0 and self._step != step:
                self._refresher.ask(step, self._snapshot)
                self._pending = step
                if self._in_line:
                    self._swap(step)
        self._beside += self._pending >= 0
        row = {"index_age": 0 if self._frozen else step - self._step}
        if self._every:
            row |= {"swaps": self._swaps, "steps_beside": self._beside}
        return row | ({"restarts": self._refresher.restarts} if self._refresher.restarts else {})

    def _swap(self, step: int) -> None:
        self._open(step)
        self._pending = -1
        self._swaps += 1

    def _begin(self, step: int) -> None:
        """First step of this process: drop what a killed one left beyond it; open its index, or build the
        first."""
        self._refresher.forget_after(step)
        first = self._refresher.index_folder(self._step)
        if step == 0:
            encode = DocumentEncoder.of(self._model)
            if first.exists() and not _fits(first, self._corpus, encode, self._dtype):
                discard(first)
            if not first.exists():
                how = Embedding(dtype=self._dtype)
                build_index(first, self._corpus, encode, how, kind="exact", step=self._step)
        self._open(self._step)
        if self._pending >= 0:
            self._refresher.ask(self._pending, self._snapshot)

    def _due(self, step: int) -> bool:
        if self._swap_after is None:
            return self._refresher.ready(self._pending)
        if step < self._pending + self._swap_after:
            return False
        self._refresher.wait(self._pending)
        return True

    def _snapshot(self, folder: Path) -> None:
        write_snapshot(folder, self._model, step=int(folder.name[5:]))

    def _open(self, step: int) -> None:
        self._index = None  # the old one goes before the new one comes: never two in memory
        place = self._refresher.index_folder(step)
        self._index = open_index(place, device=str(self._device), expect_corpus=self._corpus.fingerprint)
        self._step = step
        saved = [state[name] for state in self._run.kept_objectives() for name in ("index", "pending")]
        self._refresher.keep_only({step, *saved})

    def state(self) -> dict[str, Any]:
        """What a checkpoint must know of the index, as JSON."""
        return {"index": self._step, "pending": self._pending, "swaps": self._swaps, "beside": self._beside}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        self._step = state["index"]
        self._pending = state["pending"]
        self._swaps = state["swaps"]
        self._beside = state["beside"]

    def close(self) -> None:
        """End the refresher."""
        self._refresher.close()


def _fits(index: Path, corpus: Corpus, encode: DocumentEncoder, dtype: torch.dtype) -> bool:
    """Is it the one that would be built? Before the first step a run may be given another model or corpus."""
    info = index_info(index)
    made_of = (info.weights, info.corpus, info.corpus_edits, info.dtype)
    kind = str(dtype).removeprefix("torch.")
    return made_of == (encode.fingerprint, corpus.fingerprint, corpus.edits, kind)
