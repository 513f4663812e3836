"""PDF and Word documents to plain text, each through a maintained library (extra `documents`).

Such files come from anywhere: one that is damaged, locked, scanned or far too large is refused with a reason,
in bounded time and memory.
"""

import io
import logging
import re
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, takewhile
from typing import Any

from realmlm.errors import require
from realmlm.sources.bounds import LARGEST, LONGEST_S, Unreadable
from realmlm.sources.markup import table_lines
from realmlm.sources.wrapping import joined, known_compounds

_LARGEST_XML = 2**26  # bytes of a Word document's XML, decompressed: its tree takes ten times as much
MOST_CHARACTERS = 50_000_000  # of the text of a PDF
_MOST_PIECES = 50_000  # pieces of text on a page of a PDF: reading takes time by their square

_MARGIN = 2  # lines at the top and at the bottom of a page that may be its header and footer
_REPEATED = 0.5  # share of the pages that must have a line there for it to be one
_FULL_LINE = 0.75  # share of the usual width: a shorter line ends its paragraph
# what programs write where no title was given
_NO_TITLE = re.compile(
    r"\W*(?:anonymous|untitled|unspecified|unknown|no title|title|document ?\d*|slide \d+"
    r"|powerpoint presentation|microsoft (?:word|powerpoint|excel))\W*",
    re.IGNORECASE,
)
_LIGATURES = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st", "\0": None}
)


def pdf_to_text(data: bytes) -> tuple[str, str]:
    """Title (of the document's properties, else "") and text of a PDF, one line for each paragraph, without
    page headers and footers."""
    pypdf = require("pypdf", extra="documents", why="reading PDF")
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of every flaw that it overcomes
    try:
        pdf = pypdf.PdfReader(io.BytesIO(data))
        if pdf.is_encrypted and not pdf.decrypt(""):
            raise Unreadable("is locked with a password; save it without one")
        pages = list(_pages(pdf))
        stated = str((pdf.metadata or {}).get("/Title") or "")
    except (Unreadable, MemoryError):
        raise
    except pypdf.errors.DependencyError as error:
        cure = "install that library, or save it without encryption"
        raise Unreadable(f"is encrypted ({error}); {cure}") from error
    except Exception as error:  # its authors say that a broken file may raise anything
        why = f"{type(error).__name__}: {error}"
        raise Unreadable(f"cannot be read as a PDF ({why}); it may be damaged") from error
    text = "\n".join(_paragraphs([line for page in _without_margins(pages) for line in page]))
    if not pages:
        raise Unreadable("has no pages")
    if not text:
        raise Unreadable("has no text, only images; run text recognition (OCR) on it first")
    stated = _clean(stated.removeprefix("Microsoft Word - ")).strip()
    return "" if _NO_TITLE.fullmatch(stated) else stated, text


