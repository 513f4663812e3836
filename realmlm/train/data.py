"""Examples by (seed, position): what a step learns from depends on its number alone.

So a resumed run, and one that works its batches off in parts, sees exactly the same.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from realmlm.corpus.masking import Masking, leave_one, masking, window
from realmlm.corpus.spans import Spans, all_sentences, digest
from realmlm.corpus.store import MAX_TITLE, Corpus
from realmlm.errors import BadInput, NotEnough
from realmlm.model.inputs import Masked, mask_queries
from realmlm.sources.headings import BETWEEN


@lru_cache(maxsize=2)
def _permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, 1, epoch]).permutation(size)


def epoch_positions(size: int, *, seed: int, first: int, count: int) -> np.ndarray:
    """`count` of `size` things from position `first` on: each once an epoch, every epoch in another order."""
    positions = np.arange(first, first + count)
    places = zip(positions // size, positions % size, strict=True)
    return np.array([_permutation(size, seed, epoch)[place] for epoch, place in places])


def generator(seed: int, position: int) -> np.random.Generator:
    """The random generator of the example at a position."""
    return np.random.default_rng([seed, 2, position])


@dataclass(frozen=True)
class MaskedSentences:
    """Masked sentences and the passages they come from."""

    masked: Masked
    passages: np.ndarray
    seen: list[np.ndarray]  # what the query tower is given: the masked sentence, or a glimpse of it


@dataclass(frozen=True, eq=False)
class Example:
    """A sentence, the positions that are hidden, and the passage it comes from."""

    tokens: np.ndarray
    positions: np.ndarray
    passage: int


class SentenceSource:
    """Masked sentences of a corpus, drawn by position."""

    def __init__(
        self,
        corpus: Corpus,
        scheme: str | Masking,
        *,
        max_query: int,
        seed: int,
        held_out: Iterable[int] = (),
        recurring: bool = False,
        glimpses: float = 0.0,
    ) -> None:
        """`scheme` is a masking scheme or the name of one. Sentences of the passages `held_out` are never
        drawn; with `recurring` only words that another passage has too are hidden; of a share `glimpses` of
        them the query tower is to see a glimpse only."""
        self.corpus = corpus
        self._max_query = max_query
        self._seed = seed
        self._masking: Masking = masking(scheme, corpus.wordpieces) if isinstance(scheme, str) else scheme
        self._glimpses = glimpses
        marked = self._masking.needs_spans
        sentences = Spans.open(corpus) if marked else all_sentences(corpus, min_wordpieces=4)
        sentences = sentences.recurring(corpus) if recurring else sentences
        if len(sentences) == 0:
            raise NotEnough(
                f"{corpus.folder} has no sentence to mask; use another --masking or a larger corpus"
            )
        self.sentences = sentences.without(held_out)
        if len(self.sentences) == 0:
            raise NotEnough(
                f"--hold-out leaves no sentence of {corpus.folder} to mask: copies of held-out passages are "
                "held out too; hold out fewer sentences, or use a larger corpus"
            )

    def draw(self, first: int, count: int) -> MaskedSentences:
        """The examples from position `first` on, masked."""
        examples = self.examples(first, count)
        masked = self.masked(examples)
        pairs = enumerate(zip(examples, masked.queries, strict=True), first)
        seen = [self._seen(example, query, position) for position, (example, query) in pairs]
        passages = np.array([example.passage for example in examples], dtype=np.int64)
        return MaskedSentences(masked, passages, seen)

    def _seen(self, example: Example, query: np.ndarray, position: int) -> np.ndarray:
        if not self._glimpses:
            return query
        rng = generator(self._seed + 2, position)
        if rng.random() >= self._glimpses:
            return query
        return glimpse(np.delete(example.tokens, example.positions), int(example.positions[0]), rng)

    def examples(self, first: int, count: int) -> list[Example]:
        """The examples from position `first` on."""
        numbers = epoch_positions(len(self.sentences), seed=self._seed, first=first, count=count)
        sentences = self.sentences.take(numbers.tolist())
        bodies = self.corpus.tokens_of([sentence.passage for sentence in sentences]).bodies
        found = []
        for place, (sentence, body) in enumerate(zip(sentences, bodies, strict=True)):
            tokens = body[sentence.start : sentence.end]
            rng = generator(self._seed, first + place)
            hidden = np.asarray(self._masking.choose(tokens, sentence.spans, rng))
            _check_hidden(hidden, len(tokens), self._masking)
            example = self._cut(tokens, hidden, sentence.passage)
            # of a long word nothing but masks may be left
            positions = leave_one(example.positions, len(example.tokens), rng)
            found.append(replace(example, positions=positions))
        return found

    def example(self, number: int, positions: np.ndarray) -> Example:
        """A sentence with these of its wordpieces hidden."""
        sentence = self.sentences[number]
        tokens = self.corpus.tokens(sentence.passage)[sentence.start : sentence.end]
        return self._cut(tokens, positions, sentence.passage)

    def _cut(self, tokens: np.ndarray, positions: np.ndarray, passage: int) -> Example:
        if len(tokens) > self._max_query:
            tokens, positions = window(tokens, positions, self._max_query)
        return Example(tokens, positions, passage)

    def masked(self, examples: list[Example]) -> Masked:
        """The examples as queries with [MASK]."""
        tokens = [example.tokens for example in examples]
        return mask_queries(tokens, [example.positions for example in examples], self.corpus.wordpieces)


def _check_hidden(positions: np.ndarray, length: int, scheme: Masking) -> None:
    """Does a scheme, which may be one's own, keep to what `Masking` promises?"""
    whole = positions.ndim == 1 and positions.dtype.kind in "iu"
    some = whole and 1 <= len(positions) <= max(1, length - 1)
    inside = some and positions[0] >= 0 and positions[-1] < length
    if not (inside and (positions[1:] > positions[:-1]).all()):
        raise BadInput(
            f"{type(scheme).__qualname__}.choose gave {positions.tolist()} for a sentence of {length} "
            "wordpieces; give positions in it, ascending, at least one and never all (docs/own.md)"
        )


