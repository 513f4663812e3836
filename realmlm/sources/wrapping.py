"""Joins lines that were broken at a certain width into paragraphs again."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from realmlm.sentences import split_sentences

# widths, in characters, at which prose is broken
_NARROWEST = 55
_WIDEST = 130
_FULL = 0.9  # share of the width that a line would fill with the first word of the next line in it, too
_NO_PROSE = re.compile(r"[_={}<>|\\~`^*+\t]|\w\(|\S {3,}\S")  # code, web addresses, columns
_GOES_ON = re.compile(r"[^\W_]|[\"'“‘«„(\[][^\W_]")  # not the mark of a list, a quotation or a comment
_ITEM = re.compile(r"(?:\d{1,3}|[^\W\d_])[.)]\s")


def known_compounds(lines: Sequence[str]) -> frozenset[str]:
    """The hyphenated words within lines, in lower case: they keep their hyphen at the end of a line."""
    return frozenset(word.lower() for line in lines for word in re.findall(r"\b\w++-\w+", line))


def joined(lines: Sequence[str], compounds: frozenset[str]) -> str:
    """The lines of a paragraph as one; a word cut at the end of a line is made whole again."""
    pieces = [*lines[:1]]
    for line in lines[1:]:
        cut = re.search(r"\b(\w++)[-\u00ad]$", pieces[-1])
        goes_on = re.match(r"[^\W\d_]+", line)
        if cut and goes_on and goes_on[0][0].islower():
            pieces[-1] = pieces[-1][:-1]
            pieces += ["-" if f"{cut[1]}-{goes_on[0]}".lower() in compounds else "", line]
        else:
            pieces += [" ", line]
    return "".join(pieces)


def unwrapped(text: str) -> str:
    """A plain text with the lines of its wrapped paragraphs joined where that is certain; every other line
    stays as it is.

    It is certain for lines that look like prose, that are broken where the next word would have exceeded the
    width of the longest line near by, and that mostly go on in lower case or after a sentence that ended
    within the line. A stop before a capital letter ends a sentence in any case.
    """
    lines = text.split("\n")
    runs = [run for block in _blocks(lines) for run in _runs(block)]
    if len(runs) == len(lines):
        return text
    compounds = known_compounds(lines)
    return "\n".join(line for run in runs for line in _join(run, compounds))


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """The lines in blocks, each up to and including an empty line."""
    block: list[str] = []
    for line in lines:
        block.append(line)
        if not line.strip():
            yield block
            block = []
    if block:
        yield block


def _runs(block: list[str]) -> Iterator[list[str]]:
    """The lines of a block, those of one paragraph together."""
    width = max(len(line.rstrip()) for line in block)
    if not _NARROWEST <= width <= _WIDEST:
        yield from ([line] for line in block)
        return
    run = block[:1]
    for line, following in pairwise(block):
        if _may_go_on(line, following, width) and (len(run) == 1 or _indent(line) == _indent(following)):
            run.append(following)
        else:
            yield from _sure(run)
            run = [following]
    yield from _sure(run)


def _sure(run: list[str]) -> Iterator[list[str]]:
    """The run whole if sentences go on at half of its line ends, else line by line."""
    open_ends = [(line, following) for line, following in pairwise(run) if not _ends(line, following)]
    goes_on = [
        following.lstrip()[0].islower() or len(split_sentences(line)) > 1 for line, following in open_ends
    ]
    if open_ends and 2 * sum(goes_on) >= len(open_ends):
        yield run
    else:
        yield from ([line] for line in run)


def _ends(line: str, following: str) -> bool:
    return line.rstrip()[-1] in ".!?" and not following.lstrip()[0].islower()


def _may_go_on(line: str, following: str, width: int) -> bool:
    """Could the second line be the first one's paragraph going on?"""
    line = line.rstrip()
    words = following.split(maxsplit=1)
    if not words or len(line) + 1 + len(words[0]) <= _FULL * width or line[-1] in ":;/":
        return False
    if _ITEM.match(following.lstrip()) or not _GOES_ON.match(words[0]):
        return False
    return not (_NO_PROSE.search(line) or _NO_PROSE.search(following.rstrip()))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _join(run: list[str], compounds: frozenset[str]) -> Iterator[str]:
    paragraph = run[:1]
    for line in run[1:]:
        if _ends(paragraph[-1], line):
            yield joined(paragraph, compounds)
            paragraph = [line]
        else:
            paragraph[-1] = paragraph[-1].rstrip()
            paragraph.append(line.lstrip())
    yield joined(paragraph, compounds)
