"""One corpus for many: read from where nothing can be written, and edited by several at once."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.errors import NotEnough
from realmlm.model.snapshot import DocumentEncoder
from realmlm.sources.article import Article

NOBODY = 65534
ROOT = Path(__file__).parents[1]

# Runs as a user who may write nothing below the folder, and tells what was opened for writing there all the
# same, or made, renamed or removed.
READER = """
import json, os, sys
from realmlm.engine import Engine
from realmlm.errors import RealmError
folder, uid = sys.argv[1], int(sys.argv[2])
written = []
def watch(event, given):
    if event == "open":
        flags = given[2] or 0
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    else:
        writes = event in ("os.mkdir", "os.rename", "os.remove", "os.link", "os.truncate", "os.chmod")
    if writes and str(given[0]).startswith(folder):
        written.append([event, str(given[0])])
Engine(folder + "/model", folder + "/warm", device="cpu").ask("Who?")  # imports what others may not read
if uid:
    os.setgid(uid)
    os.setuid(uid)
os.environ["HOME"] = "/nonexistent"
sys.addaudithook(watch)
engine = Engine(folder + "/model", folder + "/corpus", device="cpu")
answers = [engine.ask("Which bird is the symbol of the town?").answer for _ in range(2)]
while_answering = list(written)
try:
    engine.edit(remove=[0])
    refused = ""
except (OSError, RealmError) as error:
    refused = str(error)
print(json.dumps([answers, engine.editable, refused, while_answering]))
"""


@pytest.fixture
def shared(knowledge: Corpus, tiny_model_folder: Path) -> Iterator[Path]:
    """A corpus with an edit and its index, and a model, where every user may read and no other write."""
    folder = Path(tempfile.mkdtemp())
    try:
        shutil.copytree(tiny_model_folder, folder / "model")
        shutil.copytree(knowledge.folder, folder / "corpus", ignore=shutil.ignore_patterns("index"))
        Engine(folder / "model", folder / "corpus", device="cpu").edit(
            add=[Article("Nerrow", "A quince stands in the arms of Nerrow.")]
        )
        shutil.copytree(folder / "corpus", folder / "warm")
        for place in [folder, *folder.rglob("*")]:
            place.chmod(0o755 if place.is_dir() else 0o644)
        yield folder
    finally:
        for place in [folder, *folder.rglob("*")]:
            place.chmod(0o755)
        shutil.rmtree(folder)


def read_as_another(folder: Path) -> subprocess.CompletedProcess[str]:
    """As another user where this one may become another; else as this one, with no right to write."""
    uid = NOBODY if os.geteuid() == 0 else 0
    if not uid:
        for place in [folder, *folder.rglob("*")]:
            place.chmod(0o555 if place.is_dir() else 0o444)
    command = [sys.executable, "-c", READER, str(folder), str(uid)]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )


def test_a_whole_corpus_answers_where_nothing_can_be_written(shared: Path) -> None:
    here = Engine(shared / "model", shared / "corpus", device="cpu").ask(
        "Which bird is the symbol of the town?"
    )
    done = read_as_another(shared)
    assert done.returncode == 0, done.stderr
    answers, editable, refused, written = json.loads(done.stdout)
    assert answers == [here.answer] * 2
    assert editable is False
    assert "ermission" in refused
    assert written == []


def test_an_index_that_lacks_something_and_cannot_be_written_says_what_to_do(shared: Path) -> None:
    Corpus.open(shared / "corpus").edit(remove=[1])
    done = read_as_another(shared)
    assert done.returncode != 0
    assert "lacks edits" in done.stderr
    assert "realmlm index" in done.stderr


# --- several at once ----------------------------------------------------------------------------------------


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of all passages that were embedded."""
    ids: list[int] = []
    embed = DocumentEncoder.__call__

    def noted(self: DocumentEncoder, corpus: Corpus, ids_N: np.ndarray) -> torch.Tensor:
        ids.extend(ids_N.tolist())
        return embed(self, corpus, ids_N)

    monkeypatch.setattr(DocumentEncoder, "__call__", noted)
    return ids


