"""How often is an answer like this one right? p(y|x) is relative to what was read: where no passage says it,
something is still likeliest.

A calibration adds what p cannot know, the best f(x,z): how well the question fits the best passage at all.
Two weights and a bias, fitted by logistic regression on answers judged right or wrong (`realmlm calibrate`),
give the chance that an answer is right. People see a word for it: `likely`, `unsure` or `not found`.
"""

import math
from dataclasses import dataclass

import numpy as np

LEAST_P = 1e-6  # an answer less likely counts as this likely
# answers right, and wrong: ten for each weight; confidences are then some six points off, with five of each
# twelve
LEAST_OF_EACH = 20
CAUTIONED_WRONG = 0.80  # the share of wrong answers that shall not be called likely, at least
CAUTIONED_RIGHT = 0.15  # and of right ones, at most
LOST_RIGHT = 0.05  # the share of right answers that may be called not found


@dataclass(frozen=True)
class Calibration:
    """logit P(right) = bias + p_weight · log p(y|x) + relevance_weight · max_z f(x,z)."""

    bias: float
    p_weight: float
    relevance_weight: float
    likely: float = 0.05
    """From this confidence on an answer is called likely, below it unsure."""
    found: float = 0.0
    """Below this it is called not found."""
    english: float = 0.0
    """The share of English among the questions: what is asked in another language was never measured."""

    def confidence(self, probability: float, relevance: float) -> float:
        """P(right) of an answer."""
        log_p = math.log(max(probability, LEAST_P))
        logit = self.bias + self.p_weight * log_p + self.relevance_weight * relevance
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))

    def word(self, confidence: float) -> str:
        """How sure, in a word."""
        if confidence >= self.likely:
            return "likely"
        return "unsure" if confidence >= self.found else "not found"


def fit_calibration(
    probability_N: np.ndarray, relevance_N: np.ndarray, right_N: np.ndarray, *, steps: int = 50
) -> Calibration:
    """Maximum likelihood by Newton's method; a trace of weight decay keeps the weights finite."""
    x_N3 = np.stack([np.ones(len(right_N)), np.log(np.maximum(probability_N, LEAST_P)), relevance_N], 1)
    scale_3 = np.concatenate([[1.0], x_N3[:, 1:].std(0) + 1e-9])
    x_N3 = x_N3 / scale_3
    weights_3 = np.zeros(3)
    for _ in range(steps):
        p_N = 1 / (1 + np.exp(-np.clip(x_N3 @ weights_3, -30, 30)))
        gradient_3 = x_N3.T @ (right_N - p_N) - 1e-2 * weights_3
        curvature_33 = (x_N3 * (p_N * (1 - p_N))[:, None]).T @ x_N3 + 1e-2 * np.eye(3)
        weights_3 += np.linalg.solve(curvature_33, gradient_3)
    return Calibration(*(weights_3 / scale_3).round(4).tolist())


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
