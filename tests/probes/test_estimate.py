from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.stats

from dissensus.probes import Estimate, ProbeError
from dissensus.probes.estimate import exact, from_samples, t_quantile


def estimate(value=12.34, stderr=0.41, interval=(11.5, 13.1), **changes):
    fields = {"name": "x", "samples": 24, "num_matvecs": 24, "seed": 0, "dtype": "float64", "converged": True}
    return Estimate(value=value, stderr=stderr, interval=interval, interval_method="t", **{**fields, **changes})


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (estimate(), "12.3 ± 0.4 (95 % 11.5 to 13.1, 24 products)"),
        (estimate(stderr=0.14), "12.34 ± 0.14 (95 % 11.50 to 13.10, 24 products)"),
        (estimate(value=1234.5, stderr=41, interval=(1150, 1310)), "1230 ± 40 (95 % 1150 to 1310, 24 products)"),
        (
            estimate(value=1e-9, stderr=3e-10, interval=(0, 2e-9)),
            "1.0e-09 ± 3.0e-10 (95 % 0.0e+00 to 2.0e-09, 24 products)",
        ),
        (estimate(num_matvecs=0, samples=7), "12.3 ± 0.4 (95 % 11.5 to 13.1, 7 samples)"),
        (estimate(converged=False), "12.3 ± 0.4 (95 % 11.5 to 13.1, 24 products, not converged)"),
        (estimate(stderr=math.nan, samples=1), "12.34 (no interval, 24 products)"),
        (exact("x", 0.125, num_matvecs=3, dtype="float64"), "0.125 ± 0 (exact, 3 products)"),
    ],
)
def test_an_estimate_reads_to_the_digit_it_supports(made, text):
    assert str(made) == text


@pytest.mark.parametrize("samples", [[1.0, 4.0, 2.0], list(range(30))])
def test_the_interval_is_students(samples):
    made = from_samples("x", samples, of="things", offset=5, num_matvecs=3, seed=1, dtype="float64")
    n = len(samples)
    mean, sem = np.mean(samples), scipy.stats.sem(samples)
    low, high = scipy.stats.t.interval(0.95, n - 1, loc=mean + 5, scale=sem)
    assert (made.value, made.stderr) == (pytest.approx(mean + 5), pytest.approx(sem))
    assert made.interval == (pytest.approx(low), pytest.approx(high))
    assert made.interval_method == f"t over {n} things"
    assert float(made) == made.value
    assert made.half_width == pytest.approx((high - low) / 2)


def test_weights_repeat_samples():
    weighted = from_samples("x", [1.0, 3.0], weights=[3, 1], of="x", num_matvecs=0, seed=0, dtype="d")
    assert weighted.value == 1.5
    assert weighted.stderr == pytest.approx(math.sqrt(2 * ((0.75 * 0.5) ** 2 + (0.25 * 1.5) ** 2)))


def test_one_sample_has_no_interval():
    made = from_samples("x", [2.0], of="batches", num_matvecs=0, seed=0, dtype="float64")
    assert math.isnan(made.stderr)
    assert made.interval == (-math.inf, math.inf)
    assert made.interval_method == "none: one of batches has no spread"
    assert made.to_dict()["interval"] == [None, None]


def test_a_dictionary_survives_json():
    made = estimate(notes=("a",))
    back = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert back["interval"] == [11.5, 13.1]
    assert back["notes"] == ["a"]
    assert set(back) == set(Estimate.__dataclass_fields__)


def test_scaling_carries_the_interval():
    half = estimate().scaled(-0.5, "half")
    assert (half.name, half.value, half.stderr, half.interval) == ("half", -6.17, 0.205, (-6.55, -5.75))


def test_nonsense_is_refused():
    with pytest.raises(ProbeError, match="x: no samples to average; give at least one"):
        from_samples("x", [], of="x", num_matvecs=0, seed=0, dtype="d")
    with pytest.raises(ProbeError, match=r"confidence must lie between 0 and 1, got 95; 0.95 is usual"):
        t_quantile(95, 3)
