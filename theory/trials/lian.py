"""Runs for the theorem of Lian et al.: small learning rates, awc, symmetric W, both sums of its left-hand side."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.lian import constants
from dissensus.theory.trials.base import Draws, Trial, trial
from dissensus.theory.trials.doubly_stochastic import contraction, random_mixing
from dissensus.theory.trials.dsgd_setup import Setup
from dissensus.theory.trials.functions import Functions, Quadratics, mean_gradient, random_cosines
from dissensus.theory.trials.nonconvex_descent import measured as facts
from dissensus.theory.trials.ramps import random_ramps

NAME = "lian-descent"


def measured(setup: Setup) -> Trial:
    """The facts, and the weighted sum of both mean squares."""
    problem = facts(setup).problem
    weight = (1.0 - problem.lr * problem.smoothness) / (2.0 * constants(problem)[0])
    total = 0.0
    for x in setup.states():
        at_mean = mean_gradient(setup.functions, x.mean(axis=1))
        mean_of = setup.functions.gradients(x).mean(axis=1)
        total += float(np.mean(np.sum(at_mean**2, axis=-1) + weight * np.sum(mean_of**2, axis=-1)))
    return Trial(problem, total / setup.steps)


def largest(smoothness: float, rate: float, size: int) -> float:
    """The learning rate at which D1 vanishes: 36 n (lr L)^2 = (1 - lambda)^2."""
    return (1.0 - rate) / (6.0 * size**0.5 * smoothness)


def _run(draws: Draws, heterogeneity: float, noise: float) -> Trial:
    n, d = draws.integer(2, 3 if noise > 0.0 else 8), draws.integer(1, 3)
    functions: Functions
    if draws.choice((True, False)):
        functions = random_cosines(draws, n, d, heterogeneity=heterogeneity)
    else:
        functions = random_ramps(draws, n, convex=False, heterogeneity=heterogeneity)
    w = random_mixing(draws, n, symmetric=True)
    rate = contraction(w)
    w = 0.5 * (w + 1.0 / n) if rate > 1.0 - 1e-6 else w
    lr = largest(functions.smoothness, contraction(w), n) * draws.real(0.01, 0.99, log=True)
    steps = draws.integer(1, 4 if n == 2 else 3) if noise > 0.0 else int(draws.real(1.0, 200.0, log=True))
    start = draws.generator().normal(size=functions.dimension)
    return measured(Setup(functions, [w], lr, steps, start, "awc", noise))


@trial(NAME)
def general(draws: Draws) -> Trial:
    """Noise and heterogeneity."""
    return _run(draws, draws.real(1e-3, 10.0, log=True), draws.choice((0.0, draws.real(1e-3, 10.0, log=True))))


@trial(NAME, "no heterogeneity")
def alike(draws: Draws) -> Trial:
    """No noise either."""
    return _run(draws, 0.0, 0.0)


@trial(NAME, "one step on a parabola")
def parabola(draws: Draws) -> Trial:
    """The excess alone."""
    n, lr = draws.integer(1, 4), draws.real(0.005, 0.16)
    functions = Quadratics(np.ones((n, 1, 1)), np.zeros((n, 1)))
    w = np.full((n, n), 1.0 / n)
    return measured(Setup(functions, [w], lr / n**0.5, draws.integer(1, 10), np.ones(1), "awc"))
