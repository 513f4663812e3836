"""Finds answers in passages by DPR's definition (`has_answer`), for training and, by default, for evaluation.

A string answer occurs where its words occur one after the other as words of the passage. The text is
decomposed (NFD); a word is a run of letters, numbers and combining marks, or any other single visible
character, in lower case. A pattern (CuratedTREC) occurs where it matches in the decomposed text, ignoring
case. Spans are character offsets into the original text. Overlapping occurrences all count, in the order of
their start. An answer without a word is found in every text, and a pattern may match the empty string: such
occurrences have no span. docs/measures.md compares this with ORQA's definition, the other choice for recall.
"""

import re
import string
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal

from realmlm.corpus.questions import Question, compile_answer
from realmlm.errors import BadInput, require

Span = tuple[int, int]
Recall = Literal["dpr", "orqa"]


def contains_answer(text: str, question: Question, *, recall: Recall) -> bool:
    """Does any answer of the question occur in the text? With dpr as defined above; with orqa as the same
    characters, even within a word."""
    if recall == "orqa":
        return any(answer in text for answer in question.answers)
    if question.is_regex:
        decomposed = unicodedata.normalize("NFD", text)
        return any(pattern.search(decomposed) for pattern in _patterns(question))
    return () in _answer_words(question) or (
        _may_occur(text, question) and bool(answer_spans(text, question))
    )


def _may_occur(text: str, question: Question) -> bool:
    """Are all ASCII words of an answer somewhere in the text, even within other words? Quick, and for most
    passages the answer is no."""
    plain = (text if text.isascii() else unicodedata.normalize("NFD", text)).lower()
    return any(all(word in plain for word in answer if word.isascii()) for answer in _answer_words(question))


def answer_spans(text: str, question: Question) -> list[Span]:
    """The spans (start, end) of all occurrences of all answers, sorted, each once."""
    if question.is_regex:
        return _pattern_spans(text, question)
    words, bounds = _words(text)
    spans = set()
    for answer in filter(None, _answer_words(question)):
        for first in range(len(words) - len(answer) + 1):
            if words[first] == answer[0] and tuple(words[first : first + len(answer)]) == answer:
                spans.add((bounds[2 * first], bounds[2 * (first + len(answer)) - 1]))
    return sorted(spans)


def _pattern_spans(text: str, question: Question) -> list[Span]:
    decomposed = unicodedata.normalize("NFD", text)
    found = {match.span() for pattern in _patterns(question) for match in pattern.finditer(decomposed)}
    spans = {(start, end) for start, end in found if start < end}
    if spans and decomposed != text:
        origin = _origins(text)
        spans = {(origin[start], origin[end - 1] + 1) for start, end in spans}
    return sorted(spans)


@lru_cache(maxsize=4096)
def _answer_words(question: Question) -> tuple[tuple[str, ...], ...]:
    return tuple({tuple(_words(answer)[0]): None for answer in question.answers})


@lru_cache(maxsize=4096)
def _patterns(question: Question) -> tuple[re.Pattern[str], ...]:
    """The patterns of a question, decomposed as the text is. One that this breaks ([à-é] becomes a range that
    ends before it begins) matches nothing."""
    patterns = []
    for answer in question.answers:
        compile_answer(answer)
        with suppress(BadInput):
            patterns.append(compile_answer(unicodedata.normalize("NFD", answer)))
    return tuple(patterns)


# --- words --------------------------------------------------------------------------------------------------

_WORD = re.compile(r"([A-Za-z0-9]+|[!-~])")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")


class _Shape(dict[int, str]):
    """For str.translate: an ASCII character of the same kind for every character, so that one fast pattern
    can split all scripts into words."""

    def __missing__(self, code: int) -> str:
        kind = unicodedata.category(chr(code))[0]
        self[code] = "x" if kind in "LNM" else " " if kind in "ZC" else "!"
        return self[code]


_SHAPE = _Shape()


def _words(text: str) -> tuple[list[str], list[int]]:
    """The words of a text, and where they are: word i is text[bounds[2i]:bounds[2i+1]]."""
    if text.isascii():
        pieces = _WORD.split(text.lower())  # gap, word, gap, word, …, gap
        return pieces[1::2], list(accumulate(map(len, pieces)))
    decomposed = unicodedata.normalize("NFD", text)
    # on English text 5 times faster than translating all of it
    shape = _BEYOND_ASCII.sub(lambda run: run[0].translate(_SHAPE), decomposed)
    bounds = list(accumulate(map(len, _WORD.split(shape))))
    starts = bounds[0:-1:2]
    ends = bounds[1::2]
    words = [decomposed[start:end].lower() for start, end in zip(starts, ends, strict=True)]
    if decomposed != text:
        origin = _origins(text)
        bounds[0:-1:2] = [origin[start] for start in starts]
        bounds[1::2] = [origin[end - 1] + 1 for end in ends]
    return words, bounds


