"""Runs of decentralized gradient descent on convex functions, measured step by step."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.convex_descent import ConvexProblem
from dissensus.theory.trials.base import Draws, Trial, trial
from dissensus.theory.trials.dsgd_setup import Setup, random_setup
from dissensus.theory.trials.functions import heterogeneity_at, one_against_many
from dissensus.theory.trials.ramps import huber

NAME = "convex-descent"


def measured(setup: Setup) -> Trial:
    """The facts and the average excess of one run."""
    lowest = setup.minimiser()
    problem = ConvexProblem(
        contraction=setup.contraction,
        smoothness=setup.functions.smoothness,
        lr=setup.lr,
        steps=setup.steps,
        distance=float(np.linalg.norm(setup.start - lowest)),
        heterogeneity=heterogeneity_at(setup.functions, lowest),
        order="atc" if setup.order == "atc" else "awc",
        size=setup.functions.size,
    )
    return Trial(problem, setup.average_excess())


@trial(NAME)
def general(draws: Draws) -> Trial:
    """Any functions, mixing and start."""
    return measured(random_setup(draws)[0])


@trial(NAME, "start at the optimum")
def at_optimum(draws: Draws) -> Trial:
    """Only heterogeneity moves the mean."""
    return measured(random_setup(draws, at_optimum=True)[0])


@trial(NAME, "no heterogeneity")
def alike_at_optimum(draws: Draws) -> Trial:
    """All workers share a minimiser."""
    return measured(random_setup(draws, heterogeneous=False)[0])


@trial(NAME, "poor mixing")
def poor_mixing(draws: Draws) -> Trial:
    """Contraction near one."""
    return measured(random_setup(draws, poor=True)[0])


@trial(NAME, "complete graph")
def complete_graph(draws: Draws) -> Trial:
    """Everybody with everybody."""
    return measured(random_setup(draws, complete=True)[0])


@trial(NAME, "huber")
def kink(draws: Draws) -> Trial:
    """The same Huber function everywhere, steep enough not to be left before the end: the first term alone."""
    steps, smoothness = draws.integer(1, 60), draws.real(0.1, 10.0, log=True)
    distance = draws.real(0.1, 10.0, log=True)
    functions = huber(draws.integer(2, 5), slope=smoothness * distance / steps, smoothness=smoothness)
    mean = np.full((functions.size, functions.size), 1.0 / functions.size)
    lr = draws.choice((1.0, draws.real(0.5, 1.0))) / functions.smoothness
    return measured(Setup(functions, [mean], lr, steps, np.array([distance]), "atc"))


@trial(NAME, "one curved worker")
def one_curved_worker(draws: Draws) -> Trial:
    """The second term alone."""
    return measured(tug(draws, draws.integer(2, 20), steps=4000))


def tug(draws: Draws, size: int, *, steps: int, silent: int = 0, noise: float = 0.0) -> Setup:
    """One worker has all the curvature, the others are linear, and all disagreement is its.

    Args:
        draws: where the numbers come from.
        size: workers.
        steps: the longest horizon.
        silent: rounds without exchange after each lazy round of everybody with everybody.
        noise: of every worker.
    """
    lazy = draws.real(0.0, 0.9)
    lr = min(draws.real(0.03, 0.3, log=True), 0.5 * (1.0 - lazy) / (1.0 + silent))
    horizon = max(2, min(steps, int(draws.real(2.0, 8.0, log=True) * size / lr)))
    w = lazy * np.eye(size) + (1.0 - lazy) / size
    matrices = [w, *[np.eye(size)] * silent]
    return Setup(one_against_many(size), matrices, lr, horizon, np.zeros(1), "awc", noise)
