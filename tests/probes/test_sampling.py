"""The interval of skewed samples, where Student's own is too short."""

from __future__ import annotations

import numpy as np
import pytest

from dissensus.probes.estimate import t_quantile
from dissensus.probes.sampling import interval


def test_skewness_is_taken_out():
    """A shifted chi-squared of one degree, what one outlying eigenvalue makes of the forms: 16 samples, 3000 times."""
    draws = np.random.default_rng(0).standard_normal((3000, 16)) ** 2
    made = [interval(row, 0.95, 15) for row in draws]
    held = np.mean([one.low <= 1 <= one.high for one in made])
    students = np.mean(np.abs(draws.mean(1) - 1) <= t_quantile(0.95, 15) * draws.std(1, ddof=1) / 4)
    assert 0.92 <= held <= 0.97
    assert students < 0.91


def test_symmetric_samples_keep_students_interval():
    samples = np.array([-3.0, -1, 0, 1, 3]) + 10
    made = interval(samples, 0.95, 4)
    half = t_quantile(0.95, 4) * samples.std(ddof=1) / 5**0.5
    assert (made.low, made.high, made.half) == pytest.approx((10 - half, 10 + half, half))


def test_equal_samples_whose_mean_is_rounded_have_no_spread():
    samples = np.full(12, 0.1 + 0.2)
    shifted = next(np.full(m, x) for m in range(3, 40) for x in (0.1, 0.3, 0.7) if np.full(m, x).mean() != x)
    for equal in (samples, shifted):
        made = interval(equal, 0.95, len(equal) - 1)
        assert (made.stderr, made.half, made.low, made.high) == (0.0, 0.0, made.mean, made.mean)
