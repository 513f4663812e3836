"""Documents that change while questions about them are answered."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from realmlm import engine as engine_module
from realmlm.corpus import documents
from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.index import build


@pytest.fixture
def following(
    tiny_model_folder: Path, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Engine:
    """An engine that looks at its files before every answer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(documents, "LOOK_S", 0)
    monkeypatch.setattr(documents, "LOOK_SHARE", 0)
    return Engine(tiny_model_folder, docs=notes, device="cpu")


def answered(engine: Engine) -> list[str]:
    """The passages that a question is answered from, all there are; index and corpus are of one state."""
    read = sorted(evidence.passage for evidence in engine.ask("Which bird?", read=50).evidence)
    assert engine.index.ids.tolist() == engine.corpus.ids.tolist()
    assert read == sorted(engine.corpus[number].text for number in engine.corpus.ids.tolist())
    return read


HERON = "The heron is the bird of the town."
BADGER = "The badger lives in the forest."
OTTER = "The otter swims."
FOX = "The fox runs."


def test_files_that_change_are_known_to_the_next_answer(
    following: Engine, notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answered(following) == [BADGER, FOX, HERON, OTTER]
    (notes / "heron.txt").write_text("The stork is the bird of the town.")
    (notes / "new.txt").write_text("A new note.")
    (notes / "table.csv").unlink()
    assert answered(following) == ["A new note.", BADGER, "The stork is the bird of the town."]
    (notes / "new.txt").rename(notes / "deep" / "moved.txt")
    assert {passage.file for passage in following.find("new note")} == {"notes/deep/moved.txt"}
    (notes / "heron.txt").write_text(HERON)
    assert HERON in [
        evidence.passage for evidence in following.fill("The bird is a [MASK].", read=50).evidence
    ]
    capsys.readouterr()
    answered(following)
    assert capsys.readouterr().err == ""


def test_files_are_read_again_only_when_they_changed_and_looked_at_every_few_seconds(
    following: Engine, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    open_again = engine_module.open_documents

    def noted(places: Sequence[Path], *rest: Any, **options: Any) -> Corpus:
        opened.append(places)
        return open_again(places, *rest, **options)

    monkeypatch.setattr(engine_module, "open_documents", noted)
    (notes / "picture.jpg").write_bytes(b"of no known kind")
    answered(following)
    answered(following)
    assert opened == []
    monkeypatch.setattr(documents, "LOOK_S", 3600)
    answered(following)  # the last look for an hour
    monkeypatch.setattr(documents, "find_files", lambda *_, **__: pytest.fail("looked at"))
    (notes / "heron.txt").write_text("The stork is the bird of the town.")
    assert HERON in answered(following)
    assert opened == []


def test_looking_at_many_files_takes_a_small_share_of_the_time(
    notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    find = documents.find_files

    def slow(*given: Any, **options: Any) -> Any:
        now[0] += 1
        return find(*given, **options)

    monkeypatch.setattr(documents.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(documents, "find_files", slow)
    watch = documents.Watch([notes])
    (notes / "heron.txt").unlink()
    begun = now[0]
    changed = False
    while not changed:
        now[0] += 1
        changed = watch.changed()
    assert 20 <= now[0] - begun <= 22


def test_a_bad_file_is_left_out_until_it_is_whole(
    following: Engine, notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (notes / "heron.txt").write_bytes(b"\xff\xfe\x00half written")
    for _ in range(3):
        assert answered(following) == [BADGER, FOX, OTTER]
    assert capsys.readouterr().err.count("left out: ") == 1
    (notes / "heron.txt").write_text("The stork is the bird of the town.")
    assert "The stork is the bird of the town." in answered(following)


def test_a_file_that_no_reader_expects_keeps_no_other_change_away(
    following: Engine, notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (notes / "dump.xml").write_text('<?xml version="1.0" encoding="x-nope"?><mediawiki></mediawiki>')
    (notes / "new.txt").write_text("A new note.")
    for _ in range(2):
        assert answered(following) == ["A new note.", BADGER, FOX, HERON, OTTER]
    said = [line for line in capsys.readouterr().err.split("\n") if "dump.xml" in line]
    assert ["cannot be read (LookupError: unknown encoding: x-nope)" in line for line in said] == [
        True,
        False,
    ]


def test_while_nothing_can_be_read_the_former_state_answers(
    following: Engine,
    notes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def said_once(why: str) -> None:
        capsys.readouterr()
        for _ in range(3):
            assert answered(following) == [BADGER, FOX, HERON, OTTER]
        said = [line for line in capsys.readouterr().err.split("\n") if "could not be loaded" in line]
        assert len(said) == 1
        assert why in said[0]

    notes.rename(tmp_path / "away")
    said_once(f"{notes} does not exist")
    (tmp_path / "away").rename(notes)
    assert answered(following) == [BADGER, FOX, HERON, OTTER]
    aside = {file: file.read_bytes() for file in sorted(notes.rglob("*")) if file.is_file()}
    for file in aside:
        file.unlink()
    said_once("no file that can be read")
    (notes / "heron.txt").write_bytes(b"\xff\xfe\x00half written")
    said_once("not UTF-16")
    for file, data in aside.items():
        file.write_bytes(data)
    assert answered(following) == [BADGER, FOX, HERON, OTTER]
    with monkeypatch.context() as without:
        without.setattr(build, "embed_passages", no_memory)
        (notes / "new.txt").write_text("A new note.")
        said_once("MemoryError")
    (notes / "newer.txt").write_text("A newer note.")
    assert answered(following) == ["A new note.", "A newer note.", BADGER, FOX, HERON, OTTER]


def test_what_takes_long_to_read_is_read_in_the_background(
    following: Engine, notes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Questions wait a moment, then the former state answers until the new one is there; what goes wrong in
    the background is said."""
    go_on = threading.Event()

    def slowly(places: Sequence[Path]) -> documents.Watch:  # the first that reading does
        assert go_on.wait(60)
        return documents.Watch(places)

    monkeypatch.setattr(engine_module, "Watch", slowly)
    monkeypatch.setattr(engine_module, "PATIENCE_S", 0.01)
    (notes / "new.txt").write_text("A new note.")
    for _ in range(2):
        assert answered(following) == [BADGER, FOX, HERON, OTTER]
        assert not following.up_to_date
    go_on.set()
    wait_for(lambda: answered(following) == ["A new note.", BADGER, FOX, HERON, OTTER])
    assert following.up_to_date
    go_on.clear()
    notes.rename(notes.parent / "away")
    assert answered(following)[0] == "A new note."
    assert "could not be loaded" not in capsys.readouterr().err
    go_on.set()
    wait_for(lambda: bool(answered(following)) and "does not exist" in capsys.readouterr().err)
    assert not following.up_to_date
    go_on.clear()
    (notes.parent / "away").rename(notes)
    (notes / "new.txt").unlink()
    answered(following)
    go_on.set()
    following.read()  # asked for, it is waited for
    assert answered(following) == [BADGER, FOX, HERON, OTTER]


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def no_memory(*_: Any, **__: Any) -> Any:
    raise MemoryError


def test_what_is_read_stays_where_it_was_when_the_process_goes_elsewhere(
    tiny_model_folder: Path, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, following: Engine
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = Engine(tiny_model_folder, device="cpu").read("notes/deep").read("notes")
    monkeypatch.chdir(notes)
    (notes / "new.txt").write_text("A new note.")
    assert answered(engine) == ["A new note.", BADGER, FOX, HERON, OTTER]
