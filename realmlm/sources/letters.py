"""What the letters of a page tell about its lines: which of them are headings."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from realmlm.sources.headings import Heading

Levels = dict[tuple[int, int], int]
"""The levels of lines that are headings, by page and line."""

_LARGER = 1.15  # times the size of most letters: a heading
_SELDOM = 0.3  # share of the letters that may be bold, or larger, where that marks headings
_LONGEST_BOLD = 80  # characters of a heading that is bold but not larger
_LONGEST = 3  # lines of a heading
_LEADER = re.compile(r"(?:\. ?){4}")  # the dots before a page number in a list of contents
_NUMBER = re.compile(r"(?:\d+(?:\.\d+)*\.?|[A-Z]\.|[IVXLC]+\.)\s+")
_LIGATURES = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st", "\0": None}
)


def clean(text: str) -> str:
    """A text without ligatures, NULs and halves of surrogate pairs."""
    return text.translate(_LIGATURES).encode("utf-8", "ignore").decode()


class Line(NamedTuple):
    """A line of a page, how large most of its letters are, and whether all of them are bold."""

    text: str
    size: float = 0.0
    bold: bool = False

    @classmethod
    def of(cls, parts: Sequence[tuple[str, float, bool]]) -> "Iterator[Line]":
        """The line made of these parts, each of one size; none if there is but white space."""
        sizes = Counter[float]()
        for part, size, _ in parts:
            sizes[size] += len("".join(part.split()))
        text = " ".join("".join(part for part, _, _ in parts).split())
        if text:
            bold = all(bold for part, _, bold in parts if part.strip())
            yield cls(text, max(sizes, key=sizes.__getitem__), bold)


def outlined(pages: Sequence[Sequence[Line]], outline: Sequence[tuple[int, Heading]]) -> Levels:
    """The lines that an outline names: of its entries, each with its page, at least half must be found."""
    levels: Levels = {}
    found = 0
    for number, entries in groupby(sorted(outline, key=_page), key=_page):
        places = _places(pages[number]) if number < len(pages) else {}
        for _, heading in entries:
            if place := places.pop(_plain(heading.words), None):
                levels |= {(number, line): heading.level for line in range(*place)}
                found += 1
    return levels if 2 * found >= len(outline) else {}


def _page(entry: tuple[int, Heading]) -> int:
    return entry[0]


def _places(page: Sequence[Line]) -> dict[str, tuple[int, int]]:
    """Where the words of up to three lines in a row first stand on a page."""
    places: dict[str, tuple[int, int]] = {}
    for first in range(len(page)):
        for past in range(first + 1, min(first + _LONGEST, len(page)) + 1):
            words = _plain(" ".join(line.text for line in page[first:past]))
            if words:
                places.setdefault(words, (first, past))
    return places


def _plain(words: str) -> str:
    """A heading without its number, its letters and digits alone."""
    return "".join(filter(str.isalnum, _NUMBER.sub("", words.strip(), count=1).casefold()))


def emphasised(pages: Sequence[Sequence[Line]]) -> Levels:
    """The lines in larger letters than most, the largest uppermost, and below them those in bold that look
    like headings; none where much is so."""
    lines = {(number, place): line for number, page in enumerate(pages) for place, line in enumerate(page)}
    sizes = Counter[float]()
    for line in lines.values():
        sizes[line.size] += len(line.text)
    usual = max(sizes, key=sizes.__getitem__) if sizes else 0.0
    large = {
        place: line.size
        for place, line in lines.items()
        if line.size >= _LARGER * usual > 0 and _says_something(line)
    }
    following = {place: after for (place, _), (_, after) in pairwise(lines.items())}
    bold = {
        place: 0.0
        for place, line in lines.items()
        if line.bold and place not in large and _may_be_heading(line, following.get(place))
    }
    most = _SELDOM * sizes.total()
    several = [some for some in (large, bold) if sum(len(lines[place].text) for place in some) <= most]
    marked = {place: size for some in several for place, size in some.items()}
    ranks = {size: rank for rank, size in enumerate(sorted(set(marked.values()), reverse=True), start=1)}
    return {place: ranks[size] for place, size in marked.items()}


def _says_something(line: Line) -> bool:
    return any(map(str.isalpha, line.text)) and not _LEADER.search(line.text)


def _may_be_heading(line: Line, after: Line | None) -> bool:
    """Does a line in bold begin like a heading and end like one, with other letters and a new sentence after
    it?"""
    if after is None or after.bold or after.text[0].islower():
        return False
    begins = line.text[0].isupper() or line.text[0].isdigit()
    ends = line.text[-1] not in ".,:;" and len(line.text) <= _LONGEST_BOLD
    return begins and ends and _says_something(line)
