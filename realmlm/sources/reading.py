"""A file being read: what is known of it, its text, and the complaints about it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from realmlm.errors import BadInput, RealmError
from realmlm.sources.article import Article
from realmlm.sources.bounds import LARGEST, parts
from realmlm.sources.columnar import COLUMNAR, USUAL, Columns
from realmlm.sources.encodings import looks_like_text, utf_16_codec, utf_16_lines, windows_text
from realmlm.sources.sheets import SPREADSHEETS
from realmlm.storage.remote import shown

OnBad = Callable[[RealmError], None]
"""Called with each complaint about unreadable input: raises it, or returns to leave the input out."""

CHUNK = 2**16
_ONLY_UTF_8 = (".jsonl", ".ndjson")  # by their standards: any other byte is damage
_TOO_LONG = f"is a line of more than {LARGEST >> 20} MiB; split it"


class NoText(BadInput):
    """A document is empty: it holds nothing that could be lost."""


@dataclass(frozen=True)
class SourceFile:
    """A file to be read."""

    path: Path
    name: str  # what the `source` of its articles begins with
    kind: str  # the suffix that says how it is read
    compression: str  # the suffix after that, or ""
    columns: Columns = USUAL  # of a table


class Reading:
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

    def attached(self, name: str, mark: str) -> "Reading":
        """The reading of a file that came with a message of this one."""
        path = self.file.path / Path(name.replace("/", "_"))
        file = replace(self.file, path=path, kind=path.suffix.lower(), compression="")
        file = replace(file, name=f"{self.file.name}{mark or '#'}{'/' * bool(mark)}{path.name}")
        return Reading(file, self._on_bad, self._on_guess, lambda count: None)

    def bad(self, what: str, *, line: int | None = None, kind: type[BadInput] = BadInput) -> None:
        part = "row" if self.file.kind in (*COLUMNAR, *SPREADSHEETS) else "line"
        message = f"{shown(self.file.path)}{f', {part} {line}' if line else ''}: {what}"
        # half of a surrogate pair could not be printed
        self.fault(kind(message.encode(errors="backslashreplace").decode()))

    def empty(self, what: str = "has no text", *, line: int | None = None) -> None:
        self.bad(what, line=line, kind=NoText)

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
            return self.empty(line=line)
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
        utf_16 = utf_16_codec(data[:CHUNK]) if line is None else None
        try:
            text = data.decode(utf_16 or ("utf-8-sig" if line in (None, 1) else "utf-8"))
        except UnicodeDecodeError as error:
            may_be_windows = not utf_16 and self.file.kind not in _ONLY_UTF_8
            if may_be_windows and (windows := windows_text(data)) is not None:
                self._guess("not UTF-8, read as Windows-1252")
                return windows
            where = line or data.count(b"\n", 0, error.start) + 1
            name = "UTF-16, which its first bytes announce" if utf_16 else "UTF-8"
            cure = "convert the file to UTF-8"
            if not utf_16 and not looks_like_text(data):
                cure = f"it does not look like text; if it is, {cure}"
            self.bad(f"byte 0x{data[error.start]:02x} is not {name}; {cure}", line=where)
            return None
        self._say_unmarked(utf_16)
        return text

    def lines(self, stream: Any) -> Iterator[tuple[int, str]]:
        """Lines with their numbers from 1; a complaint in place of one that cannot be decoded."""
        if utf_16 := utf_16_codec(stream.peek(CHUNK)[:CHUNK]):
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
