"""Paired statistics: hand-computed examples, the laws of the verdict, and its error rate on null data."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.experiments.statistics import StatisticsError, band, detectable_effect, holm, paired

CLEAR = np.array([0.31, 0.52, 0.44, 0.29, 0.61, 0.38])
BASE = np.array([1.0, 2.0, 1.5, 0.7, 1.1, 1.9])


def sign_flip_pvalue(d: np.ndarray) -> float:
    """Two-sided by counting every sign pattern."""
    sums = np.array([np.dot(signs, d) for signs in itertools.product([1, -1], repeat=len(d))])
    slack = 1e-12 * np.abs(d).sum()
    tails = (sums >= d.sum() - slack).mean(), (sums <= d.sum() + slack).mean()
    return min(1.0, 2 * min(tails))


def test_a_comparison_by_hand() -> None:
    # differences 1, 2, 3, 4: mean 2.5, sd sqrt(5/3), t = 2.5 / (sqrt(5/3)/2) = 3.873 with 3 degrees of freedom
    got = paired([2, 4, 6, 8], [1, 2, 3, 4])
    assert (got.n, got.mean_difference) == (4, 2.5)
    assert got.effect_size == pytest.approx(2.5 / math.sqrt(5 / 3))
    # the t distribution with 3 degrees of freedom in closed form
    t = 2.5 / math.sqrt(5 / 3) * 2
    x = t / math.sqrt(3)
    assert got.t_pvalue == pytest.approx(2 * (0.5 - (x / (1 + x * x) + math.atan(x)) / math.pi), rel=1e-10)
    assert got.permutation_pvalue == pytest.approx(2 / 16)
    assert got.interval_method == "bca"
    assert got.interval[0] < 2.5 < got.interval[1]
    assert got.verdict() == "supported"
    assert got.to_dict()["interval"] == list(got.interval)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 11])
def test_permutation_pvalue_counts_all_sign_patterns(n: int) -> None:
    d = np.random.default_rng(n).normal(0.3, 1.0, n)
    assert paired(d, np.zeros(n)).permutation_pvalue == pytest.approx(sign_flip_pvalue(d), rel=1e-12)


def test_many_pairs_use_seeded_monte_carlo() -> None:
    d = np.random.default_rng(0).normal(0.4, 1.0, 16)
    first, second = paired(d, 0 * d, seed=3), paired(d, 0 * d, seed=3)
    assert first == second
    assert first.permutation_pvalue != paired(d, 0 * d, seed=4).permutation_pvalue
    exact = sign_flip_pvalue(d)
    standard_error = 2 * math.sqrt(exact / 2 * (1 - exact / 2) / 9999)
    assert first.permutation_pvalue == pytest.approx(exact, abs=4 * standard_error)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=2, max_size=9))
def test_swapping_the_arms_turns_everything_round(pairs) -> None:
    a, b = np.array(pairs).T
    there, back = paired(a, b, resamples=199), paired(b, a, resamples=199)
    assert back.mean_difference == -there.mean_difference
    assert back.t_pvalue == there.t_pvalue
    assert back.permutation_pvalue == pytest.approx(there.permutation_pvalue)
    assert back.effect_size == (None if there.effect_size is None else pytest.approx(-there.effect_size))
    opposite = {"supported": "not supported", "not supported": "supported", "inconclusive": "inconclusive"}
    assert back.verdict() == opposite[there.verdict()]


def test_a_clear_effect_is_supported_and_swapped_it_is_not() -> None:
    there, back = paired(BASE + CLEAR, BASE), paired(BASE, BASE + CLEAR)
    assert there.verdict() == "supported"
    assert back.verdict() == "not supported"
    assert there.interval == pytest.approx((-back.interval[1], -back.interval[0]), abs=1e-2)
    assert there.interval[0] > 0.0


def test_minimum_effect_moves_the_null() -> None:
    got = paired(BASE + CLEAR, BASE)  # mean difference 0.425
    assert got.verdict(minimum_effect=0.2) == "supported"
    assert got.verdict(minimum_effect=0.42) == "inconclusive"
    assert got.verdict(minimum_effect=0.7) == "not supported"
    assert got.pvalue(0.2) == pytest.approx(paired(BASE + CLEAR, BASE + 0.2).pvalue(), rel=1e-9)


def test_both_tests_must_agree_where_the_permutation_test_can_speak() -> None:
    got = paired(BASE + CLEAR, BASE)
    assert got.t_pvalue is not None
    assert got.pvalue() == pytest.approx(max(got.t_pvalue, 2 / 64))
    assert got.verdict(alpha=0.03) == "supported"  # 6 pairs cannot reach 0.03 by signs: the t test decides
    five = paired((BASE + CLEAR)[:5], BASE[:5])
    assert five.permutation_pvalue == pytest.approx(2 / 32)
    assert five.pvalue() == five.t_pvalue


@pytest.mark.parametrize("n", [2, 5, 12, 20])
def test_identical_arms_are_never_supported(n: int) -> None:
    a = np.random.default_rng(n).normal(size=n)
    got = paired(a, a.copy())
    assert (got.mean_difference, got.interval, got.interval_method) == (0.0, (0.0, 0.0), "none")
    assert (got.t_pvalue, got.permutation_pvalue, got.effect_size) == (None, 1.0, 0.0)
    assert got.verdict() == "inconclusive"
    assert got.verdict(minimum_effect=0.1) != "supported"


def test_equal_differences_need_six_pairs_to_convince() -> None:
    """Accuracies on a small test set move in steps: three equal steps are not infinite evidence."""
    for n, verdict in [(2, "inconclusive"), (3, "inconclusive"), (5, "inconclusive"), (6, "supported")]:
        got = paired(BASE[:1].repeat(n) + 0.1, BASE[:1].repeat(n))
        assert (got.t_pvalue, got.effect_size, got.interval_method) == (None, None, "none")
        assert got.interval == pytest.approx((0.1, 0.1))
        assert got.verdict() == verdict
    by_rounding = paired(np.arange(1, 7) / 7 + 0.1, np.arange(1, 7) / 7)
    assert by_rounding.t_pvalue is None
    assert by_rounding.verdict() == "supported"


def test_two_and_three_pairs_fall_back_on_student() -> None:
    got = paired([1.0, 3.0], [0.0, 0.0])
    assert got.interval_method == "t"
    assert got.interval == pytest.approx((2 - 12.7062047, 2 + 12.7062047), rel=1e-7)  # t(0.975, 1) standard error 1
    assert got.verdict() == "inconclusive"
    assert paired([1.0, 3.0, 2.0], [0.0, 0.0, 0.0]).interval_method == "t"


def test_too_few_resamples_for_bca_leave_students_interval() -> None:
    methods = set()
    for seed in range(20):
        got = paired([-0.02, 0.91, -0.18, 0.2], np.zeros(4), resamples=3, seed=seed)
        methods.add(got.interval_method)
        assert all(math.isfinite(v) for v in got.interval)
    assert methods == {"bca", "t"}


def test_false_positive_rate_on_null_data() -> None:
    """Nominal 5 %: with 200 repeats at most 10 % may be decided either way (binomial: beyond 3 standard errors)."""
    for n in (4, 6, 10):
        rng = np.random.default_rng(n)
        verdicts = []
        for _ in range(200):
            shared = rng.normal(size=n)  # seeds differ, arms do not
            a, b = shared + 0.5 * rng.standard_exponential(n), shared + 0.5 * rng.standard_exponential(n)
            verdicts.append(paired(a, b, resamples=9).verdict())
        assert sum(v == "supported" for v in verdicts) <= 10
        assert sum(v != "inconclusive" for v in verdicts) <= 20


def test_power_on_a_true_effect() -> None:
    rng, n = np.random.default_rng(1), 10
    effect = detectable_effect(n, power=0.8)
    found = [paired(rng.normal(effect, 1.0, n), np.zeros(n), resamples=9).verdict() for _ in range(300)]
    share = sum(v == "supported" for v in found) / 300
    assert share == pytest.approx(0.8, abs=4 * math.sqrt(0.8 * 0.2 / 300))
    assert detectable_effect(2) > detectable_effect(5) > detectable_effect(50)


def test_bca_covers_the_mean_of_a_skewed_law() -> None:
    """Coverage of a 90 % interval on 40 exponential differences, 200 repeats: within 4 standard errors below."""
    rng = np.random.default_rng(2)
    inside = 0
    for k in range(200):
        low, high = paired(rng.standard_exponential(40), np.zeros(40), level=0.9, resamples=499, seed=k).interval
        inside += low <= 1.0 <= high
    assert inside / 200 > 0.9 - 4 * math.sqrt(0.09 / 200)


def test_holm_by_hand() -> None:
    # sorted 0.01, 0.03, 0.04 times 3, 2, 1: 0.03, 0.06, 0.04 -> running maximum 0.03, 0.06, 0.06
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_corrected_pvalue_decides() -> None:
    got = paired(BASE + CLEAR, BASE)
    adjusted = holm([got.pvalue(), 0.9, 0.8])
    assert got.verdict() == "supported"
    assert got.verdict(pvalue=adjusted[0]) == "inconclusive"


def test_band_by_hand() -> None:
    got = band([[1.0, 5.0], [3.0, 5.0]], level=0.95)
    assert got.mean == pytest.approx([2.0, 5.0])
    assert got.low == pytest.approx([2 - 12.7062047, 5.0], rel=1e-7)
    assert got.high == pytest.approx([2 + 12.7062047, 5.0], rel=1e-7)
    one = band([[1.0, 2.0, 3.0]])
    assert (one.runs, one.low.tolist(), one.high.tolist()) == (1, [1.0, 2.0, 3.0], [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired([1.0], [2.0]), "needs at least 2 pairs, got 1: run more seeds"),
        (lambda: paired([], []), "needs at least 2 pairs, got 0"),
        (lambda: paired([1.0, 2.0], [1.0]), "both arms on the same seeds, got 2 and 1 values"),
        (lambda: paired([1.0, math.nan], [1.0, 2.0]), "the first arm has nan for pair 1: a run that diverged"),
        (lambda: paired([1.0, 2.0], [math.inf, 2.0]), "the second arm has inf for pair 0"),
        (lambda: paired([[1.0, 2.0]], [1.0, 2.0]), r"must be one value per seed, got an array of shape \(1, 2\)"),
        (lambda: paired([1.0, 2.0], [1.0, 3.0], level=95), r"level must lie in \(0, 1\), got 95"),
        (lambda: paired([1.0, 2.0], [1.0, 3.0]).verdict(alpha=5), r"alpha must lie in \(0, 1\), got 5"),
        (lambda: paired([1.0, 2.0], [1.0, 3.0]).verdict(minimum_effect=math.nan), "minimum_effect must be finite"),
        (lambda: paired([1.0, 2.0], [1.0, 3.0], resamples=1), "resamples must be at least 2, got 1"),
        (lambda: holm([0.1, 1.2]), r"p-values must be a list of numbers in \[0, 1\]"),
        (lambda: holm([math.nan]), "p-values must be a list of numbers"),
        (lambda: band([1.0, 2.0]), r"a band needs a table of at least one run, \(runs, time\), got shape \(2,\)"),
        (lambda: band([[1.0, 2.0], [1.0, math.nan]]), "run 1 has nan at column 1"),
        (lambda: band(np.zeros((0, 3))), "at least one run"),
        (lambda: band([[1.0]], level=1.0), r"level must lie in \(0, 1\), got 1.0"),
        (lambda: detectable_effect(1), "needs at least 2 pairs, got 1"),
        (lambda: detectable_effect(5, alpha=0.9), "expected 0 < alpha < power < 1"),
    ],
)
def test_refusals(call, message: str) -> None:
    with pytest.raises(StatisticsError, match=message):
        call()
