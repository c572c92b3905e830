"""One weight for all links, tried and minimised by search."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from dissensus.theory.bounds.best_constant import LaplacianEnds
from dissensus.theory.trials import graphs
from dissensus.theory.trials.base import Draws, Trial, trial


def _drawn(draws: Draws) -> tuple[np.ndarray, LaplacianEnds]:
    lap = graphs.laplacian(graphs.adjacency(draws, 3, 10))
    values = np.linalg.eigvalsh(lap)
    low, high = float(values[1]), float(values[-1])
    return lap, LaplacianEnds(low, low + graphs.resolved(high - low, high))


def _norm(lap: np.ndarray, weight: float) -> float:
    n = len(lap)
    return graphs.resolved(float(np.linalg.norm(np.eye(n) - weight * lap - graphs.average(n), 2)), n)


@trial("best-constant-contraction")
def searched(draws: Draws) -> Trial:
    """The least norm over all weights, by golden section (the norm is convex in the weight)."""
    lap, ends = _drawn(draws)
    found: Any = minimize_scalar(
        lambda a: _norm(lap, a), bracket=(0.0, 1.0 / len(lap), 2.0), method="golden", options={"xtol": 1e-13}
    )
    # a complete graph agrees at once, which a search meets to its own tolerance only
    return Trial(ends, graphs.resolved(float(found.fun), 1e3))


@trial("any-constant-contraction")
def tried(draws: Draws) -> Trial:
    """Any weight."""
    lap, ends = _drawn(draws)
    return Trial(ends, _norm(lap, draws.real(1e-3, 2.0, log=True)))


@trial("any-constant-contraction", "near the best")
def near(draws: Draws) -> Trial:
    """Weights around the best, both ends of the spectrum in sight."""
    lap, ends = _drawn(draws)
    best = 2.0 / np.linalg.eigvalsh(lap)[[1, -1]].sum()
    return Trial(ends, _norm(lap, float(best * draws.real(0.9, 1.1))))
