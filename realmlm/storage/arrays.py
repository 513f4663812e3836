"""Arrays on disk: safetensors files, written row by row and read memory-mapped."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from realmlm.errors import ArtefactDamaged

_DTYPES = {
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "BF16": np.uint16,  # numpy has no bfloat16: the bits, for torch to view
    "F32": np.float32,
    "F64": np.float64,
    "BOOL": np.bool_,
}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items() if name != "BF16"}


class ArrayWriter:
    """A safetensors file of one array that grows by rows, so that nothing larger than a block is ever in
    memory."""

    # bytes kept free for the header, which is known only at the end; JSON may be padded with spaces
    _HEADER = 256

    def __init__(self, file: Path, dtype: Any, *, row: tuple[int, ...] = ()) -> None:
        self.name = file.stem
        self.dtype = np.dtype(dtype)
        self.row = row
        self.rows = 0
        self._stream = open(file, "wb")
        self._stream.write(bytes(8 + self._HEADER))

    def append(self, rows: Any) -> None:
        rows = np.ascontiguousarray(rows, dtype=self.dtype)
        assert rows.shape[1:] == self.row, (rows.shape, self.row)
        self._stream.write(memoryview(rows).cast("B") if rows.size else b"")
        self.rows += len(rows)

    def close(self) -> None:
        shape = [self.rows, *self.row]
        size = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        header = json.dumps(
            {self.name: {"dtype": _NAMES[self.dtype], "shape": shape, "data_offsets": [0, size]}}
        )
        self._stream.seek(0)
        self._stream.write(self._HEADER.to_bytes(8, "little") + header.encode().ljust(self._HEADER))
        self._stream.close()


def save_arrays(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write several arrays into one safetensors file."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, file)


def map_arrays(file: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, memory-mapped: nothing is read until it is used, and nothing can be
    written back."""
    try:
        size = file.stat().st_size
        with open(file, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            # a length that is wrong may be beyond any memory
            header = json.loads(stream.read(min(length, size)))
        header.pop("__metadata__", None)
        expected = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if size != expected:
            raise ValueError(f"{size} bytes instead of {expected}")
        # copy-on-write: torch takes the arrays without a warning, the file stays untouched. The view is the
        # same memory; slicing a plain array costs a third of slicing a memmap
        mapped = np.memmap(file, dtype=np.uint8, mode="c").view(np.ndarray)[8 + length :]
        return {name: _array(mapped, entry) for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtefactDamaged(f"{file} is not a readable safetensors file ({error})") from error


def map_array(file: Path) -> np.ndarray:
    """The one array of a file written by ArrayWriter."""
    (array,) = map_arrays(file).values()
    return array


def _array(mapped: np.ndarray, entry: dict[str, Any]) -> np.ndarray:
    start, end = entry["data_offsets"]
    array: np.ndarray = mapped[start:end].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return array
