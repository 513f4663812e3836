"""Reads `block_records.npy`, the passages of the published REALM, without unpickling.

The file is a pickled numpy array of bytes, and a pickle is a program. This reader goes through its
instructions one by one, executes none of them, and takes only the texts of the one list that such an array
consists of. A file with anything else in it is refused, and the reason names what it is.
"""

import pickletools
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from realmlm.errors import BadInput

# the code that the pickle of an array of objects names
_ARRAY = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
_ARRAY |= {"numpy ndarray", "numpy dtype"}
_PLAIN = {"PROTO", "FRAME", "MARK", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_PLAIN |= {"REDUCE", "BUILD", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"}
_BYTES = {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8"}
_STRINGS = {"SHORT_BINUNICODE", "BINUNICODE"}
_REMEMBER = {"MEMOIZE", "BINPUT", "LONG_BINPUT"}
_RECALL = {"BINGET", "LONG_BINGET"}
_IN_LIST = {"FRAME", "MARK", "APPEND", "APPENDS"}
_AFTER_LIST = {"TUPLE", "BUILD", "STOP"}
# what pickletools raises for a file that is cut off
_CUT_OFF = (ValueError, EOFError, IndexError, OverflowError, MemoryError)


def count_records(file: Path) -> int:
    """How many texts the file says it has."""
    with open(file, "rb") as stream:
        return _header(stream, file)


def read_records(file: Path) -> Iterator[bytes]:
    """The texts, one at a time: the file may be larger than memory."""
    with open(file, "rb") as stream, open(file, "rb") as again:
        expected = _header(stream, file)
        found = 0
        try:
            for record in _list_of_bytes(stream, again, file):
                found += 1
                yield record
        except _CUT_OFF as error:
            raise BadInput(f"{file} is damaged after {found:,} texts ({error}); fetch it again") from error
    if found != expected:
        raise BadInput(f"{file} holds {found:,} texts where its header says {expected:,}; fetch it again")


def _header(stream: BinaryIO, file: Path) -> int:
    try:
        first_version = npy.read_magic(stream) == (1, 0)
        read_header = npy.read_array_header_1_0 if first_version else npy.read_array_header_2_0
        shape, _, dtype = read_header(stream)
    except Exception as error:  # numpy's parser of headers raises many kinds
        needed = "block records are an array of texts saved by numpy"
        raise BadInput(f"{file} is not a numpy file ({error}); {needed}") from error
    if dtype != np.dtype(object) or len(shape) != 1:
        found = f"an array of {dtype} with the shape {shape}"
        raise BadInput(f"{file} holds {found}; block records are one row of texts (bytes objects)")
    return int(shape[0])


def _list_of_bytes(stream: BinaryIO, again: BinaryIO, file: Path) -> Iterator[bytes]:
    """The texts in the one list of the pickle. Its instructions are read, not executed. The file comes opened
    twice: `again` is for looking up literals that the pickle refers to."""
    # Where in the file a remembered literal stands; -1 for other things. The texts would fill the memory.
    memo = array("q")
    strings: list[str] = []
    literal = -1  # where the last literal stands
    part = "before"  # the list; then "in" it, and "after" it
    stray = False  # a string among the texts
    code: pickletools.OpcodeInfo
    argument: Any
    position: Any
    for code, argument, position in pickletools.genops(stream):
        name = code.name
        if name in _REMEMBER:
            _remember(memo, len(memo) if name == "MEMOIZE" else argument, literal)
            continue
        literal = position
        if name in _RECALL:
            literal = memo[argument]
            name, argument = _literal_at(again, literal)
        if name in _STRINGS:
            strings.append(argument)
            stray = part == "in"  # refused below; the code that it may be the name of says more
            continue
        if name in ("GLOBAL", "STACK_GLOBAL"):
            called = argument if name == "GLOBAL" else " ".join(strings[-2:])
            if called not in _ARRAY:
                raise _refusal(file, f"it names {called.replace(' ', '.')}, code that unpickling would run")
        if part == "in" and name in _AFTER_LIST:
            part = "after"
        if stray or (part == "in" and name not in _IN_LIST | _BYTES):
            what = "a string" if stray else name
            raise _refusal(file, f"there is something else than bytes among its texts ({what})")
        if part == "after" and name not in _AFTER_LIST:
            raise _refusal(file, f"it goes on after its texts ({name})")
        if name in _BYTES:
            if part == "in":
                yield argument
            continue
        literal = -1
        if name == "EMPTY_LIST":
            part = "in"
        elif name not in _PLAIN | _IN_LIST | {"GLOBAL", "STACK_GLOBAL", "an object named before"}:
            raise _refusal(file, f"it contains the pickle instruction {name}")


def _remember(memo: "array[int]", place: int, literal: int) -> None:
    if place > len(memo):
        raise ValueError(f"memo place {place} comes before {len(memo)}")
    memo[place : place + 1] = array("q", [literal])


def _literal_at(stream: BinaryIO, position: int) -> tuple[str, Any]:
    """The name and the argument of the instruction at a position: a literal. -1 stands for other objects."""
    if position < 0:
        return "an object named before", None
    stream.seek(position)
    code, argument, _ = next(pickletools.genops(stream))
    return code.name, argument


def _refusal(file: Path, why: str) -> BadInput:
    return BadInput(f"{file} is not a plain array of texts: {why}; it was not opened, use a file you trust")


def write_records(file: Path, records: Iterable[bytes], count: int) -> None:
    """Write such a file for numpy's `load`: the instructions that make an array of `count` bytes objects."""
    size = count.to_bytes(4, "little")
    with open(file, "wb") as stream:
        npy.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": (count,)})
        # an empty array, which gets a size, a type (objects) and the list of its elements
        stream.write(b"\x80\x04cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R")
        stream.write(b"(K\x01J" + size + b"\x85cnumpy\ndtype\nX\x02\x00\x00\x00O8\x89\x88\x87R")
        stream.write(b"(K\x03X\x01\x00\x00\x00|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb\x89]")
        for record in records:
            stream.write(b"B" + len(record).to_bytes(4, "little") + record + b"a")
        stream.write(b"tb.")
