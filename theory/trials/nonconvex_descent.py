"""Runs of decentralized SGD on functions that are not convex, noise over all paths of coin flips."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.nonconvex_descent import NonconvexProblem
from dissensus.theory.trials.base import Draws, Trial, trial
from dissensus.theory.trials.dsgd_setup import Setup, random_setup
from dissensus.theory.trials.functions import Cosines, Quadratics, mean_value
from dissensus.theory.trials.ramps import Ramps

NAME = "nonconvex-descent"


def heterogeneity(setup: Setup) -> float:
    """The supremum over all points, which these functions know."""
    if isinstance(setup.functions, Cosines | Ramps):
        return setup.functions.heterogeneity
    if isinstance(setup.functions, Quadratics) and np.ptp(setup.functions.curvature, axis=0).max() == 0.0:
        return float(np.mean(np.sum((setup.functions.slope - setup.functions.slope.mean(axis=0)) ** 2, axis=1)))
    raise TypeError(f"heterogeneity of {type(setup.functions).__name__} is not bounded")


def measured(setup: Setup) -> Trial:
    """The facts and the mean square gradient of one run."""
    problem = NonconvexProblem(
        size=setup.functions.size,
        contraction=setup.contraction,
        smoothness=setup.functions.smoothness,
        lr=setup.lr,
        steps=setup.steps,
        excess=max(0.0, float(mean_value(setup.functions, setup.start)) - setup.infimum()),
        noise=setup.noise,
        heterogeneity=heterogeneity(setup),
        order="atc" if setup.order == "atc" else "awc",
    )
    return Trial(problem, setup.average_square_gradient())


@trial(NAME)
def general(draws: Draws) -> Trial:
    """Any functions, mixing, noise and start."""
    noisy = draws.choice((True, False))
    return measured(random_setup(draws, convex=False, noisy=noisy)[0])


@trial(NAME, "no heterogeneity")
def alike(draws: Draws) -> Trial:
    """No noise either: the first term."""
    return measured(random_setup(draws, convex=False, heterogeneous=False)[0])


@trial(NAME, "noise")
def noise(draws: Draws) -> Trial:
    """Noise without heterogeneity."""
    return measured(random_setup(draws, convex=False, noisy=True, heterogeneous=False)[0])


@trial(NAME, "poor mixing")
def poor_mixing(draws: Draws) -> Trial:
    """Contraction near one."""
    return measured(random_setup(draws, convex=False, poor=True)[0])


@trial(NAME, "one step on a parabola")
def parabola(draws: Draws) -> Trial:
    """Nothing to disagree about and one step, any learning rate below 2/L: the excess alone."""
    n, lr = draws.integer(1, 8), draws.real(0.05, 1.99)
    functions = Quadratics(np.ones((n, 1, 1)), np.zeros((n, 1)))
    w = np.full((n, n), 1.0 / n)
    return measured(Setup(functions, [w], lr, draws.integer(1, 3), np.ones(1), "atc"))


@trial(NAME, "opposite curvatures")
def opposite(draws: Draws) -> Trial:
    """Heterogeneity alone."""
    return measured(opposite_setup(draws, steps=800))


@trial(NAME, "full steps on the complete graph")
def full_steps(draws: Draws) -> Trial:
    """The noise of the mean alone."""
    return measured(full_steps_setup(draws))


def opposite_setup(draws: Draws, *, steps: int, silent: int = 0) -> Setup:
    """Two workers of curvature 1 and -1 pulled apart until their gradients cancel, on a slope that stays."""
    lazy = draws.real(0.0, 0.6)
    lr = draws.real(0.03, 0.2) * (1.0 - lazy) / (1.0 + silent)
    horizon = max(2, min(steps, int(draws.real(10.0, 100.0, log=True) / lr)))
    apart = lr / (1.0 - lazy) * (1.0 + silent)
    width = apart * draws.real(1.0, 1.5)
    # derivatives: clipped x - 1 - slope, clipped -x + 1 - slope; both fade to zero slope far to the right
    slope = apart * draws.real(0.85, 1.1)
    knots = np.array([-width - slope, -width, width, width + slope])
    tent = np.array([-width, -width, width, width])
    fade = np.array([0.0, -slope, -slope, 0.0])
    functions = Ramps(knots, np.array([tent - 1.0 + fade, -tent + 1.0 + fade]))
    w = np.array([[1.0 + lazy, 1.0 - lazy], [1.0 - lazy, 1.0 + lazy]]) / 2.0
    return Setup(functions, [w, *[np.eye(2)] * silent], lr, horizon, np.zeros(1), "awc")


def full_steps_setup(draws: Draws) -> Setup:
    """One parabola for two workers, mixed exactly, learning rate near 1/L."""
    functions = Quadratics(np.ones((2, 1, 1)), np.zeros((2, 1)))
    mean, lr = np.full((2, 2), 0.5), draws.choice((1.0, draws.real(0.5, 1.5)))
    return Setup(functions, [mean], lr, draws.integer(2, 5), np.zeros(1), "atc", draws.real(0.1, 10.0, log=True))
