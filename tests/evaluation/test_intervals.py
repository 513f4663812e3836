import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.errors import Mismatch, NotEnough
from realmlm.evaluation.intervals import bootstrap_interval, paired_interval


def test_against_a_plain_loop():
    values = [0.0, 1.0, 1.0, 0.5, 0.25]
    generator = np.random.default_rng(3)
    means = sorted(sum(values[index] for index in row) / 5 for row in generator.integers(5, size=(200, 5)))
    low, high = bootstrap_interval(values, confidence=0.9, samples=200, seed=3)
    assert (low, high) == pytest.approx((np.quantile(means, 0.05), np.quantile(means, 0.95)))


def test_blocks_change_nothing():
    """More values than are drawn at once, against all drawn together."""
    values = np.arange(50_000) % 7
    drawn = np.random.default_rng(0).integers(50_000, size=(101, 50_000))
    low, high = np.quantile(values[drawn].mean(axis=1), [0.025, 0.975])
    assert bootstrap_interval(values, samples=101) == (low, high)


def test_covers_the_truth_as_often_as_promised():
    generator = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        low, high = bootstrap_interval(generator.random(150) < 0.3, confidence=0.9, samples=300)
        inside += low <= 0.3 <= high
    assert 0.84 <= inside / 200 <= 0.96


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20), st.integers(0, 3))
@settings(max_examples=50)
def test_lies_within_the_values_and_repeats(values, seed):
    low, high = bootstrap_interval(values, samples=50, seed=seed)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9
    assert (low, high) == bootstrap_interval(values, samples=50, seed=seed)


def test_paired_is_narrower_than_its_parts_where_systems_agree():
    a = np.arange(400) % 2
    b = a.copy()
    b[:20] = 0
    low, high = paired_interval(a, b)
    assert 0 < low < (a - b).mean() < high < 0.06


def test_refuses():
    with pytest.raises(NotEnough, match="at least one"):
        bootstrap_interval([])
    with pytest.raises(Mismatch, match="3 and 2 values"):
        paired_interval([1, 0, 1], [1, 0])
