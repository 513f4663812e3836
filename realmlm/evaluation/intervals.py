"""Confidence intervals of scores: the percentile bootstrap over questions."""

from collections.abc import Sequence

import numpy as np

from realmlm.errors import Mismatch, NotEnough

# S resamples, N values
_BLOCK = 2**22  # values drawn at once: 32 MB of indices, whatever N and S


def bootstrap_interval(
    values: Sequence[float] | np.ndarray, *, confidence: float = 0.95, samples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The interval that contains the share `confidence` of the means of resamples of `values`, one for each
    question (0/1 hits, F1, …). The same seed gives the same interval."""
    values_N = np.asarray(values, dtype=np.float64)
    if values_N.size == 0:
        raise NotEnough("an interval needs at least one value; evaluate at least one question")
    generator = np.random.default_rng(seed)
    means_S = np.empty(samples)
    rows = max(1, _BLOCK // len(values_N))
    for start in range(0, samples, rows):
        count = min(rows, samples - start)
        resamples_SN = values_N[generator.integers(len(values_N), size=(count, len(values_N)))]
        means_S[start : start + count] = resamples_SN.mean(axis=1)
    low, high = np.quantile(means_S, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def paired_interval(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    *,
    confidence: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """The interval of mean(a) − mean(b), for two systems on the same questions in the same order. They differ
    if 0 is not in it."""
    if len(a) != len(b):
        counts = f"{len(a)} and {len(b)} values"
        raise Mismatch(
            f"a paired interval needs the same questions for both: {counts}; evaluate both on one set"
        )
    differences = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    return bootstrap_interval(differences, confidence=confidence, samples=samples, seed=seed)
