"""OpenDocument text and presentations, PowerPoint and e-books: archives of XML or pages.

Such files come from anywhere: one that is damaged, locked or far too large is refused with a reason.
"""

import io
import posixpath
import re
import zipfile
from collections.abc import Callable, Collection, Iterator
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from realmlm.sources.bounds import LARGEST, Unreadable, refuse_locked
from realmlm.sources.encodings import declared_text
from realmlm.sources.headings import Document, Heading, Section, cut
from realmlm.sources.letters import clean
from realmlm.sources.limited import html_document
from realmlm.sources.markup import table_lines

_LARGEST_XML = 2**26  # bytes of XML, unpacked: its tree takes ten times as much
_Pieces = Iterator[Heading | str]


class _Archive:
    """The parts of a file."""

    def __init__(self, data: bytes) -> None:
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        if sum(part.file_size for part in self._zip.infolist()) > LARGEST:
            raise Unreadable("unpacks to more than a document may hold; split it")
        self._xml_left = _LARGEST_XML

    def __contains__(self, name: str) -> bool:
        return name in self._zip.NameToInfo

    def bytes(self, name: str) -> bytes:
        return self._zip.read(name)

    def xml(self, name: str) -> Element:
        self._xml_left -= self._zip.getinfo(name).file_size
        if self._xml_left < 0:
            raise Unreadable("unpacks to more than a document may hold; split it")
        return ElementTree.fromstring(self.bytes(name))


def _read(data: bytes, what: str, parse: Callable[[_Archive], Document]) -> Document:
    refuse_locked(data)
    try:
        return parse(_Archive(data))
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # errors of zip files and of XML, parts that are missing
        why = f"{type(error).__name__}: {error}"
        raise Unreadable(f"cannot be read as {what} ({why})") from error


def _blocks(top: Element, kinds: Collection[str], closed: Collection[str]) -> Iterator[Element]:
    """The elements of these kinds, in order; what is `closed` is not looked into."""
    stack = [top]
    while stack:
        element = stack.pop()
        if element.tag in kinds:
            yield element
        if element is top or element.tag not in closed:
            stack += reversed(element)


def _said(paragraph: Element, signs: Collection[str], left_out: Collection[str]) -> str:
    """The words of a paragraph, white space for each of its signs."""
    pieces: list[str] = []
    stack: list[Element | str] = [paragraph]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            pieces.append(item)
        elif item is paragraph or item.tag not in left_out:
            pieces.append(" " if item.tag in signs else item.text or "")
            for inner in reversed(item):
                stack += [inner.tail or "", inner]
    return " ".join(clean("".join(pieces)).split())


def _named(prefix: str) -> Callable[[str], str]:
    return lambda name: f"{{{prefix}}}{name}"


# --- OpenDocument -------------------------------------------------------------------------------------------

_OPEN = "urn:oasis:names:tc:opendocument:xmlns"
_OFFICE, _TEXT, _TABLE, _STYLE, _DRAW, _PRESENTATION = (
    _named(f"{_OPEN}:{part}:1.0") for part in ("office", "text", "table", "style", "drawing", "presentation")
)
_DUBLIN = _named("http://purl.org/dc/elements/1.1/")
_PARAGRAPHS = (_TEXT("p"), _TEXT("h"))
_OPEN_SIGNS = (_TEXT("s"), _TEXT("tab"), _TEXT("line-break"))
_UNSAID = (  # comments, what was deleted, lists of contents
    _OFFICE("annotation"),
    _OFFICE("forms"),
    _TEXT("note-citation"),
    _TEXT("table-of-content"),
    _TEXT("tracked-changes"),
)
_CELLS = (_TABLE("table-cell"), _TABLE("covered-table-cell"))
_MOST_COLUMNS = 1000  # of a table: a cell may say that it is repeated


def open_document(data: bytes) -> Document:
    """Title and text of an OpenDocument text or presentation (.odt, .odp), one line for each paragraph or row
    of a table; the titles of slides are headings."""
    return _read(data, "an OpenDocument file", _open_document)


