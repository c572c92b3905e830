"""Runs on schedules: one-peer rings and one-peer exponential graphs, weakened by gamma (DSGD-AC) or not."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.memory import Memory, of_schedule
from dissensus.theory.bounds.periodic_descent import PeriodicConvexProblem, PeriodicNonconvexProblem
from dissensus.theory.trials.base import Draws, Trial, trial
from dissensus.theory.trials.convex_descent import tug
from dissensus.theory.trials.dsgd_setup import Setup, random_setup
from dissensus.theory.trials.functions import heterogeneity_at, mean_value
from dissensus.theory.trials.nonconvex_descent import full_steps_setup, heterogeneity, opposite_setup

CONVEX, NONCONVEX = "periodic-convex-descent", "periodic-nonconvex-descent"


def convex_measured(setup: Setup, memory: Memory) -> Trial:
    """The facts and the average expected excess of one run."""
    lowest = setup.minimiser()
    problem = PeriodicConvexProblem(
        size=setup.functions.size,
        smoothness=setup.functions.smoothness,
        lr=setup.lr,
        steps=setup.steps,
        distance=float(np.linalg.norm(setup.start - lowest)),
        gain=memory.gain,
        response=memory.response,
        diffusion=memory.diffusion,
        noise=setup.noise,
        heterogeneity=heterogeneity_at(setup.functions, lowest),
    )
    return Trial(problem, setup.average_excess())


def nonconvex_measured(setup: Setup, memory: Memory) -> Trial:
    """The facts and the mean square gradient of one run."""
    problem = PeriodicNonconvexProblem(
        size=setup.functions.size,
        smoothness=setup.functions.smoothness,
        lr=setup.lr,
        steps=setup.steps,
        excess=max(0.0, float(mean_value(setup.functions, setup.start)) - setup.infimum()),
        gain=memory.gain,
        swing=memory.swing,
        diffusion=memory.diffusion,
        noise=setup.noise,
        heterogeneity=heterogeneity(setup),
    )
    return Trial(problem, setup.average_square_gradient())


@trial(CONVEX)
def general(draws: Draws) -> Trial:
    """One-peer schedules without noise."""
    return convex_measured(*random_setup(draws, periodic=True, steps=60))


@trial(CONVEX, "noise")
def noisy(draws: Draws) -> Trial:
    """One-peer schedules with noise."""
    return convex_measured(*random_setup(draws, periodic=True, noisy=True, steps=60))


@trial(CONVEX, "start at the optimum")
def at_optimum(draws: Draws) -> Trial:
    """Only heterogeneity moves the mean."""
    return convex_measured(*random_setup(draws, periodic=True, at_optimum=True, steps=60))


@trial(CONVEX, "changing gamma")
def changing_gamma(draws: Draws) -> Trial:
    """DSGD-AC: gamma falls with the steps, no round is like another."""
    setup, _ = random_setup(draws, periodic=True, steps=40)
    power = draws.real(0.0, 3.0)
    eye, rounds = np.eye(setup.functions.size), setup.matrices
    gammas = (1.0 - np.arange(setup.steps) / (2.0 * setup.steps)) ** power
    matrices = [(1.0 - g) * eye + g * rounds[t % len(rounds)] for t, g in enumerate(gammas)]
    memory = of_schedule(matrices, setup.steps, setup.order)
    lr = 0.99 * min(setup.lr, 1.0 / (setup.functions.smoothness * max(memory.gain, 1.0)))
    return convex_measured(Setup(setup.functions, matrices, lr, setup.steps, setup.start, setup.order), memory)


@trial(CONVEX, "one curved worker")
def one_curved_worker(draws: Draws) -> Trial:
    """Rounds of everybody with everybody, and silent rounds between them: heterogeneity alone."""
    setup = tug(draws, draws.integer(2, 8), steps=400, silent=draws.integer(0, 3))
    return convex_measured(setup, of_schedule(setup.matrices, setup.steps, setup.order))


@trial(NONCONVEX)
def nonconvex(draws: Draws) -> Trial:
    """One-peer schedules on cosines and broken lines, with and without noise."""
    noise = draws.choice((True, False))
    return nonconvex_measured(*random_setup(draws, convex=False, periodic=True, noisy=noise, steps=60))


@trial(NONCONVEX, "no heterogeneity")
def nonconvex_alike(draws: Draws) -> Trial:
    """The first term."""
    return nonconvex_measured(*random_setup(draws, convex=False, periodic=True, heterogeneous=False, steps=60))


@trial(NONCONVEX, "opposite curvatures")
def nonconvex_opposite(draws: Draws) -> Trial:
    """Two workers of curvature 1 and -1 pulled apart, with silent rounds: heterogeneity alone."""
    setup = opposite_setup(draws, steps=400, silent=draws.integer(0, 2))
    return nonconvex_measured(setup, of_schedule(setup.matrices, setup.steps, setup.order))


@trial(NONCONVEX, "full steps on the complete graph")
def nonconvex_full_steps(draws: Draws) -> Trial:
    """The noise of the mean alone."""
    setup = full_steps_setup(draws)
    return nonconvex_measured(setup, of_schedule(setup.matrices, setup.steps, setup.order))
