"""The closed forms of a mode against golden values, a Lyapunov solver and the spectral radius."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import solve_discrete_lyapunov

from dissensus.theory.stationary import relaxation, stable, stable_learning_rates, variance

ORDERS = ["awc", "atc", "cta"]


GOLDEN = """
awc .5 1 1 .1 0 .0119047619
awc .5 1 1 .1 .9 .06391184573
awc .5 .1 1 .1 0 .03603603604
awc .5 .1 1 .1 .9 .3379724839
awc .9 .01 .2 .05 .9 1.229854876
awc 0 1 1 .1 0 .0101010101
awc 0 1 1 .1 .9 .02777777778
awc -.5 1 2 .1 .5 .01148325359
atc .5 1 1 .1 0 .003134796238
atc .5 1 1 .1 .9 .02353896104
atc .5 .1 1 .1 0 .03355330421
atc .5 .1 1 .1 .9 .3198275862
atc .9 .01 .2 .05 .9 1.228609601
atc 0 1 1 .1 0 0
atc 0 1 1 .1 .9 0
atc -.5 1 2 .1 .5 .002714932127
"""


@pytest.mark.parametrize("line", GOLDEN.strip().splitlines())
def test_golden_variances(line: str) -> None:
    order, *numbers = line.split()
    lam, gamma, h, lr, momentum, expected = map(float, numbers)
    assert variance(lam, h, lr, momentum, gamma, order) == pytest.approx(expected, rel=1e-9, abs=1e-18)


def truth(lam, gamma, h, lr, momentum, order, nesterov, decay) -> tuple[float, float]:
    """Variance by scipy's Lyapunov solver and spectral radius, from 2 x 2 matrices written out by hand."""
    m, b = 1 - gamma * (1 - lam), momentum
    point = {"awc": h + decay * m, "atc": h + decay, "cta": (h + decay) * m}[order]
    c = lr * (m if order == "atc" else 1.0)
    k, own = (1 + b, b * b) if nesterov else (1.0, b)
    a = np.array([[m - c * k * point, -c * own], [point, b]])
    noise = np.array([[-c * k], [1.0]])
    radius = float(np.abs(np.linalg.eigvals(a)).max())
    return (float(solve_discrete_lyapunov(a, noise @ noise.T)[0, 0]) if radius < 1 - 1e-9 else np.inf), radius


modes = st.tuples(
    st.floats(-0.99, 0.99), st.floats(0.01, 1.5), st.floats(-0.5, 5.0), st.floats(0.01, 2.0), st.floats(0.0, 0.95),
    st.sampled_from(ORDERS), st.booleans(), st.floats(0.0, 0.5),
)  # fmt: skip


@given(modes)
def test_variance_and_stability_equal_the_two_by_two_truth(mode) -> None:
    lam, gamma, h, lr, momentum, order, nesterov, decay = mode
    expected, radius = truth(*mode)
    if abs(radius - 1.0) < 1e-6:
        return
    arguments = (lam, h, lr, momentum, gamma, order, nesterov)
    assert bool(stable(*arguments, weight_decay=decay)) == (radius < 1.0)
    got = variance(*arguments, weight_decay=decay)
    assert got == pytest.approx(expected, rel=1e-13 / (1.0 - min(radius, 1 - 1e-6)))
    if radius < 1e-6:  # forgotten at once: rounding decides about the digits of such an eigenvalue
        assert relaxation(*arguments, weight_decay=decay) < 0.1
    elif radius < 1:
        assert relaxation(*arguments, weight_decay=decay) == pytest.approx(-1 / np.log(radius), rel=1e-6)
    else:
        assert np.isinf(relaxation(*arguments, weight_decay=decay))


@given(modes)
def test_learning_rate_limits_are_where_the_radius_crosses_one(mode) -> None:
    lam, gamma, h, _, momentum, order, nesterov, decay = mode
    low, high = stable_learning_rates(lam, h, momentum, gamma, order, nesterov, decay)

    def radius(lr):
        return truth(lam, gamma, h, lr, momentum, order, nesterov, decay)[1]

    if not low < high:
        assert all(radius(lr) >= 1 - 1e-9 for lr in (1e-3, 0.1, 1.0, 10.0))
        return
    if np.isfinite(high) and high < 1e3:
        assert radius(high * (1 + 1e-3)) > 1.0 > radius(low + (high - low) * (1 - 1e-3))
    assert radius(low + 1e-3 * min(high - low, 1.0)) < 1.0 + 1e-12
    if low > 1e-3:
        assert radius(low * (1 - 1e-3)) > 1.0


def test_published_limits_of_the_ring_of_eight() -> None:
    lam = 1 / 3 + 2 / 3 * np.cos(2 * np.pi * np.arange(8) / 8)
    for order, gamma, limit in [("awc", 1.0, 1.2667), ("atc", 1.0, 0.4), ("awc", 0.5, 2.5333), ("atc", 0.5, 3.8)]:
        assert stable_learning_rates(lam, 1.0, 0.9, gamma, order)[1].min() == pytest.approx(limit, abs=1e-4)


def test_a_learning_rate_can_be_too_small() -> None:
    # gamma above 1: mu = -1.2 flips and grows, unless the gradient step before it shrinks by more than 1/1.2
    low, high = stable_learning_rates(-0.1, 2.0, gamma=2.0, order="atc")
    assert (low, high) == pytest.approx(((1 - 1 / 1.2) / 2, (1 + 1 / 1.2) / 2))
    assert [float(v) for v in stable_learning_rates(1.0, 0.0)] == [np.inf, 0.0]


@given(modes)
def test_atc_is_awc_at_the_learning_rate_times_mu(mode) -> None:
    lam, gamma, h, lr, momentum, _, nesterov, _ = mode
    mu = 1 - gamma * (1 - lam)
    atc = variance(lam, h, lr, momentum, gamma, "atc", nesterov)
    awc = variance(lam, h, lr * mu, momentum, gamma, "awc", nesterov)
    assert atc == pytest.approx(awc, rel=1e-12)


def test_the_mean_is_the_mode_of_eigenvalue_one() -> None:
    n, lr, h, b = 8, 0.1, 0.7, 0.9
    expected = lr / (n * h) * (1 + b) / ((1 - b) * (2 * (1 + b) - lr * h))
    for order, gamma in itertools.product(ORDERS, [1.0, 0.1]):
        assert variance(1.0, h, lr, b, gamma, order, noise=1 / n) == pytest.approx(expected, rel=1e-13)
