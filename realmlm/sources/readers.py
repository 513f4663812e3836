"""Reads articles from files of many kinds, one article in memory at a time."""

import bz2
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO
from xml.parsers import expat

from realmlm.errors import MissingExtra, RealmError
from realmlm.log import say
from realmlm.sources.article import Article
from realmlm.sources.bounds import Unreadable
from realmlm.sources.columnar import COLUMNAR, USUAL, read_rows
from realmlm.sources.dump import Dump, NoDump
from realmlm.sources.encodings import declared_text
from realmlm.sources.headings import Document, path_title, tidy
from realmlm.sources.limited import html_document, rich_text, spreadsheet, wiki_to_text
from realmlm.sources.mail import messages, read_mail
from realmlm.sources.markup import markdown_document
from realmlm.sources.office import word_document
from realmlm.sources.pdf import pdf_document
from realmlm.sources.reading import CHUNK, OnBad, Reading, SourceFile
from realmlm.sources.sheets import SPREADSHEETS
from realmlm.sources.tables import (
    TABLE,
    Record,
    read_table,
    record_line,
    records,
    tables_of,
    width_of,
)
from realmlm.sources.wrapping import unwrapped
from realmlm.sources.zipped import book, open_document, powerpoint
from realmlm.storage.files import Counted
from realmlm.storage.remote import at_hand, open_file, shown

