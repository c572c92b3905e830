"""Local SGD and gradient tracking: what their bounds are made of, and their trials against the engine."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dissensus.algorithms import StackedEngine, algorithm
from dissensus.theory import bounds, from_matrices
from dissensus.theory.bounds.gradient_tracking import Tracking, TrackingProblem, gains, largest_step
from dissensus.theory.bounds.local_sgd import LocalConvex, LocalNonconvex, period_norm, spread
from dissensus.theory.trials import dadam as adaptive
from dissensus.theory.trials import gradient_tracking as tracking
from dissensus.theory.trials import local_sgd as local
from dissensus.theory.trials.base import RandomDraws
from dissensus.theory.trials.functions import Quadratics


class Point(nn.Module):
    """A vector that is trained."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dimension, dtype=torch.float64))


def engine(start: np.ndarray, loss: Any, name: str, w: np.ndarray, optimizer: Any, **parameters: Any) -> StackedEngine:
    return StackedEngine(
        Point(len(start)),
        loss,
        algorithm=algorithm(name, **parameters),
        topology=from_matrices(w, may_disconnect=True),
        optimizer=optimizer,
        gradients="vmap",
        start=torch.from_numpy(np.tile(start, (len(w), 1))),
    )


# Local SGD


@pytest.mark.parametrize("period", [1, 2, 3, 7, 40])
def test_the_norm_of_a_period(period: int) -> None:
    dense = np.linalg.norm(np.tril(np.ones((period, period)), -1), 2)
    assert period_norm(period) == pytest.approx(dense, rel=1e-12, abs=0.0)


def test_spread_without_noise_is_geometric() -> None:
    p = LocalNonconvex(4, 9, 2.0, 0.1, 50, 1.0, 0.0, 0.25)
    np.testing.assert_allclose(spread(p), 0.5 / 2.0 * (1.2 ** np.arange(9) - 1.0), rtol=1e-12)


def test_spread_is_attained_by_workers_that_pull_apart() -> None:
    # two workers with curvature -L and opposite slopes: every inequality of the recursion is an equality
    p = LocalNonconvex(2, 8, 1.0, 0.1, 8, 1.0, 0.0, 0.25)
    q = Quadratics(-np.ones((2, 1, 1)), np.array([[0.5], [-0.5]]))
    x = np.zeros((2, 1))
    for expected in spread(p):
        np.testing.assert_allclose(np.sqrt(np.mean((x - x.mean()) ** 2)), expected, rtol=1e-12)
        x = x - p.lr * q.gradients(x)


def test_spread_of_noise_alone_is_exact() -> None:
    # no curvature: the workers walk at random, and the mean of three takes a third of it away
    rng, steps = np.random.default_rng(10), 4
    flat = Quadratics(np.zeros((3, 1, 1)), np.zeros((3, 1)))
    noise, chances, mean_square = local.two_atoms(RandomDraws(rng), 3, 1, steps)
    p = LocalNonconvex(3, steps, 1e-12, 0.1, steps, 0.0, mean_square)
    x = np.zeros((len(noise), 3, 1))
    for t, expected in enumerate(spread(p)):
        apart = np.mean((x - x.mean(1, keepdims=True)) ** 2, (1, 2))
        np.testing.assert_allclose(np.sqrt(chances @ apart), expected, rtol=1e-9, atol=1e-15)
        x = x - p.lr * (flat.gradients(x) + noise[:, t])


def test_the_convex_bound_is_its_statement() -> None:
    p, h = LocalConvex(4, 5, 2.0, 0.05, 30, 1.5, 0.4, 0.7), 5
    room = (1 - 0.1) / (0.1 * np.linalg.norm(np.tril(np.ones((h, h)), -1), 2)) ** 2
    drift = np.sqrt(0.7 * np.mean(np.arange(h) ** 2.0)) + np.sqrt(0.4 * 0.75 * np.mean(np.arange(h)))
    expected = 1.5**2 / (2 * 0.05 * 30) + 0.05 * 0.4 / 8 + 0.05**2 * room / (room - 1) * drift**2
    assert bounds.find("local-sgd-convex").value(p).value == pytest.approx(expected, rel=1e-12)