def _open_document(archive: _Archive) -> Document:
    if "META-INF/manifest.xml" in archive and b"encryption-data" in archive.bytes("META-INF/manifest.xml"):
        raise Unreadable("is locked with a password; save it without one")
    stated = archive.xml("meta.xml").findtext(f".//{_DUBLIN('title')}") if "meta.xml" in archive else None
    content = archive.xml("content.xml")
    slides = list(content.iter(_DRAW("page")))
    pieces = (piece for slide in slides for piece in _open_slide(slide)) if slides else _open_text(content)
    return cut(clean(stated or ""), pieces)


def _open_text(content: Element) -> _Pieces:
    styles = content.iter(_STYLE("style"))
    made_from = {style.get(_STYLE("name")): style.get(_STYLE("parent-style-name")) for style in styles}
    tables = _TABLE("table")
    for block in _blocks(content, (*_PARAGRAPHS, tables), (*_UNSAID, tables)):
        if block.tag == tables:
            yield from (f"{row}\n" for row in _open_table(block))
            continue
        line = _said(block, _OPEN_SIGNS, (*_UNSAID, *_PARAGRAPHS))
        style = block.get(_TEXT("style-name"))
        if "Title" in (style, made_from.get(style)):
            yield Heading(0, line)
        elif block.tag == _TEXT("h"):
            yield Heading(int(block.get(_TEXT("outline-level"), 1)), line)
        else:
            yield f"{line}\n"


def _open_table(table: Element) -> list[str]:
    """A line for each row. The first is a header if the table says so."""
    rows = []
    for row in _blocks(table, [_TABLE("table-row")], [_TABLE("table-row")]):
        cells: list[str] = []
        for cell in _blocks(row, _CELLS, _CELLS):
            times = min(int(cell.get(_TABLE("number-columns-repeated"), 1)), _MOST_COLUMNS - len(cells))
            cells += [_open_lines(cell)] * times
        rows.append(cells)
    headed = next(table.iter(_TABLE("table-header-rows")), None) is not None
    return table_lines([row for row in rows if any(row)], header=headed)


def _open_lines(element: Element) -> str:
    paragraphs = _blocks(element, _PARAGRAPHS, _UNSAID)
    return " ".join(filter(None, (_said(one, _OPEN_SIGNS, (*_UNSAID, *_PARAGRAPHS)) for one in paragraphs)))


def _open_slide(slide: Element) -> _Pieces:
    """Its title, then what else it says, and its notes."""
    frames = _DRAW("frame")
    titles = [one for one in slide.iter(frames) if one.get(_PRESENTATION("class")) == "title"]
    yield Heading(1, " ".join(map(_open_lines, titles)))
    for block in _blocks(slide, (*_PARAGRAPHS, _TABLE("table")), (*_UNSAID, _TABLE("table"))):
        if block.tag == _TABLE("table"):
            yield from (f"{row}\n" for row in _open_table(block))
        elif not any(block in title.iter(block.tag) for title in titles):
            yield f"{_said(block, _OPEN_SIGNS, (*_UNSAID, *_PARAGRAPHS))}\n"


# --- PowerPoint ---------------------------------------------------------------------------------------------

_SHOW = _named("http://schemas.openxmlformats.org/presentationml/2006/main")
_ART = _named("http://schemas.openxmlformats.org/drawingml/2006/main")
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
# repeats the element beside it for older programs
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_SHAPE, _ART_TABLE = _SHOW("sp"), _ART("tbl")
_MARGINALIA = ("sldNum", "dt", "ftr", "hdr", "sldImg")


def powerpoint(data: bytes) -> Document:
    """Title and text of a PowerPoint presentation (.pptx), with its notes; the titles of slides are
    headings."""
    return _read(data, "a PowerPoint presentation (.pptx)", _powerpoint)


def _powerpoint(archive: _Archive) -> Document:
    core = "docProps/core.xml"
    stated = archive.xml(core).findtext(_DUBLIN("title")) if core in archive else None
    stated = "" if stated == "PowerPoint Presentation" else stated
    slides = _targets(archive, "ppt/presentation.xml")
    order = archive.xml("ppt/presentation.xml").iter(_SHOW("sldId"))
    places = [slides[slide.get(_RELATION, "")] for slide in order]
    return cut(clean(stated or ""), (piece for place in places for piece in _slide(archive, place)))


