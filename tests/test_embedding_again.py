"""Of documents that changed, only what is new is embedded; what was embedded is not lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from realmlm.corpus import documents
from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.index import build
from realmlm.index.build import embed_passages
from realmlm.index.exact import ExactIndex
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder


class Counted:
    """Reads documents with a model, and counts the passages that reach its document tower."""

    def __init__(self, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._model = model
        self._count = 0
        call = DocumentEncoder.__call__

        def counted(encoder: DocumentEncoder, corpus: Corpus, ids: np.ndarray) -> torch.Tensor:
            self._count += len(ids)
            return call(encoder, corpus, ids)

        monkeypatch.setattr(DocumentEncoder, "__call__", counted)

    def __call__(self, *places: Path) -> int:
        """Embedded passages. The index must be what embedding all of them anew would give."""
        self._count = 0
        engine = Engine(self._model, docs=places, device="cpu")
        embedded = self._count
        ids = engine.corpus.ids
        whole = embed_passages(engine.corpus, ids, DocumentEncoder.of(engine.model), dtype=torch.float16)
        assert engine.index.ids.tolist() == ids.tolist()
        # beside others a sum may round otherwise
        assert torch.allclose(engine.index.vectors(torch.from_numpy(ids)), whole.float(), atol=2e-3)
        queries = torch.eye(engine.index.dim)
        k = len(ids)
        truth = ExactIndex(engine.index.vectors(engine.index.ids), engine.index.ids).search(queries, k)
        assert torch.equal(engine.index.search(queries, k).ids_QK, truth.ids_QK)
        return embedded


@pytest.fixture
def read(tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Counted(tiny_model_folder, monkeypatch)


def test_a_corpus_made_anew_embeds_only_what_is_new(
    read: Counted, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MOST_EDITS", 3)
    assert read(notes) == 4
    for number in range(9):  # two of them make it anew
        (notes / "heron.txt").write_text(f"The heron number {number}.")
        assert read(notes) == 1
    names = sorted(path.name for path in (tmp_path / "cache" / "realmlm" / "documents").glob("[!.]*[!n]"))
    assert names == [names[0], f"{names[0]}-former"]


def test_vectors_survive_an_embedding_that_was_cut_off(
    read: Counted, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MOST_EDITS", 0)  # each change makes it anew
    assert read(notes) == 4
    for number in range(2):
        (notes / "heron.txt").write_text(f"The heron number {number}.")
        with monkeypatch.context() as broken:
            broken.setattr(build, "embed_passages", cut_off)
            with pytest.raises(KeyboardInterrupt):
                read(notes)
    assert read(notes) == 1


HERONS = "title,text\n" + "".join(
    f"Heron {number},The heron has the number {number}.\n" for number in range(1100)
)


@pytest.fixture
def interrupted(read: Counted, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Reads a place, and is interrupted after a thousand passages."""

    def interrupt(place: Path) -> None:
        embedded = 0
        call = DocumentEncoder.__call__

        def until(encoder: DocumentEncoder, corpus: Corpus, ids: np.ndarray) -> torch.Tensor:
            nonlocal embedded
            embedded += len(ids)
            if embedded > 1000:
                raise KeyboardInterrupt
            return call(encoder, corpus, ids)

        with monkeypatch.context() as broken:
            broken.setattr(DocumentEncoder, "__call__", until)
            with pytest.raises(KeyboardInterrupt):
                read(place)

    return interrupt


def test_what_was_embedded_before_an_interruption_is_kept(
    read: Counted, interrupted: Callable[[Path], None], tmp_path: Path
) -> None:
    table = tmp_path / "herons.csv"
    table.write_text(HERONS)
    interrupted(table)
    assert read(table) == 1100 - 512
    assert [file.name for file in tmp_path.glob("cache/**/shard-*")] == ["shard-00000.safetensors"]


def test_of_what_was_added_too_and_it_is_shown(
    read: Counted,
    interrupted: Callable[[Path], None],
    notes: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert read(notes) == 4
    (notes / "herons.csv").write_text(HERONS)
    (notes / "heron.txt").unlink()
    interrupted(notes)
    capsys.readouterr()
    assert read(notes) == 1100 - 512
    said = capsys.readouterr().err
    assert "taking up 1100 new and 1 removed passages" in said
    assert "embedding  1,100 passages in " in said
    assert not list(tmp_path.glob("cache/**/.*.partial"))
    assert read(notes) == 0


def cut_off(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_another_choice_of_folders_embeds_only_what_is_new(
    read: Counted, notes: Path, tmp_path: Path
) -> None:
    (tmp_path / "letter.txt").write_text("The stork brings letters.")
    assert read(notes) == 4
    assert read(notes, tmp_path / "letter.txt") == 1
    assert read(tmp_path / "letter.txt", notes / "deep") == 0


def test_of_a_changed_file_only_changed_passages_are_embedded(read: Counted, notes: Path) -> None:
    rows = [f"{title},The {title} has the number {title}.\n" for title in ("badger", "fox", "hare", "otter")]
    (notes / "table.csv").write_text("title,text\n" + "".join(rows))
    assert read(notes / "table.csv") == 4
    assert read(notes) == 2
    for rows[2] in (
        "hare,The hare is gone.\n",
        "otter,The hare is gone.\n",
    ):  # another text; the same under another title
        (notes / "table.csv").write_text("title,text\n" + "".join(rows))
        assert read(notes) == 1  # an edit
        assert read(notes / "table.csv") == 0  # made anew: all of it is another file's content
    (notes / "table.csv").rename(notes / "deep" / "moved.csv")
    assert read(notes) == 0


def test_vectors_are_taken_only_from_a_sound_index_of_the_same_tower(
    read: Counted, notes: Path, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(notes) == 4
    model = Realm.from_pretrained(tiny_model_folder)
    with torch.no_grad():
        model.document.projection.weight.mul_(1.5)
    model.save_pretrained(tmp_path / "other")
    assert Counted(tmp_path / "other", monkeypatch)(notes / "deep") == 1
    for file in (tmp_path / "cache").glob("**/shard-00000.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"\x55")
    assert read(notes / "heron.txt") == 1