GLIMPSE = (6, 17)  # wordpieces, the last one excluded: as questions have


def glimpse(tokens: np.ndarray, place: int, rng: np.random.Generator) -> np.ndarray:
    """Some wordpieces of a sentence around a place in it: about as much as a question tells."""
    length = int(rng.integers(*GLIMPSE))
    start = place - int(rng.integers(length + 1))
    start = max(0, min(start, len(tokens) - length))
    return tokens[start : start + length]


NULL_SHARE = 0.1  # of the reader's warm-up pairs
RECURRING_SHARE = 0.45


class ReadingPairs:
    """Masked sentences, each with a passage to read beside it: what the reader warms up on.

    `own` is the sentence's passage; `sibling` another one of its article, if there is one; `recurring` one of
    its article in which the hidden words stand too in nearly half of the cases, else a sibling. One pair in
    ten has no passage: a reader must know how little it knows.
    """

    def __init__(self, source: SentenceSource, *, pairing: str, seed: int) -> None:
        self._source = source
        self._pairing = pairing
        self._seed = seed
        self._recurrences = Recurrences(source.corpus, source.sentences) if pairing == "recurring" else None

    def draw(self, first: int, count: int) -> tuple[Masked, np.ndarray]:
        """Masked sentences from position `first` on, and the passage to read with each (−1: none)."""
        examples = []
        passages = []
        for place, example in enumerate(self._source.examples(first, count)):
            rng = generator(self._seed + 1, first + place)
            chance = rng.random()
            if self._recurrences is not None and chance >= 1 - RECURRING_SHARE:
                example, passage, _ = self._recurrences.pair(self._source, rng)
                passages.append(passage)
            else:
                passages.append(self._beside(example.passage, chance < NULL_SHARE, rng))
            examples.append(example)
        return self._source.masked(examples), np.array(passages, dtype=np.int64)

    def _beside(self, passage: int, alone: bool, rng: np.random.Generator) -> int:
        if alone or self._pairing == "null":
            return -1
        others = () if self._pairing == "own" else self._source.corpus.siblings(passage)
        return int(rng.choice(others)) if len(others) else passage


def document_title(corpus: Corpus, passage: int) -> np.ndarray:
    """The wordpieces of a passage's title without those of the headings above it."""
    tokens = corpus.title_tokens(passage)
    title, below, _ = corpus[passage].title.partition(BETWEEN)
    return corpus.wordpieces.encode(title)[:MAX_TITLE].astype(tokens.dtype) if below else tokens


