"""Indexes that other systems hold: found as by exact search, changed with their corpus, filtered safely."""

import copy
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

from realmlm.cli import main
from realmlm.corpus.questions import Question
from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.errors import (
    ArtefactExists,
    ArtefactMissing,
    BadInput,
    Diverged,
    Mismatch,
    NotEnough,
    RealmError,
    Unavailable,
)
from realmlm.evaluation.measure import measure
from realmlm.index.exact import ExactIndex
from realmlm.index.shared import (
    Batch,
    Condition,
    SharedIndex,
    SharedPlace,
    State,
    batches,
    index_place,
    open_shared,
    write_shared,
)
from realmlm.interop.vectors import since
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.reading.answer import Answerer
from realmlm.reading.retrieve import LearnedRetriever, index_of
from realmlm.serve.http import create_app
from realmlm.settings import Ask
from realmlm.sources.article import Article
from tests.calls import build_corpus
from tests.index.stores import place_in, postgres
from tests.test_pocket import POCKET

SYSTEMS = ["memory", *(pytest.param(name, marks=pytest.mark.scale) for name in ("lance", "postgres"))]
HERON = Article("heron", "The heron is the bird of the town.", "heron.txt")


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    with postgres() as address:
        yield address


@pytest.fixture(params=SYSTEMS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> SharedPlace:
    address = request.getfixturevalue("dsn") if request.param == "postgres" else ""
    return place_in(request.param, tmp_path, address)


@pytest.fixture
def corpus(world: Path, tmp_path: Path) -> Corpus:
    """Some passages of the tiny world."""
    lines = (world / "knowledge.jsonl").read_text("utf-8").splitlines()[:40]
    (tmp_path / "some.jsonl").write_text("\n".join(lines), "utf-8")
    tokenizer = str(world / "tokenizer.json")
    source = [tmp_path / "some.jsonl"]
    return build_corpus(source, tmp_path / "corpus", tokenizer=tokenizer, max_wordpieces=64, workers=1)


def written(
    place: SharedPlace, model: Realm, corpus: Corpus, *, meanwhile: Callable[[], object] = lambda: None
) -> State:
    """Write a corpus as `realmlm export vectors` does; something happens while it is written."""
    kept = index_of(model, corpus)
    index = kept.index
    state = State(
        weights=DocumentEncoder.of(model).fingerprint,
        corpus=corpus.fingerprint,
        corpus_edits=corpus.edits,
        corpus_state=corpus.state,
        dim=index.dim,
        dtype="float16",
    )
    queries_QD = torch.randn(16, index.dim, generator=torch.Generator().manual_seed(0))

    def given() -> Iterator[Batch]:
        yield from batches(corpus, corpus.ids, index)
        meanwhile()

    return write_shared(
        place, given(), state, queries_QD=queries_QD, truth=index, since=lambda done: since(kept, done)
    )


# --- searching ----------------------------------------------------------------------------------------------


def test_hits_are_those_of_exact_search(place: SharedPlace, tiny_model: Realm, corpus: Corpus) -> None:
    state = written(place, tiny_model, corpus)
    exact = index_of(tiny_model, corpus).index
    index = open_shared(place, corpus, DocumentEncoder.of(tiny_model), follow=False).index
    assert state.recall == 1
    assert index.ids.tolist() == exact.ids.tolist()
    queries_QD = torch.randn(8, index.dim, generator=torch.Generator().manual_seed(1))
    best = exact.search(queries_QD, 1).ids_QK
    for k, exclude in ((1, None), (5, None), (5, best), (len(exact), None)):
        ours = index.search(queries_QD, k, exclude_QE=exclude)
        truth = exact.search(queries_QD, k, exclude_QE=exclude)
        assert torch.allclose(ours.scores_QK, truth.scores_QK, atol=1e-4)
        assert torch.equal(ours.ids_QK, truth.ids_QK)
    some = torch.tensor([7, 3, 7])
    assert torch.equal(index.vectors(some), exact.vectors(some))
    assert index.contains(torch.tensor([0, -1, 10**6])).tolist() == [True, False, False]
    with pytest.raises(NotEnough, match="passages can be searched"):
        index.search(queries_QD, len(exact) + 1)
    with pytest.raises(Diverged, match="NaN"):
        index.search(queries_QD * torch.nan, 1)


def test_an_engine_answers_as_with_the_exact_index(
    place: SharedPlace, tiny_model: Realm, corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    written(place, tiny_model, corpus)
    questions = ["which animal?", "where is the harbour?", "who built it?"]
    for hybrid in (0.0, 0.5):
        here = Engine(tiny_model, corpus, hybrid=hybrid).ask(questions)
        there = Engine(tiny_model, corpus, index=place, hybrid=hybrid).ask(questions)
        assert [answer.answer for answer in there] == [answer.answer for answer in here]
        ids = [[evidence.passage_id for evidence in answer.evidence] for answer in there]
        assert ids == [[evidence.passage_id for evidence in answer.evidence] for answer in here]
    assert f"{len(corpus)} passages, recall against exact search 1.000" in capsys.readouterr().err


@pytest.mark.parametrize("system", SYSTEMS)
def test_effort_is_raised_until_recall_is_high(
    system: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = place_in(system, tmp_path, request.getfixturevalue("dsn") if system == "postgres" else "")
    generator = torch.Generator().manual_seed(0)
    count = 500 if system == "memory" else 3000
    vectors_ND = torch.randn(count, 16, generator=generator)
    names = [f"name {number}" for number in range(count)]
    state = State(weights="w", corpus="c", corpus_edits=0, dim=16, dtype="float32")
    truth = ExactIndex(vectors_ND, torch.arange(count))
    given = iter([Batch(list(range(count)), names, names, names, vectors_ND.numpy())])
    queries_QD = torch.randn(64, 16, generator=generator)
    made = write_shared(place, given, state, queries_QD=queries_QD, truth=truth)
    assert made.recall >= 0.99
    store = place.open()
    assert store.state() == made
    found = [store.search(query, 1, effort=made.effort, only=())[0][0] for query in queries_QD.numpy()]
    right = np.array(found) == truth.search(queries_QD, 1).ids_QK[:, 0].numpy()
    assert right.mean() >= 0.99
    if system != "memory":
        little = [store.search(query, 8, effort=1, only=())[0] for query in queries_QD.numpy()]
        exact = truth.search(queries_QD, 8).ids_QK.numpy()
        assert any(list(one) != list(other) for one, other in zip(little, exact, strict=True)), (
            "it is an index"
        )


def test_all_is_looked_at_where_the_usual_effort_finds_too_few(
    place: SharedPlace, tiny_model: Realm, corpus: Corpus
) -> None:
    state = written(place, tiny_model, corpus)
    store = place.open()
    store.state()
    index = SharedIndex(store, replace(state, effort=1), corpus)
    query_1D = torch.randn(1, index.dim)
    everything = index.search(query_1D, len(corpus)).ids_QK[0]
    assert sorted(everything.tolist()) == corpus.ids.tolist()


# --- edits --------------------------------------------------------------------------------------------------


def shown(engine: Engine) -> list[str]:
    """What the next question is answered from, all that there is."""
    read = engine.ask("which bird?", read=10**6).evidence
    assert engine.up_to_date
    assert engine.index.ids.tolist() == engine.corpus.ids.tolist()
    return [evidence.passage for evidence in read]


def test_the_next_question_knows_what_was_added_changed_and_removed(
    place: SharedPlace, tiny_model: Realm, corpus: Corpus
) -> None:
    written(place, tiny_model, corpus)
    engine = Engine(tiny_model, corpus, index=place)
    other = Engine(tiny_model, Corpus.open(corpus.folder), index=place)
    count = len(corpus)
    assert len(shown(engine)) == count
    (added,) = engine.edit(add=[HERON])
    assert HERON.text in shown(engine)
    stork = "The stork is the bird of the town."
    engine.edit(replace={added: replace(HERON, text=stork), 0: Article("town", "A town.", "town.txt")})
    for one in (engine, other):
        assert {stork, "A town."} <= set(shown(one))
        assert HERON.text not in shown(one)
    vector = tiny_model.embed_passages([stork], ["heron"])
    assert torch.allclose(engine.index.vectors(torch.tensor([added])), vector, atol=1e-2)
    engine.edit(remove=[added, 1])
    for one in (engine, other):
        assert stork not in shown(one)
        assert len(shown(one)) == count - 1
    assert place.open().state().corpus_edits == engine.corpus.edits == 3


def test_edits_made_without_an_engine_are_taken_up_when_it_opens(
    place: SharedPlace, tiny_model: Realm, corpus: Corpus
) -> None:
    written(place, tiny_model, corpus)
    corpus.edit(add=[HERON], remove=[2])
    assert HERON.text in shown(Engine(tiny_model, Corpus.open(corpus.folder), index=place))
    again = Engine(tiny_model, Corpus.open(corpus.folder), index=place)
    assert 2 not in again.index.ids.tolist()


def test_edits_that_are_no_more_are_told_from_others(
    place: SharedPlace, tiny_model: Realm, corpus: Corpus
) -> None:
    written(place, tiny_model, corpus)
    engine = Engine(tiny_model, corpus, index=place)
    engine.edit(add=[HERON])
    shutil.rmtree(corpus.folder / "edits" / "000001")
    other, _ = Corpus.open(corpus.folder).edit(add=[replace(HERON, text="The otter is the bird of no town.")])
    for now in (other, other.edit(remove=[3])[0]):
        with pytest.raises(Mismatch, match=r"holds edits that .* no longer has; write the vectors again"):
            Engine(tiny_model, now, index=place)
    written(place, tiny_model, Corpus.open(corpus.folder))
    assert HERON.text not in shown(Engine(tiny_model, Corpus.open(corpus.folder), index=place))


def test_a_store_of_an_older_release_is_taken_as_it_is(
    place: SharedPlace, tiny_model: Realm, corpus: Corpus
) -> None:
    state = written(place, tiny_model, corpus)
    assert State.of(state.to_json()) == state
    older = json.loads(state.to_json())
    del older["realmlm"]["corpus_state"]
    assert State.of(json.dumps(older)) == replace(state, corpus_state=None)


def test_a_passage_that_the_corpus_here_does_not_have_yet_is_not_found(
    place: SharedPlace, tiny_model: Realm, corpus: Corpus
) -> None:
    """Another process has written it at this moment."""
    state = written(place, tiny_model, corpus)
    engine = Engine(tiny_model, corpus, index=place)
    index = engine.index
    query_1D = index.vectors(torch.tensor([0]))
    later, (number,) = Corpus.open(corpus.folder).edit(add=[HERON])
    more = Batch([number], ["new"], ["New."], ["new.txt"], 100 * query_1D.numpy())
    place.open().edit(more, [], replace(state, corpus_edits=1, corpus_state=later.state))
    index.store.state()  # type: ignore[attr-defined]
    assert number not in index.search(query_1D, len(corpus)).ids_QK
    assert HERON.text in shown(engine)
    # an edit that is seen here later than in the store: what it removed is not found, the rest is
    place.open().edit(None, [0], replace(state, corpus_edits=2, corpus_state="later"))
    index.store.state()  # type: ignore[attr-defined]
    for _ in range(2):
        found = [hit.id for hit in engine.search("town", len(corpus) - 1)]
        assert found
        assert 0 not in found


def test_a_table_written_anew_is_opened_again(place: SharedPlace, tiny_model: Realm, corpus: Corpus) -> None:
    written(place, tiny_model, corpus)
    engine = Engine(tiny_model, corpus, index=place)
    corpus, _ = corpus.edit(add=[HERON])
    written(place, tiny_model, corpus)
    assert HERON.text in shown(engine)


def replaced(place: SharedPlace, engine: Engine) -> None:
    """Let an engine see what is there now; a Lance dataset is a version that no one changes until it does."""
    if place.system == "lance":
        engine.index.store.state()  # type: ignore[attr-defined]


def test_a_table_replaced_by_anothers_is_refused_until_its_own_is_back(
    place: SharedPlace,
    tiny_model: Realm,
    corpus: Corpus,
    tmp_path: Path,
    world: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written(place, tiny_model, corpus)
    engine = Engine(tiny_model, corpus, index=place)
    before = engine.search("town", 5)
    other = copy.deepcopy(tiny_model)
    with torch.no_grad():
        other.document.projection.weight.mul_(-1.5)
    (tmp_path / "other.txt").write_text("Another corpus. It is short.")
    another = build_corpus(
        [tmp_path / "other.txt"], tmp_path / "other", tokenizer=str(world / "tokenizer.json"), workers=1
    )
    for model, of, complaint in (
        (other, corpus, "replaced by some made with other document weights"),
        (tiny_model, another, "replaced by some made of another corpus"),
    ):
        written(place, model, of)
        replaced(place, engine)
        for ask in (engine.search, engine.ask):
            with pytest.raises(Unavailable, match=complaint) as refused:
                ask("town")
            assert isinstance(refused.value, Mismatch)
            assert str(place) not in str(refused.value)
        assert capsys.readouterr().err.count(complaint) == 1
        written(place, tiny_model, corpus)
        replaced(place, engine)
        assert engine.search("town", 5) == before


def test_a_table_replaced_by_shorter_vectors_is_no_bad_filter(
    place: SharedPlace, tiny_model: Realm, corpus: Corpus
) -> None:
    state = written(place, tiny_model, corpus)
    engine = Engine(tiny_model, corpus, index=place)
    short_ND = torch.randn(4, 8)
    names = list("abcd")
    write_shared(
        place,
        iter([Batch(list(range(4)), names, names, names, short_ND.numpy())]),
        replace(state, weights="w", dim=8),
        queries_QD=torch.randn(2, 8),
        truth=ExactIndex(short_ND, torch.arange(4)),
    )
    replaced(place, engine)
    for ask in (lambda: engine.search("town"), lambda: engine.index.vectors(torch.tensor([0]))):
        with pytest.raises(Mismatch, match="other document weights"):
            ask()


def test_a_table_written_anew_without_edits_gets_them_again(
    place: SharedPlace, tiny_model: Realm, corpus: Corpus
) -> None:
    written(place, tiny_model, corpus)
    engine = Engine(tiny_model, corpus, index=place)
    before = Corpus.open(corpus.folder)
    engine.edit(add=[HERON], remove=[1])
    index = index_of(tiny_model, before).index
    state = replace(place.open().state(), corpus_edits=0, corpus_state=before.state)
    write_shared(  # by a release that did not look for them
        place, batches(before, before.ids, index), state, queries_QD=torch.randn(2, index.dim), truth=index
    )
    replaced(place, engine)
    assert HERON.text in shown(engine)
    assert place.open().state().corpus_edits == 1


def test_an_edit_made_while_a_table_is_written_is_in_it(
    place: SharedPlace, tiny_model: Realm, corpus: Corpus
) -> None:
    written(place, tiny_model, corpus)
    engine = Engine(tiny_model, corpus, index=place)

    def edit() -> None:
        engine.corpus.edit(add=[HERON], remove=[1])
        if place.system == "postgres":  # the others hold a lock meanwhile
            assert HERON.text in shown(engine)

    state = written(place, tiny_model, Corpus.open(corpus.folder), meanwhile=edit)
    assert place.open().state() == state
    assert state.corpus_edits == 1
    there = place.open()
    there.state()
    assert there.ids(()).tolist() == [number for number in range(len(corpus) + 1) if number != 1]
    assert HERON.text in shown(engine)


def test_a_service_writes_there_too(place: SharedPlace, tiny_model: Realm, corpus: Corpus) -> None:
    written(place, tiny_model, corpus)
    engine = Engine(tiny_model, corpus, index=place)
    other = Engine(tiny_model, Corpus.open(corpus.folder), index=place)
    with TestClient(create_app(engine)) as client:

        def read() -> set[str]:
            asked = client.post("/ask", json={"question": "which bird?", "read": len(corpus) + 1})
            return {evidence["passage"] for evidence in asked.json()["evidence"]}

        (added,) = client.post("/passages", json={"title": HERON.title, "text": HERON.text}).json()
        assert HERON.text in read()
        client.put(f"/passages/{added['id']}", json={"title": HERON.title, "text": "A stork."})
        assert "A stork." in read()
        assert "A stork." in shown(other)
        client.delete(f"/passages/{added['id']}")
        assert not {HERON.text, "A stork."} & read()


# --- filters ------------------------------------------------------------------------------------------------


def test_only_passages_that_fulfil_the_filter_are_found(
    place: SharedPlace, tiny_model: Realm, corpus: Corpus
) -> None:
    corpus, (number,) = corpus.edit(add=[Article('it\'s a "heron"', "Nothing but a heron.", "o'hara.txt")])
    written(place, tiny_model, corpus)

    def ids(*conditions: str, hybrid: float = 0.5) -> list[int]:
        only = replace(place, only=tuple(map(Condition.of, conditions)))
        engine = Engine(tiny_model, corpus, index=only, hybrid=hybrid)
        answered = read_ids(engine)
        assert sorted(found.id for found in engine.search("town", 10**6)) == sorted(answered)
        assert engine.index.ids.tolist() == sorted(answered)
        return sorted(answered)

    assert ids("source = o'hara.txt") == ids("title like it's%") == [number]
    assert ids("id < 3") == [0, 1, 2]
    assert ids("id <= 3", "id != 1", "id >=1", hybrid=0.0) == [2, 3]
    assert ids("source != o'hara.txt", "id>0") == corpus.ids.tolist()[1:-1]


def test_evaluate_measures_among_the_passages_that_are_found(
    place: SharedPlace, tiny_model: Realm, corpus: Corpus
) -> None:
    written(place, tiny_model, corpus)
    index = index_of(tiny_model, corpus, path=replace(place, only=(Condition.of("id < 4"),))).index
    answerer = Answerer(tiny_model, corpus, LearnedRetriever.settled(tiny_model, index))
    asked = [Question("which bird?", ("heron",))]
    (outcome,) = measure(answerer, asked, read=4, recall="dpr")
    assert outcome.answer is not None
    assert len(outcome.found) == 4
    with pytest.raises(NotEnough, match="cannot read 5 passages: 4 can be found; choose --read 4"):
        list(measure(answerer, asked, read=5, recall="dpr"))


def test_edits_are_filtered_too(place: SharedPlace, tiny_model: Realm, corpus: Corpus) -> None:
    written(place, tiny_model, corpus)
    only = replace(place, only=(Condition.of("id < 2"),))
    engine = Engine(tiny_model, corpus, index=only, hybrid=0.5)
    engine.edit(add=[HERON], replace={1: Article("town", "A town.", "town.txt")})
    assert sorted(read_ids(engine)) == [0, 1]
    assert engine.corpus[1].text == "A town."
    engine.edit(remove=[0])
    assert read_ids(engine) == [1]


def read_ids(engine: Engine) -> list[int]:
    """The passages that the next question is answered from, all that there are."""
    read = engine.ask("which bird?", read=10**6).evidence
    return [evidence.passage_id for evidence in read if evidence.passage_id is not None]


@pytest.mark.parametrize(
    "hostile",
    [
        "title = x'; DROP TABLE realmlm; --",
        "title = x' OR '1' = '1",
        "source like ' OR 1=1 --",
        "title = \\' OR 1=1 --",
        "title = $$; DELETE FROM realmlm",
    ],
)
def test_a_value_is_never_part_of_a_statement(
    place: SharedPlace, hostile: str, tiny_model: Realm, corpus: Corpus
) -> None:
    written(place, tiny_model, corpus)
    only = replace(place, only=(Condition.of(hostile),))
    with pytest.raises(NotEnough, match="fulfils the --filter"):
        open_shared(only, corpus, DocumentEncoder.of(tiny_model), follow=False)
    assert len(open_shared(place, corpus, DocumentEncoder.of(tiny_model), follow=False).index) == len(corpus)


def test_filters_that_cannot_be_are_refused(place: SharedPlace, tiny_model: Realm, corpus: Corpus) -> None:
    written(place, tiny_model, corpus)
    for text, complaint in (
        ("colour = red", "no 'colour' to filter by; choose from: id, title, text, source|choose from: "),
        ("id < many", "number|invalid input syntax|invalid literal"),
    ):
        only = replace(place, only=(Condition.of(text),))
        with pytest.raises((RealmError, ValueError), match=complaint):
            open_shared(only, corpus, DocumentEncoder.of(tiny_model), follow=False)
    for text in ("", "title", "title; DROP TABLE x", '"title" = 1', "a b = c", "titlelike x"):
        with pytest.raises(BadInput, match="cannot read the filter"):
            Condition.of(text)
    with pytest.raises(BadInput, match="--filter is for an index in another system"):
        Ask(question="?", corpus=Path("c"), filter=("id = 1",))


# --- what is refused ----------------------------------------------------------------------------------------


def test_another_towers_and_another_corpus_vectors_are_refused(
    place: SharedPlace, tiny_model: Realm, corpus: Corpus, world: Path, tmp_path: Path
) -> None:
    encode = DocumentEncoder.of(tiny_model)
    with pytest.raises(ArtefactMissing, match="export vectors"):
        open_shared(place, corpus, encode, follow=False)
    written(place, tiny_model, corpus)
    text = [tmp_path / "other.txt"]
    text[0].write_text("Another corpus.")
    other = build_corpus(text, tmp_path / "other", tokenizer=str(world / "tokenizer.json"), workers=1)
    with pytest.raises(Mismatch, match="of another corpus"):
        open_shared(place, other, encode, follow=False)
    with torch.no_grad():
        tiny_model.document.projection.weight.mul_(1.5)
    with pytest.raises(Mismatch, match="with other document weights"):
        open_shared(place, corpus, DocumentEncoder.of(tiny_model), follow=False)


def test_what_is_cut_off_leaves_the_former_state(
    place: SharedPlace, tiny_model: Realm, corpus: Corpus
) -> None:
    before = written(place, tiny_model, corpus)
    index = index_of(tiny_model, corpus).index

    def cut_off() -> Iterator[Batch]:
        yield next(batches(corpus, corpus.ids[:3], index))
        raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, OSError, RuntimeError)), place.open().write(cut_off(), before):
        raise AssertionError("all of it was written")
    with pytest.raises(KeyboardInterrupt), place.open().write(batches(corpus, corpus.ids[:3], index), before):
        raise KeyboardInterrupt  # while it is measured
    encode = DocumentEncoder.of(tiny_model)
    assert open_shared(place, corpus, encode, follow=False).index.search(
        torch.randn(1, index.dim), len(corpus)
    )
    written(place, tiny_model, corpus)
    store = place.open()
    assert store.state() == before
    assert store.ids(()).tolist() == corpus.ids.tolist()


@pytest.mark.scale
def test_versions_of_a_dataset_that_are_not_ours_are_passed_over(
    tiny_model: Realm, corpus: Corpus, tmp_path: Path
) -> None:
    """As an edit leaves them that was cut off, or an export of another model."""
    lance = pytest.importorskip("lance")
    place = SharedPlace("lance", str(tmp_path / "v.lance"))
    written(place, tiny_model, corpus)
    lance.dataset(place.address).delete("id >= 0")
    engine = Engine(tiny_model, corpus, index=place)
    assert len(shown(engine)) == len(corpus)
    engine.edit(add=[HERON], remove=[0])
    assert len(shown(engine)) == len(corpus)
    assert lance.dataset(place.address).count_rows() == len(corpus)


def test_a_password_is_never_shown() -> None:
    for address in (
        "postgresql://me:secret@host/db",
        "host=h password=secret dbname=d",
        "host=h password='secret word' dbname=d",
        "postgresql://host/db?user=me&password=secret#table",
    ):
        place = index_place(f"postgres:{address}")
        assert "secret" not in str(place)
        assert "secret" not in repr(place)
        assert str(place).startswith("postgres:")


@pytest.mark.scale
def test_a_dataset_of_someone_else_is_not_replaced(
    tmp_path: Path, dsn: str, tiny_model: Realm, corpus: Corpus
) -> None:
    lance = pytest.importorskip("lance")
    arrow = pytest.importorskip("pyarrow")
    psycopg = pytest.importorskip("psycopg")
    lance.write_dataset(arrow.table({"theirs": [1]}), tmp_path / "theirs.lance")
    (tmp_path / "folder").mkdir()
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE theirs (id int)")
    for place in (
        SharedPlace("lance", str(tmp_path / "theirs.lance")),
        SharedPlace("lance", str(tmp_path / "folder")),
        SharedPlace("postgres", f"{dsn}#theirs"),
    ):
        with pytest.raises(ArtefactExists, match="name another"):
            written(place, tiny_model, corpus)
    with pytest.raises(BadInput, match="no address of a PostgreSQL database"):
        SharedPlace("postgres", "postgresql//x").open()


@pytest.mark.scale
def test_a_connection_that_was_cut_off_is_made_anew(dsn: str, tiny_model: Realm, corpus: Corpus) -> None:
    psycopg = pytest.importorskip("psycopg")
    place = SharedPlace("postgres", f"{dsn}#cut_off")
    written(place, tiny_model, corpus)
    engine = Engine(tiny_model, corpus, index=place)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND datname = current_database()"
        )
    assert len(engine.search("town", 3)) == 3


@pytest.mark.scale
def test_a_database_that_cannot_be_reached_is_told_from_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    """Those who ask are not told where it is; who runs it is, once."""
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        for port in (1, silent.getsockname()[1]):
            address = f"postgresql://me:secret@127.0.0.1:{port}/notes?connect_timeout=2"
            store = SharedPlace("postgres", address).open()
            began = time.monotonic()
            for _ in range(2):
                with pytest.raises(Unavailable, match="cannot be reached; try again later") as refused:
                    store.state()
                assert not re.search("127|secret|notes", str(refused.value))
            assert time.monotonic() - began < 10
            said = capsys.readouterr().err
            assert said.count("postgres:127.0.0.1/notes#realmlm cannot be reached: ") == 1
            assert "secret" not in said


@pytest.mark.scale
def test_connections_have_limits_unless_the_address_states_others(dsn: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    separator = "&" if "?" in dsn else "?"
    for address, seconds, idle in ((dsn, "5", "10"), (f"{dsn}{separator}connect_timeout=9", "9", "10")):
        store = SharedPlace("postgres", address).open()
        made = store._connection().info.get_parameters()  # type: ignore[attr-defined]
        assert (made["connect_timeout"], made["keepalives_idle"]) == (seconds, idle)
    assert psycopg


@pytest.mark.scale
def test_a_server_that_has_stopped_is_not_waited_for(
    dsn: str, tiny_model: Realm, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine answers, so that neither keepalives nor its own limit for statements end the wait."""
    pytest.importorskip("psycopg")
    place = SharedPlace("postgres", f"{dsn}#stopped")
    written(place, tiny_model, corpus)
    engine = Engine(tiny_model, corpus, index=place)
    monkeypatch.setattr("realmlm.index.postgres.SEARCH_S", 0.2)
    connection = engine.index.store._connection()  # type: ignore[attr-defined]
    pid = connection.execute("SELECT pg_backend_pid()").fetchone()[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(Unavailable, match="does not answer; try again later"):
            engine.search("town")
        assert time.monotonic() - began < 15
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(engine.search("town", 3)) == 3


@pytest.mark.scale
def test_a_statement_that_takes_too_long_is_given_up(
    dsn: str, tiny_model: Realm, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg")
    place = SharedPlace("postgres", f"{dsn}#too_long")
    written(place, tiny_model, corpus)
    engine = Engine(tiny_model, corpus, index=place)
    monkeypatch.setattr("realmlm.index.postgres.SEARCH_S", 0.2)
    with psycopg.connect(dsn) as other:
        other.execute("LOCK TABLE too_long")
        with pytest.raises(Unavailable, match="does not answer; try again later"):
            engine.search("town")
    assert len(engine.search("town", 3)) == 3
    with psycopg.connect(dsn) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtext('too_long'))")
        engine.edit(add=[HERON])  # the corpus has it; the table follows when it can
        assert not engine.up_to_date
    assert HERON.text in shown(engine)
    written(place, tiny_model, engine.corpus)  # an index may take its time


# --- the commands -------------------------------------------------------------------------------------------


def test_vectors_go_into_a_parquet_file(
    tiny_model_folder: Path, corpus: Corpus, tmp_path: Path, capsys: Any
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "out" / "vectors.parquet"
    command = ["export", "vectors", "--corpus", str(corpus.folder), "--model", str(tiny_model_folder)]
    corpus, _ = corpus.edit(remove=[1])
    main([*command, "--to", "parquet", str(file)])
    assert f"{len(corpus)} passages, 32 numbers each" in capsys.readouterr().err
    table = parquet.read_table(file)
    assert table.column_names == ["id", "title", "text", "source", "vector"]
    assert table["id"].to_pylist() == corpus.ids.tolist()
    passage = corpus[2]
    assert [table[name][1].as_py() for name in ("title", "text", "source")] == [
        passage.title,
        passage.text,
        passage.file,
    ]
    index = index_of(Realm.from_pretrained(tiny_model_folder), corpus).index
    vectors = np.array(table["vector"].to_pylist(), dtype=np.float32)
    assert np.array_equal(vectors, index.vectors(index.ids).numpy())
    assert State.of(table.schema.metadata[b"realmlm"]) is not None
    assert [path.name for path in file.parent.iterdir()] == ["vectors.parquet"]
    with pytest.raises(SystemExit):
        main([*command, "--to", "parquet", str(file)])
    assert "exists" in capsys.readouterr().err


@pytest.mark.scale
@pytest.mark.parametrize("system", ["lance", "postgres"])
def test_commands_export_ask_edit_and_evaluate(
    system: str, dsn: str, tiny_model_folder: Path, corpus: Corpus, world: Path, tmp_path: Path, capsys: Any
) -> None:
    address = str(tmp_path / "v.lance") if system == "lance" else f"{dsn}#commands"
    pytest.importorskip("lance")
    model = ["--corpus", str(corpus.folder), "--model", str(tiny_model_folder)]
    index = ["--index", f"{system}:{address}"]
    main(["export", "vectors", *model, "--to", system, address])
    assert "recall against exact search 1.000, the worse of 1 and 8 hits" in capsys.readouterr().err
    (tmp_path / "heron.txt").write_text("The heron is the bird of the town.")
    main(["edit", str(corpus.folder), "--add", str(tmp_path / "heron.txt")])
    main(["ask", "which bird?", *model, *index, "--json", "--filter", "source like %heron.txt"])
    answer = json.loads(capsys.readouterr().out)
    assert [evidence["title"] for evidence in answer["evidence"]] == ["heron"]
    questions = [
        "--questions",
        str(world / "questions-held-out.jsonl"),
        "--limit",
        "20",
        "--read",
        "3",
        "--json",
    ]
    main(["evaluate", *model, *questions, *index])
    there = json.loads(capsys.readouterr().out)
    main(["evaluate", *model, *questions])
    here = json.loads(capsys.readouterr().out)
    timed = ("seconds", "index")
    assert {name: there[name] for name in there if name not in timed} == {
        name: here[name] for name in here if name not in timed
    }


@pytest.mark.scale
@pytest.mark.parametrize("system", ["lance", "postgres"])
def test_what_a_table_holds_already_is_not_written_again(
    system: str,
    dsn: str,
    tiny_model: Realm,
    tiny_model_folder: Path,
    corpus: Corpus,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As each `docker compose up` asks for it."""
    psycopg = pytest.importorskip("psycopg")
    pytest.importorskip("lance")
    address = str(tmp_path / "v.lance") if system == "lance" else f"{dsn}#again"
    place = SharedPlace(system, address)
    embedded: list[int] = []
    embed = DocumentEncoder.__call__

    def noted(self: DocumentEncoder, corpus: Corpus, ids_N: np.ndarray) -> torch.Tensor:
        embedded.extend(ids_N.tolist())
        return embed(self, corpus, ids_N)

    monkeypatch.setattr(DocumentEncoder, "__call__", noted)

    def export(*options: str) -> str:
        embedded.clear()
        capsys.readouterr()
        made = ["--corpus", str(corpus.folder), "--model", str(tiny_model_folder), *options]
        main(["export", "vectors", *made, "--to", system, address])
        return capsys.readouterr().err

    def theirs() -> list[str]:
        query = "SELECT count(*) FROM again WHERE theirs = 7"
        with psycopg.connect(dsn, autocommit=True) as connection:
            return [str(connection.execute(query).fetchone()[0])] if system == "postgres" else []

    assert "recall against exact search" in export()
    assert len(embedded) == len(corpus)
    if system == "postgres":
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("ALTER TABLE again ADD theirs int DEFAULT 7")
    shutil.rmtree(corpus.folder / "index")
    assert f"{len(corpus)} passages are there already, 0 edits taken up" in export()
    _, (number,) = Corpus.open(corpus.folder).edit(add=[HERON], remove=[0])
    assert f"{len(corpus)} passages are there already, 1 edit taken up" in export()
    assert embedded == [number]
    assert theirs() == ([str(len(corpus))] if system == "postgres" else [])
    state = place.open().state()
    assert "are there already" not in export("--anew")
    assert replace(state, effort=0, recall=1) == replace(place.open().state(), effort=0, recall=1)
    shutil.rmtree(corpus.folder / "edits")
    shutil.rmtree(corpus.folder / "index")
    assert "are there already" not in export()
    assert place.open().state().corpus_edits == 0


# --- the promise --------------------------------------------------------------------------------------------


@pytest.mark.scale
@pytest.mark.timeout(1200)
def test_the_pocket_questions_are_answered_as_by_the_exact_index(dsn: str, tmp_path: Path) -> None:
    """By the commands, in processes of their own: the bundled model as it is used."""
    pytest.importorskip("lance")
    mini = str(POCKET.parent / "mini")
    source = [POCKET / "encyclopedia.jsonl"]
    corpus = build_corpus(source, tmp_path / "corpus", tokenizer=mini, max_wordpieces=128, workers=1)

    asked = tmp_path / "asked.jsonl"  # the first hundred
    lines = (POCKET / "questions.jsonl").read_text("utf-8").splitlines(keepends=True)
    asked.write_text("".join(lines[:100]), "utf-8")

    def run(*words: str) -> str:
        given = [sys.executable, "-m", "realmlm", *words, "--corpus", str(corpus.folder)]
        return subprocess.run(given, capture_output=True, text=True, check=True).stderr

    def answers(*index: str) -> list[str]:
        file = tmp_path / f"{len(list(tmp_path.glob('*.jsonl')))}.jsonl"
        run("evaluate", "--questions", str(asked), "--predictions", str(file), *index)
        return [json.loads(line)["answer"] for line in file.read_text("utf-8").splitlines()]

    exact = answers()
    assert len(exact) == 100
    for system, address in (("lance", str(tmp_path / "v.lance")), ("postgres", f"{dsn}#pocket")):
        said = run("export", "vectors", "--to", system, address)
        same = sum(
            one == other for one, other in zip(answers("--index", f"{system}:{address}"), exact, strict=True)
        )
        print(f"{system}: {same} of 100 answers; {said.splitlines()[-1]}")
        assert same >= 98
