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
