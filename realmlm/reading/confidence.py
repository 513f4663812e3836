"""How often is an answer like this one right? p(y|x) is relative to what was read: where no passage says it,
something is still likeliest.

A calibration adds what p cannot know, the best f(x,z): how well the question fits the best passage at all.
Two weights and a bias, fitted by logistic regression on answers judged right or wrong (`realmlm calibrate`),
give the chance that an answer is right.
"""

import math
from dataclasses import dataclass

import numpy as np

from realmlm.errors import NotEnough

LEAST_P = 1e-6  # an answer less likely counts as this likely
# answers right, and wrong: ten for each weight; confidences are then some six points off, with five of each
# twelve
LEAST_OF_EACH = 20
UNSURE = 0.05  # below this confidence an answer comes with a caution


@dataclass(frozen=True)
class Calibration:
    """logit P(right) = bias + p_weight · log p(y|x) + relevance_weight · max_z f(x,z)."""

    bias: float
    p_weight: float
    relevance_weight: float

    def confidence(self, probability: float, relevance: float) -> float:
        """P(right) of an answer."""
        log_p = math.log(max(probability, LEAST_P))
        logit = self.bias + self.p_weight * log_p + self.relevance_weight * relevance
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))


def fit_calibration(
    probability_N: np.ndarray, relevance_N: np.ndarray, right_N: np.ndarray, *, steps: int = 50
) -> Calibration:
    """Maximum likelihood by Newton's method; a trace of weight decay keeps the weights finite."""
    right = int(right_N.sum())
    wrong = len(right_N) - right
    if min(right, wrong) < LEAST_OF_EACH:
        raise NotEnough(
            f"{right} answers were right and {wrong} wrong, and a calibration needs {LEAST_OF_EACH} of each; "
            "evaluate on more questions"
        )
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
