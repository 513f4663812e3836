"""Files of text that someone names."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from realmlm.errors import BadInput


def read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except FileNotFoundError as error:
        raise BadInput(f"{file}: no such file; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{file} cannot be read as UTF-8 text ({type(error).__name__}); check the path and the file"
        ) from error


def json_lines(text: str) -> Iterator[tuple[int, Any]]:
    """Each line that is not empty with its number; None for what is not JSON."""
    # not splitlines: JSON strings may hold U+2028 and its like
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                yield number, None
