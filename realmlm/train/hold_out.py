"""Which passages must not be trained on, because held-out sentences stand in them."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from realmlm.corpus.lookups import kept_beside
from realmlm.corpus.questions import Question, read_questions
from realmlm.corpus.store import Corpus
from realmlm.log import progress, say

_RUN = 4  # words in a row: fewer of a sentence, at the edge of a passage, say nothing of where they come from
# Chinese and Japanese put no space between words: each character is one
_WORD = re.compile(r"[\u3040-\u9fff]|[^\W\u3040-\u9fff]+")


def held_out_passages(corpus: Corpus, hold_out: Path | None) -> list[int]:
    """The passages that have one of the masked sentences of a file, or as much of it as a cut elsewhere has
    left; ascending."""
    if hold_out is None:
        return []
    questions = read_questions(hold_out)
    sentences = [_filled_in(question) for question in questions]
    fingerprint = hashlib.sha256(repr(sentences).encode()).hexdigest()
    kept = kept_beside(
        corpus,
        "held-out",
        sought="sentences",
        fingerprint=fingerprint,
        find=lambda: {"passages": _search(corpus, sentences)},
    )
    # a sentence that begins or ends within a word is found only where it names its passage
    named = [
        question.source
        for question in questions
        if question.source is not None and _stands_in_source(corpus, question)
    ]
    passages = sorted({*kept["passages"].tolist(), *named})
    if not passages:
        say(f"none of the sentences of {hold_out} is in {corpus.folder}: nothing needs to be held out")
    return passages


def _search(corpus: Corpus, texts: list[str]) -> np.ndarray:
    """The passages that have one of these sentences."""
    sentences = _Sentences(texts)
    found = []
    with progress("looking for what is held out", len(corpus), unit="passages") as bar:
        for number in corpus.ids.tolist():
            if sentences.overlap(corpus[number].text):
                found.append(number)
            bar.advance(1)
    return np.array(found, dtype=np.int64)


def _filled_in(question: Question) -> str:
    return question.text.replace("[MASK]", question.answers[0])


def _stands_in_source(corpus: Corpus, question: Question) -> bool:
    return (
        question.source is not None
        and question.source in corpus
        and _filled_in(question) in corpus[question.source].text
    )


class _Sentences:
    """Sentences that are recognised in a passage, whole or cut off at its edge; only their words count, in
    lower case."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._begin: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)  # by their first words
        # what is left of them from these words on
        self._go_on: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
        self._short: list[str] = []
        for text in texts:
            words = _words(text)
            if len(words) < _RUN:
                self._short.append(text)
                continue
            for place, run in enumerate(_runs(words)):
                (self._go_on if place else self._begin)[run].append(words[place:])

    def overlap(self, text: str) -> bool:
        words = _words(text)
        if any(_agree(rest, words) for rest in self._go_on.get(tuple(words[:_RUN]), ())):
            return True
        if not self._begin.keys().isdisjoint(_runs(words)):  # seldom, and found out fast
            for place, run in enumerate(_runs(words)):
                if any(_agree(sentence, words[place:]) for sentence in self._begin.get(run, ())):
                    return True
        return any(sentence in text for sentence in self._short)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _runs(words: list[str]) -> Iterable[tuple[str, ...]]:
    return zip(*(words[first:] for first in range(_RUN)), strict=False)


def _agree(words: list[str], others: list[str]) -> bool:
    """Are they the same as far as both go?"""
    return all(word == other for word, other in zip(words, others, strict=False))
