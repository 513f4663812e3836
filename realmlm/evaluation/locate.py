"""Finds all answers of many questions in many passages, as `matching` defines where an answer stands.

T texts, C characters in them, W words, V different words of answers, E edges of their tree, N found.
"""

import re
import string
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from realmlm.corpus.questions import Question
from realmlm.errors import require
from realmlm.evaluation.matching import GAP, LETTER, answer_words, kind_of, pattern_spans

# --- the words of many texts at once ------------------------------------------------------------------------

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64
_SIGMA = 0x3A3  # the one letter whose lower case depends on its place in the word


class _Characters:
    """What is to be known of each code point, found out when it is first met."""

    def __init__(self) -> None:
        points = 0x110000
        self._known = np.zeros(points, dtype=bool)
        self.kind = np.zeros(points, dtype=np.uint8)  # gap, symbol or letter
        self.lower = np.zeros(points, dtype=np.uint32)
        self.parts = np.zeros(points, dtype=np.uint8)  # characters of its decomposition

    def meet(self, codes_C: np.ndarray) -> None:
        """Learn what is not known yet."""
        for code in np.unique(codes_C[~self._known[codes_C]]).tolist():
            self.kind[code] = kind_of(chr(code))
            self.lower[code] = ord(chr(code).lower()[0])  # of a decomposed text: there it is one character
            self.parts[code] = len(unicodedata.normalize("NFD", chr(code)))
            self._known[code] = True


_CHARACTERS = _Characters()


class _FlatWords(NamedTuple):
    """The words of many texts, one after the other."""

    keys_W: np.ndarray
    """A number for each word: the same for the same word, and hardly ever for two."""
    text_W: np.ndarray
    starts_W: np.ndarray
    """First and past-the-last character in its text."""
    ends_W: np.ndarray
    letters_C: np.ndarray
    """All texts decomposed and in lower case; a word is letters_C[first_W : past_W]."""
    first_W: np.ndarray
    past_W: np.ndarray


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def _flat_words(texts: Sequence[str]) -> _FlatWords:
    """The words of `_words` of each text, by operations on all characters at once."""
    joined = "\n".join(texts)  # a line break is no part of a word, nor of what decomposition reorders
    decomposed = joined if joined.isascii() else unicodedata.normalize("NFD", joined)
    codes_C = _code_points(decomposed)
    _CHARACTERS.meet(codes_C)
    kind_C = _CHARACTERS.kind[codes_C]
    visible_C = kind_C != GAP
    letter_C = kind_C == LETTER
    within_C = letter_C[1:] & letter_C[:-1]  # between this character and the next one word goes on
    first_W = np.flatnonzero(np.concatenate([visible_C[:1], visible_C[1:] & ~within_C]))
    past_W = np.flatnonzero(np.concatenate([visible_C[:-1] & ~within_C, visible_C[-1:]])) + 1
    letters_C = _CHARACTERS.lower[codes_C]
    for word in np.unique(np.searchsorted(first_W, np.flatnonzero(codes_C == _SIGMA), side="right") - 1):
        part = slice(first_W[word], past_W[word])
        letters_C[part] = _code_points(decomposed[part].lower())
    starts_W = first_W
    ends_W = past_W
    if decomposed != joined:
        origin_C = _origin(_code_points(joined))
        starts_W = origin_C[first_W]
        ends_W = origin_C[past_W - 1] + 1
    begins_T = np.cumsum([0, *(len(text) + 1 for text in texts)])
    text_W = np.searchsorted(begins_T, starts_W, side="right") - 1
    begin_W = begins_T[text_W]
    keys_W = _keys(letters_C, first_W, past_W)
    return _FlatWords(keys_W, text_W, starts_W - begin_W, ends_W - begin_W, letters_C, first_W, past_W)


