"""The index kept for a corpus and a document tower: shared, brought up to date, never taken for another's."""

import shutil
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from realmlm.corpus.store import Corpus
from realmlm.errors import ArtefactDamaged, ArtefactMissing, Mismatch
from realmlm.index import keep
from realmlm.index.build import embed_passages
from realmlm.index.store import ShardedBuild
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.reading.retrieve import index_of
from realmlm.sources.article import Article
from tests.conftest import world_corpus

Model = Realm


@pytest.fixture
def own(world: Path, tmp_path: Path) -> Corpus:
    return world_corpus(world, "knowledge", tmp_path / "own")


def other(model: Realm) -> Realm:
    with torch.no_grad():
        model.document.projection.weight.mul_(1.5)
    return model


def test_models_that_share_the_document_tower_share_the_index(tiny_model: Model, own: Corpus) -> None:
    model = tiny_model
    index_of(model, own)
    model.untie()
    with torch.no_grad():
        model.query.projection.weight.mul_(1.5)
    index_of(model, own)
    assert len(list((own.folder / "index").glob("[!.]*"))) == 1
    index_of(other(model), own)
    assert len(list((own.folder / "index").glob("[!.]*"))) == 2


def test_locks_of_a_foreign_corpus_that_are_links_empty_nothing(
    tiny_model: Model, own: Corpus, tmp_path: Path
) -> None:
    index_of(tiny_model, own)
    (index,) = (own.folder / "index").glob("[!.]*")
    shutil.rmtree(index)
    mine = tmp_path / "mine.txt"
    mine.write_text("three years of notes")
    for lock in (index.with_name(f".{index.name}.lock"), own.folder / ".edits.lock"):
        lock.unlink(missing_ok=True)
        lock.symlink_to(mine)
    with pytest.raises(ArtefactDamaged, match=r"-exact\.lock is a link"):
        index_of(tiny_model, own)
    with pytest.raises(ArtefactDamaged, match=r"\.edits\.lock is a link"):
        own.edit(add=[Article("new", "The new passage tells of a heron.")])
    assert mine.read_text() == "three years of notes"


def test_another_models_index_is_refused_and_stays_as_it_is(
    tiny_model: Model, own: Corpus, tmp_path: Path
) -> None:
    model = tiny_model
    index_of(model, own, path=tmp_path / "index", kind="exact")
    edited, _ = own.edit(add=[Article("new", "The new passage tells of a heron.")])
    before = sorted(path.relative_to(tmp_path) for path in (tmp_path / "index").rglob("*"))
    with pytest.raises(Mismatch, match="other document weights"):
        index_of(other(model), edited, path=tmp_path / "index")
    assert sorted(path.relative_to(tmp_path) for path in (tmp_path / "index").rglob("*")) == before


def test_an_earlier_state_of_the_corpus_has_an_index_of_its_own(tiny_model: Model, own: Corpus) -> None:
    model = tiny_model
    edited, _ = own.edit(remove=[0])
    assert len(index_of(model, edited).index) == len(own) - 1
    before = Corpus.open(own.folder, edits=0)
    assert not before.is_current
    assert len(index_of(model, before).index) == len(own)
    assert len(index_of(model, edited).index) == len(own) - 1


