"""Masked sentences with known answers and gold passages: is the passage found, is the word right?"""

from dataclasses import dataclass

import numpy as np

from realmlm.corpus.questions import Question
from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.evaluate.answers import exact_match
from realmlm.model.answering import BATCH, Answer, Answerer
from realmlm.model.realm import Realm
from realmlm.model.retrieval import Query, Retrieved, Retriever


@dataclass(frozen=True)
class ClozeResult:
    """One sentence: the answer with its evidence, whether it is right, and whether a gold passage was retrieved first."""

    answer: Answer
    right: bool
    gold_first: bool


def is_cloze(question: Question) -> bool:
    return "[MASK]" in question.text


def widen_masks(question: Question, wordpieces: Wordpieces) -> Query:
    """A [MASK] stands for the whole answer: as many masks as its first answer has wordpieces, as in pre-training."""
    tokens = wordpieces.encode_query(question.text)
    count = max(1, len(wordpieces.encode(question.answers[0])))
    places = np.flatnonzero(tokens == wordpieces.mask)
    if len(places) == 1:
        tokens = np.concatenate([tokens[: places[0]], np.full(count, wordpieces.mask), tokens[places[0] + 1 :]])
    return Query(question.text, tokens)


def measure_clozes(
    model: Realm, wordpieces: Wordpieces, corpus: Corpus, retriever: Retriever, questions: list[Question], *, read: int
) -> list[ClozeResult]:
    """Fill in every sentence from the `read` best passages and the null document."""
    answerer, results = Answerer(model, wordpieces, corpus, retriever), []
    for first in range(0, len(questions), BATCH):
        some = questions[first : first + BATCH]
        queries = [widen_masks(question, wordpieces) for question in some]
        retrieved: Retrieved = retriever(queries, read)
        for question, answer, ids in zip(some, answerer.fill_masks(queries, retrieved), retrieved.ids_BK.tolist(), strict=True):
            results.append(ClozeResult(answer, exact_match(answer.answer, question.answers), bool(ids) and ids[0] in question.gold))
    return results
