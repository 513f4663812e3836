"""PDF and Word documents: the text as one would read it aloud, and a reason for every file that has none."""

import gzip
import io
import sys
import time
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.errors import BadInput, MissingExtra, RealmError
from realmlm.sources import pdf as pdf_source
from realmlm.sources.article import Article
from realmlm.sources.bounds import Unreadable
from realmlm.sources.files import read_articles
from realmlm.sources.headings import Document
from realmlm.sources.office import word_document
from realmlm.sources.pdf import pdf_document
from tests.calls import build_corpus
from tests.sources.zips import archive, understated, unpacked

docx = pytest.importorskip("docx")
pypdf = pytest.importorskip("pypdf")


def pdf(*pages: list[str], title: str | None = None) -> bytes:
    """A PDF with these lines on its pages, written out by hand."""
    first = 4  # after the catalogue, the tree of pages and the font
    numbers = range(first, first + 2 * len(pages), 2)
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        (
            f"<</Type/Pages/Count {len(pages)}/Kids[{' '.join(f'{number} 0 R' for number in numbers)}]>>"
        ).encode(),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
    ]
    for number, lines in zip(numbers, pages, strict=True):
        shown = b"".join(b"(" + line.encode("cp1252") + b") Tj T*\n" for line in lines)
        stream = zlib.compress(b"BT /F 10 Tf 14 TL 50 780 Td\n" + shown + b"ET")
        page = (
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F 3 0 R>>>>/Contents "
            f"{number + 1} 0 R>>"
        )
        objects += [
            page.encode(),
            f"<</Filter/FlateDecode/Length {len(stream)}>>stream\n".encode() + stream + b"\nendstream",
        ]
    objects += [b"<<" + (f"/Title({title})" if title else "").encode() + b">>"]
    data = b"%PDF-1.4\n"
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n".encode() + body + b"\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    end = (
        f"trailer<</Size {len(objects) + 1}/Root 1 0 R/Info {len(objects)} 0 "
        f"R>>\nstartxref\n{len(data)}\n%%EOF"
    )
    return data + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{end}".encode()


def said(document: Document) -> str:
    """The text of all sections."""
    return "\n".join(section.text for section in document.sections)


def saved(document: object) -> bytes:
    stream = io.BytesIO()
    document.save(stream)  # type: ignore[attr-defined]
    return stream.getvalue()


def read(file: Path) -> list[Article]:
    def on_bad(error: RealmError) -> None:
        raise error

    return list(read_articles([file], on_bad=on_bad))


# --- PDF ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "title"),
    [
        ("(anonymous)", "herons"),
        ("untitled", "herons"),
        ("Microsoft Word - Document1", "herons"),
        ("(unspecified)", "herons"),
        ("Untitled love", "Untitled love"),
        ("The Unknown Heron", "The Unknown Heron"),
    ],
)
def test_a_title_that_says_nothing_gives_way_to_the_files_name(
    tmp_path: Path, stated: str, title: str
) -> None:
    (tmp_path / "herons.pdf").write_bytes(
        pdf(["The heron is a bird."], title=stated.replace("(", "\\(").replace(")", "\\)"))
    )
    assert read(tmp_path / "herons.pdf")[0].title == title


def test_lines_become_paragraphs_and_cut_words_are_whole_again() -> None:
    lines = [
        "Wading birds",
        "The heron stands in shallow water for a long time and waits for a fish to come by. It is a well-",
        "known bird of slow rivers, and people say that its patience can be seen from the oppo-",
        "site bank.",
        "A second paragraph begins here and speaks of storks, which are well-known as well and nest on "
        "roofs.",
        "Storks",
        "They come back in spring.",
    ]
    document = pdf_document(pdf(lines, title="Birds"))
    assert document.title == "Birds"
    text = said(document)
    assert text.split("\n") == [
        "Wading birds",
        "The heron stands in shallow water for a long time and waits for a fish to come by. It is a "
        "well-known bird of slow rivers, "
        "and people say that its patience can be seen from the opposite bank.",
        "A second paragraph begins here and speaks of storks, which are well-known as well and nest on "
        "roofs.",
        "Storks",
        "They come back in spring.",
    ]