def _targets(archive: _Archive, name: str) -> dict[str, str]:
    """The parts that one refers to, by the id it has for them."""
    folder, file = posixpath.split(name)
    relations = f"{folder}/_rels/{file}.rels"
    found = archive.xml(relations) if relations in archive else ()
    places = {one.get("Id", ""): posixpath.join("/", folder, one.get("Target", "")) for one in found}
    return {key: posixpath.normpath(place).lstrip("/") for key, place in places.items()}


def _slide(archive: _Archive, name: str) -> _Pieces:
    """The title of a slide, then what else it says, and its notes."""
    slide = archive.xml(name)
    if slide.get("show") == "0":
        return
    blocks = list(_blocks(slide, (_SHAPE, _ART_TABLE), (_SHAPE, _ART_TABLE, _FALLBACK)))
    titles = [block for block in blocks if _place_of(block) in ("title", "ctrTitle")]
    yield Heading(1, " ".join(line for title in titles for line in _lines(title)))
    for block in blocks:
        if block.tag == _ART_TABLE:
            yield from (f"{row}\n" for row in _art_table(block))
        elif block not in titles and _place_of(block) not in _MARGINALIA:
            yield from (f"{line}\n" for line in _lines(block))
    for notes in (place for place in _targets(archive, name).values() if "/notesSlides/" in place):
        shapes = archive.xml(notes).iter(_SHAPE)
        yield from (f"{line}\n" for one in shapes if _place_of(one) == "body" for line in _lines(one))


def _place_of(shape: Element) -> str | None:
    """What of its layout a shape fills: "title", "body" …"""
    place = next(shape.iter(_SHOW("ph")), None)
    return None if place is None else place.get("type", "obj")


def _lines(shape: Element) -> list[str]:
    return list(filter(None, (_said(one, [_ART("br")], ()) for one in shape.iter(_ART("p")))))


def _art_table(table: Element) -> list[str]:
    rows = [[" ".join(_lines(cell)) for cell in row.iter(_ART("tc"))] for row in table.iter(_ART("tr"))]
    looks = table.find(_ART("tblPr"))
    headed = looks is not None and looks.get("firstRow") in ("1", "true")
    return table_lines([row for row in rows if any(row)], header=headed)


# --- E-books ------------------------------------------------------------------------------------------------

_PACKAGE = _named("http://www.idpf.org/2007/opf")
_CONTAINED = ".//{urn:oasis:names:tc:opendocument:xmlns:container}rootfile"
# <title/> is a tag like any other in XML; for a parser of pages it begins a title that goes on to the end
_EMPTY_TAG = re.compile(r"<(?!(?:br|col|hr|img|link|meta)\b)(\w++)([^<>]*)/>")


def book(data: bytes) -> Document:
    """Title and text of an e-book (.epub), its chapters and their headings sections of it."""
    return _read(data, "an e-book (.epub)", _book)


def _book(archive: _Archive) -> Document:
    if "META-INF/encryption.xml" in archive and b"EncryptedKey" in archive.bytes("META-INF/encryption.xml"):
        raise Unreadable("is protected against copying: its text cannot be read")
    place = archive.xml("META-INF/container.xml").find(_CONTAINED)
    name = "" if place is None else place.get("full-path", "")
    package = archive.xml(name)
    title = " ".join(clean(package.findtext(f".//{_DUBLIN('title')}") or "").split())
    items = {item.get("id"): item for item in package.iter(_PACKAGE("item"))}
    sections: list[Section] = []
    for reference in package.iter(_PACKAGE("itemref")):
        item = items.get(reference.get("idref"))
        if item is None or "html" not in item.get("media-type", ""):
            continue
        chapter = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(item.get("href", ""))))
        sections += _chapter(archive.bytes(chapter), title)
    return Document(title, sections)


def _chapter(page: bytes, book_title: str) -> Iterator[Section]:
    marked = declared_text(page) or page.decode("utf-8-sig", "replace")
    document = html_document(_EMPTY_TAG.sub(r"<\1\2></\1>", marked))
    above = (document.title,) if document.title not in ("", book_title) else ()
    for section in document.sections:
        yield Section((*above, *section.path), section.text)
