r"""A smooth convex function through given points, gradients and values.

$$ \hat f(x) = \min_{w \ge 0,\ \sum_s w_s = 1}\; \frac\ell2\Big\lVert x - \sum_s w_s c_s\Big\rVert^2 + \sum_s w_s b_s,
   \qquad c_s = x_s - \frac{h_s}\ell, \quad b_s = f_s - \frac{\lVert h_s\rVert^2}{2\ell} . $$

It is the convex hull of the parabolas $f_s + \langle h_s, x-x_s\rangle + \frac\ell2\lVert x-x_s\rVert^2$: convex and
$\ell$-smooth whatever the data, and through them if they satisfy the interpolation inequalities. Its gradient is
$\ell\,(x - \sum_s w_s c_s)$ at the minimising weights.

Reference: Taylor, Hendrickx and Glineur, arXiv:1502.05666.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dissensus.theory.certificates.backend import minimise

TOLERANCE = 1e-13
"""What the quadratic program over the weights is solved to: its accuracy limits that of the gradient."""


@dataclass(frozen=True, eq=False)
class Interpolant:
    """The function of one worker, as the data it passes through."""

    points: np.ndarray
    """(samples, d)."""
    gradients: np.ndarray
    """(samples, d)."""
    values: np.ndarray
    """(samples,)."""
    smoothness: float

    @cached_property
    def centres(self) -> np.ndarray:
        """The lowest points of the parabolas, (samples, d)."""
        return self.points - self.gradients / self.smoothness

    @cached_property
    def floors(self) -> np.ndarray:
        """The lowest values of the parabolas, (samples,)."""
        return self.values - (self.gradients**2).sum(axis=1) / (2.0 * self.smoothness)

    def weights(self, x: np.ndarray) -> np.ndarray:
        """The minimising weights at a point."""
        size = float(np.abs(self.centres).max()) + float(np.abs(x).max()) or 1.0
        c, at, b = self.centres / size, x / size, self.floors / (self.smoothness * size**2)
        return simplex_quadratic(c @ c.T, b - c @ at)

    def value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """The function and its gradient at a point."""
        w = self.weights(x)
        off = x - w @ self.centres
        return float(0.5 * self.smoothness * off @ off + w @ self.floors), self.smoothness * off


def simplex_quadratic(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    r"""The w of the simplex that minimises $\frac12 w^\top P w + q^\top w$."""
    n = len(q)
    matrix = sp.csc_matrix(np.concatenate([np.ones((1, n)), -np.eye(n)]))
    right = np.concatenate([[1.0], np.zeros(n)])
    upper = sp.csc_matrix(np.triu(p))
    answer = minimise(upper, q, matrix, right, [("zero", 1), ("nonnegative", n)], tolerance=TOLERANCE)
    w = np.maximum(np.asarray(answer.x), 0.0)
    return w / w.sum()
