"""How often an answer is right: the fit against what made the answers right."""

import numpy as np
import pytest

from realmlm.reading import confidence
from realmlm.reading.confidence import Calibration, fit_calibration


def drawn(count: int = 20_000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answers that are right as often as a known calibration says."""
    generator = np.random.default_rng(0)
    probability_N = generator.uniform(0.02, 1, count)
    relevance_N = generator.normal(10, 3, count)
    truth = Calibration(-5.0, 1.5, 0.5)
    sure_N = np.array([truth.confidence(p, r) for p, r in zip(probability_N, relevance_N, strict=True)])
    return probability_N, relevance_N, generator.random(count) < sure_N


def test_it_finds_what_made_the_answers_right() -> None:
    found = fit_calibration(*drawn())
    assert (found.bias, found.p_weight, found.relevance_weight) == pytest.approx((-5.0, 1.5, 0.5), rel=0.08)


def test_no_other_weights_make_the_answers_likelier() -> None:
    probability_N, relevance_N, right_N = drawn(500)

    def log_likelihood(candidate: Calibration) -> float:
        sure = [candidate.confidence(p, r) for p, r in zip(probability_N, relevance_N, strict=True)]
        return float(np.log(np.where(right_N, sure, 1 - np.array(sure))).sum())

    found = fit_calibration(probability_N, relevance_N, right_N)
    best = log_likelihood(found)
    for change in np.random.default_rng(1).normal(0, 0.05, (30, 3)):
        moved = Calibration(*(np.array([found.bias, found.p_weight, found.relevance_weight]) + change))
        assert log_likelihood(moved) <= best + 0.05  # its numbers are rounded, and weights decay a little


def test_answers_that_are_told_apart_without_fail_have_a_fit_too() -> None:
    found = fit_calibration(
        np.array([0.1, 0.2, 0.8, 0.9] * 10),
        np.array([1.0, 2.0, 8.0, 9.0] * 10),
        np.array([False, False, True, True] * 10),
    )
    assert found.confidence(0.9, 9.0) > 0.9 > 0.1 > found.confidence(0.1, 1.0)


def test_as_many_as_are_needed_give_confidences_some_points_off() -> None:
    probability_N, relevance_N, right_N = drawn(2_000)
    truth_N = [
        Calibration(-5.0, 1.5, 0.5).confidence(p, r) for p, r in zip(probability_N, relevance_N, strict=True)
    ]

    def points_off(of_each: int) -> float:
        generator = np.random.default_rng(0)
        off = []
        for _ in range(30):
            order = generator.permutation(2_000)
            counts = np.minimum(np.cumsum(right_N[order]), np.cumsum(~right_N[order]))
            asked = order[: np.searchsorted(counts, of_each) + 1]  # until there are as many of each
            found = fit_calibration(probability_N[asked], relevance_N[asked], right_N[asked])
            sure_N = [found.confidence(p, r) for p, r in zip(probability_N, relevance_N, strict=True)]
            off.append(np.abs(np.subtract(sure_N, truth_N)).mean())
        return 100 * float(np.mean(off))

    assert points_off(confidence.LEAST_OF_EACH) < 8 < 12 < points_off(5)


def test_an_impossible_answer_has_a_confidence() -> None:
    assert 0 <= Calibration(-4.0, 2.0, 0.3).confidence(0.0, -1e9) < 1e-9
    assert Calibration(-4.0, 2.0, 0.3).confidence(1.0, 1e9) > 0.999
