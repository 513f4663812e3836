"""Examples by (seed, position): what a step learns from depends on nothing but its number, so a resumed run sees exactly the same,
and so does one that works its batches off in parts."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from realmlm.corpus.masking import Masking, masking
from realmlm.corpus.spans import Spans, all_sentences
from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import NotEnough
from realmlm.model.inputs import Masked, mask_queries


@lru_cache(maxsize=2)
def _permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, 1, epoch]).permutation(size)


def epoch_positions(size: int, *, seed: int, first: int, count: int) -> np.ndarray:
    """`count` of `size` things from position `first` on: every thing once in each epoch, each epoch in another order."""
    positions = np.arange(first, first + count)
    return np.array([_permutation(size, seed, epoch)[place] for epoch, place in zip(positions // size, positions % size, strict=True)])


def generator(seed: int, position: int) -> np.random.Generator:
    """The random generator of the example at a position."""
    return np.random.default_rng([seed, 2, position])


@dataclass(frozen=True)
class MaskedSentences:
    """Masked sentences and the passages they come from."""

    masked: Masked
    passages: np.ndarray


class SentenceSource:
    """Masked sentences of a corpus, drawn by step."""

    def __init__(self, corpus: Corpus, *, scheme: str, wordpieces: Wordpieces, max_query: int, seed: int) -> None:
        self.corpus, self._wordpieces, self._max_query, self._seed = corpus, wordpieces, max_query, seed
        self._masking: Masking = masking(scheme, wordpieces)
        self.sentences = Spans.open(corpus) if self._masking.needs_spans else all_sentences(corpus, min_wordpieces=4)
        if len(self.sentences) == 0:
            raise NotEnough(f"{corpus.folder} has no sentence to mask; another --masking or a larger corpus is needed")

    def draw(self, first: int, count: int) -> MaskedSentences:
        """The examples from position `first` on."""
        queries, positions, passages = [], [], []
        for place, number in enumerate(epoch_positions(len(self.sentences), seed=self._seed, first=first, count=count)):
            sentence, rng = self.sentences[int(number)], generator(self._seed, first + place)
            tokens = self.corpus.tokens(sentence.passage)[sentence.start : sentence.end]
            chosen = self._masking.choose(tokens, sentence.spans, rng)
            tokens, chosen = window(tokens, chosen, self._max_query)
            queries.append(tokens)
            positions.append(chosen)
            passages.append(sentence.passage)
        return MaskedSentences(mask_queries(queries, positions, self._wordpieces), np.array(passages, dtype=np.int64))


def window(tokens_L: np.ndarray, positions: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut a sentence to `length` wordpieces around its first mask; masks that do not fit are left out."""
    if len(tokens_L) <= length:
        return tokens_L, positions
    start = int(np.clip(positions[0] - length // 2, 0, len(tokens_L) - length))
    kept = positions[(positions >= start) & (positions < start + length)]
    return tokens_L[start : start + length], kept - start


def companion(corpus: Corpus, passage: int, *, pairing: str, rng: np.random.Generator) -> np.ndarray:
    """What lies beside a masked sentence in the reader's warm-up: its own passage, a sibling (its own if it has none), or nothing."""
    if pairing == "null":
        return np.zeros(0, dtype=np.int64)
    others = corpus.siblings(passage) if pairing == "sibling" else np.zeros(0, dtype=np.int64)
    return corpus.tokens(int(rng.choice(others)) if len(others) else passage)


@dataclass(frozen=True)
class SentencePairs:
    """Sentences and the passages, title and body, they belong to."""

    sentences: list[np.ndarray]
    titles: list[np.ndarray]
    bodies: list[np.ndarray]
    passages: np.ndarray


class ClozePairs:
    """Inverse cloze task: a sentence and its passage, the sentence taken out of it most of the time (Lee et al. 2019)."""

    def __init__(self, corpus: Corpus, *, remove: float, seed: int) -> None:
        self._corpus, self._remove, self._seed = corpus, remove, seed
        self._passages = corpus.ids[corpus.sentence_counts >= 2]
        if len(self._passages) < 2:
            raise NotEnough(
                f"{corpus.folder} has fewer than two passages of several sentences: nothing to learn retrieval from by ICT; "
                "add documents, or leave it out: --retriever.steps 0"
            )

    def __len__(self) -> int:
        return len(self._passages)

    def draw(self, first: int, count: int) -> SentencePairs:
        """The pairs from position `first` on."""
        sentences, titles, bodies = [], [], []
        passages = self._passages[epoch_positions(len(self), seed=self._seed, first=first, count=count)]
        for place, number in enumerate(passages):
            rng = generator(self._seed, first + place)
            tokens, borders = self._corpus.tokens(number), self._corpus.sentences(number)
            chosen = rng.integers(len(borders) - 1)
            start, end = borders[chosen], borders[chosen + 1]
            sentences.append(tokens[start:end])
            titles.append(self._corpus.title_tokens(number))
            bodies.append(np.concatenate([tokens[:start], tokens[end:]]) if rng.random() < self._remove else tokens)
        return SentencePairs(sentences, titles, bodies, passages)
