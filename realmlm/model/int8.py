"""Weights on disk, as they are or packed: matrices in 8 bits with a scale for each row, or everything in half
precision.

What is packed is widened to float32 when it is read, or at each use. Weights that are equal are stored once;
the file's metadata says which.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

_SCALE = ".scale"
_STRUCTURAL = {
    "__get__",
    "__set__",
    "requires_grad_",
    "data_ptr",
    "is_floating_point",
    "numel",
    "_has_compatible_shallow_copy_type",
}
_packed = ContextVar("packed", default=False)


@contextmanager
def kept_packed() -> Iterator[None]:
    """Weights read within stay in 8 bits as the file has them, mapped, and are widened at each use: for
    answering, not for training.

    An answer is the same to the bit and takes some 3% longer; a model takes a quarter of the memory.
    """
    token = _packed.set(True)
    try:
        yield
    finally:
        _packed.reset(token)


class Packed(Tensor):
    """A float32 matrix held in 8 bits with a scale for each row: a look-up widens the rows it takes, any
    other use all of them.

    Torch sees a matrix of that shape without memory of its own. It reads NaN, so that nothing takes it for
    the weights unnoticed.
    """

    rows_RC: Tensor
    scale_R: Tensor

    @staticmethod
    def of(rows_RC: Tensor, scale_R: Tensor, *, seen: Tensor | None = None) -> "Packed":
        packed = (torch.tensor(torch.nan).expand(rows_RC.shape) if seen is None else seen).as_subclass(Packed)
        packed.rows_RC = rows_RC
        packed.scale_R = scale_R
        return packed

    def wide(self) -> Tensor:
        return self.rows_RC.float() * self.scale_R[:, None]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0]
        kwargs = kwargs or {}
        if func is F.embedding and isinstance(matrix := args[1], Packed):
            return matrix.rows_RC[first].float() * matrix.scale_R[first][..., None]
        if func is torch.equal and all(isinstance(one, Packed) for one in args):
            return torch.equal(first.rows_RC, args[1].rows_RC) and torch.equal(first.scale_R, args[1].scale_R)
        if func in (Tensor.detach, Tensor.to) or func.__name__ in _STRUCTURAL:
            with torch._C.DisableTorchFunctionSubclass():
                seen = func(*args, **kwargs)
            if func is Tensor.detach:
                return Packed.of(first.rows_RC, first.scale_R, seen=seen)
            if func is not Tensor.to or seen is first:  # it lies there already
                return seen
        return func(*(one.wide() if isinstance(one, Packed) else one for one in args), **kwargs)


def write_weights(file: Path, state: dict[str, Tensor], *, dtype: str = "float32") -> None:
    """Write weights: `float32` as they are, `float16` in half precision, `int8` with matrices row by row in 8
    bits."""
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
            packed[name] = (tensor / scale_R[:, None]).round().to(torch.int8)
            packed[name + _SCALE] = scale_R
        else:
            packed[name] = tensor.half() if tensor.ndim > 1 or dtype == "float16" else tensor
    save_file(packed, file, {"same": json.dumps(same)})


def read_weights(file: Path) -> dict[str, Tensor]:
    """All weights under their names, in float32, each in memory of its own unless they are kept packed.

    Raises ValueError for a file that cannot be read.
    """
    try:
        with safe_open(file, "pt") as stored:
            same: dict[str, str] = json.loads((stored.metadata() or {}).get("same", "{}"))
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (it is no dictionary)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    state = {name: _wide(name, tensors) for name in tensors if not name.endswith(_SCALE)}
    return state | {
        name: state[twin] if isinstance(state[twin], Packed) else state[twin].clone()
        for name, twin in same.items()
    }


def _wide(name: str, tensors: dict[str, Tensor]) -> Tensor:
    if name + _SCALE in tensors:
        packed = Packed.of(tensors[name], tensors[name + _SCALE])
        return packed if _packed.get() else packed.wide()
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
