"""A folder of documents: made once, followed by content, never half."""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from realmlm.cli import main
from realmlm.corpus import documents
from realmlm.corpus.documents import open_documents
from realmlm.corpus.readers import SourceFile
from realmlm.corpus.store import Article, Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import BadInput, MissingExtra
from realmlm.index import encode
from realmlm.index.encode import embed_passages
from realmlm.index.exact import ExactIndex
from realmlm.model import retrieval
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.serve import engine as engine_module
from realmlm.serve.engine import Engine


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "heron.txt").write_text("The heron is the bird of the town.")
    (folder / "deep" / "badger.md").write_text("# Badger\n\nThe badger lives in the forest.")
    (folder / "table.csv").write_text("title,text\nOtter,The otter swims.\nFox,The fox runs.\n")
    return folder


@pytest.fixture
def pieces(world: Path) -> Wordpieces:
    return Wordpieces.load(world / "tokenizer.json")


def opened(notes: Path, pieces: Wordpieces, tmp_path: Path) -> Corpus:
    with ExitStack() as held:
        return open_documents([notes], pieces, max_wordpieces=64, held=held, cache=tmp_path / "cache")


def texts(corpus: Corpus) -> list[str]:
    return sorted(corpus[number].text for number in corpus.ids.tolist())


def test_it_is_made_once_and_follows_the_files(notes: Path, pieces: Wordpieces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = opened(notes, pieces, tmp_path)
    assert len(corpus) == 4
    assert {corpus[number].file for number in corpus.ids.tolist()} == {
        "notes/heron.txt",
        "notes/deep/badger.md",
        "notes/table.csv",
    }
    read: list[str] = []
    reader = documents.read_files

    def noted(files: Sequence[SourceFile], **rest: Any) -> Iterator[Article]:
        read.extend(file.name for file in files)
        return reader(files, **rest)

    monkeypatch.setattr(documents, "read_files", noted)
    assert opened(notes, pieces, tmp_path).edits == 0
    os.utime(notes / "heron.txt", (1, 1))  # another time, the same content
    assert opened(notes, pieces, tmp_path).edits == 0
    assert read == []
    (notes / "heron.txt").write_text("The stork is the bird of the town.")
    (notes / "new.txt").write_text("A new note.")
    (notes / "table.csv").unlink()
    corpus = opened(notes, pieces, tmp_path)
    assert sorted(read) == ["notes/heron.txt", "notes/new.txt"]
    assert texts(corpus) == ["A new note.", "The badger lives in the forest.", "The stork is the bird of the town."]
    (notes / "new.txt").rename(notes / "moved.txt")
    assert texts(opened(notes, pieces, tmp_path)) == texts(corpus)


def test_after_many_edits_or_a_new_content_it_is_made_anew(
    notes: Path, pieces: Wordpieces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_EDITS", 3)
    for number in range(6):
        (notes / "heron.txt").write_text(f"The heron number {number}.")
        corpus = opened(notes, pieces, tmp_path)
        assert corpus.edits <= 3
        assert f"The heron number {number}." in texts(corpus)
    shutil.rmtree(notes)
    notes.mkdir()
    (notes / "other.txt").write_text("Something else.")
    assert texts(opened(notes, pieces, tmp_path)) == ["Something else."]


def test_what_cannot_be_read_is_said_and_left_out(
    notes: Path, pieces: Wordpieces, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (notes / "bad.txt").write_bytes(b"\xff\xfe\x00broken")
    assert len(opened(notes, pieces, tmp_path)) == 4
    assert "left out: " in capsys.readouterr().err
    with pytest.raises(BadInput, match="does not exist"):
        opened(tmp_path / "nowhere", pieces, tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no file that can be read"):
        opened(tmp_path / "empty", pieces, tmp_path)


def test_what_cannot_be_read_is_not_tried_again_until_it_changes(
    notes: Path, pieces: Wordpieces, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (notes / "bad.txt").write_bytes(b"\xff\xfe\x00broken")
    (notes / "controls.txt").write_text("\x01\x02\x03")  # an article, but no wordpiece in it
    opened(notes, pieces, tmp_path)
    for _ in range(2):
        capsys.readouterr()
        assert opened(notes, pieces, tmp_path).edits == 0
        assert capsys.readouterr().err == "4 passages of 3 files; 2 could not be read (notes/bad.txt, notes/controls.txt)\n"
    (notes / "bad.txt").write_text("Mended.")
    mended = texts(opened(notes, pieces, tmp_path))
    assert "Mended." in mended
    for file in (tmp_path / "cache" / "documents").glob("*.seen.json"):
        file.write_text('{"digests": []')  # cut off: looked at again, nothing else
    assert texts(opened(notes, pieces, tmp_path)) == mended


def test_what_was_left_out_is_said_each_time(
    notes: Path, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = ["ask", "Which bird?", "--docs", str(notes), "--model", str(tiny_model_folder), "--read", "2", "--device", "cpu"]
    main(command)
    assert "could not be read" not in capsys.readouterr().err
    for name in ("a.json", "b.jpg", "c.jpg"):
        (notes / name).write_bytes(b"{}")
    for number in range(5):
        (notes / f"bad{number}.txt").write_bytes(b"\xff\xfe\x00broken")
    for _ in range(3):
        main(command)
        (line,) = [line for line in capsys.readouterr().err.split("\n") if "could not be read" in line and "left out" not in line]
        assert line.startswith(
            "4 passages of 3 files; 5 could not be read (notes/bad0.txt, notes/bad1.txt, notes/bad2.txt …; all, and why: "
        )
        assert line.endswith("; 3 files of other kinds passed over: .jpg 2, .json 1")
    kept = json.loads(Path(line.partition("why: ")[2].partition(")")[0]).read_text("utf-8"))["unreadable"]
    assert len(kept) == 5
    assert all("not UTF-16" in why for why in kept.values())


def test_lines_that_were_left_out_are_said_each_time(
    notes: Path, pieces: Wordpieces, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ['{"text": "The stork nests."}', '{"text": ', "[1]", '{"text": "The crane dances."}']
    (notes / "birds.jsonl").write_text("\n".join(lines))
    assert len(opened(notes, pieces, tmp_path)) == 6
    assert "birds.jsonl, line 2: is not JSON" in capsys.readouterr().err
    for _ in range(2):
        opened(notes, pieces, tmp_path)
        assert capsys.readouterr().err == "6 passages of 4 files; 1 read only in part (notes/birds.jsonl)\n"
    (notes / "new.txt").write_text("A new note.")  # an edit forgets nothing
    (notes / "bad.txt").write_bytes(b"\xff\xfe\x00broken")
    opened(notes, pieces, tmp_path)
    said = "7 passages of 5 files; 1 could not be read (notes/bad.txt); 1 read only in part (notes/birds.jsonl)\n"
    assert capsys.readouterr().err.endswith(said)
    (file,) = (tmp_path / "cache" / "documents").glob("*.seen.json")
    (why,) = json.loads(file.read_text("utf-8"))["in_part"].values()
    assert "line 2: is not JSON" in why
    (notes / "bad.txt").unlink()
    (notes / "birds.jsonl").write_text("\n".join([lines[0], lines[3]]))
    opened(notes, pieces, tmp_path)
    capsys.readouterr()
    opened(notes, pieces, tmp_path)
    assert capsys.readouterr().err == ""


def test_one_is_not_counted_as_several(pieces: Wordpieces, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "heron.txt").write_text("The heron is the bird of the town.")
    (folder / "photo.jpg").write_bytes(b"x")
    opened(folder, pieces, tmp_path)
    assert "\n1 passage of 1 file; 1 file of other kinds passed over: .jpg 1\n" in capsys.readouterr().err


@pytest.mark.parametrize("entered", ["manifest.json", "notes"], ids=["the folder", "the folder it is in"])
def test_a_folder_that_may_not_be_read_is_said_to_be_so(
    notes: Path, pieces: Wordpieces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], entered: str
) -> None:
    (tmp_path / "letter.txt").write_text("The stork brings letters.")
    stat, scandir = os.stat, os.scandir

    def refused_stat(path: Any, **options: Any) -> os.stat_result:
        if str(path) == str(notes / entered if entered == "manifest.json" else notes):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    def refused_scandir(path: Any) -> Any:
        if str(path) == str(notes):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "stat", refused_stat)
    monkeypatch.setattr(os, "scandir", refused_scandir)
    with pytest.raises(BadInput, match=rf"^{notes} cannot be read \(Permission denied\)$"):
        opened(notes, pieces, tmp_path)
    if entered == "manifest.json":  # beside others it is left out, as a folder below one is
        with ExitStack() as held:
            places = [notes, tmp_path / "letter.txt"]
            assert len(open_documents(places, pieces, max_wordpieces=64, held=held, cache=tmp_path / "cache")) == 1
        assert f"left out: {notes} cannot be read (Permission denied)" in capsys.readouterr().err


def test_changes_are_counted_by_file(notes: Path, pieces: Wordpieces, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened(notes, pieces, tmp_path)
    capsys.readouterr()
    (notes / "heron.txt").write_text("The stork is the bird of the town.")
    (notes / "table.csv").unlink()
    (notes / "new.txt").write_text("A new note.")
    (notes / "newer.txt").write_text("A newer note.")
    opened(notes, pieces, tmp_path)
    assert "files: 2 new, 1 changed, 1 removed\n" in capsys.readouterr().err


def test_a_file_that_may_not_be_read_is_left_out(
    notes: Path, pieces: Wordpieces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checksum = documents.sha256_of

    def refused(file: Path) -> str:
        if file.name == "heron.txt":
            raise PermissionError(13, "Permission denied", str(file))
        return checksum(file)

    monkeypatch.setattr(documents, "sha256_of", refused)
    assert len(opened(notes, pieces, tmp_path)) == 3
    assert "heron.txt: Permission denied" in capsys.readouterr().err


def test_what_waits_for_a_library_is_read_once_it_is_there(
    notes: Path, pieces: Wordpieces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "markdown_it", None)
        for _ in range(2):
            assert len(opened(notes, pieces, tmp_path)) == 3
            assert "badger.md: reading Markdown needs 'markdown_it': pip install 'realmlm[formats]'" in capsys.readouterr().err
        with pytest.raises(MissingExtra, match=r"realmlm\[formats\]"):
            opened(notes / "deep", pieces, tmp_path)
    assert len(opened(notes, pieces, tmp_path)) == 4


def test_several_places_are_one_corpus(notes: Path, pieces: Wordpieces, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("The stork brings letters.")

    def both(*places: Path) -> Corpus:
        with ExitStack() as held:
            return open_documents(places, pieces, max_wordpieces=64, held=held, cache=tmp_path / "cache")

    corpus = both(notes, tmp_path / "letter.txt")
    assert len(corpus) == 5
    assert both(tmp_path / "letter.txt", notes, notes / "deep").folder == corpus.folder  # in any order; what lies within counts once
    assert both(notes).folder != corpus.folder


def test_sources_of_all_passages_are_those_of_each(notes: Path, pieces: Wordpieces, tmp_path: Path) -> None:
    opened(notes, pieces, tmp_path)
    (notes / "table.csv").write_text("title,text\nOtter,The otter swims.\nHare,The hare runs.\nHare,The hare jumps.\n")
    (notes / "heron.txt").unlink()
    corpus = opened(notes, pieces, tmp_path)
    assert corpus.edits == 1
    one_by_one: dict[str, list[int]] = {}
    for number in corpus.ids.tolist():
        one_by_one.setdefault(corpus.source(number), []).append(number)
    assert documents._contained(corpus) == one_by_one


def test_the_command_answers_from_a_folder_and_embeds_only_what_changed(
    notes: Path, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = ["ask", "Which bird?", "--docs", str(notes), "--model", str(tiny_model_folder), "--read", "2", "--device", "cpu"]
    main(command)
    assert "embedding 4 passages" in capsys.readouterr().err
    main(command)
    assert "embedding" not in capsys.readouterr().err
    (notes / "heron.txt").write_text("The stork is the bird of the town.")
    main(command)
    assert "taking up 1 new and 1 removed passages" in capsys.readouterr().err
    engine = Engine(tiny_model_folder, docs=notes, device="cpu")
    assert len(engine.index) == len(engine.corpus) == 4
    with pytest.raises(SystemExit):
        main(["ask", "Which bird?", "--model", str(tiny_model_folder)])
    assert "either --docs FOLDER or --corpus CORPUS" in capsys.readouterr().err


def test_several_places_are_answered_from_however_they_are_named(
    notes: Path, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "letter.txt").write_text("The stork brings letters.")
    command = ["ask", "Which bird?", "--model", str(tiny_model_folder), "--read", "9", "--device", "cpu"]
    places = [str(notes / "heron.txt"), str(tmp_path / "letter.txt")]
    for named in (["--docs", *places], ["--docs", places[0], "--docs", places[1]]):
        main([*command, *named])
        shown = capsys.readouterr()
        assert "The heron is" in shown.out
        assert "The stork brings" in shown.out
    with pytest.raises(SystemExit):
        main(["ask", "--docs", str(notes), "Which bird?", "--model", str(tiny_model_folder)])
    assert "before all else" in capsys.readouterr().err


def test_who_asks_while_another_embeds_gets_what_the_files_say_then(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(documents, "LOOK_S", 3600)  # what was read stays
    note = tmp_path / "note.txt"  # a single file: each change makes the corpus anew
    note.write_text("The heron is the bird of the town.")
    first, second = (Engine(tiny_model_folder, device="cpu") for _ in range(2))
    begun, go_on, embed = threading.Event(), threading.Event(), encode.embed_passages

    def slow(*given: Any, **options: Any) -> Any:
        if not begun.is_set():
            begun.set()
            assert go_on.wait(60)
        return embed(*given, **options)

    monkeypatch.setattr(encode, "embed_passages", slow)
    threads = [threading.Thread(target=engine.read, args=(note,)) for engine in (first, second)]
    threads[0].start()
    assert begun.wait(60)
    note.write_text("The stork is the bird of the town.")
    threads[1].start()
    threads[1].join(1)
    go_on.set()
    for thread in threads:
        thread.join(60)
    for engine, bird in ((first, "heron"), (second, "stork"), (Engine(tiny_model_folder, docs=note, device="cpu"), "stork")):
        assert texts(engine.corpus) == [f"The {bird} is the bird of the town."]
        assert [evidence.passage for evidence in engine.ask("Which bird?").evidence] == texts(engine.corpus)
        assert engine.fill("a [MASK]").evidence
        assert len(engine.find("bird", limit=5)) == 1


def test_a_cache_that_cannot_be_written_says_what_to_do(
    notes: Path, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")  # for root may write anywhere
    for place in (tmp_path / "file", tmp_path / "file" / "deep"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        with pytest.raises(BadInput, match=r"cannot be kept in .*set XDG_CACHE_HOME"):
            Engine(tiny_model_folder, docs=notes, device="cpu")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    elsewhere = PermissionError(13, "Permission denied", str(notes / "heron.txt"))

    def refused(*_: Any, **__: Any) -> Any:
        raise elsewhere

    monkeypatch.setattr(encode, "embed_passages", refused)
    with pytest.raises(PermissionError, match=r"heron\.txt"):
        Engine(tiny_model_folder, docs=notes, device="cpu")
    elsewhere = PermissionError(30, "Read-only file system", str(tmp_path / "cache" / "realmlm" / "documents" / "x" / "index"))
    with pytest.raises(BadInput, match=r"Read-only file system.*set XDG_CACHE_HOME"):
        Engine(tiny_model_folder, docs=notes, device="cpu")


def test_a_folder_that_may_not_be_read_is_said_and_left_out(
    notes: Path, pieces: Wordpieces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (notes / "locked").mkdir()
    scandir = os.scandir

    def refused(path: str | Path) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert len(opened(notes, pieces, tmp_path)) > 0
    assert "left out: " in (said := capsys.readouterr().err)
    assert "locked cannot be read (Permission denied)" in said


# --- what changes while it answers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def following(tiny_model_folder: Path, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that looks at its files before every answer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(documents, "LOOK_S", 0)
    monkeypatch.setattr(documents, "_LOOK_SHARE", 0)
    return Engine(tiny_model_folder, docs=notes, device="cpu")


def answered(engine: Engine) -> list[str]:
    """The passages that a question is answered from, all there are; index and corpus are of one state."""
    read = sorted(evidence.passage for evidence in engine.ask("Which bird?", read=50).evidence)
    assert engine.index.ids.tolist() == engine.corpus.ids.tolist()
    assert read == texts(engine.corpus)
    return read


HERON, BADGER, OTTER, FOX = "The heron is the bird of the town.", "The badger lives in the forest.", "The otter swims.", "The fox runs."


def test_files_that_change_are_known_to_the_next_answer(following: Engine, notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answered(following) == [BADGER, FOX, HERON, OTTER]
    (notes / "heron.txt").write_text("The stork is the bird of the town.")
    (notes / "new.txt").write_text("A new note.")
    (notes / "table.csv").unlink()
    assert answered(following) == ["A new note.", BADGER, "The stork is the bird of the town."]
    (notes / "new.txt").rename(notes / "deep" / "moved.txt")
    assert {passage.file for passage in following.find("new note")} == {"notes/deep/moved.txt"}
    (notes / "heron.txt").write_text(HERON)
    assert HERON in [evidence.passage for evidence in following.fill("The bird is a [MASK].", read=50).evidence]
    capsys.readouterr()
    answered(following)
    assert capsys.readouterr().err == ""


def test_files_are_read_again_only_when_they_changed_and_looked_at_every_few_seconds(
    following: Engine, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, open_again = [], Engine.read
    monkeypatch.setattr(Engine, "read", lambda engine, *docs: opened.append(docs) or open_again(engine, *docs))  # type: ignore[func-returns-value]
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


def test_looking_at_many_files_takes_a_small_share_of_the_time(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, find = [1000.0], documents.find_files

    def slow(*given: Any, **options: Any) -> Any:
        now[0] += 1
        return find(*given, **options)

    monkeypatch.setattr(documents.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(documents, "find_files", slow)
    watch = documents.Watch([notes])
    (notes / "heron.txt").unlink()
    begun, changed = now[0], False
    while not changed:
        now[0] += 1
        changed = watch.changed()
    assert 20 <= now[0] - begun <= 22


def test_a_bad_file_is_left_out_until_it_is_whole(following: Engine, notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (notes / "heron.txt").write_bytes(b"\xff\xfe\x00half written")
    for _ in range(3):
        assert answered(following) == [BADGER, FOX, OTTER]
    assert capsys.readouterr().err.count("left out: ") == 1
    (notes / "heron.txt").write_text("The stork is the bird of the town.")
    assert "The stork is the bird of the town." in answered(following)


def test_while_nothing_can_be_read_the_former_state_answers(
    following: Engine, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said_once(why: str) -> None:
        capsys.readouterr()
        for _ in range(3):
            assert answered(following) == [BADGER, FOX, HERON, OTTER]
        said = [line for line in capsys.readouterr().err.split("\n") if "could not be taken up" in line]
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
        without.setattr(retrieval, "embed_passages", no_memory)
        (notes / "new.txt").write_text("A new note.")
        said_once("MemoryError")
    (notes / "newer.txt").write_text("A newer note.")
    assert answered(following) == ["A new note.", "A newer note.", BADGER, FOX, HERON, OTTER]


def test_what_takes_long_to_read_is_read_in_the_background(
    following: Engine, notes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Questions wait a moment, then the former state answers until the new one is there; what goes wrong in the background is said."""
    go_on, reading = threading.Event(), Engine._read

    def slowly(engine: Engine, places: list[Path]) -> Any:
        assert go_on.wait(60)
        return reading(engine, places)

    monkeypatch.setattr(Engine, "_read", slowly)
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
    assert "could not be taken up" not in capsys.readouterr().err
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


# --- what is embedded -------------------------------------------------------------------------------------------------------------------


class Counted:
    """Reads documents with a model, and counts the passages that reach its document tower."""

    def __init__(self, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._model, self._count, call = model, 0, DocumentEncoder.__call__

        def counted(encoder: DocumentEncoder, titles: list[np.ndarray], bodies: list[np.ndarray]) -> torch.Tensor:
            self._count += len(titles)
            return call(encoder, titles, bodies)

        monkeypatch.setattr(DocumentEncoder, "__call__", counted)

    def __call__(self, *places: Path) -> int:
        """Embedded passages. The index must be what embedding all of them anew would give."""
        self._count = 0
        engine = Engine(self._model, docs=places, device="cpu")
        embedded, ids = self._count, engine.corpus.ids
        whole = embed_passages(engine.corpus, ids, DocumentEncoder.of(engine.model, engine.wordpieces), dtype=torch.float16)
        assert engine.index.ids.tolist() == ids.tolist()
        assert torch.allclose(
            engine.index.vectors(torch.from_numpy(ids)), whole.float(), atol=2e-3
        )  # beside others a sum may round otherwise
        queries, k = torch.eye(engine.index.dim), len(ids)
        truth = ExactIndex(engine.index.vectors(engine.index.ids), engine.index.ids).search(queries, k)
        assert torch.equal(engine.index.search(queries, k).ids_QK, truth.ids_QK)
        return embedded


@pytest.fixture
def read(tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Counted(tiny_model_folder, monkeypatch)


def test_a_corpus_made_anew_embeds_only_what_is_new(read: Counted, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_EDITS", 3)
    assert read(notes) == 4
    for number in range(9):  # two of them make it anew
        (notes / "heron.txt").write_text(f"The heron number {number}.")
        assert read(notes) == 1
    names = sorted(path.name for path in (tmp_path / "cache" / "realmlm" / "documents").glob("[!.]*[!n]"))
    assert names == [names[0], f"{names[0]}-former"]


def test_vectors_survive_an_embedding_that_was_cut_off(read: Counted, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_EDITS", 0)  # each change makes it anew
    assert read(notes) == 4
    for number in range(2):
        (notes / "heron.txt").write_text(f"The heron number {number}.")
        with monkeypatch.context() as broken:
            broken.setattr(encode, "embed_passages", cut_off)
            with pytest.raises(KeyboardInterrupt):
                read(notes)
    assert read(notes) == 1


def test_what_was_embedded_before_an_interruption_is_kept(
    read: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "herons.csv"
    table.write_text("title,text\n" + "".join(f"Heron {number},The heron has the number {number}.\n" for number in range(1100)))
    embedded, call = 0, DocumentEncoder.__call__

    def interrupted(encoder: DocumentEncoder, titles: list[np.ndarray], bodies: list[np.ndarray]) -> torch.Tensor:
        nonlocal embedded
        embedded += len(titles)
        if embedded > 1000:
            raise KeyboardInterrupt
        return call(encoder, titles, bodies)

    with monkeypatch.context() as broken:
        broken.setattr(DocumentEncoder, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read(table)
    assert read(table) == 1100 - 512
    assert [file.name for file in tmp_path.glob("cache/**/shard-*")] == ["shard-00000.safetensors"]


def cut_off(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_another_choice_of_folders_embeds_only_what_is_new(read: Counted, notes: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("The stork brings letters.")
    assert read(notes) == 4
    assert read(notes, tmp_path / "letter.txt") == 1
    assert read(tmp_path / "letter.txt", notes / "deep") == 0


def test_of_a_changed_file_only_changed_passages_are_embedded(read: Counted, notes: Path) -> None:
    rows = [f"{title},The {title} has the number {title}.\n" for title in ("badger", "fox", "hare", "otter")]
    (notes / "table.csv").write_text("title,text\n" + "".join(rows))
    assert read(notes / "table.csv") == 4
    assert read(notes) == 2
    for rows[2] in ("hare,The hare is gone.\n", "otter,The hare is gone.\n"):  # another text; the same under another title
        (notes / "table.csv").write_text("title,text\n" + "".join(rows))
        assert read(notes) == 1  # an edit
        assert read(notes / "table.csv") == 0  # made anew: all of it is another file's content
    (notes / "table.csv").rename(notes / "deep" / "moved.csv")
    assert read(notes) == 0


def test_vectors_are_taken_only_from_a_sound_index_of_the_same_tower(
    read: Counted, notes: Path, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(notes) == 4
    model, wordpieces = Realm.from_pretrained(tiny_model_folder)
    with torch.no_grad():
        model.document.projection.weight.mul_(1.5)
    model.save_pretrained(tmp_path / "other", wordpieces)
    assert Counted(tmp_path / "other", monkeypatch)(notes / "deep") == 1
    for file in (tmp_path / "cache").glob("**/shard-00000.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"\x55")
    assert read(notes / "heron.txt") == 1