class Recurrences:
    """Marked spans whose words are marked in another passage of the same title too, headings aside. A copy of
    the passage is no other one: it would be found, and read, by repeating what is asked."""

    def __init__(self, corpus: Corpus, sentences: Spans) -> None:
        flat = array("q")  # words, passage, sentence, and the span within the sentence, of every span
        self._body_P = np.zeros(corpus.ids.max(initial=-1) + 1, dtype=np.int64)  # by passage
        title = b""
        passage = -1
        tokens = np.zeros(0, dtype=np.int64)
        for number in range(len(sentences)):
            sentence = sentences[number]
            if sentence.passage != passage:
                passage = sentence.passage
                tokens = corpus.tokens(sentence.passage)
                self._body_P[passage] = digest(tokens.tobytes())
                title = digest(document_title(corpus, passage).tobytes()).to_bytes(8)
            for start, end in sentence.spans.tolist():
                words = digest(title + tokens[sentence.start + start : sentence.start + end].tobytes())
                flat.extend((words, passage, number, start, end))
        table_M5 = np.array(flat, dtype=np.int64).reshape(-1, 5)
        table_M5 = table_M5[np.lexsort(table_M5.T[::-1])]
        borders = np.append(np.flatnonzero(np.diff(table_M5[:, 0], prepend=-1)), len(table_M5))
        groups_G2 = np.stack([borders[:-1], borders[1:]], axis=1)
        bodies_M = self._body_P[table_M5[:, 1]]
        first_M = np.repeat(bodies_M[groups_G2[:, 0]], np.diff(groups_G2)[:, 0])
        others_G = (
            np.add.reduceat(bodies_M != first_M, groups_G2[:, 0]) if len(groups_G2) else groups_G2[:, 0]
        )
        self._groups_G2 = groups_G2[others_G > 0]  # in two different passages or more
        self._table_M5 = table_M5
        if not len(self):
            lacking = f"{corpus.folder} has no marked words that occur in two passages of the same title"
            raise NotEnough(f"{lacking}; use --pairing sibling and --retriever-objective ict")

    def __len__(self) -> int:
        return len(self._groups_G2)

    def pair(self, source: SentenceSource, rng: np.random.Generator) -> tuple[Example, int, np.ndarray]:
        """A sentence that hides such words, another passage that has them, and all that have, copies among
        them."""
        first, last = self._groups_G2[rng.integers(len(self))]
        _, passage, sentence, start, end = self._table_M5[rng.integers(first, last)].tolist()
        passages = self._table_M5[first:last, 1]
        another = int(rng.choice(passages[self._body_P[passages] != self._body_P[passage]]))
        return source.example(sentence, np.arange(start, end)), another, passages


@dataclass(frozen=True)
class SentencePairs:
    """Sentences and the passages, title and body, they belong to."""

    sentences: list[np.ndarray]
    titles: list[np.ndarray]
    bodies: list[np.ndarray]
    passages: np.ndarray
    contents: np.ndarray  # a number for the whole body of each, that of its copies too


class ClozePairs:
    """Inverse cloze task (Lee et al. 2019): a sentence and its passage, mostly without the sentence."""

    def __init__(self, corpus: Corpus, *, remove: float, seed: int, held_out: Iterable[int] = ()) -> None:
        self._corpus = corpus
        self._remove = remove
        self._seed = seed
        held_out = list(held_out)
        self._passages = corpus.ids[(corpus.sentence_counts >= 2) & ~np.isin(corpus.ids, held_out)]
        if len(self._passages) < 2:
            left = " that --hold-out leaves" if held_out else ""
            raise NotEnough(
                f"{corpus.folder} has fewer than two passages of several sentences{left}: ICT has nothing to "
                "learn retrieval from; add documents, or skip it: --retriever.steps 0"
            )

    def __len__(self) -> int:
        return len(self._passages)

    def draw(self, first: int, count: int) -> SentencePairs:
        """The pairs from position `first` on."""
        sentences = []
        titles = []
        bodies = []
        contents = []
        passages = self._passages[epoch_positions(len(self), seed=self._seed, first=first, count=count)]
        for place, number in enumerate(passages):
            rng = generator(self._seed, first + place)
            tokens = self._corpus.tokens(number)
            borders = self._corpus.sentences(number)
            chosen = rng.integers(len(borders) - 1)
            start = borders[chosen]
            end = borders[chosen + 1]
            sentences.append(tokens[start:end])
            titles.append(self._corpus.title_tokens(number))
            contents.append(digest(tokens.tobytes()))
            without = rng.random() < self._remove
            bodies.append(np.concatenate([tokens[:start], tokens[end:]]) if without else tokens)
        return SentencePairs(sentences, titles, bodies, passages, np.array(contents, dtype=np.int64))
