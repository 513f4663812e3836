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
    """Writes one array into a safetensors file, some rows at a time, so that it need never be in memory."""

    _HEADER = 256  # bytes reserved for the header, whose shape is known only at the end; padded with spaces

    def __init__(self, file: Path, dtype: Any, *, row: tuple[int, ...] = ()) -> None:
        self.name = file.stem
        self.dtype = np.dtype(dtype)
        self.row = row
        self.rows = 0
        self._stream = open(file, "wb")
        self._stream.write(bytes(8 + self._HEADER))

    def append(self, rows: Any) -> None:
        """Write these rows after those written before."""
        rows = np.ascontiguousarray(rows, dtype=self.dtype)
        assert rows.shape[1:] == self.row, (rows.shape, self.row)
        self._stream.write(memoryview(rows).cast("B") if rows.size else b"")
        self.rows += len(rows)

    def close(self) -> None:
        """Write the header; until then the file is none that can be read."""
        shape = [self.rows, *self.row]
        size = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        entry = {"dtype": _NAMES[self.dtype], "shape": shape, "data_offsets": [0, size]}
        header = json.dumps({self.name: entry}).encode()
        self._stream.seek(0)
        self._stream.write(self._HEADER.to_bytes(8, "little") + header.ljust(self._HEADER))
        self._stream.close()


def save_arrays(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write several arrays into one safetensors file."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, file)


def map_arrays(file: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file by name, memory-mapped: read when used, never written back."""
    try:
        size = file.stat().st_size
        with open(file, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(length, size)))  # a wrong length may exceed any memory
        header.pop("__metadata__", None)
        expected = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if size != expected:
            raise ValueError(f"{size} bytes instead of {expected}")
        # Copy-on-write: torch accepts the arrays without a warning and the file stays untouched.
        # A plain view of the same memory: slicing it costs a third of slicing a memmap.
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
