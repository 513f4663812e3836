"""Rows of tables in passages, "Item: window putty; Supplier: Harris & Sons": a cell is an answer, and a
question that names a row asks for one of its cells."""

import re
from collections.abc import Sequence

import numpy as np

from realmlm.reading.kinds import asks_price
from realmlm.rows import Cell, Row, rows

# K passages, S spans of each

_LONGEST = 80  # characters of a cell that is an answer as a whole
_SHORTEST = 3  # characters of a cell that names its row
_WORD = re.compile(r"\w+")
_LETTERS = re.compile(r"[^\W\d_]{3,}")
_FIGURE_KIND = re.compile(r"([^\W\d_]*)\d(?:[\w.,/-]*\d)?[ -]?([^\W\d_]+)?")
_FIGURES = re.compile(r"\d+(?:[.,]\d+)*")
_COMMON = frozenset(
    _WORD.findall("a an and at by do for from has have how i in is it no of on or the to was")
)
_PRICES = re.compile(
    r"(?i:price|cost|fee|fare|rent|charge|salary|wage)|\b(?:GBP|EUR|USD|CHF|AUD|CAD)\b|[$£€]"
)
_STEM = 5  # letters that two words have in common at their beginning, "Supplier" and "supplies"
_CALENDAR = frozenset(
    _WORD.findall(
        "january february march april june july august sept september october november december "
        "monday tues tuesday wednesday thurs thursday friday saturday sunday"
    )
)
# what the reader's p counts for outside the cells that were asked for, by their row alone or by their column,
# too: the reader is often sure of the cell below or above
_BESIDE = 0.02
_BESIDE_NAMED = 0.0001


