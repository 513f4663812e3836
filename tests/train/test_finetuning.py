"""Fine-tuning otherwise: other objectives, other retrievers, answers that are patterns."""

import json
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from realmlm.cli import main
from realmlm.corpus.questions import Question, read_questions
from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput, Mismatch
from realmlm.index.exact import ExactIndex, Hits
from realmlm.log import Clock, read_metrics
from realmlm.model.marginal import answer_log_likelihood, best_span_log_likelihood
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import Offered
from realmlm.settings import Finetune, JointOptim, Loop
from realmlm.train import finetuning, stages
from realmlm.train.gold import locate_answers
from realmlm.train.hits import Candidates
from realmlm.train.objectives.questions import QuestionAnswering
from realmlm.train.run import read_run, write_run
from tests.calls import run_finetune
from tests.train.steps import fail_at

LOOP = Loop(threads=1, device="cpu", log_every=1)


def test_the_best_place_alone() -> None:
    span = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]]).log()[:, :, None]
    gold = torch.tensor([[True, False, True], [False, False, False]])[:, :, None]
    assert best_span_log_likelihood(span, gold).exp().tolist() == pytest.approx([0.5, 0.0])
    assert answer_log_likelihood(span, gold).exp().tolist() == pytest.approx([0.8, 0.0])


def asking(
    model: Realm, knowledge: Corpus, questions: list[Question], *, given: Candidates, **changed: Any
) -> QuestionAnswering:
    settings = Finetune(questions=(), out=Path("unused"), candidates=9, closed_book=0.0, **changed)
    gold = locate_answers(knowledge, questions)
    live: Any = None
    return QuestionAnswering(settings, model, knowledge, live, gold, learning=[], given=given)


