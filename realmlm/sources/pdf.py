"""PDF to plain text in sections, through a maintained library.

Such files come from anywhere: one that is damaged, locked, scanned or far too large is refused with a reason,
in bounded time and memory.
"""

import io
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise, takewhile
from typing import Any

from realmlm.errors import require
from realmlm.sources.bounds import LONGEST_S, Unreadable
from realmlm.sources.headings import Document, Heading, cut
from realmlm.sources.letters import Line, clean, emphasised, outlined
from realmlm.sources.wrapping import joined, known_compounds

MOST_CHARACTERS = 50_000_000  # of the text of a PDF
_MOST_PIECES = 50_000  # pieces of text on a page of a PDF: reading takes time by their square
_MOST_ENTRIES = 10_000  # of an outline

_MARGIN = 2  # lines at the top and at the bottom of a page that may be its header and footer
_REPEATED = 0.5  # share of the pages that must have a line there for it to be one
_FULL_LINE = 0.75  # share of the usual width: a shorter line ends its paragraph
# what programs write where no title was given
_NO_TITLE = re.compile(
    r"\W*(?:anonymous|untitled|unspecified|unknown|no title|title|document ?\d*|slide \d+"
    r"|powerpoint presentation|microsoft (?:word|powerpoint|excel))\W*",
    re.IGNORECASE,
)


def pdf_document(data: bytes) -> Document:
    """Title (of the document's properties, else its uppermost heading, else "") and text of a PDF, one line
    for each paragraph, without page headers and footers. Headings are what its outline names, or else what
    stands in larger or bolder letters than the rest."""
    pypdf = require("pypdf", extra="", why="reading PDF")
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of every flaw that it overcomes
    try:
        pdf = pypdf.PdfReader(io.BytesIO(data))
        if pdf.is_encrypted and not pdf.decrypt(""):
            raise Unreadable("is locked with a password; save it without one")
        pages = list(_pages(pdf))
        stated = str((pdf.metadata or {}).get("/Title") or "")
        outline = _outline(pdf)
    except (Unreadable, MemoryError):
        raise
    except pypdf.errors.DependencyError as error:
        cure = "install that library, or save it without encryption"
        raise Unreadable(f"is encrypted ({error}); {cure}") from error
    except Exception as error:  # its authors say that a broken file may raise anything
        why = f"{type(error).__name__}: {error}"
        raise Unreadable(f"cannot be read as a PDF ({why}); it may be damaged") from error
    stated = clean(stated.removeprefix("Microsoft Word - ")).strip()
    pages = _without_margins(pages)
    levels = outlined(pages, outline) or emphasised(pages)
    document = cut("" if _NO_TITLE.fullmatch(stated) else stated, _pdf_pieces(pages, levels))
    if not pages:
        raise Unreadable("has no pages")
    if not document.sections:
        raise Unreadable("has no text, only images; run text recognition (OCR) on it first")
    return document


def _pages(pdf: Any) -> Iterator[list[Line]]:
    """The lines of each page."""
    begun = time.monotonic()
    characters = 0
    for number, page in enumerate(pdf.pages, start=1):
        contents = page.get_contents()
        if contents is not None and len(re.findall(rb"T[jJ]\b", contents.get_data())) > _MOST_PIECES:
            too_many = f"more than {_MOST_PIECES:,} pieces of text on page {number}"
            raise Unreadable(f"has {too_many}; remove that page")
        lines = _page_lines(page)
        characters += sum(len(line.text) for line in lines)
        if characters > MOST_CHARACTERS or time.monotonic() - begun > LONGEST_S:
            limits = f"more than {LONGEST_S:.0f} s to read, or has more than {MOST_CHARACTERS:,} characters"
            raise Unreadable(f"takes {limits}; split it")
        yield lines


def _page_lines(page: Any) -> list[Line]:
    pieces: list[tuple[str, float, bool]] = []  # text, the height of its letters, and whether they are bold

    def visit(text: str, around: list[float], matrix: list[float], font: Any, size: float) -> None:
        height = size * math.hypot(*matrix[2:4]) * math.hypot(*around[2:4])
        bold = "bold" in str((font or {}).get("/BaseFont", "")).lower()
        pieces.append((clean(text), round(height, 1), bold))

    text = clean(page.extract_text(visitor_text=visit))
    if text != "".join(piece for piece, _, _ in pieces):
        pieces = [(text, 0.0, False)]
    lines: list[Line] = []
    line: list[tuple[str, float, bool]] = []
    for piece, height, bold in [*pieces, ("\n", 0.0, False)]:
        for part in piece.splitlines(keepends=True):
            line.append((part, height, bold))
            if part.splitlines()[0] != part:
                lines += Line.of(line)
                line = []
    return lines


