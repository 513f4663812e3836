"""Questions about rows of tables, to learn reading them: `python runs/tables.py WIKITABLEQUESTIONS OUT`

WIKITABLEQUESTIONS has data/training.tsv and the tables in csv/. OUT gets questions/tables-reading.jsonl for
runs/small.sh: each question with some rows of its table and the one cell that answers it. Half of the rows
are written as realmlm reads tables, the others as they come out of PDFs, manual pages and forms: cells in a
line below their header, or a name and its value line by line. Some questions were asked by people, of those
that one cell answers; the others ask for a cell by the names of its row and column. small/tables.jsonl and
small/tables-dev.jsonl are tables that nothing is trained on, and the questions about them.
"""

import argparse
import csv
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lines import write

from realmlm.sources.markup import row_line

TABLES = 100  # kept apart
ROOM = 420  # characters of rows: about as many as a passage of 128 wordpieces has
LONGEST = 40  # characters of an answer
MADE = 12  # questions of our own from a table
# what asks for more than one cell
COUNTED = re.compile(
    r"\b(how many|total|number of|difference|average|most|least|more|less|fewer|highest|lowest|largest|"
    r"smallest|longest|shortest|earliest|latest|first|last|next|previous|before|after|above|below|only|other|"
    r"same|both|consecutive|at least)\b"
)
ASKED = (
    "What is the {column} of {row}?",
    "what {column} does {row} have?",
    "{row}: {column}?",
    "Which {column} is given for {row}?",
    "What is {row}'s {column}?",
    "{column} of {row}",
)


class Table:
    """A table with a header, its rows as lines."""

    def __init__(self, path: Path) -> None:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [[" ".join(cell.split()) for cell in row] for row in csv.reader(file, escapechar="\\")]
        self.names = rows[0]
        self.rows = [row for row in rows[1:] if len(row) == len(self.names)]
        self.lines = [row_line(self.names, row) for row in self.rows]

    @property
    def title(self) -> str:
        """What a file with this table might be called."""
        return " ".join(self.names[:2]).lower()

    def cells(self, words: str) -> list[tuple[int, int]]:
        """Row and column of every cell that says just this."""
        return [
            (number, column)
            for number, row in enumerate(self.rows)
            for column, cell in enumerate(row)
            if cell.lower() == words.lower()
        ]

    def around(self, number: int, column: int, dice: random.Random) -> tuple[str, int]:
        """Some rows with this one among them, written in one of the ways, and where its cell begins there."""
        first = last = number
        size = len(self.lines[number])
        while True:
            ways = [way for way in (first - 1, last + 1) if 0 <= way < len(self.lines)]
            ways = [way for way in ways if size + len(self.lines[way]) < ROOM]
            if not ways:
                break
            way = dice.choice(ways)
            first, last = min(first, way), max(last, way)
            size += len(self.lines[way]) + 1
        write = dice.choice(WAYS)
        text, start = "", 0
        for turn in range(first, last + 1):
            for place, words in write(self.names, self.rows[turn], turn == first):
                start = len(text) if (turn, column) == (number, place) else start
                text += words
        return text.rstrip(), start


Piece = tuple[int | None, str]
"""A column and its cell, or what stands between cells."""


def _as_read(names: list[str], row: list[str], is_first: bool) -> Iterator[Piece]:
    """name: cell; name: cell"""
    told = [(column, name, cell) for column, (name, cell) in enumerate(zip(names, row, strict=True)) if cell]
    for turn, (column, name, cell) in enumerate(told):
        yield None, ("; " if turn else "") + (f"{name}: " if name else "")
        yield column, cell
    yield None, "\n"


def _in_line(names: list[str], row: list[str], is_first: bool) -> Iterator[Piece]:
    """Cells below a line with the names."""
    if is_first:
        yield None, "  ".join(names) + "\n"
    for column, cell in enumerate(row):
        yield column, cell
        yield None, "  "
    yield None, "\n"


def _as_form(names: list[str], row: list[str], is_first: bool) -> Iterator[Piece]:
    """name: cell, line by line"""
    for column, (name, cell) in enumerate(zip(names, row, strict=True)):
        yield None, f"{name}: "
        yield column, cell
        yield None, "\n"


def _name_above(names: list[str], row: list[str], is_first: bool) -> Iterator[Piece]:
    """The name in one line, its cell in the next."""
    for column, (name, cell) in enumerate(zip(names, row, strict=True)):
        yield None, f"{name}\n"
        yield column, cell
        yield None, "\n"


WAYS = (_as_read, _as_read, _as_read, _in_line, _as_form, _name_above)


def asked_by_people(root: Path) -> Iterator[tuple[str, str, str]]:
    """Table, question and answer, where one cell may be the answer."""
    with (root / "data/training.tsv").open(encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            _, question, place, answer = line.rstrip("\n").split("\t")
            if "|" not in answer and not COUNTED.search(question.lower()):
                yield place, question, answer.replace("\\p", "|")


def made(table: Table, dice: random.Random) -> Iterator[tuple[str, int, int]]:
    """Questions for a cell by the name of its row, in the first column whose names are all different."""
    by_column = [Counter(row[column] for row in table.rows) for column in range(len(table.names))]
    naming = [
        column
        for column, counts in enumerate(by_column)
        if max(counts.values()) == 1 and all(re.search(r"[^\W\d]{3}", name) for name in counts)
    ]
    if not naming or len(table.names) < 3:
        return
    for _ in range(MADE):
        number = dice.randrange(len(table.rows))
        column = dice.choice([other for other in range(len(table.names)) if other != naming[0]])
        if table.rows[number][column] and table.names[column]:
            name = table.names[column].lower()
            yield (
                dice.choice(ASKED).format(column=name, row=table.rows[number][naming[0]]),
                number,
                column,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    dice = random.Random(17)
    asked: dict[str, list[tuple[str, str]]] = {}
    for place, question, answer in asked_by_people(options.tables):
        asked.setdefault(place, []).append((question, answer))
    places = sorted(asked)
    dice.shuffle(places)
    reading, documents, dev = [], [], []
    for turn, place in enumerate(places):
        table = Table(options.tables / place)
        if not table.rows:
            continue
        found = [
            (question, *cells[0]) for question, said in asked[place] if len(cells := table.cells(said)) == 1
        ]
        found += made(table, dice)
        if turn < TABLES:
            documents.append({"id": place, "title": table.title, "text": "\n".join(table.lines)})
        for question, number, column in found:
            row = {"question": question, "answer": [table.rows[number][column]]}
            if turn < TABLES:
                dev.append(row)
                continue
            context, start = table.around(number, column, dice)
            said = row["answer"][0]
            assert context[start:].startswith(said)
            # answers are found by their words: those of another cell must not be taken for this one's
            if len(re.findall(rf"(?<!\w){re.escape(said)}(?!\w)", context)) == 1 and len(said) <= LONGEST:
                reading.append(row | {"context": context, "title": table.title, "start": start})
    for name, rows in (
        ("questions/tables-reading.jsonl", reading),
        ("small/tables.jsonl", documents),
        ("small/tables-dev.jsonl", dev),
    ):
        write(options.out / name, rows)


if __name__ == "__main__":
    main()
