"""How often an answer is right: the fit against what made the answers right."""

import numpy as np
import pytest

from realmlm.errors import NotEnough
from realmlm.model.calibration import Calibration, fit_calibration


def drawn(count: int = 20_000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answers that are right as often as a known calibration says."""
    generator = np.random.default_rng(0)
    probability_N, relevance_N = generator.uniform(0.02, 1, count), generator.normal(10, 3, count)
    truth = Calibration(-5.0, 1.5, 0.5)
    sure_N = np.array([truth.confidence(p, r) for p, r in zip(probability_N, relevance_N, strict=True)])
    return probability_N, relevance_N, generator.random(count) < sure_N


def test_it_finds_what_made_the_answers_right() -> None:
    found = fit_calibration(*drawn())
    assert (found.bias, found.p_weight, found.relevance_weight) == pytest.approx((-5.0, 1.5, 0.5), rel=0.08)


def test_no_other_weights_make_the_answers_likelier() -> None:
    probability_N, relevance_N, right_N = drawn(500)

    def log_likelihood(calibration: Calibration) -> float:
        sure = [calibration.confidence(p, r) for p, r in zip(probability_N, relevance_N, strict=True)]
        return float(np.log(np.where(right_N, sure, 1 - np.array(sure))).sum())

    found = fit_calibration(probability_N, relevance_N, right_N)
    best = log_likelihood(found)
    for change in np.random.default_rng(1).normal(0, 0.05, (30, 3)):
        moved = Calibration(*(np.array([found.bias, found.p_weight, found.relevance_weight]) + change))
        assert log_likelihood(moved) <= best + 0.05  # its numbers are rounded, and weights decay a little


def test_answers_that_are_told_apart_without_fail_have_a_fit_too() -> None:
    found = fit_calibration(
        np.array([0.1, 0.2, 0.8, 0.9] * 5), np.array([1.0, 2.0, 8.0, 9.0] * 5), np.array([False, False, True, True] * 5)
    )
    assert found.confidence(0.9, 9.0) > 0.9 > 0.1 > found.confidence(0.1, 1.0)


def test_one_that_is_never_wrong_cannot_be_calibrated() -> None:
    for right in (True, False):
        with pytest.raises(NotEnough, match="right and answers that were wrong"):
            fit_calibration(np.array([0.5, 0.6]), np.array([1.0, 2.0]), np.array([right, right]))


def test_an_impossible_answer_has_a_confidence() -> None:
    assert 0 <= Calibration(-4.0, 2.0, 0.3).confidence(0.0, -1e9) < 1e-9
    assert Calibration(-4.0, 2.0, 0.3).confidence(1.0, 1e9) > 0.999
