"""The effective number of neighbours from the covariance that solves the Lyapunov equation."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from dissensus.theory.bounds.effective_neighbours import Memory, MemorySquares
from dissensus.theory.trials import graphs
from dissensus.theory.trials.base import Draws, Trial, trial


def _measured(w: np.ndarray, memory: float) -> float:
    covariance = solve_discrete_lyapunov(np.sqrt(memory) * w, w @ w.T, method="direct")
    return len(w) / ((1.0 - memory) * float(np.trace(covariance)))


def _memory(draws: Draws) -> float:
    return draws.choice((0.0, 1.0)) * (1.0 - draws.real(1e-3, 1.0, log=True))


def _even(draws: Draws) -> np.ndarray:
    n = draws.integer(1, 8)
    return graphs.even(n, draws.real(-1.0 / max(1, n - 1), 1.0)) if n > 1 else np.eye(1)


@trial("effective-neighbours-least")
def least(draws: Draws) -> Trial:
    """Any W."""
    return _least(draws, graphs.mixing(draws, 2, 8))


@trial("effective-neighbours-least", "all modes alike")
def least_even(draws: Draws) -> Trial:
    """Attained."""
    return _least(draws, _even(draws))


def _least(draws: Draws, w: np.ndarray) -> Trial:
    g = _memory(draws)
    return Trial(Memory(len(w), graphs.contraction(w), g), _measured(w, g))


@trial("effective-neighbours-squares")
def squares(draws: Draws) -> Trial:
    """Any W; attained without memory."""
    w, g = graphs.mixing(draws, 2, 8), _memory(draws)
    return Trial(MemorySquares(len(w), float((w**2).sum()), g), _measured(w, g))


@trial("effective-neighbours-most")
def most(draws: Draws) -> Trial:
    """Any symmetric W; attained without memory."""
    w, g = graphs.symmetric(draws, 2, 8), _memory(draws)
    return Trial(MemorySquares(len(w), float((w**2).sum()), g), _measured(w, g))


@trial("effective-neighbours-most", "all modes alike")
def most_even(draws: Draws) -> Trial:
    """Attained at every memory."""
    w, g = _even(draws), _memory(draws)
    return Trial(MemorySquares(len(w), float((w**2).sum()), g), _measured(w, g))
