"""Where the answers stand: located once, by one pass over the corpus, and kept with the run."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from realmlm.artefact import map_arrays, open_artefact, publish, save_arrays
from realmlm.corpus.questions import Question
from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput, Mismatch
from realmlm.evaluate.matching import AnswerMatcher
from realmlm.log import say, track


class Gold:
    """Questions in wordpieces, and for each the passages and spans (in wordpieces of the passage) that equal an answer."""

    def __init__(self, questions: list[np.ndarray], answers: list[np.ndarray], arrays: dict[str, np.ndarray]) -> None:
        self.questions, self.answers = questions, answers
        self._borders, self._passages, self._spans = arrays["borders"], arrays["passages"], arrays["spans"]

    def __len__(self) -> int:
        return len(self.questions)

    def holds(self, question: int, ids_C: Tensor) -> Tensor:
        """Which of these passages hold an answer of the question."""
        found = self._passages[self._borders[question] : self._borders[question + 1]]
        return torch.from_numpy(np.isin(ids_C.numpy(), found))

    def spans(self, question: int, passage: int) -> np.ndarray:
        """Spans [n, 2] of the answers in a passage."""
        first, last = self._borders[question], self._borders[question + 1]
        start, end = np.searchsorted(self._passages[first:last], [passage, passage + 1]) + first
        return self._spans[start:end]


def locate_answers(folder: Path, corpus: Corpus, questions: list[Question], *, max_answer: int) -> Gold:
    """Find every answer of every question in every passage; read from `folder` if it was done before.

    Questions whose answer stands nowhere are left out of training, and counted. Spans longer than `max_answer` wordpieces cannot be read
    but still say that a passage is right.
    """
    if not folder.exists():
        with publish(folder, kind="answers") as draft:
            rows = sorted(_matches(corpus, questions))
            table = np.array(rows, dtype=np.int64).reshape(-1, 4)
            arrays = {"questions": table[:, 0], "passages": table[:, 1], "spans": table[:, 2:]}
            save_arrays(draft.path / "answers.safetensors", {name: array.copy() for name, array in arrays.items()})
            draft.parents = {"corpus": corpus.fingerprint}
            draft.counts = {"questions": len(questions), "spans": len(rows)}
    manifest = open_artefact(folder, kind="answers")
    if manifest.parents["corpus"] != corpus.fingerprint or manifest.counts["questions"] != len(questions):
        raise Mismatch(f"{folder} was made for another corpus or other questions; use another --out")
    arrays = map_arrays(folder / "answers.safetensors")
    found = np.unique(arrays["questions"])
    if not len(found):
        raise BadInput("none of the answers stands in the corpus: nothing to learn from; give questions about these documents")
    say(f"{len(found):,} of {len(questions):,} questions have an answer in the corpus")
    borders = np.append(np.searchsorted(arrays["questions"], found), len(arrays["questions"]))
    wordpieces = corpus.wordpieces
    tokens = [wordpieces.encode(questions[number].text) for number in found]
    answers = [_first_answer(corpus, arrays, int(first), questions[number]) for number, first in zip(found, borders, strict=False)]
    return Gold(tokens, answers, {"borders": borders, "passages": arrays["passages"], "spans": arrays["spans"]})


def _first_answer(corpus: Corpus, arrays: dict[str, np.ndarray], row: int, question: Question) -> np.ndarray:
    """The answer in wordpieces: as given, or as it stands in the first passage found if the question gives only a pattern."""
    if not question.is_regex:
        return corpus.wordpieces.encode(question.answers[0])
    start, end = arrays["spans"][row]
    return corpus.tokens(int(arrays["passages"][row]))[start:end].astype(np.int64)


def _matches(corpus: Corpus, questions: list[Question]) -> Iterator[tuple[int, int, int, int]]:
    """(question, passage, first wordpiece, past the last) of every place where an answer stands."""
    matcher = AnswerMatcher(questions)
    for number in track(corpus.ids.tolist(), "locating answers", total=len(corpus), unit="passages"):
        found = matcher.find(corpus[number].text)
        if not found:
            continue
        chars = corpus.token_chars(number)
        for question, start, end in found:
            first = int(np.searchsorted(chars[:, 1], start, side="right"))
            last = int(np.searchsorted(chars[:, 0], end, side="left"))
            if first < last:
                yield question, number, first, last
