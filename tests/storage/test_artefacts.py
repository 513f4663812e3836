"""Artefacts exist whole or not at all, and say what is wrong with them."""

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from realmlm.errors import ArtefactDamaged, ArtefactExists, ArtefactMissing
from realmlm.storage import artefacts, locks
from realmlm.storage.arrays import ArrayWriter, map_array, map_arrays, save_arrays
from realmlm.storage.artefacts import (
    MANIFEST,
    open_artefact,
    publish,
    read_manifest,
    refuse_existing,
    sweep,
    write_text,
)


def make(path: Path, text: str = "first", *, replace: bool = False) -> Path:
    with publish(path, kind="note", replace=replace) as draft:
        (draft.path / "deep").mkdir()
        (draft.path / "deep" / "words.txt").write_text(text)
        (draft.path / "more.txt").write_text(text * 2)
        draft.config |= {"size": 3, "where": "ä"}
        draft.counts["words"] = len(text)
        draft.parents["elder"] = "abc"
    return path


def flip(file: Path, at: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[at if at >= 0 else len(data) // 2] ^= 1
    file.write_bytes(data)


def test_what_was_published_is_read_back(tmp_path: Path) -> None:
    manifest = open_artefact(make(tmp_path / "a" / "b"), kind="note")
    assert (manifest.kind, manifest.config, manifest.counts) == (
        "note",
        {"size": 3, "where": "ä"},
        {"words": 5},
    )
    assert (manifest.parents, set(manifest.files)) == ({"elder": "abc"}, {"deep/words.txt", "more.txt"})
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_only_what_realmlm_made_is_to_be_removed(tmp_path: Path) -> None:
    made = make(tmp_path / "made")
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"stage": "warmup", "config": {}, "checksum": "ab"}')
    for ours in (made, run):
        with pytest.raises(ArtefactExists, match=r"already exists; choose another place or remove it first$"):
            refuse_existing(ours)
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / MANIFEST).write_text('{"name": "a browser\'s extension", "manifest_version": 3}')
    (notes / "run.json").write_text("not JSON")
    (notes / "heron.md").write_text("A heron stands.")
    for theirs in (notes, notes / "heron.md"):
        with pytest.raises(ArtefactExists, match=r"already exists; choose another place$"):
            refuse_existing(theirs)


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_every_file_may_be_read_by_whom_the_umask_lets_read(umask: int, tmp_path: Path) -> None:
    former = os.umask(umask)
    try:
        (tmp_path / "plain").write_text("as open() makes it")
        with publish(tmp_path / "a", kind="note") as draft:
            (draft.path / "deep").mkdir()
            save_arrays(draft.path / "deep" / "numbers.safetensors", {"numbers": np.arange(3)})
    finally:
        os.umask(former)
    files = [file for file in (tmp_path / "a").rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {"numbers.safetensors", MANIFEST}
    assert {file.stat().st_mode for file in files} == {(tmp_path / "plain").stat().st_mode}


def test_the_fingerprint_is_of_the_content_alone(tmp_path: Path) -> None:
    first, same, other = (
        open_artefact(make(tmp_path / name, text), kind="note")
        for name, text in (("a", "x"), ("b", "x"), ("c", "y"))
    )
    assert first.fingerprint == same.fingerprint != other.fingerprint


def checksum(record: dict[str, Any]) -> str:
    """Of a manifest, as docs/formats.md has it."""
    return hashlib.sha256(json.dumps(record, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


@pytest.mark.parametrize("name", ["../outside.txt", "/outside.txt", "deep/../../outside.txt"])
def test_a_manifest_that_names_files_outside_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / "a")
    record = json.loads((path / MANIFEST).read_text("utf-8"))
    record["files"][name] = record["files"].pop("more.txt")
    del record["checksum"]
    (path / MANIFEST).write_text(json.dumps(record | {"checksum": checksum(record)}), "utf-8")
    with pytest.raises(ArtefactDamaged, match="outside its folder"):
        open_artefact(path, kind="note")


class Stop(BaseException):
    """As Ctrl-C: no Exception."""


def fail_halfway(path: Path, error: type[BaseException]) -> None:
    with publish(path, kind="note", replace=True) as draft:
        (draft.path / "half.txt").write_text("half")
        assert not (path / "half.txt").exists()
        raise error


@pytest.mark.parametrize("error", [ValueError, Stop])
def test_an_error_leaves_nothing_and_keeps_what_stood_there(
    tmp_path: Path, error: type[BaseException]
) -> None:
    old = make(tmp_path / "old")
    for path in (old, tmp_path / "new"):
        with pytest.raises(error):
            fail_halfway(path, error)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert open_artefact(old, kind="note").counts == {"words": 5}


@pytest.mark.parametrize("again", ["discard", "publish"])
def test_what_a_killed_removal_left_is_removed_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    path = make(tmp_path / "old")

    def stop(*_: object, **__: object) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", stop)
        with pytest.raises(Stop):
            artefacts.discard(path)
    assert [left.suffix for left in tmp_path.iterdir()] == [".old"]
    make(path)
    if again == "discard":
        artefacts.discard(path)
    assert [left.name for left in tmp_path.iterdir()] == ["old"] * (again == "publish")


def test_an_error_while_sealing_keeps_the_old_one(tmp_path: Path) -> None:
    old = make(tmp_path / "old")
    with pytest.raises(TypeError), publish(old, kind="note", replace=True) as draft:
        draft.config["what"] = object()  # no JSON
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    open_artefact(old, kind="note")


def test_nothing_is_written_over_unless_asked(tmp_path: Path) -> None:
    make(tmp_path / "a")
    with pytest.raises(ArtefactExists, match="choose another place or remove it first"):
        make(tmp_path / "a", "second")
    make(tmp_path / "a", "second", replace=True)
    assert open_artefact(tmp_path / "a", kind="note").counts == {"words": 6}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def overtaken(path: Path) -> None:
    with publish(path, kind="note") as draft:
        (draft.path / "slow.txt").write_text("slow")
        make(path, "quick")  # as another process would


def test_who_comes_second_is_told_and_takes_nothing_away(tmp_path: Path) -> None:
    with pytest.raises(ArtefactExists, match="choose another place or remove it first"):
        overtaken(tmp_path / "a")
    assert set(open_artefact(tmp_path / "a", kind="note").files) == {"deep/words.txt", "more.txt"}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow: what a full disk says, the system says of a limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save_much(file: Path) -> None:
    save_arrays(file, {"much": np.zeros(10_000)})


def save_tokenizer(file: Path) -> None:
    Tokenizer(WordLevel({f"word {number}": number for number in range(1000)}, unk_token="word 0")).save(
        str(file)
    )


def write_bytes(file: Path) -> None:
    file.write_bytes(bytes(10_000))


@pytest.mark.parametrize("write", [save_much, save_tokenizer, write_bytes])
def test_what_cannot_be_written_is_said_with_its_place(tmp_path: Path, write: Callable[[Path], None]) -> None:
    with (
        full_disk(),
        pytest.raises(OSError, match=rf"File too large: '{tmp_path}/a'"),
        publish(tmp_path / "a", kind="note") as draft,
    ):
        write(draft.path / "much")
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(OSError, match=rf"File too large: '{tmp_path}/a.json'"):
        write_text(tmp_path / "a.json", "much" * 10_000)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_writer_left_is_swept_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / ".a.12345678.tmp"
    others = tmp_path / ".b.12345678.tmp"
    for folder in (left, others):  # just now
        folder.mkdir()
    with publish(tmp_path / "a", kind="note") as draft:
        # as another process would, which does not take this one's away
        make(tmp_path / "a", "quick", replace=True)
        assert draft.path.is_dir()
        artefacts.discard(tmp_path / "a")
    assert {path.name for path in tmp_path.iterdir()} == {"a", others.name}


def test_half_written_files_of_killed_writers_are_swept_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".a.json.12345678.part").write_text("half")
    (tmp_path / ".b.json.12345678.part").write_text("another's")
    alive = subprocess.Popen(
        [sys.executable, "-c", LIVING_WRITER, str(tmp_path / "a.json")], stdout=subprocess.PIPE, text=True
    )
    assert alive.stdout is not None
    writing = alive.stdout.readline().strip()
    try:
        write_text(tmp_path / "a.json", "{}")
        assert {path.name for path in tmp_path.iterdir()} == {"a.json", ".b.json.12345678.part", writing}
    finally:
        alive.kill()
        alive.wait()
    write_text(tmp_path / "a.json", "{}")
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", ".b.json.12345678.part"}


LIVING_WRITER = """
import sys, time
from pathlib import Path
from realmlm.storage import artefacts
def stuck(path):
    print(path.name, flush=True)
    time.sleep(60)
artefacts.fsync_file = stuck
artefacts.write_text(Path(sys.argv[1]), "{}")
"""


def test_sweep_removes_leftovers_only(tmp_path: Path) -> None:
    make(tmp_path / "a")
    (tmp_path / ".c.json.12345678.part").write_text("half")
    for name in (".b.12345678.tmp", ".a.12345678.old"):
        (tmp_path / name).mkdir()
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_missing_and_other_kinds(tmp_path: Path) -> None:
    with pytest.raises(ArtefactMissing, match=r"no note in .*/gone; make one: so$"):
        open_artefact(tmp_path / "gone", kind="note", hint="make one: so")
    with pytest.raises(ArtefactMissing, match=r"no note in .*: it has no manifest\.json; make one: so"):
        open_artefact(tmp_path, kind="note", hint="make one: so")
    with pytest.raises(
        ArtefactMissing, match="is of kind 'note', but 'letter' is needed; name another folder"
    ):
        open_artefact(make(tmp_path / "a"), kind="letter")


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    file = make(tmp_path / "a") / MANIFEST
    file.write_text(
        json.dumps({**json.loads(file.read_text()), "format": artefacts.FORMAT + 1, "unheard_of": 1})
    )
    with pytest.raises(ArtefactDamaged, match=r"manifest\.json has format 2, newer .* upgrade realmlm"):
        read_manifest(tmp_path / "a", kind="note")


def test_a_manifest_altered_at_any_byte_is_refused(tmp_path: Path) -> None:
    file = make(tmp_path / "a") / MANIFEST
    whole = file.read_bytes()
    record = json.loads(whole)
    for at in range(len(whole)):
        flip(file, at)
        try:
            same = json.loads(file.read_bytes()) == record  # white space between the values says nothing
        except ValueError:
            same = False
        if same:
            read_manifest(tmp_path / "a", kind="note")
        else:
            with pytest.raises((ArtefactDamaged, ArtefactMissing), match=r"manifest\.json|is of kind"):
                read_manifest(tmp_path / "a", kind="note")
        file.write_bytes(whole)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"kind": "note"}',
        b"\xff\xfe",
        b'{"checksum": 1, "format": "x"}',
        b"[" * 99999,
    ],
    ids=["empty", "list", "null", "object", "no checksum", "no UTF-8", "format is a text", "too deep"],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (make(tmp_path / "a") / MANIFEST).write_bytes(content)
    with pytest.raises(ArtefactDamaged, match=r"manifest\.json is damaged .*; remove .*/a and make it again"):
        open_artefact(tmp_path / "a", kind="note")


