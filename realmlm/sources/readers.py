"""Reads articles from folders and files of many kinds, one article in memory at a time."""

import bz2
import gzip
import io
import json
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from xml.parsers import expat

from realmlm.errors import BadInput, MissingExtra, RealmError
from realmlm.log import say
from realmlm.sources.article import Article
from realmlm.sources.bounds import LARGEST, Unreadable, parts
from realmlm.sources.columnar import COLUMNAR, USUAL, Columns, read_rows
from realmlm.sources.dump import Dump, NoDump
from realmlm.sources.encodings import declared_text, utf_16_codec, utf_16_lines, windows_text
from realmlm.sources.headings import Document, path_title
from realmlm.sources.limited import html_document, spreadsheet, wiki_to_text
from realmlm.sources.markup import markdown_document
from realmlm.sources.office import word_document
from realmlm.sources.pdf import pdf_document
from realmlm.sources.tables import Record, read_table, records, tables_of, width_of
from realmlm.sources.wrapping import unwrapped
from realmlm.storage.artefacts import read_manifest
from realmlm.storage.files import Counted
from realmlm.storage.remote import at_hand, mode_of, open_file, shown, url_of, walk

OnBad = Callable[[RealmError], None]
"""Called with each complaint about unreadable input: raises it, or returns to leave the input out."""

