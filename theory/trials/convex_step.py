"""One step from any state; the noise of the mean adds its variance exactly."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.convex_step import StepProblem
from dissensus.theory.trials.base import Draw, Draws, Trial, trial
from dissensus.theory.trials.functions import (
    Functions,
    Logistic,
    Quadratics,
    mean_value,
    random_logistic,
    random_quadratics,
)
from dissensus.theory.trials.ramps import Ramps, huber, random_ramps

RECALLED, OURS = "koloskova-step", "convex-step"


def measured(functions: Functions, x: np.ndarray, lr: float, noise: float, lowest: np.ndarray, mu: float) -> Trial:
    """The facts of a state and the distance after the step."""
    middle = x.mean(axis=0)
    after = middle - lr * functions.gradients(x).mean(axis=0)
    problem = StepProblem(
        size=functions.size,
        smoothness=functions.smoothness,
        lr=lr,
        distance=float(np.linalg.norm(middle - lowest)),
        excess=max(0.0, float(mean_value(functions, middle) - mean_value(functions, lowest))),
        disagreement=float(np.mean(np.sum((x - middle) ** 2, axis=1))),
        noise=noise,
        convexity=mu,
    )
    return Trial(problem, float(np.sum((after - lowest) ** 2)) + lr**2 * noise / functions.size)


def state(draws: Draws, share: float, *, at_optimum: bool) -> Trial:
    """A random state of random functions, at a learning rate of at most `share` of 1/L."""
    n, d = draws.integer(2, 8), draws.integer(1, 3)
    square, kind = draws.real(1e-3, 10.0, log=True), draws.choice(("quadratics", "logistic", "ramps"))
    functions: Quadratics | Logistic | Ramps
    if kind == "quadratics":
        least = draws.real(1e-3, 1.0, log=True)
        functions = random_quadratics(draws, n, d, heterogeneity=square, condition=least)
        lowest, mu = functions.minimiser(), float(np.linalg.eigvalsh(functions.curvature).min())
    elif kind == "logistic":
        functions = random_logistic(draws, n, d)
        lowest, mu = functions.minimiser(), functions.decay
    else:
        functions = random_ramps(draws, n, convex=True, heterogeneity=square)
        lowest, mu = np.array([functions.minimisers[0]]), 0.0
    rng = draws.generator()
    apart = rng.normal(size=(n, functions.dimension)) * draws.real(1e-2, 10.0, log=True)
    away = 0.0 if at_optimum else draws.real(1e-2, 10.0, log=True) * rng.normal(size=functions.dimension)
    x = lowest + away + apart - apart.mean(axis=0)
    lr = share * draws.choice((draws.real(0.01, 1.0, log=True), 0.999)) / functions.smoothness
    noise = draws.choice((0.0, draws.real(1e-3, 10.0, log=True)))
    return measured(functions, x, lr, noise, lowest, mu)


def linear_part(draws: Draws, share: float) -> Trial:
    """A Huber function on its linear part: all descent, nothing lost."""
    functions = huber(draws.integer(1, 5), slope=1.0, smoothness=1.0)
    x = np.full((functions.size, 1), draws.real(1.0, 3.0))
    return measured(functions, x, share * draws.real(0.5, 1.0), 0.0, np.zeros(1), 0.0)


def apart_by_curvature(draws: Draws, share: float) -> Trial:
    """The mean at the optimum, the only curved worker away from it: disagreement alone."""
    n = draws.integer(2, 12)
    bends = np.zeros((n, 1, 1))
    bends[0] = 1.0
    x = np.full((n, 1), -1.0 / (n - 1))
    x[0] = 1.0
    return measured(Quadratics(bends, np.zeros((n, 1))), x, share * draws.real(0.5, 1.0), 0.0, np.zeros(1), 0.0)


def curved_up_to_the_mean(draws: Draws, share: float) -> Trial:
    """One worker is curved just between itself and the mean, all others are linear: descent cancels disagreement."""
    n = draws.integer(2, 20)
    reach = draws.real(1.0, 1.5)
    # the optimum at 0; worker 0 at 1, linear below and of curvature 1 above; the mean at 1 + reach
    knots = np.array([0.0, 1.0, 1.0 + reach])
    heights = np.full((n, 3), -1.0 / (n - 1))
    heights[0] = [1.0, 1.0, 1.0 + reach]
    x = np.full((n, 1), 1.0 + reach + reach / (n - 1))
    x[0] = 1.0
    lr = share * draws.real(0.5, 1.0)
    return measured(Ramps(knots, heights), x, lr, 0.0, np.ones(1), 0.0)


def _register(name: str, share: float) -> None:
    families: dict[str, Draw] = {
        "general": lambda draws: state(draws, share, at_optimum=False),
        "mean at the optimum": lambda draws: state(draws, share, at_optimum=True),
        "linear part": lambda draws: linear_part(draws, share),
        "curved up to the mean": lambda draws: curved_up_to_the_mean(draws, share),
        "apart by curvature": lambda draws: apart_by_curvature(draws, share),
    }
    for family, draw in families.items():
        trial(name, family)(draw)


_register(RECALLED, 1.0 / 12.0)
_register(OURS, 1.0)
