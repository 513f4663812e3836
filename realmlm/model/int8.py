"""Weights on disk in 8 bits, half or full precision, and layers that compute from 8 bits.

In 8 bits a matrix has one scale per row: w[r, c] = rows[r, c] · scale[r]. A model is normally widened to
float32 when it is read. For answering on a CPU it may stay in 8 bits (`hold_int8`): its layers then widen a
matrix at each use, which gives the same bits, takes some 3% longer and a quarter of the memory. Where a CPU
multiplies 8 bits faster, `realmlm.model.quick` computes with them as they are.

R rows, C columns of a matrix.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

_SCALE = ".scale"


class Int8(nn.Module):
    """A matrix in 8 bits in place of a layer's `weight`; state_dict has it widened, under its old name."""

    rows_RC: Tensor
    scale_R: Tensor

    def __init__(self, rows_RC: Tensor, scale_R: Tensor) -> None:
        super().__init__()
        self.register_buffer("rows_RC", rows_RC, persistent=False)
        self.register_buffer("scale_R", scale_R, persistent=False)

    @property
    def weight(self) -> Tensor:
        return self.rows_RC.float() * self.scale_R[:, None]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self.weight
        super()._save_to_state_dict(destination, prefix, keep_vars)


class Int8Linear(Int8):
    """nn.Linear whose matrix stays in 8 bits."""

    def __init__(self, layer: nn.Linear, rows_RC: Tensor, scale_R: Tensor) -> None:
        super().__init__(rows_RC, scale_R)
        self.bias = layer.bias
        self.in_features = layer.in_features
        self.out_features = layer.out_features

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Int8Embedding(Int8):
    """nn.Embedding whose table stays in 8 bits: a look-up widens the rows it takes."""

    def __init__(self, layer: nn.Embedding, rows_RC: Tensor, scale_R: Tensor) -> None:
        super().__init__(rows_RC, scale_R)
        self.num_embeddings = layer.num_embeddings
        self.embedding_dim = layer.embedding_dim

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.rows_RC).float().mul_(self.scale_R[ids][..., None])


def hold_int8(model: nn.Module, matrices: dict[str, tuple[Tensor, Tensor]]) -> set[str]:
    """Let layers of the model compute from these matrices, given by name as (rows, scale).

    Gives the names that were taken over; the others are not of a linear or embedding layer.
    """
    kinds = {nn.Linear: Int8Linear, nn.Embedding: Int8Embedding}
    instead: dict[int, nn.Module] = {}
    taken = set()
    for name, (rows_RC, scale_R) in matrices.items():
        layer = model.get_submodule(name.removesuffix(".weight"))
        for kind, held in kinds.items():
            if isinstance(layer, kind):
                instead[id(layer)] = held(layer, rows_RC, scale_R)
                taken.add(name)
    for part in list(model.modules()):
        for name, child in part._modules.items():  # shared layers stand in several places
            if id(child) in instead:
                part._modules[name] = instead[id(child)]
    return taken


def holds_int8(model: nn.Module) -> bool:
    """Are all linear layers of the model in 8 bits?"""
    return not any(isinstance(part, nn.Linear) for part in model.modules())


def same_weight(first: nn.Module, second: nn.Module) -> bool:
    """Do two layers have the same matrix, bit for bit?"""
    if isinstance(first, Int8) and isinstance(second, Int8):
        return torch.equal(first.rows_RC, second.rows_RC) and torch.equal(first.scale_R, second.scale_R)
    return torch.equal(first.weight, second.weight)  # type: ignore[arg-type]


def named_weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What state_dict has, by name, one tensor at a time: matrices in 8 bits are not all widened at once."""
    owners: dict[str, tuple[nn.Module, str]] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        names = [*part._parameters, *(part._buffers.keys() - part._non_persistent_buffers_set)]
        names += ["weight"] if isinstance(part, Int8) else []
        owners |= {f"{prefix}.{name}" if prefix else name: (part, name) for name in names}
    for name, (part, attribute) in sorted(owners.items()):
        tensor = getattr(part, attribute)
        if tensor is not None:
            yield name, tensor


def write_weights(file: Path, state: dict[str, Tensor], *, dtype: str = "float32") -> None:
    """Write weights: `float32` as they are, `float16` in half precision, `int8` with matrices in 8 bits.

    In a smaller file than float32, matrices that are equal are stored once; its metadata says which.
    """
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    if dtype == "float32":
        save_file(state, file)
        return
    same = _equal(state)
    stored: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name in same:
            continue
        if dtype == "int8" and tensor.ndim == 2:
            scale_R = tensor.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
            stored[name] = (tensor / scale_R[:, None]).round().to(torch.int8)
            stored[name + _SCALE] = scale_R
        else:
            stored[name] = tensor.half() if tensor.ndim > 1 or dtype == "float16" else tensor
    save_file(stored, file, {"same": json.dumps(same)})


def read_weights(file: Path) -> dict[str, Tensor]:
    """All weights by name, in float32, each in memory of its own; ValueError if the file cannot be read."""
    state, matrices = read_int8(file)
    return state | {name: rows_RC.float() * scale_R[:, None] for name, (rows_RC, scale_R) in matrices.items()}


def read_int8(file: Path) -> tuple[dict[str, Tensor], dict[str, tuple[Tensor, Tensor]]]:
    """The same, with matrices in 8 bits apart and as the file has them (rows, scale), memory-mapped."""
    try:
        with safe_open(file, "pt") as stored:
            same: dict[str, str] = json.loads((stored.metadata() or {}).get("same", "{}"))
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    state: dict[str, Tensor] = {}
    matrices: dict[str, tuple[Tensor, Tensor]] = {}
    for name in [*(name for name in tensors if not name.endswith(_SCALE)), *same]:
        twin = same.get(name, name)
        if twin + _SCALE in tensors:
            matrices[name] = (tensors[twin], tensors[twin + _SCALE])
        else:
            state[name] = tensors[twin].to(torch.float32, copy=True)  # not a view of the file
    return state, matrices


def _equal(state: dict[str, Tensor]) -> dict[str, str]:
    """The matrices that equal an earlier one bit for bit: name -> that one's name."""
    same: dict[str, str] = {}
    seen: dict[tuple[tuple[int, ...], bytes], str] = {}
    for name, tensor in state.items():
        if tensor.ndim < 2:
            continue
        key = (tuple(tensor.shape), tensor.flatten()[:64].numpy().tobytes())
        twin = seen.setdefault(key, name)
        if twin != name and torch.equal(state[twin], tensor):
            same[name] = twin
    return same