def test_files_are_checked_when_opened(tmp_path: Path) -> None:
    path = make(tmp_path / "a")
    file = path / "deep" / "words.txt"
    whole = file.read_bytes()
    flip(file)
    with pytest.raises(ArtefactDamaged, match=r"deep/words\.txt is damaged: its checksum"):
        open_artefact(path, kind="note")
    file.write_bytes(whole[:-1])
    with pytest.raises(ArtefactDamaged, match=r"deep/words\.txt is damaged: 4 bytes instead of 5"):
        open_artefact(path, kind="note")
    file.unlink()
    with pytest.raises(ArtefactDamaged, match=r"deep/words\.txt is missing; remove .*/a and make it again"):
        open_artefact(path, kind="note")
    file.write_bytes(whole)
    open_artefact(path, kind="note")


def test_files_of_large_artefacts_are_hashed_again_when_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "a")
    hashed: list[str] = []
    sha256 = artefacts.sha256_of
    monkeypatch.setattr(artefacts, "sha256_of", lambda file: hashed.append(file.name) or sha256(file))  # type: ignore[func-returns-value]

    def opened() -> list[str]:
        hashed.clear()
        open_artefact(path, kind="note")
        return sorted(hashed)

    assert opened() == ["more.txt", "words.txt"]  # small: each time
    monkeypatch.setattr(artefacts, "ALWAYS_HASHED", 5)  # now the artefact is a large one
    assert opened() == []  # its writer has seen it
    os.utime(path / "more.txt", ns=(1, 1))
    assert opened() == ["more.txt"]  # touched: once
    assert opened() == []
    (path / ".verified.json").write_text("{broken")
    assert opened() == ["more.txt", "words.txt"]
    assert opened() == []
    flip(path / "more.txt")
    with pytest.raises(ArtefactDamaged, match=r"more\.txt"):
        opened()