_DECOMPRESS: dict[str, Callable[[BinaryIO], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error)
_SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods")
_CHUNK = 2**16
_TOO_LONG = f"is a line of more than {LARGEST >> 20} MiB; split it"


@dataclass(frozen=True)
class SourceFile:
    """A file to be read."""

    path: Path
    name: str  # what the `source` of its articles begins with
    kind: str  # the suffix that says how it is read
    compression: str  # the suffix after that, or ""
    columns: Columns = USUAL  # of a table


def apart(places: Sequence[Path]) -> list[Path]:
    """The files and folders named, each once and none that lies in another, so that no document is read
    twice. One that does not exist is refused."""
    for path in places:
        try:
            exists = path.exists()
        except OSError as error:  # no permission to look into the folder it is in
            raise BadInput(_unreadable(path, error)) from error
        if not exists:
            raise BadInput(f"{path} does not exist; name a folder with documents, or a file")
        if _is_corpus(path):
            raise BadInput(f"{path} is a corpus, not a folder with documents; search it with --corpus {path}")
    as_named = {path.resolve(): Path(os.path.abspath(path)) for path in reversed(places)}
    return sorted(named for path, named in as_named.items() if as_named.keys().isdisjoint(path.parents))


def _is_corpus(path: Path) -> bool:
    try:
        return read_manifest(path, kind="corpus").kind == "corpus"
    except (RealmError, OSError):
        return False


def read_articles(sources: Sequence[Path], *, on_bad: OnBad) -> Iterator[Article]:
    """All articles of folders and files, in the order named and, within a folder, in that of the paths."""
    yield from read_files(find_files(sources, on_bad=on_bad)[0], on_bad=on_bad)


def find_files(
    sources: Sequence[Path], *, on_bad: OnBad, columns: Columns | None = None
) -> tuple[list[SourceFile], list[Path]]:
    """The files to read, and the files in folders that are of no known kind. Hidden files and folders are
    passed over; links are followed. `columns` are those of tables with the text, the title and the id."""
    files: list[SourceFile] = []
    unknown: list[Path] = []
    for source in map(Path, sources):
        base = Path(os.path.abspath(source)).parent
        if not _is_text(os.path.basename(os.path.abspath(source))):
            on_bad(_misnamed(source))
            continue
        try:
            mode = mode_of(source)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            on_bad(BadInput(f"{shown(source)} does not exist" if missing else _unreadable(source, error)))
            continue
        if stat.S_ISDIR(mode):
            faults: list[RealmError] = []
            paths = sorted(_walk(source, faults.append))
            found = {path: _source_file(path, base) for path in paths}
            files += [file for file in found.values() if file and _is_text(file.name)]
            faults += [_misnamed(path) for path, file in found.items() if file and not _is_text(file.name)]
            unknown += [path for path, file in found.items() if not file]
            if not faults and not any(found.values()):
                nothing = f"{shown(source)} holds no file that can be read; readable kinds: {_kinds()}"
                faults.append(BadInput(nothing))
            for fault in faults:
                on_bad(fault)
        elif stat.S_ISREG(mode):
            file = _source_file(source, base)
            files += [file] if file else []
            if file is None:
                on_bad(
                    BadInput(f"{shown(source)} is of a kind that cannot be read; readable kinds: {_kinds()}")
                )
        else:
            on_bad(BadInput(f"{source} is neither a file nor a folder"))
    return [replace(file, columns=columns) for file in files] if columns else files, unknown


def _walk(source: Path, on_bad: OnBad) -> Iterator[Path]:
    """The files in a folder and below it. Linked folders come last and none is entered twice: links may form
    a circle."""
    tops = [source]
    entered = set[Path]()
    root = Path(os.path.realpath(source))

    def on_error(error: OSError) -> None:
        on_bad(BadInput(_unreadable(error.filename, error)))

    for top in tops:
        for name, subfolders, names in walk(top, onerror=on_error):
            folder = Path(name)
            place = Path(os.path.realpath(name))
            if place in entered:
                subfolders.clear()
                continue
            entered.add(place)
            if _is_beir(names, subfolders):  # its queries and judgements are no documents
                names = [file for file in names if file.startswith("corpus.jsonl")]
                subfolders.remove("qrels")
            if {"state.json", "dataset_info.json"}.issubset(names):  # saved by `datasets`
                names = _data_files(folder / "state.json", names)
            shown = sorted(subfolder for subfolder in subfolders if not subfolder.startswith("."))
            subfolders[:] = filter(_is_text, shown)
            for subfolder in shown:
                if not _is_text(subfolder):
                    on_bad(_misnamed(folder / subfolder))
            for link in (folder / subfolder for subfolder in subfolders):
                target = Path(os.path.realpath(link))
                if not link.is_symlink() or target in entered:
                    continue
                if target in place.parents or target in root.parents:
                    circle = f"{link} is a link to {target}, a folder that contains it; remove the link"
                    on_bad(BadInput(circle))
                else:
                    tops.append(link)
            for file in names:
                if file.startswith((".", "~$")):  # ~$: the lock file of an office program
                    continue
                path = folder / file
                try:
                    if url_of(path) or path.is_file():
                        yield path
                except OSError as error:
                    on_bad(BadInput(_unreadable(path, error)))


def _is_beir(names: Sequence[str], subfolders: Sequence[str]) -> bool:
    """Does a folder hold a dataset in the form of BEIR?"""
    plain = {name.removesuffix(ending) for name in names for ending in ("", *_DECOMPRESS)}
    return plain.issuperset({"corpus.jsonl", "queries.jsonl"}) and "qrels" in subfolders


def _data_files(state: Path, names: Sequence[str]) -> list[str]:
    """Of a dataset's folder, the files with the data: beside them may lie what was made of them since."""
    try:
        with open_file(state) as stream:
            listed = {file["filename"] for file in json.loads(stream.read(LARGEST))["_data_files"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return list(names)
    return [name for name in names if name in listed]


def _is_text(name: str) -> bool:
    """Is a file's name text, or are there bytes in it that are not UTF-8?"""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _misnamed(path: Path) -> BadInput:
    shown = os.fsencode(path).decode(errors="backslashreplace")
    return BadInput(f"{shown} has a name that is not UTF-8; rename it")


def _unreadable(path: str | Path, error: OSError) -> str:
    return f"{shown(path)} cannot be read ({error.strerror})"


def _source_file(path: Path, base: Path) -> SourceFile | None:
    suffix = path.suffix.lower()
    compression = suffix if suffix in _DECOMPRESS else ""
    kind = Path(path.stem).suffix.lower() if compression else suffix
    name = Path(os.path.abspath(path)).relative_to(base).as_posix()
    return SourceFile(path, name, kind, compression) if kind in _READERS else None


def _kinds() -> str:
    return f"{' '.join(_READERS)}, each also with {' '.join(_DECOMPRESS)}"


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
        reading = _Reading(file, on_bad, on_guess, on_bytes)
        try:
            with open_file(file.path) as raw:
                counted: BinaryIO = io.BufferedReader(Counted(raw, on_bytes), _CHUNK)
                stream = _DECOMPRESS[file.compression](counted) if file.compression else counted
                yield from _READERS[file.kind](reading, stream)
        except _UNREADABLE as error:
            reading.bad(f"cannot be read to its end ({str(error) or type(error).__name__})")
        except Unreadable as error:
            reading.bad(str(error))
        except MissingExtra as error:
            reading.fault(MissingExtra(f"{shown(file.path)}: {error}"))
        except RealmError:  # from `on_bad`
            raise
        except Exception as error:  # whatever it is, one file must not keep a folder from being read
            reading.bad(f"cannot be read ({type(error).__name__}: {error})")
        if not (reading.found or reading.faults):
            reading.bad("is empty: there is no article in it")


class _Reading:
    """One file being read: makes its articles, complains about what is wrong with it, and counts both."""

    def __init__(
        self,
        file: SourceFile,
        on_bad: OnBad,
        on_guess: Callable[[str], None],
        on_bytes: Callable[[int], None],
    ) -> None:
        self.file = file
        self._on_bad = on_bad
        self._on_guess = on_guess
        self.on_bytes = on_bytes
        self.found = self.faults = 0
        self._guessed = False

    def bad(self, what: str, *, line: int | None = None) -> None:
        part = "row" if self.file.kind in (*COLUMNAR, *_SPREADSHEETS) else "line"
        message = f"{shown(self.file.path)}{f', {part} {line}' if line else ''}: {what}"
        # half of a surrogate pair could not be printed
        self.fault(BadInput(message.encode(errors="backslashreplace").decode()))

    def fault(self, error: RealmError) -> None:
        self.faults += 1
        self._on_bad(error)

    def article(
        self,
        title: str,
        text: str,
        *,
        identity: object = None,
        line: int | None = None,
        polish: Callable[[str], str] = str,
    ) -> Iterator[Article]:
        """The article, its text polished, or a complaint and no article. Its source is the file's name with
        the article's own id, if it has one, or else with its line."""
        mark = f"#{identity}" if identity not in (None, "") else f":{line}" if line else ""
        return self.articles([(title, text)], mark=mark, line=line, polish=polish)

    def articles(
        self,
        sections: Sequence[tuple[str, str]],
        *,
        mark: str = "",
        line: int | None = None,
        polish: Callable[[str], str] = str,
        has_rows: bool = False,
    ) -> Iterator[Article]:
        """An article for each section of one document, given as titles and texts, or a complaint and none. A
        text of more than two million characters becomes several articles: cutting takes a hundred times the
        memory of what is cut."""
        said = "".join(title + text for title, text in sections)
        try:
            (said + mark).encode()
        except UnicodeEncodeError:
            return self.bad("holds half of a surrogate pair, which is not a character", line=line)
        if not any(text.strip() for _, text in sections):
            return self.bad("has no text", line=line)
        if any("\0" in text for _, text in sections):
            return self.bad("holds NUL bytes: it is not text", line=line)
        self.found += 1
        for title, text in sections:
            for part in filter(str.strip, parts(text)):
                source = self.file.name + mark
                yield Article(" ".join(title.split()), polish(part), source, has_rows=has_rows)

    def whole(self, stream: BinaryIO) -> bytes | None:
        """All bytes of a file that is one document, or None after a complaint: a small compressed file may
        expand to more than fits into memory."""
        data = stream.read(LARGEST + 1)
        if len(data) > LARGEST:
            self.bad(f"is larger than {LARGEST >> 20} MiB; split it")
            return None
        return data

    def decode(self, data: bytes, *, line: int | None = None) -> str | None:
        """The text of a file's bytes, or of one line's; None after a complaint.

        UTF-8; UTF-16 if a byte order mark or NUL bytes show it; else Windows-1252 if that looks like text. A
        guess is reported.
        """
        utf_16 = utf_16_codec(data[:_CHUNK]) if line is None else None
        try:
            text = data.decode(utf_16 or ("utf-8-sig" if line in (None, 1) else "utf-8"))
        except UnicodeDecodeError as error:
            may_be_windows = not utf_16 and self.file.kind not in _ONLY_UTF_8
            if may_be_windows and (windows := windows_text(data)) is not None:
                self._guess("not UTF-8, read as Windows-1252")
                return windows
            where = line or data.count(b"\n", 0, error.start) + 1
            name = "UTF-16, which its first bytes announce" if utf_16 else "UTF-8"
            self.bad(f"byte 0x{data[error.start]:02x} is not {name}; convert the file to UTF-8", line=where)
            return None
        self._say_unmarked(utf_16)
        return text

    def lines(self, stream: Any) -> Iterator[tuple[int, str]]:
        """Lines with their numbers from 1; a complaint in place of one that cannot be decoded."""
        if utf_16 := utf_16_codec(stream.peek(_CHUNK)[:_CHUNK]):
            self._say_unmarked(utf_16)
            number = 0
            try:
                for number, line in enumerate(utf_16_lines(stream, utf_16, LARGEST // 2), start=1):
                    if len(line) > LARGEST // 2:
                        return self.bad(_TOO_LONG, line=number)
                    yield number, line
            except UnicodeDecodeError:
                why = "is not UTF-16, which its first bytes announce; convert the file to UTF-8"
                self.bad(why, line=number + 1)
            return
        for number, data in enumerate(iter(partial(stream.readline, LARGEST + 1), b""), start=1):
            if len(data) > LARGEST:
                return self.bad(_TOO_LONG, line=number)
            text = self.decode(data, line=number)
            if text is not None:
                yield number, text

    def _say_unmarked(self, utf_16: str | None) -> None:
        if utf_16 not in (None, "utf-16"):
            self._guess("no byte order mark, read as UTF-16")

    def _guess(self, what: str) -> None:
        """Report, once for each file, which encoding was guessed."""
        if not self._guessed:
            self._on_guess(
                f"{shown(self.file.path)}: {what}; if letters look wrong, convert the file to UTF-8"
            )
        self._guessed = True


def _read_text(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    if (data := reading.whole(stream)) is not None and (text := reading.decode(data)) is not None:
        yield from reading.article(_stem(reading.file), text, polish=unwrapped)


def _read_markdown(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    if (data := reading.whole(stream)) is not None and (marked := reading.decode(data)) is not None:
        yield from _titled(reading, markdown_document(marked))


def _read_html(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    if (data := reading.whole(stream)) is None:
        return
    marked = declared_text(data)
    marked = reading.decode(data) if marked is None else marked
    if marked is not None:
        yield from _titled(reading, html_document(marked))


def _read_office(
    reading: _Reading, stream: BinaryIO, *, parse: Callable[[bytes], Document]
) -> Iterator[Article]:
    if (data := reading.whole(stream)) is None:
        return
    if not data:
        return reading.bad("is empty")
    yield from _titled(reading, parse(data))


def _titled(reading: _Reading, document: Document) -> Iterator[Article]:
    """An article for each section of a document, with the path of its headings as its title; a document
    without a title has its file's name."""
    title = document.title or _stem(reading.file)
    sections = [(path_title(title, section.path), section.text) for section in document.sections]
    yield from reading.articles(sections or [(title, "")], has_rows=True)


def _stem(file: SourceFile) -> str:
    return file.path.name.removesuffix(file.path.suffix if file.compression else "").rpartition(".")[0]


def _read_json_lines(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    for number, line in reading.lines(stream):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reading.bad(f"is not JSON ({error})", line=number)
            continue
        if not isinstance(record, dict):
            reading.bad('is not a JSON object with "title" and "text"', line=number)
            continue
        columns = reading.file.columns
        name = columns.text or "text"
        title = record.get(columns.title or "title") or ""
        text = record.get(name)
        identity = record.get(columns.identity or "id", None if columns.identity else record.get("_id"))
        if text == "" and "_id" in record:  # of some of BEIR's documents there is nothing but the title
            text = title
        if not isinstance(text, str):
            wrong = "missing" if text is None else "not a string"
            names = ", ".join(f"'{name}'" for name in list(record)[:12]) or "nothing"
            reading.bad(f'"{name}" is {wrong}; the line has {names}', line=number)
        elif not isinstance(title, str):
            reading.bad(f'"{columns.title or "title"}" is not a string', line=number)
        else:
            identity = identity if isinstance(identity, str | int) else None
            yield from reading.article(title, text, identity=identity, line=number)


def _read_table(reading: _Reading, stream: BinaryIO, *, delimiters: str) -> Iterator[Article]:
    def on_bad(what: str, line: int) -> None:
        reading.bad(what, line=line)

    lines = reading.lines(stream)
    found = read_table(lines, delimiters=delimiters, on_bad=on_bad, columns=reading.file.columns)
    yield from _recorded(reading, _stem(reading.file), found)


def _read_spreadsheet(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    def on_bad(what: str, row: int) -> None:
        reading.bad(what, line=row)

    if (data := reading.whole(stream)) is None:
        return
    if not data:
        return reading.bad("is empty")
    sheets = spreadsheet(data)
    if not sheets:
        return reading.bad("has no text")
    for name, rows, damage in sheets:
        if damage:
            reading.bad(f"its sheet '{name}' {damage}")
        title = path_title(_stem(reading.file), (name,) * (len(sheets) > 1))
        for table in tables_of(rows):
            width = width_of([row for _, row in table])
            found = records(table, width, on_bad=on_bad, columns=reading.file.columns)
            yield from _recorded(reading, title, found)


def _recorded(reading: _Reading, title: str, found: Iterable[Record]) -> Iterator[Article]:
    """The documents of a table with this title: each row one with its own, or all of them together."""
    for record in found:
        if record.line is None:
            yield from reading.articles([(title, record.text)], has_rows=True)
            continue
        own = title if record.title is None else record.title
        yield from reading.article(own, record.text, identity=record.identity, line=record.line)


def _read_columnar(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    if reading.file.compression:
        return reading.bad("is compressed once more, from outside; unpack it")
    with at_hand(reading.file.path) as path:
        for row in read_rows(str(path), reading.file.columns, on_bytes=reading.on_bytes):
            yield from reading.article(row.title, row.text, identity=row.identity, line=row.number)


def _read_dump(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    """The articles of a MediaWiki dump. Pages without prose (a table, a template) are left out without a
    complaint: most dumps have some."""
    dump = Dump()
    try:
        while chunk := stream.read(_CHUNK):
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


def _pages(reading: _Reading, dump: Dump) -> Iterator[Article]:
    for page in dump.take():
        try:
            text = wiki_to_text(page["text"], hidden_links=dump.hidden_links)
        except Unreadable as error:
            reading.bad(f"page '{page['title']}' {error}")
            continue
        if text:
            yield from reading.article(page["title"], text, identity=page["id"])


_READERS: dict[str, Callable[[_Reading, BinaryIO], Iterator[Article]]] = {
    ".txt": _read_text,
    ".text": _read_text,
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
    **dict.fromkeys(_SPREADSHEETS, _read_spreadsheet),
}
_ONLY_UTF_8 = {".jsonl", ".ndjson"}  # by their standards: any other byte is damage