def test_what_was_embedded_of_another_edit_is_not_taken(
    tiny_model: Model, own: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    model = tiny_model
    index_of(model, own)
    edited, _ = own.edit(add=[Article("new", "The new passage tells of a heron.")])
    with monkeypatch.context() as broken:
        broken.setattr(keep, "save_edit", cut_off)
        with pytest.raises(KeyboardInterrupt):
            index_of(model, edited)
    shutil.rmtree(own.folder / "edits")
    edited, (number,) = own.edit(add=[Article("new", "The new passage tells of an otter.")])
    vectors = index_of(model, edited).index.vectors(torch.tensor([number]))
    truth = embed_passages(edited, np.array([number]), DocumentEncoder.of(model), dtype=torch.float16)
    assert torch.allclose(vectors, truth.float(), atol=2e-3)
    assert not list((own.folder / "index").glob(".*.partial"))


def test_what_was_embedded_before_the_corpus_changed_is_used(
    tiny_model: Model, own: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model
    put = ShardedBuild.put
    done: list[int] = []

    def two_shards(build: ShardedBuild, shard: int, *given: torch.Tensor) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(shard)
        put(build, shard, *given)

    embedded: list[int] = []
    tokens = DocumentEncoder.__call__

    def counted(encode: DocumentEncoder, corpus: Corpus, ids_N: np.ndarray) -> torch.Tensor:
        embedded.extend(ids_N.tolist())
        return tokens(encode, corpus, ids_N)

    monkeypatch.setattr("realmlm.index.build._usual_shard", lambda passages, device: 50)
    monkeypatch.setattr(DocumentEncoder, "__call__", counted)
    with monkeypatch.context() as cut_off:
        cut_off.setattr(ShardedBuild, "put", two_shards)
        with pytest.raises(KeyboardInterrupt):
            index_of(model, own)
    (partial,) = (own.folder / "index").glob(".*.partial")
    kept = sum(len(load_file(file)["ids"]) for file in partial.glob("shard-*.safetensors"))
    assert kept == 100
    edited, _ = own.edit(add=[Article("new", "The new passage tells of a heron.")], remove=[3])
    embedded.clear()
    index = index_of(model, edited).index
    assert len(embedded) == len(own) - kept + 1
    assert index.ids.tolist() == edited.ids.tolist()
    truth = embed_passages(edited, edited.ids, DocumentEncoder.of(model), dtype=torch.float16)
    assert torch.allclose(index.vectors(torch.from_numpy(edited.ids)), truth.float(), atol=2e-3)


def test_an_index_with_edits_that_are_no_more_is_refused(tiny_model: Model, own: Corpus) -> None:
    model = tiny_model
    base, _ = own.edit(remove=[0])
    index_of(model, base)
    edited, _ = base.edit(add=[Article("new", "The new passage tells of a heron.")])
    index_of(model, edited)
    shutil.rmtree(own.folder / "edits" / "000002")
    other_edit, _ = Corpus.open(own.folder).edit(add=[Article("new", "The new passage tells of an otter.")])
    assert (other_edit.edits, other_edit.ids.tolist()) == (edited.edits, edited.ids.tolist())
    with pytest.raises(Mismatch, match=r"includes edits that .* no longer has; remove it"):
        index_of(model, other_edit)
    shutil.rmtree(own.folder / "index")
    assert len(index_of(model, other_edit).index) == len(other_edit)
    shutil.rmtree(own.folder / "edits")
    also_one, _ = Corpus.open(own.folder).edit(remove=[1])  # its files are equal to those of `base`
    with pytest.raises(Mismatch, match=r"includes edits that .* no longer has"):
        index_of(model, also_one.edit(remove=[2])[0])


def test_an_approximate_index_is_measured_with_real_queries_and_can_be_used(
    tiny_model: Model, own: Corpus, tmp_path: Path
) -> None:
    model = tiny_model
    index = index_of(model, own, path=tmp_path / "ivf", kind="ivf").index
    assert 0.95 <= index.recall <= 1.0  # type: ignore[attr-defined]
    again = index_of(model, own, path=tmp_path / "ivf").index  # of whichever kind it is
    assert type(again) is type(index)
    with pytest.raises(Mismatch, match="kind ivf, not exact"):
        index_of(model, own, path=tmp_path / "ivf", kind="exact")


def test_an_approximate_index_is_measured_with_a_quarter_of_the_words_of_sentences(
    tiny_model: Model, own: Corpus, tmp_path: Path
) -> None:
    model = tiny_model
    wordpieces = model.wordpieces
    with patch.object(model, "query_inputs", wraps=model.query_inputs) as asked:
        index_of(model, own, path=tmp_path / "ivf", kind="ivf")
    (queries,) = (call.args[0] for call in asked.call_args_list)
    assert len(queries) == 256

    def words(tokens: np.ndarray) -> list[tuple[int, ...]]:
        firsts = np.flatnonzero(~wordpieces.continues[tokens])
        return [tuple(part.tolist()) for part in np.split(tokens, firsts[1:])]

    for query, number in zip(queries, np.linspace(0, len(own) - 1, 256).astype(int), strict=True):
        sentence = words(own.tokens(number)[: own.sentences(number)[1]])
        some = words(query)
        assert len(some) == -(-len(sentence) // 4)
        left = iter(sentence)
        assert all(word in left for word in some)  # whole words, in their order


def test_vectors_of_half_precision_are_not_taken_for_whole(
    tiny_model: Model, own: Corpus, tmp_path: Path
) -> None:
    model = tiny_model
    index_of(model, own)
    precise = index_of(model, own, path=tmp_path / "precise", kind="exact", dtype=torch.float32).index
    vectors = precise.vectors(precise.ids)
    assert precise.dtype == torch.float32
    assert not torch.equal(vectors, vectors.half().float())
    with pytest.raises(
        Mismatch,
        match="holds vectors in float16, not float32; remove it to have it made anew, or go on with float16",
    ):
        index_of(model, own, dtype=torch.float32)
    with pytest.raises(Mismatch, match="holds vectors in float32, not float16"):
        index_of(model, own, path=tmp_path / "precise", dtype=torch.float16)
    # of whichever it is
    assert index_of(model, own, path=tmp_path / "precise").index.dtype == torch.float32


def test_vectors_of_whole_precision_are_halved_without_embedding(
    tiny_model: Model, own: Corpus, tmp_path: Path
) -> None:
    model = tiny_model
    precise = index_of(model, own, dtype=torch.float32).index
    with patch.object(DocumentEncoder, "__call__", side_effect=AssertionError("nothing is to be embedded")):
        half = index_of(model, own, path=tmp_path / "half", kind="exact").index
    assert torch.equal(half.vectors(half.ids), precise.vectors(precise.ids).half())


def test_an_index_that_was_named_and_is_not_there_is_not_made(
    tiny_model: Model, own: Corpus, tmp_path: Path
) -> None:
    model = tiny_model
    with pytest.raises(
        ArtefactMissing, match=r"no index in .*nothere; make one: realmlm index .*--out .*nothere"
    ):
        index_of(model, own, path=tmp_path / "nothere")
    assert not list(tmp_path.glob("*nothere*"))
    assert len(index_of(model, own, path=tmp_path / "nothere", kind="exact").index) == len(own)
    assert len(index_of(model, own, path=tmp_path / "nothere").index) == len(own)


def test_how_many_passages_lack_vectors_is_known_before_they_are_embedded(
    tiny_model: Realm, world: Path, tmp_path: Path
) -> None:
    first, second = (world_corpus(world, "knowledge", tmp_path / name / "corpus") for name in ("a", "b"))
    encode = DocumentEncoder.of(tiny_model)
    assert (
        keep.count_lacking(first, encode)
        == keep.count_lacking(first, encode, others=tmp_path / "b")
        == len(first)
    )
    index_of(tiny_model, first)
    assert keep.count_lacking(first, encode) == 0
    assert keep.count_lacking(second, encode, others=tmp_path / "a") == 0  # word for word the same
    assert keep.count_lacking(second, encode) == len(second)
    edited, _ = first.edit(add=[Article("", "The heron is the bird of the town.", "")], remove=[3])
    assert keep.count_lacking(edited, encode) == 1