def test_stamps_are_renewed_where_other_links_to_the_files_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "a")
    for name in ("more.txt", "deep/words.txt"):
        os.link(path / name, tmp_path / "link")
        (tmp_path / "link").unlink()
    flip(path / "more.txt")  # which no link did
    artefacts.renew_stamps(path)
    monkeypatch.setattr(artefacts, "ALWAYS_HASHED", 5)
    hashed: list[str] = []
    sha256 = artefacts.sha256_of
    monkeypatch.setattr(artefacts, "sha256_of", lambda file: hashed.append(file.name) or sha256(file))  # type: ignore[func-returns-value]
    with pytest.raises(ArtefactDamaged, match=r"more\.txt"):
        open_artefact(path, kind="note")
    assert hashed == ["more.txt"]


@pytest.mark.parametrize(
    "copy",
    [
        ["cp", "-a", "a", "b"],
        # a format that keeps times to the nanosecond
        ["sh", "-c", "mkdir b && tar c --format=posix -C a . | tar x -C b"],
    ],
)
def test_stamps_of_a_copy_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: list[str]
) -> None:
    make(tmp_path / "a")
    subprocess.run(copy, cwd=tmp_path, check=True)
    file = tmp_path / "b" / "more.txt"
    times = file.stat()
    flip(file)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    monkeypatch.setattr(artefacts, "ALWAYS_HASHED", 5)  # as if it were a large one
    open_artefact(tmp_path / "a", kind="note")
    with pytest.raises(ArtefactDamaged, match=r"more\.txt"):
        open_artefact(tmp_path / "b", kind="note")


