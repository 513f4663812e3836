"""Does a model know when the documents do not say? `python benchmarks/unanswerable.py [MODEL [FILE]]`

Asks every question of the pocket encyclopedia twice: as it is, and with every passage that holds the answer
taken out of what was retrieved, so that nothing that is read can say it. Prints how often an answer that is
right is surer than one of the second kind, by p(y|x) alone and by the confidence, and how many of each kind
are called likely, unsure or not found. FILE is written for `realmlm calibrate --thresholds FILE`: the answers
of both kinds, judged.
"""

import datetime
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

import realmlm
from realmlm.bundled import model_place, text_place
from realmlm.corpus.questions import Question, read_questions
from realmlm.evaluation.answers import is_correct
from realmlm.evaluation.calibrate import separation
from realmlm.evaluation.matching import contains_answer
from realmlm.reading.answer import Answer
from realmlm.reading.retrieve import Retrieved
from realmlm.storage.artefacts import open_artefact

READ = 5
DEPTH = 60


def main(model: str = "mini", file: str | None = None) -> None:
    pocket = text_place("pocket")
    engine = realmlm.load(model).read(pocket)
    answerer = engine._answerer
    questions = read_questions(pocket.parent / "questions.jsonl")
    said = engine.ask([question.text for question in questions], read=READ)
    correct = [is_correct(answer.answer, question) for answer, question in zip(said, questions, strict=True)]
    right = [answer for answer, is_right in zip(said, correct, strict=True) if is_right]
    wrong = [answer for answer, is_right in zip(said, correct, strict=True) if not is_right]
    unsaid: list[Answer] = []
    for question in questions:
        queries = [answerer.query(question.text)]
        found = answerer.retriever(queries, DEPTH)
        without = [
            not contains_answer(answerer.corpus[number].text, question, recall="dpr")
            for number in found.ids_BK[0].tolist()
        ]
        kept = torch.tensor(without).nonzero()[:READ, 0]
        unsaid += answerer.read_spans(
            queries, Retrieved(found.ids_BK[:, kept], found.scores_BK[:, kept], found.null_B)
        )
    print(
        f"{datetime.date.today()}  {len(questions)} questions, {len(right)} answered right; all again with "
        "nothing that says it"
    )
    is_right = np.array([True] * len(right) + [False] * len(unsaid))
    for name in ("probability", "relevance", "confidence"):
        values = np.array([getattr(answer, name) for answer in right + unsaid], dtype=float)
        print(
            f"by {name:12} a right answer is the surer of two {separation(values, is_right):6.1%} of the time"
        )
    kinds = {"right answers": right, "wrong answers": wrong, "answers to what nothing says": unsaid}
    for name, answers in kinds.items():
        print(
            f"{name:28}  p {middle(answers, 'probability')}   confidence {middle(answers, 'confidence')}   "
            f"{words(answers)}"
        )
    if file is not None:
        judged = [
            *zip(questions, said, correct, strict=True),
            *((question, answer, False) for question, answer in zip(questions, unsaid, strict=True)),
        ]
        made_by = open_artefact(model_place(model), kind="model").fingerprint
        Path(file).write_text("".join(json.dumps(row(*one) | {"model": made_by}) + "\n" for one in judged))


def middle(answers: list[Answer], name: str) -> str:
    """Lowest decile, median and highest decile."""
    low, median, high = np.quantile([getattr(answer, name) for answer in answers], [0.1, 0.5, 0.9])
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def words(answers: list[Answer]) -> str:
    """How many are called what."""
    counts = Counter(answer.sure for answer in answers)
    return ", ".join(f"{counts[word]} {word}" for word in ("likely", "unsure", "not found"))


def row(question: Question, answer: Answer, correct: bool) -> dict[str, Any]:
    """A judged answer, as `evaluate --predictions` writes them."""
    return {
        "question": question.text,
        "probability": answer.probability,
        "relevance": answer.relevance,
        "correct": correct,
        "read": READ,
    }


if __name__ == "__main__":
    main(*sys.argv[1:3])
