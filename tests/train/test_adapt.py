"""Adapting to a folder of documents: measured on what was held out, kept only if better."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from realmlm.cli import main
from realmlm.corpus.questions import Question, read_questions
from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.errors import ArtefactExists, BadInput, NotEnough
from realmlm.evaluation.scores import Outcome
from realmlm.log import read_metrics
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.reading.records import Answer
from realmlm.settings import Adapt
from realmlm.train import adapt as adapting
from realmlm.train.budget import Speeds, UntilTime, make_plan
from realmlm.train.callbacks import Enough
from realmlm.train.verdict import Answers, Verdict, compare
from tests.calls import run_adapt


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At least three steps, and a handful of held-out sentences."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(adapting, "FEWEST", 3)
    monkeypatch.setattr(adapting, "EPOCHS", 1)
    monkeypatch.setattr(adapting, "MOST_HELD_OUT", 12)


@pytest.fixture
def settings(tiny_model_folder: Path, world: Path, tmp_path: Path) -> Adapt:
    return Adapt(
        docs=((world / "knowledge.jsonl",),),
        out=tmp_path / "adapted",
        model=tiny_model_folder,
        minutes=1.0,
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
        "what it will take",
        "in all",
        "12 held-out sentences are measured before and after training",
        "evaluating",
        "examples, out of",
        "it took",
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
    asking = ["ask", "Which animal?", "--docs", str(docs), "--model", str(settings.out / "model")]
    if better:
        main(asking)
    else:
        with pytest.raises(SystemExit):
            main(asking)
        assert "kept no model; use the one that was adapted" in capsys.readouterr().err


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
    assert compare(before, after, labelled=False).gain == pytest.approx((1 - 1 / 5) / 3)


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


def test_one_that_comes_second_leaves_the_first_its_folder(
    settings: Adapt, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Realm.from_pretrained

    def second(*given: Any, **how: Any) -> Realm:
        monkeypatch.setattr(Realm, "from_pretrained", load)
        with pytest.raises(ArtefactExists):
            run_adapt(settings)
        assert settings.out.exists()
        return load(*given, **how)

    monkeypatch.setattr(Realm, "from_pretrained", second)
    run_adapt(settings)
    assert (settings.out / "verdict.json").exists()


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


# --- the time it takes --------------------------------------------------------------------------------------

SPEEDS = Speeds(passage=0.02, example=0.5, learned=0.0125)


def plan(**given: Any) -> Any:
    how: dict[str, Any] = {
        "spent_s": 10.0,
        "lacking": 1000,
        "measured": (20, 150),
        "learned": 16_000,
        "what": "sentence",
    }
    return make_plan(SPEEDS, **(how | given))


def test_the_minutes_are_divided_up_before_anything_begins() -> None:
    made = plan(minutes=4.0)
    assert made.embedding_s == 20
    left = 0.9 * 240 - 10 - 20
    assert made.measured == int(0.25 * left / 0.5)
    assert (made.steps, made.batch) == (int((left - 2 * made.measured * 0.5) / 0.4), 32)
    assert 0.9 * 240 - 0.4 <= made.seconds <= 0.9 * 240
    assert "longer than" not in made.table()
    assert [line.split("   ")[0].strip() for line in made.table().splitlines()[1:]] == [
        "reading the documents",
        "embedding",
        "measuring",
        "training",
        "measuring again",
        "in all",
    ]
    longer = plan(minutes=40.0)
    assert (longer.measured, longer.steps) == (150, 500)  # more would only repeat
    assert longer.seconds < 0.9 * 40 * 60


def test_what_cannot_fit_is_said_with_the_reason() -> None:
    made = plan(minutes=1.0, lacking=10_000)
    assert (made.measured, made.steps, made.batch) == (20, 5, 8)
    assert made.seconds == 10 + 200 + 2 * 10 + 5 * 8 * 0.0125
    assert "3 min 50 s   of 1 min 00 s (--minutes)" in made.table()
    last = made.table().splitlines()[-1]
    assert "embedded once, and kept for the next time" in last
    assert "no fewer than 20 sentences and 5 steps" in last
    known = plan(minutes=0.1, lacking=0).table()
    assert "all passages are embedded already" in known
    assert "embedded once" not in known


def test_training_ends_when_its_time_is_over_but_not_before_some_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("realmlm.train.budget.time.monotonic", lambda: 100.0)
    UntilTime(101.0).on_row({"step": 9})
    UntilTime(99.0).on_row({"step": 4})
    with pytest.raises(Enough):
        UntilTime(99.0).on_row({"step": 5})


def test_where_time_is_short_batches_are_smaller_before_steps_are_fewer() -> None:
    slow = replace(SPEEDS, learned=0.5)
    left = 90.0  # of which half is for measuring
    for share, expected in (
        (0.25, (20, 5, 8)),
        (1.0, (45, 11, 8)),
        (4.0, (150, 20, 21)),
        (10.0, (150, 46, 32)),
    ):
        made = make_plan(
            slow,
            minutes=share * left / 0.9 / 60,
            spent_s=0.0,
            lacking=0,
            measured=(20, 150),
            learned=16_000,
            what="sentence",
        )
        assert (made.measured, made.steps, made.batch) == expected


@pytest.mark.parametrize("labelled", [False, True])
def test_steps_that_turn_out_slow_are_not_all_made(
    settings: Adapt, world: Path, labelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapting, "_steps", lambda *_, **__: 40)  # as if there were time for them
    questions = (world / "questions-train.jsonl",) if labelled else ()
    run_adapt(replace(settings, minutes=1e-6, questions=questions))
    rows = read_metrics(settings.out / "adapting" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [2, 4, 6]  # a row every two steps, and five steps at least


def test_examples_that_turn_out_slow_are_not_all_measured(
    settings: Adapt, tiny_model_folder: Path, knowledge: Corpus
) -> None:
    pairs = [[Question(f"What is {n}?", ("x",), source=n), Question(f"Is {n}?", ("x",))] for n in range(9)]
    late, in_time = (
        adapting._measured(tiny_model_folder, knowledge, pairs, settings, until=until)
        for until in (-math.inf, math.inf)
    )
    assert [outcome.question for outcome in in_time] == [question for pair in pairs for question in pair]
    assert [outcome.question for outcome in late] == [question for pair in pairs[:3] for question in pair]


def test_what_is_embedded_is_kept_for_asking_and_for_the_next_time(
    settings: Adapt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    embedded: list[int] = []
    encode = DocumentEncoder.__call__

    def counting(encoder: DocumentEncoder, corpus: Corpus, ids_N: Any) -> Any:
        embedded.append(len(ids_N))
        return encode(encoder, corpus, ids_N)

    monkeypatch.setattr(DocumentEncoder, "__call__", counting)
    run_adapt(settings)
    assert sum(embedded) >= 300
    assert "300 passages" in capsys.readouterr().err.split("  embedding ")[1]
    embedded.clear()
    ((docs,),) = settings.docs
    Engine(settings.model, docs=docs, device="cpu").ask("Which animal?")
    assert embedded == []
    run_adapt(replace(settings, out=settings.out.parent / "again"))
    assert sum(embedded) <= 100  # those whose speed was measured
    assert "all passages are embedded already" in capsys.readouterr().err


def test_where_nothing_can_be_cached_passages_are_embedded_beside_the_corpus(
    settings: Adapt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwritable(*_: Any, **__: Any) -> Any:
        raise BadInput("the cache cannot be written")

    monkeypatch.setattr(adapting, "open_documents", unwritable)
    assert run_adapt(settings).before.questions == 12


# --- answers ------------------------------------------------------------------------------------------------


def test_a_model_that_answers_questions_is_asked_some_too(settings: Adapt, tmp_path: Path) -> None:
    model = Realm.from_pretrained(settings.model)
    model.config = replace(model.config, trained_on_questions=True)
    model.save_pretrained(tmp_path / "asked")
    verdict = run_adapt(replace(settings, model=tmp_path / "asked"))
    assert verdict.answers is not None
    assert verdict.answers.questions == verdict.before.questions == 12  # the sentences alone
    assert "Asked as questions instead" in verdict.table()
    assert "answers may stay the same" not in verdict.table()
    kept = json.loads((settings.out / "verdict.json").read_text("utf-8"))
    assert kept["answers"]["changed"] == verdict.answers.changed
    assert kept["measures"]["exact match of answers"]["after"]["value"] == verdict.answers.after.value


def test_a_sentence_is_asked_as_a_question_of_its_hidden_words() -> None:
    cloze = Question("The mill was built by [MASK] .", ("Ada",), id="3", source=7)
    ((same, asked),) = adapting._also_asked([cloze], answers=True)
    assert same is cloze
    assert asked == Question("The mill was built by what?", ("Ada",), id="3", source=7)
    assert adapting._also_asked([cloze], answers=False) == [[cloze]]


def test_whether_answers_changed_is_said_in_words() -> None:
    def outcome(number: int, said: str) -> Outcome:
        question = Question(f"What is {number}?", ("yes",), source=number)
        answer = Answer(said, 0.5, ())
        return Outcome(question, answer, said == "yes", None, None, None, [False], [])

    def answers(before: list[str], after: list[str]) -> Answers:
        masked = [
            replace(outcome(number, "x"), question=Question("a [MASK]", ("b",), source=number), log_p=-1.0)
            for number in range(len(before))
        ]
        sides = [masked + [outcome(*pair) for pair in enumerate(side)] for side in (before, after)]
        made = compare(*sides, labelled=False)
        assert made.gain == 0.0
        assert made.answers is not None
        assert made.before.questions == len(before)
        assert made.answers.plainly() in made.plainly()
        return made.answers

    same = answers(["yes", "no"] * 10, ["yes", "no"] * 10)
    assert "10 were right before and 10 after; no answer changed." in same.plainly()
    better = answers(["no"] * 20, ["yes"] * 10 + ["no"] * 10)
    assert (better.changed, better.gain) == (10, 0.5)
    assert better.low > 0
    assert "10 of 20 answers changed: they are better (+0.500 [" in better.plainly()
    assert "they are worse" in answers(["yes"] * 20, ["no"] * 20).plainly()
    assert "not surely better or worse" in answers(["yes", "no"] * 10, ["no", "yes"] * 10).plainly()
