"""In which encoding a file's bytes are a text: what it says itself, and what can be told from the bytes."""

import codecs
import re

_HEAD = 1024  # bytes in which a page declares its encoding, as browsers look for it
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)
_DECLARED = re.compile(
    rb"""(?:<meta\s[^>]*?charset|^\s*<\?xml\s[^>]*?encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE
)
_WIDER = {  # what old programs declared is read as the larger encoding that they wrote
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
_ASCII = bytes(range(32, 127)) + rb"\n +A-"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LEAST_NULS = 8  # of bytes that are taken for UTF-16 without a mark
_CONTROLS = 100  # one control character in so many bytes is the most that a text has


def utf_16_codec(head: bytes) -> str | None:
    """The codec of UTF-16, told by its mark or by NUL bytes: mostly every second and hardly another. None
    where it is another encoding."""
    if head.startswith(_UTF_16):
        return "utf-16"
    nuls = [head[first::2].count(0) for first in (0, 1)]
    if min(nuls) * 50 > max(nuls) or max(nuls) < max(_LEAST_NULS, len(head) * 3 // 8):
        return None
    return "utf-16-be" if nuls[0] > nuls[1] else "utf-16-le"


def declared_text(page: bytes) -> str | None:
    """The text of an HTML page in the encoding that it declares; None where there is none, or it is unknown
    or not what the bytes are in.

    A byte order mark goes before what is declared, and so does UTF-8 where letters beyond ASCII are in it,
    which nothing else looks like: such a page gives None too.
    """
    found = _DECLARED.search(_COMMENT.sub(b"", page[:_HEAD]))
    if (
        found is None
        or page.startswith((codecs.BOM_UTF8, *_UTF_16))
        or (not page.isascii() and _is_utf_8(page))
    ):
        return None
    try:
        name = codecs.lookup(found[1].decode("ascii")).name
        name = _WIDER.get(name, name)
        # in such an encoding the page could not have said so
        if _ASCII.decode(name) != _ASCII.decode("ascii"):
            return None
        return page.decode(name)
    except (LookupError, ValueError):
        return None


def _is_utf_8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def windows_text(data: bytes) -> str | None:
    """The text of bytes in Windows-1252, or None where they do not look like text."""
    controls = sum(data.count(byte) for byte in range(32) if byte not in b"\t\n\v\f\r")
    try:
        return None if 0 in data or controls * _CONTROLS > len(data) else data.decode("cp1252")
    except UnicodeDecodeError:
        return None
