"""Trials of the rest of the mean gradient: waves with known fourth derivatives, and quartics along one line."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.mean_drift import Apart
from dissensus.theory.regularizer import covariance, drift
from dissensus.theory.trials.base import Draws, Trial, trial


@trial("mean-drift-rest")
def _waves(draws: Draws) -> Trial:
    """A sum of a cos(w'x + phi): derivatives of every order in closed form."""
    rng, size, d, waves = draws.generator(), draws.integer(2, 8), draws.integer(1, 4), draws.integer(1, 3)
    height, w, phase = rng.uniform(0.1, 1.0, waves), rng.normal(size=(waves, d)), rng.uniform(0.0, 6.28, waves)
    x = rng.normal(size=d) + draws.real(1e-2, 3.0, log=True) * rng.normal(size=(size, d))
    mean, norms = x.mean(0), np.linalg.norm(w, axis=1)

    def slope(at: np.ndarray) -> np.ndarray:
        return -(height * np.sin(at @ w.T + phase)) @ w

    third = np.einsum("m,mi,mj,mk->ijk", height * np.sin(mean @ w.T + phase), w, w, w)
    left = slope(x).mean(0) - slope(mean) - drift(third, covariance(x))
    cubed = float(np.mean(np.linalg.norm(x - mean, axis=1) ** 3))
    return Trial(Apart(float(np.sum(height * norms**4)), cubed), float(np.linalg.norm(left)))


@trial("mean-drift-rest", "quartic")
def _quartic(draws: Draws) -> Trial:
    """M x^4 / 24 with one worker away from all others."""
    size, far, most = draws.integer(2, 200), draws.real(0.1, 10.0, log=True), draws.real(0.1, 10.0, log=True)
    x = np.zeros(size)
    x[0] = far
    x += draws.real(-1.0, 1.0)
    mean = x.mean()
    left = np.mean(most * x**3 / 6.0) - most * mean**3 / 6.0 - 0.5 * most * mean * np.var(x)
    return Trial(Apart(most, float(np.mean(np.abs(x - mean) ** 3))), float(abs(left)))
