"""Reads the authors' TensorFlow checkpoints, with their variables under the names of transformers' layout.

The names of pre-trained and of fine-tuned embedders begin with a different number of `module/`; what follows
is BERT's.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from realmlm.errors import BadInput, require
from realmlm.interop.layout import BLOCKS

_OPTIMIZER = re.compile(
    r"(^|/)(adam_[mv]|AdamWeightDecayOptimizer\w*|global_step|beta[12]_power|Adam\w*)(/|$)"
)
_READER = {
    "reader/dense_1/": "reader/qa_outputs/dense_output/",
    "reader/dense/": "reader/qa_outputs/dense_intermediate/",
    "reader/layer_normalization/": "reader/qa_outputs/layer_normalization/",
    "reader/module/bert/": "reader/realm/",
    "reader/module/cls/": "reader/cls/",
}
_EMBEDDER = {"bert/": "realm/", "LayerNorm/": "cls/LayerNorm/", "dense/": "cls/dense/", "cls/": "cls/"}


def is_tensorflow(place: Path) -> bool:
    """Is it the prefix of a checkpoint (`model.ckpt-1000`), or a module's folder with `variables/` in it?"""
    return _prefix(place) is not None


def _prefix(place: Path) -> Path | None:
    place = place.resolve()
    candidates = (place, place / "variables" / "variables")
    return next((path for path in candidates if path.with_name(path.name + ".index").is_file()), None)


def read_variables(place: Path) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """Architecture, config and weights of a checkpoint as transformers would have them; the config's sizes
    are those of the weights."""
    tensorflow = require("tensorflow", extra="tensorflow", why="reading the authors' checkpoints")
    try:
        reader = tensorflow.train.load_checkpoint(str(_prefix(place)))
        names = list(reader.get_variable_to_shape_map())
    except Exception as error:  # TensorFlow's own kinds
        wrong = f"{place} cannot be read as a TensorFlow checkpoint ({type(error).__name__})"
        raise BadInput(f"{wrong}; fetch it again") from error
    variables = {name: reader.get_tensor(name) for name in names if their_key(name) is not None}
    return translate(variables, name=str(place))


def translate(
    variables: dict[str, np.ndarray], *, name: str
) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """What `read_variables` gives, from arrays; errors name the checkpoint `name`."""
    tensors: dict[str, Tensor] = {}
    for variable, array in variables.items():
        if (key := their_key(variable)) is not None:
            matrix = variable.endswith("/kernel")
            tensors[key] = torch.from_numpy(np.ascontiguousarray(array.T if matrix else array))
    has_reader = any(key.startswith("reader.") for key in tensors)
    has_embedder = any(key.startswith("embedder.") for key in tensors)
    if not (has_reader or has_embedder or "realm.embeddings.word_embeddings.weight" in tensors):
        raise BadInput(f"{name} holds no variables of REALM: neither an embedder nor a reader nor BERT")
    if has_embedder and has_reader:
        return "RealmForOpenQA", _config(tensors, name), tensors
    alone = "RealmReader" if has_reader else "RealmEmbedder" if has_embedder else "RealmKnowledgeAugEncoder"
    bare = {key.removeprefix("reader.").removeprefix("embedder."): tensor for key, tensor in tensors.items()}
    return alone, _config(bare, name), bare


def their_key(variable: str) -> str | None:
    """The name of a variable in RealmForOpenQA's layout, without a prefix if it is of a pre-trained encoder
    (`bert/…`, `cls/…`); None if it is no weight of REALM."""
    # seq_relationship is BERT's other head, which REALM does not use
    if _OPTIMIZER.search(variable) or "cls/seq_relationship/" in variable:
        return None
    if variable == BLOCKS:
        return variable
    path = variable
    if path.startswith("reader/"):
        path = _renamed(path, _READER)
    elif path.startswith("module/"):
        path = "embedder/" + _renamed(re.sub(r"^(module/)+", "", path), _EMBEDDER)
    elif path.startswith("bert/"):
        path = "realm/" + path.removeprefix("bert/")
    *scopes, last = path.split("/")
    scopes = [re.sub(r"^layer_(\d+)$", r"layer.\1", scope) for scope in scopes]
    if last.endswith("_embeddings"):
        return ".".join([*scopes, last, "weight"])
    endings = {"kernel": "weight", "gamma": "weight", "beta": "bias", "output_bias": "bias"}
    return ".".join([*scopes, endings.get(last, last)])


def _renamed(path: str, prefixes: dict[str, str]) -> str:
    """The path with the first of these prefixes that it has replaced."""
    return next((new + path.removeprefix(old) for old, new in prefixes.items() if path.startswith(old)), path)


def _config(tensors: dict[str, Tensor], name: str) -> dict[str, Any]:
    """The settings that the shapes of the weights tell; a head is 64 wide, as in every BERT."""
    words = "realm.embeddings.word_embeddings.weight"
    prefix = next((prefix for prefix in ("", "reader.", "embedder.") if prefix + words in tensors), None)
    if prefix is None:
        needed = "a checkpoint of embedder, encoder or reader is needed"
        raise BadInput(f"{name} has no word embeddings; {needed}")

    def rows(key: str) -> int:
        if f"{prefix}{key}" not in tensors:
            raise BadInput(f"{name} lacks the variable behind {prefix}{key}")
        return len(tensors[f"{prefix}{key}"])

    vocabulary, hidden = tensors[prefix + words].shape
    found = (re.search(r"realm\.encoder\.layer\.(\d+)\.", key) for key in tensors)
    layers = [int(match[1]) for match in found if match]
    config = {
        "model_type": "realm",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": max(layers, default=-1) + 1,
        "num_attention_heads": max(1, hidden // 64),
        "intermediate_size": rows("realm.encoder.layer.0.intermediate.dense.weight"),
        "max_position_embeddings": rows("realm.embeddings.position_embeddings.weight"),
        "type_vocab_size": rows("realm.embeddings.token_type_embeddings.weight"),
    }
    for key, tensor in tensors.items():
        if key.endswith("cls.dense.weight"):
            config["retriever_proj_size"] = len(tensor)
        elif key.endswith("qa_outputs.dense_intermediate.weight"):
            config["span_hidden_size"] = len(tensor) // 2
        elif key == BLOCKS:
            config["num_block_records"] = len(tensor)
    return config
