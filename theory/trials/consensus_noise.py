"""Noise through mixing matrices: stationary by the discrete Lyapunov equation, in time by the recursion."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from dissensus.theory.bounds.consensus_noise import NoisyPeriods, NoisySize, NoisySpectrum
from dissensus.theory.bounds.consensus_step import Order
from dissensus.theory.trials import graphs
from dissensus.theory.trials.base import Draws, Trial, trial
from dissensus.theory.trials.consensus_step import ORDERS


def _stationary(w: np.ndarray, lr: float, noise: float, order: Order) -> float:
    n = len(w)
    rest = w - graphs.average(n)
    through = rest if order == "atc" else np.eye(n) - graphs.average(n)
    covariance = solve_discrete_lyapunov(rest, lr**2 * noise * through @ through.T, method="direct")
    return graphs.resolved(float(np.trace(covariance)) / n, lr**2 * noise)


@trial("noise-consensus")
def stationary(draws: Draws) -> Trial:
    """Any symmetric W that mixes."""
    w, order = graphs.connected(draws, 2, 8), draws.choice(ORDERS)
    lr, noise = draws.real(1e-3, 1.0, log=True), draws.real(1e-2, 1e2, log=True)
    values = tuple(graphs.resolved(float(v)) for v in graphs.modes(w))
    return Trial(NoisySpectrum(values, lr, noise, order), _stationary(w, lr, noise, order))


@trial("noise-consensus-least")
def least(draws: Draws) -> Trial:
    """The same, knowing less."""
    return _least(draws, graphs.connected(draws, 2, 8))


@trial("noise-consensus-least", "all modes alike")
def least_even(draws: Draws) -> Trial:
    """Attained."""
    n = draws.integer(2, 8)
    return _least(draws, graphs.even(n, draws.real(-0.99 / (n - 1), 0.99)))


def _least(draws: Draws, w: np.ndarray) -> Trial:
    lr, noise = draws.real(1e-3, 1.0, log=True), draws.real(1e-2, 1e2, log=True)
    return Trial(NoisySize(len(w), float((w**2).sum()), lr, noise), _stationary(w, lr, noise, "awc"))


@trial("noise-consensus-periods")
def periods(draws: Draws) -> Trial:
    """Unlike rounds, the largest consensus distance within some periods from agreement."""
    n, period = draws.integer(2, 8), draws.integer(1, 4)
    rounds = graphs.rounds(draws, n, period)
    if _slowest_window(rounds) >= 0.999:
        rounds[0] = 0.9 * rounds[0] + 0.1 * graphs.average(n)
    return _periods(draws, rounds)


@trial("noise-consensus-periods", "all modes alike")
def periods_even(draws: Draws) -> Trial:
    """A static W with all modes alike: attained as time goes on."""
    n = draws.integer(2, 8)
    return _periods(draws, [graphs.even(n, draws.real(0.0, 0.85))])


def _slowest_window(rounds: list[np.ndarray]) -> float:
    norms = []
    for t in range(len(rounds)):
        once = np.eye(len(rounds[0]))
        for k in range(len(rounds)):
            once = rounds[(t + k) % len(rounds)] @ once
        norms.append(graphs.contraction(once))
    return max(norms)


def _periods(draws: Draws, rounds: list[np.ndarray]) -> Trial:
    n, lr, noise = len(rounds[0]), draws.real(1e-3, 1.0, log=True), draws.real(1e-2, 1e2, log=True)
    apart = np.eye(n) - graphs.average(n)
    covariance, worst = np.zeros((n, n)), 0.0
    for t in range(80):
        w = rounds[t % len(rounds)]
        covariance = w @ covariance @ w.T + lr**2 * noise * np.eye(n)
        distance = float(np.trace(apart @ covariance @ apart)) / n
        worst = max(worst, graphs.surely(distance, float(np.trace(covariance))))
    return Trial(NoisyPeriods(n, _slowest_window(rounds), len(rounds), lr, noise), worst)
