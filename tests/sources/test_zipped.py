"""OpenDocument, PowerPoint, e-books and rich text: the text as one would read it aloud, and a reason for every
file that has none."""

import io
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from realmlm.errors import BadInput, RealmError
from realmlm.sources.article import Article
from realmlm.sources.bounds import Unreadable
from realmlm.sources.files import read_articles
from realmlm.sources.headings import Document, Section
from realmlm.sources.markup import rich_text
from realmlm.sources.zipped import book, open_document, powerpoint
from tests.sources.zips import archive, changed, understated, unpacked

OPEN = " ".join(
    f'xmlns:{short}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
    for short, name in (
        ("office", "office"),
        ("text", "text"),
        ("table", "table"),
        ("style", "style"),
        ("draw", "drawing"),
        ("presentation", "presentation"),
        ("svg", "svg-compatible"),
    )
)
ART = (
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
)


def packed(**parts: str) -> bytes:
    """An archive; in the names of parts a double underscore is a slash and a single one a dot."""
    return archive({name.replace("__", "/").replace("_", "."): text for name, text in parts.items()})


def odt(body: str, *, styles: str = "", title: str = "") -> bytes:
    content = (
        f"<office:document-content {OPEN}><office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:body><office:text>{body}</office:text></office:body></office:document-content>"
    )
    meta = f'<m xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></m>'
    return packed(content_xml=content, meta_xml=meta)


def pptx(*slides: str, notes: str = "") -> bytes:
    """Slides, in this order; the first has the notes."""
    names = [f"slide{len(slides) - number}" for number in range(len(slides))]  # not in the order of names
    relations = "".join(
        f'<Relationship Id="r{number}" Target="slides/{name}.xml"/>' for number, name in enumerate(names)
    )
    ids = "".join(f'<p:sldId r:id="r{number}"/>' for number in range(len(names)))
    parts = {
        "ppt/presentation.xml": f"<p:presentation {ART}><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>",
        "ppt/_rels/presentation.xml.rels": f"<Relationships>{relations}</Relationships>",
    }
    parts |= {
        f"ppt/slides/{name}.xml": f"<p:sld {ART}>{slide}</p:sld>"
        for name, slide in zip(names, slides, strict=True)
    }
    if notes:
        parts[f"ppt/slides/_rels/{names[0]}.xml.rels"] = (
            '<Relationships><Relationship Id="n" Target="../notesSlides/notesSlide1.xml"/></Relationships>'
        )
        parts["ppt/notesSlides/notesSlide1.xml"] = (
            f"<p:notes {ART}>{shape('A picture of it', 'sldImg')}{shape(notes, 'body')}{shape('7', 'sldNum')}</p:notes>"
        )
    return archive(parts)


def shape(text: str, kind: str = "") -> str:
    place = f'<p:nvPr><p:ph type="{kind}"/></p:nvPr>' if kind else ""
    lines = "".join(f"<a:p><a:r><a:t>{line}</a:t></a:r></a:p>" for line in text.split("\n"))
    return f"<p:sp>{place}<p:txBody>{lines}</p:txBody></p:sp>"


def epub(*chapters: str, title: str = "The Lamp", folder: str = "OEBPS/") -> bytes:
    items = "".join(
        f'<item id="c{number}" href="c%20{number}.xhtml" media-type="application/xhtml+xml"/>'
        for number in range(len(chapters))
    )
    spine = "".join(f'<itemref idref="c{number}"/>' for number in range(len(chapters)))
    return archive(
        {
            "META-INF/container.xml": (
                '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
                f'<rootfile full-path="{folder}book.opf"/></rootfiles></container>'
            ),
            f"{folder}book.opf": (
                '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">'
                f"<metadata><dc:title>{title}</dc:title></metadata><manifest>{items}</manifest>"
                f"<spine>{spine}</spine></package>"
            ),
            **{f"{folder}c {number}.xhtml": chapter for number, chapter in enumerate(chapters)},
        }
    )


