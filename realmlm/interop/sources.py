"""Opens a published checkpoint: a folder or a repository of the hub in transformers' layout, or the authors'
TensorFlow variables."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import BadInput
from realmlm.hub import say_revision, split_revision
from realmlm.interop.layout import ARCHITECTURES, listing
from realmlm.interop.variables import is_tensorflow, read_variables

RECORDS = "block_records.npy"
_SAFE = "model.safetensors"
_TORCH = "pytorch_model.bin"


@dataclass(frozen=True)
class Source:
    """A checkpoint: which of transformers' classes it is of, its weights (memory-mapped), and the tokenizer
    and the passages beside them, if there are any."""

    name: str
    architecture: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    wordpieces: Wordpieces | None
    records: Path | None


def open_source(name: str) -> Source:
    """Open a checkpoint of one of transformers' REALM classes, or of the authors' variables."""
    if is_tensorflow(Path(name)):
        architecture, config, tensors = read_variables(Path(name))
        return Source(name, architecture, config, tensors, _wordpieces(Path(name) / "assets"), None)
    folder = Path(name) if Path(name).is_dir() else _fetch(name)
    config = _read_json(folder / "config.json")
    if config.get("model_type") != "realm":
        raise BadInput(
            f"{name} is a model of the family '{config.get('model_type')}', not REALM; "
            f"take a plain encoder for towers and reader with: realmlm model --checkpoint {name}"
        )
    tensors = _tensors(folder)
    named = config.get("architectures")
    architecture = str(named[0] if isinstance(named, list) and named else named)
    if architecture not in ARCHITECTURES:
        names = ", ".join(ARCHITECTURES)
        raise BadInput(f"{name} says its architecture is {architecture}; known are {names}")
    records = folder / RECORDS if (folder / RECORDS).is_file() else None
    return Source(name, architecture, config, tensors, _wordpieces(folder), records)


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download

    wanted = ["config.json", "*.safetensors", "*.bin", "*.index.json", "tokenizer*", "vocab.txt", RECORDS]
    try:
        repository, revision = split_revision(name)
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=wanted))
    except Exception as error:  # the hub's library raises a dozen kinds, from bad names to no network
        wrong = f"it is neither a folder nor a repository that can be fetched ({_first_line(error)})"
        raise BadInput(f"no checkpoint at '{name}': {wrong}") from error
    say_revision(name, folder.name)
    return folder


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _read_json(file: Path) -> dict[str, Any]:
    try:
        if file.exists() and not file.is_file():
            raise OSError("no plain file")  # a pipe would be waited for
        record = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        wrong = f"{file} cannot be read as JSON ({type(error).__name__})"
        raise BadInput(f"{wrong}; it belongs beside a checkpoint's weights") from error
    if not isinstance(record, dict):
        raise BadInput(f"{file} holds no JSON object; fetch it again")
    return record


def _tensors(folder: Path) -> dict[str, Tensor]:
    """All weights in a folder, from one file or several."""
    for whole, read in ((_SAFE, _read_safe), (_TORCH, _read_torch)):
        if (folder / whole).is_file():
            return read(folder / whole)
        if (folder / f"{whole}.index.json").is_file():
            named = _read_json(folder / f"{whole}.index.json").get("weight_map", {})
            parts = sorted({str(part) for part in named.values()}) if isinstance(named, dict) else []
            if wrong := [part for part in parts if Path(part).name != part]:
                raise BadInput(f"{folder / whole}.index.json names files elsewhere: {listing(wrong)}")
            if not parts:
                raise BadInput(f"{folder / whole}.index.json names no file; fetch it again")
            if lost := [part for part in parts if not (folder / part).is_file()]:  # or a pipe, to wait for
                raise BadInput(f"{folder} lacks {listing(lost)}, which its index names; fetch it again")
            return {key: tensor for part in parts for key, tensor in read(folder / part).items()}
    raise BadInput(f"no weights in {folder}: it has neither {_SAFE} nor {_TORCH}")


def _read_safe(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, "pt") as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (it is no dictionary)
    except (OSError, SafetensorError) as error:
        raise BadInput(f"{file} is not a readable safetensors file ({error}); fetch it again") from error


def _read_torch(file: Path) -> dict[str, Tensor]:
    """The tensors of a file that torch wrote; one that holds anything else is refused, and no code in it is
    run."""
    try:
        with open(file, "rb") as stream:
            zipped = stream.read(2) == b"PK"  # as torch has written since 1.6; older files cannot be mapped
        state = torch.load(file, map_location="cpu", mmap=zipped, weights_only=True)
    except Exception as error:  # torch raises UnpicklingError, RuntimeError, OSError …
        wrong = f"{file} cannot be read as weights only ({_first_line(error)})"
        raise BadInput(f"{wrong}; use a file you trust, or safetensors") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise BadInput(f"{file} holds something else than a table of weights; use the checkpoint's own file")
    return state


def _wordpieces(folder: Path) -> Wordpieces | None:
    """The tokenizer beside the weights: `tokenizer.json`, or BERT's `vocab.txt`."""
    there = any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt"))
    return Wordpieces.load(folder) if there else None