DECOMPRESS: dict[str, Callable[[BinaryIO], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_BINARY = re.compile(rb"(?<!\\)(?:\\\\)*+(\\bin(\d{1,10}) ?)")
# objects of no other keys are documents: BEIR's, and WikiExtractor's
_OF_A_CORPUS = frozenset(("id", "_id", "title", "text", "metadata", "revid", "url"))
_BEYOND_ASCII = re.compile(r"[\x80-\xff]")
_UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error)


def read_files(
    files: Sequence[SourceFile],
    *,
    on_bad: OnBad,
    on_bytes: Callable[[int], None] = lambda count: None,
    on_guess: Callable[[str], None] = say,
) -> Iterator[Article]:
    """The articles of these files, in order.

    For a progress bar, `on_bytes` is called with the bytes (compressed, as on disk) read since its last call;
    `on_guess` is called with a message about each file whose encoding was guessed.
    """
    for file in files:
        reading = Reading(file, on_bad, on_guess, on_bytes)
        with _complaints(reading), open_file(file.path) as raw:
            counted: BinaryIO = io.BufferedReader(Counted(raw, on_bytes), CHUNK)
            stream = DECOMPRESS[file.compression](counted) if file.compression else counted
            yield from (READERS | NAMED)[file.kind](reading, stream)


@contextmanager
def _complaints(reading: Reading, *, line: int | None = None) -> Iterator[None]:
    """What is wrong with a file, or with the part of it that begins in this line, becomes a complaint."""
    before = reading.found + reading.faults
    try:
        yield
    except _UNREADABLE as error:
        reading.bad(f"cannot be read to its end ({str(error) or type(error).__name__})", line=line)
    except Unreadable as error:
        reading.bad(str(error), line=line)
    except MissingExtra as error:
        reading.fault(MissingExtra(f"{shown(reading.file.path)}: {error}"))
    except RealmError:  # from `on_bad`
        raise
    except Exception as error:  # whatever it is, one file must not keep a folder from being read
        reading.bad(f"cannot be read ({type(error).__name__}: {error})", line=line)
    if reading.found + reading.faults == before:
        reading.empty("is empty: there is no article in it", line=line)


def _read_text(reading: Reading, stream: BinaryIO) -> Iterator[Article]:
    if (data := reading.whole(stream)) is not None and (text := reading.decode(data)) is not None:
        yield from reading.article(_stem(reading.file), text, polish=unwrapped)


def _read_lines(reading: Reading, stream: BinaryIO) -> Iterator[Article]:
    if (data := reading.whole(stream)) is not None and (text := reading.decode(data)) is not None:
        yield from reading.article(_stem(reading.file), text)


def _read_markdown(reading: Reading, stream: BinaryIO) -> Iterator[Article]:
    if (data := reading.whole(stream)) is not None and (marked := reading.decode(data)) is not None:
        yield from _titled(reading, markdown_document(marked))


def _read_html(reading: Reading, stream: BinaryIO) -> Iterator[Article]:
    if (data := reading.whole(stream)) is None:
        return
    marked = declared_text(data)
    marked = reading.decode(data) if marked is None else marked
    if marked is not None:
        yield from _titled(reading, html_document(marked))


def _read_mail(reading: Reading, stream: BinaryIO) -> Iterator[Article]:
    if (data := reading.whole(stream)) is not None:
        yield from _mailed(reading, data)


def _read_mails(reading: Reading, stream: BinaryIO) -> Iterator[Article]:
    for number, (line, data) in enumerate(messages(stream), start=1):
        with _complaints(reading, line=line):
            yield from _mailed(reading, data, mark=f"#{number}", line=line)


def _mailed(reading: Reading, data: bytes, *, mark: str = "", line: int | None = None) -> Iterator[Article]:
    """A message, then the files that came with it."""
    mail = read_mail(data)
    yield from _titled(reading, mail.document, mark=mark, line=line)
    for name, content in mail.attached:
        inner = reading.attached(name, mark)
        if inner.file.kind in READERS and inner.file.kind not in _NEVER_ATTACHED:
            with _complaints(inner):
                yield from READERS[inner.file.kind](inner, io.BufferedReader(io.BytesIO(content)))


def _read_rich_text(reading: Reading, stream: BinaryIO) -> Iterator[Article]:
    if (data := reading.whole(stream)) is not None:
        yield from reading.article(_stem(reading.file), rich_text(_in_ascii(data)), polish=tidy)


def _in_ascii(rich: bytes) -> str:
    """Rich text with other letters as \\'xx, which is read in the code page that the file states. Data that
    is not text (\\bin) is left out."""
    pieces = []
    past = 0
    while found := _BINARY.search(rich, past):
        pieces.append(rich[past : found.start(1)])
        past = found.end() + int(found[2])
    text = b"".join([*pieces, rich[past:]]).decode("latin-1")
    return _BEYOND_ASCII.sub(lambda letter: f"\\'{ord(letter[0]):02x}", text)


def _read_book(reading: Reading, stream: BinaryIO) -> Iterator[Article]:
    return _read_office(reading, stream, parse=partial(book, on_bad=reading.bad))


def _read_office(
    reading: Reading, stream: BinaryIO, *, parse: Callable[[bytes], Document]
) -> Iterator[Article]:
    if (data := reading.whole(stream)) is None:
        return
    if not data:
        return reading.empty("is empty")
    yield from _titled(reading, parse(data))


def _titled(
    reading: Reading, document: Document, *, mark: str = "", line: int | None = None
) -> Iterator[Article]:
    """An article for each section of a document, with the path of its headings as its title; a document
    without a title has its file's name."""
    title = document.title or _stem(reading.file)
    sections = [(path_title(title, section.path), section.text) for section in document.sections]
    yield from reading.articles(sections or [(title, "")], mark=mark, line=line, has_rows=True)


def _stem(file: SourceFile) -> str:
    name = file.path.name.removesuffix(file.path.suffix if file.compression else "")
    return name.rpartition(".")[0] or name


def _read_json_lines(reading: Reading, stream: BinaryIO) -> Iterator[Article]:
    yield from _objects(reading, _json_lines(reading, stream))


def _json_lines(reading: Reading, stream: BinaryIO) -> Iterator[tuple[int, Any]]:
    for number, line in reading.lines(stream):
        if line.strip():
            try:
                yield number, json.loads(line, parse_float=str)  # an amount of 4.50 stays one
            except (ValueError, RecursionError) as error:
                reading.bad(f"is not JSON ({error})", line=number)


def _read_json(reading: Reading, stream: BinaryIO) -> Iterator[Article]:
    """An object, a list of them, or JSON lines under another name."""
    if (data := reading.whole(stream)) is None or (text := reading.decode(data)) is None:
        return
    try:
        value = json.loads(text, parse_float=str)
    except (ValueError, RecursionError):
        yield from _read_json_lines(reading, io.BufferedReader(io.BytesIO(data)))
        return
    objects = enumerate(value, start=1) if isinstance(value, list) else [(None, value)]
    yield from _objects(reading, objects)


def _objects(reading: Reading, numbered: Iterable[tuple[int | None, Any]]) -> Iterator[Article]:
    """The documents of JSON objects with the numbers of their lines."""
    columns = reading.file.columns
    name = columns.text or "text"
    gathered: list[str] = []  # what has no text is a row of a table, as in a CSV file
    size = 0
    for number, record in numbered:
        if not isinstance(record, dict):
            reading.bad("is not a JSON object", line=number)
            continue
        title = record.get(columns.title or "title") or ""
        text = record.get(name)
        identity = record.get(columns.identity or "id", None if columns.identity else record.get("_id"))
        if text == "" and "_id" in record:  # of some of BEIR's documents there is nothing but the title
            text = title
        if text is None and columns == USUAL and (row := record_line(record)):
            gathered.append(row)
            size += len(row)
            if size > TABLE:
                yield from reading.articles([(_stem(reading.file), "\n".join(gathered))], has_rows=True)
                gathered = []
                size = 0
        elif not isinstance(text, str):
            wrong = "missing" if text is None else "not a string"
            names = ", ".join(f"'{name}'" for name in list(record)[:12]) or "nothing"
            reading.bad(f'"{name}" is {wrong}; the line has {names}', line=number)
        elif not isinstance(title, str):
            reading.bad(f'"{columns.title or "title"}" is not a string', line=number)
        else:
            if columns == USUAL and not record.keys() <= _OF_A_CORPUS:
                others = {key: value for key, value in record.items() if key not in ("title", "text")}
                text = "\n".join(filter(None, (record_line(others), text)))
            identity = identity if isinstance(identity, str | int) else None
            yield from reading.article(title, text, identity=identity, line=number)
    if gathered:
        yield from reading.articles([(_stem(reading.file), "\n".join(gathered))], has_rows=True)


def _read_table(reading: Reading, stream: BinaryIO, *, delimiters: str) -> Iterator[Article]:
    def on_bad(what: str, line: int) -> None:
        reading.bad(what, line=line)

    lines = reading.lines(stream)
    found = read_table(lines, delimiters=delimiters, on_bad=on_bad, columns=reading.file.columns)
    yield from _recorded(reading, _stem(reading.file), found)


def _read_spreadsheet(reading: Reading, stream: BinaryIO) -> Iterator[Article]:
    def on_bad(what: str, row: int) -> None:
        reading.bad(what, line=row)

    if (data := reading.whole(stream)) is None:
        return
    if not data:
        return reading.empty("is empty")
    sheets = spreadsheet(data)
    if not sheets:
        return reading.empty()
    for name, rows, damage in sheets:
        if damage:
            reading.bad(f"its sheet '{name}' {damage}")
        title = path_title(_stem(reading.file), (name,) * (len(sheets) > 1))
        for table in tables_of(rows):
            width = width_of([row for _, row in table])
            found = records(table, width, on_bad=on_bad, columns=reading.file.columns)
            yield from _recorded(reading, title, found)


def _recorded(reading: Reading, title: str, found: Iterable[Record]) -> Iterator[Article]:
    """The documents of a table with this title: each row one with its own, or all of them together."""
    for record in found:
        if record.line is None:
            yield from reading.articles([(title, record.text)], has_rows=True)
            continue
        own = title if record.title is None else record.title
        yield from reading.article(own, record.text, identity=record.identity, line=record.line)


def _read_columnar(reading: Reading, stream: BinaryIO) -> Iterator[Article]:
    if reading.file.compression:
        return reading.bad("is compressed once more, from outside; unpack it")
    with at_hand(reading.file.path) as path:
        for row in read_rows(str(path), reading.file.columns, on_bytes=reading.on_bytes):
            yield from reading.article(row.title, row.text, identity=row.identity, line=row.number)


def _read_dump(reading: Reading, stream: BinaryIO) -> Iterator[Article]:
    """The articles of a MediaWiki dump. Pages without prose (a table, a template) are left out without a
    complaint: most dumps have some."""
    dump = Dump()
    try:
        while chunk := stream.read(CHUNK):
            dump.feed(chunk)
            yield from _pages(reading, dump)
        dump.parser.Parse(b"", True)
        yield from _pages(reading, dump)
    except expat.ExpatError as error:
        reading.bad(f"is not well-formed XML ({expat.ErrorString(error.code)})", line=error.lineno)
    except NoDump as error:
        reading.bad(str(error), line=dump.parser.CurrentLineNumber)
    if not (reading.found or reading.faults) and dump.pages:
        reading.bad(f"none of its {dump.pages} pages is an article with text")


def _pages(reading: Reading, dump: Dump) -> Iterator[Article]:
    for page in dump.take():
        try:
            text = wiki_to_text(page["text"], hidden_links=dump.hidden_links)
        except Unreadable as error:
            reading.bad(f"page '{page['title']}' {error}")
            continue
        if text:
            yield from reading.article(page["title"], text, identity=page["id"])


READERS: dict[str, Callable[[Reading, BinaryIO], Iterator[Article]]] = {
    ".txt": _read_text,
    ".text": _read_text,
    ".rst": _read_text,
    ".org": _read_text,
    ".log": _read_lines,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".csv": partial(_read_table, delimiters=",;\t"),  # much of Europe's spreadsheets write semicolons
    ".tsv": partial(_read_table, delimiters="\t"),
    ".parquet": _read_columnar,
    ".arrow": _read_columnar,
    ".xml": _read_dump,
    ".pdf": partial(_read_office, parse=pdf_document),
    ".docx": partial(_read_office, parse=word_document),
    ".odt": partial(_read_office, parse=open_document),
    ".odp": partial(_read_office, parse=open_document),
    ".pptx": partial(_read_office, parse=powerpoint),
    ".epub": _read_book,
    ".rtf": _read_rich_text,
    ".eml": _read_mail,
    ".mbox": _read_mails,
    **dict.fromkeys(SPREADSHEETS, _read_spreadsheet),
}
_NEVER_ATTACHED = (*COLUMNAR, ".mbox", ".xml")  # what comes with a message is a document
NAMED: dict[str, Callable[[Reading, BinaryIO], Iterator[Article]]] = {
    ".json": _read_json,
    ".yaml": _read_lines,
    ".yml": _read_lines,
}
"""Kinds that are read where a file is named; in folders they are mostly settings of programs."""
