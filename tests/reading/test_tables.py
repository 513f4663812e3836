"""Cells of tables are answers, those of the row and the column that a question names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realmlm.corpus.store import Passage
from realmlm.reading.combine import Spans, Way, combine
from realmlm.reading.tables import look_up
from realmlm.rows import rows
from realmlm.sources.markup import row_line

TABLE = "\n".join(
    row_line(("Item", "Supplier", "Price", "Used by"), cells)
    for cells in (
        ("window putty", "Harris & Sons", "£4.20", "carpenter"),
        ("door hinge", "Locke Ironmongers", "£1.75", "carpenter"),
        ("copper pipe", "Dunmore Metals", "£7.35", "plumber"),
    )
)
NAMES = st.text(alphabet="ab c", min_size=1, max_size=6).map(str.strip).filter(bool)


@given(st.lists(st.lists(NAMES, min_size=2, max_size=4), min_size=1, max_size=3))
def test_a_row_that_was_written_is_read_again(table: list[list[str]]) -> None:
    lines = [row_line([f"c{number}" for number in range(len(cells))], cells) for cells in table]
    text = "\n".join(["A list:", *lines, "The end; no row."])
    found = list(rows(text))
    assert [[text[cell.start : cell.end] for cell in row.cells] for row in found] == [
        [" ".join(cell.split()) for cell in cells] for cells in table
    ]
    assert [text[row.start : row.end] for row in found] == lines
    assert [cell.name for cell in found[0].cells] == [f"c{number}" for number in range(len(table[0]))]


def answer(question: str, spans: dict[str, float], text: str = TABLE) -> tuple[str, float]:
    starts = np.array([[text.index(words) for words in spans]])
    ends = starts + np.array([[len(words) for words in spans]])
    found = Spans(*look_up(question, [text], starts, ends, np.array([list(spans.values())])))
    said = combine([Passage(0, "", text)], np.ones(1), found, Way())
    return said.answer, said.probability


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Who supplies window putty?", "Harris & Sons"),
        ("Who is the supplier of door hinges?", "Locke Ironmongers"),
        ("What is the price of copper pipe?", "£7.35"),
        ("Who needs copper pipe?", "plumber"),
        ("Who came?", "carpenter"),
    ],
)
def test_the_cell_of_the_row_and_the_column_asked_for_is_the_answer(question: str, expected: str) -> None:
    read = {
        "carpenter": 0.5,
        "Supplier": 0.1,
        "plumber": 0.1,
        "Harris": 0.06,
        "Ironmongers": 0.06,
        "7.35": 0.05,
    }
    said, probability = answer(question, read)
    assert said == expected
    assert probability <= sum(read.values()) + 1e-9


def test_with_row_and_column_named_a_reader_that_is_sure_of_the_row_below_is_overruled() -> None:
    below = {"Locke": 0.9, "Harris": 0.005}
    assert answer("Who is the supplier of window putty?", below)[0] == "Harris & Sons"
    assert answer("Who sells window putty?", below)[0] == "Locke Ironmongers"


def test_a_row_of_which_two_cells_are_named_is_meant_rather_than_one_of_which_one_is() -> None:
    text = "\n".join(
        row_line(("No", "Plant", "Variety", "Each GBP", "In stock"), cells)
        for cells in (
            ("1025", "Hydrangea", "Limelight", "28", "41"),
            ("1026", "Hydrangea", "Vanille", "30", "18"),
        )
    )
    read = {"1026": 0.4, "1025": 0.3, "30": 0.1, "28": 0.02, "41": 0.05}
    assert answer("What does a Limelight hydrangea cost?", read, text)[0] == "28"  # a column of prices
    assert answer("How many Limelight hydrangeas are in stock?", read, text)[0] == "41"
    assert answer("What about Limelight?", read, text)[0] == "1025"


def test_the_column_that_shares_most_words_is_meant() -> None:
    text = row_line(("Property", "DryMate 12", "DryMate 20"), ("Tank", "2.4 l", "4.5 l"))
    read = {"2.4 l": 0.6, "4.5 l": 0.1}
    assert answer("How much water fits in the tank of the DryMate 20?", read, text)[0] == "4.5 l"
    assert answer("How much fits in the tank?", read, text)[0] == "2.4 l"
    ids = row_line(("UID", "Purpose"), ("61184", "service users")) + "; Listed in: nss-systemd"
    assert answer("Which UIDs have service users?", {"nss-systemd": 0.6, "61184": 0.1}, ids)[0] == "61184"


def test_of_a_passage_with_the_row_that_is_named_the_title_counts_for_little() -> None:
    starts = np.array([[-6, TABLE.index("Harris")]])
    p = np.array([[0.6, 0.1]])
    _, _, weighed = look_up("Who sells window putty?", [TABLE], starts, starts + 6, p)
    assert weighed[0, 0] < weighed[0, 1]
    assert weighed.sum() == pytest.approx(p.sum())
    _, _, weighed = look_up("Who sells it?", [TABLE], starts, starts + 6, p)
    assert weighed.tolist() == p.tolist()


def test_the_cell_of_the_row_and_the_column_is_the_answer_even_if_the_reader_has_no_span_in_it() -> None:
    text = f"{TABLE}\nGlue is sold out."
    read = {"Locke": 0.2, "carpenter": 0.05, "plumber": 0.01}
    assert answer("Who is the supplier of window putty?", read, text)[0] == "Harris & Sons"
    assert answer("Who sells window putty?", read, text)[0] == "carpenter"  # the row alone
    prose = {"Glue": 0.7, "Locke": 0.2, "plumber": 0.01}
    assert answer("Who is the supplier of window putty?", prose, text)[0] == "Glue"


def test_a_span_across_cells_is_one_cell_and_prose_stays_as_it_is() -> None:
    assert answer("Who?", {"putty; Supplier: Harris & Sons; Pr": 0.4})[0] == "Harris & Sons"
    prose = "Window putty is made of chalk; it hardens in air."
    assert answer("Who sells window putty?", {"chalk": 0.4}, prose) == ("chalk", 0.4)
    long = f"Item: window putty; Note: {'soft and grey, ' * 8}from chalk"
    assert answer("What is it?", {"chalk": 0.4}, long) == ("chalk", 0.4)


def test_rows_that_no_question_names_count_for_little_beside_one_that_is_named() -> None:
    texts = [TABLE, "Item: oak board; Supplier: Ashdown; Price: £18.40\nOak is hard."]
    starts = np.array([[texts[0].index("Harris"), 0], [texts[1].index("Ashdown"), texts[1].index("hard")]])
    ends = starts + np.array([[6, 0], [7, 4]])
    p = np.array([[0.2, 0.0], [0.6, 0.1]])
    _, _, weighed = look_up("Who supplies window putty?", texts, starts, ends, p)
    assert weighed[0].tolist() == [0.2, 0.0]
    assert weighed[1, 0] < weighed[1, 1]
    assert weighed.sum(1) == pytest.approx(p.sum(1))


def test_columns_may_be_called_by_the_first_letters_of_a_month_or_a_day() -> None:
    text = row_line(("Bicycle", "Jan", "Feb", "Tues", "Total"), ("Merlin", "71", "28", "4", "99"))
    for question, cell in (
        ("How many Merlins were sold in February?", "28"),
        ("How many Merlins were sold on Tuesday?", "4"),
        ("How many Merlins were sold in total?", "99"),
    ):
        assert answer(question, {"99": 0.9, "71": 0.05}, text)[0] == cell
