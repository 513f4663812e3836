import bz2
import csv
import gzip
import io
import json
import lzma
import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realmlm.errors import BadInput
from realmlm.sources import limited, readers
from realmlm.sources.article import Article
from realmlm.sources.bounds import balanced, parts, shallow
from realmlm.sources.encodings import declared_text
from realmlm.sources.files import find_files, read_articles
from realmlm.sources.headings import Document, Section
from realmlm.sources.markup import html_document, markdown_document, wiki_to_text
from realmlm.sources.readers import read_files
from realmlm.sources.tables import record_line
from realmlm.storage.artefacts import publish

PLAIN = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
FULL = PLAIN.filter(lambda text: text.strip() and "\0" not in text)


def strict(error):
    raise error


def read(*sources):
    return list(read_articles(sources, on_bad=strict))


def read_skipping(*sources):
    bad: list[str] = []
    articles = list(read_articles(sources, on_bad=lambda error: bad.append(str(error))))
    return articles, bad


def said(document: Document) -> str:
    """The text of all sections."""
    return "\n".join(section.text for section in document.sections)


def test_a_folder_is_walked_in_sorted_order(tmp_path):
    notes = tmp_path / "notes"
    for name in ("b.txt", "a/z.txt", "a/y.md", ".hidden/x.txt", "a/.w.txt", "a/photo.png"):
        (notes / name).parent.mkdir(parents=True, exist_ok=True)
        (notes / name).write_text(f"# Head of {name}\n\ntext")
    articles, bad = read_skipping(notes)
    assert [article.source for article in articles] == ["notes/a/y.md", "notes/a/z.txt", "notes/b.txt"]
    assert [article.title for article in articles] == ["Head of a/y.md", "z", "b"]
    assert not bad
    files, unknown = find_files([notes], on_bad=strict)
    assert (len(files), unknown) == (3, [notes / "a/photo.png"])


def test_texts_by_other_names(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    lines = (
        "[09:12] the first line of this log is about as long as a line of prose that was wrapped\nand more\n"
    )
    for name in (
        "chat.log",
        "LICENSE",
        "readme",
        "paper.rst",
        "diary.org",
        "settings.yaml",
        "Makefile",
        "core",
    ):
        (notes / name).write_text(lines)
    (notes / "NEWS.gz").write_bytes(gzip.compress(lines.encode()))
    (notes / "config.json").write_text('{"server": {"host": "db-alpha", "port": 5439}, "owner": "Ada"}')
    files, unknown = find_files([notes], on_bad=strict)
    assert sorted(path.name for path in unknown) == ["Makefile", "config.json", "core", "settings.yaml"]
    titles = {article.source: (article.title, article.text) for article in read(notes)}
    assert titles["notes/LICENSE"][0] == "LICENSE"
    assert titles["notes/NEWS.gz"][0] == "NEWS"
    assert titles["notes/chat.log"] == ("chat", lines)
    assert titles.keys() == {f"notes/{file.path.name}" for file in files}
    assert len(titles) == 6
    (one,) = read(notes / "config.json")  # which is named
    assert (one.title, one.text) == ("config", "server host: db-alpha; server port: 5439; owner: Ada")
    assert [article.title for article in read(notes / "core", notes / "settings.yaml")] == [
        "core",
        "settings",
    ]


@pytest.mark.parametrize("text", ["[{}, {}]", "{}\n{}\n", "  [{},\n {}]\n"])
def test_json_is_an_object_a_list_or_lines(tmp_path, text):
    objects = '{"title": "A", "text": "one"}', '{"title": "B", "text": "two", "price": 4.50}'
    (tmp_path / "a.json").write_text(text.replace("{}", "%s") % objects)
    found = [(a.title, a.text, a.source) for a in read(tmp_path / "a.json")]
    assert found == [("A", "one", "a.json:1"), ("B", "price: 4.50\ntwo", "a.json:2")]


@pytest.mark.parametrize(
    ("text", "says"),
    [("7", "not a JSON object"), ("{", "line 1: is not JSON"), ("", "is empty"), ("[]", "is empty")],
)
def test_json_that_holds_no_object(tmp_path, text, says):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BadInput, match=f"a.json.*{says}"):
        read(tmp_path / "a.json")


def test_a_link_beside_its_file_is_read_once(tmp_path):
    notes = tmp_path / "notes"
    (notes / "deep").mkdir(parents=True)
    (notes / "heron.txt").write_text("The heron.")
    (notes / "page").write_text("The page.")
    (tmp_path / "crane.txt").write_text("The crane.")
    (notes / "again.txt").symlink_to("heron.txt")
    (notes / "page.txt").symlink_to("page")  # which is not read under its own name
    (notes / "crane.txt").symlink_to(tmp_path / "crane.txt")
    (notes / ".hidden.txt").write_text("Hidden.")
    (notes / "shown.txt").symlink_to(".hidden.txt")
    found = {article.source for article in read(notes)}
    assert found == {f"notes/{name}.txt" for name in ("heron", "page", "crane", "shown")}


