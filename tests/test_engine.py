"""The engine: what is answered together is answered as it would be alone; edits are kept, and cost no more
the more there are."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.errors import BadInput, RealmError
from realmlm.index import build
from realmlm.model import encoders, inputs
from realmlm.model.inputs import Inputs
from realmlm.reading.answer import Answer, Answerer
from realmlm.reading.retrieve import LearnedRetriever
from realmlm.sources.article import Article
from realmlm.storage import arrays, artefacts
from tests.storage.test_artefacts import checksum


def same(one: Answer, other: Answer) -> bool:
    def places(answer: Answer) -> list[tuple[int | None, int | None, int | None]]:
        return [(evidence.passage_id, evidence.start, evidence.end) for evidence in answer.evidence]

    def numbers(answer: Answer) -> list[float]:
        return [
            answer.probability,
            *(p for item in answer.evidence for p in (item.retrieval_probability, item.reading_probability)),
        ]

    return (
        one.answer == other.answer
        and places(one) == places(other)
        and numbers(one) == pytest.approx(numbers(other), abs=1e-5)
    )


def test_threads_wait_in_python_as_in_the_commands() -> None:
    """OpenMP itself says how, when torch loads it; what the user chose stays."""
    load = [sys.executable, "-c", "import realmlm; realmlm.Realm"]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for chosen, policy in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "ACTIVE")):
        said = subprocess.run(
            load, env=environment | chosen | {"OMP_DISPLAY_ENV": "true"}, capture_output=True, text=True
        )
        assert said.returncode == 0, said.stderr
        assert f"OMP_WAIT_POLICY = '{policy}'" in said.stderr


@pytest.mark.parametrize("reading", ["paper", "released"])
def test_together_as_alone(
    tiny_model_folder: Path, knowledge: Corpus, world: Path, monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    engine = Engine(tiny_model_folder, knowledge.folder, device="cpu")
    engine.model.config = replace(engine.model.config, reading=reading)  # type: ignore[arg-type]
    questions = [question.text for question in read_questions(world / "questions-held-out.jsonl")][:7]
    questions[3] += " and who was it that asked for this, and when, and why?"
    monkeypatch.setattr(inputs, "AT_ONCE", 10**9)
    monkeypatch.setattr(encoders, "SCORED_AT_ONCE", 10**9)
    alone = [engine.ask(question, read=4) for question in questions]
    read: list[int] = []
    encode = engine.model.reader.encoder.forward

    def noted(alike: Inputs) -> Tensor:
        read.append(len(alike))
        return encode(alike)

    monkeypatch.setattr(engine.model.reader.encoder, "forward", noted)
    for at_once, groups in (
        (1, range(28, 29)),
        (200, range(3, 28)),
        (10**9, range(1, 2)),
    ):  # pair by pair, in several groups, all
        monkeypatch.setattr(inputs, "AT_ONCE", at_once)
        monkeypatch.setattr(encoders, "SCORED_AT_ONCE", at_once)
        read.clear()
        assert all(map(same, engine.ask(questions, read=4), alone))
        assert (len(read) in groups, sum(read)) == (True, 28)
    monkeypatch.setattr(Inputs, "on_gpu", True)  # as a GPU groups them, where they are many
    monkeypatch.setattr(inputs, "GROUPED", 28)
    monkeypatch.setattr(inputs, "PADDING", 0.0)
    read.clear()
    assert all(map(same, engine.ask(questions, read=4), alone))
    assert read == [7] * 4


def test_what_cannot_be_asked_or_read_is_said_in_one_error(
    tiny_model_folder: Path,
    notes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    engine = Engine(tiny_model_folder, device="cpu")
    capsys.readouterr()
    for first in (
        lambda: engine.ask("Who?"),
        lambda: engine.fill("the [MASK]"),
        lambda: engine.find("heron"),
    ):
        with pytest.raises(BadInput, match="nothing has been read yet"):
            first()
    assert capsys.readouterr().err == ""
    engine.read([notes / "heron.txt", str(notes / "table.csv")], notes / "deep")
    assert len(engine.corpus) == 4
    for asked in (lambda: engine.ask(None), lambda: engine.fill(7)):  # type: ignore[call-overload]
        with pytest.raises(BadInput, match=r"must be text, not (None|7)"):
            asked()
    odd = "caf\udce9?"
    for ask in (engine.ask, engine.search, engine.fill, engine.embed, engine.ask_without_reading):
        with pytest.raises(BadInput, match=r"'caf\\+udce9\?' is not UTF-8 \(character 4\); type it again"):
            ask([odd])
    with pytest.raises(BadInput, match="'' names no folder or file with documents"):
        Engine(tiny_model_folder, device="cpu").read("")


def test_what_was_retrieved_stays_as_it_was(tiny_model_folder: Path, knowledge: Corpus) -> None:
    engine = Engine(tiny_model_folder, knowledge.folder, device="cpu")
    engine.model.config = replace(engine.model.config, reading="released")
    answerer = Answerer(engine.model, knowledge, LearnedRetriever.settled(engine.model, engine.index))
    queries = [answerer.query("Which bird is the symbol of the town?")]
    retrieved = answerer.retriever(queries, 4)
    assert all(map(same, answerer.read_spans(queries, retrieved), answerer.read_spans(queries, retrieved)))


@pytest.fixture
def editable(tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path) -> Engine:
    shutil.copytree(knowledge.folder, tmp_path / "corpus", ignore=shutil.ignore_patterns("index", "answers"))
    return Engine(tiny_model_folder, tmp_path / "corpus", device="cpu")


def edit(engine: Engine, number: int) -> None:
    """A new passage, a changed one, one less, one exchanged for another, in turn."""
    article = Article("Nerrow", f"The arms of Nerrow show a quince and the number {number}.")
    if number % 4 == 0:
        engine.edit(add=[article])
    elif number % 4 == 1:
        engine.edit(replace={int(engine.corpus.ids[number]): article})
    elif number % 4 == 2:
        engine.edit(remove=[int(engine.corpus.ids[-number])])
    else:
        engine.edit(add=[article], remove=[int(engine.corpus.ids[-1])])


def check_kept(engine: Engine, model: Path) -> None:
    """What is kept on disk is what is open here."""
    again = Engine(model, engine.corpus.folder, device="cpu")
    ids = engine.corpus.ids
    assert again.corpus.ids.tolist() == ids.tolist() == engine.index.ids.tolist() == again.index.ids.tolist()
    assert [again.corpus[number] for number in ids] == [engine.corpus[number] for number in ids]
    assert torch.equal(again.index.vectors(again.index.ids), engine.index.vectors(again.index.ids))
    assert same(again.ask("What do the arms of Nerrow show?"), engine.ask("What do the arms of Nerrow show?"))


def test_an_edit_reads_as_much_after_many_as_at_first(
    editable: Engine, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[Path] = []

    def noted(look: Callable[..., Any]) -> Callable[..., Any]:
        def looked(file: Path, *how: Any, **named: Any) -> Any:
            looked_at.append(file)
            return look(file, *how, **named)

        return looked

    # manifests are read as text
    for owner, name in ((artefacts, "sha256_of"), (Path, "read_text"), (arrays, "map_arrays")):
        monkeypatch.setattr(owner, name, noted(getattr(owner, name)))
    read = []
    held = []
    for number in range(36):
        looked_at.clear()
        edit(editable, number)
        read.append(len(looked_at))
        held.append(len(list(Path("/proc/self/fd").glob("*"))))  # nothing where there is no such folder
    assert read[32:] == read[4:8]
    assert held[32:] == held[4:8]
    check_kept(editable, tiny_model_folder)


def test_an_index_that_others_changed_or_removed_is_opened_or_made_again(
    editable: Engine, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Corpus.edit

    def others_too(corpus: Corpus, **options: Any) -> tuple[Corpus, list[int]]:
        """Another process opens the edited corpus first, and takes the edit up into the index."""
        edited, added = write(corpus, **options)
        Engine(tiny_model_folder, corpus.folder, device="cpu")
        return edited, added

    edit(editable, 0)
    with monkeypatch.context() as patched:
        patched.setattr(Corpus, "edit", others_too)
        for number in range(1, 4):
            edit(editable, number)
    check_kept(editable, tiny_model_folder)
    shutil.rmtree(editable.corpus.folder / "index")
    edit(editable, 4)
    check_kept(editable, tiny_model_folder)


QUINCE = Article("Nerrow", "The arms of Nerrow show a quince.")


def test_what_others_edit_is_known_to_the_next_answer(
    editable: Engine, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, (number,) = Corpus.open(editable.corpus.folder).edit(add=[QUINCE], remove=[0])
    editable.ask("What do the arms of Nerrow show?")
    assert (number in editable.corpus, 0 in editable.corpus) == (True, False)
    check_kept(editable, tiny_model_folder)
    others.edit(remove=[number])
    editable.fill("The arms of Nerrow show a [MASK].")
    assert number not in editable.corpus
    embedded: list[int] = []
    embed = build.embed_passages

    def noted(corpus: Corpus, ids: np.ndarray, *rest: Any, **options: Any) -> Tensor:
        embedded.extend(ids)
        return embed(corpus, ids, *rest, **options)

    monkeypatch.setattr(build, "embed_passages", noted)
    _, (theirs,) = Corpus.open(editable.corpus.folder).edit(add=[QUINCE])
    (ours,) = editable.edit(add=[QUINCE])
    assert (theirs, ours, embedded) == (number + 1, number + 2, [number + 1, number + 2])
    check_kept(editable, tiny_model_folder)


def test_a_question_looks_once_whether_others_edited(
    editable: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        edit(editable, number)
    looks: list[Path] = []
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: looks.append(path) or exists(path))  # type: ignore[func-returns-value]
    monkeypatch.setattr(artefacts.os, "listdir", lambda path: pytest.fail(f"{path} is listed"))
    editable.ask("What do the arms of Nerrow show?")
    assert [path.name for path in looks] == ["000006"]


def test_an_edit_that_could_not_be_taken_up_is_taken_up_later(
    editable: Engine, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(build, "embed_passages", lambda *_, **options: pytest.fail("no memory left"))
        with pytest.raises(pytest.fail.Exception):
            editable.edit(add=[QUINCE])
    assert editable.corpus.ids.tolist() == editable.index.ids.tolist()
    before = len(editable.corpus)
    edit(editable, 0)
    assert len(editable.corpus) == before + 2
    check_kept(editable, tiny_model_folder)


@pytest.mark.parametrize("how", ["altered", "cut off", "without a manifest", "of another corpus"])
def test_a_damaged_edit_of_others_is_said_once_and_the_former_state_answers(
    editable: Engine, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    before = len(editable.corpus)
    question = "What do the arms of Nerrow show?"
    answer = editable.ask(question)
    Corpus.open(editable.corpus.folder).edit(add=[QUINCE])
    place = artefacts.edit_place(editable.corpus.folder, 1)
    shutil.copytree(place, place.parent / "whole")
    file = place / (
        "manifest.json" if how in ("without a manifest", "of another corpus") else "edit.safetensors"
    )
    data = file.read_bytes()
    if how == "without a manifest":
        file.unlink()
    elif how == "of another corpus":
        record = json.loads(data)
        record.pop("checksum")
        record["parents"]["corpus"] = "another"
        file.write_text(json.dumps(record | {"checksum": checksum(record)}))
    else:
        file.write_bytes(data[:-1] + b"\x55" if how == "altered" else data[:-1])
    capsys.readouterr()
    for _ in range(3):
        assert same(editable.ask(question), answer)
        assert editable.fill("The arms of Nerrow show a [MASK].").evidence
        assert len(editable.find("", limit=before + 5)) == before
    said = capsys.readouterr().err
    assert said.count("\n") == said.count("could not be loaded, answers come from what was there before") == 1
    assert str(place) in said
    with pytest.raises(RealmError, match="000001"):  # but nothing can be put on top of it
        editable.edit(add=[QUINCE])
    shutil.rmtree(place)
    (place.parent / "whole").rename(place)
    editable.ask(question)
    assert len(editable.corpus) == before + 1
    check_kept(editable, tiny_model_folder)
    assert capsys.readouterr().err == ""