def said(document: Document) -> list[tuple[str, ...]]:
    return [(*section.path, section.text) for section in document.sections]


def read(file: Path) -> list[Article]:
    def on_bad(error: RealmError) -> None:
        raise error

    return list(read_articles([file], on_bad=on_bad))


# --- OpenDocument -------------------------------------------------------------------------------------------


def test_a_text_is_its_paragraphs_under_its_headings() -> None:
    document = open_document(
        odt(
            '<text:h text:outline-level="1">Water</text:h><text:p>Off from <text:span>Nov</text:span>ember.</text:p>'
            '<text:h text:outline-level="2">Keys</text:h>'
            "<text:p>With<text:s text:c='3'/>Ada<text:tab/>Moss,<text:line-break/>plot 4.</text:p>"
            "<text:list><text:list-item><text:p>spade</text:p></text:list-item></text:list>",
            title="Allotment rules",
        )
    )
    assert document.title == "Allotment rules"
    assert said(document) == [
        ("Water", "Water\nOff from November."),
        ("Water", "Keys", "Keys\nWith Ada Moss, plot 4.\nspade"),
    ]


def test_a_paragraph_in_the_style_of_titles_is_the_title() -> None:
    styles = '<style:style style:name="P1" style:parent-style-name="Title"/>'
    body = '<text:p text:style-name="P1">House rules</text:p><text:p>No fires.</text:p>'
    document = open_document(odt(body, styles=styles))
    assert (document.title, said(document)) == ("House rules", [("No fires.",)])


def test_notes_and_text_boxes_are_lines_of_their_own_and_comments_none() -> None:
    note = (
        "<text:note><text:note-citation>1</text:note-citation>"
        "<text:note-body><text:p>A deposit is due.</text:p></text:note-body></text:note>"
    )
    comment = "<office:annotation><text:p>Really?</text:p></office:annotation>"
    box = "<draw:frame><draw:text-box><text:p>Closed in May.</text:p></draw:text-box></draw:frame>"
    deleted = "<text:tracked-changes><text:p>Free.</text:p></text:tracked-changes>"
    document = open_document(odt(f"{deleted}<text:p>Keys{note} cost{comment} five.{box}</text:p>"))
    assert said(document) == [("Keys cost five.\nA deposit is due.\nClosed in May.",)]


def test_what_stands_for_a_picture_is_not_said() -> None:
    picture = "<draw:frame><draw:image/><svg:title>Alt</svg:title><svg:desc>words</svg:desc></draw:frame>"
    assert said(open_document(odt(f"<text:p>See {picture}here.</text:p>"))) == [("See here.",)]


def test_rows_of_a_table_say_their_columns() -> None:
    def row(*cells: str) -> str:
        inside = "".join(f"<table:table-cell><text:p>{cell}</text:p></table:table-cell>" for cell in cells)
        return f"<table:table-row>{inside}</table:table-row>"

    header = f"<table:table-header-rows>{row('Plot', 'Rent', 'Paid')}</table:table-header-rows>"
    twice = (
        "<table:table-row><table:table-cell><text:p>5</text:p></table:table-cell>"
        '<table:table-cell table:number-columns-repeated="2"><text:p>32</text:p></table:table-cell></table:table-row>'
    )
    document = open_document(odt(f"<table:table>{header}{row('4', '30', 'no')}{twice}</table:table>"))
    assert said(document) == [("Plot: 4; Rent: 30; Paid: no\nPlot: 5; Rent: 32; Paid: 32",)]


def test_the_titles_of_slides_are_headings() -> None:
    def frame(text: str, kind: str = "") -> str:
        own = f'presentation:class="{kind}"' if kind else ""
        return f"<draw:frame {own}><draw:text-box><text:p>{text}</text:p></draw:text-box></draw:frame>"

    slides = "".join(
        f"<draw:page>{frame(body)}{frame(title, 'title')}</draw:page>"
        for title, body in (("Moths", "We counted 312."), ("Bats", "There were 9."))
    )
    document = open_document(odt(slides))
    assert said(document) == [("Moths", "Moths\nWe counted 312."), ("Bats", "Bats\nThere were 9.")]