def _outline(pdf: Any) -> list[tuple[int, Heading]]:
    """The entries of a document's own list of headings, each with the number of its page."""
    found: list[tuple[int, Heading]] = []

    def gather(entries: Sequence[Any], level: int) -> None:
        for entry in entries[: _MOST_ENTRIES - len(found)]:
            if isinstance(entry, list):
                gather(entry, level + 1)
            elif (page := pdf.get_destination_page_number(entry)) is not None:
                found.append((page, Heading(level, clean(str(entry.title)))))

    try:
        gather(pdf.outline, 1)
    except Exception:  # a broken outline does not keep anyone from reading the pages
        return []
    return found


def _pdf_pieces(pages: list[list[Line]], levels: dict[tuple[int, int], int]) -> Iterator[Heading | str]:
    """Headings, and the paragraphs between them; `levels` are those of the lines that are headings, by page
    and line. Lines of one heading follow each other."""
    lines = [
        (line.text, levels.get((number, place)))
        for number, page in enumerate(pages)
        for place, line in enumerate(page)
    ]
    widths = sorted(len(line) for line, _ in lines)
    full = _FULL_LINE * widths[len(widths) * 9 // 10] if widths else 0
    compounds = known_compounds([line for line, _ in lines])
    for level, some in groupby(lines, key=lambda line: line[1]):
        texts = [line for line, _ in some]
        if level is not None:
            yield Heading(level, joined(texts, compounds))
        else:
            yield from (f"{paragraph}\n" for paragraph in _paragraphs(texts, full, compounds))


def _without_margins(pages: list[list[Line]]) -> list[list[Line]]:
    """Pages without the lines that stand at the top or bottom of most of them, and without page numbers.

    A place is a line's position on its page: 0 and 1 from the top, -1 and -2 from the bottom.
    """
    top = range(_MARGIN)
    bottom = range(-1, -_MARGIN - 1, -1)
    places = [*top, *bottom]
    marks = [
        {place: _mark(page[place].text, number) for place in places if len(page) >= 2 * _MARGIN}
        for number, page in enumerate(pages)
    ]

    def margin(number: int, place: int) -> str | None:
        mark = marks[number].get(place)
        # a page number: pages near by are as far from theirs; left and right pages may differ
        if isinstance(mark, int):
            near = marks[max(number - 2, 0) : number] + marks[number + 1 : number + 3]
            return "#" if mark in (other.get(place) for other in near) else None
        return mark

    seen = Counter((place, margin(number, place)) for number in range(len(pages)) for place in places)
    repeated = {key for key, count in seen.items() if key[1] and count >= max(3, _REPEATED * len(pages))}

    def body(number: int, page: list[Line]) -> list[Line]:
        def count(places: range) -> int:
            return len(list(takewhile(lambda place: (place, margin(number, place)) in repeated, places)))

        return page[count(top) : len(page) - count(bottom)]

    return [body(number, page) for number, page in enumerate(pages)]


def _mark(line: str, page: int) -> str | int | None:
    """What a header or footer has in common with those of other pages: its words, or, if it is a page number,
    how far that is ahead of the page's own count."""
    number = re.fullmatch(r"\W*(?:(\d{1,9})|([ivxlc]+))[^\w/]*(?:/\W*\d+\W*)?", line)
    if number:
        return (int(number[1]) if number[1] else _roman(number[2])) - page
    words = re.sub(r"\d+|\b[ivxlc]+\b", "#", line)
    return words if re.search(r"[^\W\d_]", words) else None  # numbers alone are a row of a table


def _roman(numeral: str) -> int:
    values = [{"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}[letter] for letter in numeral]
    return sum(-value if value < following else value for value, following in pairwise([*values, 0]))


def _paragraphs(lines: list[str], full: float, compounds: frozenset[str]) -> Iterator[str]:
    """Lines joined into paragraphs; a word cut at the end of a line is made whole again. One shorter than
    `full` ends its paragraph."""
    paragraph: list[str] = []
    for line in lines:
        may_be_heading = len(line) < full and line[-1].isalnum()
        if paragraph and paragraph[-1].endswith((".", "!", "?")) and may_be_heading:
            yield joined(paragraph, compounds)
            paragraph = []
        paragraph.append(line)
        if len(line) < full:
            yield joined(paragraph, compounds)
            paragraph = []
    if paragraph:
        yield joined(paragraph, compounds)
