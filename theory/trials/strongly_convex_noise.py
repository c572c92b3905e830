"""Decentralized SGD with noise on quadratics whose mean is strongly convex, by exact moments."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.strongly_convex_noise import NoisyStronglyConvexProblem
from dissensus.theory.trials.base import Draws, Trial, trial
from dissensus.theory.trials.doubly_stochastic import contraction, random_mixing
from dissensus.theory.trials.dsgd_runs import mean_worker, moments
from dissensus.theory.trials.functions import Quadratics, heterogeneity_at, one_against_many, random_quadratics
from dissensus.theory.trials.strongly_convex import beyond_rounding, convexity, least_curvature

NAME = "strongly-convex-noise"


def measured(
    functions: Quadratics,
    w: np.ndarray,
    lr: float,
    steps: int,
    start: np.ndarray,
    order: str,
    noise: float,
) -> Trial:
    """The facts and the last expected square distance of one run; noise along the flattest direction of F."""
    lowest = functions.minimiser()
    flattest = np.linalg.eigh(functions.curvature.mean(axis=0))[1][:, 0]
    shape = np.broadcast_to(noise * np.outer(flattest, flattest), functions.curvature.shape)
    m, c = list(moments(functions, [w], lr, steps + 1, start, order, shape))[-1]
    middle, spread = mean_worker(m, c)
    problem = NoisyStronglyConvexProblem(
        size=functions.size,
        contraction=contraction(w),
        smoothness=functions.smoothness,
        convexity=convexity(functions),
        lr=lr,
        steps=steps,
        distance=float(np.linalg.norm(start - lowest)),
        noise=noise,
        heterogeneity=heterogeneity_at(functions, lowest),
        order="atc" if order == "atc" else "awc",
        least_curvature=least_curvature(functions),
    )
    return Trial(problem, beyond_rounding(middle, start, lowest) ** 2 + float(np.trace(spread)))


def _run(draws: Draws, heterogeneity: float, noise: float, away: float, *, common: bool = False) -> Trial:
    n, d = draws.integer(2, 6), draws.integer(1, 3)
    least = draws.real(1e-3, 1.0, log=True)
    functions = random_quadratics(draws, n, d, heterogeneity=heterogeneity, condition=least, common=common)
    w, order = random_mixing(draws, n), draws.choice(("awc", "atc"))
    mu = convexity(functions)
    lr = draws.real(0.005, 1.0, log=True) * 2.0 / (mu + functions.smoothness) * (1.0 - 1e-12)
    steps = int(draws.real(1.0, 60.0, log=True))
    direction = draws.generator().normal(size=d)
    start = functions.minimiser() + away * direction / np.linalg.norm(direction)
    return measured(functions, w, lr, steps, start, order, noise)


@trial(NAME)
def general(draws: Draws) -> Trial:
    """Noise, heterogeneity, any start."""
    square, noise = draws.real(1e-4, 10.0, log=True), draws.real(1e-4, 10.0, log=True)
    return _run(draws, square, noise, draws.real(1e-3, 10.0, log=True))


@trial(NAME, "noise alone")
def noise_alone(draws: Draws) -> Trial:
    """A common minimiser, and a start there."""
    return _run(draws, 0.0, 1.0, 0.0)


@trial(NAME, "start alone")
def start_alone(draws: Draws) -> Trial:
    """No noise and a common minimiser."""
    return _run(draws, 0.0, 0.0, 1.0, common=draws.choice((True, False)))


@trial(NAME, "heterogeneity alone")
def heterogeneity_alone(draws: Draws) -> Trial:
    """One worker has most of the curvature and all of the quarrel; a start at the optimum."""
    n = draws.integer(2, 10)
    functions = one_against_many(n, draws.real(1e-3, 0.999, log=True))
    lazy = draws.real(0.0, 0.95)
    w = lazy * np.eye(n) + (1.0 - lazy) / n
    lr, steps = draws.real(1e-3, 1.0, log=True), draws.integer(2, 60)
    return measured(functions, w, lr, steps, np.zeros(1), "awc", 0.0)


@trial(NAME, "a common parabola")
def common(draws: Draws) -> Trial:
    """Exact averaging of the same parabola: mean and noise of the mean, nothing else."""
    n = draws.integer(1, 6)
    functions = Quadratics(np.ones((n, 1, 1)), np.zeros((n, 1)))
    w = np.full((n, n), 1.0 / n)
    noise, steps = draws.real(1e-3, 10.0, log=True), draws.integer(1, 30)
    return measured(functions, w, draws.real(0.05, 1.0), steps, np.ones(1), "atc", noise)
