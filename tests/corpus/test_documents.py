"""A folder of documents: made once, followed by content, never half."""

import json
import os
import shutil
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from realmlm.cli import main
from realmlm.corpus import documents
from realmlm.corpus.documents import open_documents
from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.engine import Engine
from realmlm.errors import ArtefactDamaged, BadInput, MissingExtra
from realmlm.index import build
from realmlm.sources.article import Article
from realmlm.sources.reading import SourceFile


@pytest.fixture
def pieces(world: Path) -> Wordpieces:
    return Wordpieces.load(world / "tokenizer.json")


def opened(notes: Path, pieces: Wordpieces, tmp_path: Path, *, said: set[str] | None = None) -> Corpus:
    """As a process of its own has it, or one that has `said` something of the files and follows them."""
    with ExitStack() as held:
        return open_documents(
            [notes], pieces, max_wordpieces=64, held=held, said=said, cache=tmp_path / "cache"
        )


def texts(corpus: Corpus) -> list[str]:
    return sorted(corpus[number].text for number in corpus.ids.tolist())


def test_it_is_made_once_and_follows_the_files(
    notes: Path, pieces: Wordpieces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert texts(corpus) == [
        "A new note.",
        "The badger lives in the forest.",
        "The stork is the bird of the town.",
    ]
    (notes / "new.txt").rename(notes / "moved.txt")
    assert texts(opened(notes, pieces, tmp_path)) == texts(corpus)


def test_after_many_edits_or_a_new_content_it_is_made_anew(
    notes: Path, pieces: Wordpieces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MOST_EDITS", 3)
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


def test_a_name_or_a_key_that_is_no_text_spoils_nothing_else(
    notes: Path, pieces: Wordpieces, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (notes / os.fsdecode(b"caf\xe9.txt")).write_text("The stork nests.")
    (notes / "half.jsonl").write_text('{"\\ud800": "no text", "text": 3}')
    for _ in range(2):
        assert len(opened(notes, pieces, tmp_path)) == 4
        said = capsys.readouterr().err
        assert "caf\\xe9.txt has a name that is not UTF-8; rename it" in said
        assert "1 could not be read (notes/half.jsonl)" in said
    assert not list((tmp_path / "cache" / "documents").glob(".*.part"))
    odd = notes.rename(tmp_path / os.fsdecode(b"n\xf6tes"))
    with pytest.raises(BadInput, match=r"n\\xf6tes has a name that is not UTF-8; rename it"):
        opened(odd, pieces, tmp_path)
    assert len(opened(odd / "deep", pieces, tmp_path)) == 1


def test_what_cannot_be_read_is_not_tried_again_until_it_changes(
    notes: Path, pieces: Wordpieces, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (notes / "bad.txt").write_bytes(b"\xff\xfe\x00broken")
    (notes / "controls.txt").write_text("\x01\x02\x03")  # an article, but no wordpiece in it
    opened(notes, pieces, tmp_path)
    for _ in range(2):
        capsys.readouterr()
        assert opened(notes, pieces, tmp_path).edits == 0
        assert (
            capsys.readouterr().err
            == "4 passages of 3 files; 1 could not be read (notes/bad.txt); 1 without text (notes/controls.txt)\n"
        )
    (notes / "bad.txt").write_text("Mended.")
    mended = texts(opened(notes, pieces, tmp_path))
    assert "Mended." in mended
    for file in (tmp_path / "cache" / "documents").glob("*.seen.json"):
        file.write_text('{"digests": []')  # cut off: looked at again, nothing else
    assert texts(opened(notes, pieces, tmp_path)) == mended


def test_what_was_left_out_is_said_each_time(
    notes: Path,
    tiny_model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = [
        "ask",
        "Which bird?",
        "--docs",
        str(notes),
        "--model",
        str(tiny_model_folder),
        "--read",
        "2",
        "--device",
        "cpu",
    ]
    main(command)
    assert "could not be read" not in capsys.readouterr().err
    for name in ("a.json", "b.jpg", "c.jpg"):
        (notes / name).write_bytes(b"{}")
    for number in range(5):
        (notes / f"bad{number}.txt").write_bytes(b"\xff\xfe\x00broken")
    for _ in range(3):
        main(command)
        (line,) = [
            line
            for line in capsys.readouterr().err.split("\n")
            if "could not be read" in line and "left out" not in line
        ]
        assert line.startswith(
            "4 passages of 3 files; 5 could not be read (notes/bad0.txt, notes/bad1.txt, notes/bad2.txt …; "
            "all, and why: "
        )
        assert line.endswith("; 3 files of other kinds skipped: .jpg 2, .json 1")
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
    said = (
        "7 passages of 5 files; 1 could not be read (notes/bad.txt); 1 read only in part "
        "(notes/birds.jsonl)\n"
    )
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


def test_who_follows_is_told_once_until_it_changes(
    notes: Path,
    pieces: Wordpieces,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (notes / "up").symlink_to(tmp_path)
    (notes / "bad.txt").write_bytes(b"\xff\xfe\x00broken")
    monkeypatch.setitem(sys.modules, "markdown_it", None)  # what waits for a library is tried each time

    before: set[str] = set()

    def said(*, anew: bool = False) -> list[str]:
        opened(notes, pieces, tmp_path, said=None if anew else before)
        return [
            line for line in capsys.readouterr().err.split("\n") if "left out" in line or "could not" in line
        ]

    first = said()
    assert [("is a link" in line, "bad.txt" in line, "badger.md" in line) for line in first[:3]] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    assert first[3] == "3 passages of 2 files; 2 could not be read (notes/bad.txt, notes/deep/badger.md)"
    for number in range(3):
        (notes / f"{number}.txt").write_text("A new note.")
        assert said() == []
    (notes / "worse.txt").write_bytes(b"\xff\xfe\x00broken")
    new = said()
    assert ["worse.txt, line 1" in new[0], *new[1:]] == [
        True,
        "6 passages of 5 files; 3 could not be read (notes/bad.txt, notes/deep/badger.md, notes/worse.txt)",
    ]
    (notes / "up").unlink()
    assert said() == []
    (notes / "up").symlink_to(tmp_path)
    assert ["is a link" in line for line in said()] == [True]


def test_what_is_passed_over_and_no_loss_is_said_when_it_changes(
    notes: Path, pieces: Wordpieces, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (notes / "empty.txt").write_text("")
    (notes / "photo.jpg").write_bytes(b"x")
    line = "4 passages of 3 files; 1 without text (notes/empty.txt); 1 file of other kinds skipped: .jpg 1\n"
    opened(notes, pieces, tmp_path)
    assert capsys.readouterr().err.endswith(line)
    for _ in range(2):
        assert opened(notes, pieces, tmp_path).edits == 0
        assert capsys.readouterr().err == ""
    (notes / "photo.jpg").rename(notes / "photo.gif")
    opened(notes, pieces, tmp_path)
    assert capsys.readouterr().err == line.replace(".jpg", ".gif")
    (notes / "bad.txt").write_bytes(b"\xff\xfe\x00broken")  # a loss is said each time, and all beside it
    opened(notes, pieces, tmp_path)
    capsys.readouterr()
    opened(notes, pieces, tmp_path)
    assert capsys.readouterr().err == line.replace("jpg", "gif").replace(
        "; 1 without", "; 1 could not be read (notes/bad.txt); 1 without"
    )
    (notes / "bad.txt").unlink()
    (notes / "empty.txt").unlink()
    (notes / "photo.gif").unlink()
    opened(notes, pieces, tmp_path)
    capsys.readouterr()
    opened(notes, pieces, tmp_path)
    assert capsys.readouterr().err == ""


def test_one_is_not_counted_as_several(
    pieces: Wordpieces, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "heron.txt").write_text("The heron is the bird of the town.")
    (folder / "photo.jpg").write_bytes(b"x")
    opened(folder, pieces, tmp_path)
    assert "\n1 passage of 1 file; 1 file of other kinds skipped: .jpg 1\n" in capsys.readouterr().err


@pytest.mark.parametrize("entered", ["manifest.json", "notes"], ids=["the folder", "the folder it is in"])
def test_a_folder_that_may_not_be_read_is_said_to_be_so(
    notes: Path,
    pieces: Wordpieces,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    entered: str,
) -> None:
    (tmp_path / "letter.txt").write_text("The stork brings letters.")
    stat = os.stat
    scandir = os.scandir

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
            assert (
                len(open_documents(places, pieces, max_wordpieces=64, held=held, cache=tmp_path / "cache"))
                == 1
            )
        assert f"left out: {notes} cannot be read (Permission denied)" in capsys.readouterr().err


def test_changes_are_counted_by_file(
    notes: Path, pieces: Wordpieces, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(notes, pieces, tmp_path)
    capsys.readouterr()
    (notes / "heron.txt").write_text("The stork is the bird of the town.")
    (notes / "table.csv").unlink()
    (notes / "new.txt").write_text("A new note.")
    (notes / "newer.txt").write_text("A newer note.")
    opened(notes, pieces, tmp_path)
    assert "files: 2 new, 1 changed, 1 removed\n" in capsys.readouterr().err


def test_a_file_that_may_not_be_read_is_left_out(
    notes: Path,
    pieces: Wordpieces,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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
    notes: Path,
    pieces: Wordpieces,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "markdown_it", None)
        for _ in range(2):
            assert len(opened(notes, pieces, tmp_path)) == 3
            assert (
                "badger.md: reading Markdown needs 'markdown_it': pip install realmlm"
                in capsys.readouterr().err
            )
        with pytest.raises(MissingExtra, match="pip install realmlm"):
            opened(notes / "deep", pieces, tmp_path)
    assert len(opened(notes, pieces, tmp_path)) == 4


def test_several_places_are_one_corpus(notes: Path, pieces: Wordpieces, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("The stork brings letters.")

    def both(*places: Path) -> Corpus:
        with ExitStack() as held:
            return open_documents(places, pieces, max_wordpieces=64, held=held, cache=tmp_path / "cache")

    corpus = both(notes, tmp_path / "letter.txt")
    assert len(corpus) == 5
    # in any order; what lies within counts once
    assert both(tmp_path / "letter.txt", notes, notes / "deep").folder == corpus.folder
    assert both(notes).folder != corpus.folder


def test_sources_of_all_passages_are_those_of_each(notes: Path, pieces: Wordpieces, tmp_path: Path) -> None:
    opened(notes, pieces, tmp_path)
    (notes / "table.csv").write_text(
        "title,text\nOtter,The otter swims.\nHare,The hare runs.\nHare,The hare jumps.\n"
    )
    (notes / "heron.txt").unlink()
    corpus = opened(notes, pieces, tmp_path)
    assert corpus.edits == 1
    one_by_one: dict[str, list[int]] = {}
    for number in corpus.ids.tolist():
        one_by_one.setdefault(corpus.source(number), []).append(number)
    assert documents._contained(corpus) == one_by_one


def test_the_command_answers_from_a_folder_and_embeds_only_what_changed(
    notes: Path,
    tiny_model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = [
        "ask",
        "Which bird?",
        "--docs",
        str(notes),
        "--model",
        str(tiny_model_folder),
        "--read",
        "2",
        "--device",
        "cpu",
    ]
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
    notes: Path,
    tiny_model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "letter.txt").write_text("The stork brings letters.")
    command = ["ask", "Which bird?", "--model", str(tiny_model_folder), "--read", "9", "--device", "cpu"]
    command.append("--numbers")  # all passages that were read
    places = [str(notes / "heron.txt"), str(tmp_path / "letter.txt")]
    for named in (["--docs", *places], ["--docs", places[0], "--docs", places[1]]):
        main([*command, *named])
        shown = capsys.readouterr()
        assert "The heron is" in shown.out
        assert "The stork brings" in shown.out
    with pytest.raises(SystemExit):
        main(["ask", "--docs", str(notes), "Which bird?", "--model", str(tiny_model_folder)])
    assert "before any flags" in capsys.readouterr().err


def test_who_asks_while_another_embeds_gets_what_the_files_say_then(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(documents, "LOOK_S", 3600)  # what was read stays
    note = tmp_path / "note.txt"  # a single file: each change makes the corpus anew
    note.write_text("The heron is the bird of the town.")
    first, second = (Engine(tiny_model_folder, device="cpu") for _ in range(2))
    begun = threading.Event()
    go_on = threading.Event()
    embed = build.embed_passages

    def slow(*given: Any, **options: Any) -> Any:
        if not begun.is_set():
            begun.set()
            assert go_on.wait(60)
        return embed(*given, **options)

    monkeypatch.setattr(build, "embed_passages", slow)
    threads = [threading.Thread(target=engine.read, args=(note,)) for engine in (first, second)]
    threads[0].start()
    assert begun.wait(60)
    note.write_text("The stork is the bird of the town.")
    threads[1].start()
    threads[1].join(1)
    go_on.set()
    for thread in threads:
        thread.join(60)
    for engine, bird in (
        (first, "heron"),
        (second, "stork"),
        (Engine(tiny_model_folder, docs=note, device="cpu"), "stork"),
    ):
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
        with pytest.raises(BadInput, match=r"cannot be cached in .*set XDG_CACHE_HOME"):
            Engine(tiny_model_folder, docs=notes, device="cpu")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    elsewhere = PermissionError(13, "Permission denied", str(notes / "heron.txt"))

    def refused(*_: Any, **__: Any) -> Any:
        raise elsewhere

    monkeypatch.setattr(build, "embed_passages", refused)
    with pytest.raises(PermissionError, match=r"heron\.txt"):
        Engine(tiny_model_folder, docs=notes, device="cpu")
    elsewhere = PermissionError(
        30, "Read-only file system", str(tmp_path / "cache" / "realmlm" / "documents" / "x" / "index")
    )
    with pytest.raises(BadInput, match=r"Read-only file system.*set XDG_CACHE_HOME"):
        Engine(tiny_model_folder, docs=notes, device="cpu")


def test_a_folder_that_may_not_be_read_is_said_and_left_out(
    notes: Path,
    pieces: Wordpieces,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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


def test_a_cache_without_its_manifest_is_to_be_removed(
    notes: Path, pieces: Wordpieces, tmp_path: Path
) -> None:
    (opened(notes, pieces, tmp_path).folder / "manifest.json").unlink()
    with pytest.raises(ArtefactDamaged, match=r"where the cache keeps these documents.*remove it"):
        opened(notes, pieces, tmp_path)


def test_the_cache_of_documents_is_for_their_reader_alone(tmp_path: Path, pieces: Wordpieces) -> None:
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    (secret / "a.txt").write_text("The herons meet at the mill.")
    (secret / "a.txt").chmod(0o600)
    cache = tmp_path / "cache"
    former = os.umask(0o022)
    try:
        for mode in (None, 0o755):  # made anew, and as earlier releases made it
            if mode:
                (cache / "documents").chmod(mode)
            opened(secret, pieces, tmp_path)
            assert stat.S_IMODE((cache / "documents").stat().st_mode) == 0o700
    finally:
        os.umask(former)
