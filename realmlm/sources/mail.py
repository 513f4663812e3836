"""E-mails, one each (.eml) or many in a file (.mbox)."""

import re
from collections.abc import Iterator
from contextlib import suppress
from email import message_from_bytes
from email.headerregistry import HeaderRegistry
from email.message import EmailMessage, MIMEPart
from email.policy import EmailPolicy
from email.utils import collapse_rfc2231_value
from functools import partial
from itertools import chain, count
from typing import Any, BinaryIO, NamedTuple

from realmlm.sources.bounds import LARGEST, Unreadable
from realmlm.sources.encodings import is_utf_8, stated_codec, stated_text
from realmlm.sources.headings import Document, Section, tidy
from realmlm.sources.letters import clean
from realmlm.sources.limited import html_document
from realmlm.sources.wrapping import unwrapped

_NAMED = ("From", "To", "Cc")
_QUOTED = re.compile(r"^(?:>[ \t]?)+", re.MULTILINE)
_MOST_NAMES = 300  # characters of the people a message went to
_DEEPEST = 50  # parts within one another; messages forwarded many times have some ten
_MOST_PARTS = 1000
_MOST_LOOKS = 2 * 10**7  # lines, each as often as there are parts that may end with it: seconds
_LONGEST = 1000  # characters of a header that are looked at: parsing takes time by their square
_TOO_MANY = f"has more than {_MOST_PARTS:,} parts"
_TOO_DEEP = f"has parts that lie {_DEEPEST} deep within one another"
_TOO_LONG = f"has more than {_MOST_LOOKS:,} lines, one in n nested parts counted n times; split it"
_SUFFIXES = {  # of attached files without a name
    "application/pdf": ".pdf",
    "text/csv": ".csv",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/plain": ".txt",
    "text/tab-separated-values": ".tsv",
}
_TEXTS = (".csv", ".htm", ".html", ".markdown", ".md", ".text", ".tsv", ".txt")
_ENCODED = re.compile(r"(?<==\?)[\w.:-]+(?=[*?])")  # the name of the encoding of some words of a header
_PARSERS = (HeaderRegistry(), HeaderRegistry(use_default_map=False))  # the second takes it for mere text


class Mail(NamedTuple):
    """What a message says, and the files that came with it."""

    document: Document
    """Its title is the subject. Quoted lines are a section of their own: someone else wrote them, earlier."""
    attached: list[tuple[str, bytes]]
    """Names and contents."""


class _Text(NamedTuple):
    """What stands in a part that is neither a file nor made of parts."""

    text: str
    is_page: bool


class _Part(EmailMessage):
    """A message, or a part of one. The parser, which knows no bounds, attaches each part before it reads
    what is in that: time grows with the parts, and by lines times depth."""

    def __init__(self, lines: int, numbers: Iterator[int], policy: Any) -> None:
        super().__init__(policy)
        self._lines = lines  # of the whole message
        self._numbers = numbers  # for all its parts
        self._depth = 1

    def attach(self, payload: Any) -> None:
        payload._depth = self._depth + 1
        if next(self._numbers) > _MOST_PARTS:
            raise Unreadable(_TOO_MANY)
        if payload._depth > _DEEPEST:
            raise Unreadable(_TOO_DEEP)
        if payload._depth * self._lines > _MOST_LOOKS:
            raise Unreadable(_TOO_LONG)
        super().attach(payload)

    def get_param(
        self, param: str, failobj: Any = None, header: str = "content-type", unquote: bool = True
    ) -> Any:
        """What a header says of `param`; nothing where it is malformed."""
        with suppress(Exception):  # the library's parser raises errors of many kinds
            found = super().get_param(param, failobj, header, unquote)
            return collapse_rfc2231_value(found) if isinstance(found, tuple) else found
        return failobj

    def get_payload(self, i: Any = None, decode: Any = False) -> Any:
        """What is not to be decoded stays as it came, to be written so."""
        raw = getattr(self, "_payload", None)
        return raw if isinstance(raw, str) and not decode else super().get_payload(i, decode)


class _Policy(EmailPolicy):
    """How parts are parsed, and written as they came."""

    def fold_binary(self, name: str, value: str) -> bytes:
        return f"{name}: {value}\n".encode("ascii", "surrogateescape")


def read_mail(data: bytes) -> Mail:
    """A message as RFC 5322 has it."""
    message = _parsed(data)
    if not (message.keys() and any(message.get(name) for name in (*_NAMED, "Date", "Subject"))):
        raise Unreadable("is not an e-mail: it begins without From, To, Date or Subject")
    subject = _line(message.get("Subject", ""))
    texts, attached = _inside(message, is_whole=True)
    sections = [section for text in texts for section in _sections(text, subject)]
    head = [f"{name}: {people}" for name in _NAMED if (people := _people(message, name))]
    head += [f"Date: {moment}" for moment in _date(message)]
    head += [f"Attached: {', '.join(name for name, _ in attached)}"] if attached else []
    opening = [section.text for section in sections if not section.path]
    written = Section((), "\n".join([*head, *opening]))
    return Mail(Document(subject, [written, *(section for section in sections if section.path)]), attached)


