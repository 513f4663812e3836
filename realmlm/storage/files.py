"""Reading the files that a user names on the command line or in settings."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from realmlm.errors import BadInput


def read_text(file: Path) -> str:
    """The text of a UTF-8 file, or a complaint that names it."""
    try:
        return file.read_text("utf-8")
    except FileNotFoundError as error:
        raise BadInput(f"{file}: no such file; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{file} cannot be read as UTF-8 text ({type(error).__name__}); check the path and the file"
        ) from error


def json_lines(text: str) -> Iterator[tuple[int, Any]]:
    """The number and the value of each line that is not empty; None for a line that is not JSON."""
    # not splitlines: JSON strings may contain U+2028 and similar
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                yield number, None


class Counted(io.RawIOBase):
    """A file that calls `on_bytes` with the number of bytes of each read."""

    def __init__(self, raw: io.FileIO, on_bytes: Callable[[int], None]) -> None:
        self._raw = raw
        self._on_bytes = on_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._raw.readinto(buffer) or 0
        self._on_bytes(count)
        return count