def test_what_realmlm_wrote_is_no_document(tmp_path):
    notes = tmp_path / "notes"
    for folder in ("run", "adapted/model", "kept", "web"):
        (notes / folder).mkdir(parents=True)
    with publish(notes / "world", kind="world") as draft:
        (draft.path / "knowledge.jsonl").write_text('{"text": "x"}')
    (notes / "run" / "run.json").write_text('{"stage": "warmup", "config": {}}')
    (notes / "adapted" / "verdict.json").write_text('{"held_out": 3, "measures": {}}')
    (notes / "web" / "manifest.json").write_text('{"name": "a page"}')
    for folder in ("run", "adapted", "adapted/model", "kept", "web"):
        (notes / folder / "metrics.jsonl").write_text('{"loss": 1.5}')
    assert {article.source for article in read(notes)} == {
        "notes/kept/metrics.jsonl",
        "notes/web/metrics.jsonl",
    }
    assert [article.text for article in read(notes / "world")] == ["x"]  # which is named


def test_files_that_are_called_alike_are_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "notes.txt").write_text(f"The heron of {folder}.")
    (tmp_path / "c.txt").write_text("Alone.")
    files = [tmp_path / "a/notes.txt", tmp_path / "b/notes.txt", tmp_path / "c.txt"]
    articles = list(read_articles(files, on_bad=strict))
    assert [article.source for article in articles] == ["a/notes.txt", "b/notes.txt", "c.txt"]


# without the time of day: processes that share the tests must name them alike
CUT_OFF = gzip.compress(b'{"text": "x"}\n' * 99, mtime=0)[:-12]


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.txt", b"", "no text"),
        ("a.txt", b"one\ntwo \xff\0", "line 2.*0xff is not UTF-8"),
        ("a.txt", b"\x01\x02\x03 \xe9", "line 1.*0xe9 is not UTF-8; it does not look like text; if"),
        ("a.txt", b"caf\xe9 \x81", "line 1.*0xe9 is not UTF-8; convert the file to UTF-8"),
        ("a.txt", b"\xff\xfea\0b", "not UTF-16, which its first bytes announce"),
        ("a.csv", b"\xff\xfea\0b", "line 1.*not UTF-16, which its first bytes announce"),
        ("a.md", b"\n\n", "no text"),
        ("a.html", b"<script>x</script>", "no text"),
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b'{"text": "x"}\n{"text": ', "line 2.*not JSON"),
        ("a.jsonl", b"[1]\n", "line 1.*object"),
        ("a.jsonl", b'\n{"body": null}\n', "line 2.*missing.*'body'"),
        ("a.jsonl", b'{"text": 3}\n', "not a string"),
        ("a.jsonl", b'{"text": "x", "title": []}\n{"text": "x", "title": [1]}', "line 2.*title"),
        ("a.jsonl", b'{"text": " "}\n', "line 1.*no text"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "surrogate"),
        ("a.jsonl", b'{"text": "x"}\n\xfe\n', "line 2.*UTF-8"),
        ("a.jsonl", b"[" * 100_000, "line 1.*not JSON"),
        ("a.csv", b"", "is empty"),
        ("a.csv", b"id,body\n", "is empty"),
        ("a.csv", b"id,text\n1,x\n2\n", "line 3.*1 fields where the header has 2"),
        ("a.csv", b'id,text\n1,x\n2,"never closed\n3,y\n', "line 3.*broken row"),
        ("a.xml", b"", "not well-formed"),
        ("a.xml", b"<html></html>", "line 1.*<html>"),
        ("a.xml", b"<mediawiki><page><title>x</title>", "not well-formed"),
        ("a.xml", b'<!DOCTYPE m [<!ENTITY a "b">]><mediawiki>&a;</mediawiki>', "DOCTYPE"),
        ("a.xml", b"<mediawiki><page><ns>1</ns></page></mediawiki>", "none of its 1 pages"),
        ("a.png", b"x", "readable kinds: .txt"),
        ("a.jsonl.gz", CUT_OFF, "a.jsonl.gz.*cannot be read to its end"),
        ("a.jsonl.bz2", bz2.compress(b'{"text": "x"}\n' * 99)[:-9], "cannot be read to its end"),
        ("a.jsonl.xz", lzma.compress(b'{"text": "x"}\n' * 99)[:-9], "cannot be read to its end"),
        ("a.txt.gz", b"not gzip", "cannot be read"),
    ],
)
def test_bad_input_names_file_and_line(tmp_path, name, data, says):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadInput, match=f"(?s){name}.*{says}|{says}"):
        read(tmp_path / name)
    _, bad = read_skipping(tmp_path / name)
    assert len(bad) == 1
    assert str(tmp_path / name) in bad[0]


def test_what_does_not_exist(tmp_path):
    with pytest.raises(BadInput, match=r"gone\.txt does not exist"):
        read(tmp_path / "gone.txt")
    with pytest.raises(BadInput, match="holds no file"):
        read(tmp_path)