def _origin(codes_C: np.ndarray) -> np.ndarray:
    """`_origins` of a text given as code points."""
    _CHARACTERS.meet(codes_C)
    return np.repeat(np.arange(len(codes_C)), _CHARACTERS.parts[codes_C])


def _keys(letters_C: np.ndarray, first_W: np.ndarray, past_W: np.ndarray) -> np.ndarray:
    """Σ letter · base^place modulo 2**64 of each word, as the difference of two sums from the beginning."""
    base = np.full(len(letters_C), _BASE, dtype=np.uint64)
    inverse = np.full(len(letters_C), pow(_BASE, -1, 2**64), dtype=np.uint64)
    terms_C = letters_C * np.multiply.accumulate(base)
    sums_C = np.cumsum(terms_C)
    sums_W = sums_C[past_W - 1] - sums_C[first_W] + terms_C[first_W]
    keys_W: np.ndarray = sums_W * np.multiply.accumulate(inverse)[first_W]
    return keys_W


def _ranges(starts_N: np.ndarray, lengths_N: np.ndarray) -> np.ndarray:
    """The numbers start, start + 1, … of every range, one range after the other."""
    before_N = np.cumsum(lengths_N) - lengths_N
    return np.repeat(starts_N - before_N, lengths_N) + np.arange(lengths_N.sum())


# --- all answers of all questions in many texts -------------------------------------------------------------

_PLAIN = frozenset(string.ascii_letters + string.digits + " ")
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{[\d,]*\}|.", re.DOTALL)
_OPAQUE = re.compile(r"\(\?[^:]|\\[0-9xuUN]")  # inline flags, look-around, named groups; character codes
# the characters beyond ASCII that `re` takes for ASCII letters when it ignores case
_FOLD = str.maketrans("İıſK", "iisk")


