"""A run on disk, with all state in its checkpoints: a killed run goes on exactly where it was.

RUN/run.json            stage and settings
RUN/metrics.jsonl       one row of numbers every few steps
RUN/checkpoints/        step-00000500/ …, the newest two, artefacts
RUN/snapshots/, index/  what trainer and refresher hand each other (realmlm.index.refresh)
RUN/model/              the model, when the run has ended
"""

import random
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import Timeout
from safetensors.torch import load_file, save_file
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.device import torch_as_it_was
from realmlm.errors import ArtefactDamaged, ArtefactMissing, BadInput, Mismatch, RealmError
from realmlm.log import read_metrics, say
from realmlm.model.fingerprint import fingerprint_of
from realmlm.model.realm import Realm
from realmlm.ranks import ALONE, Ranks
from realmlm.settings import Settings, filled, record
from realmlm.storage.artefacts import (
    discard,
    is_temporary,
    open_artefact,
    publish,
    read_manifest,
    read_record,
    sha256_of,
    sweep,
    write_record,
)
from realmlm.storage.locks import lock_on

KEEP = 2  # checkpoints
TENSORS = ("weights", "optimizer", "generators")  # of a checkpoint, each in a file of its own


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
    """A run's folder, held by one process at a time, or by ranks of which the first alone writes."""

    def __init__(self, folder: Path, ranks: Ranks = ALONE) -> None:
        self.folder = folder
        self.ranks = ranks
        self._new = False
        self._whole: Run | None = None  # the run that this one is a part of
        self._process = ExitStack()
        self._amended: dict[str, Any] | None = None  # a record that the first step makes the run's own
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock_on(folder / ".lock")
        if not ranks.first:
            return
        try:
            self._lock.acquire(blocking=False)
        except Timeout as error:
            raise RealmError(
                f"another process is training in {folder}; wait for it, stop it, or choose another --out"
            ) from error

    @classmethod
    def begin(cls, folder: Path, *, stage: str, settings: Settings | None, resume: bool = False) -> "Run":
        """Start a run, or go on with one that was begun with the same settings.

        With `resume` the settings may differ, if its record stays true; they become its own with the next
        step.
        """
        ranks = Ranks.join()
        with ranks.in_turn():
            return cls._begun(Path(folder), stage, settings, resume, ranks)

    @classmethod
    def _begun(cls, folder: Path, stage: str, settings: Settings | None, resume: bool, ranks: Ranks) -> "Run":
        record_now = {"stage": stage, "config": record(settings) if settings else {}}
        if (folder / "run.json").exists():
            before = read_run(folder)
            if before.get("stage") != stage:
                raise Mismatch(
                    f"{folder} holds another run ('{before.get('stage')}', not '{stage}'); continue it by "
                    "the "
                    "call or command that began it, or choose another --out"
                )
            if not _is_same(before, record_now, settings):
                if not resume or settings is None:
                    other = f"{folder} holds another run; continue that one with --resume {folder}"
                    raise Mismatch(f"{other}, or choose another --out")
                _check_amended(folder, before["config"], settings)
            run = cls(folder, ranks)
            if not ranks.first:
                return run
            run._amended = record_now if resume and before["config"] != record_now["config"] else None
            for place in (folder, folder / "checkpoints"):
                sweep(place)
            return run
        # one that was killed before its record stood has left a lock and, at most, a part of the record
        left = (path for path in folder.glob("*") if path.name != ".lock" and not is_temporary(path))
        if any(left):
            raise BadInput(f"{folder} exists and is not a run; choose another --out")
        run = cls(folder, ranks)
        write_run(folder, **record_now)
        run._new = True
        return run

    def part(self, name: str, *, stage: str) -> "Run":
        """A run within this one, in a folder of its own."""
        part = Run.begin(self.folder / name, stage=stage, settings=None)
        part._whole = self
        return part

    def stepped(self) -> None:
        """A step was made: settings that were amended are the run's own now."""
        if self._amended is not None:
            former = read_run(self.folder)
            begun = {"until": max(self.checkpoints(), default=0), "config": former["config"]}
            write_run(self.folder, **self._amended, before=[*former.get("before", ()), begun])
            self._amended = None
        if self._whole is not None:
            self._whole.stepped()

    def open_corpus(self, corpus: Path | Corpus, *, spans: bool = False) -> Corpus:
        """A corpus as it was when the run began, without later edits: a resumed run goes on with the same.
        With `spans` the spans marked in it must be the same too."""
        with self.ranks.in_turn():
            return self._opened(corpus, spans=spans)

    def _opened(self, corpus: Path | Corpus, *, spans: bool) -> Corpus:
        place = (corpus.folder if isinstance(corpus, Corpus) else corpus).absolute()
        base = Corpus.open(place, edits=0)
        self._pin(f"{place}/manifest.json", base.fingerprint, f"{place} was rebuilt")
        edits = read_pins(self.folder).get(str(place), corpus.edits if isinstance(corpus, Corpus) else None)
        opened = Corpus(base.folder, base.manifest, edits)
        self._pin(str(place), opened.edits, f"{place} was edited")
        if spans and (place / "spans").exists():
            marked = read_manifest(place / "spans", kind="spans").fingerprint
            self._pin(f"{place}/spans", marked, f"the spans of {place} were marked again")
        return opened

    def pin_file(self, file: Path | None) -> None:
        """Refuse to go on if the file has changed since the run began; a missing one is for its reader to
        refuse."""
        if file is not None and file.exists():
            self._pin(str(file), sha256_of(file), f"{file} was changed")

    def pin_model(self, model: Realm | None) -> None:
        """A model that was given as an object: a run that goes on must be given an equal one."""
        if model is not None:
            fingerprint = fingerprint_of(model, asdict(model.config))
            if not self._holds(model):
                load = "the model that is given has changed (training goes on in it: give it loaded afresh)"
                self._pin("given model", fingerprint, load)

    def _holds(self, model: Realm) -> bool:
        """Is this the model of the newest checkpoint, of the run or a part of it? So it is where a run was
        stopped and the same program begins it again."""
        own = model.own_state()
        for place in (self.folder, self.folder / "reader", self.folder / "retriever"):
            checkpoint = newest_checkpoint(place)
            if checkpoint and all(
                name in checkpoint.weights and torch.equal(weight.cpu(), checkpoint.weights[name])
                for name, weight in own.items()
            ):
                return True
        return False

    def _pin(self, name: str, value: int | str, otherwise: str) -> None:
        """Note down what the run begins with; a run that goes on must find the same."""
        pins = read_pins(self.folder)
        if pins.get(name, value) != value:
            raise Mismatch(
                f"{otherwise} since {self.folder} began; restore it, or start another run with another --out"
            )
        if name not in pins and self.ranks.first:
            write_record(self.folder / "corpora.json", {"pins": pins | {name: value}})

    @property
    def stage(self) -> str:
        """What the run does, as it was begun."""
        return str(read_run(self.folder)["stage"])

    @property
    def finished(self) -> bool:
        """Is its model written?"""
        return is_finished(self.folder)

    def checkpoints(self) -> list[int]:
        """The steps of its checkpoints, ascending."""
        return _steps(self.folder)

    def _place(self, step: int) -> Path:
        return _place(self.folder, step)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint and drop all but the newest; gives its place."""
        place = self._place(checkpoint.step)
        if checkpoint.step in self.checkpoints():
            return place
        with publish(place, kind="checkpoint") as draft:
            for name in TENSORS:
                tensors = getattr(checkpoint, name)
                stored = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
                save_file(stored, draft.path / f"{name}.safetensors")
            draft.config = {"step": checkpoint.step, "objective": checkpoint.objective, "row": checkpoint.row}
        for step in self.checkpoints()[:-KEEP]:
            discard(self._place(step))
        return place

    def newest(self) -> Checkpoint | None:
        """The newest sound checkpoint, and none after it any more; None before the first."""
        with self.ranks.in_turn():
            found = newest_checkpoint(self.folder)
            if found is not None and self.ranks.first:
                for step in self.checkpoints():
                    if step > found.step:  # its step will be written again
                        discard(self._place(step))
        return found

    def kept_objectives(self) -> list[dict[str, Any]]:
        """The objective's state in each checkpoint: which index versions they need, for one."""
        places = map(self._place, self.checkpoints())
        return [read_manifest(place, kind="checkpoint").config["objective"] for place in places]

    def tidy(self) -> None:
        """Once the model is written nothing of this is needed any more."""
        for name in ("checkpoints", "snapshots", "index"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def close(self) -> None:
        """Let other processes have the folder."""
        self._lock.release()

    def __enter__(self) -> "Run":
        self._process.enter_context(torch_as_it_was())  # a stage sets threads and modes for itself alone
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Let the folder go. Of a finished run only model and metrics stay, of one that failed before any
        work, if it is new, nothing."""
        self._process.close()
        if kind is None and self.ranks.first and (self.folder / "model").exists():
            self.tidy()
        if self._new and not _has_worked(self.folder) and kind is not None and issubclass(kind, RealmError):
            shutil.rmtree(self.folder)
        self.close()
        if kind is None:
            self.ranks.wait()  # none may be gone while another has something to do


def _steps(run: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*"))


def _place(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def newest_checkpoint(run: Path) -> Checkpoint | None:
    """The newest checkpoint in a run's folder that is sound; None before the first. A damaged one is passed
    over, which is said, if there is an earlier one."""
    earlier = _steps(run)
    while earlier:
        step = earlier.pop()
        try:
            return _read(_place(run, step))
        except (ArtefactDamaged, ArtefactMissing) as error:
            if not earlier:
                raise
            say(f"{error}; going on from step {earlier[-1]} instead")
    return None


def _read(folder: Path) -> Checkpoint:
    manifest = open_artefact(folder, kind="checkpoint")
    tensors = {name: load_file(folder / f"{name}.safetensors") for name in TENSORS}
    config = {"row": {}} | manifest.config  # an older checkpoint has no row
    return Checkpoint(step=config["step"], objective=config["objective"], row=config["row"], **tensors)


def _check_amended(folder: Path, before: dict[str, Any], settings: Settings) -> None:
    """Once a run has learned, only how it goes on may change: else its record would not be true."""
    if is_finished(folder):
        further = f"start another run with --model {folder}/model"
        raise BadInput(f"{folder} is finished; to train further, {further}")
    before = filled(type(settings), before)
    now = record(settings)
    changed = [name for name in settings.fixed_once_trained() if before[name] != now[name]]
    changed += ["loop.seed"] * (before["loop"]["seed"] != now["loop"]["seed"])
    if changed and _has_learned(folder):
        raise BadInput(
            f"{folder} has already trained with other settings ({', '.join(changed)}); resume without them, "
            "or start another run with another --out"
        )


def is_finished(folder: Path) -> bool:
    """Is the model of the run in this folder written?"""
    return (folder / "model" / "manifest.json").exists()


def _has_learned(folder: Path) -> bool:
    """Is there anything of its steps? What a probe measured before the first is not."""
    rows = (row for file in folder.rglob("metrics.jsonl") for row in read_metrics(file))
    return any(row.get("step") for row in rows) or any(folder.rglob("checkpoints/step-*"))


def _has_worked(folder: Path) -> bool:
    """Has it come as far as its loop, or an index?"""
    return any(any(folder.rglob(name)) for name in ("metrics.jsonl", "step-*"))


def _is_same(before: dict[str, Any], now: dict[str, Any], settings: Settings | None) -> bool:
    if before == now:
        return True
    try:  # begun before some of the settings existed?
        return before["stage"] == now["stage"] and filled(type(settings), before["config"]) == now["config"]
    except (KeyError, TypeError, ValueError):  # damaged, or of another version
        return False


def write_run(
    folder: Path, *, stage: str, config: dict[str, Any], before: Sequence[dict[str, Any]] = ()
) -> None:
    """Note stage and config down; `before`: the configs that a run which went on with others had, each with
    the step `until` which."""
    others = {"before": list(before)} if before else {}
    write_record(Path(folder) / "run.json", {"stage": stage, "config": config, **others})


def read_run(folder: Path) -> dict[str, Any]:
    """Stage and config of a run, and those `before`, if it went on with others."""
    file = Path(folder) / "run.json"
    if not file.exists():
        raise ArtefactMissing(
            f"no run to resume in {folder}: {file} cannot be read (there is none); give the --out of an "
            "earlier run"
        )
    try:
        record = read_record(file)
        if record.keys() - {"before"} != {"stage", "config"} or not isinstance(record["config"], dict):
            raise ValueError("it does not say stage and config")
        if not isinstance(record.get("before", []), list):
            raise ValueError("what was before is no list")
    except ValueError as error:
        raise ArtefactDamaged(f"{file} is damaged ({error}); restore it, or start a new run") from error
    return record


def read_pins(folder: Path) -> dict[str, Any]:
    """What a run began with (docs/formats.md); empty before it has noted anything down."""
    file = folder / "corpora.json"
    if not file.exists():
        return {}
    try:
        record = read_record(file)
        # older releases wrote the pins alone
        pins = record["pins"] if record.keys() == {"pins"} else record
        if (
            not pins
            or not isinstance(pins, dict)
            or not all(type(pin) in (int, str) for pin in pins.values())
        ):
            raise ValueError("it says what cannot be")
    except ValueError as error:
        raise ArtefactDamaged(f"{file} is damaged ({error}); restore it, or start a new run") from error
    return pins


def generator_state() -> dict[str, Tensor]:
    """The generators that a step draws from; data is drawn by (seed, position) instead."""
    state = {"torch": torch.get_rng_state()}
    for number in range(torch.cuda.device_count()):
        state[f"cuda{number}"] = torch.cuda.get_rng_state(number)
    return state


def load_generator_state(state: dict[str, Tensor]) -> None:
    """Take up what `generator_state` gave."""
    torch.set_rng_state(state["torch"])
    for number in range(torch.cuda.device_count()):
        if f"cuda{number}" in state:
            torch.cuda.set_rng_state(state[f"cuda{number}"], number)


def seed_everything(seed: int) -> None:
    """Seed the generators of torch, numpy and Python in this process."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