def _origins(text: str) -> list[int]:
    """For each character of the decomposed text, the position in `text` that it comes from.

    Decomposition of the whole gives each character as many places as its own decomposition has; marks that it
    reorders are of one word.
    """
    return [at for at, letter in enumerate(text) for _ in unicodedata.normalize("NFD", letter)]


# --- all answers of all questions in one pass ---------------------------------------------------------------

_CODE = 3  # characters that encode a word in the automaton
_UNKNOWN = "\0" * _CODE
_PLAIN = frozenset(string.ascii_letters + string.digits + " ")
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{[\d,]*\}|.", re.DOTALL)
_OPAQUE = re.compile(r"\(\?[^:]|\\[0-9xuUN]")  # inline flags, look-around, named groups; character codes
# the characters beyond ASCII that `re` takes for ASCII letters when it ignores case
_FOLD = str.maketrans("İıſK", "iisk")


class AnswerMatcher:
    """Finds the answers of all questions in one pass over a passage (Aho-Corasick): exactly those that
    `answer_spans` finds for each question."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self._questions = tuple(questions)
        asking: dict[tuple[str, ...], list[int]] = defaultdict(list)
        holding: dict[str, list[int]] = defaultdict(list)
        self._always: list[int] = []  # questions whose patterns require no literal: tried on every passage
        for index, question in enumerate(self._questions):
            if question.is_regex:
                literals = required_literals(question.answers)  # plain letters, which decomposition leaves
                for literal in literals:
                    holding[literal].append(index)
                if not literals:
                    self._always.append(index)
            else:
                for words in filter(None, _answer_words(question)):
                    asking[words].append(index)
        # Words become codes of equal length: division of a hit's position gives its word, no node of the
        # automaton has many children (which are searched one by one), and it is 1.6 times as fast as with
        # words joined by spaces.
        different = sorted({word for words in asking for word in words})
        self._codes = {word: _code(number) for number, word in enumerate(different)}
        self._answers = _automaton(
            {
                "".join(map(self._codes.__getitem__, words)): (len(words), indices)
                for words, indices in asking.items()
            }
        )
        self._literals = _automaton(holding)

    def find(self, text: str) -> list[tuple[int, int, int]]:
        """The index of the question, start and end of every occurrence, sorted, each once."""
        return sorted(set(self._find_words(text) + self._find_patterns(text)))

    def _find_words(self, text: str) -> list[tuple[int, int, int]]:
        if self._answers is None:
            return []
        found = []
        words, bounds = _words(text)
        code_of = self._codes.get
        encoded = "".join([code_of(word, _UNKNOWN) for word in words])
        for end, (length, indices) in self._answers.iter(encoded):
            last = end // _CODE
            start = bounds[2 * (last - length + 1)]
            stop = bounds[2 * last + 1]
            found += [(index, start, stop) for index in indices]
        return found

    def _find_patterns(self, text: str) -> list[tuple[int, int, int]]:
        candidates = set(self._always)
        if self._literals is not None:
            plain = unicodedata.normalize("NFD", text).translate(_FOLD).lower()
            for _, indices in self._literals.iter(plain):
                candidates.update(indices)
        spans = {index: _pattern_spans(text, self._questions[index]) for index in candidates}
        return [(index, start, end) for index, found in spans.items() for start, end in found]


def _automaton(values: dict[str, Any]) -> Any:
    """An automaton that finds the keys and gives their values; None if there are no keys."""
    if not values:
        return None
    automaton = require("ahocorasick", extra="match", why="finding all answers in all passages").Automaton()
    for key, value in values.items():
        automaton.add_word(key, value)
    automaton.make_automaton()
    return automaton


def _code(number: int) -> str:
    """The code of a word. Each of its characters is from another range, so that it is never found across the
    border of two codes."""
    return chr(0x1000 + number // 4096) + chr(0x100 + number // 64 % 64) + chr(0x200 + number % 64)


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
