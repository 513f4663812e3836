"""Tables to documents, streamed: the separator of CSV and TSV, the header, and what a row says."""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, pairwise, zip_longest
from typing import Any, NamedTuple

from realmlm.sources.columnar import USUAL, Columns
from realmlm.sources.markup import row_line

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_VECTOR = 16  # numbers; a longer list of nothing else is no text
_FIELD_LIMIT = 2**24  # characters of one field; a quote that is never closed would swallow the file
TABLE = 2**20  # characters of a table's rows that become one document
_DEEPEST = 4  # objects and lists within one another whose values are read
_FIRST_LINES = 50  # lines from which the separator is inferred
_FIRST = 2**16  # and their characters
_FIGURE = re.compile(r"\d")
# a date, a negative amount: what columns are not called, unless there is something else below
_VALUE = re.compile(r"\d{4}-\d\d-\d\d|\d\d?([./])\d\d?\1\d{2,4}|-[\d.,]*\d")
_NAMED = re.compile(r'"?sep=([^\w\s"]|\t)"?[\r\n]*', re.IGNORECASE)  # the first line that Excel may write


class Record(NamedTuple):
    """A document of a table."""

    title: str | None  # None: it has its file's name
    text: str
    identity: str | None = None  # the id in its row
    line: int | None = None  # None: it is made of several rows


def read_table(
    lines: Iterator[tuple[int, str]],
    *,
    delimiters: str,
    on_bad: Callable[[str, int], None],
    columns: Columns = USUAL,
) -> Iterator[Record]:
    """The documents of a table, given as numbered lines whose fields one of these `delimiters` separates."""
    csv.field_size_limit(max(csv.field_size_limit(), _FIELD_LIMIT))
    head, cut = _head(lines)
    if len(delimiters) > 1 and head and (named := _NAMED.fullmatch(head[0][1])):
        delimiters = named[1]
        head = head[1:]
    first = [line for _, line in head]
    delimiter, agreed = _shape(first, delimiters, cut=cut)
    width = agreed and width_of(_first_rows(first, delimiter))
    rows = _rows(chain(head, lines), delimiter, on_bad)
    yield from records(rows, width, on_bad=on_bad, columns=columns)


def records(
    rows: Iterable[tuple[int, list[str]]],
    width: int,
    *,
    on_bad: Callable[[str, int], None],
    columns: Columns = USUAL,
) -> Iterator[Record]:
    """The documents of a table, given as numbered rows, most of them of this `width` (0: of none).

    In a table with a column `text` each row is a document: its text, after the values of the other columns.
    The rows of any other table are the lines of one document. A row shorter than the header is filled up and
    cells beyond the header have no name; in a table made to be a corpus such a row is damaged. `columns` has
    names that are asked for in place of `text`, `title` and `id`: where the text is, nothing else is read.
    """
    header: _Header | None = None
    gathered: list[str] = []
    size = 0
    for (number, row), (_, below) in pairwise(chain(rows, [(0, [])])):
        if size > TABLE:
            yield Record(None, "\n".join(gathered))
            gathered = []
            size = 0
        line = ""
        if header is None:
            header = _Header(row, columns)
            if not header.is_corpus and _stands_above(row, width):
                header = None
                line = row_line([""] * len(row), row)
            elif not header.is_corpus and _is_no_header(row, below):
                header = _Header([""] * len(row), columns)
                line = header.line(row)
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
    """The names of a table's columns, and which hold the text, the title and the id of a document."""

    def __init__(self, row: list[str], asked: Columns) -> None:
        self.columns = [" ".join(name.split()) for name in row]
        if asked != USUAL:
            chosen = asked.among(self.columns)
            places = (chosen.text, chosen.title, chosen.identity)
            self.text, self._title, self._id = (
                None if name is None else self.columns.index(name) for name in places
            )
            self.is_corpus = True
            return
        names = [name.lower() for name in self.columns]
        usual = ("text", "title", "id" if "id" in names else "_id")
        self.text, self._title, self._id = (names.index(name) if name in names else None for name in usual)
        self.is_corpus = self.text is not None and set(names) <= set(usual) and len(set(names)) == len(names)

    def line(self, row: list[str], without: Collection[int | None] = ()) -> str:
        """A row as a line of text, `without` these columns."""
        pairs = enumerate(zip_longest(self.columns, row, fillvalue=""))
        shown = [pair for column, pair in pairs if column not in without]
        return row_line([name for name, _ in shown], [cell for _, cell in shown])

    def document(self, row: list[str], line: int) -> Record:
        title, text, identity = (
            None if column is None else row[column] if column < len(row) else ""
            for column in (self._title, self.text, self._id)
        )
        if not self.is_corpus:
            text = "\n".join(filter(None, (self.line(row, without=(self._title, self.text)), text)))
        return Record(title, text or "", identity, line)


def record_line(record: Mapping[str, Any]) -> str:
    """A JSON object as a line of text, as a row of a table: the values within others are named by both, "shop
    town: Oslo", those of a list stand behind each other. None of half a character."""
    pairs = list(_values("", record, _DEEPEST))
    line = row_line([" ".join(name.split()) for name, _ in pairs], [value for _, value in pairs])
    return line.encode(errors="ignore").decode().replace("\0", "")


