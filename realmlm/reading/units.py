"""Numbers, dates, codes and addresses in English texts. An answer neither begins nor ends within one: 11 of
11,400 is another number."""

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

_UNITS = re.compile(
    r"(?<![\w.+-])[\w.+-]+@[\w.-]+\w"  # an e-mail address
    r"|(?<![\w:])(?:[\dA-Fa-f]{2}:){2,}[\dA-Fa-f]{2}\b"  # a hardware address
    r"|(?<!\w)v\d+(?:\.\d+)*(?:-[a-z]+[\d.]*\b)?|(?<![\w.])\d+(?:\.\d+){2,}(?:-[a-z]+[\d.]*\b)?"  # a version
    r"|\b(?=[A-Z./-]*\d)(?=[\d./-]*[A-Z])[A-Z\d]+(?:[./-][A-Z\d]+)+\b"  # a code of capitals and digits
    r"|(?<![\w.,])\d+(?:[-/:.]\d+){2,}\b|(?<![\w.,:])\d{1,2}:\d\d\b"  # a date or a time in digits
    r"|(?<![\w.,])[-−+]?\d+(?:[.,]\d+)*"  # a number with its sign
)


_ANY = re.compile(r"[\d@]|:[\dA-Fa-f]{2}:")  # one of them is in every unit


def units(text: str) -> list[tuple[int, int]]:
    """Where such units stand in a text: the first character of each and the one after its last."""
    return [] if not _ANY.search(text) else [unit.span() for unit in _UNITS.finditer(text)]


def widened(start: int, end: int, text: str) -> tuple[int, int]:
    """The span, made longer by the whole of a unit that it begins or ends within."""
    return _around(start, text)[0], _around(end, text)[1]


def _around(place: int, text: str) -> tuple[int, int]:
    """The unit that has a character on both sides of this place, or the place itself. None has a space in it:
    looking at the piece between two spaces takes a hundredth of the time."""
    first = text.rfind(" ", 0, place) + 1
    past = text.find(" ", place)
    past = len(text) if past < 0 else past
    if first < place < past:
        for begin, end in _pieces_units(text[first:past]):
            if begin < place - first < end:
                return first + begin, first + end
    return place, place


@lru_cache(maxsize=4096)
def _pieces_units(piece: str) -> list[tuple[int, int]]:
    return units(piece)


# by code point, the last for all beyond ASCII: may it stand in a unit, and may it be the last of one?
_IN_UNIT = np.array([chr(code).isalnum() or chr(code) in "_.+-@:/," for code in range(128)] + [True])
_LAST = np.array([chr(code).isalnum() or chr(code) == "_" for code in range(128)] + [True])


def all_widened(
    starts: np.ndarray, ends: np.ndarray, texts: Sequence[str], place: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`widened` of many spans, each of the text at its place.

    Few begin or end between two characters of a unit; only those are looked at more closely.
    """
    joined = "\n".join(texts) + "\n\n"
    codes = np.minimum(np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32), 128)
    begins = np.cumsum([0, *(len(text) + 1 for text in texts[:-1])])[place]
    longer = []
    for side, places in enumerate((starts, ends)):
        after = codes[places + begins]
        within = _IN_UNIT[codes[places + begins - 1]] & _IN_UNIT[after]
        within &= _LAST[after] | _IN_UNIT[codes[places + begins + 1]]
        rows = np.nonzero(within)
        numbers = np.broadcast_to(place, places.shape)[rows].tolist()
        longer.append(places.astype(np.int64))
        longer[side][rows] = [
            _around(at, texts[number])[side]
            for at, number in zip(places[rows].tolist(), numbers, strict=True)
        ]
    return longer[0], longer[1]