def messages(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The messages in a file, each with the number of its first line: before each stands a line that begins
    with "From ", after an empty one."""
    lines: list[bytes] = []
    begun = size = 0
    empty = True
    number = 0
    while line := stream.readline(LARGEST + 1):
        number += 1
        if empty and line.startswith(b"From "):
            if begun:
                yield begun, b"".join(lines)
            begun, lines, size = number, [], 0
        elif begun:
            size += len(line)
            if size > LARGEST:
                raise Unreadable(f"has a message of more than {LARGEST >> 20} MiB (line {begun}); split it")
            lines.append(line.removeprefix(b">") if re.match(rb">+From ", line) else line)
        elif line.strip():
            raise Unreadable('is not a file of e-mails: it does not begin with a line "From …"')
        empty = not line.strip()
    if begun:
        yield begun, b"".join(lines)


def _parsed(data: bytes) -> _Part:
    lines = max(data.count(b"\n"), data.count(b"\r"))
    if lines > _MOST_LOOKS:
        raise Unreadable(_TOO_LONG)
    factory: Any = partial(_Part, lines, count(1))
    message = message_from_bytes(data, policy=_Policy(header_factory=_header, message_factory=factory))
    assert isinstance(message, _Part)
    return message


def _header(name: str, value: str) -> Any:
    """A header as the standard library has it: with the people it names, or as a moment. What tells of a
    part's content stays as it is, which parameters are found in faster."""
    text = stated_text(value.encode("utf-8", "surrogateescape"))
    if len(text) > _LONGEST:
        text = _first(text, _LONGEST) if name.title() in _NAMED else text[:_LONGEST]
    return text.strip() if name.lower().startswith("content-") else _words(name, text)


def _words(name: str, text: str) -> Any:
    """A header with its encoded words decoded. What is malformed is mere text: there the library's parsers
    raise errors of many kinds."""
    text = _ENCODED.sub(lambda found: stated_codec(found[0]) or found[0], text)
    for parse in _PARSERS:
        with suppress(Exception):
            return parse(name, text)
    return text


def _inside(part: MIMEPart, *, is_whole: bool = False) -> tuple[list[_Text], list[tuple[str, bytes]]]:
    """The texts of a message or part that are not blank, and the files, however deep they lie. Where there
    are several forms of one text it is the plain one, else the page."""
    kind = part.get_content_type()
    if part.is_multipart() and part.get_content_maintype() == "multipart":
        within = [_inside(inner) for inner in part.iter_parts()]
        forms = [texts for texts, _ in within if texts]
        if kind == "multipart/alternative":
            forms = sorted(forms, key=lambda texts: any(text.is_page for text in texts))[:1]
        return list(chain(*forms)), list(chain(*(files for _, files in within)))
    if kind == "message/rfc822" and part.is_multipart():
        return [], [_forwarded(part.get_payload(0))]
    is_text = kind in ("text/plain", "text/html") or kind.startswith("multipart/")
    is_named = part.get_filename() and not (is_whole and is_text)
    if is_named or part.get_content_disposition() == "attachment":
        return [], [_file(part)]
    if not is_text:
        return [], []
    text = clean(stated_text(_content(part), part.get_content_charset()))
    return [_Text(text, kind == "text/html")] if text.strip() else [], []


def _sections(text: _Text, subject: str) -> Iterator[Section]:
    """What a message says, and what it quotes; of a page, the sections of its headings."""
    if text.is_page:
        title, sections = html_document(text.text)
        yield from [Section((), title)] if title not in ("", subject) else []
        yield from sections
        return
    lines = text.text.splitlines()
    own = "\n".join(line for line in lines if not line.startswith(">"))
    quoted = "\n".join(_QUOTED.sub("", line) for line in lines if line.startswith(">"))
    yield Section((), tidy(unwrapped(own)))
    if quoted.strip():
        yield Section(("quoted",), tidy(unwrapped(quoted)))


def _content(part: MIMEPart) -> bytes:
    data = part.get_payload(decode=True)
    return data if isinstance(data, bytes) else b""


def _forwarded(message: Any) -> tuple[str, bytes]:
    return f"{_line(message.get('Subject', '')) or 'message'}.eml", message.as_bytes()


def _file(part: MIMEPart) -> tuple[str, bytes]:
    """Its name and content; text in UTF-8, if another encoding is stated and may be true."""
    name = _line(_words("", part.get_filename() or "")) or "attached"
    name += "" if "." in name else _SUFFIXES.get(part.get_content_type(), "")
    data = _content(part)
    codec = stated_codec(part.get_content_charset()) if name.lower().endswith(_TEXTS) else None
    if codec is None or b"\0" in data or (is_utf_8(data) and not data.isascii()):
        return name, data
    return name, data.decode(codec, "replace").encode("utf-8", "replace")


def _people(message: EmailMessage, name: str) -> str:
    people = _line(message.get(name, ""))
    return people if len(people) <= _MOST_NAMES else f"{_first(people, _MOST_NAMES)}, …"


def _first(people: str, most: int) -> str:
    """Those who fit into so many characters; a comma ends each, but not one within quotes."""
    whole = people[:most].rpartition(",")[0]
    if whole.count('"') % 2:
        whole = whole.rpartition('"')[0].rpartition(",")[0]
    return whole or people[:most]


def _date(message: EmailMessage) -> Iterator[str]:
    """When it was sent, in the sender's time."""
    header = message.get("Date")
    moment = getattr(header, "datetime", None)
    if moment is not None:
        yield f"{moment:%A} {moment.day} {moment:%B %Y}, {moment:%H:%M}"
    elif header:
        yield _line(header)


def _line(header: object) -> str:
    return " ".join(clean(str(header)).split())