def test_what_stands_on_every_page_is_no_text() -> None:
    pages = [
        [
            "A Book of Birds",
            f"Chapter {number}",
            f"What page {number} says.",
            f"More of it, {'x' * number}.",
            f"Even more {number}.",
            f"Page {number} of 5",
        ]
        for number in range(1, 6)
    ]
    text = said(pdf_document(pdf(*pages)))
    assert "Book" not in text
    assert "of 5" not in text
    assert "What page 3 says." in text
    short = said(pdf_document(pdf(*pages[:2])))
    assert "Book" in short  # twice proves nothing


def test_rows_of_numbers_are_no_page_numbers() -> None:
    rows = [
        [f"{1900 + 10 * page + row} {17 * row + page} {3 * row}" for row in range(10)] for page in range(4)
    ]
    text = said(pdf_document(pdf(*rows)))
    assert text.split() == " ".join(row for page in rows for row in page).split()
    cells = [[str((37 * page + 11 * row) % 101) for row in range(10)] for page in range(8)]
    text = said(pdf_document(pdf(*cells)))
    assert text.split() == [cell for page in cells for cell in page]


@pytest.mark.parametrize("form", ["{}", "- {} -", "{} / 90", "Page {}", "Page {} of 90"])
def test_numbers_that_follow_the_pages_are_left_out(form: str) -> None:
    labels = [
        "i",
        "ii",
        "iii",
        "iv",
        *map(str, range(1, 6)),
        *map(str, range(31, 36)),
    ]  # a preface, then a part that is left out
    rows = [[f"{1900 + 10 * page + row} {page}" for row in range(4)] for page in range(len(labels))]
    pages = [[*page, form.format(label)] for page, label in zip(rows, labels, strict=True)]
    text = said(pdf_document(pdf(*pages)))
    assert text.split() == " ".join(row for page in rows for row in page).split()


def test_a_number_of_any_length_is_read() -> None:
    lines = ["9" * 5000, "a b", "c d", "e f"]
    assert said(pdf_document(pdf(*[lines] * 3))).count("9") == 15_000


def test_a_pdf_is_named_by_its_title_or_its_file(tmp_path: Path) -> None:
    (tmp_path / "letter.pdf").write_bytes(pdf(["Dear friend"]))
    (tmp_path / "named.pdf").write_bytes(pdf(["Dear friend"], title="Microsoft Word - To a friend"))
    (article,) = read(tmp_path / "letter.pdf")
    (named,) = read(tmp_path / "named.pdf")
    assert (article.title, article.text, article.source) == ("letter", "Dear friend", "letter.pdf")
    assert named.title == "To a friend"


def locked(data: bytes, password: str) -> bytes:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(data))
    writer.encrypt(password, owner_password="owner", algorithm="AES-256")
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