def _pages(pdf: Any) -> Iterator[list[str]]:
    """The lines of each page."""
    begun = time.monotonic()
    characters = 0
    for number, page in enumerate(pdf.pages, start=1):
        contents = page.get_contents()
        if contents is not None and len(re.findall(rb"T[jJ]\b", contents.get_data())) > _MOST_PIECES:
            too_many = f"more than {_MOST_PIECES:,} pieces of text on page {number}"
            raise Unreadable(f"has {too_many}; remove that page")
        text = _clean(page.extract_text())
        characters += len(text)
        if characters > MOST_CHARACTERS or time.monotonic() - begun > LONGEST_S:
            limits = f"more than {LONGEST_S:.0f} s to read, or has more than {MOST_CHARACTERS:,} characters"
            raise Unreadable(f"takes {limits}; split it")
        yield [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def _clean(text: str) -> str:
    return text.translate(_LIGATURES).encode("utf-8", "ignore").decode()


def _without_margins(pages: list[list[str]]) -> list[list[str]]:
    """Pages without the lines that stand at the top or bottom of most of them, and without page numbers.

    A place is a line's position on its page: 0 and 1 from the top, -1 and -2 from the bottom.
    """
    top = range(_MARGIN)
    bottom = range(-1, -_MARGIN - 1, -1)
    places = [*top, *bottom]
    marks = [
        {place: _mark(page[place], number) for place in places if len(page) >= 2 * _MARGIN}
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

    def body(number: int, page: list[str]) -> list[str]:
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


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Lines joined into paragraphs; a word cut at the end of a line is made whole again."""
    widths = sorted(map(len, lines))
    full = _FULL_LINE * widths[len(widths) * 9 // 10] if widths else 0
    compounds = known_compounds(lines)
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


def word_to_text(data: bytes) -> tuple[str, str]:
    """Title (of the document's properties, else its first heading, else "") and text of a Word document, one
    line for each paragraph or row of a table."""
    docx = require("docx", extra="documents", why="reading Word documents")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as parts:
            sizes = [(part.filename.endswith((".xml", ".rels")), part.file_size) for part in parts.infolist()]
        xml = sum(size for is_xml, size in sizes if is_xml)
        if sum(size for _, size in sizes) > LARGEST or xml > _LARGEST_XML:
            raise Unreadable("unpacks to more than a document may hold; split it")
        document = docx.Document(io.BytesIO(data))
        lines, heading = _word_lines(document)
        stated = str(document.core_properties.title or "")
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # errors of zip files and of XML, beside its own
        why = f"{type(error).__name__}: {error}"
        raise Unreadable(f"cannot be read as a Word document (.docx) ({why})") from error
    stated = "" if stated == "Word Document" else stated  # python-docx's title where there are no properties
    return _clean(stated) or heading, "\n".join(lines)


def _word_lines(document: Any) -> tuple[list[str], str]:
    """The lines of a document, and its first heading."""
    names = {style.style_id: str(style.name) for style in document.styles}
    lines: list[str] = []
    heading = ""
    for element in document.element.body.iter(_word("p"), _word("tbl")):
        if next(element.iterancestors(_word("tbl")), None) is not None:  # it comes with its row
            continue
        if element.tag == _word("tbl"):
            lines += filter(None, _word_table(element))
            continue
        line = _words(element)
        if not heading and re.match("Title|Heading", names.get(element.style or "", "")):
            heading = line
        lines += [line] if line else []
    return lines, heading


def _word_table(table: Any) -> list[str]:
    """A line for each row. The first is a header if the table says so, as Word's do by default."""

    def own(kind: str, within: Any) -> list[Any]:
        inside = within.iter(_word(kind))
        return [found for found in inside if next(found.iterancestors(within.tag)) is within]

    rows = [
        [" ".join(filter(None, map(_words, cell.iter(_word("p"))))) for cell in own("tc", row)]
        for row in own("tr", table)
    ]
    looks = [look.get(_word("firstRow")) for look in own("tblLook", table)]
    return table_lines(rows, header=bool(own("tblHeader", table)) or "1" in looks)


def _words(paragraph: Any) -> str:
    """The text of a paragraph, without text boxes anchored in it and without what was deleted or moved."""
    pieces = (
        _SIGNS.get(piece.tag, piece.text or "")
        for piece in paragraph.iter(_word("t"), *_SIGNS)
        if next(piece.iterancestors(_word("p"))) is paragraph
        and next(piece.iterancestors(*_LEFT_OUT), None) is None
    )
    return " ".join(_clean("".join(pieces)).split())


def _word(name: str) -> str:
    return f"{{http://schemas.openxmlformats.org/wordprocessingml/2006/main}}{name}"


_SIGNS = {_word("tab"): " ", _word("br"): " ", _word("cr"): " ", _word("noBreakHyphen"): "-"}
# repeats the element beside it for older programs
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_LEFT_OUT = (_word("del"), _word("moveFrom"), _FALLBACK)