def test_the_trial_of_local_sgd_is_what_the_engine_runs() -> None:
    rng, n, d = np.random.default_rng(3), 4, 2
    root = rng.normal(size=(n, d, d))
    q, noise = Quadratics(root @ root.transpose(0, 2, 1), rng.normal(size=(n, d))), rng.normal(size=(1, 20, n, d))
    start = rng.normal(size=d)
    running = engine(start, pull, "local-sgd", np.full((n, n), 0.25), partial(torch.optim.SGD, lr=0.05), period=3)
    expected = []
    for now in noise[0]:
        expected.append(running.x.numpy().mean(0))
        running.step({"H": torch.from_numpy(q.curvature), "b": torch.from_numpy(q.slope + now)})
    found = local.means(q, start, 0.05, 20, 3, noise)[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def pull(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """A quadratic of a worker's own."""
    return model.x @ (batch["H"] @ model.x) / 2 + batch["b"] @ model.x


def test_moments_are_the_sum_over_all_paths() -> None:
    rng, n, steps = np.random.default_rng(4), 2, 4
    q = Quadratics(rng.uniform(0.2, 1.0, (n, 1, 1)), rng.normal(size=(n, 1)))
    noise, chances, mean_square = local.two_atoms(RandomDraws(rng), n, 1, steps)
    means = local.means(q, np.ones(1), 0.3, steps, 3, noise)[..., 0]
    exact = local.moments(q, np.ones(1), 0.3, steps, 3, mean_square)
    np.testing.assert_allclose(exact[:, 0, 0], chances @ means**2, rtol=1e-12)
    np.testing.assert_allclose(exact[:, 0, 1], chances @ means, rtol=1e-12)


def test_one_step_a_period_is_large_batch_descent() -> None:
    assert bounds.find("local-sgd-convex").value(LocalConvex(4, 1, 1.0, 0.5, 10, 2.0, 3.0, 9.0)).value == pytest.approx(
        4.0 / (2 * 0.5 * 10) + 0.5 * 3.0 / 8
    )
    assert bounds.find("local-sgd-nonconvex").value(
        LocalNonconvex(4, 1, 1.0, 0.5, 10, 2.0, 3.0, 9.0)
    ).value == pytest.approx(2 * 2.0 / (0.5 * 10) + 0.5 * 3.0 / 4)


def test_averages_of_the_nonconvex_bound_are_over_the_steps_that_were_made() -> None:
    bound, p = bounds.find("local-sgd-nonconvex"), LocalNonconvex(3, 4, 1.0, 0.2, 11, 0.0, 0.5, 0.3)
    e = np.array([spread(p)[t % 4] for t in range(11)])
    assert bound.value(p).value == pytest.approx(0.2 * 0.5 / 3 + np.mean(e**2))


# Gradient tracking


def test_the_trial_of_gradient_tracking_is_what_the_engine_runs() -> None:
    rng, n, d = np.random.default_rng(5), 4, 2
    root = rng.normal(size=(n, d, d))
    q, start = Quadratics(root @ root.transpose(0, 2, 1), rng.normal(size=(n, d))), rng.normal(size=d)
    w = adaptive.mixing(RandomDraws(np.random.default_rng(8)), n)
    running = engine(start, pull, "gradient-tracking", w, partial(torch.optim.SGD, lr=0.02))
    for steps in range(15):
        np.testing.assert_allclose(tracking.run(w, q, start, 0.02, steps), running.x.numpy(), rtol=0, atol=1e-11)
        running.step({"H": torch.from_numpy(q.curvature), "b": torch.from_numpy(q.slope)})


def test_the_radius_is_that_of_the_whole_recursion_without_its_invariant() -> None:
    draws = RandomDraws(np.random.default_rng(6))
    for _ in range(20):
        n, d = 4, 2
        w, (q, smooth, _) = adaptive.mixing(draws, n), tracking.quadratics(draws, n, d, convex=True)
        lr = 0.2 / smooth
        h, across = np.zeros((n * d, n * d)), np.kron(w, np.eye(d))
        for i in range(n):
            h[i * d : (i + 1) * d, i * d : (i + 1) * d] = q.curvature[i]
        whole = np.block([[across, -lr * np.eye(n * d)], [h @ (across - np.eye(n * d)), across - lr * h]])
        moduli = np.abs(np.linalg.eigvals(whole))
        # mean(y) - mean(g) is kept: d eigenvalues are one and belong to starts that never happen
        at_one = np.argsort(np.abs(np.linalg.eigvals(whole) - 1.0))[:d]
        found = tracking.radius(w, q.curvature, lr)
        assert found == pytest.approx(np.delete(moduli, at_one).max(), abs=1e-7)


@settings(max_examples=60)
@given(
    contraction=st.floats(0.0, 0.999),
    condition=st.floats(1.0, 1e4),
    smooth=st.floats(1e-3, 1e3),
    least=st.floats(-1.0, 1.0),
)
def test_the_step_is_where_the_gains_reach_one(
    contraction: float, condition: float, smooth: float, least: float
) -> None:
    p = TrackingProblem(contraction, smooth, smooth / condition, min(least, contraction))
    step = largest_step(p)

    def radius(lr: float) -> float:
        gain = gains(Tracking(p.contraction, p.smoothness, p.convexity, lr, p.lambda_min))
        return float(np.abs(np.linalg.eigvals(gain)).max())

    assert radius(step) == pytest.approx(1.0, abs=1e-6)
    assert radius(0.5 * step) < 1.0
    assert radius(1.5 * step) > 1.0
    assert step * smooth < 1.0, "so that gradient descent of the mean contracts by 1 - lr mu"


def test_gains_bound_every_step_of_the_three_norms() -> None:
    draws = RandomDraws(np.random.default_rng(9))
    for _ in range(50):
        n, d = draws.integer(2, 5), draws.integer(1, 3)
        w, rho, least = tracking._mixes(draws, n)
        q, smooth, convex = tracking.quadratics(draws, n, d, convex=False)
        lr = draws.real(1e-3, 1.0) / smooth
        m = gains(Tracking(rho, smooth, convex, lr, least))
        x, y = draws.generator().normal(size=(2, n, d))
        y += q.gradients(x).mean(0) - y.mean(0)
        for _ in range(5):
            norms = three_norms(x, y)
            latest = w @ x - lr * y
            y = w @ y + q.gradients(latest) - q.gradients(x)
            x = latest
            assert np.all(three_norms(x, y) <= (m @ norms) * (1 + 1e-10) + 1e-12)


def three_norms(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The optimum is at zero."""
    mean = np.sqrt(len(x)) * np.linalg.norm(x.mean(0))
    return np.array([mean, np.linalg.norm(x - x.mean(0)), np.linalg.norm(y - y.mean(0))])


def test_eigenvalues_that_rounding_has_swapped_are_taken() -> None:
    bound = bounds.find("gradient-tracking-step")
    exact = bound.value(TrackingProblem(0.0, 1.0, 0.1, 0.0))
    assert bound.value(TrackingProblem(0.0, 1.0, 0.1, 1e-16)).value == exact.value
    assert not bound.value(TrackingProblem(0.0, 1.0, 0.1, 1e-6)).applies
