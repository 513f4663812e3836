"""Of what kind an answer is, beside what was asked for."""

import pytest

from realmlm.reading.kinds import fits, repeats


@pytest.mark.parametrize(
    ("question", "fitting", "other"),
    [
        ("What is the landlord's email address?", "office@brandvold.example", "Harrow Lane 3"),
        ("How can I e-mail the caretaker?", "care@taker.example", "0117 496 0382"),
        ("What is the URL of the manual?", "manuals.example/aquilo", "page 12"),
        ("What is the phone number of the guesthouse in Ålesund?", "+47 70 12 34 56", "€412.50"),
        ("What is the telephone number of the hotel?", "+47 55 90 12 38", "5 May 2026"),
        ("Which number do I ring if my child is ill?", "01632 960 447", "8:30 a.m."),
        ("How can I phone Mrs Farouk?", "(555) 014-7733", "telephone"),
        ("What did the tent cost?", "£310", "10:20"),
        ("How much does a return flight to Iceland cost?", "£310", "FI 454"),
        ("What was the price of the goggles?", "8.24", "B2-11"),
        ("How much did the goggles cost?", "B2-11: 8.24", "QT-0007"),
        ("How much did the goggles cost?", "US$20", "KX-4411"),
        ("How much is a baguette without nuts?", "3.20", "400 g"),
        ("How much money is at the bank?", "eleven thousand pounds", "the treasurer"),
        ("How many employees does it have?", "a dozen", "Bristol"),
        ("How long is the voting period?", "2 weeks", "longer"),
        ("What percentage of the staff agreed?", "40%", "the library"),
        ("When does the fair begin?", "Saturday the twentieth of June", "St Aidan's Hall"),
        ("In which year was it built?", "1958", "Bergen"),
        ("By when must it be paid?", "5 May 2026", "£696.24"),
        ("From what day is it insured?", "Sat 13 July 2024", "night"),
        ("Which day is the market?", "Saturday", "day or night"),
        ("What is her starting salary?", "£47,350", "07700 900 133"),
        ("What do students pay in August?", "€80", "Fees"),
        ("How much were the tickets?", "12 euros", "20 £239"),
        ("How much water fits in the tank?", "4.5 l", "20 £239"),
        ("How much memory does it need?", "4400k", "£239"),
        ("How much memory does it need with -5?", "4400k", "-5"),
        ("How can I ring the office?", "01496 555 300 ext. 327", "e-mail"),
        ("Who won the final?", "Sir Nigel Pemberton", "1998"),
        ("Where was it signed?", "Linz", "3 February 2025"),
        ("To whom was it sent?", "the head teacher", "8:30"),
    ],
)
def test_an_answer_of_another_kind_is_told(question: str, fitting: str, other: str) -> None:
    assert (fits(question, fitting), fits(question, other)) == (1, -1)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What does the hydrangea cost?", "1025"),
        ("What does the hydrangea cost?", "R250"),
        ("What does the hydrangea cost?", "HUF 12 000"),
        ("What does the hydrangea cost?", "UP TO 300"),
        ("What is the phone number of the office?", "5000"),
        ("How much water fits in the tank?", "6"),
    ],
)
def test_a_bare_number_may_be_of_the_kind(question: str, answer: str) -> None:
    assert fits(question, answer) == 0


@pytest.mark.parametrize(
    "question", ["What is tmux?", "Which colour is the machine?", "Why was it closed?", "Stradivari", ""]
)
@pytest.mark.parametrize("answer", ["5083", "a terminal multiplexer", "x@y.example", ""])
def test_most_questions_ask_for_no_kind_that_can_be_told(question: str, answer: str) -> None:
    assert fits(question, answer) == 0


def test_a_place_may_be_in_the_question_and_a_number_that_is_asked_for_is_not() -> None:
    assert fits("Where was the Battle of Hastings?", "Hastings") == 1
    assert fits("Which city is the capital of Panama?", "Panama City") == 0
    assert fits("How many are there beside the 20 of 1999?", "20") == -1


def test_an_answer_that_repeats_the_question_says_nothing() -> None:
    assert repeats("Who is the landlord of the flat?", "The landlord")
    assert not repeats("Who is the landlord of the flat?", "the landlord’s sister")
    assert not repeats("Is the door red or blue?", "red")
    assert not repeats("Who?", "")