class AnswerWords(NamedTuple):
    """String answers, each once, as a tree of words: what it costs to look for them hardly depends on how
    many there are. Arrays only, for the processes that look to share a file.

    An edge leads from a node by a word to another node; its key is node · V + word. A node that ends an
    answer has its number.
    """

    keys_V: np.ndarray
    """The words' keys, ascending."""
    letters: np.ndarray
    """The words themselves, one after the other."""
    borders_V: np.ndarray
    edges_E: np.ndarray
    """Keys of edges, ascending."""
    nodes_E: np.ndarray
    """Where they lead; the root is 0."""
    roots_V: np.ndarray
    """Where those of the root lead, by word; 0 where there is none."""
    answers: np.ndarray
    """For each node the number of the answer that ends there, or −1."""
    inner: np.ndarray
    """For each node: does an edge leave it?"""

    @classmethod
    def of(cls, answers: Iterable[Sequence[str]]) -> "AnswerWords":
        """Of these answers, in words, different and none empty; their numbers are their places."""
        number: dict[str, int] = {}
        numbered = [[number.setdefault(word, len(number)) for word in answer] for answer in answers]
        flat = _flat_words(list(number))
        assert len(flat.keys_W) == len(number), "each word is one word"
        order_V = np.argsort(flat.keys_W)
        keys_V = flat.keys_W[order_V]
        place_V = np.argsort(order_V).tolist()
        edges: dict[int, int] = {}
        ending = []
        for words in numbered:
            node = 0
            for word in words:
                node = edges.setdefault(node * len(number) + place_V[word], len(edges) + 1)
            ending.append(node)
        edges_E = np.array(sorted(edges), dtype=np.int64)
        numbers = np.full(len(edges) + 1, -1, dtype=np.int64)
        numbers[ending] = np.arange(len(ending))
        nodes_E = np.array([edges[key] for key in edges_E.tolist()], dtype=np.int64)
        from_root_E = edges_E < len(number)
        roots_V = np.zeros(len(number), dtype=np.int64)
        roots_V[edges_E[from_root_E]] = nodes_E[from_root_E]
        inner = np.zeros(len(edges) + 1, dtype=bool)
        inner[edges_E // max(1, len(number))] = True
        lengths_V = (flat.past_W - flat.first_W)[order_V]
        return cls(
            keys_V=keys_V,
            letters=flat.letters_C[_ranges(flat.first_W[order_V], lengths_V)],
            borders_V=np.concatenate([[0], np.cumsum(lengths_V)]),
            edges_E=edges_E,
            nodes_E=nodes_E,
            roots_V=roots_V,
            answers=numbers,
            inner=inner,
        )

    def find(self, texts: Sequence[str]) -> np.ndarray:
        """(answer, text, start, end) of every place [N, 4]."""
        if not len(self.keys_V):
            return np.zeros((0, 4), dtype=np.int64)
        flat = _flat_words(texts)
        word_W = self._known(flat)
        node_W = np.where(word_W >= 0, self.roots_V[word_W], 0)
        first_N = np.flatnonzero(node_W)
        last_N = first_N
        node_N = node_W[first_N]
        found = [np.zeros((0, 4), dtype=np.int64)]
        while len(first_N):
            answer_N = self.answers[node_N]
            columns = (flat.text_W[first_N], flat.starts_W[first_N], flat.ends_W[last_N])
            found.append(np.stack([answer_N, *columns], axis=1)[answer_N >= 0])
            next_N = np.minimum(last_N + 1, len(word_W) - 1)
            on_N = self.inner[node_N] & (next_N > last_N) & (word_W[next_N] >= 0)
            on_N &= flat.text_W[next_N] == flat.text_W[last_N]
            edge_N = (node_N * len(self.keys_V) + word_W[next_N])[on_N]
            place_N = np.minimum(np.searchsorted(self.edges_E, edge_N), len(self.edges_E) - 1)
            there_N = self.edges_E[place_N] == edge_N
            first_N = first_N[on_N][there_N]
            last_N = next_N[on_N][there_N]
            node_N = self.nodes_E[place_N[there_N]]
        return np.concatenate(found)

    def _known(self, flat: _FlatWords) -> np.ndarray:
        """The number of each word, −1 for those of no answer: by key, then compared letter by letter."""
        word_W = np.full(len(flat.keys_W), -1)
        rows_N = np.arange(len(flat.keys_W))
        place_N = np.searchsorted(self.keys_V, flat.keys_W)
        while len(rows_N):  # once, and again for words that have the key of another
            there_N = self.keys_V[np.minimum(place_N, len(self.keys_V) - 1)] == flat.keys_W[rows_N]
            there_N &= place_N < len(self.keys_V)
            rows_N = rows_N[there_N]
            place_N = place_N[there_N]
            same_N = self._same(flat, rows_N, place_N)
            word_W[rows_N[same_N]] = place_N[same_N]
            rows_N = rows_N[~same_N]
            place_N = place_N[~same_N] + 1
        return word_W

    def _same(self, flat: _FlatWords, rows_N: np.ndarray, place_N: np.ndarray) -> np.ndarray:
        """Do these words of the texts have the letters of these words of answers?"""
        lengths_N = flat.past_W[rows_N] - flat.first_W[rows_N]
        same_N = self.borders_V[place_N + 1] - self.borders_V[place_N] == lengths_N
        lengths_N = np.where(same_N, lengths_N, 0)
        here = flat.letters_C[_ranges(flat.first_W[rows_N], lengths_N)]
        there = self.letters[_ranges(self.borders_V[place_N], lengths_N)]
        same_N[np.repeat(np.arange(len(rows_N)), lengths_N)[here != there]] = False
        return same_N


class AnswerMatcher:
    """Finds the answers of all questions in many texts, where `answer_spans` finds them for each question."""

    def __init__(self, words: AnswerWords, patterns: dict[int, Question]) -> None:
        """What `Asked` has of both; all patterns of a question are one answer."""
        self._words = words
        self._patterns = patterns
        holding: dict[str, list[int]] = defaultdict(list)
        self._always: list[int] = []  # those whose patterns require no literal: tried on every text
        for number, question in patterns.items():
            literals = required_literals(question.answers)  # plain letters, which decomposition leaves
            for literal in literals:
                holding[literal].append(number)
            if not literals:
                self._always.append(number)
        self._literals = _automaton(holding)

    def find(self, texts: Sequence[str]) -> np.ndarray:
        """(answer, text, start, end) of every place [N, 4], each once."""
        rows = [
            (number, place, *span)
            for place, text in enumerate(texts if self._patterns else ())
            for number in self._candidates(text)
            for span in pattern_spans(text, self._patterns[number])
        ]
        return np.concatenate([self._words.find(texts), np.array(rows, dtype=np.int64).reshape(-1, 4)])

    def _candidates(self, text: str) -> set[int]:
        """The answers that have patterns which may match."""
        candidates = set(self._always)
        if self._literals is not None:
            plain = unicodedata.normalize("NFD", text).translate(_FOLD).lower()
            for _, numbers in self._literals.iter(plain):
                candidates.update(numbers)
        return candidates


class Asked(NamedTuple):
    """What is to be looked for: string answers, questions with patterns, and who asks for them."""

    words: AnswerWords
    patterns: dict[int, Question]
    """By the number of their answer."""
    answers: list[list[int]]
    """Of each question the numbers of its answers."""

    @classmethod
    def by(cls, questions: Sequence[Question]) -> "Asked":
        """By these questions."""
        number: dict[tuple[str, ...], int] = {}
        answers = [
            [number.setdefault(words, len(number)) for words in answer_words(question) if words]
            if not question.is_regex
            else []
            for question in questions
        ]
        regexes = [place for place, question in enumerate(questions) if question.is_regex]
        patterns = {len(number) + count: questions[place] for count, place in enumerate(regexes)}
        for pattern, place in zip(patterns, regexes, strict=True):
            answers[place] = [pattern]
        return cls(AnswerWords.of(number), patterns, answers)

    def by_question(self, answer_N: np.ndarray) -> list[np.ndarray]:
        """For each question which of the answers found are its own, by their places in `answer_N`,
        ascending."""
        order_N = np.argsort(answer_N, kind="stable")
        most = max((max(numbers, default=-1) for numbers in self.answers), default=-1)
        borders = np.searchsorted(answer_N, np.arange(most + 2), sorter=order_N).tolist()

        def places(numbers: list[int]) -> np.ndarray:
            found = [order_N[borders[number] : borders[number + 1]] for number in numbers]
            return found[0] if len(found) == 1 else np.sort(np.concatenate([order_N[:0], *found]))

        return [places(numbers) for numbers in self.answers]


def _automaton(values: dict[str, Any]) -> Any:
    """An automaton that finds the keys and gives their values; None if there are no keys."""
    if not values:
        return None
    automaton = require("ahocorasick", extra="match", why="finding patterns in all passages").Automaton()
    for key, value in values.items():
        automaton.add_word(key, value)
    automaton.make_automaton()
    return automaton


def required_literals(patterns: Iterable[str]) -> set[str]:
    """Lower-case strings, one of which is in every match of any of the patterns; none if that is not certain.

    They are made of characters outside groups and classes that no quantifier makes optional.
    """
    found = set()
    for pattern in patterns:
        if _OPAQUE.search(pattern):
            return set()
        runs = [""]
        depth = 0
        for atom in [*_ATOM.findall(pattern), "|"]:
            if depth == 0 and atom in _PLAIN:
                runs[-1] += atom
            elif depth == 0 and atom == "|":
                longest = max(runs, key=len)
                if not longest:
                    return set()
                found.add(longest.lower())
                runs = [""]
            else:
                if atom[0] in "?*{":
                    runs[-1] = runs[-1][:-1]
                depth += (atom == "(") - (atom == ")")
                runs.append("")
    return found
