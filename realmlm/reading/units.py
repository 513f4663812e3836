"""Numbers, dates, codes and addresses in English texts. An answer neither begins nor ends within one: 11 of
11,400 is another number."""

import re

_UNITS = re.compile(
    r"(?<![\w.+-])[\w.+-]+@[\w.-]+\w"  # an e-mail address
    r"|(?<![\w:])(?:[\dA-Fa-f]{2}:){2,}[\dA-Fa-f]{2}\b"  # a hardware address
    r"|(?<!\w)v\d+(?:\.\d+)*(?:-[a-z]+[\d.]*\b)?|(?<![\w.])\d+(?:\.\d+){2,}(?:-[a-z]+[\d.]*\b)?"  # a version
    r"|\b(?=[A-Z./-]*\d)(?=[\d./-]*[A-Z])[A-Z\d]+(?:[./-][A-Z\d]+)+\b"  # a code of capitals and digits
    r"|(?<![\w+])\+\d{1,3}(?:[ -]\d{2,})+\b"  # a telephone number
    r"|(?<![\w.,])\d+(?:[-/:.]\d+){2,}\b|(?<![\w.,:])\d{1,2}:\d\d\b"  # a date or a time in digits
    r"|(?<![\w.,])[-−+]?\d+(?:[.,]\d+)*"  # a number with its sign
)


def units(text: str) -> list[tuple[int, int]]:
    """Where such units stand in a text: the first character of each and the one after its last."""
    return [unit.span() for unit in _UNITS.finditer(text)]


def widened(start: int, end: int, units: list[tuple[int, int]]) -> tuple[int, int]:
    """The span, made longer by the whole of a unit that it begins or ends within."""
    for first, past in units:
        start = first if first < start < past else start
        end = past if first < end < past else end
    return start, end
