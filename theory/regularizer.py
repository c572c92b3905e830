r"""The implicit regularizer: what the workers' disagreement does to the mean of their gradients.

All orders of mixing move the mean by the mean gradient, $\bar x^+ = \bar x - \alpha\,\frac1n\sum_i\nabla f_i(x_i)$.
With $e_i = x_i-\bar x$, $\Sigma=\frac1n\sum_i e_ie_i^\top$, $H_i=\nabla^2f_i(\bar x)$, $F=\frac1n\sum_i f_i$, by Taylor

$$ \frac1n\sum_i\nabla f_i(x_i) = \nabla F(\bar x) + \frac1n\sum_i H_i e_i
   + \frac1{2n}\sum_i \nabla^3 f_i(\bar x)[e_i,e_i] + O\Big(\frac1n\sum_i\lVert e_i\rVert^3\Big) . $$

The second term is the *coupling*: zero where the workers share a loss, since $\sum_i e_i=0$. The third is then
$\nabla_x\,\frac12\operatorname{tr}(\nabla^2F(x)\,\Sigma)$ with $\Sigma$ held fixed: the *drift*, the gradient of the
envelope penalty. On cubic losses there is no rest. The same drift is in the gradient of average-direction SAM,
$\mathbb E_\varepsilon\nabla F(\bar x+\varepsilon)$, for every zero-mean perturbation of covariance $\Sigma$; on cubic
losses the two gradients are equal. On a common quadratic the drift is zero, and the mean's path depends on no mixing.

Reference: the expansion is Taylor's; that decentralized SGD is asymptotically average-direction SAM is Zhu et al. 2023,
arXiv:2306.02913. The coupling term, the exact statements on cubic and quartic losses and their proofs are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from dissensus.theory.errors import MixingError

Gradient = Callable[[np.ndarray], np.ndarray]
"""Row i of the answer is the gradient of worker i's loss at row i of the argument, (n, d) to (n, d)."""
Product = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(points, directions) to Hessian-vector products, row by row: the Hessian of loss i at row i, times row i."""


@dataclass(frozen=True, eq=False)
class Cubic:
    r"""$f(x) = \langle b,x\rangle + \frac12\langle x,Ax\rangle + \frac16 T[x,x,x]$; all functions take (..., d)."""

    slope: np.ndarray
    """b."""
    curvature: np.ndarray
    """A, symmetric."""
    third: np.ndarray
    """T, the same under every exchange of its three indices."""

    def __post_init__(self) -> None:
        d = self.slope.shape[-1]
        if self.curvature.shape != (d, d) or self.third.shape != (d, d, d):
            raise MixingError(
                f"a cubic in {d} numbers needs A {(d, d)} and T {(d, d, d)}, "
                f"got {self.curvature.shape} and {self.third.shape}"
            )
        for name, value in (("A", self.curvature), ("T", self.third)):
            gap = float(np.abs(value - symmetrised(value)).max())
            if not gap <= 1e-12 * float(np.abs(value).max()):
                raise MixingError(f"{name} of a cubic is not symmetric: {gap:.3g} apart; take symmetrised({name})")

    def value(self, x: np.ndarray) -> np.ndarray:
        """F."""
        return np.sum((self.slope + x @ self.curvature / 2.0 + self.bend(x, x) / 6.0) * x, axis=-1)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Slope, curvature times x, and half of T[x, x]."""
        return self.slope + x @ self.curvature + self.bend(x, x) / 2.0

    def hessian(self, x: np.ndarray) -> np.ndarray:
        """A + T[x]."""
        return self.curvature + np.einsum("ijk,...k->...ij", self.third, x)

    def product(self, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The Hessian at x times v."""
        return v @ self.curvature + self.bend(x, v)

    def bend(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """T[u, v], a vector."""
        return np.einsum("ijk,...j,...k->...i", self.third, u, v)


def symmetrised(tensor: np.ndarray) -> np.ndarray:
    """The mean over all exchanges of indices."""
    orders = list(permutations(range(tensor.ndim)))
    return np.sum([tensor.transpose(order) for order in orders], axis=0) / len(orders)


def covariance(points: np.ndarray) -> np.ndarray:
    r"""$\Sigma = \frac1n\sum_i(x_i-\bar x)(x_i-\bar x)^\top$ of rows."""
    e = _apart(points)[1]
    return e.T @ e / len(e)


def drift(third: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    r"""$\nabla\frac12\operatorname{tr}(H\Sigma)=\frac12\sum_{jk}T_{ijk}\Sigma_{jk}$ from third derivatives T."""
    if third.shape != (*sigma.shape, len(sigma)):
        raise MixingError(f"third derivatives {third.shape} do not fit a covariance {sigma.shape}")
    return 0.5 * np.einsum("ijk,jk->i", third, sigma)


def penalty(product: Product, points: np.ndarray) -> float:
    r"""$\frac1{2n}\sum_i\langle e_i,H_i(\bar x)e_i\rangle$: for a common loss, $\frac12\operatorname{tr}(H\Sigma)$.

    On a common quadratic it is the mean loss minus the loss of the mean, exactly.
    """
    mean, e = _apart(points)
    return float(np.mean(np.sum(e * product(mean, e), axis=1))) / 2.0


@dataclass(frozen=True, eq=False)
class Expansion:
    """The mean gradient, taken apart; the four terms add up to it."""

    at_mean: np.ndarray
    """The gradient of F at the mean."""
    coupling: np.ndarray
    """First order in the disagreement: curvature and place of a worker go together. Zero for a common loss."""
    drift: np.ndarray
    """Second order: the gradient of the penalty with the disagreement held fixed."""
    rest: np.ndarray
    """Third order and beyond: zero on cubic losses."""

    @property
    def mean_gradient(self) -> np.ndarray:
        """What moves the mean."""
        return self.at_mean + self.coupling + self.drift + self.rest


def expand(gradient: Gradient, product: Product, points: np.ndarray, *, step: float = 1e-2) -> Expansion:
    r"""Takes the mean gradient apart with two Hessian-vector products per worker, beside gradients.

    Third derivatives are central differences of products,
    $\nabla^3f[e,e] \approx (H(\bar x+se)e-H(\bar x-se)e)/2s$: exact on quartic losses for every `step` s; otherwise the
    error is of the order of $s^2\lVert e\rVert^4$ times the fifth derivative.
    """
    if not 0.0 < step <= 1.0:
        raise MixingError(
            f"step, the share of the disagreement that is differenced over, must lie in (0, 1], got {step}"
        )
    mean, e = _apart(points)
    at_mean = gradient(mean).mean(0)
    coupling = product(mean, e).mean(0)
    bend = (product(mean + step * e, e) - product(mean - step * e, e)).mean(0) / (4.0 * step)
    return Expansion(at_mean, coupling, bend, gradient(points).mean(0) - at_mean - coupling - bend)


def smoothed_gradient(gradient: Gradient, x: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    r"""The gradient of average-direction SAM, $\mathbb E\,\nabla f(x+\varepsilon)$ with $\varepsilon\sim N(0,\Sigma)$.

    By cubature at $x\pm\sqrt d\,s_k$, the columns of a root of $\Sigma$: exact for losses up to fourth degree, where it
    is $\nabla f+\nabla\frac12\operatorname{tr}(H\Sigma)$; beyond, the error is of second order in $\Sigma$.
    """
    values, vectors = np.linalg.eigh(sigma)
    if values[0] < -1e-12 * max(values[-1], 0.0):
        raise MixingError(f"a covariance has no negative eigenvalue, got {values[0]:.3g}")
    reach = np.sqrt(len(x) * np.maximum(values, 0.0))[:, None] * vectors.T
    return gradient(np.concatenate([x + reach, x - reach])).mean(0)


def _apart(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean in every row, and the disagreement."""
    if points.ndim != 2 or not len(points):
        raise MixingError(f"points are one row per worker, got an array of shape {points.shape}")
    mean = points.mean(0)
    return np.broadcast_to(mean, points.shape), points - mean
