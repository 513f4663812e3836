"""What speaks for an answer and against it."""

import math
from dataclasses import replace

import pytest

from realmlm.reading.records import Answer, Evidence
from realmlm.reading.signs import Signs, signs_of

LEASE = Evidence(
    0, "Lease › Rent", "The rent is £1,245.00, due in March.", 12, 21, 0.9, 0.8, passage_logit=1.5
)
OTHER = Evidence(1, "Minutes", "Nobody paid.", None, None, 0.1, 0.0, passage_logit=-2.0)


def test_they_are_those_of_the_passage_that_the_answer_comes_from() -> None:
    answer = Answer("£1,245.00", 0.7, (LEASE, OTHER), relevance=14.0)
    signs = signs_of("How much is the rent in the lease of the garage?", answer)
    assert signs == pytest.approx(Signs(math.log(0.7), 14.0, 1.5, 0.0))


@pytest.mark.parametrize(
    ("question", "answer"), [("What is the phone number?", "£1,245.00"), ("Who is due in March?", "March")]
)
def test_what_is_amiss(question: str, answer: str) -> None:
    assert signs_of(question, Answer(answer, 0.7, (LEASE,))).amiss == 1


def test_the_logit_of_a_passage_without_a_title_does_not_count() -> None:
    assert signs_of("Who?", Answer("Solveig", 0.7, (replace(LEASE, title=""),))).logit == 0


def test_an_answer_without_evidence_has_signs() -> None:
    assert signs_of("Who?", Answer("", 0.0, ())) == pytest.approx(Signs(math.log(1e-6), 0.0))


@pytest.mark.parametrize(
    ("question", "unknown"),
    [
        ("Which customer placed order ORD-199999?", True),
        ("Which customer placed order ord-100033?", False),
        ("Who bought KX 100033, of ORD-100033?", False),
        ("Who fell ill with COVID-19 in the 1990s?", False),
        ("Who bought it on 2026-05-06?", False),
        ("What is NGC4414?", False),
    ],
)
def test_a_code_that_nothing_says_is_amiss(question: str, unknown: bool) -> None:
    order = Evidence(0, "Orders", "Order: ORD-100033; Customer: Olga Frost", 29, 39, 0.9, 0.8)
    other = Evidence(1, "Stars", "NGC 4414 is a galaxy.", None, None, 0.1, 0.0)
    assert signs_of(question, Answer("Olga Frost", 0.7, (order, other))).amiss == float(unknown)


STAFF = (
    "Name: Ada Berg; Phone ext: 220; Start date: 2025-01-06; Rate: 12.10\n"
    "Name: Sunniva Breck; Start date: 2025-08-04\n"
    "Name: Agatha Prewitt; Phone ext: 221; Start date: 2025-09-01"
)


@pytest.mark.parametrize(
    ("question", "answer", "empty"),
    [
        ("What is the phone extension of Sunniva Breck?", "2025-08-04", True),
        ("What is the rate of Agatha Prewitt?", "12.10", True),
        ("What is the phone extension of Agatha Prewitt?", "221", False),
        ("What is the start date of Sunniva Breck?", "2025-08-04", False),
        ("Who has the phone extension 220?", "Ada Berg", False),
        ("When did Sunniva Breck begin?", "2025-08-04", False),
    ],
)
def test_a_cell_that_is_empty_is_amiss(question: str, answer: str, empty: bool) -> None:
    start = STAFF.index(answer)
    evidence = Evidence(0, "Staff", STAFF, start, start + len(answer), 0.9, 0.8)
    assert signs_of(question, Answer(answer, 0.7, (evidence,))).amiss == float(empty)


STOCK = (
    "Item: Plywood birch 12 mm; Unit price: 31.50; Bin: A1-03\n"
    "Item: Plywood birch 18 mm; Unit price: 44.90; Bin: A1-04\n"
    "Item: Safety goggles; Unit price: 8.24; Bin: B2-11\n"
    "Item: Plywood 4.5 mm, 2 sheets; Unit price: 9.10; Weather: gust of 34 m/s at 02:15"
)


@pytest.mark.parametrize(
    ("question", "answer", "other"),
    [
        ("What is the unit price of Plywood birch 24 mm?", "44.90", True),
        ("What is the unit price of birch plywood, 24mm?", "31.50", True),
        ("What is the unit price of Plywood birch 18 mm?", "44.90", False),
        ("What is the unit price of 18mm plywood?", "44.90", False),
        ("What is the unit price of 3 pieces of Plywood birch?", "44.90", False),
        ("In 2023, what was the unit price of Plywood birch?", "44.90", False),
        (
            "What is the unit price of the goggles in 2026?",
            "8.24",
            False,
        ),  # no cell there has a figure after a word
        ("What is the unit price of plywood?", "44.90", False),
        ("What is in bin A1-04?", "Plywood birch 18 mm", False),
        ("How strong was the gust on 14 March?", "gust of 34 m/s at 02:15", False),  # nothing beside it
        ("What did plywood cost on page 7 of Stock 7?", "44.90", False),  # the title has it
    ],
)
def test_an_answer_from_the_row_of_another_thing_is_amiss(question: str, answer: str, other: bool) -> None:
    place = STOCK.index(answer)
    read = Evidence(0, "Stock 7", STOCK, place, place + len(answer), 0.9, 0.8)
    assert signs_of(question, Answer(answer, 0.7, (read,))).amiss == float(other)
