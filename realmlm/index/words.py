"""The words of passages and queries, put together again from their wordpieces: no text is read.

A word is known by a number made of its letters in lower case, however it was cut into pieces:

    wordpieces   the  bridge  of  tar  ##emo  ,  18  ##71
    words        the  bridge  of  taremo         1871

T wordpieces, W words, V vocabulary.
"""

import numpy as np

from realmlm.corpus.wordpieces import Wordpieces

_BASE = 0x9E3779B97F4A7C15  # odd: the number of a word is the polynomial of its letters there, modulo 2⁶⁴
_MODULUS = 2**64


class Words:
    """Makes words of wordpieces."""

    def __init__(self, wordpieces: Wordpieces) -> None:
        vocabulary = wordpieces.tokenizer.get_vocab(with_added_tokens=True)
        special = {wordpieces.cls, wordpieces.sep, wordpieces.mask, wordpieces.pad, wordpieces.unk}
        size = max(vocabulary.values()) + 1
        self._number_V = np.zeros(size, dtype=np.uint64)
        self._power_V = np.ones(size, dtype=np.uint64)
        self._spelled_V = np.zeros(size, dtype=bool)  # does it have a letter or digit?
        for piece, token in vocabulary.items():
            letters = "" if token in special else _letters(piece)
            self._number_V[token] = _number(letters)
            self._power_V[token] = pow(_BASE, len(letters), _MODULUS)
            self._spelled_V[token] = bool(letters)
        self._continues_V = wordpieces.continues & self._spelled_V

    def of(self, tokens_T: np.ndarray, firsts: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the words [W] and where in the wordpieces each begins; at `firsts` a text begins."""
        spelled_T = self._spelled_V[tokens_T]
        begins_T = ~self._continues_V[tokens_T]
        begins_T[1:] |= ~spelled_T[:-1]
        begins_T[:1] = True
        begins_T[[] if firsts is None else firsts] = True
        borders = np.flatnonzero(begins_T)  # of words, and of what has no letters
        lengths = np.diff(borders, append=len(tokens_T))
        words = spelled_T[borders]
        first_W = borders[words]
        lengths_W = lengths[words]
        number_W = self._number_V[tokens_T[first_W]]
        longer = np.flatnonzero(lengths_W > 1)
        offset = 1
        while len(longer):
            pieces = tokens_T[first_W[longer] + offset]
            number_W[longer] = number_W[longer] * self._power_V[pieces] + self._number_V[pieces]
            offset += 1
            longer = longer[lengths_W[longer] > offset]
        return number_W, first_W


def _letters(piece: str) -> str:
    """The letters and digits of a wordpiece, without the marks that a vocabulary puts before them."""
    return "".join(filter(str.isalnum, piece.lstrip("Ġ▁").lower()))


def _number(letters: str) -> int:
    number = 0
    for letter in letters:
        number = (number * _BASE + ord(letter)) % _MODULUS
    return number