def test_a_passage_with_the_answer_takes_the_last_place_read(
    tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    model = Realm.from_pretrained(tiny_model_folder)
    questions = read_questions(world / "questions-train.jsonl")[:6]

    ids = np.stack(
        [[*[p for p in knowledge.ids[:40].tolist() if p not in q.gold][:8], q.gold[0]] for q in questions]
    )
    scores = np.tile(np.linspace(2, 0, 9, dtype=np.float32), (6, 1))
    wrong_first = Candidates(ids.astype(np.int64), scores)

    shares = {}
    first = {}
    for read_gold, read in ((False, 2), (True, 2), (True, 1)):
        objective = asking(model, knowledge, questions, given=wrong_first, read_gold=read_gold, read=read)
        with torch.no_grad():
            _, row = objective.loss(objective.draw(0, 6), 0, Clock())
        shares[read_gold, read] = float(row["gold_read"])
        first[read_gold, read] = float(row["recall@1"])
    assert shares[True, 2] == shares[True, 1] == 1.0
    assert shares[False, 2] < 0.7
    assert len(set(first.values())) == 1, (
        "what was retrieved first is the same, whatever is read in its place"
    )
    assert first[True, 1] < 0.7


@pytest.mark.parametrize("objective", ["marginal", "hard-em"])
def test_a_reader_is_trained_on_matched_words(
    objective: str,
    tiny_model_folder: Path,
    knowledge: Corpus,
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ExactIndex, "search", None)  # no vector is compared
    realm = Realm.from_pretrained(tiny_model_folder)
    realm.config = replace(realm.config, calibration={"bias": 0.0, "p_weight": 1.0, "relevance_weight": 1.0})
    realm.save_pretrained(tmp_path / "model")
    settings = Finetune(
        model=tmp_path / "model",
        corpus=knowledge.folder,
        questions=(world / "questions-train.jsonl", world / "questions-held-out.jsonl"),
        out=tmp_path / "run",
        retriever="bm25",
        objective=objective,  # type: ignore[arg-type]
        read=2,
        candidates=5,
        optim=JointOptim(steps=2, batch=4),
        loop=LOOP,
    )
    before = realm
    after = Realm.from_pretrained(run_finetune(settings))
    assert before.config.calibration
    assert after.config.calibration is None
    assert torch.equal(before.query.projection.weight, after.query.projection.weight)
    assert not torch.equal(before.reader.span_head.output.weight, after.reader.span_head.output.weight)


@pytest.mark.parametrize(
    "how", [{"retriever": "bm25"}, {"optim": JointOptim(steps=3, batch=4, retriever_lr=0)}]
)
def test_where_only_the_reader_learns_the_towers_stay_one(
    how: dict[str, Any],
    tiny_model_folder: Path,
    knowledge: Corpus,
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def settings(out: str) -> Finetune:
        usual: dict[str, Any] = {
            "read": 2,
            "candidates": 5,
            "optim": JointOptim(steps=3, batch=4),
            "loop": replace(LOOP, checkpoint_every=1),
        }
        places: dict[str, Any] = {
            "corpus": knowledge.folder,
            "questions": (world / "questions-train.jsonl",),
            "out": tmp_path / out,
        }
        return Finetune(model=tiny_model_folder, **places, **(usual | how))

    before = Realm.from_pretrained(tiny_model_folder)
    after = Realm.from_pretrained(run_finetune(settings("run")))
    assert before.config.share_towers
    assert after.config.share_towers
    assert before.own_state().keys() == after.own_state().keys()
    for name, weight in before.own_state().items():
        assert torch.equal(weight, after.own_state()[name]) or name.startswith("reader.")

    class Untying(QuestionAnswering):
        """As in older releases: the towers were untied all the same. It is cut off after a step."""

        def __init__(
            self, settings: Finetune, model: Realm, *rest: Any, learning: object, given: Any
        ) -> None:
            model.requires_grad_(True)
            super().__init__(settings, model, *rest, learning=model.free_query(settings.query), given=given)

        def loss(self, numbers: np.ndarray, step: int, clock: Clock) -> tuple[torch.Tensor, Any]:
            if step == 1:
                raise KeyboardInterrupt
            return super().loss(numbers, step, clock)

    with pytest.raises(KeyboardInterrupt):
        run_finetune(settings("older"), objective=Untying)
    begun = read_run(tmp_path / "older")
    assert begun["stage"] == "finetune with " + Untying.__qualname__
    write_run(tmp_path / "older", **begun | {"stage": "finetune"})
    older = Realm.from_pretrained(run_finetune(settings("older")))
    assert not older.config.share_towers
    for name, weight in after.reader.state_dict().items():
        assert torch.allclose(weight, older.reader.state_dict()[name], atol=1e-6)


def test_answers_without_a_letter_are_not_looked_for(knowledge: Corpus, tmp_path: Path) -> None:
    word = knowledge[0].text.split()[0]
    gold = locate_answers(knowledge, [Question("Who?", (".", word))])
    found = {knowledge.wordpieces.decode(knowledge.tokens(0)[a:b]) for a, b in gold.spans(0, 0).tolist()}
    assert found == {word.lower()}


def test_patterns_are_looked_up_in_the_passages_that_come_up(knowledge: Corpus, tmp_path: Path) -> None:
    """The same places, whether located before or when they are asked for."""
    words = [knowledge[number].text.split()[1] for number in (0, 5, 9)]
    questions = [
        Question(f"Which is it, {word}?", (f"{word}|nowhere at all",), is_regex=True) for word in words
    ]
    questions.insert(1, Question("Which?", (words[0],)))
    before = locate_answers(knowledge, questions)
    later = locate_answers(knowledge, questions, candidates=2)
    assert sorted(before.texts) == sorted(later.texts)
    ids = knowledge.ids[:60]
    for number, text in enumerate(later.texts):
        twin = before.texts.index(text)
        assert np.array_equal(later.holds(number, ids), before.holds(twin, ids))
        assert all(later.spans(number, p).tolist() == before.spans(twin, p).tolist() for p in ids.tolist())
    assert [len(answer) for answer in later.answers][1:] == [0, 0, 0]
    only = locate_answers(knowledge, questions[2:], candidates=2)
    assert len(only) == 2


def test_patterns_that_are_nowhere_are_looked_up_once_and_cost_little(
    knowledge: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [
        Question(f"Which is it, {number}?", (f"nowhere {number}",), is_regex=True) for number in range(40)
    ]
    word = knowledge[7].text.split()[1]
    gold = locate_answers(knowledge, [*asked, Question("Where?", (word,), is_regex=True)], candidates=2)
    numbers = range(len(gold))
    ids = knowledge.ids
    tracemalloc.start()
    before = [gold.holds(number, ids[: 200 + number]) for number in numbers]
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 40 * sum(200 + number for number in numbers), "bytes for all that was looked up"
    monkeypatch.setattr("realmlm.train.gold.answer_spans", None)  # looked up before: not looked for again
    assert all(np.array_equal(gold.holds(number, ids[: 200 + number]), before[number]) for number in numbers)
    assert gold.spans(0, 7).shape == (0, 2)
    assert len(gold.spans(40, 7))
    assert not any(found.any() for found in before[:40])


def test_training_on_patterns_alone(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{n}\tkind\tWhich is number {n}?\t{knowledge[n].text.split()[1]}" for n in range(12)]
    (tmp_path / "asked.tsv").write_text("\n".join(rows) + "\n")
    settings = Finetune(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=(tmp_path / "asked.tsv",),
        out=tmp_path / "run",
        read=2,
        candidates=3,
        optim=JointOptim(steps=2, batch=4),
        loop=LOOP,
    )
    for again in (False, True):
        stages.finetune(settings)
        assert (tmp_path / "run" / "model").is_dir()
        assert (f"{tmp_path}/run is already finished" in capsys.readouterr().err) == again
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["closed_book"] == 0
    assert np.isfinite(row["loss"])


def test_few_questions_are_learned_in_few_steps(
    tiny_model_folder: Path,
    knowledge: Corpus,
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = tmp_path / "own.jsonl"
    run = tmp_path / "run"
    lines = (world / "questions-train.jsonl").read_text("utf-8").splitlines(keepends=True)
    asked.write_text("".join(lines[:7]), "utf-8")
    places = [
        "--model",
        str(tiny_model_folder),
        "--corpus",
        str(knowledge.folder),
        "--questions",
        str(asked),
        "--out",
        str(run),
    ]
    flags = ["--read", "2", "--candidates", "5", "--loop.device", "cpu", "--loop.checkpoint-every", "1"]
    with monkeypatch.context() as patch:
        fail_at(1, KeyboardInterrupt(), patch)
        with pytest.raises(SystemExit):
            main(["finetune", *places, *flags])
    assert (
        "3 steps of 32: 13.7 passes over 7 questions; --optim.steps changes this" in capsys.readouterr().err
    )
    assert read_run(run)["config"]["optim"]["steps"] == 3
    main(["finetune", "--resume", str(run)])
    said = capsys.readouterr().err
    assert "resumed at step 1" in said
    assert "passes over" not in said
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [3]


@pytest.mark.parametrize(
    ("questions", "batch", "steps"),
    [(59, 32, 19), (1, 32, 1), (79_168, 64, 1000), (3_200, 32, 1000), (3_199, 32, 1000)],
)
def test_ten_passes_at_most_a_thousand_steps(
    questions: int, batch: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetuning, "read_questions", lambda _: [None] * questions)
    optim = JointOptim(steps=0, batch=batch)
    settings = Finetune(questions=(Path("asked"),), out=Path("unused"), optim=optim)
    assert finetuning.with_steps(settings).optim.steps == steps


def test_a_number_of_steps_that_is_given_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(stages, "finetune", lambda settings, **_: taken.append(settings.optim.steps))
    main(
        [
            "finetune",
            "--corpus",
            "corpus",
            "--questions",
            "none.jsonl",
            "--out",
            "run",
            "--optim.steps",
            "1000",
        ]
    )
    assert taken == [1000]


def test_a_run_does_not_go_on_with_other_questions(
    tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    asked = tmp_path / "asked.jsonl"
    lines = (world / "questions-train.jsonl").read_text("utf-8").splitlines(keepends=True)
    asked.write_text("".join(lines[:8]), "utf-8")
    settings = Finetune(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=(asked,),
        out=tmp_path / "run",
        read=2,
        optim=JointOptim(steps=4, batch=2),
        loop=replace(LOOP, checkpoint_every=1),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "fit", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_finetune(settings)
    asked.write_text("".join(lines[:4]), "utf-8")
    with pytest.raises(Mismatch, match=r"asked\.jsonl was changed since"):
        run_finetune(settings)


# --- questions that come with their paragraph ---------------------------------------------------------------

OTHER = "Nothing is said here of what was asked. " * 20
PARAGRAPH = OTHER + "In the north the quoll is kept by Zelda Quim of Tekebra. " + OTHER
TOLD = Question(
    "Who keeps the quoll?", ("Zelda Quim",), context=PARAGRAPH, title="Quolls", start=len(OTHER) + 36
)


def test_the_passage_of_a_paragraph_that_holds_the_answer(knowledge: Corpus, capsys: Any) -> None:
    absent = replace(TOLD, context=OTHER)
    twice = replace(TOLD, context="Zelda Quim. " + PARAGRAPH, start=len(OTHER) + 48)
    gold = locate_answers(knowledge, [absent, TOLD, TOLD, twice])
    said = capsys.readouterr().err
    assert "3 come with the paragraph" in said
    assert "1 do not have their answer in their paragraph" in said
    assert len(gold) == 3, "the answer of the first stands nowhere"
    for question, number in enumerate(gold.given_Q.tolist()):
        assert number not in knowledge
        assert "the quoll is kept by Zelda Quim" in gold.corpus[number].text
        assert gold.corpus[number].title == "Quolls"
        ((first, last),) = gold.spans(question, number).tolist()
        words = gold.corpus.tokens(number)[first:last]
        assert knowledge.wordpieces.decode(words.tolist()).lower() == "zelda quim"
    assert gold.given_Q[0] == gold.given_Q[1], "a paragraph is cut once"
    assert gold.given_Q[2] != gold.given_Q[0]


def test_of_the_places_with_the_same_words_the_told_one_counts(knowledge: Corpus) -> None:
    rows = "Tea: 7 pence. Milk: 7 pence. Bread: 9 pence."
    places = [match.start() for match in re.finditer("7 pence", rows)]
    asked = Question("How much is milk?", ("7 pence", "7"), context=rows, title="Prices")
    given = [replace(asked, start=start) for start in (places[1], None, 1)]
    gold = locate_answers(knowledge, given)
    firsts = [
        sorted({int(gold.corpus.token_chars(passage)[first, 0]) for first, _ in gold.spans(number, passage)})
        for number, passage in enumerate(gold.given_Q.tolist())
    ]
    assert firsts == [[places[1]], places, places], "told; not told; told a place where it does not stand"
    assert len(gold.spans(0, int(gold.given_Q[0]))) == 2, "in both of its forms"


@pytest.mark.parametrize("retriever", ["learned", "bm25"])
def test_a_given_paragraph_is_read_among_passages_without_the_answer(
    retriever: str, tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    model = Realm.from_pretrained(tiny_model_folder)
    open_question = read_questions(world / "questions-train.jsonl")[0]
    answer = open_question.answers[0]
    told = replace(open_question, context=f"It is widely known: {answer}.", start=None)
    gold = locate_answers(knowledge, [told, open_question])
    settings = Finetune(questions=(), out=Path("unused"), candidates=9, read=4, closed_book=0.0)
    holding = [n for n in knowledge.ids.tolist() if gold.holds(0, np.array([n]))[0]]
    lacking = [n for n in knowledge.ids.tolist() if n not in holding]
    ids = np.array([*holding[:1], *lacking[:8]])

    def search(queries: torch.Tensor, k: int) -> Hits:
        return Hits(torch.zeros(len(queries), k), torch.from_numpy(np.stack([ids[:k]] * len(queries))))

    vectors = torch.randn(len(knowledge), 32, generator=torch.Generator().manual_seed(0))
    index = ExactIndex(vectors, torch.from_numpy(knowledge.ids))
    live: Any = SimpleNamespace(index=SimpleNamespace(search=search, vectors=index.vectors))
    scores = np.tile(np.linspace(2, 0, 9, dtype=np.float32), (2, 1))
    matched = Candidates(np.stack([ids, ids]), scores) if retriever == "bm25" else None
    objective = QuestionAnswering(settings, model, knowledge, live, gold, learning=[], given=matched)
    objective.prepare(model)
    seen: list[np.ndarray] = []

    class Watched(Offered):
        def __init__(self, corpus: Corpus, ids_BK: np.ndarray, *, null: bool) -> None:
            seen.append(ids_BK)
            super().__init__(corpus, ids_BK, null=null)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("realmlm.train.objectives.questions.Offered", Watched)
        loss, row = objective.loss(np.array([0, 1]), 0, Clock())
    assert torch.isfinite(loss)
    assert float(row["gold_read"]) == 1.0
    assert float(row["recall@1"]) == 1.0, "what was retrieved first holds it"
    assert seen[0].tolist() == [[int(gold.given_Q[0]), *lacking[:3]], ids[:4].tolist()]


def test_a_reader_learns_from_paragraphs_alone(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    """None of these answers stands in the corpus."""
    rows = [
        {
            "question": f"Who keeps the quoll {word}?",
            "answer": [f"Zelda {word}"],
            "context": f"{OTHER} Zelda {word} does.",
        }
        for word in ("Ana", "Bob", "Cid", "Dee")
    ]
    (tmp_path / "told.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    settings = Finetune(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=(tmp_path / "told.jsonl",),
        out=tmp_path / "run",
        read=2,
        candidates=5,
        closed_book=0.0,
        optim=JointOptim(steps=30, batch=4, lr=3e-3, retriever_lr=1e-3),
        loop=LOOP,
    )
    run_finetune(settings)
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert all(row["gold_read"] == 1.0 for row in metrics)
    assert metrics[-1]["log_p"] > metrics[0]["log_p"] + 1
    assert metrics[-1]["retriever"] > metrics[0]["retriever"]


def test_answers_may_become_longer(tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path) -> None:
    words = "the keeper of all quolls in the north"
    told = {"question": "Who is Zelda?", "answer": [words], "context": f"{OTHER} Zelda is {words}."}
    (tmp_path / "told.jsonl").write_text(json.dumps(told), "utf-8")
    before = Realm.from_pretrained(tiny_model_folder)
    long = len(knowledge.wordpieces.encode(words))
    assert before.config.max_answer < long
    settings = Finetune(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=(tmp_path / "told.jsonl",),
        out=tmp_path / "run",
        read=1,
        candidates=2,
        closed_book=0.0,
        max_answer=long,
        optim=JointOptim(steps=60, batch=1, lr=3e-3, retriever_lr=0),
        loop=LOOP,
    )
    run_finetune(settings)
    realm = Realm.from_pretrained(tmp_path / "run" / "model")
    assert realm.config.max_answer == realm.reader.span_head.max_width == long
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["log_p"] > -1, "it was learned"
    for bad in (0, before.config.max_query):
        with pytest.raises(BadInput, match="answers must have 1 to"):
            realm.allow_answers(bad)
