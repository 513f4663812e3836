"""Parquet and Arrow files, row by row: also what `datasets` saves to disk.

They are read in a process of its own with a limit on memory: the library is written in C++, a damaged file
may bring it down, and a small one may unpack to any size.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from realmlm.errors import require
from realmlm.sources import child
from realmlm.sources.bounds import LARGEST, Unreadable

COLUMNAR = (".parquet", ".arrow")

_WHY = "reading Parquet and Arrow files"
MEMORY = 2**32  # bytes
_AT_ONCE = 64  # rows taken from the library at once
_LONGEST_S = 60  # of computing, and as many seconds as the file has MiB
_NAMED = 12  # columns that are listed


@dataclass(frozen=True)
class Columns:
    """The columns with the text, the title and the id of a document; None: those with the usual names."""

    text: str | None = None
    title: str | None = None
    identity: str | None = None

    def among(self, names: list[str]) -> "Columns":
        """Those that a table with columns of these names has."""
        text = self._named("text", self.text or "text", names)
        title = self.title and self._named("title", self.title, names)
        identity = self.identity and self._named("id", self.identity, names)
        usual = (name for name in ("id", "_id") if name in names)
        return Columns(text, title or ("title" if "title" in names else None), identity or next(usual, None))

    @staticmethod
    def _named(what: str, name: str, names: list[str]) -> str:
        if name not in names:
            listed = ", ".join(names[:_NAMED]) + ", …" * (len(names) > _NAMED)
            raise Unreadable(f"has no column '{name}': it has {listed or 'none'}; say --{what}-column NAME")
        return name


USUAL = Columns()


class Row(NamedTuple):
    """A document of a table."""

    number: int  # from 1
    title: str
    text: str
    identity: str | int | None


def read_rows(path: str, columns: Columns, *, on_bytes: Callable[[int], None]) -> Iterator[Row]:
    """The rows of a file; `on_bytes` is called with the bytes read since its last call, about."""
    require("pyarrow", extra="parquet", why=_WHY)
    command, surroundings = child.python(__name__)
    # the other allocators take address space that they do not use, which counts here
    surroundings["ARROW_DEFAULTMEMORY_POOL"] = "system"
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=surroundings
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([path, asdict(columns), MEMORY]).encode())
            process.stdin.close()
            for line in process.stdout:
                row = json.loads(line)
                if isinstance(row, int):
                    on_bytes(row)
                else:
                    yield Row(*row)
            ended = process.wait()
        finally:
            process.kill()
        if ended:
            said.seek(0)
            why = said.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise Unreadable(
                why if ended == child.REFUSED else f"cannot be read (its reader ended, {ended} {why})"
            )


# --- in that process ----------------------------------------------------------------------------------------


def main() -> None:
    """Write the rows of a file, a line of JSON each, and how many bytes were read now and then."""
    path, columns, memory = json.loads(sys.stdin.buffer.read())
    size = os.stat(path).st_size
    seconds = _LONGEST_S + (size >> 20)
    child.limit(seconds, memory)
    try:
        _write_rows(path, Columns(**columns), size)
    except MemoryError:
        _refuse(f"takes more than {memory >> 30} GiB of memory to read; write it in smaller row groups")
    except Unreadable as error:
        _refuse(str(error))
    except Exception as error:  # whatever the library finds wrong with it
        _refuse(f"cannot be read ({type(error).__name__}: {error})")


def _refuse(why: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(" ".join(why.split()))
    sys.exit(child.REFUSED)


def _write_rows(path: str, columns: Columns, size: int) -> None:
    number = 0
    told = 0
    for share, batch, chosen in _batches(path, columns):
        for first in range(0, batch.num_rows, _AT_ONCE):
            values = batch.slice(first, _AT_ONCE).to_pydict()
            nothing = [None] * len(values[chosen.text])
            titles = values.get(chosen.title, nothing)
            for title, text, identity in zip(
                titles, values[chosen.text], values.get(chosen.identity, nothing), strict=True
            ):
                number += 1
                if len(text or "") > LARGEST:
                    raise Unreadable(f"has a text of more than {LARGEST >> 20} MiB in row {number}; split it")
                sys.stdout.write(json.dumps([number, title or "", text or "", identity]) + "\n")
        sys.stdout.write(f"{int(share * size) - told}\n")
        told = int(share * size)
    sys.stdout.flush()


def _batches(path: str, columns: Columns) -> Iterator[tuple[float, Any, Columns]]:
    """Some rows at a time, and the share of the file that is then read."""
    if path.lower().endswith(".arrow"):
        yield from _arrow_batches(path, columns)
        return
    parquet: Any = require("pyarrow.parquet", extra="parquet", why=_WHY)
    # with a buffer the pages of a row group are read one after the other, not all at once
    file = parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
    chosen = columns.among(file.schema_arrow.names)
    _check_types(file.schema_arrow, chosen)
    wanted = [name for name in asdict(chosen).values() if name]
    done = 0
    for batch in file.iter_batches(_AT_ONCE, columns=wanted, use_threads=False):
        done += batch.num_rows
        yield done / max(file.metadata.num_rows, done), batch, chosen


def _arrow_batches(path: str, columns: Columns) -> Iterator[tuple[float, Any, Columns]]:
    """Of both forms: `datasets` writes streams, most others files with an index at their end."""
    pyarrow: Any = require("pyarrow", extra="parquet", why=_WHY)
    ipc: Any = require("pyarrow.ipc", extra="parquet", why=_WHY)
    with pyarrow.OSFile(path) as source:
        indexed = source.read(6) == b"ARROW1"
        source.seek(0)
        opened = ipc.open_file if indexed else ipc.open_stream
        schema = opened(source).schema
        chosen = columns.among(schema.names)
        _check_types(schema, chosen)
        fields = [schema.get_field_index(name) for name in asdict(chosen).values() if name]
        source.seek(0)
        reader = opened(source, options=ipc.IpcReadOptions(included_fields=fields, use_threads=False))
        count = reader.num_record_batches if indexed else None
        for number in range(sys.maxsize if count is None else count):
            try:
                batch = reader.read_next_batch() if count is None else reader.get_batch(number)
            except StopIteration:
                return
            yield min(1.0, source.tell() / source.size()), batch, chosen


def _check_types(schema: Any, chosen: Columns) -> None:
    pyarrow: Any = require("pyarrow", extra="parquet", why=_WHY)

    def is_text(kind: Any) -> bool:
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)

    for name in (chosen.text, chosen.title):
        if name and not is_text(kind := schema.field(name).type):
            raise Unreadable(f"has {kind} in the column '{name}', not text; say --text-column NAME")
    if chosen.identity:
        kind = schema.field(chosen.identity).type
        if not (is_text(kind) or pyarrow.types.is_integer(kind)):
            why = f"has {kind} in the column '{chosen.identity}', neither text nor whole numbers"
            raise Unreadable(f"{why}; say --id-column NAME")
