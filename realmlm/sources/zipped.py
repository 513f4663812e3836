"""OpenDocument text and presentations, PowerPoint and e-books: archives of XML or pages.

Such files come from anywhere: one that is damaged, locked or far too large is refused with a reason.
"""

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from urllib.parse import unquote
from xml.etree.ElementTree import Element

from realmlm.errors import RealmError
from realmlm.sources.archive import Archive
from realmlm.sources.bounds import Unreadable, refuse_locked
from realmlm.sources.encodings import declared_text, utf_16_codec
from realmlm.sources.headings import Document, Heading, Section, cut
from realmlm.sources.letters import clean
from realmlm.sources.limited import html_document
from realmlm.sources.markup import table_lines

_LONGEST_TITLE = 1000
_Pieces = Iterator[Heading | str]


def _read(data: bytes, what: str, parse: Callable[[Archive], Document]) -> Document:
    refuse_locked(data)
    try:
        return parse(Archive(data))
    except (Unreadable, RealmError, MemoryError):  # of RealmError those that `on_bad` raises
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


def _outermost(top: Element, kind: str) -> Iterator[Element]:
    """The elements of a kind that lie in no other of it, in order."""
    return _blocks(top, [kind], [kind])


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


def _title(stated: str | None) -> str:
    return " ".join(clean((stated or "")[:_LONGEST_TITLE]).split())


def _number(written: str | None, most: int) -> int:
    """A number from 1 to `most`, as a file states it; 1 for what is none."""
    try:
        return min(max(int(written or 1), 1), most)
    except ValueError:
        return 1


def _table(rows: Sequence[Sequence[str]], *, headed: bool) -> Iterator[str]:
    """A line for each row that says something; the first names the columns if it is a header."""
    rows = [row for row in rows if any(row)]
    return (f"{line}\n" for line in table_lines(rows, header=headed and bool(rows)))


def _named(prefix: str) -> Callable[[str], str]:
    return lambda name: f"{{{prefix}}}{name}"


# --- OpenDocument -------------------------------------------------------------------------------------------

_OPEN = "urn:oasis:names:tc:opendocument:xmlns"
_OFFICE, _TEXT, _TABLE, _STYLE, _DRAW, _PRESENTATION, _SVG = (
    _named(f"{_OPEN}:{part}:1.0")
    for part in ("office", "text", "table", "style", "drawing", "presentation", "svg-compatible")
)
_DUBLIN = _named("http://purl.org/dc/elements/1.1/")
_PARAGRAPHS = (_TEXT("p"), _TEXT("h"))
_OPEN_SIGNS = (_TEXT("s"), _TEXT("tab"), _TEXT("line-break"))
_UNSAID = (  # comments, what was deleted, lists of contents, what stands for a picture
    _OFFICE("annotation"),
    _OFFICE("forms"),
    _TEXT("note-citation"),
    _TEXT("table-of-content"),
    _TEXT("tracked-changes"),
    _SVG("title"),
    _SVG("desc"),
)
_CELLS = (_TABLE("table-cell"), _TABLE("covered-table-cell"))
_MOST_COLUMNS = 1000  # of a table: a cell may say that it is repeated
_LONGEST_REPEATED = 100  # characters of such a cell
_CELL = 50  # bytes of XML around the text of a cell
_DEEPEST = 10  # levels of headings


def open_document(data: bytes) -> Document:
    """Title and text of an OpenDocument text or presentation (.odt, .odp), one line for each paragraph or row
    of a table; the titles of slides are headings."""
    return _read(data, "an OpenDocument file", _open_document)


def _open_document(archive: Archive) -> Document:
    if "META-INF/manifest.xml" in archive and b"encryption-data" in archive.read("META-INF/manifest.xml"):
        raise Unreadable("is locked with a password; save it without one")
    stated = archive.xml("meta.xml").findtext(f".//{_DUBLIN('title')}") if "meta.xml" in archive else None
    content = archive.xml("content.xml")
    if slides := list(_outermost(content, _DRAW("page"))):
        return cut(_title(stated), (piece for slide in slides for piece in _open_slide(slide, archive)))
    return cut(_title(stated), _open_text(content, archive))


def _open_text(content: Element, archive: Archive) -> _Pieces:
    styles = content.iter(_STYLE("style"))
    made_from = {style.get(_STYLE("name")): style.get(_STYLE("parent-style-name")) for style in styles}
    tables = _TABLE("table")
    for block in _blocks(content, (*_PARAGRAPHS, tables), (*_UNSAID, tables)):
        if block.tag == tables:
            yield from _open_table(block, archive)
            continue
        line = _said(block, _OPEN_SIGNS, (*_UNSAID, *_PARAGRAPHS))
        style = block.get(_TEXT("style-name"))
        if "Title" in (style, made_from.get(style)):
            yield Heading(0, line)
        elif block.tag == _TEXT("h"):
            yield Heading(_number(block.get(_TEXT("outline-level")), _DEEPEST), line)
        else:
            yield f"{line}\n"


