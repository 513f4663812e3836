"""Rows of tables, which stand in texts as lines of cells after their columns' names: "Item: window putty;
Price: £4.20"."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_NAMED = re.compile(r"([^:;\n]{1,60}): (?=\S)")


class Cell(NamedTuple):
    """Characters [start, end) of a text, under the name of a column."""

    name: str
    start: int
    end: int


class Row(NamedTuple):
    """A line of a text that is a row of a table."""

    start: int
    end: int
    cells: tuple[Cell, ...]


def rows(text: str) -> Iterator[Row]:
    """The lines of a text that are rows: cells with a semicolon between them, two or more under a name."""
    start = 0
    for line in text.split("\n"):
        if "; " in line and line.count(": ") > 1:
            cells = tuple(_cells(line, start))
            if sum(cell.name != "" for cell in cells) > 1:
                yield Row(start, start + len(line), cells)
        start += len(line) + 1


def _cells(line: str, start: int) -> Iterator[Cell]:
    for part in line.split("; "):
        named = _NAMED.match(part)
        value = named.end() if named else 0
        yield Cell(named[1] if named else "", start + value, start + len(part))
        start += len(part) + 2
