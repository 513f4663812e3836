"""What keeps the time and memory for a document in proportion to its size, whoever wrote it."""

import re
from collections import Counter
from collections.abc import Iterator

LARGEST = 2**28  # bytes of a document
LONGEST_S = 300.0  # seconds for a document that is read page by page, or part by part
PART = 2**21  # characters of a text that are cut into passages at once
_DEEPEST = 256  # elements of a page within one another; browsers stop at 512
_MOST_FORMATS = 16  # <b>, <i> … that are open: each new paragraph opens all of them again
_MOST_TAGS = 2**22  # of a page: its tree takes some 500 bytes for each
_MOST_OPEN = 64  # brackets and tags of a wiki page that nothing closes

_OLE = bytes.fromhex("d0cf11e0a1b11ae1")  # how a compound file begins
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")  # and what one with a password holds

_VOID = "area base br col embed hr img input keygen link meta param source track wbr"
_FORMATTING = "a b big code em font i nobr s small strike strong tt u"
_BLOCKS = """
    article aside blockquote dd div dl dt footer form h1 h2 h3 h4 h5 h6 header li main nav ol p pre section
    table tbody td tfoot th thead tr ul
"""
_LEFT_OPEN = "br wbr hr meta link img li dt dd th td tr"
_CELLS = ("td", "th", "p")
_ROWS = ("tr", *_CELLS)
_CLOSES = {  # elements that this one closes, if they are the innermost; a block closes a paragraph
    "li": ("li", "p"),
    "dt": ("dt", "dd", "p"),
    "dd": ("dt", "dd", "p"),
    "td": _CELLS,
    "th": _CELLS,
    "tr": _ROWS,
    "tbody": ("tbody", "thead", *_ROWS),
    "tfoot": ("tbody", "thead", *_ROWS),
    "option": ("option",),
}
_WITHOUT_CONTENT = frozenset(_VOID.split())
_KEPT_OPEN = frozenset(_FORMATTING.split())  # until their own end, across the ends of other elements
_BREAKS = frozenset(_BLOCKS.split())
_SINGLE = frozenset(_LEFT_OPEN.split())  # tags that wiki pages need not close
_CROWDED = re.compile(r"(<[a-z][^\s/>]*+)(?:[^>\s/]*+[\s/]++){1000}[^>]*+", re.IGNORECASE)  # by attributes
_TAG = re.compile(r"<(/?)([a-z][^\s/>]*)", re.IGNORECASE)
_OPENS = r"\{\{|\[\[|\[(?=\w{2,9}:)|<!--|<(?P<tag>[a-z]{1,16})\b[^<>/]*+(?!/)>?"
_WIKI = re.compile(rf"(?P<open>{_OPENS})|\}}\}}|\]\]|\]|-->|</[a-z]{{1,16}}\b", re.IGNORECASE)
_CLOSED_BY = {"{{": "}}", "[[": "]]", "[": "]", "<!--": "-->"}


class Unreadable(Exception):
    """Why a document cannot be read."""


def refuse_locked(data: bytes) -> None:
    """Raise if this is what Office makes of a document that has a password."""
    if data.startswith(_OLE) and _ENCRYPTED in data:
        raise Unreadable("is locked with a password; save it without one")


def parts(text: str, most: int = PART) -> Iterator[str]:
    """A text in parts of at most `most` characters, cut after a line if one ends there, else after a word."""
    start = 0
    while len(text) - start > most:
        ends = (text.rfind(sign, start, start + most) for sign in "\n ")
        end = next((at + 1 for at in ends if at >= start), start + most)
        yield text[start:end]
        start = end
    yield text[start:]


def shallow(html: str) -> str:
    """A page in which no element lies deeper than some hundred others; each that did is a line break now, or
    nothing, and its words stay. Parsers look through all open elements at each tag: without this, time grows
    by the square of the depth."""
    tags = html.count("<")
    if tags > _MOST_TAGS:
        raise Unreadable(f"has more than {_MOST_TAGS:,} tags; split it")
    html = _CROWDED.sub(r"\1", html)
    return _Depth().limit(html) if tags > _DEEPEST else html


class _Depth:
    """Counts which elements are open, nearly as browsers do."""

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._open: Counter[str] = Counter()  # how many of each name are in the stack, or are formatting
        self._formats = 0

    def limit(self, html: str) -> str:
        return _TAG.sub(self._tag, html)

    def _tag(self, found: re.Match[str]) -> str:
        name = found[2].lower()
        if name in _WITHOUT_CONTENT:
            return found[0]
        if name in _KEPT_OPEN:
            return self._format(found, name)
        if found[1]:
            if not self._open[name]:  # of one that was left out, or of none
                return self._left_out(name) if len(self._stack) >= _DEEPEST else found[0]
            while self._pop() != name:
                pass
            return found[0]
        closes = () if self._in_drawing else _CLOSES.get(name, ("p",) if name in _BREAKS else ())
        while self._stack and self._stack[-1] in closes:
            self._pop()
        if len(self._stack) >= _DEEPEST:
            return self._left_out(name)
        self._stack.append(name)
        self._open[name] += 1
        return found[0]

    @property
    def _in_drawing(self) -> bool:
        return self._open["svg"] + self._open["math"] > 0

    def _left_out(self, name: str) -> str:
        """What a tag begins with in place of this name: an element without content. Its attributes may stay.
        A line break would end a drawing."""
        return "<br " if name in _BREAKS and not self._in_drawing else "<wbr "

    def _format(self, found: re.Match[str], name: str) -> str:
        if found[1]:
            self._formats -= self._open[name] > 0
            self._open[name] = max(0, self._open[name] - 1)
        elif self._formats >= _MOST_FORMATS:
            return self._left_out(name)
        else:
            self._formats += 1
            self._open[name] += 1
        return found[0]

    def _pop(self) -> str:
        name = self._stack.pop()
        self._open[name] -= 1
        return name


def balanced(wikitext: str) -> str:
    """A wiki page without the brackets and tags that nothing closes, if they are many: the parser looks for
    the end of each to the end of the page."""
    unclosed: list[tuple[int, int]] = []
    stack: list[tuple[str, int, int]] = []  # what would close it, and where it stands
    waiting: Counter[str] = Counter()
    for found in _WIKI.finditer(wikitext):
        if found["open"]:
            tag = (found["tag"] or "").lower()
            closer = f"</{tag}" if tag else _CLOSED_BY[found["open"]]
            if tag not in _SINGLE:
                stack.append((closer, *found.span()))
                waiting[closer] += 1
        elif waiting[closer := found[0].lower()]:
            while (last := stack.pop())[0] != closer:
                waiting[last[0]] -= 1
                unclosed.append(last[1:])
            waiting[closer] -= 1
    unclosed += [place[1:] for place in stack]
    if len(unclosed) <= _MOST_OPEN:
        return wikitext
    pieces = []
    past = 0
    for start, end in sorted(unclosed):
        pieces.append(wikitext[past:start])
        past = end
    return "".join([*pieces, wikitext[past:]])
