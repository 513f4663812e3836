"""E-mails, one each (.eml) or many in a file (.mbox)."""

import re
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.headerregistry import HeaderRegistry
from email.message import EmailMessage, MIMEPart
from itertools import takewhile
from typing import Any, BinaryIO, NamedTuple

from realmlm.sources.bounds import LARGEST, Unreadable
from realmlm.sources.headings import Document, Section, tidy
from realmlm.sources.letters import clean
from realmlm.sources.limited import html_document
from realmlm.sources.wrapping import unwrapped

_NAMED = ("From", "To", "Cc")
_QUOTED = re.compile(r"^(?:>[ \t]?)+", re.MULTILINE)
_MOST_NAMES = 300  # characters of the people a message went to
_DEEPEST = 50  # parts within one another; messages forwarded many times have some ten
_MOST_PARTS = 1000
_LONGEST = 1000  # characters of a header that are looked at: parsing takes time by their square,
_LONGEST_KIND = 300  # most of all for the kind of a part
_TOO_MANY = f"has more than {_MOST_PARTS:,} parts"
_TOO_DEEP = f"has parts that lie {_DEEPEST} deep within one another"
_parse_header = HeaderRegistry()


class Mail(NamedTuple):
    """What a message says, and the files that came with it."""

    document: Document
    """Its title is the subject. Quoted lines are a section of their own: someone else wrote them, earlier."""
    attached: list[tuple[str, bytes]]
    """Names and contents."""


def read_mail(data: bytes) -> Mail:
    """A message as RFC 5322 has it."""
    if data.lower().count(b"\ncontent-type:") > _MOST_PARTS:
        raise Unreadable(_TOO_MANY)
    try:
        message = message_from_bytes(data, policy=policy.default.clone(header_factory=_header))
    except RecursionError as error:
        raise Unreadable(_TOO_DEEP) from error
    assert isinstance(message, EmailMessage)
    if not (message.keys() and any(message.get(name) for name in (*_NAMED, "Date", "Subject"))):
        raise Unreadable("is not an e-mail: it begins without From, To, Date or Subject")
    _refuse_deep(message)
    body = message.get_body(preferencelist=("plain", "html"))
    subject = _line(message.get("Subject", ""))
    sections = list(_sections(body, subject)) if body else []
    attached = list(_attached(message))
    head = [f"{name}: {_people(message, name)}" for name in _NAMED if message.get(name)]
    head += [f"Date: {moment}" for moment in _date(message)]
    head += [f"Attached: {', '.join(name for name, _ in attached)}"] if attached else []
    opening = [section.text for section in takewhile(lambda section: not section.path, sections)]
    written = Section((), "\n".join([*head, *opening]))
    return Mail(Document(subject, [written, *sections[len(opening) :]]), attached)


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


def _header(name: str, value: str) -> Any:
    return _parse_header(name, value[: _LONGEST_KIND if name.lower() == "content-type" else _LONGEST])


def _refuse_deep(message: MIMEPart) -> None:
    """Libraries look into parts by calling themselves."""
    layer: list[MIMEPart] = [message]
    count = 0
    for _ in range(_DEEPEST):
        layer = [part for outer in layer if outer.is_multipart() for part in outer.iter_parts()]
        count += len(layer)
        if count > _MOST_PARTS:
            raise Unreadable(_TOO_MANY)
        if not layer:
            return
    raise Unreadable(_TOO_DEEP)


def _sections(body: MIMEPart, subject: str) -> Iterator[Section]:
    """What a message says, and what it quotes; of a page, the sections of its headings."""
    text = clean(_decoded(body))
    if body.get_content_subtype() == "html":
        title, sections = html_document(text)
        yield from [Section((), title)] if title not in ("", subject) else []
        yield from sections
        return
    lines = text.splitlines()
    own = "\n".join(line for line in lines if not line.startswith(">"))
    quoted = "\n".join(_QUOTED.sub("", line) for line in lines if line.startswith(">"))
    yield Section((), tidy(unwrapped(own)))
    if quoted.strip():
        yield Section(("quoted",), tidy(unwrapped(quoted)))


def _decoded(part: MIMEPart) -> str:
    """The text of a part, also where the name of its encoding is unknown or wrong."""
    try:
        return str(part.get_content())
    except (LookupError, ValueError):
        data = part.get_payload(decode=True)
        return data.decode("utf-8", "replace") if isinstance(data, bytes) else ""


def _attached(message: EmailMessage) -> Iterator[tuple[str, bytes]]:
    """The files that came with it and have a name; a message that was forwarded is one."""
    for part in message.iter_attachments():
        if part.get_content_type() == "message/rfc822":
            inner = part.get_content()
            yield f"{_line(inner.get('Subject', '')) or 'message'}.eml", inner.as_bytes()
        elif name := part.get_filename():
            data = part.get_payload(decode=True)
            yield _line(name), data if isinstance(data, bytes) else b""


def _people(message: EmailMessage, name: str) -> str:
    people = _line(message.get(name, ""))
    return people if len(people) <= _MOST_NAMES else f"{people[:_MOST_NAMES].rpartition(',')[0]}, …"


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
