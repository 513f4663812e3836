"""Sources to articles: folders and files of many kinds, streamed, so that an article is the most that is in
memory at once."""

import bz2
import gzip
import io
import json
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from xml.parsers import expat

from realmlm.errors import BadInput, MissingExtra, RealmError
from realmlm.log import say
from realmlm.sources.article import Article
from realmlm.sources.dump import Dump, NoDump
from realmlm.sources.encodings import declared_text, utf_16_codec, windows_text
from realmlm.sources.markup import html_to_text, markdown_to_text, wiki_to_text
from realmlm.sources.office import LARGEST, Unreadable, pdf_to_text, word_to_text
from realmlm.sources.tables import read_table
from realmlm.sources.wrapping import unwrapped
from realmlm.storage.artefacts import read_manifest

OnBad = Callable[[RealmError], None]
"""Told of each thing that cannot be read: it raises, or it counts and the thing is left out."""

_UNPACK: dict[str, Callable[[BinaryIO], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error)
_CHUNK = 2**16


@dataclass(frozen=True)
class SourceFile:
    """A file to be read: where it is, what its articles' `source` begins with, its kind (a suffix) and its
    compression."""

    path: Path
    name: str
    kind: str
    packing: str


def apart(places: Sequence[Path]) -> list[Path]:
    """Each once, and none that lies in another: what is named twice is read once. A place that is not there
    is refused."""
    for path in places:
        try:
            exists = path.exists()
        except OSError as error:  # a folder that it is in may not be looked into
            raise BadInput(_unreadable(path, error)) from error
        if not exists:
            raise BadInput(f"{path} does not exist; name a folder with documents, or a file")
        if _is_corpus(path):
            raise BadInput(f"{path} is a corpus, not a folder with documents; search it with --corpus {path}")
    whole = {path.resolve(): Path(os.path.abspath(path)) for path in reversed(places)}
    return sorted(
        named for path, named in whole.items() if not any(parent in whole for parent in path.parents)
    )


def _is_corpus(path: Path) -> bool:
    try:
        return read_manifest(path, kind="corpus").kind == "corpus"
    except (RealmError, OSError):
        return False


def read_articles(sources: Sequence[Path], *, on_bad: OnBad) -> Iterator[Article]:
    """All articles of folders and files, in the order of the sources and, within a folder, of the sorted
    paths."""
    yield from read_files(find_files(sources, on_bad=on_bad)[0], on_bad=on_bad)


def find_files(sources: Sequence[Path], *, on_bad: OnBad) -> tuple[list[SourceFile], list[Path]]:
    """The files to read, and those in folders that are of no known kind. Hidden files and folders are passed
    over, links are followed."""
    files: list[SourceFile] = []
    unknown: list[Path] = []
    for source in map(Path, sources):
        base = Path(os.path.abspath(source)).parent
        if not _is_text(os.path.basename(os.path.abspath(source))):
            on_bad(_misnamed(source))
            continue
        try:
            mode = source.stat().st_mode
        except OSError as error:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            on_bad(BadInput(f"{source} does not exist" if missing else _unreadable(source, error)))
            continue
        if stat.S_ISDIR(mode):
            faults: list[RealmError] = []
            paths = sorted(_walk(source, faults.append))
            found = {path: _source_file(path, base) for path in paths}
            files += [file for file in found.values() if file and _is_text(file.name)]
            faults += [_misnamed(path) for path, file in found.items() if file and not _is_text(file.name)]
            unknown += [path for path, file in found.items() if not file]
            if not faults and not any(found.values()):
                faults.append(
                    BadInput(f"{source} holds no file that can be read; readable kinds: {_kinds()}")
                )
            for fault in faults:
                on_bad(fault)
        elif stat.S_ISREG(mode):
            file = _source_file(source, base)
            files += [file] if file else []
            if file is None:
                on_bad(BadInput(f"{source} is of a kind that cannot be read; readable kinds: {_kinds()}"))
        else:
            on_bad(BadInput(f"{source} is neither a file nor a folder"))
    return files, unknown


def _walk(source: Path, on_bad: OnBad) -> Iterator[Path]:
    """The files in a folder and those below it. Linked folders come last and none is entered twice, so that
    links cannot go round."""
    tops = [source]
    entered = set[Path]()
    root = Path(os.path.realpath(source))

    def on_error(error: OSError) -> None:
        on_bad(BadInput(_unreadable(error.filename, error)))

    for top in tops:
        for name, subfolders, names in os.walk(top, onerror=on_error):
            folder = Path(name)
            place = Path(os.path.realpath(name))
            if place in entered:
                subfolders.clear()
                continue
            entered.add(place)
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
                    on_bad(
                        BadInput(f"{link} is a link to {target}, a folder that contains it; remove the link")
                    )
                else:
                    tops.append(link)
            shown_files = [file for file in names if not file.startswith((".", "~$"))]  # ~$: an office's lock
            for path in (folder / file for file in shown_files):
                try:
                    if path.is_file():
                        yield path
                except OSError as error:
                    on_bad(BadInput(_unreadable(path, error)))


def _is_text(name: str) -> bool:
    """Is it of characters, or are there bytes in it that are none?"""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _misnamed(path: Path) -> BadInput:
    return BadInput(
        f"{os.fsencode(path).decode(errors='backslashreplace')} has a name that is not UTF-8; rename it"
    )


def _unreadable(path: str | Path, error: OSError) -> str:
    return f"{path} cannot be read ({error.strerror})"


def _source_file(path: Path, base: Path) -> SourceFile | None:
    suffix = path.suffix.lower()
    packing = suffix if suffix in _UNPACK else ""
    kind = Path(path.stem).suffix.lower() if packing else suffix
    name = Path(os.path.abspath(path)).relative_to(base).as_posix()
    return SourceFile(path=path, name=name, kind=kind, packing=packing) if kind in _READERS else None


def _kinds() -> str:
    return f"{' '.join(_READERS)}, each also with {' '.join(_UNPACK)}"


def read_files(
    files: Sequence[SourceFile],
    *,
    on_bad: OnBad,
    on_bytes: Callable[[int], None] = lambda count: None,
    on_guess: Callable[[str], None] = say,
) -> Iterator[Article]:
    """The articles of files, in order; `on_bytes` hears how many bytes (compressed, as on disk) were read
    since it was last called, `on_guess` of each file whose encoding was guessed."""
    for file in files:
        reading = _Reading(file, on_bad, on_guess)
        try:
            with open(file.path, "rb", buffering=0) as raw:
                counted: BinaryIO = io.BufferedReader(_Counted(raw, on_bytes), _CHUNK)
                stream = _UNPACK[file.packing](counted) if file.packing else counted
                yield from _READERS[file.kind](reading, stream)
        except _UNREADABLE as error:
            reading.bad(f"cannot be read to its end ({str(error) or type(error).__name__})")
        except MissingExtra as error:
            reading.fault(MissingExtra(f"{file.path}: {error}"))
        except RealmError:  # `on_bad` stops at the first complaint
            raise
        except (
            Exception
        ) as error:  # whatever a reader stumbles over: one file must not keep a folder from being read
            reading.bad(f"cannot be read ({type(error).__name__}: {error})")
        if not (reading.found or reading.faults):
            reading.bad("is empty: there is no article in it")


class _Counted(io.RawIOBase):
    """A file that tells how far it was read."""

    def __init__(self, raw: io.FileIO, on_bytes: Callable[[int], None]) -> None:
        self._raw = raw
        self._on_bytes = on_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._raw.readinto(buffer) or 0
        self._on_bytes(count)
        return count


class _Reading:
    """One file being read: makes its articles, words what is wrong with it, and counts both."""

    def __init__(self, file: SourceFile, on_bad: OnBad, on_guess: Callable[[str], None]) -> None:
        self.file = file
        self._on_bad = on_bad
        self._on_guess = on_guess
        self.found = self.faults = 0
        self._guessed = False

    def bad(self, what: str, *, line: int | None = None) -> None:
        said = f"{self.file.path}{f', line {line}' if line else ''}: {what}"
        # what is no character could not be printed
        self.fault(BadInput(said.encode(errors="backslashreplace").decode()))

    def fault(self, error: RealmError) -> None:
        self.faults += 1
        self._on_bad(error)

    def article(
        self, title: str, text: str, *, identity: object = None, line: int | None = None
    ) -> Iterator[Article]:
        """The article, or none with a complaint. Its source is the file's name with the article's own id,
        else the line."""
        mark = f"#{identity}" if identity not in (None, "") else f":{line}" if line else ""
        try:
            (title + text + mark).encode()
        except UnicodeEncodeError:
            return self.bad("holds half of a surrogate pair, which is not a character", line=line)
        if not text.strip():
            return self.bad("has no text", line=line)
        if "\0" in text:
            return self.bad("holds NUL bytes: it is not text", line=line)
        self.found += 1
        yield Article(title=" ".join(title.split()), text=text, source=self.file.name + mark)

    def whole(self, stream: BinaryIO) -> bytes | None:
        """All of a file that is one document, or a complaint: a small packed file may unpack to more than
        there is room for."""
        data = stream.read(LARGEST + 1)
        if len(data) > LARGEST:
            self.bad(f"is larger than {LARGEST >> 20} MiB; split it")
            return None
        return data

    def decode(self, data: bytes, *, line: int | None = None) -> str | None:
        """UTF-8; UTF-16 by its mark or its NUL bytes; else the bytes of old Windows programs if they look
        like text. What was guessed is said. Or a complaint."""
        utf_16 = utf_16_codec(data[:_CHUNK]) if line is None else None
        try:
            text = data.decode(utf_16 or ("utf-8-sig" if line in (None, 1) else "utf-8"))
        except UnicodeDecodeError as error:
            if (
                not utf_16
                and self.file.kind not in _ONLY_UTF_8
                and (windows := windows_text(data)) is not None
            ):
                self._guess("not UTF-8, read as Windows-1252")
                return windows
            where = line or data.count(b"\n", 0, error.start) + 1
            name = "UTF-16, which its first bytes announce" if utf_16 else "UTF-8"
            self.bad(f"byte 0x{data[error.start]:02x} is not {name}; convert the file to UTF-8", line=where)
            return None
        self._say_unmarked(utf_16)
        return text

    def lines(self, stream: Any) -> Iterator[tuple[int, str]]:
        """Lines with their numbers from 1; undecodable ones are left out with a complaint."""
        if utf_16 := utf_16_codec(stream.peek(_CHUNK)[:_CHUNK]):
            self._say_unmarked(utf_16)
            number = 0
            try:
                for number, line in enumerate(io.TextIOWrapper(stream, utf_16, newline="\n"), start=1):
                    yield number, line
            except UnicodeDecodeError:
                self.bad(
                    "is not UTF-16, which its first bytes announce; convert the file to UTF-8",
                    line=number + 1,
                )
            return
        for number, data in enumerate(iter(partial(stream.readline, LARGEST + 1), b""), start=1):
            if len(data) > LARGEST:
                return self.bad(f"is a line of more than {LARGEST >> 20} MiB; split it", line=number)
            text = self.decode(data, line=number)
            if text is not None:
                yield number, text

    def _say_unmarked(self, utf_16: str | None) -> None:
        if utf_16 not in (None, "utf-16"):
            self._guess("no byte order mark, read as UTF-16")

    def _guess(self, what: str) -> None:
        """Say once how the file was read."""
        if not self._guessed:
            self._on_guess(f"{self.file.path}: {what}; if letters look wrong, convert the file to UTF-8")
        self._guessed = True


def _read_text(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    if (data := reading.whole(stream)) is not None and (text := reading.decode(data)) is not None:
        yield from reading.article(_stem(reading.file), unwrapped(text))


def _read_markdown(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    if (data := reading.whole(stream)) is not None and (marked := reading.decode(data)) is not None:
        yield from _titled(reading, *markdown_to_text(marked))


def _read_html(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    if (data := reading.whole(stream)) is None:
        return
    marked = declared_text(data)
    marked = reading.decode(data) if marked is None else marked
    if marked is not None:
        yield from _titled(reading, *html_to_text(marked))


def _read_pdf(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    yield from _read_office(reading, stream, pdf_to_text)


def _read_word(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    yield from _read_office(reading, stream, word_to_text)


def _read_office(
    reading: _Reading, stream: BinaryIO, plain: Callable[[bytes], tuple[str, str]]
) -> Iterator[Article]:
    if (data := reading.whole(stream)) is None:
        return
    if not data:
        return reading.bad("is empty")
    try:
        title, text = plain(data)
    except Unreadable as error:
        return reading.bad(str(error))
    yield from _titled(reading, title, text)


def _titled(reading: _Reading, title: str, text: str) -> Iterator[Article]:
    """The article of a document: by its title, or else its file's name."""
    title = " ".join(title.split())
    first, _, rest = text.partition("\n")
    # where the heading is the title, it need not be said twice
    if rest.strip() and " ".join(first.split()) == title:
        text = rest.strip("\n")
    yield from reading.article(title or _stem(reading.file), text)


def _stem(file: SourceFile) -> str:
    return file.path.name.removesuffix(file.path.suffix if file.packing else "").rpartition(".")[0]


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
        title = record.get("title") or ""
        text = record.get("text")
        identity = record.get("id")
        if not isinstance(text, str):
            reading.bad(
                f'"text" is {"missing" if text is None else "not a string"}; the line has {_listed(record)}',
                line=number,
            )
        elif not isinstance(title, str):
            reading.bad('"title" is not a string', line=number)
        else:
            yield from reading.article(
                title, text, identity=identity if isinstance(identity, str | int) else None, line=number
            )


def _read_csv(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    yield from _read_table(reading, stream, ",;\t")  # semicolons, as spreadsheets write it in much of Europe


def _read_tsv(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    yield from _read_table(reading, stream, "\t")


def _read_table(reading: _Reading, stream: BinaryIO, delimiters: str) -> Iterator[Article]:
    records = read_table(
        reading.lines(stream), delimiters=delimiters, on_bad=lambda what, line: reading.bad(what, line=line)
    )
    for title, text, identity, line in records:
        yield from reading.article(
            _stem(reading.file) if title is None else title, text, identity=identity, line=line
        )


def _listed(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in list(names)[:12]) or "nothing"


def _read_dump(reading: _Reading, stream: BinaryIO) -> Iterator[Article]:
    """A MediaWiki dump's articles. Pages without prose (a table, a template) are no fault of the dump: they
    are left out."""
    dump = Dump()
    try:
        while chunk := stream.read(_CHUNK):
            dump.parser.Parse(chunk)
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
        text = wiki_to_text(page["text"], hidden_links=dump.hidden_links)
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
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".xml": _read_dump,
    ".pdf": _read_pdf,
    ".docx": _read_word,
}
_ONLY_UTF_8 = {".jsonl", ".ndjson"}  # by the standard: another byte in it is damage
