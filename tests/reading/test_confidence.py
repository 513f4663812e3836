"""How often an answer is right: the fit against what made the answers right."""

import numpy as np
import pytest

from realmlm.reading import confidence
from realmlm.reading.confidence import Calibration, fit_calibration
from realmlm.reading.signs import Signs

TRUTH = Calibration(-5.0, 1.5, 0.5, logit_weight=1.0)
WEIGHTS = ("bias", *(f"{name}_weight" for name in confidence.FITTED))


def drawn(count: int = 20_000) -> tuple[list[Signs], np.ndarray]:
    """Answers that are right as often as a known calibration says."""
    generator = np.random.default_rng(0)
    log_p_N = np.log(generator.uniform(0.02, 1, count))
    relevance_N = generator.normal(10, 3, count)
    logit_N = generator.integers(-1, 2, count)
    signs = [Signs(p, r, logit) for p, r, logit in zip(log_p_N, relevance_N, logit_N, strict=True)]
    sure_N = np.array(list(map(TRUTH.confidence, signs)))
    return signs, generator.random(count) < sure_N


def test_it_finds_what_made_the_answers_right() -> None:
    found = fit_calibration(*drawn())
    assert (found.bias, found.p_weight, found.relevance_weight, found.logit_weight) == pytest.approx(
        (-5.0, 1.5, 0.5, 1.0), rel=0.08
    )


def test_every_sign_has_a_weight() -> None:
    for name in Signs._fields:
        weights = dict.fromkeys(WEIGHTS, 0.0) | {f"{name}_weight": 2.0}
        calibration = Calibration(**weights)
        signs = Signs(0.0, 0.0)._replace(**{name: 1.5})
        assert calibration.confidence(signs) == pytest.approx(1 / (1 + np.exp(-3)))


def test_an_answer_of_another_kind_is_hardly_ever_likely() -> None:
    """That of a model which was calibrated with p and relevance alone, too."""
    older = Calibration(**{"bias": -3.2874, "p_weight": 1.7622, "relevance_weight": 0.2066, "likely": 0.1481})
    said = Signs(np.log(0.7), 16.0)
    assert older.word(older.confidence(said)) == "likely"
    assert older.word(older.confidence(said._replace(amiss=1.0))) == "unsure"


def test_no_other_weights_make_the_answers_likelier() -> None:
    signs, right_N = drawn(500)

    def log_likelihood(candidate: Calibration) -> float:
        sure_N = np.array(list(map(candidate.confidence, signs)))
        return float(np.log(np.where(right_N, sure_N, 1 - sure_N)).sum())

    found = fit_calibration(signs, right_N)
    best = log_likelihood(found)
    for change in np.random.default_rng(1).normal(0, 0.05, (30, len(WEIGHTS))):
        moved = {name: getattr(found, name) + by for name, by in zip(WEIGHTS, change, strict=True)}
        assert log_likelihood(Calibration(**moved)) <= best + 0.05  # rounded, and weights decay a little


def test_answers_that_are_told_apart_without_fail_have_a_fit_too() -> None:
    signs = [Signs(np.log(p), 10 * p) for p in (0.1, 0.2, 0.8, 0.9)]
    found = fit_calibration(signs * 10, np.array([False, False, True, True] * 10))
    assert found.confidence(signs[-1]) > 0.9 > 0.1 > found.confidence(signs[0])


def test_as_many_as_are_needed_give_confidences_some_points_off() -> None:
    signs, right_N = drawn(2_000)
    truth_N = list(map(TRUTH.confidence, signs))

    def points_off(of_each: int) -> float:
        generator = np.random.default_rng(0)
        off = []
        for _ in range(30):
            order = generator.permutation(2_000)
            counts = np.minimum(np.cumsum(right_N[order]), np.cumsum(~right_N[order]))
            asked = order[: np.searchsorted(counts, of_each) + 1]  # until there are as many of each
            found = fit_calibration([signs[row] for row in asked], right_N[asked])
            off.append(np.abs(np.subtract(list(map(found.confidence, signs)), truth_N)).mean())
        return 100 * float(np.mean(off))

    assert points_off(confidence.LEAST_OF_EACH) < 9 < 12 < points_off(5)


def test_an_impossible_answer_has_a_confidence() -> None:
    assert 0 <= Calibration(-4.0, 2.0, 0.3).confidence(Signs(-1e9, -1e9)) < 1e-9
    assert Calibration(-4.0, 2.0, 0.3).confidence(Signs(0.0, 1e9)) > 0.999
