"""How often is an answer like this one right? p(y|x) is relative to what was read: where no passage says it,
something is still likeliest.

A calibration adds what p cannot know (realmlm/reading/signs.py): how well the question fits the best passage
at all, whether the reader takes the passage for one that answers it, whether the answer is of the kind that
was asked for. A weight for each sign and a bias, fitted by logistic regression on answers judged right or
wrong (`realmlm calibrate`), give the chance that an answer is right. People see a word for it: `likely`,
`unsure` or `not found`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from realmlm.reading.signs import Signs

# answers right, and wrong: confidences are then some eight points off, with five of each more than twelve
LEAST_OF_EACH = 20
CAUTIONED_WRONG = 0.80  # the share of wrong answers that shall not be called likely, at least
CAUTIONED_RIGHT = 0.15  # and of right ones, at most
LOST_RIGHT = 0.05  # the share of right answers that may be called not found
AMISS = -3.0  # not fitted: a rule, for what is too rare among judged answers to learn from (docs/log.md)
FITTED = ("p", "relevance", "logit")  # signs whose weight is


@dataclass(frozen=True)
class Calibration:
    """logit P(right) = bias + Σ weight · sign, over the signs of `Signs`."""

    bias: float
    p_weight: float
    relevance_weight: float
    likely: float = 0.05
    """From this confidence on an answer is called likely, below it unsure."""
    found: float = 0.0
    """Below this it is called not found."""
    english: float = 0.0
    """The share of English among the questions: what is asked in another language was never measured."""
    logit_weight: float = 0.0
    amiss_weight: float = AMISS

    def confidence(self, signs: Signs) -> float:
        """P(right) of an answer."""
        logit = self.bias + sum(
            getattr(self, f"{name}_weight") * value for name, value in signs._asdict().items()
        )
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))

    def word(self, confidence: float) -> str:
        """How sure, in a word."""
        if confidence >= self.likely:
            return "likely"
        return "unsure" if confidence >= self.found else "not found"


def fit_calibration(signs_N: Sequence[Signs], right_N: np.ndarray, *, steps: int = 50) -> Calibration:
    """Maximum likelihood by Newton's method; a trace of weight decay keeps the weights finite."""
    x_NF = np.array([[getattr(signs, name) for name in FITTED] for signs in signs_N], dtype=float)
    mean_F = x_NF.mean(0)
    scale_F = x_NF.std(0) + 1e-9
    x_NF = np.concatenate([np.ones((len(x_NF), 1)), (x_NF - mean_F) / scale_F], 1)
    weights_F = np.zeros(x_NF.shape[1])
    for _ in range(steps):
        p_N = 1 / (1 + np.exp(-np.clip(x_NF @ weights_F, -30, 30)))
        gradient_F = x_NF.T @ (right_N - p_N) - 1e-2 * weights_F
        curvature_FF = (x_NF * (p_N * (1 - p_N))[:, None]).T @ x_NF + 1e-2 * np.eye(len(weights_F))
        weights_F += np.linalg.solve(curvature_FF, gradient_F)
    per_sign = weights_F[1:] / scale_F
    found = {f"{name}_weight": round(float(one), 4) for name, one in zip(FITTED, per_sign, strict=True)}
    return Calibration(bias=round(float(weights_F[0] - per_sign @ mean_F), 4), **found)


def choose_thresholds(confidence_N: np.ndarray, right_N: np.ndarray) -> tuple[float, float]:
    """From which confidence on an answer is likely, and below which it is not found.

    Likely: both shares, of wrong answers and of right ones that are cautioned, are as far on the right side
    of what is wanted as they can be together, or as little on the wrong one. Not found: as many as there can
    be, with few right ones among them.
    """
    values = np.unique(confidence_N)
    limits_T = np.concatenate([[0.0], (values[1:] + values[:-1]) / 2, [1.0]])
    wrong_T, right_T = (
        (confidence_N[chosen_N] < limits_T[:, None]).mean(1) for chosen_N in (~right_N, right_N)
    )
    likely = limits_T[np.minimum(wrong_T - CAUTIONED_WRONG, CAUTIONED_RIGHT - right_T).argmax()]
    found = limits_T[right_T <= LOST_RIGHT].max()
    return round(float(likely), 4), round(float(min(found, likely)), 4)
