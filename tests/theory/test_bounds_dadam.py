"""DAdam's bound: its sequences against their definitions, the trial against the engine, and what it must show."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dissensus.algorithms import StackedEngine, algorithm
from dissensus.algorithms.optimizers.accum_adam import AccumAdam
from dissensus.theory import bounds, from_matrices
from dissensus.theory.bounds.dadam import Adaptive, coupling, drifts, memory, move_limits
from dissensus.theory.trials import dadam as adaptive
from dissensus.theory.trials.base import RandomDraws


def adam_weights(beta: float, t: int) -> np.ndarray:
    w = beta ** np.arange(t, -1.0, -1.0)
    return w / w.sum()


def written_out(p: Adaptive) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """U, lag, drift and coupling from their definitions: double and triple sums."""
    g2, reach = p.largest_gradient**2, p.lr * np.sqrt(p.dimension)
    limits, lag, drift, spread_of_step = [], [], [], [0.0]
    c = np.zeros(p.steps)
    for t in range(p.steps):
        a, b = adam_weights(p.beta1, t), adam_weights(p.beta2, t)
        limits.append(np.sqrt(sum(x * x / (y + x * p.eps / g2) for x, y in zip(a, b, strict=True) if x > 0)))
        e = [value * (1.0 if p.order == "awc" else p.contraction) for value in spread_of_step]
        behind = sum(a[s] * sum(limits[r] for r in range(s, t)) for s in range(t + 1))
        lag.append(p.smoothness * reach * behind)
        drift.append(lag[-1] + p.smoothness * float(a @ np.array(e)) + np.sqrt(p.heterogeneity))
        spread_of_step.append(p.contraction * spread_of_step[-1] + reach * limits[t])
        for s in range(t + 1):
            c[s] += a[s] * (p.eps**-0.5 - (p.eps + b[s:].sum() * g2) ** -0.5)
    return np.array(limits), np.array(lag), np.array(drift), float(np.sqrt(np.mean(c**2)))


RUN = Adaptive(0.6, 2.0, 3, 1.5, 0.05, 25, 4.0, 0.9, 0.999, 0.1, 0.2, 0.3)


@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.999), (0.0, 0.9), (0.5, 0.0), (0.0, 0.0), (0.95, 0.5)])
def test_sequences_are_their_definitions(order: str, beta1: float, beta2: float) -> None:
    p = replace(RUN, beta1=beta1, beta2=beta2, order=order)
    limits, lag, drift, c = written_out(p)
    np.testing.assert_allclose(move_limits(p), limits, rtol=1e-10)
    np.testing.assert_allclose(drifts(p, limits)[0], lag, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(drifts(p, limits)[1], drift, rtol=1e-9)
    np.testing.assert_allclose(coupling(p), c, rtol=1e-9)


def test_what_is_forgotten_is_bounded_not_dropped() -> None:
    p = replace(RUN, beta1=0.3, beta2=0.2, steps=120)  # more steps than lags that are summed
    limits, _, _, c = written_out(p)
    assert np.all(move_limits(p) >= limits * (1.0 - 1e-13))
    assert coupling(p) >= c * (1.0 - 1e-13)
    np.testing.assert_allclose(move_limits(p), limits, rtol=1e-10)
    np.testing.assert_allclose(coupling(p), c, rtol=1e-10)


def largest_root(b: float, a: float) -> float:
    return float(max(np.roots([1.0, -b, -a]).real))


@pytest.mark.parametrize("eps", [1e-6, 0.1, 50.0])
@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("beta1", [0.0, 0.8])
def test_the_value_is_the_smaller_of_the_two_roots(eps: float, noise: float, beta1: float) -> None:
    p = replace(RUN, eps=eps, noise=noise, beta1=beta1, steps=12)
    limits, lag, drift, c = written_out(p)
    big, sigma, total = np.sqrt(1.5**2 + eps), np.sqrt(noise), np.sqrt(np.mean(drift**2))
    a = 4.0 / (0.05 * 12) + 2.0 * 0.05 * 3 / 2 * np.mean(limits**2) + sigma * np.mean(lag) / np.sqrt(eps)
    first = big * largest_root(total / eps**0.25 + sigma * c * np.sqrt(big) / 2, a) ** 2
    kept = np.array([np.sum(adam_weights(beta1, t) ** 2) for t in range(12)])
    x = np.mean(drift * (np.sqrt(3) * limits + sigma * np.sqrt(kept / eps)))
    second = (largest_root(big * sigma * c / 2, big * (a + x + sigma * c * total / 2)) + total) ** 2
    assert bounds.find("dadam-nonconvex").value(p).value == pytest.approx(min(first, second), rel=1e-9)


def test_the_bound_for_small_steps_is_its_statement() -> None:
    p = replace(RUN, noise=0.0, lr=1e-3, beta1=0.5, eps=0.3)
    weight = sum(0.5 * 0.5**j / (1 - 0.5 ** (j + 2)) for j in range(200))
    c, root = 1.0 + np.sqrt(weight) / 0.4, np.sqrt(0.3)
    q = 1e-3 * 2.0 * (c + 0.5) / root
    z = largest_root(np.sqrt(0.3) / (0.3**0.25 * (1 - q)), 4.0 / (1e-3 * 25 * (1 - q)))
    expected = ((1.5**2 + 0.3) ** 0.25 + 1e-3 * 2.0 * c / 0.3**0.25) * z + np.sqrt(0.3)
    assert bounds.find("dadam-small-step").value(p).value == pytest.approx(expected**2, rel=1e-10)


@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("contraction", [0.0, 0.5, 0.9])
def test_memory_bounds_the_norms_of_both_kernels(beta1: float, contraction: float) -> None:
    steps = 80
    a = np.zeros((steps, steps))
    for t in range(steps):
        a[t, : t + 1] = adam_weights(beta1, t)
    gap = np.subtract.outer(np.arange(steps), np.arange(steps))
    leaves = np.where(gap > 0, contraction ** np.maximum(gap - 1.0, 0.0), 0.0)
    moved_on = np.where(gap > 0, np.cumsum(a, 1), 0.0)
    norms = [np.linalg.norm(kernel, 2) for kernel in (moved_on, a @ leaves)]
    assert norms[0] <= beta1 / (1.0 - beta1) + 1e-12
    assert sum(norms) <= memory(beta1, contraction, "awc") * (1 + 1e-12)
    assert norms[0] + contraction * norms[1] <= memory(beta1, contraction, "atc") * (1 + 1e-12)


@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9])
def test_no_move_is_longer_than_its_limit(beta1: float) -> None:
    p, rng = replace(RUN, beta1=beta1, beta2=0.9), np.random.default_rng(0)
    limits, closest = move_limits(p), np.zeros(p.steps)
    for trial in range(400):
        g = rng.uniform(-1.0, 1.0, p.steps) ** rng.integers(1, 9) if trial % 2 else np.sign(rng.normal(size=p.steps))
        g = p.largest_gradient * g * (np.arange(p.steps) >= rng.integers(p.steps))
        for t in range(p.steps):
            first, second = adam_weights(beta1, t) @ g[: t + 1], adam_weights(0.9, t) @ g[: t + 1] ** 2
            closest[t] = max(closest[t], abs(first) / np.sqrt(second + p.eps))
    assert np.all(closest <= limits * (1.0 + 1e-12))
    assert closest[0] == pytest.approx(limits[0])
    if beta1 == 0.0:
        g = np.zeros(p.steps)
        g[-1] = p.largest_gradient
        second = adam_weights(0.9, p.steps - 1) @ g**2
        assert p.largest_gradient / np.sqrt(second + p.eps) == pytest.approx(limits[-1]), "attained after silence"


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


@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
def test_the_trial_of_dadam_is_what_the_engine_runs(order: str) -> None:
    rng, n, d = np.random.default_rng(1), 4, 3
    tilt = rng.normal(size=(n, d))
    waves = adaptive.Waves(rng.uniform(0.5, 2, d), rng.uniform(0.5, 2, d), np.array([True, False, True]), tilt)
    w = adaptive.mixing(RandomDraws(np.random.default_rng(7)), n)
    p = replace(RUN, order=order, steps=30, lr=0.1)
    height, frequency = torch.from_numpy(waves.height), torch.from_numpy(waves.frequency)

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        y = frequency * model.x
        wave = torch.where(torch.from_numpy(waves.bounded), 1 - torch.cos(y), torch.sqrt(1 + y * y) - 1)
        return (height * wave).sum() + batch["tilt"] @ model.x

    adam = partial(AccumAdam, lr=p.lr, betas=(p.beta1, p.beta2), eps=p.eps, eps_in_root=True)
    start, squares = rng.normal(size=d), []
    running = engine(start, loss, "dadam", w, adam, order=order)
    for _ in range(p.steps):
        at = torch.from_numpy(running.x.numpy().mean(0)).requires_grad_()
        holder = type("Holder", (), {"x": at})
        slope = torch.autograd.grad(loss(holder, {"tilt": torch.zeros(d, dtype=torch.float64)}), at)[0]
        squares.append(float(slope @ slope))
        running.step({"tilt": torch.from_numpy(tilt)})
    found = adaptive.run(p, waves, w, start)[0]
    np.testing.assert_allclose(found, np.mean(squares), rtol=1e-10)


def test_constants_of_waves() -> None:
    rng = np.random.default_rng(2)
    waves = adaptive.Waves(
        rng.uniform(0.5, 2, 3), rng.uniform(0.5, 2, 3), np.array([True, False, True]), np.zeros((2, 3))
    )
    x = rng.uniform(-20, 20, (4000, 3))
    numeric = [(waves.value(row + 1e-6) - waves.value(row - 1e-6)) / 2e-6 for row in x[:50]]
    np.testing.assert_allclose(numeric, waves.slope(x[:50]).sum(1), rtol=1e-5, atol=1e-7)
    bends = np.abs(waves.slope(x + 1e-6) - waves.slope(x - 1e-6)) / 2e-6
    assert 0.9 * waves.smoothness < bends.max() <= waves.smoothness * (1 + 1e-6)
    assert np.abs(waves.slope(x)).max() <= waves.largest(np.zeros(3))
    assert min(waves.value(row) for row in x) > 0.0 == waves.value(np.zeros(3))


def test_values_of_waves_keep_their_digits_at_the_foot() -> None:
    waves = adaptive.Waves(np.full(2, 3.0), np.full(2, 2.0), np.array([True, False]), np.zeros((1, 2)))
    for at in (np.array([1e-7, 0.0]), np.array([0.0, 1e-7])):
        assert waves.value(at) == pytest.approx(3.0 * 0.5 * (2.0 * 1e-7) ** 2, rel=1e-12, abs=0.0)


def test_noise_has_two_atoms_of_mean_zero_and_unit_variance() -> None:
    noise = adaptive.Noise(np.array([2.0, 1.0]), 0.1)
    drawn, chances = noise.paths(2, 2)
    assert drawn.shape == (16, 2, 2, 2)
    np.testing.assert_allclose(chances.sum(), 1.0, rtol=1e-14)
    np.testing.assert_allclose(np.tensordot(chances, drawn, 1), 0.0, atol=1e-14)
    np.testing.assert_allclose(np.tensordot(chances, np.sum(drawn**2, -1), 1), 5.0, rtol=1e-13)
    assert np.array_equal(noise.largest, np.abs(drawn).max((0, 1, 2)))


def test_heterogeneity_alone_moves_dadam_away_from_a_stationary_point() -> None:
    # sign descent: two workers pull by 1, one by -2, so the mean gradient is zero and the mean sign is 1/3
    tilt = np.array([[1.0], [1.0], [-2.0]])
    waves = adaptive.Waves(np.ones(1), np.ones(1), np.zeros(1, bool), tilt)
    p = Adaptive(0.0, 1.0, 1, 3.0, 1e-3, 4000, 0.0, 0.0, 0.0, 1e-6, 0.0, 2.0)
    found = adaptive.run(p, waves, np.full((3, 3), 1.0 / 3), np.zeros(1))[0]
    far = 4000 * 1e-3 / 3  # and the slope there is x / sqrt(1 + x^2), squared and averaged over the way
    assert found == pytest.approx(1.0 - np.arctan(far) / far, rel=1e-3)
    assert found < bounds.find("dadam-nonconvex").value(p).value


def test_the_bound_stays_finite_as_epsilon_vanishes_without_noise() -> None:
    bound, values = bounds.find("dadam-nonconvex"), []
    for eps in (1e-4, 1e-8, 1e-16, 1e-32):
        values.append(bound.value(replace(RUN, noise=0.0, eps=eps)).value)
    assert values[-1] == pytest.approx(values[-2], rel=1e-4)
    assert values[-1] < 1e3


@pytest.mark.parametrize("worse", ["lr", "contraction", "heterogeneity", "noise", "excess", "smoothness", "dimension"])
def test_the_bound_grows_with_what_is_bad(worse: str) -> None:
    bound = bounds.find("dadam-nonconvex")
    more = {"contraction": 0.8, "dimension": 4}.get(worse, 2.0 * getattr(RUN, worse))
    base = replace(RUN, excess=0.0) if worse == "lr" else RUN
    assert bound.value(replace(base, **{worse: more})).value > bound.value(base).value