# --- arrays -------------------------------------------------------------------------------------------------

DTYPES = (
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "bool",
)


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 5), max_size=4),
    st.sampled_from([(), (1,), (3,), (0,), (2, 2)]),
    st.integers(0, 2**32),
)
def test_an_array_that_grew_is_what_safetensors_reads(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, sizes: list[int], row: tuple[int, ...], seed: int
) -> None:
    file = tmp_path_factory.mktemp("arrays") / "rows.safetensors"
    rng = np.random.default_rng(seed)
    blocks = [rng.integers(0, 100, (size, *row)).astype(dtype) for size in sizes]
    writer = ArrayWriter(file, dtype, row=row)
    for block in blocks:
        writer.append(block)
    writer.close()
    truth = np.concatenate([np.zeros((0, *row), dtype), *blocks])
    theirs = load_file(file)
    ours = map_array(file)
    assert list(theirs) == ["rows"]
    for array in (theirs["rows"], ours):
        assert array.dtype == truth.dtype
        np.testing.assert_array_equal(array, truth)


@given(
    st.dictionaries(
        st.sampled_from("abcdé"),
        st.tuples(st.sampled_from(DTYPES), st.integers(0, 4), st.integers(0, 3)),
        max_size=4,
    )
)
def test_saved_arrays_are_mapped_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, shapes: dict[str, tuple[str, int, int]]
) -> None:
    file = tmp_path_factory.mktemp("arrays") / "several.safetensors"
    truth = {
        name: np.arange(rows * columns).reshape(columns, rows).astype(dtype).T
        for name, (dtype, rows, columns) in shapes.items()
    }
    save_arrays(file, truth)
    mapped = map_arrays(file)
    assert set(mapped) == set(truth)
    for name, array in truth.items():
        assert mapped[name].dtype == array.dtype
        np.testing.assert_array_equal(mapped[name], array)