def test_a_locked_pdf_is_refused_and_one_that_anyone_may_open_is_read() -> None:
    with pytest.raises(Unreadable, match="password"):
        pdf_document(locked(pdf(["A secret"]), "heron"))
    assert said(pdf_document(locked(pdf(["No secret"]), ""))) == "No secret"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"no pdf at all", "cannot be read as a PDF"),
        (pdf(["Some text"])[:300], "cannot be read as a PDF"),
        (pdf([]), "only images"),
        (pdf(), "has no pages"),
    ],
)
def test_a_pdf_without_text_says_why(data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(data)
    with pytest.raises(BadInput, match=reason):
        read(tmp_path / "a.pdf")


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_pdf_raises_nothing_else(draw: st.DataObject) -> None:
    data = bytearray(pdf(["The heron stands in the water.", "It waits."], ["A second page."], title="Birds"))
    for _ in range(draw.draw(st.integers(1, 10))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with suppress(Unreadable):
        pdf_document(bytes(data[: draw.draw(st.integers(0, len(data)))]))


def test_a_pdf_that_swells_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = pdf(["x" * 10_000] * 9_000)
    assert len(bomb) < 2**20
    with pytest.raises(Unreadable, match="LimitReached"):
        pdf_document(bomb)
    monkeypatch.setattr(pdf_source, "MOST_CHARACTERS", 1000)
    with pytest.raises(Unreadable, match="more than 1,000 characters"):
        pdf_document(pdf(["x" * 90] * 20))


# --- Word ---------------------------------------------------------------------------------------------------


def test_a_page_of_countless_pieces_is_refused() -> None:
    lines = ["one line", "another line", "a third"]
    assert "a third" in said(pdf_document(pdf(lines)))
    with pytest.raises(Unreadable, match="more than 50,000 pieces of text on page 2"):
        pdf_document(pdf(lines, ["x"] * 50_001))


def test_many_lines_of_one_width_take_no_longer_than_they_must() -> None:
    lines = [f"{number:06d} every line of this log is of the same width" for number in range(20_000)]
    begun = time.process_time()
    pages = [lines[first : first + 400] for first in range(0, len(lines), 400)]
    assert len(said(pdf_document(pdf(*pages, ["x" * 40_000])))) > 900_000
    assert time.process_time() - begun < 5, "it took minutes"


def test_a_word_document_is_read_in_its_order(tmp_path: Path) -> None:
    document = docx.Document()
    document.add_heading("Wading birds", 1)
    document.add_paragraph("The heron\tstands.")
    table = document.add_table(2, 2)
    for place, text in (((0, 0), "bird"), ((0, 1), "height"), ((1, 0), "heron"), ((1, 1), "90 cm")):
        table.cell(*place).text = text
    document.add_paragraph("")
    document.add_paragraph("It waits.")
    (tmp_path / "birds.docx").write_bytes(saved(document))
    (article,) = read(tmp_path / "birds.docx")
    assert article.title == "Wading birds"
    assert article.text == "The heron stands.\nbird: heron; height: 90 cm\nIt waits."
    document.core_properties.title = "On herons"
    assert word_document(saved(document))[0] == "On herons"
    plain = docx.Document()
    plain.add_paragraph("No heading.")
    (tmp_path / "plain.docx").write_bytes(saved(plain))
    assert read(tmp_path / "plain.docx")[0].title == "plain"


def test_styles_made_from_each_other_have_the_level_of_the_first() -> None:
    document = docx.Document()
    last = "Heading 2"
    for number in range(300):
        style = document.styles.add_style(f"Own {number}", docx.enum.style.WD_STYLE_TYPE.PARAGRAPH)
        style.base_style = document.styles[last]
        last = style.name
    circle = [document.styles.add_style(name, docx.enum.style.WD_STYLE_TYPE.PARAGRAPH) for name in "AB"]
    circle[0].base_style, circle[1].base_style = circle[1], circle[0]
    for style, words in (
        ("Heading 1", "Birds"),
        (last, "Herons"),
        ("A", "They fish."),
        ("Heading 2", "Owls"),
    ):
        document.add_paragraph(words, style=style)
    document.add_paragraph("They hunt.")
    data = saved(document)
    begun = time.monotonic()
    assert [section.path for section in word_document(data).sections] == [("Herons",), ("Owls",)]
    assert time.monotonic() - begun < 3, "three hundred styles took 5 s where each looked through all others"


def test_a_table_without_a_header_names_nothing() -> None:
    document = docx.Document()
    table = document.add_table(2, 2)
    for place, text in (((0, 0), "bird"), ((0, 1), "heron"), ((1, 0), "height"), ((1, 1), "90 cm")):
        table.cell(*place).text = text
    for look in table._tbl.iter("{http://schemas.openxmlformats.org/wordprocessingml/2006/main}tblLook"):
        look.set("{http://schemas.openxmlformats.org/wordprocessingml/2006/main}firstRow", "0")
    assert said(word_document(saved(document))) == "bird; heron\nheight; 90 cm"


def test_merged_cells_controls_and_changes_are_read_once(tmp_path: Path) -> None:
    document = docx.Document()
    table = document.add_table(1, 3)
    table.cell(0, 0).merge(table.cell(0, 1)).text = "both"
    table.cell(0, 2).text = "third"
    word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    changed = docx.oxml.parse_xml(
        f'<w:p xmlns:w="{word}"><w:ins><w:r><w:t>added '
        "</w:t></w:r></w:ins><w:del><w:r><w:delText>deleted</w:delText></w:r></w:del>"
        "<w:r><w:t>kept</w:t></w:r></w:p>"
    )
    control = docx.oxml.parse_xml(
        f'<w:sdt xmlns:w="{word}"><w:sdtContent><w:p><w:r><w:t>within a '
        "control</w:t></w:r></w:p></w:sdtContent></w:sdt>"
    )
    document.element.body.insert(0, changed)
    document.element.body.insert(1, control)
    assert said(word_document(saved(document))) == "added kept\nwithin a control\nboth; third"


def word_xml(xml: str) -> object:
    word = "wordprocessingml/2006/main"
    compatibility = "markup-compatibility/2006"
    names = (
        f'xmlns:w="http://schemas.openxmlformats.org/{word}" '
        f'xmlns:mc="http://schemas.openxmlformats.org/{compatibility}"'
    )
    return docx.oxml.parse_xml(xml.replace(">", f" {names}>", 1))


def test_a_table_in_a_table_is_read_once() -> None:
    document = docx.Document()
    outer = document.add_table(1, 2)
    outer.cell(0, 0).text = "left"
    outer.cell(0, 1).text = "right"
    inner = outer.cell(0, 1).add_table(2, 2)
    for place, text in (((0, 0), "a"), ((0, 1), "b"), ((1, 0), "c"), ((1, 1), "d")):
        inner.cell(*place).text = text
    controlled = word_xml(
        "<w:sdt><w:sdtContent><w:tc><w:p><w:r><w:t>last</w:t></w:r></w:p></w:tc></w:sdtContent></w:sdt>"
    )
    document.element.body.tbl_lst[0].tr_lst[0].append(controlled)
    assert said(word_document(saved(document))) == "left; right a b c d; last"


def test_what_was_moved_stands_where_it_went() -> None:
    document = docx.Document()
    moved = "<w:r><w:t>The heron waits.</w:t></w:r>"
    for way, beside in (("moveTo", "Now here. "), ("moveFrom", "Once here.")):
        paragraph = word_xml(
            f"<w:p><w:r><w:t xml:space='preserve'>{beside}</w:t></w:r><w:{way} "
            f"w:id='1'>{moved}</w:{way}></w:p>"
        )
        document.element.body.append(paragraph)
    assert said(word_document(saved(document))) == "Now here. The heron waits.\nOnce here."


def test_hyphens_that_do_not_break_are_hyphens() -> None:
    document = docx.Document()
    gone = "<w:del w:id='1'><w:r><w:noBreakHyphen/></w:r></w:del>"
    years = word_xml(
        "<w:p><w:r><w:t>2020</w:t><w:noBreakHyphen/><w:t>2021, "
        f"so</w:t><w:softHyphen/><w:t>on</w:t></w:r>{gone}</w:p>"
    )
    document.element.body.append(years)
    assert said(word_document(saved(document))) == "2020-2021, soon"


def test_a_fallback_is_not_read_beside_what_it_stands_for() -> None:
    box = "<w:txbxContent><w:p><w:r><w:t>boxed</w:t></w:r></w:p></w:txbxContent>"
    both = f"<mc:AlternateContent><mc:Choice>{box}</mc:Choice><mc:Fallback>{box}<w:t>instead</w:t></mc:Fallback></mc:AlternateContent>"
    paragraph = f"<w:p><w:r><w:t>said</w:t></w:r><w:r>{both}</w:r></w:p>"
    document = docx.Document()
    cell = document.add_table(1, 1).cell(0, 0)._tc
    cell.remove(cell.p_lst[0])
    cell.append(word_xml(paragraph))
    document.element.body.append(word_xml(paragraph))
    assert said(word_document(saved(document))) == "said boxed\nsaid\nboxed"


def test_what_is_no_word_document_says_so(tmp_path: Path) -> None:
    whole = saved(docx.Document())
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as parts:
        parts.writestr("a.txt", "no document")
    for number, data in enumerate((b"no zip file", whole[: len(whole) // 2], other.getvalue())):
        (tmp_path / f"{number}.docx").write_bytes(data)
        with pytest.raises(BadInput, match=r"cannot be read as a Word document \(\.docx\)"):
            read(tmp_path / f"{number}.docx")
    (tmp_path / "blank.docx").write_bytes(whole)
    with pytest.raises(BadInput, match="has no text"):
        read(tmp_path / "blank.docx")


def test_a_zip_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as parts,
        parts.open("word/document.xml", "w", force_zip64=True) as part,
    ):
        for _ in range(80):
            part.write(bytes(2**20))
    assert len(stream.getvalue()) < 2**20
    monkeypatch.setattr(docx, "Document", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(Unreadable, match="unpacks to more"):
        word_document(stream.getvalue())


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_document_compressed_otherwise_is_not_opened(monkeypatch: pytest.MonkeyPatch, method: int) -> None:
    whole = unpacked(saved(docx.Document()))
    monkeypatch.setattr(docx, "Document", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(Unreadable, match="is compressed otherwise"):
        word_document(archive(whole, method))


@pytest.mark.parametrize(("checked", "why"), [(100, "Bad CRC-32"), (101, "holds more in its part")])
def test_a_document_larger_than_it_says_is_not_opened(
    monkeypatch: pytest.MonkeyPatch, checked: int, why: str
) -> None:
    picture = "word/media/image1.png"
    whole = archive(unpacked(saved(docx.Document())) | {picture: bytes(2**25)})
    monkeypatch.setattr(docx, "Document", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(Unreadable, match=why):
        word_document(understated(whole, picture, 100, checked))


# --- both ---------------------------------------------------------------------------------------------------


def test_they_are_packed_and_built_like_any_other(tmp_path: Path, world: Path) -> None:
    document = docx.Document()
    document.add_paragraph("The badger lives in the forest.")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.pdf").write_bytes(pdf(["The heron is a bird."]))
    (tmp_path / "notes" / "b.docx").write_bytes(saved(document))
    corpus = build_corpus(
        [tmp_path / "notes"], tmp_path / "corpus", tokenizer=str(world / "tokenizer.json"), workers=1
    )
    assert [corpus[number].source for number in corpus.ids.tolist()] == ["notes/a.pdf", "notes/b.docx"]


def test_without_the_library_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(["The heron is a bird."]))
    monkeypatch.setitem(sys.modules, "pypdf", None)
    with pytest.raises(MissingExtra, match="reading PDF needs 'pypdf': pip install realmlm"):
        read(tmp_path / "a.pdf")


@pytest.mark.parametrize("kind", ["pdf", "txt", "md", "html", "jsonl"])
def test_what_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr("realmlm.sources.reading.LARGEST", 100)
    data = pdf(["The heron is a bird."]) if kind == "pdf" else b"a heron " * 100
    (tmp_path / f"a.{kind}.gz").write_bytes(gzip.compress(data))
    with pytest.raises(BadInput, match=r"is larger than|is a line of more than"):
        read(tmp_path / f"a.{kind}.gz")


def test_a_line_in_utf_16_has_a_limit_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realmlm.sources.reading.LARGEST", 100)
    (tmp_path / "a.csv").write_bytes("name,town\n".encode("utf-16") + ("Oslo " * 11).encode("utf-16-le"))
    with pytest.raises(BadInput, match=r"a.csv, line 2: is a line of more than"):
        read(tmp_path / "a.csv")
