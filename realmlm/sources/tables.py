"""CSV and TSV tables to documents: what separates the fields, where the header is, what a row says.
Streamed."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain, zip_longest
from typing import NamedTuple

from realmlm.sources.markup import row_line

_FIELD_LIMIT = 2**24  # characters of one field; a quote that is never closed would swallow the file
_TABLE = 2**20  # characters of a table's rows that are one document
# lines, and characters, by which it is told what separates the fields
_FIRST_LINES = 50
_FIRST = 2**16
_CORPUS = {
    "id",
    "title",
    "text",
}  # the columns of a table that was made to be a corpus, as DPR's psgs_w100.tsv
_NAMED = re.compile(r'"?sep=([^\w\s"]|\t)"?[\r\n]*', re.IGNORECASE)  # Excel's first line


class Record(NamedTuple):
    """A document of a table, with its row's own id and line if it is of one row; without a title it goes by
    its file's name."""

    title: str | None
    text: str
    identity: str | None = None
    line: int | None = None


def read_table(
    lines: Iterator[tuple[int, str]], *, delimiters: str, on_bad: Callable[[str, int], None]
) -> Iterator[Record]:
    """The documents of a table whose lines come with their numbers, its fields separated by one of these
    `delimiters`.

    A row with a column `text` is a document: its text, after the values of other columns. Of other tables the
    rows are lines of one. A row shorter than the header is filled, cells beyond it have no name; in a corpus
    such a row is damaged.
    """
    csv.field_size_limit(max(csv.field_size_limit(), _FIELD_LIMIT))
    head, cut = _head(lines)
    if len(delimiters) > 1 and head and (named := _NAMED.fullmatch(head[0][1])):
        delimiters = named[1]
        head = head[1:]
    delimiter, width = _shape([line for _, line in head], delimiters, cut=cut)
    header: _Header | None = None
    gathered: list[str] = []
    size = 0
    for number, row in _rows(chain(head, lines), delimiter, on_bad):
        if size > _TABLE:
            yield Record(None, "\n".join(gathered))
            gathered = []
            size = 0
        line = ""
        if header is None:
            header = _Header(row)
            if not header.is_corpus and _stands_above(row, width):
                header = None
                line = row_line([""] * len(row), row)
        elif header.is_corpus and len(row) != len(header.columns):
            on_bad(f"has {len(row)} fields where the header has {len(header.columns)}", number)
        elif header.text is None:
            line = header.line(row)
        elif header.is_corpus or any(map(str.strip, row)):
            yield header.document(row, number)
        if line:
            gathered.append(line)
            size += len(line)
    if gathered:
        yield Record(None, "\n".join(gathered))


class _Header:
    """The names of the columns, and which are those of a text, its title and its id."""

    def __init__(self, row: list[str]) -> None:
        self.columns = [" ".join(name.split()) for name in row]
        names = [name.lower() for name in self.columns]
        self.text, self._title, self._id = (
            names.index(name) if name in names else None for name in ("text", "title", "id")
        )
        self.is_corpus = self.text is not None and _CORPUS.issuperset(names) and len(set(names)) == len(names)

    def line(self, row: list[str], without: Collection[int | None] = ()) -> str:
        """What the row says, `without` these columns."""
        said = [
            both
            for column, both in enumerate(zip_longest(self.columns, row, fillvalue=""))
            if column not in without
        ]
        return row_line([name for name, _ in said], [cell for _, cell in said])

    def document(self, row: list[str], line: int) -> Record:
        title, text, identity = (
            None if column is None else row[column] if column < len(row) else ""
            for column in (self._title, self.text, self._id)
        )
        if not self.is_corpus:
            text = "\n".join(filter(None, (self.line(row, without=(self._title, self.text)), text)))
        return Record(title, text or "", identity, line)


def _head(lines: Iterator[tuple[int, str]]) -> tuple[list[tuple[int, str]], bool]:
    """The first lines, and whether there may be more."""
    head: list[tuple[int, str]] = []
    size = 0
    for number, line in lines:
        head.append((number, line))
        size += len(line)
        if len(head) == _FIRST_LINES or size > _FIRST:
            return head, True
    return head, False


def _shape(lines: list[str], delimiters: str, *, cut: bool) -> tuple[str, int]:
    """The delimiter that cuts most rows into the same number of fields, more than one; of several, into the
    most. And that number, or 0 where it is that of few rows."""
    best = (0.0, 0)
    found = delimiters[0]
    for delimiter in delimiters:
        rows = list(_first_rows(lines, delimiter))
        widths = Counter(map(len, filter(None, rows[:-1] if cut else rows)))
        shapes = [(count / widths.total(), width) for width, count in widths.items() if width > 1]
        if shapes and max(shapes) >= best:  # of equals the later: commas stand in amounts, too
            best = max(shapes)
            found = delimiter
    share, width = best
    return found, width if share > 0.5 else 0


def _first_rows(lines: list[str], delimiter: str) -> Iterator[list[str]]:
    with suppress(csv.Error):  # said when it is read
        yield from csv.reader(lines, delimiter=delimiter)


def _stands_above(row: list[str], width: int) -> bool:
    """Is a first row no header yet, but a title of a table so wide, or empty?"""
    filled = sum(bool(cell.strip()) for cell in row)
    return not filled or (
        width > 1 and (len(row) == 1 or len(row) < width - 1 or (filled == 1 and width > 2))
    )


def _rows(
    lines: Iterable[tuple[int, str]], delimiter: str, on_bad: Callable[[str, int], None]
) -> Iterator[tuple[int, list[str]]]:
    """The rows with the number of their first line; broken ones are left out with a complaint."""
    latest = 0

    def plain() -> Iterator[str]:
        nonlocal latest
        for number, line in lines:
            latest = number
            yield line

    rows = csv.reader(plain(), delimiter=delimiter, strict=True)
    first = 1
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            on_bad(f"is a broken row ({error})", first)
            row = []
        if row is None:
            return
        if row:
            yield first, row
        first = latest + 1
