"""The bundled encyclopedia and its questions hold together."""

import json
from collections import Counter
from importlib.resources import files
from pathlib import Path

from realmlm.corpus.questions import read_questions
from realmlm.evaluation.matching import contains_answer, first_with_answer
from tests.calls import build_corpus

POCKET = Path(str(files("realmlm") / "pocket"))
CATEGORIES = ("names", "dates", "numbers", "definitions", "lists of one")


def rows(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (POCKET / name).read_text("utf-8").splitlines()]


def test_passages_are_short_and_each_of_its_own() -> None:
    passages = rows("encyclopedia.jsonl")
    assert len(passages) >= 400
    assert all(set(passage) == {"title", "text"} for passage in passages)
    assert len({str(passage["title"]).casefold() for passage in passages}) == len(passages)
    lengths = [len(str(passage["text"]).split()) for passage in passages]
    assert min(lengths) >= 55
    assert max(lengths) <= 95


def test_every_question_is_answered_by_its_passage_in_other_words() -> None:
    texts = {str(passage["title"]): str(passage["text"]) for passage in rows("encyclopedia.jsonl")}
    questions = read_questions(POCKET / "questions.jsonl")
    asked = rows("questions.jsonl")
    assert len(questions) == 200
    assert len({row["title"] for row in asked}) == 200
    assert len({question.text.casefold() for question in questions}) == 200
    assert Counter(row["category"] for row in asked) == dict.fromkeys(CATEGORIES, 40)
    for question, row in zip(questions, asked, strict=True):
        text = texts[str(row["title"])]
        assert contains_answer(text, question, recall="dpr"), question.text
        assert question.answers[0].casefold() in text.casefold()
        assert question.answers[0].casefold() not in question.text.casefold()
        words = question.text.rstrip("?").casefold().split()
        runs = [" ".join(words[place : place + 5]) for place in range(len(words) - 4)]
        assert not [run for run in runs if run in text.casefold()], question.text


def test_an_unanswerable_question_asks_about_an_article_for_what_no_article_says() -> None:
    """Its answers are true: nothing here says them."""
    passages = rows("encyclopedia.jsonl")
    titles = {str(passage["title"]) for passage in passages}
    texts = [f"{passage['title']}. {passage['text']}" for passage in passages]
    questions = read_questions(POCKET / "unanswerable.jsonl")
    asked = rows("unanswerable.jsonl")
    assert len(questions) == 100
    assert len({row["title"] for row in asked} & titles) == 100
    assert Counter(row["category"] for row in asked) == dict.fromkeys(CATEGORIES, 20)
    answerable = read_questions(POCKET / "questions.jsonl")
    assert not {question.text.casefold() for question in questions} & {
        question.text.casefold() for question in answerable
    }
    for question in questions:
        assert first_with_answer(texts, question, recall="dpr") is None, question.text


def test_it_becomes_a_corpus_of_one_passage_each(tmp_path: Path) -> None:
    corpus = build_corpus(
        [POCKET / "encyclopedia.jsonl"],
        tmp_path / "corpus",
        train_tokenizer=4000,
        max_wordpieces=200,
        workers=1,
    )
    assert len(corpus) == len(rows("encyclopedia.jsonl"))
