"""Masking schemes: which wordpieces of a sentence a model has to predict.

Salient spans are REALM's own (§3.4 of the paper); the others are what its ablation compares them with.
"""

from typing import Protocol

import numpy as np

from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import BadInput

# L wordpieces of a sentence, N spans, W words


class Masking(Protocol):
    """What every masking scheme offers."""

    needs_spans: bool
    """Does `choose` use the salient spans? Then a sentence must have one."""

    def choose(self, tokens_L: np.ndarray, spans_N2: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The positions in a sentence to be replaced by [MASK]: ascending, at least one, and never all of
        them unless there is only one."""


class SalientSpan:
    """Masks one of the salient spans, all equally likely. If all have more than `max_masks` wordpieces, it is
    the shortest."""

    needs_spans = True

    def __init__(self, max_masks: int = 10) -> None:
        self.max_masks = max_masks

    def choose(self, tokens_L: np.ndarray, spans_N2: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        assert len(spans_N2), "salient span masking got a sentence without spans"
        lengths_N = spans_N2[:, 1] - spans_N2[:, 0]
        eligible = np.flatnonzero(lengths_N <= self.max_masks)
        start, end = spans_N2[rng.choice(eligible) if len(eligible) else lengths_N.argmin()]
        return leave_one(np.arange(start, end), len(tokens_L), rng)


class RandomUniform:
    """Masks single wordpieces, as BERT does: a share `rate` of them, each choice equally likely."""

    needs_spans = False

    def __init__(self, rate: float = 0.15) -> None:
        self.rate = rate

    def choose(self, tokens_L: np.ndarray, spans_N2: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        length = len(tokens_L)
        positions = np.sort(rng.choice(length, size=_budget(self.rate, length), replace=False))
        return leave_one(positions, length, rng)


class _OfWords:
    """What the schemes that mask whole words have in common."""

    needs_spans = False

    def __init__(self, wordpieces: Wordpieces, rate: float = 0.15) -> None:
        self.continues = wordpieces.continues
        self.rate = rate


class WholeWord(_OfWords):
    """Masks whole words in random order: the first, then each that still fits into `rate` of the
    wordpieces."""

    def choose(self, tokens_L: np.ndarray, spans_N2: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        words_L = _words(tokens_L, self.continues)
        sizes_W = np.bincount(words_L)
        order = rng.permutation(len(sizes_W))
        chosen = [order[0]]
        left = _budget(self.rate, len(tokens_L)) - sizes_W[order[0]]
        for word in order[1:]:
            if sizes_W[word] <= left:
                chosen.append(word)
                left -= sizes_W[word]
        return leave_one(np.flatnonzero(np.isin(words_L, chosen)), len(tokens_L), rng)


class RandomSpan(_OfWords):
    """Masks runs of whole words, as SpanBERT does, until `rate` of the wordpieces is reached.

    A run begins at any word not yet chosen; its length in words is geometric with p = 0.2, drawn again above
    10 (3.8 on average). It stops at the end of the sentence and as soon as the rate is reached, which only
    the last word may exceed.
    """

    _LENGTHS = np.arange(1, 11)
    _CHANCES = 0.8**_LENGTHS / (0.8**_LENGTHS).sum()

    def choose(self, tokens_L: np.ndarray, spans_N2: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        words_L = _words(tokens_L, self.continues)
        sizes_W = np.bincount(words_L)
        chosen_W = np.zeros(len(sizes_W), dtype=bool)
        budget = _budget(self.rate, len(tokens_L))
        while sizes_W[chosen_W].sum() < budget:
            first = rng.choice(np.flatnonzero(~chosen_W))
            for word in range(first, min(first + rng.choice(self._LENGTHS, p=self._CHANCES), len(sizes_W))):
                chosen_W[word] = True
                if sizes_W[chosen_W].sum() >= budget:
                    break
        return leave_one(np.flatnonzero(chosen_W[words_L]), len(tokens_L), rng)


NAMES = ("salient", "random-span", "uniform", "whole-word")


def masking(name: str, wordpieces: Wordpieces) -> Masking:
    """The scheme of this name, one of `NAMES`, with its usual settings."""
    match name:
        case "salient":
            return SalientSpan()
        case "random-span":
            return RandomSpan(wordpieces)
        case "uniform":
            return RandomUniform()
        case "whole-word":
            return WholeWord(wordpieces)
    raise BadInput(f"no masking scheme '{name}'; choose from: {', '.join(NAMES)}")


def window(tokens_L: np.ndarray, positions: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """A sentence cut to `length` wordpieces around its first mask, and the masks that are in it."""
    if len(tokens_L) <= length:
        return tokens_L, positions
    start = int(np.clip(positions[0] - length // 2, 0, len(tokens_L) - length))
    inside = positions[(positions >= start) & (positions < start + length)]
    return tokens_L[start : start + length], inside - start


def _budget(rate: float, length: int) -> int:
    return max(1, round(rate * length))


def _words(tokens_L: np.ndarray, continues: np.ndarray) -> np.ndarray:
    """The number of each wordpiece's word. The first piece begins a word, even if a cut sentence starts
    inside one."""
    begins_L = ~continues[tokens_L]
    begins_L[0] = True
    return np.cumsum(begins_L) - 1


def leave_one(positions: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """The positions without one of them if they are a whole sentence: something must be left to read."""
    if len(positions) < length or length == 1:
        return positions
    return np.delete(positions, rng.integers(length))