def quince(number: int) -> Article:
    return Article("Nerrow", f"There are {number} quinces in the arms of Nerrow.")


def indexes(folder: Path) -> list[str]:
    return sorted(place.name for place in (folder / "corpus" / "index").iterdir() if place.name[0] != ".")


def test_edits_through_one_reach_the_next_answer_of_another_and_are_embedded_once(
    shared: Path, embedded: list[int]
) -> None:
    one, other = (Engine(shared / "model", shared / "corpus", device="cpu") for _ in range(2))
    assert embedded == []
    added = [number for count in range(3) for number in one.edit(add=[quince(count)])]
    (replaced,) = other.edit(add=[quince(3)])
    other.edit(replace={replaced: quince(4)}, remove=added[:1])
    for engine in (one, other):
        read = {found.id for found in engine.search("How many quinces are there?", k=1000)}
        assert {*added[1:], replaced} <= read
        assert added[0] not in read
        assert engine.corpus[replaced].text == quince(4).text
        assert engine.index.ids.tolist() == engine.corpus.ids.tolist()
    vectors = [engine.index.vectors(torch.from_numpy(engine.corpus.ids)) for engine in (one, other)]
    assert torch.equal(*vectors)
    assert sorted(embedded) == sorted([*added, replaced, replaced])
    assert len(indexes(shared)) == 1


def test_an_edit_that_comes_while_another_is_taken_up_makes_no_second_index(
    shared: Path, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (Engine(shared / "model", shared / "corpus", device="cpu") for _ in range(2))
    (first,) = one.edit(add=[quince(1)])
    newest = Corpus.newest
    coming = [quince(2)]

    def slowly(self: Corpus) -> Corpus:
        found = newest(self)
        if self is other.corpus and coming:
            one.edit(add=[coming.pop()])
        return found

    monkeypatch.setattr(Corpus, "newest", slowly)
    for _ in range(2):
        other.ask("How many quinces are there?")
    assert not coming
    assert {first, first + 1} <= set(other.index.ids.tolist())
    assert sorted(embedded) == [first, first + 1]
    assert len(indexes(shared)) == 1
    other = Engine(shared / "model", shared / "corpus", device="cpu")
    assert sorted(embedded) == [first, first + 1]


def test_many_edits_from_two_sides_at_once_are_all_known_to_both(shared: Path, embedded: list[int]) -> None:
    engines = [Engine(shared / "model", shared / "corpus", device="cpu") for _ in range(2)]
    before = len(engines[0].corpus)

    def edit(engine: Engine) -> None:
        for count in range(8):
            engine.edit(add=[quince(count)])
            engine.ask("How many quinces are there?")

    threads = [threading.Thread(target=edit, args=[engine]) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for engine in engines:
        engine.ask("How many quinces are there?")
        assert len(engine.corpus) == before + 16
        assert engine.index.ids.tolist() == engine.corpus.ids.tolist()
        assert engine.up_to_date
    assert len(embedded) == len(set(embedded)) == 16
    assert len(indexes(shared)) == 1


def test_one_who_cannot_write_the_index_follows_once_another_has(
    shared: Path, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = (Engine(shared / "model", shared / "corpus", device="cpu") for _ in range(2))
    _, (number,) = writer.corpus.edit(add=[quince(1)])

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as read_only:
        read_only.setattr("realmlm.index.keep.lock_on", refused)
        with pytest.raises(NotEnough, match="lacks edits"):
            Engine(shared / "model", shared / "corpus", device="cpu")
        assert number not in {found.id for found in reader.search("How many quinces?", k=1000)}
        assert not reader.up_to_date
    writer.follow()
    with monkeypatch.context() as read_only:
        read_only.setattr("realmlm.index.keep.lock_on", refused)
        assert number in {found.id for found in reader.search("How many quinces?", k=1000)}
        assert reader.up_to_date
    assert embedded == [number]
