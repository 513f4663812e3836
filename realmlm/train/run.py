"""A run on disk: its config, its metrics, and checkpoints with all state, so that a killed run goes on
exactly where it was.

RUN/run.json            stage and config
RUN/metrics.jsonl       one row of numbers every few steps
RUN/checkpoints/        step-00000500/ …, artefacts; the newest two are kept
RUN/snapshots/, index/  what trainer and refresher hand each other (realmlm.index.refresh)
RUN/model/              the model, when the run has ended
"""

import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import Timeout
from safetensors.torch import load_file, save_file
from torch import Tensor

from realmlm.config import STAGES, filled
from realmlm.corpus.store import Corpus
from realmlm.errors import ArtefactMissing, BadInput, Mismatch, RealmError
from realmlm.log import read_metrics
from realmlm.storage.artefacts import (
    discard,
    open_artefact,
    publish,
    read_manifest,
    sha256_of,
    sweep,
    write_text,
)
from realmlm.storage.locks import lock_on

KEEP = 2

# The parts of a warm-up: what is there when a part is over, and the settings that are its own.
_PARTS = {
    "reader": (("reader/model", "retriever"), ("model", "masking", "pairing", "pointing", "reader")),
    "retriever": (("retriever/model",), ("towers_as_reader", "remove_sentence", "retriever")),
}

# What may change on the way, beside how weights move, the index follows and the loop runs.
_GOES_ON = ("out", "probe", "probe_every")


@dataclass(frozen=True)
class Checkpoint:
    """All state of a training run between two steps."""

    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    generators: dict[str, Tensor]
    objective: dict[str, Any]
    row: dict[str, Any]


class Run:
    """A run's folder, held by one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._new = False
        self._config: dict[str, Any] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock_on(folder / ".lock")
        try:
            self._lock.acquire(blocking=False)
        except Timeout as error:
            raise RealmError(
                f"another process is training in {folder}; wait for it, stop it, or choose another --out"
            ) from error

    @classmethod
    def begin(cls, folder: Path, *, stage: str, config: dict[str, Any]) -> "Run":
        """Start a run, or go on with one that was begun with the same config (its first checkpoint not yet
        written included)."""
        folder = Path(folder)
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise BadInput(
                "training uses one process so far: leave out torchrun; --refresh.device gives the refresher "
                "its own GPU"
            )
        if (folder / "run.json").exists():
            if not _is_same(_amended.get(folder) or read_run(folder), stage, config):
                raise Mismatch(
                    f"{folder} holds another run; continue that one with --resume {folder}, or choose "
                    "another --out"
                )
            run = cls(folder)
            run._config = config
            for place in (folder, folder / "checkpoints"):
                sweep(place)
            return run
        if folder.exists() and any(path.name != ".lock" for path in folder.iterdir()):
            raise BadInput(f"{folder} exists and is not a run; choose another --out")
        run = cls(folder)
        write_run(folder, stage=stage, config=config)
        run._config = config
        run._new = True
        return run

    def open_corpus(self, folder: Path) -> Corpus:
        """A corpus as it was when the run began: edits made since are left out, so that a resumed run goes on
        with what it knew."""
        place = Path(folder).absolute()  # as --resume names it, whatever folder it is called from
        base = Corpus.open(folder, edits=0)
        self._pin(f"{place}/manifest.json", base.fingerprint, f"{folder} was rebuilt")
        corpus = Corpus(base.folder, base.manifest, self._pins().get(str(place)))
        self._pin(str(place), corpus.edits, f"{folder} was edited")
        if self._masks_spans_of(place):
            spans = read_manifest(place / "spans", kind="spans").fingerprint
            self._pin(f"{place}/spans", spans, f"the spans of {folder} were marked again")
        return corpus

    def pin_file(self, file: Path | None) -> None:
        """A file that must say the same whenever the run goes on. (One that is missing is refused by whoever
        reads it.)"""
        if file is not None and Path(file).exists():
            self._pin(str(Path(file).absolute()), sha256_of(Path(file)), f"{file} was changed")

    def _pins(self) -> dict[str, Any]:
        pins = self.folder / "corpora.json"
        return dict(json.loads(pins.read_text("utf-8"))) if pins.exists() else {}

    def _pin(self, name: str, value: int | str, otherwise: str) -> None:
        """Note down what the run begins with; a run that goes on must find the same."""
        known = self._pins()
        if known.get(name, value) != value:
            raise Mismatch(
                f"{otherwise} since {self.folder} began; restore it, or start another run with another --out"
            )
        if name not in known:
            write_text(self.folder / "corpora.json", json.dumps(known | {name: value}) + "\n")

    def _masks_spans_of(self, corpus: Path) -> bool:
        """Are the marked spans of this corpus what is masked from here on?"""
        source = self._config.get("text") or self._config.get("corpus")
        reader = self._config.get("reader")
        if (
            self._config.get("masking") != "salient"
            or str(corpus) != source
            or not (corpus / "spans").exists()
        ):
            return False
        return reader is None or (reader["steps"] > 0 and not (self.folder / "reader" / "model").exists())

    @property
    def finished(self) -> bool:
        return (self.folder / "model" / "manifest.json").exists()

    def checkpoints(self) -> list[int]:
        return sorted(int(path.name[5:]) for path in (self.folder / "checkpoints").glob("step-*"))

    def _place(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step-{step:08d}"

    def save(self, checkpoint: Checkpoint) -> None:
        if checkpoint.step in self.checkpoints():
            return
        with publish(self._place(checkpoint.step), kind="checkpoint") as draft:
            for name in ("weights", "optimizer", "generators"):
                tensors = getattr(checkpoint, name)
                save_file(
                    {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()},
                    draft.path / f"{name}.safetensors",
                )
            draft.config = {"step": checkpoint.step, "objective": checkpoint.objective, "row": checkpoint.row}
        for step in self.checkpoints()[:-KEEP]:
            discard(self._place(step))

    def newest(self) -> Checkpoint | None:
        steps = self.checkpoints()
        if not steps:
            return None
        folder = self._place(steps[-1])
        manifest = open_artefact(folder, kind="checkpoint")
        parts = {
            name: load_file(folder / f"{name}.safetensors") for name in ("weights", "optimizer", "generators")
        }
        row = manifest.config.get("row", {})  # an older checkpoint has none
        return Checkpoint(
            step=manifest.config["step"], objective=manifest.config["objective"], row=row, **parts
        )

    def kept_objectives(self) -> list[dict[str, Any]]:
        """What the kept checkpoints say of their objective: which index versions they need, for one."""
        return [
            read_manifest(self._place(step), kind="checkpoint").config["objective"]
            for step in self.checkpoints()
        ]

    def tidy(self) -> None:
        """Once the model is written nothing of this is needed any more."""
        for name in ("checkpoints", "snapshots", "index"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Let the folder go. Of a run whose model is written only that and the metrics stay; its refresher
        has ended by now. One that this call began and that failed before any work was done leaves nothing
        behind."""
        if kind is None and (self.folder / "model").exists():
            self.tidy()
        if self._new and not _has_worked(self.folder) and kind is not None and issubclass(kind, RealmError):
            shutil.rmtree(self.folder)
        self.close()


