"""Weights on disk, as they are or packed: matrices in 8 bits with a scale for each row, or everything in half precision.

What is packed is widened to float32 when it is read. Weights that are equal are stored once; the file's metadata says which.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

_SCALE = ".scale"


def write_weights(file: Path, state: dict[str, Tensor], *, dtype: str = "float32") -> None:
    """Write weights: `float32` as they are, `float16` in half precision, `int8` with matrices row by row in 8 bits."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    if dtype == "float32":
        save_file(state, file)
        return
    same = _equal(state)
    packed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name in same:
            continue
        if dtype == "int8" and tensor.ndim == 2:
            scale_R = tensor.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
            packed[name], packed[name + _SCALE] = (tensor / scale_R[:, None]).round().to(torch.int8), scale_R
        else:
            packed[name] = tensor.half() if tensor.ndim > 1 or dtype == "float16" else tensor
    save_file(packed, file, {"same": json.dumps(same)})


def read_weights(file: Path) -> dict[str, Tensor]:
    """All weights under their names, in float32, each in memory of its own. Raises ValueError for a file that cannot be read."""
    try:
        with safe_open(file, "pt") as stored:
            same: dict[str, str] = json.loads((stored.metadata() or {}).get("same", "{}"))
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (it is no dictionary)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    state = {name: _wide(name, tensors) for name in tensors if not name.endswith(_SCALE)}
    return state | {name: state[twin].clone() for name, twin in same.items()}


def _wide(name: str, tensors: dict[str, Tensor]) -> Tensor:
    if name + _SCALE in tensors:
        return tensors[name].float() * tensors[name + _SCALE][:, None]
    return tensors[name].to(torch.float32, copy=True)  # not a view of the file


def _equal(state: dict[str, Tensor]) -> dict[str, str]:
    """Name -> earlier name of the same bits, for matrices."""
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
