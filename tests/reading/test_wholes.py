"""Answers are whole things and run across no border."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realmlm.corpus.store import Passage
from realmlm.reading.combine import Spans, Way, combine, without_marks
from realmlm.reading.units import widened
from realmlm.reading.wholes import (
    ALL,
    borders,
    headings,
    kept_whole,
    made_whole,
    marks,
    wholes,
    within_borders,
)


@pytest.mark.parametrize(
    ("text", "span", "whole"),
    [
        # dates in words
        ("It ends on 30 September 2026.", "2026", "30 September 2026"),
        ("It ends on 30 September 2026.", "September", "30 September 2026"),
        ("on the 3rd of May, 1808 in Madrid", "May", "3rd of May, 1808"),
        ("on Monday, 5 October 2026 at", "October 2026", "Monday, 5 October 2026"),
        ("signed July 4, 1776 in", "1776", "July 4, 1776"),
        ("on Sept. 11, 2001", "11", "Sept. 11, 2001"),
        ("since April 2007,", "2007", "April 2007"),
        ("by 31 December, or", "December", "31 December"),
        ("made on the third of February 2025 by", "February 2025", "third of February 2025"),
        ("on Saturday the twentieth of June.", "Saturday", "Saturday the twentieth of June"),
        ("on Friday, the 5th of July 2024,", "Friday", "Friday, the 5th of July 2024"),
        ("due on the twenty-first of May", "May", "twenty-first of May"),
        ("A third of May was wet.", "May", "May"),
        ("one third of May was wet", "May", "May"),
        ("the third March in a row", "March", "March"),
        ("In 1995, 300 came in May.", "1995", "1995"),
        ("He may 3 times go", "3", "3"),
        ("30 September 20261", "30", "30 September"),
        # prices with their currency
        ("Lunch is £4.50 a day.", "4.50", "£4.50"),
        ("Lunch is £ 4.50.", "4.50", "£ 4.50"),
        ("It costs 12 euros.", "12", "12 euros"),
        ("It cost 11,400 pounds.", "400", "11,400 pounds"),
        ("sold for US$1.2 million in", "1.2", "US$1.2 million"),
        ("sold for $3 billion", "billion", "$3 billion"),
        ("for 12,50 € each", "12,50", "12,50 €"),
        ("for EUR 40 each", "40", "EUR 40"),
        ("5 million US dollars", "5", "5 million US dollars"),
        ("about 20 percent", "20", "20"),
        ("3 centuries", "3", "3"),
        ("The balance is £11,204.75. It", "£11,204.75.", "£11,204.75"),
        ("It has 57, or", "57,", "57"),
        ("in Washington, D.C. today", "D.C.", "D.C."),
        # telephone numbers
        ("call 0117 496 0182 now", "496 0182", "0117 496 0182"),
        ("call (0117) 496 0182.", "496", "(0117) 496 0182"),
        ("call +44 117 496 0182.", "117 496 0182", "+44 117 496 0182"),
        ("call +44 (0)117 496 0182.", "496", "+44 (0)117 496 0182"),
        ("call +441174960182.", "117", "+441174960182"),
        ("call 07700 900123.", "900123", "07700 900123"),
        ("call 020 7946 0958.", "7946", "020 7946 0958"),
        ("call 0117-496-0182.", "496", "0117-496-0182"),
        ("call 0117.496.0182.", "496", "0117.496.0182"),
        ("call 01 23 45 67 89.", "45 67", "01 23 45 67 89"),
        ("call (555) 010-9999.", "010", "(555) 010-9999"),
        ("call 555-010-9999.", "9999", "555-010-9999"),
        ("call 1-800-555-0199.", "800", "1-800-555-0199"),
        ("call 1800 645 515 toll free", "1800", "1800 645 515"),
        ("call 1800 645 515 toll free", "645", "1800 645 515"),
        ("call 0800 096 0095.", "0800", "0800 096 0095"),
        ("call 1.800.555.0199.", "555", "1.800.555.0199"),
        ("call 01496 555 300 ext. 327 or", "01496", "01496 555 300 ext. 327"),
        ("call 01496 555 300, extension 327.", "327", "01496 555 300, extension 327"),
        ("call (555) 010-9999 x12.", "12", "(555) 010-9999 x12"),
        ("Mrs Hall, ext. 327", "327", "ext. 327"),
        ("from 1800 to 1850, or 1800-1850", "1850", "1850"),
        ("with extension 12 of it", "12", "12"),
        ("room 0 12 or 14", "12", "12"),
        # ranges
        ("open 9 am to 5 pm on", "9", "9 am to 5 pm"),
        ("open 9 am to 5 pm on", "5 pm", "9 am to 5 pm"),
        ("open 9.30 a.m. – 5 p.m. on", "5", "9.30 a.m. – 5 p.m."),
        ("open 9–5 pm on", "9", "9–5 pm"),
        ("open 09:00-17:00 on", "17:00", "09:00-17:00"),
        ("open 9:30 until noon.", "noon", "9:30 until noon"),
        ("pages 10–12 of it", "12", "10–12"),
        ("pages 10-12 of it", "10", "10-12"),
        ("from Monday to Friday only", "Friday", "Monday to Friday"),
        ("Mon–Fri", "Fri", "Mon–Fri"),
        ("June to August", "August", "June to August"),
        ("for £10–£12 each", "12", "£10–£12"),
        ("they won 3–2 there", "3", "3"),
        ("from 1914–1918 on", "1914", "1914"),
        ("rose from 10 to 12", "10", "10"),
        # names with their title
        ("Ask Dr. Jane Smith about it.", "Jane Smith", "Dr. Jane Smith"),
        ("Ask Dr. Jane Smith about it.", "Smith", "Dr. Jane Smith"),
        ("Ask Dr Jane A. Smith.", "Smith", "Dr Jane A. Smith"),
        ("Prof. Ludwig van der Berg said", "Berg", "Prof. Ludwig van der Berg"),
        ("Mrs O’Brien-Hall came", "Hall", "Mrs O’Brien-Hall"),
        ("Sir Isaac Newton", "Isaac Newton", "Sir Isaac Newton"),
        ("Notre Dame Paris", "Paris", "Paris"),
        ("Drum Kit", "Kit", "Kit"),
        ("Jane Smith", "Smith", "Smith"),
    ],
)
def test_things_are_given_whole(text: str, span: str, whole: str) -> None:
    start = text.rindex(span)
    for before in ("", "much is said before it, and some of it is of no use at all, " * 3):
        around = f"{before}{text} {before}"
        place = len(before) + start
        first, past = made_whole(*widened(place, place + len(span), around), around)
        assert around[first:past] == whole


@pytest.mark.parametrize(
    ("question", "parts"),
    [
        ("When did it end?", {"range"}),
        ("When does the contract expire?", set()),
        ("In what year did it end?", {"date", "range"}),
        ("which year was it", {"date"}),
        ("What day of the week is it?", {"date"}),
        ("How many euros is it?", {"price", "date"}),
        ("How much is it?", set()),
        ("When does the shop open?", {"range"}),
        ("When is the shop open?", set()),
        ("When does the lesson start?", {"range"}),
    ],
)
def test_some_questions_ask_for_a_part(question: str, parts: set[str]) -> None:
    assert kept_whole(question) == ALL - parts


def test_of_a_date_a_year_can_be_asked() -> None:
    text = "It closed on 30 September 2026."
    start = text.index("2026")
    assert made_whole(start, start + 4, text, kept_whole("What year did it close?")) == (start, start + 4)
    assert made_whole(start, start + 4, text, kept_whole("When did it close?")) == (13, start + 4)


@given(
    st.lists(
        st.sampled_from(
            [
                *("Dr. ", "Jane ", "30 ", "May ", "2026 ", "£", "4.50 ", "euros ", "0117 ", "496 ", "0182 "),
                *("9 am ", "to ", "–", "-", "5 pm", ", ", ". ", "; ", "\n", "Mon", "and "),
            ]
        ),
        max_size=14,
    ).map("".join)
)
def test_wholes_are_in_one_line_and_what_was_made_whole_stays(text: str) -> None:
    found = wholes(text)
    for whole in found:
        assert "\n" not in text[whole.start : whole.end]
        assert text[whole.start : whole.end].strip() == text[whole.start : whole.end] != ""
    if any(len(text[first:past]) > 60 for first, past, _ in found) or borders(text):
        return
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            first, past = start, end
            for whole in found:
                first = whole.start if whole.start < first < whole.end else first
                past = whole.end if whole.start < past < whole.end else past
            assert made_whole(start, end, text) == (first, past)


@pytest.mark.parametrize(
    ("text", "span", "bounded"),
    [
        ("Paris is large. Rome is old.", "large. Rome", "large"),
        ("Ask Dr. Smith of St. Louis.", "Dr. Smith of St. Louis", "Dr. Smith of St. Louis"),
        ("apples; pears and plums", "apples; pears and plums", "pears and plums"),
        ("Apples\nPears, ripe\nPlums", "Apples\nPears, ripe\nPlums", "Pears, ripe"),
        ("Vacation\nYou have 25 days.", "Vacation\nYou", "Vacation"),
        (f"{'x ' * 30}by Alan\nTuring.", "Alan\nTuring", "Alan\nTuring"),
        (f"{'x ' * 30}by Alan.\nTuring too.", "Alan.\nTuring", "Turing"),
        ("a heron", "a heron", "a heron"),
        ("a heron \nOtters", "a heron ", "a heron"),
    ],
)
def test_an_answer_runs_across_no_clause_and_no_line_of_a_list(text: str, span: str, bounded: str) -> None:
    start = text.index(span)
    first, past = within_borders(start, start + len(span), text)
    assert text[first:past].rstrip(".") == bounded


def test_a_long_text_without_line_breaks_takes_no_time() -> None:
    begun = time.monotonic()
    assert not marks("A heron of the marsh at 5 o'clock, " * 5000)
    assert borders("1. A heron of the marsh at 5 o'clock, " * 5000)
    assert time.monotonic() - begun < 5


@given(st.text(alphabet="aB. ;\n", min_size=1, max_size=30), st.data())
def test_what_is_bounded_is_a_part_without_borders(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    first, past = within_borders(start, end, text)
    assert start <= first <= past <= end
    assert not [place for place in borders(text) if first < place < past]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3. Rent and deposit\nThe rent is £5.", ["3."]),
        ("Lease › 3. Rent", ["3."]),
        ("Rules\n  1. Come.\n  2) Stay.\n2.1. Leave.", ["1.", "2)", "2.1."]),
        ("3.5 kg of flour\n12 eggs\n1995. It was hot.", []),
        (f"{'x ' * 30}came in all\n57. Then it began.", []),
    ],
)
def test_numbers_of_headings_and_items_are_marks(text: str, found: list[str]) -> None:
    assert [text[start:end] for start, end in marks(text)] == found


@pytest.mark.parametrize(
    ("title", "text", "in_title", "in_text"),
    [
        ("Programme › Fees", "Fees\nStudents pay €80.", ["Fees"], ["Fees"]),
        ("Lease › Rent › Costs", "Rent\nCosts\nRent is paid monthly.", ["Costs"], ["Rent", "Costs"]),
        ("Programme › Fees", "Students pay the Fees.", ["Fees"], []),
        ("Programme", "Programme\nStudents pay €80.", [], []),
        ("bill.pdf › Dr. Lindqvist", "Dr. Lindqvist\nInvoice", [], []),
        ("bill.pdf › Dr. Lindqvist › Fees", "Invoice", ["Fees"], []),
    ],
)
def test_the_last_of_a_path_is_the_heading_of_a_section(
    title: str, text: str, in_title: list[str], in_text: list[str]
) -> None:
    found_title, found_text = headings(title, text)
    assert [title[start:end] for start, end in found_title] == in_title
    assert [text[start:end] for start, end in found_text] == in_text


def test_a_heading_gives_way_to_what_its_section_says() -> None:
    def said(passage: Passage) -> str:
        starts = np.array([[0, -4, passage.text.index("€")]])
        spans = Spans(starts, starts + np.array([[4, 4, 3]]), np.array([[0.5, 0.2, 0.1]]))
        return combine([passage], np.ones(1), without_marks(spans, [passage]), Way()).answer

    assert said(Passage(0, "Programme › Fees", "Fees\nStudents pay €80.")) == "€80"
    assert said(Passage(0, "Fees", "Fees\nStudents pay €80.")) == "Fees"


def test_the_number_of_a_heading_is_no_answer() -> None:
    passage = Passage(0, "Lease › 3. Rent", "3. Rent\nThe rent is £1,245.00.")
    starts = np.array([[0, -7, passage.text.index("£")]])
    spans = Spans(starts, starts + np.array([[1, 2, 9]]), np.array([[0.5, 0.2, 0.1]]))
    answer = combine([passage], np.ones(1), without_marks(spans, [passage]), Way())
    assert (answer.answer, answer.probability) == ("£1,245.00", pytest.approx(0.8))
    assert spans.p_KS.tolist() == [[0.5, 0.2, 0.1]]


@pytest.mark.parametrize(
    ("span", "without"),
    [
        ("SD-88213-K.", "SD-88213-K"),
        ("the key 1A0047XK9,", "the key 1A0047XK9"),
        ("£1,245.00.", "£1,245.00"),
        ("in 1998.", "in 1998"),
        ("5p.m.", "5p.m."),
        ("at 9 p.m.", "at 9 p.m."),
        ("Washington D.C.", "Washington D.C."),
        ("12 St.", "12 St."),
        ("7.", "7"),
    ],
)
def test_the_stop_after_a_number_or_a_code_is_left_out(span: str, without: str) -> None:
    text = f"It is {span} and more."
    start, end = made_whole(6, 6 + len(span), text, ())
    assert text[start:end] == without
    assert made_whole(6, 6 + len(span), f"It is {span}5", ())[1] == 6 + len(span)  # the number goes on
