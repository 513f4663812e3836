"""The report names the definition of its recall, and counts by it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from realmlm.corpus.questions import Question, read_questions
from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput, NotEnough
from realmlm.evaluation.judge import Batch, make_judge
from realmlm.evaluation.matching import Recall, first_with_answer
from realmlm.evaluation.measure import measure
from realmlm.model.realm import Realm
from realmlm.parallel import ordered_map
from realmlm.reading.answer import Answerer
from realmlm.reading.retrieve import LearnedRetriever, Retrieved, index_of, retrieve
from tests.calls import build_corpus, evaluate

# in every passage, whichever is retrieved: letters within words (orqa), an answer without words (dpr), a full
# stop (both); in none
ANSWERS = ["e", "s", "\u200b", ".", "Zzz"]


@pytest.mark.parametrize(("recall", "percent"), [("dpr", 40), ("orqa", 60)])
def test_recall_counts_by_its_definition_and_names_it(
    recall: Recall, percent: float, knowledge: Corpus, tiny_model_folder: Path, tmp_path: Path
) -> None:
    passages = [knowledge[number].text for number in knowledge.ids.tolist()]
    assert all(letter in text for text in passages for letter in "es.")
    asked = [{"question": f"Which is {number}?", "answer": [answer]} for number, answer in enumerate(ANSWERS)]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps(line) + "\n" for line in asked), "utf-8")
    report = evaluate(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=questions,
        read=1,
        recall=recall,
        device="cpu",
    )
    assert report.recall_definition == recall == report.as_json()["recall_definition"]
    assert {k: score.value for k, score in report.recall.items()} == {
        1: percent,
        5: percent,
        20: percent,
        50: percent,
    }
    assert f"recall@50 (answer string, {recall}) " in report.table()


def test_a_model_that_never_saw_a_question_is_said(
    knowledge: Corpus, tiny_model_folder: Path, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for questions, read, said in (("questions", 1, True), ("questions", 0, False), ("clozes", 1, False)):
        asked = world / f"{questions}-held-out.jsonl"
        evaluate(
            model=tiny_model_folder,
            corpus=knowledge.folder,
            questions=asked,
            read=read,
            limit=3,
            device="cpu",
        )
        assert ("was not trained on questions" in capsys.readouterr().err) == said


def test_orqa_has_no_recall_of_patterns(knowledge: Corpus, tiny_model_folder: Path, tmp_path: Path) -> None:
    questions = tmp_path / "trec.tsv"
    questions.write_text("1\ttype\tWhere?\tCre?te\n", "utf-8")
    with pytest.raises(BadInput, match=r"trec\.tsv: the answers are regular expressions.* use --recall dpr"):
        evaluate(
            model=tiny_model_folder, corpus=knowledge.folder, questions=questions, recall="orqa", device="cpu"
        )


def test_held_out_sentences_of_a_small_corpus_and_long_ones(
    tiny_model_folder: Path, world: Path, tmp_path: Path
) -> None:
    """Their own passage is not searched: one fewer is left; and a mask far behind in a sentence is still
    seen."""
    rows = [json.loads(line) for line in (world / "knowledge.jsonl").read_text("utf-8").splitlines()[:12]]
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = build_corpus(
        [tmp_path / "few.jsonl"],
        tmp_path / "corpus",
        tokenizer=str(world / "tokenizer.json"),
        max_wordpieces=64,
        workers=1,
    )
    text = corpus[0].text
    asked = [
        {"question": text.replace(text.split()[1], "[MASK]", 1), "answer": [text.split()[1]], "source": 0},
        {"question": "the town " * 60 + "shows a [MASK]", "answer": ["heron"], "source": 1},
    ]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(item) + "\n" for item in asked))
    for retriever in ("learned", "bm25", "none"):
        report = evaluate(
            model=tiny_model_folder,
            corpus=corpus.folder,
            questions=tmp_path / "asked.jsonl",
            retriever=retriever,
            read=2,
            device="cpu",
        )
        assert report.questions == 2
        assert report.nats["−log p(y|x)"].value > 0


def test_copies_of_a_sentences_own_passage_are_not_searched_either(
    tiny_model_folder: Path, world: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in (world / "knowledge.jsonl").read_text("utf-8").splitlines()[:12]]
    rows += [{"title": f"copy of {row['title']}", "text": row["text"]} for row in rows]
    (tmp_path / "twice.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = {"tokenizer": str(world / "tokenizer.json"), "max_wordpieces": 64, "workers": 1}
    corpus = build_corpus([tmp_path / "twice.jsonl"], tmp_path / "corpus", **common)
    asked = [
        {"question": f"[MASK] {corpus[number].text}", "answer": [corpus[number].text], "source": number}
        for number in range(12)
    ]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(item) + "\n" for item in asked))
    for retriever in ("learned", "bm25"):
        report = evaluate(
            model=tiny_model_folder,
            corpus=corpus.folder,
            questions=tmp_path / "asked.jsonl",
            retriever=retriever,
            read=0,
            device="cpu",
        )
        assert report.recall[20].value == 0, "no other passage has its words"
    (tmp_path / "one.jsonl").write_text(
        "".join(json.dumps({"title": str(number), "text": rows[0]["text"]}) + "\n" for number in range(3))
    )
    same = build_corpus([tmp_path / "one.jsonl"], tmp_path / "same", **common)
    with pytest.raises(NotEnough, match="has the same words"):
        evaluate(
            model=tiny_model_folder,
            corpus=same.folder,
            questions=tmp_path / "asked.jsonl",
            read=0,
            limit=1,
            device="cpu",
        )


def test_processes_judge_as_this_one_does(knowledge: Corpus, tiny_model: Realm, world: Path) -> None:
    """What is read and retrieved goes to them without the model, and comes back the same."""
    asked = read_questions(world / "questions-held-out.jsonl")[:24]
    index = index_of(tiny_model, knowledge, kind="exact").index
    answerer = Answerer(tiny_model, knowledge, LearnedRetriever.settled(tiny_model, index))
    here = list(measure(answerer, asked, read=3, recall="dpr"))
    batches = []
    for some in (asked[:16], asked[16:]):
        queries = answerer.queries([question.text for question in some])
        found = retrieve(answerer.retriever, queries, 50)
        read = Retrieved(found.ids_BK[:, :3], found.scores_BK[:, :3], found.null_B)
        spans = answerer.read_passages(queries, read).arrays()
        batches.append(Batch(some, found.ids_BK.numpy(), {}, list(range(len(some))), spans))
    combiner = answerer.combiner
    how = (combiner.max_query, combiner.released, combiner.calibration, combiner.overlapping)
    setting = (knowledge.folder, 0, *how, "dpr")
    there = ordered_map(make_judge, setting, batches, workers=2, few=1)
    assert [outcome for outcomes in there for outcome in outcomes] == here
    assert any(any(outcome.found) for outcome in here)


@pytest.mark.parametrize("overlapping", ["merged", "separate"])
def test_reports_and_predictions_say_whether_spans_were_merged(
    overlapping: str, tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    report = evaluate(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=world / "questions-held-out.jsonl",
        limit=4,
        read=2,
        overlapping=overlapping,
        predictions=tmp_path / "predictions.jsonl",
        device="cpu",
    )
    assert report.overlapping == overlapping
    assert ("overlapping spans merged" in report.table()) == (overlapping == "merged")
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text("utf-8").splitlines()]
    assert {row["overlapping"] for row in rows} == {overlapping}
    sums = [
        sum(p["retrieval_probability"] * p["reading_probability"] for p in row["evidence"]) for row in rows
    ]
    assert sums == pytest.approx([row["probability"] for row in rows], abs=1e-5)


def test_recall_looks_no_further_than_the_first_passage_with_the_answer() -> None:
    seen: list[str] = []

    def texts() -> Iterator[str]:
        for text in ("a heron's nest", "the Herons", "no bird", "two herons", "herons again"):
            seen.append(text)
            yield text

    assert first_with_answer(texts(), Question("q", ("two  HERONS", "otter")), recall="dpr") == 3
    assert seen[-1] == "two herons"
    assert first_with_answer(["Heron", "no heron"], Question("q", ("heron",)), recall="orqa") == 1
    assert first_with_answer(["a", "b"], Question("q", ("c",)), recall="dpr") is None
