"""How a stage's run begins: with which settings and corpus, and under which name."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from realmlm.corpus.masking import Masking
from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput, Mismatch
from realmlm.model.realm import Realm
from realmlm.settings import Finetune, Pretrain, TrainTowers, Warmup, filled, record
from realmlm.train.run import Run, read_run

AnyStage = TypeVar("AnyStage", Warmup, Pretrain, TrainTowers, Finetune)
_SAME_IN_EVERY_PROCESS = (bool, int, float, str, tuple, type(None))  # as they are written


def with_corpus(settings: AnyStage, corpus: Corpus | None) -> AnyStage:
    """The settings with the folder of the corpus that is given."""
    if corpus is None or settings.corpus == corpus.folder.absolute():
        return settings
    if settings.corpus is not None:
        raise Mismatch(f"the settings name {settings.corpus}, but the corpus given is {corpus.folder}")
    return replace(settings, corpus=corpus.folder)


def named_corpus(settings: Warmup | Pretrain | TrainTowers | Finetune) -> Path:
    """The folder of the corpus that settings must name."""
    if settings.corpus is None:
        raise BadInput("say which corpus: --corpus CORPUS; make one: realmlm corpus notes/ --out CORPUS")
    return settings.corpus


@contextmanager
def begun(
    settings: AnyStage, stage: str, own_names: list[str], model: Realm | None, *, resume: bool
) -> Iterator[Run]:
    """The run of a stage, open in the block. What only Python can give, a class or a model, is part of its
    stage's name: the command line sees that it cannot continue such a run."""
    named_corpus(settings)
    names = [stage, *own_names, *(["a given model"] if model is not None else [])]
    with Run.begin(settings.out, stage=" with ".join(names), settings=settings, resume=resume) as run:
        run.pin_model(model)
        yield run


def name_of(thing: Any) -> str:
    """What a class, a partial of one or an object is called, with what it was given: a run with something
    else is another."""
    given: dict[str, Any] = {}
    if isinstance(thing, partial):
        given = {str(place): value for place, value in enumerate(thing.args)} | thing.keywords
        thing = thing.func
    elif not isinstance(thing, type):
        given = getattr(thing, "__dict__", {})
        thing = type(thing)
    if not isinstance(name := getattr(thing, "__qualname__", None), str):
        raise BadInput(f"an objective is a class, or a partial of one, not {thing!r}")
    shown = (
        f"{name}={value!r}" for name, value in given.items() if isinstance(value, _SAME_IN_EVERY_PROCESS)
    )
    return f"{name}({', '.join(shown)})" if given else name


def names_of_masking(masking: Masking | None) -> list[str]:
    """The name of someone's own masking, if it is one."""
    if masking is None:
        return []
    if isinstance(masking, type) or not all(hasattr(masking, name) for name in ("needs_spans", "choose")):
        raise BadInput(
            f"masking is an object with `needs_spans` and `choose` (docs/own.md), not {masking!r}; one of "
            "realmlm's own is named in the settings"
        )
    return [name_of(masking)]


_SETTINGS_OF_PARTS = {
    "reader": ("model", "masking", "pairing", "pointing", "reader"),
    "retriever": (
        "towers_as_reader",
        "retriever_objective",
        "remove_sentence",
        "scale_lr",
        "retriever",
    ),
}
"""The settings of a warm-up that are those of one of its parts."""


def check_parts(settings: Warmup) -> None:
    """No setting of a finished part of a warm-up may change: its record would not be true."""
    folder = settings.out
    before = filled(Warmup, read_run(folder)["config"])
    now = record(settings)
    for part, names in _SETTINGS_OF_PARTS.items():
        changed = [name for name in names if before[name] != now[name]]
        over = (folder / part / "model").exists() or (part == "reader" and (folder / "retriever").exists())
        if changed and over and not (folder / "model").exists():
            raise BadInput(
                f"the {part}'s part of {folder} is finished, so its settings ({', '.join(changed)}) can no "
                "longer change; resume without them, or start another run with another --out"
            )
