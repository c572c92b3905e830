"""Runs of decentralized SGD on convex functions: quadratics by exact moments, others over all paths of coin flips."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.convex_descent_noise import NoisyConvexProblem
from dissensus.theory.trials.base import Draws, Trial, trial
from dissensus.theory.trials.convex_descent import tug
from dissensus.theory.trials.dsgd_setup import Setup, random_setup
from dissensus.theory.trials.functions import Quadratics, heterogeneity_at

NAME = "convex-descent-noise"


def measured(setup: Setup) -> Trial:
    """The facts and the average expected excess of one run."""
    lowest = setup.minimiser()
    problem = NoisyConvexProblem(
        size=setup.functions.size,
        contraction=setup.contraction,
        smoothness=setup.functions.smoothness,
        lr=setup.lr,
        steps=setup.steps,
        distance=float(np.linalg.norm(setup.start - lowest)),
        noise=setup.noise,
        heterogeneity=heterogeneity_at(setup.functions, lowest),
        order="atc" if setup.order == "atc" else "awc",
    )
    return Trial(problem, setup.average_excess())


@trial(NAME)
def general(draws: Draws) -> Trial:
    """Any functions, mixing, noise and start."""
    return measured(random_setup(draws, noisy=True, steps=60)[0])


@trial(NAME, "noise alone")
def noise_alone(draws: Draws) -> Trial:
    """A common minimiser, and a start there."""
    return measured(random_setup(draws, noisy=True, heterogeneous=False, at_optimum=True, steps=60)[0])


@trial(NAME, "start at the optimum")
def at_optimum(draws: Draws) -> Trial:
    """Noise and heterogeneity."""
    return measured(random_setup(draws, noisy=True, at_optimum=True, steps=60)[0])


@trial(NAME, "poor mixing")
def poor_mixing(draws: Draws) -> Trial:
    """Contraction near one."""
    return measured(random_setup(draws, noisy=True, poor=True, steps=60)[0])


@trial(NAME, "full steps on the complete graph")
def full_steps(draws: Draws) -> Trial:
    """One parabola for all, mixed exactly, learning rate near 1/L: the noise of the mean alone."""
    n, steps, lr = draws.integer(2, 8), draws.integer(2, 60), draws.choice((1.0, draws.real(0.3, 1.0)))
    functions = Quadratics(np.ones((n, 1, 1)), np.zeros((n, 1)))
    mean = np.full((n, n), 1.0 / n)
    return measured(Setup(functions, [mean], lr, steps, np.zeros(1), "atc", draws.real(0.1, 10.0, log=True)))


@trial(NAME, "one curved worker")
def one_curved_worker(draws: Draws) -> Trial:
    """Heterogeneity with a little noise."""
    return measured(tug(draws, draws.integer(2, 8), steps=300, noise=draws.real(1e-6, 1e-3, log=True)))