_amended: dict[Path, dict[str, Any]] = {}  # by run, the settings it goes on with


@contextmanager
def amended(folder: Path, *, stage: str, config: dict[str, Any]) -> Iterator[None]:
    """While it is entered, the run goes on with the settings that flags beside --resume changed;
    `note_amended` notes them down."""
    folder, known = Path(folder), read_run(folder)["config"]
    if known != config:
        if (folder / "model" / "manifest.json").exists():
            raise BadInput(
                f"{folder} is finished; to train further, start another run with --model {folder}/model"
            )
        known = filled(STAGES[stage], known)
        if stage == "warmup":
            _check_parts(folder, known, config)
        _check_learned(folder, known, config)
        _amended[folder] = {"stage": stage, "config": config}
    try:
        yield
    finally:
        _amended.pop(folder, None)


def note_amended() -> None:
    """A step was made with the settings that flags changed: they are the run's own now."""
    while _amended:
        folder, known = _amended.popitem()
        write_run(folder, **known)


def _check_learned(folder: Path, known: dict[str, Any], config: dict[str, Any]) -> None:
    """Once a run learns, only how it goes on may change: else the record would tell of the first steps what
    did not happen."""
    fixed = [name for name, value in config.items() if name not in _GOES_ON and not isinstance(value, dict)]
    changed = [name for name in fixed if known[name] != config[name]]
    changed += ["loop.seed"] * (known["loop"]["seed"] != config["loop"]["seed"])
    if changed and _has_learned(folder):
        raise BadInput(
            f"{folder} has already trained with other settings ({', '.join(changed)}); resume without them, "
            "or start another run with another --out"
        )


def _has_learned(folder: Path) -> bool:
    """Is there anything of its steps? What a probe measured before the first is not."""
    rows = (row for file in folder.rglob("metrics.jsonl") for row in read_metrics(file))
    return any(row.get("step") for row in rows) or any(folder.rglob("checkpoints/step-*"))


def _has_worked(folder: Path) -> bool:
    """Has it come as far as its loop, or an index?"""
    return any(any(folder.rglob(name)) for name in ("metrics.jsonl", "step-*"))


def _check_parts(folder: Path, known: dict[str, Any], config: dict[str, Any]) -> None:
    """No setting of a part of a warm-up that is over may change: the record would tell what did not
    happen."""
    for part, (signs, settings) in _PARTS.items():
        changed = [name for name in settings if known[name] != config[name]]
        if changed and any((folder / sign).exists() for sign in signs):
            raise BadInput(
                f"the {part}'s part of {folder} is finished, so its settings ({', '.join(changed)}) can no "
                "longer change; "
                "resume without them, or start another run with another --out"
            )


def _is_same(known: dict[str, Any], stage: str, config: dict[str, Any]) -> bool:
    if known == {"stage": stage, "config": config}:
        return True
    try:  # begun before some of the settings existed?
        return known["stage"] == stage and filled(STAGES[stage], known["config"]) == config
    except (KeyError, TypeError, ValueError):  # damaged, or of another version
        return False


def write_run(folder: Path, *, stage: str, config: dict[str, Any]) -> None:
    """Note stage and config down."""
    write_text(Path(folder) / "run.json", json.dumps({"stage": stage, "config": config}, indent=1) + "\n")


def read_run(folder: Path) -> dict[str, Any]:
    """Stage and config of a run."""
    try:
        return dict(json.loads((Path(folder) / "run.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ArtefactMissing(
            f"no run to resume in {folder}: {folder}/run.json cannot be read ({type(error).__name__}); give "
            "the --out of an earlier run"
        ) from error


def generator_state() -> dict[str, Tensor]:
    """Every generator that a step draws from. Data is drawn by (seed, position), and a step's position is
    known from its number."""
    state = {"torch": torch.get_rng_state()}
    for number in range(torch.cuda.device_count()):
        state[f"cuda{number}"] = torch.cuda.get_rng_state(number)
    return state


def load_generator_state(state: dict[str, Tensor]) -> None:
    torch.set_rng_state(state["torch"])
    for number in range(torch.cuda.device_count()):
        if f"cuda{number}" in state:
            torch.cuda.set_rng_state(state[f"cuda{number}"], number)


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
