"""Adapting to a folder of documents: measured on what was held out, kept only if better."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from realmlm.cli import main
from realmlm.corpus.questions import Question, read_questions
from realmlm.corpus.store import Corpus
from realmlm.errors import ArtefactExists, BadInput, NotEnough
from realmlm.evaluation.scores import Outcome
from realmlm.model.realm import Realm
from realmlm.settings import Adapt
from realmlm.train import adapt as adapting
from realmlm.train.adapt import Verdict
from tests.calls import run_adapt


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps and a handful of held-out sentences."""
    monkeypatch.setattr(adapting, "FEWEST", 3)
    monkeypatch.setattr(adapting, "MOST_HELD_OUT", 12)


@pytest.fixture
def settings(tiny_model_folder: Path, world: Path, tmp_path: Path) -> Adapt:
    return Adapt(
        docs=((world / "knowledge.jsonl",),),
        out=tmp_path / "adapted",
        model=tiny_model_folder,
        minutes=1e-6,
        device="cpu",
    )


def test_what_was_held_out_is_measured_before_and_after(
    settings: Adapt, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = run_adapt(settings)
    held_out = read_questions(settings.out / "held-out.jsonl")
    assert verdict.before.questions == verdict.after.questions == len(held_out) == 12
    assert verdict.low <= verdict.gain <= verdict.high
    assert verdict.kept == (settings.out / "model" / "manifest.json").exists()
    corpus = Corpus.open(settings.out / "corpus")
    for cloze in held_out:  # the hidden words stand in another passage
        assert any(
            cloze.answers[0] in corpus[number].text
            for number in corpus.ids.tolist()
            if number != cloze.source
        )
    assert "mean reciprocal rank" in verdict.table()
    assert "retrieval utility, nats" in verdict.table()
    assert "recall@5" in verdict.table()
    kept = json.loads((settings.out / "verdict.json").read_text("utf-8"))
    assert (kept["held_out"], kept["gain"], kept["kept"]) == (12, verdict.gain, verdict.kept)
    assert kept["measures"]["recall@5"]["after"]["value"] == verdict.after.recall[5].value
    main(["report", str(settings.out), "--out", str(settings.out / "report.html")])
    page = (settings.out / "report.html").read_text("utf-8")
    assert "<title>adapted</title>" in page
    assert "12 held out, before and after" in page
    first, then = (round(report.recall[1].value * 12 / 100) for report in (verdict.before, verdict.after))
    expected = (
        f"Of 12 held-out sentences, a passage with the hidden words came first for {first} before and {then} "
        "after."
    )
    assert verdict.table().startswith(expected)
    assert "sentences of the documents with words hidden, not on questions" in verdict.table()
    assert "exact match of hidden words" in verdict.table()
    assert "exact match of hidden words" in page
    said = capsys.readouterr().err
    order = (
        "12 sentences with words hidden are held out and measured before and after training",
        "measuring took",
        "min of training",
    )
    places = [said.index(words) for words in order]
    assert places == sorted(places), "what will take time is said before it does"


@pytest.mark.parametrize("better", [True, False])
def test_it_is_kept_only_if_better(
    settings: Adapt, better: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = adapting.measure
    before: list[Outcome] = []

    def decided(*given: Any, **how: Any) -> list[Outcome]:
        """What comes of each, the second time better or the same."""
        if not before:
            before.extend(measure(*given, **how))
            return before
        return [replace(outcome, found=[True] * 50) if better else outcome for outcome in before]

    monkeypatch.setattr(adapting, "measure", decided)
    ((docs,),) = settings.docs
    main(
        [
            "adapt",
            "--docs",
            str(docs),
            "--out",
            str(settings.out),
            "--model",
            str(settings.model),
            "--minutes",
            "1e-6",
        ]
    )
    said = capsys.readouterr().err
    assert (settings.out / "model").exists() == better
    assert not (settings.out / "adapting" / "model").exists()
    assert ("better on these sentences, so it was kept" in said) == better
    assert "the model is in" not in said  # it does not stay there
    assert ("nothing was kept" in said) != better
    if better:
        main(["ask", "Which animal?", "--docs", str(docs), "--model", str(settings.out / "model")])


def test_sentences_of_one_passage_count_as_one(knowledge: Corpus) -> None:
    def outcomes(ranks: dict[int, list[int]]) -> list[Outcome]:
        return [
            Outcome(
                Question("a [MASK]", ("b",), source=source),
                None,
                False,
                None,
                None,
                None,
                [place == rank for place in range(5)],
                [],
            )
            for source, places in ranks.items()
            for rank in places
        ]

    before = outcomes({1: [4, 4, 4], 2: [1], 3: [1]})
    after = outcomes({1: [0, 0, 0], 2: [1], 3: [1]})
    assert adapting._compare(before, after, labelled=False).gain == pytest.approx((1 - 1 / 5) / 3)


def test_with_questions_it_learns_to_answer_them(
    settings: Adapt, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = run_adapt(replace(settings, questions=(world / "questions-train.jsonl",)))
    assert "the model is in" not in capsys.readouterr().err  # it does not stay there
    asked, learned, held_out = (
        {question.text for question in read_questions(file)}
        for file in (
            world / "questions-train.jsonl",
            settings.out / "questions.jsonl",
            settings.out / "held-out.jsonl",
        )
    )
    assert learned | held_out == asked
    assert verdict.before.questions * 5 <= len(read_questions(world / "questions-train.jsonl"))
    assert "answered exactly" in verdict.table()
    assert "hidden" not in verdict.table()


def test_documents_that_repeat_the_same_sentences_are_refused_before_anything_is_measured(
    settings: Adapt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "The ferry of Almeth crosses the sound at noon and carries wool."
    rows = [
        {"title": f"Note {number}", "text": f"{said} It was note {1000 + number}."} for number in range(40)
    ]
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(adapting, "measure", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(
        NotEnough,
        match="nothing is left to learn from once the held-out passages and their copies are left out",
    ):
        run_adapt(replace(settings, docs=((tmp_path / "notes.jsonl",),)))
    assert not settings.out.exists()


def test_too_little_text_is_said_to_be_too_little(
    settings: Adapt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapting, "FEWEST", 20)
    (tmp_path / "note.txt").write_text("A heron stands by the river.")
    with pytest.raises(NotEnough, match=r"with 100 or more questions of your own \(--questions\)"):
        run_adapt(replace(settings, docs=((tmp_path / "note.txt",),)))
    (tmp_path / "few.jsonl").write_text(json.dumps({"question": "Which bird?", "answer": ["heron"]}))
    with pytest.raises(NotEnough, match="too few"):
        run_adapt(replace(settings, out=tmp_path / "other", questions=(tmp_path / "few.jsonl",)))


def test_what_is_there_is_not_overwritten_and_patterns_are_refused(settings: Adapt, tmp_path: Path) -> None:
    (tmp_path / "trec.tsv").write_text("1\tx\tWhich bird?\theron|stork\n" * 30)
    with pytest.raises(BadInput, match="patterns"):
        run_adapt(replace(settings, questions=(tmp_path / "trec.tsv",)))
    settings.out.mkdir(exist_ok=True)
    with pytest.raises(ArtefactExists):
        run_adapt(settings)


def test_only_the_query_projection_moves_and_the_calibration_stays(
    settings: Adapt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Verdict, "kept", True)
    model = Realm.from_pretrained(settings.model)
    model.config = replace(model.config, calibration={"bias": -1.0, "p_weight": 1.0, "relevance_weight": 0.5})
    model.save_pretrained(tmp_path / "calibrated")
    run_adapt(replace(settings, model=tmp_path / "calibrated"))
    assert Realm.from_pretrained(settings.out / "model").config.calibration == model.config.calibration
    before = Realm.from_pretrained(settings.model)
    after = Realm.from_pretrained(settings.out / "model")
    state = before.state_dict()
    moved = {name for name, weight in after.state_dict().items() if not torch.equal(weight, state[name])}
    assert moved
    assert all(name.startswith(("query.projection.", "query.norm.")) for name in moved)


def test_nothing_is_left_of_what_was_refused_or_stopped(
    settings: Adapt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput):
        run_adapt(replace(settings, docs=((tmp_path / "empty",),)))

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(adapting, "fit", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_adapt(settings)
    assert not settings.out.exists()


def test_several_places_are_read_once_however_they_are_named(
    settings: Adapt, world: Path, tmp_path: Path
) -> None:
    lines = (world / "knowledge.jsonl").read_text("utf-8").splitlines()
    notes = tmp_path / "notes"
    notes.mkdir()
    half = len(lines) // 2
    for name, some in (("notes/first.jsonl", lines[:half]), ("second.jsonl", lines[half:])):
        (tmp_path / name).write_text("\n".join(some), "utf-8")
    run_adapt(settings)
    places = [str(tmp_path / name) for name in ("second.jsonl", "notes", "notes/first.jsonl")]
    same = ["--model", str(settings.model), "--minutes", "1e-6", "--device", "cpu"]
    for name, named in (
        ("a", ["--docs", *places]),
        ("b", [part for place in places for part in ("--docs", place)]),
    ):
        main(["adapt", *named, "--out", str(tmp_path / name), *same])
    whole, together, apart = (
        Corpus.open(folder / "corpus") for folder in (settings.out, tmp_path / "a", tmp_path / "b")
    )
    assert len(whole) == len(together)
    assert together.fingerprint == apart.fingerprint
    for docs in ((), ((tmp_path / "second.jsonl", tmp_path / "nowhere"),)):
        with pytest.raises(BadInput, match=r"--docs FOLDER|nowhere does not exist"):
            run_adapt(replace(settings, out=tmp_path / "c", docs=docs))


def test_a_question_asked_twice_is_not_on_both_sides(settings: Adapt, world: Path) -> None:
    file = world / "questions-train.jsonl"
    run_adapt(replace(settings, questions=(file, file)))
    learned, held_out = (
        {question.text for question in read_questions(settings.out / name)}
        for name in ("questions.jsonl", "held-out.jsonl")
    )
    assert not learned & held_out
