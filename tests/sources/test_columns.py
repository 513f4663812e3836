"""Columns that are named: in JSON lines and CSV tables. Parquet and Arrow files: test_columnar.py."""

import sys
from pathlib import Path

import pytest

from realmlm.errors import BadInput, MissingExtra, RealmError
from realmlm.sources.article import Article
from realmlm.sources.columnar import Columns
from realmlm.sources.files import find_files
from realmlm.sources.readers import read_files


def refuse(error: RealmError) -> None:
    raise error


def read(path: Path, text: str, columns: Columns) -> list[Article]:
    path.write_text(text)
    files, _ = find_files([path], on_bad=refuse, columns=columns)
    return list(read_files(files, on_bad=refuse))


CSV = "key,head,body,text\n17,Heron,The heron.,not this\n"
LINES = '{"key": 17, "head": "Heron", "body": "The heron.", "text": "not this"}\n'


@pytest.mark.parametrize(("name", "text"), [("birds.csv", CSV), ("birds.jsonl", LINES)])
def test_named_columns_are_read_and_no_others(tmp_path: Path, name: str, text: str) -> None:
    found = read(tmp_path / name, text, Columns("body", "head", "key"))
    assert found == [Article("Heron", "The heron.", f"{name}#17")]


def test_a_named_column_that_is_not_there(tmp_path: Path) -> None:
    lacking = "birds.csv: has no column 'words': it has key, head, body, text; say --text-column NAME"
    with pytest.raises(BadInput, match=lacking):
        read(tmp_path / "birds.csv", CSV, Columns("words"))
    with pytest.raises(BadInput, match="line 1: \"words\" is missing; the line has 'key', 'head'"):
        read(tmp_path / "birds.jsonl", LINES, Columns("words"))
    many = ",".join(f"c{number}" for number in range(20)) + "\n"
    with pytest.raises(BadInput, match=r"it has text, c0, c1, .*, c10, …; say --title-column NAME"):
        read(tmp_path / "wide.csv", "text," + many, Columns("text", "head"))


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        MissingExtra, match=r"birds.parquet: reading Parquet .*pip install 'realmlm\[parquet\]'"
    ):
        read(tmp_path / "birds.parquet", "PAR1", Columns())