# --- PowerPoint ---------------------------------------------------------------------------------------------


def test_slides_come_in_their_order_with_titles_tables_and_notes() -> None:
    def cells(*texts: str) -> str:
        inside = "".join(
            f"<a:tc><a:txBody><a:p><a:r><a:t>{text}</a:t></a:r></a:p></a:txBody></a:tc>" for text in texts
        )
        return f"<a:tr>{inside}</a:tr>"

    table = f'<a:tbl><a:tblPr firstRow="1"/>{cells("Berth", "Boat")}{cells("A1", "Dunlin")}</a:tbl>'
    document = powerpoint(
        pptx(
            shape("The pier costs 40,000 euros\nPaid by the town")
            + shape("Costs", "title")
            + shape("3", "sldNum"),
            shape("Berths", "ctrTitle") + f"<p:graphicFrame>{table}</p:graphicFrame>",
            notes="Mention the ferry.",
        )
    )
    assert said(document) == [
        ("Costs", "Costs\nThe pier costs 40,000 euros\nPaid by the town\nMention the ferry."),
        ("Berths", "Berths\nBerth: A1; Boat: Dunlin"),
    ]


def test_hidden_slides_are_not_read() -> None:
    data = pptx(shape("Shown", "title") + shape("one"), shape("Hidden", "title") + shape("two"))
    document = powerpoint(changed(data, "ppt/slides/slide1.xml", "<p:sld ", '<p:sld show="0" '))
    assert "two" not in str(document)
    assert "one" in str(document)


# --- E-books ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["", "OEBPS/"])
def test_a_book_is_its_chapters_in_order(folder: str) -> None:
    document = book(
        epub(
            "<html><head><title/></head><body><a id='x'/><h1>Chapter One</h1><p>Mira lit the lamp.</p></body></html>",
            "<html><head><title>The Lamp</title></head><body><h2>Two</h2><p>It went out.</p><br/>At nine.</body></html>",
            folder=folder,
        )
    )
    assert document.title == "The Lamp"
    assert said(document) == [
        ("Chapter One", "Mira lit the lamp."),
        ("Two", "Two\nIt went out.\nAt nine."),
    ]


def test_a_protected_book_says_so() -> None:
    parts = {"META-INF/encryption.xml": b"<encryption><EncryptedKey/></encryption>"}
    with pytest.raises(Unreadable, match="protected against copying"):
        book(archive(unpacked(epub("<p>secret</p>")) | parts))


@pytest.mark.parametrize(
    ("locked", "is_text"), [("OEBPS/c%200.xhtml", True), ("OEBPS/fonts/serif.otf", False)]
)
def test_a_book_whose_text_is_encrypted_is_protected_and_one_whose_fonts_are_is_not(
    locked: str, is_text: bool
) -> None:
    encryption = (
        '<encryption xmlns:enc="http://www.w3.org/2001/04/xmlenc#"><enc:EncryptedData><enc:CipherData>'
        f'<enc:CipherReference URI="{locked}"/></enc:CipherData></enc:EncryptedData></encryption>'
    ).encode()
    data = archive(unpacked(epub("<p>Mira lit the lamp.</p>")) | {"META-INF/encryption.xml": encryption})
    if is_text:
        with pytest.raises(Unreadable, match="protected against copying"):
            book(data)
    else:
        assert said(book(data)) == [("Mira lit the lamp.",)]


BOOK = "OEBPS/book.opf"


def test_a_chapter_is_read_once_however_often_it_is_named() -> None:
    again = "<spine>" + '<itemref idref="c1"/>' * 2000
    assert said(book(changed(epub("<p>one</p>", "<p>two</p>"), BOOK, "<spine>", again))) == [
        ("two",),
        ("one",),
    ]
    html = 'media-type="application/xhtml+xml"'
    places = "".join(f'<item id="p{n}" href="c%200.xhtml#{n}" {html}/>' for n in range(2000))
    named = "".join(f'<itemref idref="p{n}"/>' for n in range(2000))
    data = changed(epub("<p>one</p>"), BOOK, "</manifest><spine>", f"{places}</manifest><spine>{named}")
    assert said(book(data)) == [("one",)]


