"""Parquet and Arrow files as sources: what is read, what is refused, and that neither size nor damage harms."""

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'realmlm[parquet]'")

from realmlm.cli import main
from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput, RealmError
from realmlm.sources import columnar
from realmlm.sources.article import Article
from realmlm.sources.columnar import Columns
from realmlm.sources.files import find_files
from realmlm.sources.readers import read_files

pa: Any = importlib.import_module("pyarrow")
parquet: Any = importlib.import_module("pyarrow.parquet")

ROWS: dict[str, list[Any]] = {
    "id": ["a", "b", "c"],
    "title": ["Heron", None, "Fox"],
    "text": ["The heron is a bird.", "The badger digs.", "Der Fuchs läuft. 🦊"],
    "picture": [b"\x00" * 8] * 3,
}
EXPECTED = [
    ("Heron", "The heron is a bird.", "a"),
    ("", "The badger digs.", "b"),
    ("Fox", "Der Fuchs läuft. 🦊", "c"),
]


def refuse(error: RealmError) -> None:
    raise error


def read(place: Path, columns: Columns | None = None, on_bad: Any = refuse) -> list[Article]:
    files, _ = find_files([place], on_bad=on_bad, columns=columns)
    return list(read_files(files, on_bad=on_bad))


def write(path: Path, rows: dict[str, Any], **options: Any) -> Path:
    table = pa.table(rows)
    if path.suffix == ".parquet":
        parquet.write_table(table, path, **options)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    new = pa.ipc.new_file if options.get("indexed") else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