def _open_table(table: Element, archive: Archive) -> Iterator[str]:
    """A line for each row. The first is a header if the table says so."""
    rows = []
    for row in _outermost(table, _TABLE("table-row")):
        cells: list[str] = []
        for cell in _blocks(row, _CELLS, _CELLS):
            cells += _repeated(cell, _MOST_COLUMNS - len(cells), archive)
        rows.append(cells)
    headed = next(table.iter(_TABLE("table-header-rows")), None) is not None
    return _table(rows, headed=headed)


def _repeated(cell: Element, most: int, archive: Archive) -> list[str]:
    """What a cell says, as often as it says that it is repeated: that counts as if it were written so often.
    A long text is no value of several cells: it is said once."""
    text = _open_lines(cell)
    written = cell.get(_TABLE("number-columns-repeated"))
    times = _number(written, max(most, 1)) if len(text) <= _LONGEST_REPEATED else 1
    archive.charge_xml((times - 1) * (len(text) + _CELL))
    return [text] * times


def _open_lines(element: Element) -> str:
    paragraphs = _blocks(element, _PARAGRAPHS, _UNSAID)
    return " ".join(filter(None, (_said(one, _OPEN_SIGNS, (*_UNSAID, *_PARAGRAPHS)) for one in paragraphs)))


def _open_slide(slide: Element, archive: Archive) -> _Pieces:
    """Its title, then what else it says, and its notes."""
    frames = _outermost(slide, _DRAW("frame"))
    titles = [frame for frame in frames if frame.get(_PRESENTATION("class")) == "title"]
    in_titles = {element for title in titles for element in title.iter()}
    yield Heading(1, " ".join(map(_open_lines, titles)))
    for block in _blocks(slide, (*_PARAGRAPHS, _TABLE("table")), (*_UNSAID, _TABLE("table"))):
        if block.tag == _TABLE("table"):
            yield from _open_table(block, archive)
        elif block not in in_titles:
            yield f"{_said(block, _OPEN_SIGNS, (*_UNSAID, *_PARAGRAPHS))}\n"


# --- PowerPoint ---------------------------------------------------------------------------------------------

_SHOW = _named("http://schemas.openxmlformats.org/presentationml/2006/main")
_ART = _named("http://schemas.openxmlformats.org/drawingml/2006/main")
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
# repeats the element beside it for older programs
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_SHAPE, _ART_TABLE = _SHOW("sp"), _ART("tbl")
_TITLES = ("title", "ctrTitle")
_MARGINALIA = ("sldNum", "dt", "ftr", "hdr", "sldImg")


def powerpoint(data: bytes) -> Document:
    """Title and text of a PowerPoint presentation (.pptx), with its notes; the titles of slides are
    headings."""
    return _read(data, "a PowerPoint presentation (.pptx)", _powerpoint)


def _powerpoint(archive: Archive) -> Document:
    core = "docProps/core.xml"
    stated = archive.xml(core).findtext(_DUBLIN("title")) if core in archive else None
    stated = "" if stated == "PowerPoint Presentation" else stated
    slides = _targets(archive, "ppt/presentation.xml")
    order = archive.xml("ppt/presentation.xml").iter(_SHOW("sldId"))
    places = [slides[slide.get(_RELATION, "")] for slide in order]
    return cut(_title(stated), (piece for place in places for piece in _slide(archive, place)))


def _targets(archive: Archive, name: str) -> dict[str, str]:
    """The parts that one refers to, by the id it has for them."""
    folder, file = posixpath.split(name)
    relations = f"{folder}/_rels/{file}.rels"
    found = archive.xml(relations) if relations in archive else ()
    places = {one.get("Id", ""): posixpath.join("/", folder, one.get("Target", "")) for one in found}
    return {key: posixpath.normpath(place).lstrip("/") for key, place in places.items()}


def _slide(archive: Archive, name: str) -> _Pieces:
    """The title of a slide, then what else it says, and its notes."""
    slide = archive.xml(name)
    if slide.get("show") == "0":
        return
    blocks = list(_blocks(slide, (_SHAPE, _ART_TABLE), (_SHAPE, _ART_TABLE, _FALLBACK)))
    places = [_place_of(block) for block in blocks]
    titles = [block for block, place in zip(blocks, places, strict=True) if place in _TITLES]
    yield Heading(1, " ".join(line for title in titles for line in _lines(title)))
    for block, place in zip(blocks, places, strict=True):
        if block.tag == _ART_TABLE:
            yield from _art_table(block)
        elif place not in (*_TITLES, *_MARGINALIA):
            yield from (f"{line}\n" for line in _lines(block))
    for notes in (place for place in _targets(archive, name).values() if "/notesSlides/" in place):
        shapes = _outermost(archive.xml(notes), _SHAPE)
        yield from (f"{line}\n" for one in shapes if _place_of(one) == "body" for line in _lines(one))