def test_missing_chapters_are_left_out_and_said_to_be(tmp_path: Path) -> None:
    data = changed(epub("<p>one</p>", "<p>two</p>", "<p>three</p>"), BOOK, "c%201.xhtml", "gone.xhtml")
    (tmp_path / "lamp.epub").write_bytes(data)
    complaints: list[RealmError] = []
    articles = list(read_articles([tmp_path / "lamp.epub"], on_bad=complaints.append))
    assert [article.text for article in articles] == ["one", "three"]
    [complaint] = complaints
    assert "lamp.epub: 1 of its 3 chapters are missing, the first 'OEBPS/gone.xhtml'" in str(complaint)
    with pytest.raises(BadInput, match=r"lamp\.epub: 1 of its 3 chapters are missing"):
        read(tmp_path / "lamp.epub")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "cp1251", "utf-8"])
def test_a_chapter_is_read_in_its_encoding(encoding: str) -> None:
    declared = encoding.removesuffix("-le").removesuffix("-be")
    page = f'<?xml version="1.0" encoding="{declared}"?><html><body><p>{"Мира зажгла лампу. " * 50}</p></body></html>'
    data = archive(unpacked(epub("")) | {"OEBPS/c 0.xhtml": page.encode(encoding)})
    assert said(book(data)) == [(("Мира зажгла лампу. " * 50).strip(),)]


# --- Rich text ----------------------------------------------------------------------------------------------


def test_rich_text_is_its_text_and_a_row_of_a_table_a_line() -> None:
    marked = (
        r"{\rtf1\ansi{\fonttbl{\f0 Times;}}\f0 The caf\'e9 opens at \b nine\b0 .\par "
        r"\trowd Tea\cell 2\cell\row a|b\par}"
    )
    assert [line for line in rich_text(marked).splitlines() if line] == [
        "The café opens at nine.",
        "Tea; 2",
        "a|b",
    ]
    with pytest.raises(Unreadable, match="does not begin as one"):
        rich_text("The café")


@pytest.mark.parametrize("page", ["1251", "1253", "1252", "65001"])
def test_letters_beyond_ascii_are_in_the_stated_code_page(tmp_path: Path, page: str) -> None:
    text = {"1251": "Привет, мир", "1253": "Γειά σου", "1252": "Grüße – ça va", "65001": "Привет"}[page]
    raw = text.encode(f"cp{page}")
    image = b"{\\pict\\bin6 \xe9}\\'{\xe9}"
    (tmp_path / "a.rtf").write_bytes(
        b"{\\rtf1\\ansi\\ansicpg" + page.encode() + b" " + image + b"C:\\\\bin6 " + raw + b"\\par}"
    )
    [article] = read(tmp_path / "a.rtf")
    assert article.text == f"C:\\bin6 {text}"


def test_what_would_take_a_parser_forever_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realmlm.sources.limited.LONGEST_S", 2)
    (tmp_path / "long.rtf").write_text(r"{\rtf1 " + r"{\field{\*\fldinst{" * 200_000)
    begun = time.monotonic()
    with pytest.raises(BadInput, match=r"takes more than 2 s or 4 GiB of memory to parse"):
        read(tmp_path / "long.rtf")
    assert time.monotonic() - begun < 30


# --- Files from anywhere ------------------------------------------------------------------------------------

READ = {".odt": odt("<text:p>x</text:p>"), ".pptx": pptx(shape("x")), ".epub": epub("<p>x</p>")}


