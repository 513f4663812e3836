"""Splits text into sentences, by rules that are fast enough for an encyclopedia and the same everywhere."""

import re
from unicodedata import category

_BREAKS = "\n\r\u2028\u2029"
_CLOSING = "\"'”’»)\\]"
_OPENING = "\"'“‘«„(\\[¿¡"
_BORDER = re.compile(
    # The look-behind tries a run of stops only once, and possessive quantifiers never go back: the time is
    # linear in the length of the text, whatever is in it (rows of dots, runs of spaces).
    rf"(?<![.!?])[.!?]++[{_CLOSING}]*+(?=[^\S{_BREAKS}]++[{_OPENING}]*+(\w))"
    r"|[。！？]++[」』”’）】]*+"
    rf"|[{_BREAKS}]++"
)
_SAYING = ("Ll", "Lu", "Lt", "Lm", "Lo", "Nd", "Nl", "No", "So")  # kinds of characters, in Unicode
_OPENERS = "\"'“‘«„([¿¡"

_TITLES = """
    mr mrs ms mx dr prof st sr jr gen col lt sgt capt cmdr adm maj brig gov sen rep rev fr hon pres mt messrs
    mme mlle vs cf viz ft
"""
_UNITS = """
    no nos nr vol vols fig figs pp ch chap sec art eq par ca circa approx jan feb mar apr jun jul
    aug sep sept oct nov dec
"""
_BEFORE_NAME = frozenset(_TITLES.split())
_BEFORE_NUMBER = frozenset(_UNITS.split())
_LONGEST = 12  # characters before a stop that may be an abbreviation; what is longer is a word


def split_sentences(text: str) -> list[tuple[int, int]]:
    """The sentences of a text, as spans of characters: in order, without overlap and without white space
    around them. Together they have every character that is not white space.

    A line break ends a sentence. So do . ! ? (with quotes or brackets closed after them) before white space
    and a letter that is not lower-case or a digit, unless the stop belongs to an abbreviation, an initial or
    the number of a list item. 。！？ always do.
    """
    spans: list[tuple[int, int]] = []
    start = 0
    for border in _BORDER.finditer(text):
        following = border[1]
        if following is None or _ends(text, start, border.start(), border.end(), following):
            _add(spans, text, start, border.end())
            start = border.end()
    _add(spans, text, start, len(text))
    return spans


def _add(spans: list[tuple[int, int]], text: str, start: int, end: int) -> None:
    bare = text[start:end].lstrip()
    if bare:
        start = end - len(bare)
        spans.append((start, start + len(bare.rstrip())))


def _ends(text: str, start: int, stop: int, past: int, following: str) -> bool:
    """Does the sentence that begins at `start` end with the stops text[stop:past], which come before a word
    that begins with `following`?"""
    if following.islower():
        return False
    if past - stop > 1 or text[stop] != ".":
        return True
    words = text[max(start, stop - _LONGEST) : stop].split()
    word = words[-1].lstrip(_OPENERS) if words else ""
    if word.isdigit():
        return text[start:stop].strip() != word  # "1. Introduction" is one sentence, "in 1815. Then" two
    if len(word) == 1:
        return not (word.isupper() or following.isdigit())  # J. R. Smith, p. 7
    if all(len(part) == 1 for part in word.split(".")):
        return False  # U.S., e.g.
    lower = word.lower()
    return lower not in _BEFORE_NAME and not (following.isdigit() and lower in _BEFORE_NUMBER)


def has_words(text: str) -> bool:
    """Does a text say something: a letter, a figure, a picture, not signs alone?"""
    return any(category(letter) in _SAYING for letter in text)
