"""Does a model know when the documents do not say? `python benchmarks/unanswerable.py [MODEL]`

Asks every question of the pocket encyclopedia twice: as it is, and with every passage that holds the answer
taken out of what was retrieved, so that nothing that is read can say it. Prints how often an answer that is
right is surer than one of the second kind, by p(y|x) alone and by the confidence, and how many of each kind
have a confidence below some limits; at 0.05 the caution begins.
"""

import datetime
import sys

import numpy as np
import torch

import realmlm
from realmlm.bundled import text_place
from realmlm.corpus.questions import read_questions
from realmlm.evaluation.answers import is_correct
from realmlm.evaluation.calibrate import separation
from realmlm.evaluation.matching import contains_answer
from realmlm.reading.answer import Answer
from realmlm.reading.confidence import UNSURE
from realmlm.reading.retrieve import Retrieved

READ = 5
DEPTH = 60


def main(model: str = "mini") -> None:
    pocket = text_place("pocket")
    engine = realmlm.load(model).read(pocket)
    answerer = engine._answerer
    questions = read_questions(pocket.parent / "questions.jsonl")
    said = engine.ask([question.text for question in questions], read=READ)
    right = [
        answer
        for answer, question in zip(said, questions, strict=True)
        if is_correct(answer.answer, question)
    ]
    unsaid = []
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
    for name, answers in (("right answers", right), ("answers to what nothing says", unsaid)):
        print(
            f"{name:28}  p {middle(answers, 'probability')}   confidence {middle(answers, 'confidence')}   "
            f"{below(answers)}"
        )


def middle(answers: list[Answer], name: str) -> str:
    """Lowest decile, median and highest decile."""
    low, median, high = np.quantile([getattr(answer, name) for answer in answers], [0.1, 0.5, 0.9])
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def below(answers: list[Answer]) -> str:
    """How many get a caution, and how many would at other limits."""
    counts = {
        limit: sum((answer.confidence or 0.0) < limit for answer in answers) for limit in (0.03, UNSURE, 0.1)
    }
    return ", ".join(f"{count} below {limit}" for limit, count in counts.items()) + f", of {len(answers)}"


if __name__ == "__main__":
    main(*sys.argv[1:2])