def _place_of(shape: Element) -> str | None:
    """What of its layout a shape fills: "title", "body" …"""
    place = next(shape.iter(_SHOW("ph")), None)
    return None if place is None else place.get("type", "obj")


def _lines(shape: Element) -> list[str]:
    return list(filter(None, (_said(one, [_ART("br")], ()) for one in _outermost(shape, _ART("p")))))


def _art_table(table: Element) -> Iterator[str]:
    rows = [
        [" ".join(_lines(cell)) for cell in _outermost(row, _ART("tc"))]
        for row in _outermost(table, _ART("tr"))
    ]
    looks = table.find(_ART("tblPr"))
    return _table(rows, headed=looks is not None and looks.get("firstRow") in ("1", "true"))


# --- E-books ------------------------------------------------------------------------------------------------

_PACKAGE = _named("http://www.idpf.org/2007/opf")
_CONTAINED = ".//{urn:oasis:names:tc:opendocument:xmlns:container}rootfile"
_DECLARATION = 64  # bytes at the beginning of a page, which are ASCII in whatever language it is
# <title/> is a tag like any other in XML; for a parser of pages it begins a title that goes on to the end
_EMPTY_TAG = re.compile(r"<(?!(?:br|col|hr|img|link|meta)\b)(\w++)([^<>]*)/>")


def book(data: bytes, on_bad: Callable[[str], None] = lambda what: None) -> Document:
    """Title and text of an e-book (.epub), its chapters and their headings sections of it; `on_bad` is told
    of chapters that are missing."""
    return _read(data, "an e-book (.epub)", partial(_book, on_bad=on_bad))


def _book(archive: Archive, on_bad: Callable[[str], None]) -> Document:
    place = archive.xml("META-INF/container.xml").find(_CONTAINED)
    name = "" if place is None else place.get("full-path", "")
    package = archive.xml(name)
    title = _title(package.findtext(f".//{_DUBLIN('title')}"))
    chapters = _chapters(package, posixpath.dirname(name))
    _refuse_protected(archive, frozenset(chapters))
    missing = [chapter for chapter in chapters if chapter not in archive]
    if missing:
        on_bad(f"{len(missing)} of its {len(chapters)} chapters are missing, the first '{missing[0][:100]}'")
    found = [chapter for chapter in chapters if chapter in archive]
    return Document(title, [one for chapter in found for one in _chapter(archive.read(chapter), title)])


def _chapters(package: Element, folder: str) -> list[str]:
    """The names of the chapters in the order of reading, each once."""
    items = {item.get("id"): item for item in package.iter(_PACKAGE("item"))}
    order = dict.fromkeys(reference.get("idref") for reference in package.iter(_PACKAGE("itemref")))
    pages = (
        item for item in map(items.get, order) if item is not None and "html" in item.get("media-type", "")
    )
    return list(dict.fromkeys(_place(folder, page.get("href", "")) for page in pages))


def _place(folder: str, url: str) -> str:
    """The name of the part that a URL in this folder stands for, whatever place in it the URL names."""
    return posixpath.normpath(posixpath.join("/", folder, unquote(url.partition("#")[0]))).lstrip("/")


def _refuse_protected(archive: Archive, chapters: Collection[str]) -> None:
    """Raise if chapters are encrypted, or a key is there. Fonts may be, in books that anyone may read."""
    name = "META-INF/encryption.xml"
    for one in archive.xml(name).iter() if name in archive else ():
        kind = one.tag.rpartition("}")[2]
        is_of_chapter = kind == "CipherReference" and _place("", one.get("URI", "")) in chapters
        if is_of_chapter or kind == "EncryptedKey":
            raise Unreadable("is protected against copying: its text cannot be read")


def _chapter(page: bytes, book_title: str) -> Iterator[Section]:
    document = html_document(_EMPTY_TAG.sub(r"<\1\2></\1>", _page_text(page)))
    title = _title(document.title)
    above = (title,) if title not in ("", book_title) else ()
    for section in document.sections:
        yield Section((*above, *section.path), section.text)


def _page_text(page: bytes) -> str:
    if utf_16 := utf_16_codec(page[:_DECLARATION]):
        return page.decode(utf_16, "replace")
    return declared_text(page) or page.decode("utf-8-sig", "replace")
