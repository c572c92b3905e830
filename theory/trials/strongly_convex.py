"""Runs of decentralized gradient descent, static symmetric W, on functions whose mean is strongly convex."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.strongly_convex import StronglyConvexProblem
from dissensus.theory.trials.base import Draws, Trial, trial
from dissensus.theory.trials.doubly_stochastic import contraction, random_mixing
from dissensus.theory.trials.dsgd_runs import path
from dissensus.theory.trials.dsgd_setup import ROUNDING
from dissensus.theory.trials.functions import (
    Logistic,
    Quadratics,
    mean_value,
    one_against_many,
    random_logistic,
    random_quadratics,
)

NAME = "strongly-convex-neighbourhood"


def convexity(functions: Quadratics | Logistic) -> float:
    """The smallest curvature of F anywhere."""
    if isinstance(functions, Logistic):
        return functions.decay
    return float(np.linalg.eigvalsh(functions.curvature.mean(axis=0)).min())


def least_curvature(functions: Quadratics | Logistic) -> float:
    """The smallest curvature of any worker's function anywhere."""
    if isinstance(functions, Logistic):
        return functions.decay
    return min(convexity(functions), float(np.linalg.eigvalsh(functions.curvature).min()))


def local_excess(functions: Quadratics | Logistic, start: np.ndarray) -> float:
    """The mean over the workers of what each could still gain on its own."""
    gains = []
    for i in range(functions.size):
        if isinstance(functions, Logistic):
            alone: Quadratics | Logistic = Logistic(functions.data[i : i + 1], functions.decay)
        else:
            alone = Quadratics(functions.curvature[i : i + 1], functions.slope[i : i + 1])
        gains.append(float(mean_value(alone, start) - mean_value(alone, alone.minimiser())))
    return max(0.0, float(np.mean(gains)))


def measured(functions: Quadratics | Logistic, w: np.ndarray, share: float, steps: int, start: np.ndarray) -> Trial:
    """The facts and the last distance of one run at a share of the largest learning rate."""
    least, smoothness, mu = float(np.linalg.eigvalsh(w)[0]), functions.smoothness, convexity(functions)
    lr = share * min((1.0 + least) / smoothness, 2.0 / (mu + smoothness)) * (1.0 - 1e-12)
    lowest = functions.minimiser()
    last = path(functions, [w], lr, steps, start)[-1].mean(axis=0)
    problem = StronglyConvexProblem(
        contraction=contraction(w),
        lambda_min=least,
        smoothness=smoothness,
        convexity=mu,
        lr=lr,
        steps=steps,
        distance=float(np.linalg.norm(start - lowest)),
        local_excess=local_excess(functions, start),
        least_curvature=least_curvature(functions),
    )
    return Trial(problem, beyond_rounding(last, start, lowest))


def beyond_rounding(last: np.ndarray, start: np.ndarray, lowest: np.ndarray) -> float:
    """The distance from the minimiser, less what rounding on the way may have added."""
    scale = 1.0 + float(np.linalg.norm(start) + np.linalg.norm(lowest))
    return max(0.0, float(np.linalg.norm(last - lowest)) - ROUNDING * scale)


def mixing(draws: Draws, size: int) -> np.ndarray:
    """Symmetric, no eigenvalue near -1, and never without any mixing."""
    w = random_mixing(draws, size, symmetric=True)
    w = 0.5 * (w + np.eye(size)) if np.linalg.eigvalsh(w)[0] < -0.9 else w
    return 0.5 * (w + 1.0 / size) if contraction(w) >= 1.0 - 1e-9 else w


@trial(NAME)
def general(draws: Draws) -> Trial:
    """Quadratics and logistic sums."""
    n, d = draws.integer(2, 8), draws.integer(1, 3)
    if draws.choice((True, False)):
        square, least = draws.real(1e-4, 10.0, log=True), draws.real(1e-3, 1.0, log=True)
        functions: Quadratics | Logistic = random_quadratics(draws, n, d, heterogeneity=square, condition=least)
    else:
        functions = random_logistic(draws, n, d)
    start = functions.minimiser() + draws.real(1e-3, 10.0, log=True) * draws.generator().normal(size=d)
    share, steps = draws.real(0.01, 1.0, log=True), int(draws.real(1.0, 300.0, log=True))
    return measured(functions, mixing(draws, n), share, steps, start)


@trial(NAME, "a common parabola")
def common(draws: Draws) -> Trial:
    """The start alone."""
    n = draws.integer(2, 6)
    functions = Quadratics(np.ones((n, 1, 1)), np.zeros((n, 1)))
    share, steps = draws.real(0.01, 0.9), draws.integer(1, 20)
    lazy = 0.5 * (mixing(draws, n) + np.eye(n))
    return measured(functions, lazy, share, steps, np.ones(1))


@trial(NAME, "start at the optimum")
def at_optimum(draws: Draws) -> Trial:
    """One worker has most of the curvature and all of the quarrel: heterogeneity alone."""
    n = draws.integer(2, 10)
    functions = one_against_many(n, draws.real(1e-3, 0.999, log=True))
    lazy = draws.real(0.0, 0.95)
    w = lazy * np.eye(n) + (1.0 - lazy) / n
    steps = int(draws.real(2.0, 2000.0, log=True))
    return measured(functions, w, draws.real(0.01, 1.0, log=True), steps, np.zeros(1))
