"""Questions made from sentences: what is asked, where its answer stands, and what is passed over."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from realmlm.bundled import model_place
from realmlm.corpus.store import Corpus, Passage
from realmlm.corpus.taggers import RuleTagger
from realmlm.engine import Engine
from realmlm.reading import suggest as suggesting
from realmlm.reading.records import Answer, Evidence
from realmlm.reading.suggest import Candidate, candidates, suggest
from tests.calls import build_corpus


def make_corpus(folder: Path, texts: list[str]) -> Corpus:
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    where = folder / "corpus"
    return build_corpus(
        [folder / "texts.jsonl"], where, tokenizer=str(model_place()), max_wordpieces=64, workers=1
    )


def made_of(text: str, *titles: str) -> dict[str, str]:
    """The questions made of a passage, and the words that each expects."""
    made = suggesting._of_passage(Passage(7, "", text), RuleTagger(titles))
    return {candidate.question: text[candidate.start : candidate.end] for candidate in made}


@pytest.mark.parametrize(
    ("text", "question", "answer"),
    [
        ("The Eiffel Tower was completed in 1889.", "When was the Eiffel Tower completed?", "1889"),
        ("Ada Orvan was born in Nerrow in 1731.", "Where was Ada Orvan born?", "Nerrow"),
        ("Ada Orvan was born in Nerrow in 1731.", "When was Ada Orvan born in Nerrow?", "1731"),
        ("Ada Orvan died on 3 May 1790, rich.", "When did Ada Orvan die?", "3 May 1790"),
        ("Ada Orvan built the Tall Mill, and left.", "Who built the Tall Mill?", "Ada Orvan"),
        ("The Tall Mill was built by Ada Orvan.", "Who was the Tall Mill built by?", "Ada Orvan"),
        ("The Tall Mill is about 56 metres high.", "How high is the Tall Mill?", "56 metres"),
        ("Olkhon is the largest island in the lake.", "What is the largest island in the lake?", "Olkhon"),
        ("part: hinge; supplier: Alder & Sons", "What is the supplier of hinge?", "Alder & Sons"),
        ("It rains. Ada Orvan died in 1790.", "When did Ada Orvan die?", "1790"),
    ],
)
def test_a_sentence_becomes_the_question_it_answers(text: str, question: str, answer: str) -> None:
    assert made_of(text, "Tall Mill")[question] == answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "He was born in Nerrow in 1731.",  # who?
        "Ada Orvan painted her brother in Nerrow.",  # whose?
        "Later Ada Orvan died in 1790.",
        "Ada Orvan discovered in 1771 that salt burns.",  # what?
        "Ada Orvan conquered Nerrow between 1758 and 1760.",  # "Who conquered Nerrow between 1758?"
        "It is the largest island there.",
        "Olkhon is the same as the other one: large",
        "limits: 3; sizes: 4",  # "What is the sizes of 3?"
        "see: above",
        "Ada Orvan was born in Nerrow " + "and then again " * 20 + "in 1731",
        "?" * 500 + "; : " * 500,
    ],
)
def test_what_cannot_be_understood_alone_is_passed_over(text: str) -> None:
    assert not set(made_of(text)) - {"Where was Ada Orvan born?"}


TEXT = "It is the iron-clad helmet of the king."


def answer(start: int | None, end: int | None, **other: object) -> Answer:
    evidence = Evidence(7, "", TEXT, start, end, 1.0, 1.0)
    return replace(Answer("words", 0.9, (evidence,), sure="likely"), **other)  # type: ignore[arg-type]


def test_only_a_sure_answer_from_the_same_place_counts() -> None:
    start, end = TEXT.index("iron"), TEXT.index(" of")
    candidate = Candidate("What?", 7, start, end)
    assert candidate.answered_by(answer(start, end))
    assert candidate.answered_by(answer(start - 4, end))  # "the iron-clad helmet"
    assert candidate.answered_by(answer(TEXT.index("helmet"), end))
    assert candidate.answered_by(answer(start, end, sure="", probability=0.5))
    for wrong in (
        answer(TEXT.index("clad"), end),
        answer(start, start + 4),
        answer(start - 4, end - 1),
        answer(end, end + 7),
        answer(None, None),
        answer(start, end, sure="unsure"),
        answer(start, end, sure="", probability=0.4),
        answer(start, end, caution="it asks for a yes or no"),
        answer(start, end, evidence=()),
    ):
        assert not candidate.answered_by(wrong)
    assert not replace(candidate, passage=8).answered_by(answer(start, end))


def test_kinds_are_asked_in_turn_until_enough_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"Ada Orvan {number} was completed in 18{number}." for number in range(10, 30)]
    texts += [f"Olkhon{number} is the largest island of lake {number}." for number in range(3)]
    corpus = make_corpus(tmp_path, texts)
    drawn = list(candidates(corpus))
    assert drawn == list(candidates(corpus))
    assert len({candidate.passage for candidate in drawn}) == len(drawn) == 23
    kinds = [candidate.question.split()[0] for candidate in drawn]
    assert sorted(kinds[:2]) == sorted(kinds[2:4]) == ["What", "When"]
    asked: list[str] = []

    def ask(questions: list[str]) -> Iterator[Answer]:
        """Every second one is answered."""
        for question in questions:
            asked.append(question)
            (one,) = (candidate for candidate in drawn if candidate.question == question)
            found = answer(one.start, one.end)
            sure = "likely" if len(asked) % 2 else "unsure"
            evidence = (replace(found.evidence[0], passage_id=one.passage),)
            yield replace(found, sure=sure, evidence=evidence)

    assert list(islice(suggest(corpus, lambda some: list(ask(some))), 4)) == asked[:8:2]
    assert len(asked) == 8
    monkeypatch.setattr(suggesting, "MOST_ASKED", 2)
    assert len(list(suggest(corpus, lambda some: list(ask(some))))) == 1


def test_of_a_large_corpus_some_passages_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suggesting, "LOOKED_AT", 5)
    corpus = make_corpus(
        tmp_path, [f"Ada Orvan {number} was completed in 18{number}." for number in range(10, 30)]
    )
    assert 1 <= len(list(candidates(corpus))) <= 5


def test_mini_answers_what_it_suggests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "notes.txt").write_text(
        "Ada Orvan built the lighthouse of Nerrow in 1731.\n\nThe lighthouse of Nerrow is about 56 metres high."
    )
    engine = Engine(docs=tmp_path / "notes.txt", device="cpu")
    (question,) = engine.suggestions()
    assert question == "Who built the lighthouse of Nerrow in 1731?"
    assert "Ada Orvan" in engine.ask(question).answer