@pytest.mark.parametrize(
    ("name", "options"),
    [("birds.parquet", {"row_group_size": 2}), ("birds.arrow", {}), ("birds.arrow", {"indexed": True})],
)
def test_rows_are_documents(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    path = write(tmp_path / name, ROWS, **options)
    assert [(one.title, one.text, one.source) for one in read(path)] == [
        (title, text, f"{name}#{identity}") for title, text, identity in EXPECTED
    ]


def test_columns_are_named_where_they_have_other_names(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {
        "body": ["The heron."],
        "head": ["Heron"],
        "key": [17],
        "text": ["not this"],
    }
    asked = Columns("body", "head", "key")
    for path in (write(tmp_path / "birds.parquet", rows), write(tmp_path / "birds.arrow", rows)):
        assert read(path, asked) == [Article("Heron", "The heron.", f"{path.name}#17")], path
    without = {"words": ["The heron."]}
    assert read(write(tmp_path / "plain.parquet", without), Columns("words")) == [
        Article("", "The heron.", "plain.parquet:1")
    ]


@pytest.mark.parametrize(
    ("rows", "asked", "why"),
    [
        (
            {"body": ["x"], "key": [1]},
            Columns(),
            "has no column 'text': it has body, key; say --text-column NAME",
        ),
        ({"text": ["x"]}, Columns("body"), "has no column 'body': it has text; say --text-column NAME"),
        (
            {"text": ["x"]},
            Columns(title="head"),
            "has no column 'head': it has text; say --title-column NAME",
        ),
        ({"text": ["x"]}, Columns(identity="key"), "has no column 'key': it has text; say --id-column NAME"),
        ({"text": [["x"]]}, Columns(), "in the column 'text', not text"),
        ({"text": [b"x"]}, Columns(), "has binary in the column 'text', not text"),
        ({"text": ["x"], "id": [0.5]}, Columns(), "has double in the column 'id', neither text nor whole"),
        ({"text": ["x", None]}, Columns(), "row 2: has no text"),
    ],
)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_what_is_wrong_is_named_with_file_and_column(
    tmp_path: Path, rows: dict[str, Any], asked: Columns, why: str, kind: str
) -> None:
    path = write(tmp_path / f"odd.{kind}", rows)
    with pytest.raises(BadInput) as error:
        read(path, asked)
    assert str(error.value).startswith(str(path))
    assert why in str(error.value)


def saved_dataset(folder: Path) -> Path:
    """As `datasets.Dataset.save_to_disk` leaves it, with what a filter cached beside it."""
    write(folder / "data-00000-of-00002.arrow", {name: values[:2] for name, values in ROWS.items()})
    write(folder / "data-00001-of-00002.arrow", {name: values[2:] for name, values in ROWS.items()})
    write(folder / "cache-5f3a.arrow", {"indices": [1]})
    names = [{"filename": f"data-0000{number}-of-00002.arrow"} for number in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": names, "_format_type": None}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_a_folder_that_datasets_saved(tmp_path: Path) -> None:
    folder = saved_dataset(tmp_path / "birds")
    assert [(one.title, one.text, one.source.partition("#")[2]) for one in read(folder)] == EXPECTED
    both = tmp_path / "both"
    saved_dataset(both / "train")
    saved_dataset(both / "test")
    (both / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert len(read(both)) == 6


def test_the_library_datasets_itself(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    table = datasets.table.InMemoryTable(pa.table({name: ROWS[name] for name in ("id", "title", "text")}))
    made = datasets.Dataset(table, fingerprint="0123456789abcdef")
    made.save_to_disk(str(tmp_path / "saved"), num_shards=2)
    assert [
        (one.title, one.text, one.source.partition("#")[2]) for one in read(tmp_path / "saved")
    ] == EXPECTED
    datasets.DatasetDict({"train": made}).save_to_disk(str(tmp_path / "splits"))
    made.to_parquet(str(tmp_path / "splits" / "more.parquet"))
    assert len(read(tmp_path / "splits")) == 6


def test_the_command(tmp_path: Path, world: Path) -> None:
    write(tmp_path / "birds.parquet", {"body": ROWS["text"], "key": [7, 8, 9]})
    tokenizer = ["--tokenizer", str(world / "tokenizer.json"), "--workers", "1"]
    columns = ["--text-column", "body", "--id-column", "key"]
    main(["corpus", str(tmp_path / "birds.parquet"), "--out", str(tmp_path / "corpus"), *tokenizer, *columns])
    corpus = Corpus.open(tmp_path / "corpus")
    assert [corpus.source(number) for number in range(3)] == [
        f"birds.parquet#{number}" for number in (7, 8, 9)
    ]


def test_the_bar_reaches_the_end_of_the_file(tmp_path: Path) -> None:
    for path in (
        write(tmp_path / "birds.parquet", {"text": ["The heron."] * 1000}),
        write(tmp_path / "birds.arrow", {"text": ["The heron."] * 1000}),
    ):
        counts: list[int] = []
        files, _ = find_files([path], on_bad=refuse)
        assert len(list(read_files(files, on_bad=refuse, on_bytes=counts.append))) == 1000
        assert len(counts) > 5
        assert 0.9 * path.stat().st_size <= sum(counts) <= path.stat().st_size


def test_a_damaged_file_is_one_complaint(tmp_path: Path) -> None:
    good = {kind: write(tmp_path / f"good.{kind}", ROWS).read_bytes() for kind in ("parquet", "arrow")}
    bad = tmp_path / "bad"
    bad.mkdir()
    for kind, data in good.items():
        (bad / f"empty.{kind}").write_bytes(b"")
        (bad / f"cut.{kind}").write_bytes(data[: len(data) // 2])
        (bad / f"noise.{kind}").write_bytes(os.urandom(500))
    (bad / "packed.parquet.gz").write_bytes(b"\x1f\x8b")
    complaints: list[str] = []
    found = read(bad, on_bad=lambda error: complaints.append(str(error)))
    assert len(found) <= 3
    for path in bad.iterdir():
        assert any(complaint.startswith(f"{path}: ") for complaint in complaints), path
    assert "unpack it" in " ".join(complaints)


def test_a_small_file_that_unpacks_to_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"text": ["x" * 2**24] * 20}
    path = write(tmp_path / "large.parquet", rows, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 2**20
    monkeypatch.setattr(columnar, "MEMORY", 2**30)
    with pytest.raises(
        BadInput, match=r"takes more than 1 GiB of memory to read; write it in smaller row groups"
    ):
        read(path)