def look_up(
    question: str, texts: Sequence[str], starts_KS: np.ndarray, ends_KS: np.ndarray, p_KS: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The spans of passages that were read, and p(s|z,x), with the cells of tables in view.

    A span in a cell is the whole cell, if that is short; one that runs across cells is the cell it is most
    in. Where the question has the words of cells, it asks about the row with most of them, and where it has
    words of a column's name, about that column: other spans in rows, and in the title above them, count for
    little, with both names for next to nothing, and what p they lose goes to those of their passage that
    stay. A cell that is named by both takes the place of the least likely span, if the reader has none in it.
    """
    tables = [list(rows(text)) if "; " in text else [] for text in texts]
    if not any(tables):
        return starts_KS, ends_KS, p_KS
    starts_KS = starts_KS.copy()
    ends_KS = ends_KS.copy()
    weights_KS = np.where(p_KS > 0, 1.0, np.nan)
    wanted, beside = _Asked(question).cells(texts, tables)
    for number, table in enumerate(tables):
        there_S = p_KS[number] > 0
        if wanted[number]:
            weights_KS[number, there_S & (starts_KS[number] < 0)] = beside
        if len(wanted[number]) == 1 and beside == _BESIDE_NAMED and there_S.any():
            (named,) = wanted[number]
            if not (there_S & (starts_KS[number] < named.end) & (ends_KS[number] > named.start)).any():
                least = np.flatnonzero(there_S)[-1]
                starts_KS[number, least], ends_KS[number, least] = named.start, named.end
                weights_KS[number, least] = 1.0
        for row in table:
            within_S = (starts_KS[number] < row.end) & (ends_KS[number] > row.start) & there_S
            for span in np.flatnonzero(within_S).tolist():
                cell = _cell_of(row, int(starts_KS[number, span]), int(ends_KS[number, span]))
                if cell is not None:
                    starts_KS[number, span], ends_KS[number, span] = _in_cell(
                        cell, int(starts_KS[number, span]), int(ends_KS[number, span])
                    )
                if any(wanted) and cell not in wanted[number]:
                    weights_KS[number, span] = beside
    weighed_KS = np.where(p_KS > 0, p_KS * weights_KS, 0.0)
    for number in np.flatnonzero((weights_KS == 1).any(1) & (weights_KS < 1).any(1)).tolist():
        weighed_KS[number] *= p_KS[number].sum() / weighed_KS[number].sum()
    return starts_KS, ends_KS, weighed_KS


def lacks(question: str, text: str, start: int) -> bool:
    """Does the question name a row of this passage and a column that is empty there, though other rows have
    it? Then the answer, which stands in a row at `start`, is of another column, or row."""
    table = list(rows(text)) if "; " in text else []
    if not any(row.start <= start < row.end for row in table):
        return False
    asked = _Asked(question)
    named = [[cell for cell in row.cells if asked.names(text[cell.start : cell.end])] for row in table]
    most = max(map(len, named))
    if not most:
        return False
    here = [
        asked.shares(cell.name)
        for row, cells in zip(table, named, strict=True)
        if len(cells) == most
        for cell in row.cells
        if cell not in cells
    ]
    elsewhere = [asked.shares(cell.name) for row in table for cell in row.cells]
    of_named = [asked.shares(cell.name) for cells in named for cell in cells]
    return max(elsewhere) > max([*here, *of_named, 0])


def names_other(question: str, title: str, text: str, start: int) -> bool:
    """Does the question name another thing than the row in which the answer stands, at `start`? Its figures
    are not those of the row, nor of the title, though a cell beside the answer has some behind the same word:
    "Plywood birch 24 mm", where the row is that of 18 mm."""
    asked = set(_FIGURES.findall(question))
    table = rows(text) if asked and "; " in text else iter(())
    row = next((row for row in table if row.start <= start < row.end), None)
    if row is None or not asked.isdisjoint(_FIGURES.findall(f"{title} {text[row.start : row.end]}")):
        return False
    words = _content(question)
    kinds = _figure_kinds(question)
    beside = [text[cell.start : cell.end] for cell in row.cells if not cell.start <= start < cell.end]
    return any(kinds & _figure_kinds(cell) and words & _content(cell) for cell in beside)


def _figure_kinds(text: str) -> set[tuple[str, str]]:
    """The letters that stand before and behind figures, where there are some: those of M10 and of 24 mm."""
    found = _FIGURE_KIND.findall(text)
    return {(before.casefold(), behind.casefold()) for before, behind in found if before or behind}


def _content(words: str) -> set[str]:
    """The words of a question or a cell that say what it is about, as stems."""
    return {_stem(word) for word in _LETTERS.findall(words.casefold())} - _COMMON


def _cell_of(row: Row, start: int, end: int) -> Cell | None:
    """The cell that a span is most in; None if it is in none."""
    shared = [(min(end, cell.end) - max(start, cell.start), cell) for cell in row.cells]
    most, cell = max(shared, key=lambda pair: pair[0])
    return cell if most > 0 else None


def _in_cell(cell: Cell, start: int, end: int) -> tuple[int, int]:
    if cell.end - cell.start <= _LONGEST:
        return cell.start, cell.end
    return max(start, cell.start), min(end, cell.end)


class _Asked:
    """Which rows and columns a question names."""

    def __init__(self, question: str) -> None:
        self._question = question.casefold()
        self._words = {_stem(word) for word in _WORD.findall(self._question)} - _COMMON
        self._price = asks_price(question)

    def cells(self, texts: Sequence[str], tables: list[list[Row]]) -> tuple[list[set[Cell]], float]:
        """The cells of each passage that the question may ask for, and what the others of rows count for:
        those of the rows of which it names most cells, none if it names no row."""
        named = [
            [[cell for cell in row.cells if self.names(text[cell.start : cell.end])] for row in table]
            for text, table in zip(texts, tables, strict=True)
        ]
        most = max(len(cells) for rows_ in named for cells in rows_)
        wanted = []
        beside = _BESIDE
        for table, rows_ in zip(tables, named, strict=True):
            wanted.append(set[Cell]())
            for row, cells in zip(table, rows_, strict=True):
                if most and len(cells) == most:
                    others = [cell for cell in row.cells if cell not in cells]
                    columns = self._columns(others)
                    beside = _BESIDE_NAMED if columns else beside
                    wanted[-1].update(columns or others)
        return wanted, beside

    def _columns(self, cells: list[Cell]) -> list[Cell]:
        """The cells with most words of the question in their column's name; else, of one that asks what
        something costs, those of prices."""
        shared = [self.shares(cell.name) for cell in cells]
        if most := max(shared, default=0):
            return [cell for cell, words in zip(cells, shared, strict=True) if words == most]
        return [cell for cell in cells if self._price and _PRICES.search(cell.name)]

    def shares(self, name: str) -> int:
        """How many words of a column's name the question has."""
        return len(self._words & {_stem(word) for word in _WORD.findall(name.casefold())})

    def names(self, words: str) -> bool:
        """Does the question have these words of a cell?"""
        words = words.casefold()
        return len(words) >= _SHORTEST and bool(
            re.search(rf"(?<!\w){re.escape(words)}(?:e?s)?(?!\w)", self._question)
        )


def _stem(word: str) -> str:
    if word in _CALENDAR:
        return word[:3]  # as columns are called: Feb, Tue
    return word[:_STEM] if len(word) > _STEM else word.removesuffix("s")
