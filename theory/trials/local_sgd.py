r"""Trials of the bounds on local SGD: runs on functions of known constants, exact moments, all paths of noise.

With additive noise the moments of the stacked points of a quadratic follow a linear recursion, so expectations are
exact for any number of steps; on other functions noise has two atoms per worker and step, and few steps are summed
over all paths.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from dissensus.theory.bounds.local_sgd import LocalConvex, LocalNonconvex, period_norm
from dissensus.theory.trials.base import Draws, Trial, trial
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


def means(f: Functions, start: np.ndarray, lr: float, steps: int, period: int, noise: np.ndarray) -> np.ndarray:
    """The means (paths, steps, d) of a run from one point, with given noise (paths, steps, n, d)."""
    x = np.tile(start, (len(noise), f.size, 1))
    found = []
    for t in range(steps):
        found.append(x.mean(1))
        x = x - lr * (f.gradients(x) + noise[:, t])
        if (t + 1) % period == 0:
            x = np.repeat(x.mean(1, keepdims=True), f.size, 1)
    return np.stack(found, 1)


def moments(q: Quadratics, start: np.ndarray, lr: float, steps: int, period: int, noise: float) -> np.ndarray:
    """The second moments E[z z'] of (mean of the points, 1), (steps, d + 1, d + 1), with isotropic noise."""
    n, d = q.slope.shape
    big = n * d
    step = np.eye(big + 1)
    for i in range(n):
        at = slice(i * d, (i + 1) * d)
        step[at, at] -= lr * q.curvature[i]
        step[at, big] = -lr * q.slope[i]
    average = np.eye(big + 1)
    average[:big, :big] = np.kron(np.full((n, n), 1.0 / n), np.eye(d))
    read = np.zeros((d + 1, big + 1))
    read[d, big] = 1.0
    read[:d, :big] = np.kron(np.full((1, n), 1.0 / n), np.eye(d))
    z = np.concatenate([np.tile(start, n), [1.0]])
    s = np.outer(z, z)
    added = lr**2 * noise / d * np.eye(big + 1)
    added[big, big] = 0.0
    found = []
    for t in range(steps):
        found.append(read @ s @ read.T)
        s = step @ s @ step.T + added
        if (t + 1) % period == 0:
            s = average @ s @ average.T
    return np.stack(found)


def two_atoms(draws: Draws, size: int, dimension: int, steps: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Noise on all paths (paths, steps, n, d), their probabilities, and its mean square."""
    direction = draws.generator().normal(size=dimension) * draws.real(0.03, 3.0, log=True)
    chance = draws.real(0.05, 0.5)
    up = ((1.0 - chance) / chance) ** 0.5
    chosen = np.array(list(product((0, 1), repeat=steps * size))).reshape(-1, steps, size)
    chances = np.where(chosen == 0, chance, 1.0 - chance).prod((1, 2))
    return np.array([up, -1.0 / up])[chosen][..., None] * direction, chances, float(direction @ direction)


def _start(draws: Draws, dimension: int) -> np.ndarray:
    direction = draws.generator().normal(size=dimension)
    return direction / np.linalg.norm(direction) * draws.real(0.01, 10.0, log=True)


def _smooth(draws: Draws, size: int) -> tuple[Functions, float, float]:
    """A function that is not convex, its heterogeneity and a number that F is never below."""
    zeta = draws.choice((0.0, draws.real(0.01, 10.0, log=True)))
    if draws.choice((True, False)):
        waves = random_cosines(draws, size, draws.integer(1, 3), heterogeneity=zeta)
        return waves, waves.heterogeneity, waves.infimum
    ramps = random_ramps(draws, size, convex=False, heterogeneity=zeta)
    return ramps, ramps.heterogeneity, ramps.minimum[1]


def _nonconvex(
    draws: Draws, f: Functions, facts: tuple[float, float], lr: float, steps: int, period: int, noisy: bool
) -> Trial:
    start = _start(draws, f.dimension)
    noise, chances, mean_square = np.zeros((1, steps, f.size, f.dimension)), np.ones(1), 0.0
    if noisy:
        noise, chances, mean_square = two_atoms(draws, f.size, f.dimension, steps)
    slopes = mean_gradient(f, means(f, start, lr, steps, period, noise))
    excess = float(mean_value(f, start)) - facts[1]
    problem = LocalNonconvex(f.size, period, f.smoothness, lr, steps, max(excess, 0.0), mean_square, facts[0])
    return Trial(problem, float(chances @ np.sum(slopes**2, (1, 2)) / steps), rounding=1e-28 * f.smoothness**2)


@trial("local-sgd-nonconvex")
def _general(draws: Draws) -> Trial:
    f, *facts = _smooth(draws, draws.integer(1, 6))
    lr = draws.real(1e-3, 1.0, log=True) / f.smoothness
    return _nonconvex(draws, f, (facts[0], facts[1]), lr, draws.integer(1, 60), draws.integer(1, 12), noisy=False)


@trial("local-sgd-nonconvex", "noise, every path")
def _paths(draws: Draws) -> Trial:
    f, *facts = _smooth(draws, draws.integer(2, 4))
    lr = draws.real(1e-2, 1.0, log=True) / f.smoothness
    steps = draws.integer(1, 10 // f.size)
    return _nonconvex(draws, f, (facts[0], facts[1]), lr, steps, draws.integer(1, 5), noisy=True)


@trial("local-sgd-nonconvex", "noise on a common quadratic")
def _floor(draws: Draws) -> Trial:
    """The noise floor of the mean, long after the start, by exact moments."""
    size = draws.integer(1, 4)
    q = random_quadratics(draws, size, draws.integer(1, 2), heterogeneity=0.0, condition=0.05, common=True)
    start, lr = np.zeros(q.dimension), draws.real(1e-2, 1.0, log=True) / q.smoothness
    steps, period = draws.integer(1, 300), draws.integer(1, 4)
    second = moments(q, start, lr, steps, period, 1.0)
    h = q.curvature[0]
    squares = np.einsum("ij,tjk,ik->t", h, second[:, :-1, :-1], h)
    return Trial(LocalNonconvex(size, period, q.smoothness, lr, steps, 0.0, 1.0), float(squares.mean()))


def _rate(draws: Draws, smoothness: float, period: int) -> float:
    """A step size up to where the convex bound ceases to apply."""
    norm = period_norm(period)
    most = 1.0 if norm == 0.0 else (np.sqrt(1.0 + 4.0 * norm**2) - 1.0) / (2.0 * norm**2)
    return draws.real(1e-2, 0.999, log=True) * float(most) / smoothness


@trial("local-sgd-convex")
def _convex(draws: Draws) -> Trial:
    size, period = draws.integer(1, 6), draws.integer(1, 12)
    kind, zeta = draws.choice(("quadratic", "logistic", "ramps")), draws.choice((0.0, draws.real(1e-2, 10.0, log=True)))
    if kind == "logistic":
        f: Functions = random_logistic(draws, size, draws.integer(1, 3))
        best = f.minimiser()  # type: ignore[attr-defined]
    elif kind == "ramps":
        f, best = random_ramps(draws, size, convex=True, heterogeneity=zeta), np.zeros(1)
    else:
        f = random_quadratics(draws, size, draws.integer(1, 3), heterogeneity=zeta)
        best = np.zeros(f.dimension)
    return _run(draws, f, best, _rate(draws, f.smoothness, period), draws.integer(1, 60), period, noisy=False)


@trial("local-sgd-convex", "noise, every path")
def _convex_paths(draws: Draws) -> Trial:
    size, period = draws.integer(2, 4), draws.integer(1, 5)
    f = random_ramps(draws, size, convex=True, heterogeneity=draws.choice((0.0, 0.1, 1.0)))
    lr = _rate(draws, f.smoothness, period)
    return _run(draws, f, np.zeros(1), lr, draws.integer(1, 10 // size), period, noisy=True)


def _run(draws: Draws, f: Functions, best: np.ndarray, lr: float, steps: int, period: int, *, noisy: bool) -> Trial:
    start = best + _start(draws, f.dimension)
    noise, chances, mean_square = np.zeros((1, steps, f.size, f.dimension)), np.ones(1), 0.0
    if noisy:
        noise, chances, mean_square = two_atoms(draws, f.size, f.dimension, steps)
    values = mean_value(f, means(f, start, lr, steps, period, noise)).mean(1) - mean_value(f, best)
    zeta = heterogeneity_at(f, best) + float(np.sum(mean_gradient(f, best) ** 2))
    distance = float(np.linalg.norm(start - best))
    problem = LocalConvex(f.size, period, f.smoothness, lr, steps, distance, mean_square, zeta)
    return Trial(problem, float(chances @ values))


@trial("local-sgd-convex", "noise, exact moments")
def _convex_moments(draws: Draws) -> Trial:
    size, period, steps = draws.integer(1, 4), draws.integer(1, 10), draws.integer(1, 200)
    q = random_quadratics(draws, size, draws.integer(1, 2), heterogeneity=draws.choice((0.0, 0.1, 1.0)))
    lr, noise = _rate(draws, q.smoothness, period), draws.real(1e-2, 10.0, log=True)
    start = _start(draws, q.dimension)
    second = moments(q, start, lr, steps, period, noise)
    h, b = q.curvature.mean(0), q.slope.mean(0)
    values = 0.5 * np.einsum("ij,tij->t", h, second[:, :-1, :-1]) + second[:, :-1, -1] @ b
    zeta = heterogeneity_at(q, np.zeros(q.dimension))
    distance = float(np.linalg.norm(start))
    return Trial(LocalConvex(size, period, q.smoothness, lr, steps, distance, noise, zeta), float(values.mean()))


@trial("local-sgd-convex", "long slope")
def _slope(draws: Draws) -> Trial:
    """A Huber function whose parabola is reached at the end: gradient descent at its slowest."""
    lr, steps = draws.real(1e-3, 1.0, log=True), draws.integer(1, 60)
    far = draws.real(0.5, 2.0)
    distance = far * (2.0 * lr * steps + 1.0)
    f = huber(1, slope=draws.real(0.3, 1.5), smoothness=1.0)
    values = mean_value(f, means(f, np.array([distance]), lr, steps, 1, np.zeros((1, steps, 1, 1))))
    problem = LocalConvex(1, 1, 1.0, lr, steps, distance)
    return Trial(problem, float(values.mean() - mean_value(f, np.zeros(1))))


@trial("local-sgd-convex", "drift")
def _drift(draws: Draws) -> Trial:
    """From the optimum: whatever moves the mean is that the workers' curvatures differ."""
    size, period = draws.integer(2, 4), draws.integer(2, 12)
    f = random_ramps(draws, size, convex=True, heterogeneity=1.0)
    lr, steps = _rate(draws, f.smoothness, period), draws.integer(2, 300)
    values = mean_value(f, means(f, np.zeros(1), lr, steps, period, np.zeros((1, steps, size, 1)))).mean()
    problem = LocalConvex(size, period, f.smoothness, lr, steps, 0.0, 0.0, 1.0)
    return Trial(problem, float(values - mean_value(f, np.zeros(1))))