def lock(monkeypatch: pytest.MonkeyPatch, *locked: Path) -> None:
    """Folders that may not be read, for root too."""
    scandir = os.scandir

    def refuse(path="."):
        if Path(path) in locked:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)


def test_a_folder_that_may_not_be_read_is_said(tmp_path, monkeypatch):
    for name in ("notes/a.txt", "notes/private/b.txt", "notes/.git/c.txt", "only/private/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    notes = tmp_path / "notes"
    only = tmp_path / "only"
    private = tmp_path / "notes/private"
    lock(monkeypatch, private, notes / ".git", only / "private")
    articles, bad = read_skipping(notes)
    assert [article.source for article in articles] == ["notes/a.txt"]
    assert bad == [f"{private} cannot be read (Permission denied)"]
    for folder, locked in ((private, private), (only, only / "private")):
        assert read_skipping(folder) == ([], [f"{locked} cannot be read (Permission denied)"])
    with pytest.raises(BadInput, match="private cannot be read"):
        read(notes)


def test_files_that_may_not_be_looked_at_are_said(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.txt").write_text("text")
    looked = Path.stat

    def refuse(path, **options):
        if path.name == "b.txt":
            raise PermissionError(13, "Permission denied", str(path))
        return looked(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    for source in (tmp_path, tmp_path / "b.txt"):
        _, bad = read_skipping(source)
        assert bad == [f"{tmp_path / 'b.txt'} cannot be read (Permission denied)"]


def test_linked_folders_are_read_once(tmp_path):
    for name in ("notes/b/x.txt", "notes/y.txt", "notes/.hidden/h.txt", "far/z.txt", "far/deep/w.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    links = {
        "notes/a": "notes/b",
        "notes/b/round": "notes",
        "notes/c": "far",
        "notes/d": "far/deep",
        "far/back": "notes/b",
        "far/self": "far",
    }
    for link, target in links.items():
        (tmp_path / link).symlink_to(tmp_path / target)
    (tmp_path / "notes/.secret").symlink_to(tmp_path / "far")
    assert [article.source for article in read(tmp_path / "notes")] == [
        "notes/b/x.txt",
        "notes/c/deep/w.txt",
        "notes/c/z.txt",
        "notes/y.txt",
    ]
    (tmp_path / "far/up").symlink_to(tmp_path)
    articles, bad = read_skipping(tmp_path / "notes")
    assert len(articles) == 4
    assert bad == [
        f"{tmp_path / 'notes/c/up'} is a link to {tmp_path}, a folder that contains it; remove the link"
    ]


def test_names_that_are_not_utf_8_are_left_out_alone(tmp_path):
    notes = os.fsencode(tmp_path / "notes")
    os.makedirs(notes + b"/caf\xe9")
    for name in (b"caf\xe9.txt", b"caf\xc3\xa9.txt", b"caf\xe9/a.txt", b".caf\xe9.txt", b"caf\xe9.jpg"):
        with open(notes + b"/" + name, "w") as file:
            file.write("text")
    articles, bad = read_skipping(tmp_path / "notes")
    assert [article.source for article in articles] == ["notes/café.txt"]
    assert bad == [
        f"{tmp_path}/notes/{name} has a name that is not UTF-8; rename it"
        for name in ("caf\\xe9", "caf\\xe9.txt")
    ]
    with pytest.raises(BadInput, match=r"caf\\xe9\.txt has a name that is not UTF-8; rename it"):
        read(Path(os.fsdecode(notes + b"/caf\xe9.txt")))
    assert [article.source for article in read(Path(os.fsdecode(notes + b"/caf\xe9/a.txt")))] == [
        "a.txt"
    ]  # what it lies in has no say


def test_skipping_goes_on_after_the_fault(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\nbroken\n\xff\n{"text": "two", "id": 7}\n')
    (tmp_path / "b.tsv").write_bytes(b"id\ttext\ttitle\n1\tthree\tT\n2\tshort\n\xff\n3\tfour\tF\n")
    articles, bad = read_skipping(tmp_path / "a.jsonl", tmp_path / "b.tsv")
    assert [article.text for article in articles] == ["one", "two", "three", "four"]
    assert [article.source for article in articles] == ["a.jsonl:1", "a.jsonl#7", "b.tsv#1", "b.tsv#3"]
    assert len(bad) == 4


def test_other_keys_of_json_lines_are_read_as_columns_of_tables_are(tmp_path):
    rows = [
        {"id": 7, "title": "Order 7", "date": "2026-02-11", "total": 4.5, "paid": True, "text": "For Ada."},
        {"id": 8, "title": "Order 8", "date": None, "total": 12, "paid": "", "text": "For Bo."},
    ]
    (tmp_path / "orders.jsonl").write_text("\n".join(map(json.dumps, rows)).replace("4.5,", "4.50,"))
    (tmp_path / "orders.csv").write_text(
        "id,title,date,total,paid,text\n7,Order 7,2026-02-11,4.50,true,For Ada.\n8,Order 8,,12,,For Bo.\n"
    )
    of_lines, of_table = read(tmp_path / "orders.jsonl"), read(tmp_path / "orders.csv")
    assert of_lines[0].text == "id: 7; date: 2026-02-11; total: 4.50; paid: true\nFor Ada."
    assert [(a.title, a.text) for a in of_lines] == [(a.title, a.text) for a in of_table]
    assert [a.source for a in of_lines] == ["orders.jsonl#7", "orders.jsonl#8"]


def test_what_a_dump_says_of_its_articles_is_no_text(tmp_path):
    article = {
        "id": "12",
        "revid": "835",
        "url": "https://example.org/12",
        "title": "Anarchism",
        "text": "A movement.",
    }
    vector = {"title": "Beta", "text": "Beta is blue.", "embedding": [0.123] * 384, "sizes": [4, 5]}
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [article, vector])))
    assert [one.text for one in read(tmp_path / "a.jsonl")] == ["A movement.", "sizes: 4, 5\nBeta is blue."]


def test_json_lines_without_text_are_rows_of_one_table(tmp_path):
    (tmp_path / "stock.jsonl").write_text(
        '{"crsCode": "X1", "price": 44.90, "shop": {"town": "Oslo", "floor": 2}, "sizes": ["S", 4, false]}\n'
        '{"text": "Prose between.", "title": "T"}\n'
        '{"crsCode": "X2\\ud800\\u0000", "price": null, "tags": [{"a": 1}, {"a": [2]}], "title": "Two", "text": null}\n'
    )
    (tmp_path / "stock.csv").write_text("crsCode,price\nX1,44.90\nX2,\n")
    prose, table = read(tmp_path / "stock.jsonl")
    assert (prose.title, prose.text, prose.has_rows) == ("T", "Prose between.", False)
    assert (table.title, table.source, table.has_rows) == ("stock", "stock.jsonl", True)
    assert table.text.split("\n") == [
        "crs code: X1; price: 44.90; shop town: Oslo; shop floor: 2; sizes: S, 4, false",
        "crs code: X2; tags a: 1; tags a: 2; title: Two",
    ]
    (from_csv,) = read(tmp_path / "stock.csv")
    assert (from_csv.title, from_csv.text) == ("stock", "crs code: X1; price: 44.90\ncrs code: X2")


def test_long_json_lines_without_text_become_several_documents(tmp_path, monkeypatch):
    monkeypatch.setattr("realmlm.sources.readers.TABLE", 30)
    (tmp_path / "a.jsonl").write_text("".join(f'{{"number": {n}, "name": "n{n}"}}\n' for n in range(7)))
    articles = read(tmp_path / "a.jsonl")
    assert [len(article.text.split("\n")) for article in articles] == [2, 2, 2, 1]
    assert "\n".join(a.text for a in articles).split("\n")[5] == "number: 5; name: n5"


def test_what_a_corpus_of_beir_says_beside_its_text_is_not_read(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"_id": "d1", "title": "T", "text": "x", "metadata": {"url": "u"}}\n')
    assert [(a.title, a.text, a.source) for a in read(tmp_path / "a.jsonl")] == [("T", "x", "a.jsonl#d1")]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_object_is_one_line(value):
    line = record_line({"a": value, "b": "end"})
    assert line.endswith("b: end")
    assert "\n" not in line
    assert line.encode()


def test_byte_order_marks_and_line_ends(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufefféa\r\nb".encode())
    (tmp_path / "b.jsonl").write_bytes('\ufeff{"text": "c"}\r\n'.encode())
    (tmp_path / "c.csv").write_bytes('\ufefftext,title\r\n"d,\ne","f ""g"""\r\n'.encode())
    assert [(a.title, a.text) for a in read(*sorted(tmp_path.iterdir()))] == [
        ("a", "éa\r\nb"),
        ("", "c"),
        ('f "g"', "d,\ne"),
    ]


def test_a_table_without_a_text_is_one_document_a_line_a_row(tmp_path):
    (tmp_path / "people.csv").write_text('Name, office ,phone\nAda,Oslo,12\n\n"Bo\nBerg",,13\n')
    (tmp_path / "semicolons.csv").write_text("name;office\nAda;Oslo, Norway\n")
    (tmp_path / "tabs.tsv").write_text("name\t\trole\nAda\tOslo\tcook\n")
    (tmp_path / "texts.csv").write_text("Title;TEXT\nOtter;It swims.\n")
    (tmp_path / "untitled.csv").write_text("date\ttext\n2026-02-11\tIt swam.\n")
    articles = read(*sorted(tmp_path.iterdir()))
    assert [(article.title, article.text) for article in articles] == [
        ("people", "Name: Ada; office: Oslo; phone: 12\nName: Bo Berg; phone: 13"),
        ("semicolons", "name: Ada; office: Oslo, Norway"),
        ("tabs", "name: Ada; Oslo; role: cook"),
        ("Otter", "It swims."),
        ("untitled", "date: 2026-02-11\nIt swam."),
    ]
    (tmp_path / "large.csv").write_text(f"name,office\nAda,{'Oslo ' * 2**18}\nBo,Bergen\n")
    large = [article.text for article in read(tmp_path / "large.csv")]  # it is not held whole
    assert [text.count("\n") for text in large] == [0, 0]
    assert large[1] == "name: Bo; office: Bergen"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("packing", sorted(PACKERS))
def test_texts_of_other_encodings_are_read(tmp_path, encoding, packing, capsys):
    texts = {
        "a.txt": "Café “Zoë”,\r\nOslo",
        "b.csv": "name,city\r\nZoë,Orléans\r\nJosé,Köln\r\n",
        "c.md": "# Café\n\nZoë",
    }
    for name, text in texts.items():
        (tmp_path / (name + packing)).write_bytes(PACKERS[packing](text.encode(encoding)))
    assert [(article.title, article.text) for article in read(tmp_path)] == [
        ("a", "Café “Zoë”,\r\nOslo"),
        ("b", "name: Zoë; city: Orléans\nname: José; city: Köln"),
        ("Café", "Zoë"),
    ]
    said = capsys.readouterr().err
    assert said.count("read as Windows-1252") == (3 if encoding == "cp1252" else 0)


POLISH = "Łukasz Wiśniewski z Łodzi"
# Ā has a NUL byte where other letters have none
LATVIAN = "Āgenskalns is a part of the city of Riga, on the left bank of the Daugava."


@pytest.mark.parametrize(
    ("declaration", "encoding"),
    [
        ('<meta charset="iso-8859-2">', "iso-8859-2"),
        ("<META CHARSET = 'Windows-1250' />", "cp1250"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=ISO-8859-2">', "iso-8859-2"),
        ('<?xml version="1.0" encoding="iso-8859-2"?>', "iso-8859-2"),
        ('<!-- <meta charset="iso-8859-1"> --><meta charset="iso-8859-2">', "iso-8859-2"),
        ('<meta charset="iso-8859-2">', "utf-8-sig"),  # the mark goes before what is declared
        ('<meta charset="iso-8859-2">', "utf-16"),
        ('<meta charset="iso-8859-2">', "utf-8"),  # declared long ago, converted since
        ('<meta charset="utf-8">', "utf-8"),
        ('<meta charset="utf-16">', "utf-8"),  # no page in UTF-16 could say so in ASCII
        ('<meta charset="klingon">', "utf-8"),
        ('<meta charset="rot13">', "utf-8"),
        ('<meta charset="utf-7">', "utf-8"),
        ('<meta charset="unicode_escape">', "utf-8"),
        ('<meta charset="cp037">', "utf-8"),
    ],
)
def test_a_page_is_read_in_the_encoding_it_declares(tmp_path, declaration, encoding, capsys):
    page = f"{declaration}<html><head><title>{POLISH}</title></head><body><p>C:\\new {POLISH}.</body></html>"
    (tmp_path / "a.html").write_bytes(page.encode(encoding))
    assert [(article.title, article.text) for article in read(tmp_path)] == [(POLISH, f"C:\\new {POLISH}.")]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("declaration", "guessed"),
    [
        ('<meta charset="iso-8859-1">', False),  # as browsers do, with what Windows has beyond it
        ('<meta charset="us-ascii">', False),
        ("", True),
        ('<meta charset="utf-8">', True),  # not what it is in
        ('<meta charset="klingon">', True),
        (" " * 1024 + '<meta charset="iso-8859-2">', True),  # too late
    ],
)
def test_a_declared_encoding_is_no_guess(tmp_path, declaration, guessed, capsys):
    (tmp_path / "a.html").write_bytes(f"{declaration}<p>Café “Zoë”".encode("cp1252"))
    assert [article.text for article in read(tmp_path)] == ["Café “Zoë”"]
    assert ("read as Windows-1252" in capsys.readouterr().err) == guessed


@given(
    st.binary(max_size=40),
    st.sampled_from(
        ["utf-8", "iso-8859-2", "big5", "iso-2022-jp", "idna", "punycode", "hex", "undefined", "x"]
    ),
)
def test_any_bytes_under_any_declaration_are_a_text_or_none(data, name):
    text = declared_text(f'<meta charset="{name}">'.encode() + data)
    assert text is None or text.startswith(f'<meta charset="{name}">')


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("packing", sorted(PACKERS))
def test_utf_16_without_a_mark_is_told_by_its_nul_bytes(tmp_path, encoding, packing, capsys):
    texts = {
        "a.txt": f"{LATVIAN}\r\nOslo",
        "b.csv": "name,city\r\nZoë,Orléans\r\nJosé,Łódź\r\n",
        "c.html": f"<h1>Café</h1><p>{POLISH}",
    }
    for name, text in texts.items():
        (tmp_path / (name + packing)).write_bytes(PACKERS[packing](text.encode(encoding)))
    assert [(article.title, article.text) for article in read(tmp_path)] == [
        ("a", f"{LATVIAN}\r\nOslo"),
        ("b", "name: Zoë; city: Orléans\nname: José; city: Łódź"),
        ("Café", POLISH),
    ]
    assert capsys.readouterr().err.count("no byte order mark, read as UTF-16") == 3


@pytest.mark.parametrize(
    "data", [bytes(100), b"a\0b", b"ab\0" * 40, bytes(range(32, 64)) + bytes(200), b"plain text\0" * 20]
)
def test_other_bytes_with_nuls_are_no_text(tmp_path, data):
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(BadInput, match="holds NUL bytes"):
        read(tmp_path)


def test_lock_files_of_offices_are_passed_over(tmp_path):
    (tmp_path / "~$report.docx").write_bytes(b"\x08Somebody")
    (tmp_path / "report.txt").write_text("Said.")
    assert find_files([tmp_path], on_bad=strict)[1] == []
    assert [article.text for article in read(tmp_path)] == ["Said."]


@given(st.lists(st.tuples(PLAIN, FULL), min_size=1, max_size=5), st.sampled_from(sorted(PACKERS)))
def test_tables_and_json_lines_give_back_what_was_written(tmp_path_factory, rows, packing):
    folder = tmp_path_factory.mktemp("round")
    pack = PACKERS[packing]
    json_lines = "".join(
        json.dumps({"title": title, "text": text, "metadata": {"more": 1}}) + "\n" for title, text in rows
    )
    (folder / f"a.jsonl{packing}").write_bytes(pack(json_lines.encode()))
    for name, delimiter in (("b.csv", ","), ("c.tsv", "\t")):
        table = io.StringIO()
        writer = csv.writer(table, delimiter=delimiter, quoting=csv.QUOTE_ALL)
        writer.writerows(
            [("text", "title"), *((text.replace("\0", ""), title.replace("\0", "")) for title, text in rows)]
        )
        (folder / f"{name}{packing}").write_bytes(pack(table.getvalue().encode()))
    expected = [(" ".join(title.split()), text) for title, text in rows]
    assert [(a.title, a.text) for a in read(folder / f"a.jsonl{packing}")] == expected
    if not any("\0" in title + text for title, text in rows):
        for name in ("b.csv", "c.tsv"):
            assert [(a.title, a.text) for a in read(folder / f"{name}{packing}")] == expected


def test_bytes_read_add_up_to_the_files_on_disk(tmp_path):
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(lzma.compress(b"".join(b'{"text": "%d"}\n' % number for number in range(50_000))))
    counts: list[int] = []
    files, _ = find_files([path], on_bad=strict)
    assert sum(1 for _ in read_files(files, on_bad=strict, on_bytes=counts.append)) == 50_000
    assert sum(counts) == path.stat().st_size
    assert len(counts) > 2


DUMP = """<mediawiki xmlns="http://example.org/" version="0.11"><siteinfo><namespaces><namespace key="6">Datei</namespace></namespaces>
</siteinfo>
<page><title>Velm</title><ns>0</ns><id>3</id><revision><id>9</id><text>old</text></revision>
<revision><id>10</id><text>'''Velm''' &amp; [[river|sea]]. [[Datei:x.png|thumb|no]]</text></revision></page>
<page><title>Gone</title><ns>0</ns><id>4</id><redirect title="Velm" /><revision><text>#WEITERLEITUNG [[Velm]]</text></revision></page>
<page><title>Old way</title><ns>0</ns><id>5</id><revision><text> #redirect [[Velm]]</text></revision></page>
<page><title>Talk:Velm</title><ns>1</ns><id>6</id><revision><text>chat</text></revision></page>
<page><title>Only a table</title><ns>0</ns><id>7</id><revision><text>{| \n| x\n|}</text></revision></page>
<page><title>Ostra</title><ns>0</ns><id>8</id><revision><text>Prose.</text></revision></page></mediawiki>"""


def test_dumps_keep_articles_only(tmp_path):
    (tmp_path / "d.xml.bz2").write_bytes(bz2.compress(DUMP.encode()))
    assert read(tmp_path / "d.xml.bz2") == [
        Article("Velm", "Velm & sea.", "d.xml.bz2#3"),
        Article("Ostra", "Prose.", "d.xml.bz2#8"),
    ]


def test_a_cut_off_dump_keeps_what_came_before(tmp_path):
    (tmp_path / "d.xml").write_text(DUMP[: DUMP.index("<page><title>Talk")])
    articles, bad = read_skipping(tmp_path / "d.xml")
    assert [article.title for article in articles] == ["Velm"]
    assert len(bad) == 1


@pytest.mark.parametrize("encoding", ["x-nope", "big5", "utf-7", "punycode", "base64"])
def test_a_dump_in_an_encoding_that_expat_does_not_know_is_one_complaint(tmp_path, encoding):
    (tmp_path / "a.txt").write_text("Before it.")
    (tmp_path / "d.xml").write_text(f'<?xml version="1.0" encoding="{encoding}"?>{DUMP}')
    (tmp_path / "z.txt").write_text("After it.")
    articles, bad = read_skipping(tmp_path)
    assert [article.text for article in articles] == ["Before it.", "After it."]
    assert len(bad) == 1
    assert "d.xml" in str(bad[0])


def test_whatever_a_reader_stumbles_over_is_a_complaint_that_names_the_file(tmp_path):
    (tmp_path / "a.html").write_text("<p>One.</p>")
    (tmp_path / "b.txt").write_text("Two.")
    with patch.object(readers, "html_document", side_effect=ZeroDivisionError("by someone's library")):
        articles, bad = read_skipping(tmp_path)
    assert [article.text for article in articles] == ["Two."]
    assert len(bad) == 1
    assert "a.html: cannot be read (ZeroDivisionError: by someone's library)" in str(bad[0])


@given(st.text(alphabet="ab \n", max_size=60), st.integers(1, 20))
def test_the_parts_of_a_text_are_the_text(text, most):
    found = list(parts(text, most))
    assert "".join(found) == text
    assert all(len(part) <= most for part in found)
    for part, following in pairwise(found):
        assert part[-1] in " \n" or (len(part) == most and not {" ", "\n"} & set(part))
        assert part[-1] == "\n" or "\n" not in part, (part, following)


def test_a_long_text_is_several_articles(tmp_path):
    line = "The otter swims in the river.\n"
    (tmp_path / "a.txt").write_text(line * 150_000)
    articles = read(tmp_path / "a.txt")
    assert len(articles) == 3
    assert {(article.title, article.source) for article in articles} == {("a", "a.txt")}
    assert "".join(article.text for article in articles) == line * 150_000


@pytest.mark.parametrize(
    "token", [b"<mediawiki " + b"a" * 2**23, b"<mediawiki><!--" + b"-a" * 2**22], ids=["tag", "comment"]
)
def test_a_dump_with_a_token_without_end_is_refused(tmp_path, token):
    (tmp_path / "d.xml.bz2").write_bytes(bz2.compress(token))
    with pytest.raises(BadInput, match=r"d\.xml\.bz2, line 1: has a tag or comment of more than 4 MiB"):
        read(tmp_path / "d.xml.bz2")


def test_a_dump_without_end_is_refused(tmp_path):
    (tmp_path / "deep.xml").write_text("<mediawiki>" + "<a>" * 100_000)
    (tmp_path / "long.xml").write_text("<mediawiki><page><revision><text>" + "words " * 2**20)
    with pytest.raises(BadInput, match="has elements 64 deep"):
        read(tmp_path / "deep.xml")
    with pytest.raises(BadInput, match="has a page of more than 4 million characters"):
        read(tmp_path / "long.xml")


DEEP = {
    "list": "<ul><li>",
    "div": "<div>",
    "formats": "<p><b i={}></p>",
    "drawing": "<svg><td>",
    "attributes": " a{}",
}


@pytest.mark.parametrize("kind", DEEP)
def test_pages_are_read_in_time_in_proportion_to_their_size(kind):
    page = "".join(DEEP[kind].format(number) for number in range(900_000 // len(DEEP[kind])))
    page = f"<p {page}>deep</p>" if kind == "attributes" else f"{page}deep"
    begun = time.process_time()
    assert said(html_document(page)) == ("" if kind == "drawing" else "deep")
    assert time.process_time() - begun < 20


@pytest.mark.parametrize(
    "opened", ["[http://a ", "<ref>", "{{a|", "[[a|", "<b>", "<ref name=", "{{a|[[b <i>"]
)
@pytest.mark.parametrize("closed", ["", "}}"])
def test_wiki_markup_that_nothing_closes_takes_no_longer(opened, closed):
    markup = opened * (300_000 // len(opened)) + closed * 40_000
    begun = time.process_time()
    assert wiki_to_text(f"First.\n\n{markup}\n\nLast.").startswith("First.")
    assert time.process_time() - begun < 20


def test_a_page_that_is_not_deep_is_left_as_it_is():
    """Elements that need no end tag: a page of many is no deeper for it."""
    row = "<tr><td>a<td><p>b<b>c</b><img src=x><br>"
    page = f"<p>x<p>y<ul>{'<li>z' * 900}</ul><table>{row * 900}</table><dl>{'<dt>a<dd>b' * 900}</dl>"
    assert shallow(page) == page
    unbalanced = "{{a}} [[b]] <ref>c</ref> " * 900 + "{{" * 20
    assert balanced(unbalanced) == unbalanced


def test_a_large_page_is_read_as_a_small_one(tmp_path):
    for name, count in (("small", 5), ("large", 30_000)):
        (tmp_path / f"{name}.html").write_text("<title>É</title>" + "<p>An otter &amp; a heron.</p>" * count)
        article = read(tmp_path / f"{name}.html")[0]
        text = "\n".join(["An otter & a heron."] * count)
        assert article == Article("É", text, f"{name}.html", has_rows=True)


@pytest.mark.parametrize(("limit", "most"), [("LONGEST_S", 0), ("_MEMORY", 2**27)])
def test_a_parser_that_takes_too_much_is_stopped(tmp_path, monkeypatch, limit, most):
    monkeypatch.setattr(limited, limit, most)
    (tmp_path / "large.html").write_text("<p>An otter &amp; a heron.</p>" * 200_000)
    (tmp_path / "other.txt").write_text("Other.")
    articles, bad = read_skipping(tmp_path)
    assert [article.text for article in articles] == ["Other."]
    assert len(bad) == 1
    assert "large.html: takes more than" in str(bad[0])


def test_wiki_markup():
    text = wiki_to_text(
        "{{Box|a=1}}'''Velm''' ({{lang|x}}) is a [[stream]]s' [[river|source]].<ref>Book</ref> It&nbsp;runs "
        "__NOTOC__\n"
        "== Past ==\n* one\n* [http://a.example site] [[:Category:Seen]]\n{| class=x\n|-\n| cell\n|}\n"
        "[[File:a.jpg|thumb|A [[b]] c]]<math>x</math>H<sub>2</sub>O <!-- c --><br/>end\n[[Category:Rivers]]"
    )
    assert text == "Velm is a streams' source. It runs\nPast\none\nsite Category:Seen\nH2O\nend"


def test_html():
    page = (
        "<html><head><title> A\n b</title><style>p{}</style></head><body><nav>menu</nav><h1>Head</h1><p>One "
        "<b>t</b>wo\n three"
        "<p>Four<br>five<ul><li>x<li>y</ul><pre>k\nl</pre><script>no()</script>end"
    )
    text = "Head\nOne two three\nFour\nfive\nx\ny\nk\nl\nend"
    assert html_document(page) == Document("A b", [Section(("Head",), text)])
    assert html_document("<h1>Only</h1>rest") == Document("Only", [Section((), "rest")])
    assert html_document("<div>" * 20_000 + "deep") == Document("", [Section((), "deep")])


def test_rows_of_html_tables_are_lines_with_the_headers_words():
    head = "<thead><tr><th>Supplies<th>Supplier</thead>"
    page = (
        f"<p>Who:<table><caption>Of 2026</caption>{head}<tr><td>Glass<td><p>Vitrum <b>Ltd</b></p><tr><td "
        "colspan=2>more</table>end"
    )
    assert said(html_document(page)) == "Who:\nOf 2026\nSupplies: Glass; Supplier: Vitrum Ltd\nmore\nend"
    assert (
        said(html_document("<table><tr><td>Glass<td><td>Vitrum<tr><td>Sand<td>x<td>y</table>"))
        == "Glass; Vitrum\nSand; x; y"
    )
    assert said(html_document("<table><tr><th>Only<th>heads</table>")) == "Only; heads"
    # no table, but a page's columns
    arranged = "<table><tr><td>menu<td><p>One.<p>Two.<table><tr><td>a<td>b</table></table>"
    assert said(html_document(arranged)) == "menu\nOne.\nTwo.\na; b"
    assert said(html_document("<table></table><table><tr></table>x")) == "x"
    assert said(html_document("<table><tr><td>" * 5_000 + "deep")) == "deep"


def test_markdown():
    source = (
        "# Head *it*\n\nPara `code` [link](http://x) ![alt](y)\nsoft\n\n- a\n- "
        "b\n\n|x|y|\n|-|-|\n|1|2|\n\n```\nfn()\n```\n<div>raw</div>\n"
    )
    assert markdown_document(source) == Document(
        "Head it", [Section((), "Para code link alt soft\na\nb\nx: 1; y: 2\nfn()\nraw")]
    )
    front = markdown_document('---\ntitle: "Front"\ntags: x\n---\nBody')
    assert front == Document("Front", [Section((), "Body")])
    assert markdown_document("plain") == Document("", [Section((), "plain")])


@given(st.text(alphabet=st.sampled_from(list("[]{}|='<>/!-#*_`~&;:refbnoa \n\\\"")), max_size=60))
def test_markup_never_fails_and_leaves_no_empty_lines(source):
    for text in (wiki_to_text(source), said(html_document(source)), said(markdown_document(source))):
        assert all(line == line.strip() != "" for line in text.split("\n")) or text == ""


def test_a_heading_that_became_the_title_is_not_said_twice(tmp_path):
    (tmp_path / "a.md").write_text("# Orvane\n\nOrvane lies on a river.\n\n## Trade\n\nIt sells amber.\n")
    (tmp_path / "b.html").write_text("<h1>Tiskol</h1><p>Tiskol digs salt.</p>")
    (tmp_path / "c.md").write_text("# Only a heading\n")
    articles = [(a.title, a.text) for a in read(*sorted(tmp_path.iterdir()))]
    assert articles == [
        ("Orvane", "Orvane lies on a river."),
        ("Orvane › Trade", "Trade\nIt sells amber."),
        ("Tiskol", "Tiskol digs salt."),
        ("Only a heading", "Only a heading"),
    ]
