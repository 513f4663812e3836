"""Tables to documents, streamed: the separator of CSV and TSV, the header, and what a row says."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, zip_longest
from typing import NamedTuple

from realmlm.sources.columnar import USUAL, Columns
from realmlm.sources.markup import row_line

_FIELD_LIMIT = 2**24  # characters of one field; a quote that is never closed would swallow the file
_TABLE = 2**20  # characters of a table's rows that become one document
_FIRST_LINES = 50  # lines from which the separator is inferred
_FIRST = 2**16  # and their characters
_CORPUS = {"id", "title", "text"}  # columns of a table made to be a corpus, such as DPR's psgs_w100.tsv
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
    delimiter, width = _shape([line for _, line in head], delimiters, cut=cut)
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
    for number, row in rows:
        if size > _TABLE:
            yield Record(None, "\n".join(gathered))
            gathered = []
            size = 0
        line = ""
        if header is None:
            header = _Header(row, columns)
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
        self.text, self._title, self._id = (
            names.index(name) if name in names else None for name in ("text", "title", "id")
        )
        self.is_corpus = self.text is not None and _CORPUS.issuperset(names) and len(set(names)) == len(names)

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


def usual_width(rows: Iterable[Sequence[str]]) -> int:
    """The number of fields that most of these rows have, 0 if at most half of them agree."""
    share, width = _widest(map(len, filter(None, rows)))
    return width if share > 0.5 else 0


def _first_rows(lines: list[str], delimiter: str) -> Iterator[list[str]]:
    with suppress(csv.Error):  # reported when the row is read for good
        yield from csv.reader(lines, delimiter=delimiter)


def _stands_above(row: list[str], width: int) -> bool:
    """Is this row, before the header of a table of this `width`, a title of the table or empty?"""
    filled = sum(bool(cell.strip()) for cell in row)
    narrow = len(row) == 1 or len(row) < width - 1 or (filled == 1 and width > 2)
    return not filled or (width > 1 and narrow)


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
