"""Headings cut documents, name their sections, and no word is lost."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realmlm.sources.files import read_articles
from realmlm.sources.headings import Document, Heading, Section, cut, path_title, tidy
from realmlm.sources.letters import Line, emphasised, outlined
from realmlm.sources.markup import html_document, markdown_document
from realmlm.sources.office import word_document
from tests.calls import build_corpus

HANDBOOK = Document(
    "Handbook",
    [
        Section((), "Welcome."),
        Section(("Benefits", "Vacation"), "Benefits\nVacation\nYou have 25 days."),
        Section(("Benefits", "Sick leave"), "Sick leave\nCall 0117 496 0182."),
        Section((), "Contact\nImprint"),
        Section(("Prices",), "Prices\nLunch is £4.50."),
    ],
)
MARKED = """# Handbook

Welcome.

## Benefits

### Vacation

You have 25 days.

### Sick leave

Call 0117 496 0182.

## Contact

## Imprint

## Prices

Lunch is £4.50.
"""


def test_markdown_is_cut_at_headings() -> None:
    assert markdown_document(MARKED) == HANDBOOK
    quoted = "# A\n\n- # no heading\n\n> ## nor this\n\n<h2>but this</h2>\n\n<p>b</p>\n"
    assert markdown_document(quoted) == Document(
        "A", [Section((), "no heading\nnor this"), Section(("but this",), "but this\nb")]
    )


def test_html_is_cut_at_headings() -> None:
    page = """<title>Handbook | Acme</title><h1>Handbook</h1><p>Welcome.<h2>Benefits</h2><h3>Vacation</h3>
        <p>You have <b>25</b> days.<div><h3>Sick <i>leave</i></h3>Call 0117 496 0182.</div><h2>Contact</h2>
        <h2>Imprint<script>no()</script></h2><h2>Prices</h2>Lunch is £4.50."""
    assert html_document(page) == HANDBOOK._replace(title="Handbook | Acme")
    table = "<h1>Prices</h1><table><tr><td><h2>Lunch</h2><td>£4.50<tr><td>Tea<td>£1</table>"
    assert html_document(table) == Document("Prices", [Section((), "Lunch; £4.50\nTea; £1")])


def test_word_documents_are_cut_at_headings() -> None:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_heading("Handbook", 0)
    document.add_paragraph("Welcome.")
    document.add_heading("Benefits", 1)
    own = document.styles.add_style("Of our house", docx.enum.style.WD_STYLE_TYPE.PARAGRAPH)
    own.base_style = document.styles["Heading 2"]
    document.add_paragraph("Vacation", style=own)
    document.add_paragraph("You have 25 days.")
    sick = document.add_paragraph("Sick leave")
    level = docx.oxml.OxmlElement("w:outlineLvl")
    level.set(docx.oxml.ns.qn("w:val"), "1")
    sick._p.get_or_add_pPr().append(level)
    document.add_paragraph("Call 0117 496 0182.")
    for heading in ("Contact", "Imprint", "Prices"):
        document.add_heading(heading, 1)
    document.add_paragraph("Lunch is £4.50.")
    stream = io.BytesIO()
    document.save(stream)
    assert word_document(stream.getvalue()) == HANDBOOK


def test_a_title_is_that_of_the_only_uppermost_heading() -> None:
    assert markdown_document("## A\n\na\n\n## B\n\nb\n") == Document(
        "", [Section(("A",), "A\na"), Section(("B",), "B\nb")]
    )
    assert markdown_document("---\ntitle: T\n---\n# A\n\na\n") == Document("T", [Section(("A",), "A\na")])
    assert markdown_document("---\ntitle: A\n---\n# A\n\na\n") == Document("A", [Section((), "a")])
    assert markdown_document("# Only\n") == Document("Only", [Section((), "Only")])
    long = "x" * 60 + " " + "y" * 60
    assert markdown_document(f"a\n\n# {long}\n\nb\n") == Document("", [Section((), f"a\n{long}\nb")])


@given(
    st.sampled_from(["", "a", "T"]),
    st.lists(
        st.one_of(
            st.builds(Heading, st.integers(0, 4), st.sampled_from(["", "a", "b c", "d\n e", "x" * 130])),
            st.sampled_from(["one.\n", "two\nthree", " ", "\n\n"]),
        ),
        max_size=12,
    ),
)
def test_no_word_is_lost_or_said_twice(title: str, pieces: list[Heading | str]) -> None:
    document = cut(title, pieces)
    words = [piece if isinstance(piece, str) else f"\n{' '.join(piece.words.split())}\n" for piece in pieces]
    lines = tidy("".join(words)).split()
    said = " ".join(section.text for section in document.sections).split()
    if said != lines:  # the title was a heading
        places = [place for place in range(len(lines)) if lines[place:][: len(document.title.split())]]
        assert any(
            lines[:place] + lines[place + len(document.title.split()) :] == said
            and lines[place : place + len(document.title.split())] == document.title.split()
            for place in places
        )
    assert all(section.text for section in document.sections)
    headings = {" ".join(piece.words.split()) for piece in pieces if isinstance(piece, Heading)}
    assert all(headings.issuperset(section.path) for section in document.sections)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["Handbook"], "Handbook"),
        (["Handbook", "Benefits", "Vacation"], "Handbook › Benefits › Vacation"),
        (["Handbook", "Handbook", "Vacation"], "Handbook › Vacation"),
        (["H" * 30, "a" * 40, "b" * 30, "c" * 20], f"{'H' * 30} › … › {'b' * 30} › {'c' * 20}"),
        (["H" * 30, "a" * 40, "b" * 60, "c" * 20], f"{'H' * 30} › … › {'c' * 20}"),
        (["H" * 60, "c" * 60], "c" * 60),
    ],
)
def test_the_heading_nearest_to_the_text_is_always_in_its_title(names: list[str], shown: str) -> None:
    assert path_title(names[0], names[1:]) == shown


def test_no_passage_runs_across_headings(tmp_path: Path, world: Path) -> None:
    (tmp_path / "handbook.md").write_text(MARKED)
    tokenizer = str(world / "tokenizer.json")
    corpus = build_corpus([tmp_path / "handbook.md"], tmp_path / "corpus", tokenizer=tokenizer, workers=1)
    passages = [corpus[number] for number in corpus.ids.tolist()]
    assert [(passage.title, passage.text) for passage in passages] == [
        (path_title("Handbook", section.path), section.text) for section in HANDBOOK.sections
    ]
    assert passages[1].title == "Handbook › Benefits › Vacation"
    assert {passage.source for passage in passages} == {"handbook.md"}
    assert corpus.siblings(2).tolist() == [0, 1, 3, 4], "they are of one document"


def test_passages_are_counted_by_documents(tmp_path: Path, world: Path) -> None:
    (tmp_path / "handbook.md").write_text(MARKED)
    (tmp_path / "notes.jsonl").write_text('{"text": "One."}\n{"text": "Two."}\n')
    corpus = build_corpus(
        [tmp_path], tmp_path / "corpus", tokenizer=str(world / "tokenizer.json"), workers=1, max_passages=2
    )
    texts = [corpus[number].text for number in corpus.ids.tolist()]
    assert texts == ["Welcome.", "Benefits\nVacation\nYou have 25 days.", "One.", "Two."]


# --- PDF ----------------------------------------------------------------------------------------------------


def lines(*given: tuple[str, float] | tuple[str, float, bool]) -> list[Line]:
    return [Line(*line) for line in given]


def test_larger_and_bolder_lines_are_headings() -> None:
    page = lines(
        ("Handbook", 20.0),
        ("Welcome to all of you who are new here.", 10.0),
        ("Benefits", 14.0),
        ("Vacation", 10.0, True),
        ("You have 25 days, and more of them after ten years.", 10.0),
        ("Note:", 10.0, True),
        ("Ask first, and ask in good time.", 10.0),
        ("Never", 10.0, True),
        ("on Mondays.", 10.0),
        ("1999", 14.0),
        ("Benefits . . . . . 7", 14.0),
    )
    assert emphasised([page]) == {(0, 0): 1, (0, 2): 2, (0, 3): 3}
    assert emphasised([lines(("a b", 9.0), ("c d", 12.0), ("e", 13.0), ("f", 14.0))]) == {}, "too many"
    assert emphasised([]) == {}


def test_an_outline_names_the_headings() -> None:
    page = lines(("2.1 Sick", 10.0), ("leave", 10.0), ("Sick leave is paid.", 10.0), ("Contact", 10.0))
    outline = [(0, Heading(1, "Gone")), (1, Heading(2, "Sick  Leave")), (1, Heading(1, "CONTACT"))]
    assert outlined([[], page], outline) == {(1, 0): 2, (1, 1): 2, (1, 3): 1}
    assert outlined([[], page], [*outline, (9, Heading(1, "Far")), (0, Heading(1, "x"))]) == {}


def pdf(pages: list[list[tuple[str, int, str]]], outline: list[tuple[str, int]] | None = None) -> bytes:
    """A PDF with these lines, each of a size and in a font."""
    pypdf = pytest.importorskip("pypdf")
    generic = pypdf.generic
    writer = pypdf.PdfWriter()
    for page in pages:
        made = writer.add_blank_page(595, 842)
        fonts = generic.DictionaryObject()
        for name in {font for _, _, font in page}:
            font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": f"/{name}"}
            fonts[generic.NameObject(f"/{name}")] = generic.DictionaryObject(
                {generic.NameObject(key): generic.NameObject(value) for key, value in font.items()}
            )
        made[generic.NameObject("/Resources")] = generic.DictionaryObject(
            {generic.NameObject("/Font"): fonts}
        )
        shown = "".join(f"/{font} {size} Tf 0 -30 Td ({text}) Tj\n" for text, size, font in page)
        stream = generic.StreamObject()
        stream.set_data(f"BT 50 800 Td\n{shown}ET".encode())
        made[generic.NameObject("/Contents")] = writer._add_object(stream)
    for title, number in outline or []:
        writer.add_outline_item(title, number)
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


@pytest.mark.parametrize("kind", ["larger", "bold", "outline"])
def test_pdfs_are_cut_at_headings(tmp_path: Path, kind: str) -> None:
    size, font = {"larger": (16, "Helvetica"), "bold": (10, "Helvetica-Bold"), "outline": (10, "Helvetica")}[
        kind
    ]
    text = (10, "Helvetica")
    pages = [
        [("Vacation", size, font), ("You have 25 days in each year that you work here.", *text)],
        [("and half of them can be taken later.", *text), ("Sick leave", size, font), ("Call us.", *text)],
    ]
    outline = [("Vacation", 0), ("Sick leave", 1)] if kind == "outline" else None
    (tmp_path / "handbook.pdf").write_bytes(pdf(pages, outline))

    def on_bad(error: Exception) -> None:
        raise error

    days = "You have 25 days in each year that you work here. and half of them can be taken later."
    assert [(article.title, article.text) for article in read_articles([tmp_path], on_bad=on_bad)] == [
        ("handbook › Vacation", f"Vacation\n{days}"),
        ("handbook › Sick leave", "Sick leave\nCall us."),
    ]
