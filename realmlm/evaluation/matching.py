"""Finds answers in passages by DPR's definition (`has_answer`), for training and, by default, for evaluation.

A string answer occurs where its words occur one after the other as words of the passage. The text is
decomposed (NFD); a word is a run of letters, numbers and combining marks, or any other single visible
character, in lower case. A pattern (CuratedTREC) occurs where it matches in the decomposed text, ignoring
case. Spans are character offsets into the original text. Overlapping occurrences all count, in the order of
their start. An answer without a word is found in every text, and a pattern may match the empty string: such
occurrences have no span. docs/measures.md compares this with ORQA's definition, the other choice for recall.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from realmlm.corpus.questions import Question, compile_answer

Span = tuple[int, int]
# kinds of characters
GAP = 0
SYMBOL = 1
LETTER = 2
Recall = Literal["dpr", "orqa"]


def contains_answer(text: str, question: Question, *, recall: Recall) -> bool:
    """Does any answer of the question occur in the text? With dpr as defined above; with orqa as the same
    characters, even within a word."""
    return first_with_answer([text], question, recall=recall) == 0


def first_with_answer(texts: Iterable[str], question: Question, *, recall: Recall) -> int | None:
    """The place of the first text in which an answer occurs; those after it are not looked at."""
    if recall == "orqa":
        return _first(texts, lambda text: any(answer in text for answer in question.answers))
    if question.is_regex:
        patterns = _patterns(question)
        return _first(texts, lambda text: any(pattern.search(_decomposed(text)) for pattern in patterns))
    answers = answer_words(question)
    if () in answers:
        return _first(texts, lambda text: True)
    # quick, and for most passages the answer is no: a word of an answer, even within other words
    longest = {max(filter(str.isascii, answer), key=len, default="") for answer in answers}

    def contains(text: str) -> bool:
        decomposed = _decomposed(text)
        plain = decomposed.lower()
        if not any(word in plain for word in longest):
            return False
        if "Σ" in decomposed:  # in lower case it depends on the word
            return bool(answer_spans(text, question))
        return any(_stands(answer, plain) for answer in answers)

    return _first(texts, contains)


def _stands(answer: tuple[str, ...], plain: str) -> bool:
    """Does an answer stand in a decomposed text in lower case? It is compared where its first word is found:
    many times faster than finding all words of the text."""
    start = plain.find(answer[0])
    while start >= 0:
        end = start
        within = kind_of(answer[0][0]) == LETTER and kind_of(plain[max(0, start - 1) : start]) == LETTER
        for word in answer:
            while end < len(plain) and kind_of(plain[end]) == GAP:
                end += 1
            if within or not plain.startswith(word, end):
                break
            end += len(word)
            within = kind_of(word[0]) == LETTER and kind_of(plain[end : end + 1]) == LETTER
        else:
            if not within:
                return True
        start = plain.find(answer[0], start + 1)
    return False


@lru_cache(maxsize=4096)
def kind_of(letter: str) -> int:
    """Gap, symbol or letter; beyond a text there is a gap."""
    category = unicodedata.category(letter)[0] if letter else "Z"
    return LETTER if category in "LNM" else GAP if category in "ZC" else SYMBOL


def _first(texts: Iterable[str], contains: Callable[[str], bool]) -> int | None:
    return next((place for place, text in enumerate(texts) if contains(text)), None)


def _decomposed(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFD", text)


def answer_spans(text: str, question: Question) -> list[Span]:
    """The spans (start, end) of all occurrences of all answers, sorted, each once."""
    if question.is_regex:
        return pattern_spans(text, question)
    words, bounds = _words(text)
    spans = set()
    for answer in filter(None, answer_words(question)):
        for first in range(len(words) - len(answer) + 1):
            if words[first] == answer[0] and tuple(words[first : first + len(answer)]) == answer:
                spans.add((bounds[2 * first], bounds[2 * (first + len(answer)) - 1]))
    return sorted(spans)


def pattern_spans(text: str, question: Question) -> list[Span]:
    decomposed = unicodedata.normalize("NFD", text)
    found = {match.span() for pattern in _patterns(question) for match in pattern.finditer(decomposed)}
    spans = {(start, end) for start, end in found if start < end}
    if spans and decomposed != text:
        origin = _origins(text)
        spans = {(origin[start], origin[end - 1] + 1) for start, end in spans}
    return sorted(spans)


@lru_cache(maxsize=4096)
def answer_words(question: Question) -> tuple[tuple[str, ...], ...]:
    return tuple({tuple(_words(answer)[0]): None for answer in question.answers})


@lru_cache(maxsize=4096)
def _patterns(question: Question) -> tuple[re.Pattern[str], ...]:
    """The patterns of a question, decomposed as the text is. One that this breaks ([à-é] becomes a range that
    ends before it begins) matches nothing."""
    return tuple(compile_answer(unicodedata.normalize("NFD", answer)) for answer in question.answers)


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
