"""What the trials about optimisation are measured with, each on its own: memory sums, functions, exact runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dissensus.theory.bounds.memory import Memory, geometric, limit, of_schedule
from dissensus.theory.errors import MixingError
from dissensus.theory.trials import RandomDraws
from dissensus.theory.trials.doubly_stochastic import (
    KINDS,
    contraction,
    one_peer_exponential,
    one_peer_ring,
    random_mixing,
)
from dissensus.theory.trials.dsgd_runs import coin_paths, moments, path
from dissensus.theory.trials.functions import (
    Functions,
    Quadratics,
    heterogeneity_at,
    mean_gradient,
    mean_value,
    random_cosines,
    random_logistic,
    random_quadratics,
)
from dissensus.theory.trials.ramps import huber, random_ramps


def brute_memory(matrices: list[np.ndarray], steps: int, order: str) -> Memory:
    """All propagators, one by one."""
    n = len(matrices[0])
    mean = np.full((n, n), 1.0 / n)
    kernel, pushes, diffusion = np.zeros((steps, steps)), [], 0.0
    for t in range(steps):
        push = np.zeros((n, n))
        for s in range(t):
            product = np.eye(n)
            for r in range(s if order == "atc" else s + 1, t):
                product = matrices[r % len(matrices)] @ product
            product = product - mean
            kernel[t, s] = np.linalg.norm(product, 2)
            push += product
            diffusion += float(np.sum(product**2)) / n
        pushes.append(np.linalg.norm(push, 2) ** 2)
    rows = kernel.sum(axis=1)
    gain = float(np.sqrt(rows.max() * kernel.sum(axis=0).max()))
    return Memory(gain, float(np.sqrt(np.mean(pushes))), float(np.sqrt(np.mean(rows**2))), diffusion / steps)


@pytest.mark.parametrize("order", ["awc", "atc"])
@pytest.mark.parametrize("steps", [1, 2, 3, 9])
@pytest.mark.parametrize("period", [1, 2, 5, 12])
def test_memory_of_a_schedule_is_that_of_all_its_products(order: str, steps: int, period: int) -> None:
    draws = RandomDraws(np.random.default_rng(period))
    matrices = [random_mixing(draws, 5) for _ in range(period)]
    assert of_schedule(matrices, steps, order) == pytest.approx(
        brute_memory(matrices, steps, order), rel=1e-10, abs=1e-12
    )


@pytest.mark.parametrize("order", ["awc", "atc"])
@pytest.mark.parametrize("lazy", [0.0, 0.3, 0.9])
def test_geometric_memory_is_exact_on_a_lazy_complete_graph(order: str, lazy: float) -> None:
    w = lazy * np.eye(4) + (1.0 - lazy) / 4.0
    assert geometric(lazy, 30, order, 4) == pytest.approx(of_schedule([w], 30, order), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("order", ["awc", "atc"])
def test_geometric_memory_bounds_that_of_the_products(order: str) -> None:
    draws = RandomDraws(np.random.default_rng(4))
    for _ in range(30):
        w = random_mixing(draws, 5)
        known, actual = geometric(contraction(w), 20, order, 5), of_schedule([w], 20, order)
        assert np.all(np.array(known) >= np.array(actual) * (1.0 - 1e-9) - 1e-12)


def test_without_mixing_memory_grows_with_the_steps() -> None:
    found = of_schedule([np.eye(3)], 5)
    assert found.gain == pytest.approx(4.0)
    assert found.response**2 == pytest.approx((0 + 1 + 4 + 9 + 16) / 5)
    assert found.diffusion == pytest.approx((0 + 1 + 2 + 3 + 4) / 5 * 2.0 / 3.0)
    assert geometric(1.0, 5, "awc", 3) == pytest.approx(found)


def test_one_peer_exponential_rounds_forget_after_a_period() -> None:
    long, short = of_schedule(one_peer_exponential(8), 200), of_schedule(one_peer_exponential(8), 400)
    assert long.gain == pytest.approx(short.gain)
    assert long.gain == pytest.approx(3.0)
    assert short.diffusion == pytest.approx(2.0 - 5.0 / 8.0, rel=0.01)
    assert long.gain < geometric(1.0, 200, "awc", 8).gain / 50


def test_beyond_the_horizon_the_limits_stand_for_the_sums() -> None:
    near, far = geometric(0.9, 1_000_000, "awc", 4), geometric(0.9, 2_000_000, "awc", 4)
    assert near == pytest.approx(far, rel=1e-4)
    assert np.all(np.array(far) >= np.array(near))
    assert geometric(1.0, 2_000_000, "awc", 4).gain == np.inf


def test_the_largest_response_is_the_last_sum() -> None:
    assert limit(0.5, 3, "awc") == pytest.approx(1.75)
    assert limit(0.5, 3, "atc") == pytest.approx(0.875)
    assert limit(1.0, 3, "awc") == 3.0


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(MixingError, match=r"order of mixing must be awc or atc, got 'atd'; did you mean 'atc'\?"):
        geometric(0.5, 3, "atd", 4)
    with pytest.raises(MixingError, match="order of mixing must be awc or atc, got 'cta'"):
        of_schedule([np.eye(2)], 3, "cta")


def test_a_schedule_that_is_not_doubly_stochastic_is_refused() -> None:
    with pytest.raises(MixingError, match=r"round 1 of the schedule is not doubly stochastic: sums .* up to 0.5 off"):
        of_schedule([np.eye(2), np.array([[1.0, 0.0], [0.5, 0.5]])], 3)
    with pytest.raises(MixingError, match="a schedule needs at least one round, and one step to look at"):
        of_schedule([], 3)
    with pytest.raises(MixingError, match="a schedule needs at least one round, and one step to look at"):
        of_schedule([np.eye(2)], 0)


@pytest.mark.parametrize("order", ["awc", "atc"])
@pytest.mark.parametrize("rounds", [one_peer_ring, one_peer_exponential])
def test_diffusion_is_the_disagreement_of_pure_noise(order: str, rounds: object) -> None:
    matrices, steps, lr, n = rounds(6), 12, 0.3, 6  # type: ignore[operator]
    still = Quadratics(np.zeros((n, 1, 1)), np.zeros((n, 1)))
    noise = np.full((n, 1, 1), 2.0)
    apart = [np.trace(c) / n - c.mean() for _, c in moments(still, matrices, lr, steps, np.zeros(1), order, noise)]
    assert np.mean(apart) == pytest.approx(lr**2 * 2.0 * of_schedule(matrices, steps, order).diffusion)


def kinds() -> list[Functions]:
    draws = RandomDraws(np.random.default_rng(11))
    return [
        random_quadratics(draws, 4, 3, heterogeneity=2.0, condition=0.1),
        random_logistic(draws, 4, 3),
        random_cosines(draws, 4, 3, heterogeneity=2.0),
        random_ramps(draws, 4, convex=True, heterogeneity=2.0),
        random_ramps(draws, 4, convex=False, heterogeneity=2.0),
        huber(4, slope=0.5, smoothness=2.0),
    ]


@pytest.mark.parametrize("functions", kinds(), ids=lambda f: type(f).__name__)
def test_gradients_are_the_slopes_of_the_values_and_no_steeper_than_said(functions: Functions) -> None:
    rng, h = np.random.default_rng(0), 1e-6
    x, y = rng.normal(size=(2, 50, functions.size, functions.dimension))
    for j in range(functions.dimension):
        step = h * np.eye(functions.dimension)[j]
        slope = (functions.values(x + step) - functions.values(x - step)) / (2.0 * h)
        # central differences of values near one: error about h^2 and eps/h
        np.testing.assert_allclose(functions.gradients(x)[..., j], slope, atol=3e-6)
    rise = np.linalg.norm(functions.gradients(x) - functions.gradients(y), axis=-1)
    assert np.all(rise <= functions.smoothness * np.linalg.norm(x - y, axis=-1) * (1.0 + 1e-12))


def test_minimisers_are_where_the_mean_gradient_vanishes() -> None:
    draws = RandomDraws(np.random.default_rng(12))
    for _ in range(20):
        quadratics = random_quadratics(draws, 4, 3, heterogeneity=2.0)
        assert np.abs(mean_gradient(quadratics, quadratics.minimiser())).max() <= 1e-12
        assert heterogeneity_at(quadratics, quadratics.minimiser()) == pytest.approx(2.0)
        logistic = random_logistic(draws, 4, 3)
        assert np.abs(mean_gradient(logistic, logistic.minimiser())).max() <= 1e-12


@pytest.mark.parametrize("convex", [True, False])
def test_broken_lines_know_their_minimum_and_heterogeneity(convex: bool) -> None:
    draws = RandomDraws(np.random.default_rng(13))
    grid = np.linspace(-40.0, 40.0, 160_001)[:, None]
    for _ in range(10):
        ramps = random_ramps(draws, 3, convex=convex, heterogeneity=1.0)
        values = mean_value(ramps, grid)
        at, lowest = ramps.minimum
        assert mean_value(ramps, np.array([at])) == pytest.approx(lowest, abs=1e-12)
        assert lowest <= values.min() + 1e-12
        assert values.min() - lowest <= ramps.smoothness * (80.0 / 160_000) ** 2
        g = ramps.gradients(np.repeat(grid[:, None, :], 3, axis=1))[..., 0]
        spread = np.mean((g - g.mean(axis=1, keepdims=True)) ** 2, axis=1).max()
        assert spread <= ramps.heterogeneity * (1.0 + 1e-12)
        if convex:
            low, high = ramps.minimisers
            assert np.allclose(mean_gradient(ramps, np.array([[low], [high]])), 0.0, atol=1e-12)


def test_cosines_stay_above_their_infimum_and_differ_by_a_constant() -> None:
    cosines = random_cosines(RandomDraws(np.random.default_rng(14)), 5, 2, heterogeneity=3.0)
    x = np.random.default_rng(0).normal(size=(1000, 2)) * 5.0
    assert mean_value(cosines, x).min() >= cosines.infimum
    assert heterogeneity_at(cosines, x[0]) == pytest.approx(cosines.heterogeneity)
    assert cosines.heterogeneity == pytest.approx(3.0)


@pytest.mark.parametrize("order", ["awc", "atc"])
def test_moments_and_coin_paths_agree_on_quadratics(order: str) -> None:
    draws = RandomDraws(np.random.default_rng(15))
    functions = random_quadratics(draws, 3, 1, heterogeneity=1.0)
    matrices, kicks = one_peer_ring(3), np.array([[0.5], [1.0], [2.0]])
    both = zip(
        moments(functions, matrices, 0.3, 4, np.ones(1), order, kicks[:, :, None] ** 2),
        coin_paths(functions, matrices, 0.3, 4, np.ones(1), order, kicks),
        strict=True,
    )
    for (mean, covariance), x in both:
        np.testing.assert_allclose(x.mean(axis=0), mean, atol=1e-13)
        np.testing.assert_allclose(
            np.cov(x[..., 0].T, bias=True) if len(x) > 1 else 0.0 * covariance, covariance, atol=1e-13
        )


def test_a_run_without_noise_is_the_written_recursion() -> None:
    functions = Quadratics(np.array([[[1.0]], [[3.0]]]), np.array([[0.5], [-0.5]]))
    w = np.array([[0.75, 0.25], [0.25, 0.75]])
    first, second = path(functions, [w], 0.1, 1, np.array([1.0]), "awc")
    np.testing.assert_allclose(first, [[1.0], [1.0]])
    np.testing.assert_allclose(second, [[1.0 - 0.15], [1.0 - 0.25]])
    second = path(functions, [w], 0.1, 1, np.array([1.0]), "atc")[1]
    np.testing.assert_allclose(second, [[0.75 * 0.85 + 0.25 * 0.75], [0.25 * 0.85 + 0.75 * 0.75]])


@pytest.mark.parametrize("kind", KINDS)
def test_random_mixing_is_doubly_stochastic(kind: str) -> None:
    class Only(RandomDraws):
        def choice(self, items: Sequence[Any]) -> Any:
            return kind if items is KINDS else super().choice(items)

    for size in (1, 2, 3, 6):
        w = random_mixing(Only(np.random.default_rng(size)), size, symmetric=True)
        np.testing.assert_allclose(w.sum(axis=0), 1.0)
        np.testing.assert_allclose(w, w.T)
        assert w.min() >= 0.0
    for rounds in (one_peer_exponential, one_peer_ring):
        for size in (2, 3, 5, 6, 8):
            for w in rounds(size):
                np.testing.assert_allclose(w.sum(axis=0), 1.0)
                np.testing.assert_allclose(w.sum(axis=1), 1.0)
