"""The headings of a document cut it into sections, and the path of headings above a section names it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

BETWEEN = " › "
"""Stands between the titles of a path, "Handbook › Benefits › Vacation"."""

_LONGEST = 120  # characters of a heading; what is longer is text in large letters
_LONGEST_PATH = 100  # characters: models read 32 wordpieces of a title
_SITE = re.compile(r"\s+[|–—·•›»:-]\s+")  # "Opening hours | Town library"


class Heading(NamedTuple):
    """A heading, where it stands in its document. Level 1 is above level 2."""

    level: int
    words: str


class Section(NamedTuple):
    """The text from one heading to the next, and the headings above it."""

    path: tuple[str, ...]
    text: str


class Document(NamedTuple):
    """A document that has headings; its title is empty if it has none."""

    title: str
    sections: list[Section]


@dataclass
class _Part:
    """A heading, those above it, and what stands under it."""

    path: tuple[Heading, ...]
    text: str
    headings: list[str] = field(default_factory=list)  # lines before the text: its own, and empty ones' above

    @property
    def lines(self) -> list[str]:
        return [*self.headings, *filter(None, [self.text])]


def tidy(text: str) -> str:
    """One space between words, no empty lines."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def cut(title: str, pieces: Iterable[Heading | str]) -> Document:
    """The sections of a document, given as headings and the pieces of text between them.

    Without a `title` of its own, the document has that of its uppermost heading, if there is one such. A
    section's text begins with its heading. One without text under it begins the section below it; if there is
    none below it, it is a line of a section of such headings: no word is lost.
    """
    parts = list(_parts(pieces))
    title = " ".join(title.split())
    headings = [part.path[-1] for part in parts if part.path]
    top = min((heading.level for heading in headings), default=0)
    uppermost = [heading for heading in headings if heading.level == top]
    if len(uppermost) == 1 and (not title or uppermost[0].words in (title, *_SITE.split(title))):
        title = title or uppermost[0].words
        _take_out(uppermost[0], parts)
    return Document(title, list(_sections(parts)))


def _parts(pieces: Iterable[Heading | str]) -> Iterator[_Part]:
    above: list[Heading] = []
    written: list[str] = []
    part = _Part((), "")
    for piece in pieces:
        if isinstance(piece, str):
            written.append(piece)
            continue
        words = " ".join(piece.words.split())
        if not words or len(words) > _LONGEST:
            written.append(f"\n{words}\n")
            continue
        part.text = tidy("".join(written))
        yield part
        written = []
        above = [heading for heading in above if heading.level < piece.level]
        above.append(Heading(piece.level, words))
        part = _Part(tuple(above), "", [words])
    part.text = tidy("".join(written))
    yield part


def _take_out(top: Heading, parts: Sequence[_Part]) -> None:
    """Take the heading that is the document's title out of all paths, and out of the text if there is any
    other."""
    others = any(part.text or part.path[-1:] not in ((), (top,)) for part in parts)
    for part in parts:
        if part.path[-1:] == (top,) and others:
            part.headings = []
        part.path = tuple(heading for heading in part.path if heading != top)


def _sections(parts: Sequence[_Part]) -> Iterator[Section]:
    """The sections of these parts. A part without text goes into the one after it if that is below it."""
    waiting: list[str] = []  # headings
    bare: list[str] = []  # headings with nothing below them
    above: tuple[str, ...] = ()
    for number, part in enumerate(parts):
        path = tuple(heading.words for heading in part.path)
        below = parts[number + 1].path if number + 1 < len(parts) else ()
        if bare and (part.text or path[:-1] != above):
            yield Section(above, "\n".join(bare))
            bare = []
        waiting += part.lines
        if part.text:
            yield Section(path, "\n".join(waiting))
        elif len(below) > len(part.path) and below[: len(part.path)] == part.path:
            continue
        else:
            bare += waiting
            above = path[:-1]
        waiting = []
    if bare:
        yield Section(above, "\n".join(bare))


def path_title(title: str, path: Sequence[str]) -> str:
    """The title of a section's passages. Of a path too long to be read, the inner part is left out first and
    then the document's title: the nearer to the text, the more a heading says of it."""
    names = [name for name, _ in groupby([title, *path])]
    shown = names
    for left_out in range(1, len(names)):
        if len(BETWEEN.join(shown)) <= _LONGEST_PATH:
            break
        shown = [title, "…", *names[left_out + 1 :]] if left_out + 1 < len(names) else names[-1:]
    return BETWEEN.join(shown)