def _values(name: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and depth:
        for key, inner in value.items():
            yield from _values(f"{name} {key}".lstrip(), inner, depth - 1)
    elif isinstance(value, list) and len(value) > _VECTOR and all(map(_is_number, value)):
        return  # an embedding
    elif isinstance(value, list) and depth:
        plain = [json.dumps(one) if isinstance(one, bool) else str(one) for one in value if _is_plain(one)]
        yield name, ", ".join(plain)
        for inner in value:
            if isinstance(inner, dict | list):
                yield from _values(name, inner, depth - 1)
    elif _is_plain(value):
        yield name, json.dumps(value) if isinstance(value, bool) else str(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) or (isinstance(value, str) and _NUMBER.fullmatch(value) is not None)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _head(lines: Iterator[tuple[int, str]]) -> tuple[list[tuple[int, str]], bool]:
    """The first lines of a table, and whether there may be more."""
    head: list[tuple[int, str]] = []
    size = 0
    for number, line in lines:
        head.append((number, line))
        size += len(line)
        if len(head) == _FIRST_LINES or size > _FIRST:
            return head, True
    return head, False


def _shape(lines: list[str], delimiters: str, *, cut: bool) -> tuple[str, int]:
    """The delimiter with which the largest share of these rows has the same number of fields (more than one;
    ties: the larger number), and that number, or 0 if at most half of the rows have it."""
    best = (0.0, 0)
    found = delimiters[0]
    for delimiter in delimiters:
        rows = list(_first_rows(lines, delimiter))
        shape = _widest(map(len, filter(None, rows[:-1] if cut else rows)))
        if shape[1] and shape >= best:  # of equals the later: there are commas in amounts of money, too
            best = shape
            found = delimiter
    share, width = best
    return found, width if share > 0.5 else 0


def _widest(widths: Iterable[int]) -> tuple[float, int]:
    """The largest share of rows that have the same number of fields, more than one, and that number (of
    equals the larger); 0 and 0 if there are none."""
    counts = Counter(widths)
    return max(
        ((count / counts.total(), width) for width, count in counts.items() if width > 1), default=(0, 0)
    )


def width_of(rows: Iterable[Sequence[str]]) -> int:
    """The number of cells, up to the last that is not empty, that most of these rows have, or else any."""
    lengths = list(filter(None, map(_length, rows)))
    share, width = _widest(lengths)
    return width if share > 0.5 else max(lengths, default=0)


def _length(row: Sequence[str]) -> int:
    """The number of cells up to the last that is not empty."""
    return max((place for place, cell in enumerate(row, 1) if cell.strip()), default=0)


def tables_of(rows: Sequence[list[str]]) -> Iterator[list[tuple[int, list[str]]]]:
    """The tables that stand below each other on a sheet, as numbered rows. Another one begins after an empty
    row if a header follows: two names or more, and not one figure, above a row that has some."""
    table: list[tuple[int, list[str]]] = []
    for number, row in enumerate(rows, start=1):
        after_gap = sum(any(other) for _, other in table) > 1 and not any(table[-1][1])
        if after_gap and _begins_table([other for other in rows[number - 1 : number + 2] if any(other)]):
            yield table
            table = []
        table.append((number, row))
    yield table


def _begins_table(rows: Sequence[list[str]]) -> bool:
    """Is the first of these rows a header, or the title of a table and the second its header?"""
    if len(rows) > 2 and _length(rows[0]) == 1:
        rows = rows[1:]
    return (
        len(rows) > 1
        and sum(map(bool, rows[0])) > 1
        and not _FIGURE.search("".join(rows[0]))
        and any(_FIGURE.search(cell) for cell, name in zip(rows[1], rows[0], strict=True) if name)
    )


def _first_rows(lines: list[str], delimiter: str) -> Iterator[list[str]]:
    with suppress(csv.Error):  # reported when the row is read for good
        yield from csv.reader(lines, delimiter=delimiter)


def _stands_above(row: list[str], width: int) -> bool:
    """Is this row, before the header of a table of this `width`, a title of the table or empty?"""
    filled = sum(bool(cell.strip()) for cell in row)
    length = _length(row)
    narrow = length == 1 or length < width - 1 or (filled == 1 and width > 2)
    return not filled or (width > 1 and narrow)


def _is_no_header(row: list[str], below: list[str]) -> bool:
    """Is the first row of a table like those below it, or one of a form: "Customer:", "Brightwell Ltd"?"""
    ends = [cell.rstrip().endswith(":") for cell in row if cell.strip()]
    return (any(ends) and not all(ends)) or any(
        _VALUE.fullmatch(cell.strip()) and _VALUE.fullmatch(other.strip())
        for cell, other in zip(row, below, strict=False)
    )


def _rows(
    lines: Iterable[tuple[int, str]], delimiter: str, on_bad: Callable[[str, int], None]
) -> Iterator[tuple[int, list[str]]]:
    """The rows with the numbers of their first lines; a complaint in place of a broken one."""
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
