"""Rounds of exchange applied to random and to worst states."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.contraction import Adapted, AdaptedSpectrum, Periods, Rounds
from dissensus.theory.trials import graphs
from dissensus.theory.trials.base import Draws, Trial, trial


def _length(x: np.ndarray) -> float:
    return float(np.linalg.norm(graphs.apart(x)))


@trial("contraction-of-products")
def products(draws: Draws) -> Trial:
    """Unlike rounds on a random state."""
    n = draws.integer(2, 10)
    rounds = graphs.rounds(draws, n, draws.integer(1, 6))
    x = graphs.random_state(draws, n)
    before, scale = _length(x), float(np.linalg.norm(x))
    problem = Rounds(tuple(graphs.contraction(w) for w in rounds), before)
    for w in rounds:
        x = w @ x
    return Trial(problem, graphs.surely(_length(x), scale))


@trial("contraction-of-products", "slowest mode")
def slowest_products(draws: Draws) -> Trial:
    """One symmetric W on its slowest mode: attained."""
    w, steps = graphs.symmetric(draws), draws.integer(1, 6)
    x = graphs.slowest(w)[:, None] * draws.real(1e-2, 1e2, log=True)
    before, scale = _length(x), float(np.linalg.norm(x))
    problem = Rounds((graphs.contraction(w),) * steps, before)
    for _ in range(steps):
        x = w @ x
    return Trial(problem, graphs.surely(_length(x), scale))


@trial("contraction-over-periods")
def periods(draws: Draws) -> Trial:
    """A schedule of unlike rounds for any number of steps."""
    n, period, steps = draws.integer(2, 10), draws.integer(1, 4), draws.integer(1, 13)
    rounds = graphs.rounds(draws, n, period)
    x = graphs.random_state(draws, n)
    return _periods(rounds, x, steps)


@trial("contraction-over-periods", "slowest state")
def slowest_periods(draws: Draws) -> Trial:
    """From the state that one period shortens least: attained after it."""
    n, period = draws.integer(2, 10), draws.integer(1, 4)
    rounds = graphs.rounds(draws, n, period)
    once = np.linalg.multi_dot([np.eye(n), *reversed(rounds)])
    return _periods(rounds, graphs.slowest(once)[:, None], period)


def _periods(rounds: list[np.ndarray], x: np.ndarray, steps: int) -> Trial:
    once = np.linalg.multi_dot([np.eye(len(x)), *reversed(rounds)])
    before, scale = _length(x), float(np.linalg.norm(x))
    problem = Periods(graphs.contraction(once), len(rounds), steps, before)
    for t in range(steps):
        x = rounds[t % len(rounds)] @ x
    return Trial(problem, graphs.surely(_length(x), scale))


@trial("adapted-contraction")
def adapted(draws: Draws) -> Trial:
    """The norm of the weakened matrix itself."""
    w, gamma = graphs.mixing(draws), draws.real(1e-3, 1.0, log=True)
    return Trial(
        Adapted(gamma, graphs.contraction(w)),
        graphs.contraction((1 - gamma) * np.eye(len(w)) + gamma * w),
        rounding=1e-15,
    )


@trial("adapted-contraction-symmetric")
def adapted_symmetric(draws: Draws) -> Trial:
    """The same, weakened or strengthened up to three times."""
    w, gamma = graphs.symmetric(draws), draws.real(0.0, 3.0)
    ends = graphs.modes(w)
    moved = (1.0 - gamma) * np.eye(len(w)) + gamma * w - graphs.average(len(w))
    measured = graphs.resolved(float(np.linalg.norm(moved, 2)))
    return Trial(AdaptedSpectrum(gamma, float(ends[-1]), float(ends[0])), measured)