def test_a_mapped_array_cannot_change_its_file(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_arrays(file, {"a": np.arange(4)})
    map_array(file)[0] = 9
    with safe_open(file, "np") as stored:
        assert stored.get_tensor("a").tolist() == [0, 1, 2, 3]


@given(st.integers(0, 200))
def test_an_array_file_cut_off_anywhere_is_named(
    tmp_path_factory: pytest.TempPathFactory, length: int
) -> None:
    file = tmp_path_factory.mktemp("arrays") / "cut.safetensors"
    save_arrays(file, {"a": np.arange(20), "b": np.ones((2, 2), np.float16)})
    whole = file.read_bytes()
    file.write_bytes(whole[: min(length, len(whole) - 1)])
    with pytest.raises(ArtefactDamaged, match=r"cut\.safetensors"):
        map_arrays(file)


@given(st.integers(0, 7), st.integers(1, 255))
def test_a_wrong_header_length_is_named_and_takes_no_memory(
    tmp_path_factory: pytest.TempPathFactory, at: int, bits: int
) -> None:
    file = tmp_path_factory.mktemp("arrays") / "length.safetensors"
    save_arrays(file, {"a": np.arange(20)})
    data = bytearray(file.read_bytes())
    data[at] ^= bits
    file.write_bytes(data)
    with pytest.raises(ArtefactDamaged, match=r"length\.safetensors"):
        map_arrays(file)


# --- folders that come from someone else --------------------------------------------------------------------


def linked_to_mine(link: Path, tmp_path: Path) -> Path:
    """A link to a file of the user, as someone else's folder may hold it."""
    mine = tmp_path / "mine.txt"
    mine.write_text("three years of notes")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(mine)
    return mine


def test_a_lock_that_is_a_link_empties_nothing(tmp_path: Path) -> None:
    mine = linked_to_mine(tmp_path / "foreign" / ".edits.lock", tmp_path)
    with (
        pytest.raises(ArtefactDamaged, match=r"\.edits\.lock is a link"),
        locks.locked(tmp_path / "foreign" / ".edits.lock"),
    ):
        pass
    assert mine.read_text() == "three years of notes"


def test_a_lock_that_is_a_file_keeps_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a hard link to something")
    with locks.locked(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_text() == "a hard link to something"


def test_what_was_verified_is_not_written_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "a")
    (path / ".verified.json").unlink()
    mine = linked_to_mine(path / ".verified.json", tmp_path)
    monkeypatch.setattr(artefacts, "ALWAYS_HASHED", 5)  # as if it were a large one
    open_artefact(path, kind="note")
    assert mine.read_text() == "three years of notes"


def test_a_file_of_an_artefact_is_no_link(tmp_path: Path) -> None:
    path = make(tmp_path / "a")
    elsewhere = tmp_path / "elsewhere.txt"
    (path / "more.txt").rename(elsewhere)
    (path / "more.txt").symlink_to(elsewhere)
    with pytest.raises(ArtefactDamaged, match=r"more\.txt is a link"):
        open_artefact(path, kind="note")


@pytest.mark.timeout(60)
def test_a_pipe_in_an_artefact_is_not_waited_for(tmp_path: Path) -> None:
    with publish(tmp_path / "a", kind="note") as draft:
        (draft.path / "empty.txt").touch()
    (tmp_path / "a" / ".verified.json").unlink()
    os.mkfifo(tmp_path / "a" / ".verified.json")
    open_artefact(tmp_path / "a", kind="note")
    (tmp_path / "a" / "empty.txt").unlink()
    os.mkfifo(tmp_path / "a" / "empty.txt")  # no bytes, as the manifest says
    with pytest.raises(ArtefactDamaged, match=r"empty\.txt is no plain file"):
        open_artefact(tmp_path / "a", kind="note")


# --- what is on the disk ------------------------------------------------------------------------------------


def test_the_folders_that_name_what_was_written_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is on the disk once its folder is."""
    synced: list[tuple[Path, bool]] = []
    place = tmp_path / "a" / "b" / "000001"
    monkeypatch.setattr(
        artefacts, "fsync_file", lambda path: synced.append((Path(path), (tmp_path / "note.txt").exists()))
    )
    with publish(place, kind="corpus"):
        assert {tmp_path, tmp_path / "a"} <= {path for path, _ in synced}
    assert synced[-1][0] == place.parent
    synced.clear()
    artefacts.write_text(tmp_path / "note.txt", "A note.")
    assert synced[-1] == (tmp_path, True), "after it was renamed"