@pytest.mark.parametrize("kind", [".odt", ".odp", ".pptx", ".epub"])
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04", "cannot be read as"),
        (b"no archive", "cannot be read as"),
        (archive({"mimetype": "x"}), "cannot be read as"),
        (
            bytes.fromhex("d0cf11e0a1b11ae1") + "EncryptedPackage".encode("utf-16-le"),
            "locked with a password",
        ),
    ],
)
def test_a_file_that_is_none_says_why(tmp_path: Path, kind: str, data: bytes, why: str) -> None:
    (tmp_path / f"a{kind}").write_bytes(data)
    with pytest.raises(BadInput, match=why) as raised:
        read(tmp_path / f"a{kind}")
    assert f"a{kind}" in str(raised.value)


def test_a_file_with_a_password_says_so() -> None:
    parts = {"META-INF/manifest.xml": "<m><encryption-data/></m>", "content.xml": "\x01"}
    with pytest.raises(Unreadable, match="locked with a password"):
        open_document(archive(parts))


@pytest.mark.parametrize("kind", READ)
def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, kind: str) -> None:
    stream = io.BytesIO(READ[kind])
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED) as made:
        for number in range(5):
            made.writestr(f"{number}.xml", b" " * 2**26)
    (tmp_path / f"a{kind}").write_bytes(stream.getvalue())
    with pytest.raises(BadInput, match="unpacks to more than a document may hold"):
        read(tmp_path / f"a{kind}")


def test_entities_that_multiply_are_refused() -> None:
    levels = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
    bomb = f'<!DOCTYPE a [<!ENTITY e0 "aaaaaaaaaa">{levels}]><a>&e11;</a>'
    begun = time.monotonic()
    with pytest.raises(Unreadable, match="has a DOCTYPE"):
        open_document(packed(content_xml=bomb))
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_entities_behind_a_comment_are_refused(encoding: str) -> None:
    entity = f'<!DOCTYPE a [<!ENTITY e "{"a" * 2**16}">]>'
    bomb = f"{entity}<!--{' ' * 2**20}--><a>{'&e;' * 80}</a>"  # less than 100 times its size: expat allows it
    with pytest.raises(Unreadable, match="has a DOCTYPE"):
        open_document(archive({"content.xml": bomb.encode(encoding)}))


def test_a_doctype_that_declares_nothing_is_none_the_less_read() -> None:
    doctype = '<!DOCTYPE package PUBLIC "+//OEB" "oeb.dtd"><package '
    assert said(book(changed(epub("<p>one</p>"), BOOK, "<package ", doctype))) == [("one",)]


def test_a_long_namespace_is_refused() -> None:
    names = "".join(f"<x:n{number}/>" for number in range(2000))
    with pytest.raises(Unreadable, match="has a namespace of more than 256 characters"):
        open_document(archive({"content.xml": f'<a xmlns:x="{"u" * 2**16}">{names}</a>'}))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("read_it", [open_document, powerpoint, book])
def test_what_is_compressed_otherwise_is_refused(read_it: Callable[[bytes], Document], method: int) -> None:
    with pytest.raises(Unreadable, match="is compressed otherwise"):
        read_it(archive(unpacked(odt("<text:p>x</text:p>")), method))


@pytest.mark.parametrize(("checked", "why"), [(100, "Bad CRC-32"), (101, "holds more in its part")])
def test_a_part_larger_than_it_says_is_refused_before_it_is_unpacked(checked: int, why: str) -> None:
    data = understated(odt("<text:p>x</text:p>" + " " * 2**25), "content.xml", 100, checked)
    tracemalloc.start()
    with pytest.raises(Unreadable, match=why):
        open_document(data)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_parts_read_again_count_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realmlm.sources.archive._LARGEST_XML", 10_000)
    data = pptx(shape("x" * 1000, "body"))
    powerpoint(data)
    again = "<p:sldIdLst>" + '<p:sldId r:id="r0"/>' * 20
    with pytest.raises(Unreadable, match="unpacks to more than a document may hold"):
        powerpoint(changed(data, "ppt/presentation.xml", "<p:sldIdLst>", again))


