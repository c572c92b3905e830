"""Bounds where float64 ends: contractions a rounding from one, tiny curvatures, disagreement beyond all numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.theory.bounds import find
from dissensus.theory.bounds.convex_descent import ConvexProblem
from dissensus.theory.bounds.convex_step import StepProblem
from dissensus.theory.bounds.dadam import Adaptive, coupling
from dissensus.theory.bounds.local_sgd import LocalNonconvex, spread
from dissensus.theory.bounds.memory import HORIZON, geometric, limit
from dissensus.theory.bounds.strongly_convex import StronglyConvexProblem
from dissensus.theory.bounds.strongly_convex_noise import NoisyStronglyConvexProblem
from dissensus.theory.bounds.subgradient import SubgradientProblem

BELOW_ONE = [1.0 - 2.0**-53, 1.0 - 1e-15, 1.0 - 1e-9, 0.5, 0.0]


def test_a_norm_that_rounding_lifted_above_one_counts_as_one() -> None:
    lifted = 1.0 + 1e-15
    assert geometric(lifted, 7, "awc", 4) == geometric(1.0, 7, "awc", 4)
    assert limit(lifted, 7, "atc") == limit(1.0, 7, "atc") == 7.0
    assert geometric(1.001, 7, "awc", 4).gain == limit(1.001, 7, "awc") == math.inf
    convex = [find("convex-descent").value(ConvexProblem(c, 1.0, 0.05, 7, 1.0, 1.0)) for c in (lifted, 1.0)]
    rough = [find("subgradient-descent").value(SubgradientProblem(c, 1.0, 0.05, 7, 1.0)) for c in (lifted, 1.0)]
    for found, exact in (convex, rough):
        assert found.applies
        assert found.value == exact.value < 1e3


@pytest.mark.parametrize("contraction", BELOW_ONE)
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 40])
def test_the_largest_response_keeps_its_digits(contraction: float, steps: int) -> None:
    rate = Fraction(contraction)
    assert limit(contraction, steps, "awc") == pytest.approx(float(sum(rate**k for k in range(steps))), rel=1e-14)


@pytest.mark.parametrize("contraction", BELOW_ONE)
@pytest.mark.parametrize("mu", [1.0, 1e-3, 1e-9, 1e-17])
@pytest.mark.parametrize("steps", [1, 2, 3, 12])
def test_the_neighbourhood_is_its_double_sum(contraction: float, mu: float, steps: int) -> None:
    rate, q = Fraction(contraction), 1 - Fraction(0.25) * Fraction(mu)
    reached = [sum(rate**k for k in range(j)) for j in range(steps)]
    deviations = sum(q ** (steps - 1 - j) * reached[j] for j in range(steps))
    expected = float(q**steps) * 2.0 + 0.25**2 * 0.5 * (2.0 * 3.0) ** 0.5 * float(deviations)
    answer = find("strongly-convex-neighbourhood").value(
        StronglyConvexProblem(contraction, 0.0, 1.0, mu, 0.25, steps, 2.0, 3.0)
    )
    assert answer.applies
    assert answer.value == pytest.approx(expected, rel=1e-13)


def test_beyond_the_horizon_the_neighbourhood_is_its_limit() -> None:
    near, far = (
        find("strongly-convex-neighbourhood").value(StronglyConvexProblem(0.9, 0.0, 1.0, 1e-3, 0.25, k, 2.0, 3.0))
        for k in (HORIZON, 2 * HORIZON)
    )
    assert near.value == pytest.approx(far.value)
    assert far.value == pytest.approx(0.25 * 6.0**0.5 / (2.0 * 1e-3 * 0.1))


def test_disagreement_beyond_all_numbers_does_not_move_a_mean_that_does_not_feel_it() -> None:
    # one curvature for all: no spread, and the mean goes its way whatever mixing does
    facts = NoisyStronglyConvexProblem(4, 0.9, 1.0, 1.0, 0.5, 5000, 3.0, 0.2, 1.0, "awc", 1.0)
    assert find("strongly-convex-noise").value(facts).value == pytest.approx(0.25 * 0.05 / (1.0 - 0.25))


@pytest.mark.parametrize(("period", "steps"), [(5000, 3000), (3000, 9000), (3000, 9001)])
def test_a_spread_beyond_all_numbers_is_infinite(period: int, steps: int) -> None:
    p = LocalNonconvex(4, period, 1.0, 1.0, steps, 1.0, 0.1, 0.1)
    assert spread(p)[-1] == math.inf
    assert find("local-sgd-nonconvex").value(p).value == math.inf


@given(
    convexity=st.floats(0.0, 1.0),
    distance=st.floats(0.0, 10.0),
    above=st.floats(0.0, 5.0),
    apart=st.floats(0.0, 5.0),
    share=st.floats(1e-3, 1.0),
)
def test_the_step_of_ours_lies_below_the_recalled_one(
    convexity: float, distance: float, above: float, apart: float, share: float
) -> None:
    excess = 0.5 * convexity * distance**2 + above
    p = StepProblem(3, 1.0, share / 12.0, distance, excess, apart, 0.3, convexity)
    theirs = find("koloskova-step").value(p)
    assert theirs.applies
    assert find("convex-step").value(p).value <= theirs.value + 1e-12 * (1.0 + distance**2)


@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9])
def test_long_runs_of_dadam_are_not_cheaper_than_their_beginning(beta1: float) -> None:
    # what is not summed one by one must not be less than the sum over a shorter run that is
    p = [Adaptive(0.5, 1.0, 1, 1.0, 0.1, k, 1.0, beta1, 0.5, 1e10) for k in (400, 40_000)]
    weights = np.array([400, 40_000]) ** 0.5
    short, long = np.array([coupling(x) for x in p]) * weights
    assert short <= long
    assert long / weights[1] == pytest.approx(short / weights[0], rel=0.05)
