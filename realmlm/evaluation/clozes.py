"""Masked sentences with known answers, some with gold passages: is the passage found, is the word right?"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from realmlm.corpus.masking import window
from realmlm.corpus.questions import Question
from realmlm.corpus.spans import Spans
from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import NotEnough
from realmlm.evaluation.answers import exact_match
from realmlm.evaluation.matching import contains_answer
from realmlm.index.duplicates import SameWords
from realmlm.reading.answer import Answer, Answerer
from realmlm.reading.retrieve import Query, retrieve

_LONGEST = 10  # wordpieces of a span that is hidden
_SHORTEST = 8  # wordpieces of a sentence worth filling in


@dataclass(frozen=True)
class ClozeResult:
    """The answer to one sentence, whether it is right, and whether the passage retrieved first is a gold one
    or, where none is named, holds the hidden words."""

    answer: Answer
    right: bool
    found_first: bool


def make_clozes(
    corpus: Corpus, *, count: int, max_query: int, seed: int, recurring: bool = False, each: int = 1
) -> list[Question]:
    """Masked sentences of `count` passages to hold out, no two of them copies: at most `each` of a passage,
    one of its marked spans hidden, the passage itself named as their source.

    With `recurring` only spans are hidden whose words are marked in another passage too.
    """
    spans = Spans.open(corpus)
    rng = np.random.default_rng(seed)
    spans = spans.recurring(corpus) if recurring else spans
    clozes: list[Question] = []
    taken: Counter[int] = Counter()
    owners: dict[bytes, int] = {}  # which passage was taken for these words
    for number in rng.permutation(len(spans)).tolist():
        sentence = spans[number]
        short = [span for span in sentence.spans.tolist() if span[1] - span[0] <= _LONGEST]
        full = taken[sentence.passage] == each if sentence.passage in taken else len(taken) == count
        words = corpus.tokens(sentence.passage).tobytes()
        copied = owners.get(words, sentence.passage) != sentence.passage
        if full or copied or not short or not _SHORTEST <= sentence.end - sentence.start <= max_query:
            continue
        owners[words] = sentence.passage
        chars_T2 = corpus.token_chars(sentence.passage).astype(int)
        text = corpus[sentence.passage].text
        start, end = np.array(short[rng.integers(len(short))]) + sentence.start
        first = chars_T2[sentence.start, 0]
        past = chars_T2[sentence.end - 1, 1]
        masked = f"{text[first : chars_T2[start, 0]]}[MASK]{text[chars_T2[end - 1, 1] : past]}"
        answer = text[chars_T2[start, 0] : chars_T2[end - 1, 1]]
        taken[sentence.passage] += 1
        clozes.append(Question(masked, (answer,), id=str(len(clozes)), source=sentence.passage))
        if len(clozes) == count * each:
            break
    if len(taken) < count:
        has = f"{corpus.folder} has only {len(taken)} passages with a sentence to hold out"
        raise NotEnough(f"{has}; ask for fewer than {count}")
    return clozes


def is_cloze(question: Question) -> bool:
    """Is it a sentence to fill in?"""
    return "[MASK]" in question.text


def source_copies(corpus: Corpus, questions: list[Question]) -> list[tuple[int, ...]]:
    """For each question the passages it must not be shown: the one it was taken from, and its copies."""
    if all(question.source is None for question in questions):
        return [() for _ in questions]
    same = SameWords(corpus, corpus)

    def copies(source: int | None) -> tuple[int, ...]:
        there = source is not None and source in corpus
        return tuple(same(np.array([source]))[0].tolist()) if there else ()

    return [copies(question.source) for question in questions]


def widen_masks(
    question: Question, sources: tuple[int, ...], wordpieces: Wordpieces, *, max_query: int
) -> Query:
    """A sentence as a query: as many masks as its first answer has wordpieces, as in pre-training.

    Of a sentence that is too long, the part around the masks stays. `sources` are never offered.
    """
    tokens = wordpieces.encode_query(question.text)
    count = max(1, len(wordpieces.encode(question.answers[0])))
    places = np.flatnonzero(tokens == wordpieces.mask)
    if len(places) == 1:
        masks = np.full(count, wordpieces.mask)
        tokens = np.concatenate([tokens[: places[0]], masks, tokens[places[0] + 1 :]])
    if len(places):
        tokens, _ = window(tokens, places, max_query)
    return Query(question.text, tokens, sources)


def measure_clozes(
    answerer: Answerer, questions: list[Question], own: list[tuple[int, ...]], *, read: int
) -> list[ClozeResult]:
    """Fill in every sentence from the `read` best passages and the null document, none of its `own`."""
    wordpieces = answerer.model.wordpieces
    limit = answerer.model.config.max_query
    results = []
    pairs = zip(questions, own, strict=True)
    widened = [widen_masks(*pair, wordpieces, max_query=limit) for pair in pairs]
    for first in range(0, len(questions), answerer.at_once):
        batch = slice(first, first + answerer.at_once)
        retrieved = retrieve(answerer.retriever, widened[batch], read)
        answers = answerer.fill_masks(widened[batch], retrieved)
        for question, answer, ids in zip(questions[batch], answers, retrieved.ids_BK.tolist(), strict=True):
            if ids and question.gold:
                found = ids[0] in question.gold
            else:
                found = bool(ids) and contains_answer(answerer.corpus[ids[0]].text, question, recall="dpr")
            results.append(ClozeResult(answer, exact_match(answer.answer, question.answers), found))
    return results