def test_elements_far_within_one_another_are_read() -> None:
    deep = "<text:span>" * 50_000 + "deep" + "</text:span>" * 50_000
    assert said(open_document(odt(f"<text:p>{deep}</text:p>"))) == [("deep",)]


def test_cells_repeated_a_million_times_are_few() -> None:
    cell = '<table:table-cell table:number-columns-repeated="1000000"><text:p>x</text:p></table:table-cell>'
    row = f"<table:table-row>{cell}</table:table-row>"
    [(text,)] = said(open_document(odt(f"<table:table>{row}</table:table>")))
    assert len(text) < 10_000
    with pytest.raises(Unreadable, match="unpacks to more than a document may hold"):
        open_document(odt(f"<table:table>{row * 2000}</table:table>"))


def test_a_long_cell_is_said_once() -> None:
    words = " ".join(["heron"] * 1000)
    cells = "".join(
        f'<table:table-cell table:number-columns-repeated="{times}"><text:p>{text}</text:p></table:table-cell>'
        for times, text in (("1000", words), ("2", "owl"), ("", "wren"), ("-3", "tit"), ("9" * 5000, ""))
    )
    [(text,)] = said(
        open_document(odt(f"<table:table><table:table-row>{cells}</table:table-row></table:table>"))
    )
    assert text == f"{words}; owl; owl; wren; tit"


def test_a_text_in_place_of_a_columns_name_is_not_said_in_each_row() -> None:
    def row(cell: str) -> str:
        inside = f"<table:table-cell><text:p>{cell}</text:p></table:table-cell>"
        return f"<table:table-row>{inside}</table:table-row>"

    words = " ".join(["heron"] * 1000)
    header = f"<table:table-header-rows>{row(words)}</table:table-header-rows>"
    [(text,)] = said(open_document(odt(f"<table:table>{header}{row('1')}{row('2')}</table:table>")))
    assert text == f"{words}\n1\n2"


def test_headings_ever_further_within_one_another_take_no_time() -> None:
    def heading(level: object) -> str:
        return f'<text:h text:outline-level="{level}">h{level}</text:h>'

    begun = time.monotonic()
    document = open_document(odt("".join(heading(level) for level in range(20_000)) + "<text:p>x</text:p>"))
    assert time.monotonic() - begun < 5
    assert document.sections[-1].path[-2:] == ("h9", "h19999")


@pytest.mark.parametrize("level", ["", "x", "0", "-1", "9" * 5000])
def test_a_heading_of_no_level_is_a_heading(level: str) -> None:
    body = f'<text:h text:outline-level="{level}">Keys</text:h><text:p>With Ada.</text:p>'
    document = open_document(odt(f"{body}{body.replace('Keys', 'Rent')}"))
    assert said(document) == [("Keys", "Keys\nWith Ada."), ("Rent", "Rent\nWith Ada.")]


def test_time_does_not_grow_with_the_square_of_a_slide() -> None:
    empty = "<text:p/>" * 20_000
    title = f'<draw:frame presentation:class="title"><text:p>Moths</text:p>{empty}</draw:frame>'
    frames = "<draw:frame>" * 20_000 + "</draw:frame>" * 20_000
    pages = "<draw:page>" * 5000 + "<text:p>deep</text:p>" + "</draw:page>" * 5000
    inner = "<a:p>" * 5000 + "<a:r><a:t>deep</a:t></a:r>" + "</a:p>" * 5000
    begun = time.monotonic()
    slide = f"<draw:page>{title}{frames}{empty}{pages}</draw:page>"
    assert open_document(odt(slide)) == Document("Moths", [Section((), "deep")])
    slide = shape("Moths", "title") + f"<p:sp>{inner}</p:sp>"
    assert powerpoint(pptx(slide)) == Document("Moths", [Section((), "deep")])
    powerpoint(pptx("".join(shape("x", "title") for _ in range(10_000)) + shape("y") * 10_000))
    assert time.monotonic() - begun < 8
