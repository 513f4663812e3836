"""Finds out in which encoding a file's bytes are text: from what it declares, and from the bytes."""

import codecs
import io
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

_HEAD = 1024  # bytes at the beginning of a page in which browsers look for its declared encoding
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)
_DECLARED = re.compile(
    rb"""(?:<meta\s[^>]*?charset|^\s*<\?xml\s[^>]*?encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE
)
_WIDER = {  # old programs declared the first and wrote the second, which contains it
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
_NO_ENCODINGS = ("idna", "punycode", "raw-unicode-escape", "unicode-escape")  # but Python decodes them
_ASCII = bytes(range(32, 127)) + rb"\n +A-"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LEAST_NULS = 8  # NUL bytes for a file without a byte order mark to be taken for UTF-16
_CONTROLS = 100  # text has at most one control character in so many bytes


def utf_16_codec(head: bytes) -> str | None:
    """The codec for a file that is UTF-16, as a byte order mark shows, or NULs in nearly every second byte
    and hardly any other; None for other files. `head` is how the file begins."""
    if head.startswith(_UTF_16):
        return "utf-16"
    nuls = [head[first::2].count(0) for first in (0, 1)]
    if min(nuls) * 50 > max(nuls) or max(nuls) < max(_LEAST_NULS, len(head) * 3 // 8):
        return None
    return "utf-16-be" if nuls[0] > nuls[1] else "utf-16-le"


def utf_16_lines(stream: Any, codec: str, most: int) -> Iterator[str]:
    """The lines of a file in UTF-16; of one with more than `most` characters the first `most` + 1."""
    text = io.TextIOWrapper(stream, codec, newline="\n")
    yield from iter(partial(text.readline, most + 1), "")


def declared_text(page: bytes) -> str | None:
    """The text of an HTML page in the encoding that it declares; None if it declares none, or one that is
    unknown or that its bytes are not in.

    A byte order mark outranks what is declared. So does valid UTF-8 with letters beyond ASCII, which no other
    encoding looks like. Both give None, too.
    """
    found = _DECLARED.search(_COMMENT.sub(b"", page[:_HEAD]))
    marked = page.startswith((codecs.BOM_UTF8, *_UTF_16))
    if found is None or marked or (not page.isascii() and is_utf_8(page)):
        return None
    name = _name(found[1].decode("ascii"))
    if name is None:
        return None
    name = _WIDER.get(name, name)
    try:
        # an encoding in which the declaration itself would read otherwise cannot be the page's
        return page.decode(name) if _ASCII.decode(name) == _ASCII.decode("ascii") else None
    except ValueError:
        return None


def stated_codec(stated: str | None) -> str | None:
    """The codec for bytes that come with the name of their encoding. None if that tells nothing: if it is
    missing or unknown, or ASCII, which programs say of anything, or UTF-8, which bytes show themselves."""
    name = _name(stated or "ascii")
    return None if name in (None, "ascii", "utf-8") else _WIDER.get(name, name)


def stated_text(data: bytes, stated: str | None = None) -> str:
    """The text of bytes that come with the name of their encoding. Where that tells nothing they are what
    they declare themselves to be, UTF-8, or Windows-1252 if no letter beyond ASCII is UTF-8. A replacement
    character stands for what is damaged."""
    if codec := stated_codec(stated):
        return data.decode(codec, "replace")
    if (declared := declared_text(data)) is not None:
        return declared
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    if is_utf_8(data) or not text.replace("\ufffd", "").isascii():
        return text
    return windows_text(data) or text


def _name(encoding: str) -> str | None:
    """What Python calls an encoding; None if it knows none that is called so."""
    try:
        name = codecs.lookup(encoding).name
        b"a".decode(name)  # complains about what is no encoding of text
    except (LookupError, ValueError):
        return None
    return None if name in _NO_ENCODINGS else name


def is_utf_8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def looks_like_text(data: bytes) -> bool:
    """Have bytes no NULs and hardly any other control characters?"""
    controls = sum(data.count(byte) for byte in range(32) if byte not in b"\t\n\v\f\r")
    return 0 not in data and controls * _CONTROLS <= len(data)


def windows_text(data: bytes) -> str | None:
    """The text of bytes in Windows-1252, or None if they do not look like text."""
    try:
        return data.decode("cp1252") if looks_like_text(data) else None
    except UnicodeDecodeError:
        return None
