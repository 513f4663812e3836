"""Which passages must not be trained on, because held-out sentences stand in them."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import numpy as np

from realmlm.corpus.lookups import kept_beside
from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.log import progress, say
from realmlm.parallel import default_workers, ordered_map

_CHUNK = 2048  # passages that a worker looks through at once
_FEW = 16  # chunks; fewer are looked through here, sooner than workers could start
_RUN = 4  # words in a row: fewer of a sentence, at the edge of a passage, say nothing of where they come from
# Chinese and Japanese put no space between words: each character is one
_WORD = re.compile(r"[\u3040-\u9fff]|[^\W\u3040-\u9fff]+")


def held_out_passages(corpus: Corpus, hold_out: Path | None) -> list[int]:
    """The passages, ascending, that have a masked sentence of a file, or as much as a cut elsewhere left."""
    if hold_out is None:
        return []
    questions = read_questions(hold_out)
    sentences = [question.text.replace("[MASK]", question.answers[0]) for question in questions]
    fingerprint = hashlib.sha256(repr(sentences).encode()).hexdigest()

    def find() -> dict[str, np.ndarray]:
        return {"passages": _search(corpus, sentences)}

    found = kept_beside(corpus, "held-out", sought="sentences", fingerprint=fingerprint, find=find)
    passages = set(found["passages"].tolist())
    # a sentence that begins or ends within a word is found only where it names its passage
    for question, sentence in zip(questions, sentences, strict=True):
        source = question.source
        if source is not None and source in corpus and sentence in corpus[source].text:
            passages.add(source)
    if not passages:
        say(f"none of the sentences of {hold_out} is in {corpus.folder}: nothing needs to be held out")
    return sorted(passages)


def _search(corpus: Corpus, texts: list[str]) -> np.ndarray:
    """The passages that have one of these sentences; one pass in parallel."""
    chunks = [corpus.ids[first : first + _CHUNK] for first in range(0, len(corpus), _CHUNK)]
    parts = [np.zeros(0, dtype=np.int64)]
    setting = (corpus.folder, corpus.edits, texts)
    found = ordered_map(_looker, setting, chunks, workers=default_workers(), few=_FEW)
    with (
        closing(found) as results,
        progress("looking for what is held out", len(corpus), unit="passages") as bar,
    ):
        for chunk, held_n in zip(chunks, results, strict=True):
            parts.append(held_n)
            bar.advance(len(chunk))
    return np.concatenate(parts)


def _looker(folder: Path, edits: int, texts: list[str]) -> Callable[[np.ndarray], np.ndarray]:
    corpus = Corpus.open(folder, edits=edits)
    sentences = _Sentences(texts)

    def look(ids_P: np.ndarray) -> np.ndarray:
        """Those of these passages that have a sentence."""
        return ids_P[[sentences.overlap(corpus.text(number)) for number in ids_P.tolist()]]

    return look


class _Sentences:
    """Sentences to recognise in a passage, whole or cut off at its edge, by their words in lower case."""

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
