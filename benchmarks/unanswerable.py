"""Does a model know when the documents do not say? `python benchmarks/unanswerable.py [MODEL]`

Asks every question twice: as it is, and with every passage that holds the answer taken out of what was
retrieved, so that nothing that is read can say it; or, in place of the latter, the questions of a file that
the documents do not answer (--unanswerable: JSON lines with "question"). Prints how often an answer that is
right is surer than one of the second kind, by p(y|x) alone and by the confidence, and how many of each kind
are called likely, unsure or not found. The documents and questions are those of the pocket encyclopedia, or
others that are named. With --out the answers of both kinds are written, judged, as `realmlm calibrate` reads
them, but for those that are right in part.
"""

import argparse
import datetime
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import realmlm
from realmlm.bundled import model_place, text_place
from realmlm.corpus.questions import Question, read_questions
from realmlm.evaluation.answers import f1, is_correct
from realmlm.evaluation.calibrate import separation
from realmlm.evaluation.matching import contains_answer
from realmlm.reading.answer import Answer, Answerer
from realmlm.reading.retrieve import Retrieved
from realmlm.storage.artefacts import open_artefact

READ = 5
DEPTH = 60


def main() -> None:
    pocket = text_place("pocket")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="mini")
    parser.add_argument("--documents", type=Path, default=pocket)
    parser.add_argument("--questions", type=Path, default=pocket.parent / "questions.jsonl")
    parser.add_argument("--unanswerable", type=Path, help="questions that the documents do not answer")
    parser.add_argument("--out", type=Path, help="file for the judged answers")
    options = parser.parse_args()
    engine = realmlm.load(options.model).read(options.documents)
    questions = read_questions(options.questions)
    said = engine.ask([question.text for question in questions], read=READ)
    if options.unanswerable is not None:
        lines = options.unanswerable.read_text(encoding="utf-8").splitlines()
        asked_for_nothing = [json.loads(line)["question"] for line in lines]
        unsaid = engine.ask(asked_for_nothing, read=READ)
    else:
        asked_for_nothing = [question.text for question in questions]
        unsaid = [answer_without(engine._answerer, question) for question in questions]
    correct = [is_correct(answer.answer, question) for answer, question in zip(said, questions, strict=True)]
    print_table(said, correct, unsaid)
    if options.out is not None:
        manifest = open_artefact(model_place(options.model), kind="model")
        made = {"read": READ, "model": manifest.fingerprint, "hybrid": manifest.config.get("hybrid", 0.0)}
        judged = [
            *(
                (question.text, answer, is_right)
                for question, answer, is_right in zip(questions, said, correct, strict=True)
                if not partly_right(question, answer, is_right)
            ),
            *((text, answer, False) for text, answer in zip(asked_for_nothing, unsaid, strict=True)),
        ]
        options.out.write_text("".join(json.dumps(row(*one) | made) + "\n" for one in judged))


def answer_without(answerer: Answerer, question: Question) -> Answer:
    """What is answered where no passage that is read holds the answer."""
    queries = [answerer.query(question.text)]
    found = answerer.retriever(queries, min(DEPTH, len(answerer.corpus)))
    texts = [answerer.corpus[number].text for number in found.ids_BK[0].tolist()]
    without = [not contains_answer(text, question, recall="dpr") for text in texts]
    kept = torch.tensor(without).nonzero()[:READ, 0]
    words_BK = None if found.words_BK is None else found.words_BK[:, kept]
    offered = Retrieved(found.ids_BK[:, kept], found.scores_BK[:, kept], found.null_B, words_BK)
    return answerer.read_spans(queries, offered)[0]


def partly_right(question: Question, answer: Answer, correct: bool) -> bool:
    """Is it not quite the right answer, but words of it, or it with more? People may call that right."""
    return not correct and not question.is_regex and f1(answer.answer, question.answers) > 0


def print_table(said: list[Answer], correct: list[bool], unsaid: list[Answer]) -> None:
    """How well both kinds are told apart, and how many are called what."""
    right = [answer for answer, is_right in zip(said, correct, strict=True) if is_right]
    wrong = [answer for answer, is_right in zip(said, correct, strict=True) if not is_right]
    print(
        f"{datetime.date.today()}  {len(said)} questions, {len(right)} answered right; {len(unsaid)} that "
        "nothing read can say"
    )
    is_right = np.array([True] * len(right) + [False] * len(unsaid))
    names = ["probability", "relevance"]
    names += ["confidence"] * (said[0].confidence is not None)
    for name in names if right else []:
        values = np.array([getattr(answer, name) for answer in right + unsaid], dtype=float)
        print(
            f"by {name:12} a right answer is the surer of two {separation(values, is_right):6.1%} of the time"
        )
    kinds = {"right answers": right, "wrong answers": wrong, "answers to what nothing says": unsaid}
    for kind, answers in kinds.items():
        print(
            f"{kind:28}  {'   '.join(f'{name} {middle(answers, name)}' for name in names)}   {words(answers)}"
        )


def middle(answers: list[Answer], name: str) -> str:
    """Lowest decile, median and highest decile."""
    if not answers:
        return "–"
    low, median, high = np.quantile([getattr(answer, name) for answer in answers], [0.1, 0.5, 0.9])
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def words(answers: list[Answer]) -> str:
    """How many are called what."""
    counts = Counter(answer.sure for answer in answers)
    return ", ".join(f"{counts[word]} {word}" for word in ("likely", "unsure", "not found"))


def row(question: str, answer: Answer, correct: bool) -> dict[str, Any]:
    """A judged answer, as `evaluate --predictions` writes them."""
    return asdict(answer) | {"question": question, "correct": correct}


if __name__ == "__main__":
    main()
