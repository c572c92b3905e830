r"""All workers at once on their own quadratics: the affine map of one step of DSGD, nothing reduced to modes.

Worker i has $f_i(x) = \frac12 x^\top H_i x - b_i^\top x$ and gradient noise of covariance $S_i$. Stacked over workers,
$X\in\mathbb{R}^{nd}$, with $\mathcal W = W_\gamma\otimes I_d$, $\mathcal H = \operatorname{diag}(H_i)$, $\mathcal G$
what is applied before the gradient and $\mathcal Z$ before the weight decay ($\mathcal W$ or I, see the table in
`modes`), a step is

$$ g = (\mathcal H\mathcal G + \omega\mathcal Z) X - b + \xi, \qquad V^+ = \beta V + g, \qquad
   X^+ = \mathcal W X - \alpha\,\mathcal R\,d, $$

with $\mathcal R = \mathcal W$ (ATC) or I, and $d$ as in `modes`. Where all workers share one Hessian the disagreement
evolves by itself, and the map is reduced to it: an orthonormal basis of the vectors of sum zero in place of the
workers. Then nothing is asked of the mean, which may drift freely along flat directions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag

from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.modes import Move, disagreement_basis
from dissensus.theory.topology import Topology

LARGEST = 4096
"""States beyond which a dense map of all workers is refused."""


@dataclass(frozen=True, eq=False)
class Quadratics:
    """One quadratic per worker: Hessians (n, d, d), linear terms b (n, d), noise covariances (n, d, d)."""

    hessians: np.ndarray
    linear: np.ndarray
    noise: np.ndarray

    @classmethod
    def of(cls, size: int, hessian: Any, *, optima: Any = None, linear: Any = None, noise: Any = 0.0) -> Quadratics:
        """From what is at hand, common to all workers or one each.

        `hessian` and `noise`: a list of d numbers (a diagonal), a d x d matrix, or n of them; noise may be one number
        (the variance along every direction). What differs between workers is given by `optima`, the n points where
        their gradients vanish, or by the `linear` terms b.
        """
        h = _matrices(size, hessian, "hessian")
        d = h.shape[-1]
        s = _matrices(size, np.full(d, float(noise)) if np.ndim(noise) == 0 else noise, "noise", d)
        if optima is not None and linear is not None:
            raise MixingError("give optima or linear terms of the quadratics, not both")
        given = optima if optima is not None else linear
        b = np.zeros((size, d)) if given is None else np.asarray(given, dtype=np.float64)
        if b.shape != (size, d) or not np.isfinite(b).all():
            what = "optima" if optima is not None else "linear"
            raise MixingError(f"{what} must be {size} finite points of {d} coordinates, got shape {b.shape}")
        worst = float(np.linalg.eigvalsh(s).min(initial=0.0))
        if worst < -1e-10 * max(1.0, float(np.abs(s).max(initial=0.0))):
            raise MixingError(f"noise must be a covariance: its smallest eigenvalue is {worst:.6g}")
        return cls(h, np.einsum("nij,nj->ni", h, b) if optima is not None else b, s)

    @property
    def size(self) -> int:
        """How many workers."""
        return len(self.hessians)

    @property
    def dimension(self) -> int:
        """Coordinates of one worker."""
        return self.hessians.shape[-1]

    @property
    def mean_hessian(self) -> np.ndarray:
        """The Hessian of the mean loss."""
        return self.hessians.mean(axis=0)

    @property
    def is_common(self) -> bool:
        """Whether all workers share one Hessian, so that the disagreement goes its own way."""
        return bool((self.hessians == self.hessians[0]).all())

    def optimum(self) -> np.ndarray | None:
        """Where the mean loss is smallest; `None` where its Hessian is not positive definite."""
        mean = self.mean_hessian
        values = np.linalg.eigvalsh(mean)
        if values[0] <= 1e-12 * max(abs(values[-1]), 1e-300):
            return None
        return np.linalg.solve(mean, self.linear.mean(axis=0))


class Affine(NamedTuple):
    r"""$z^+ = A z + B\xi + c$ on the state z = (X, V), or X alone without momentum."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray


class Lifted(NamedTuple):
    """The maps of a period, and how its first block of coordinates becomes n workers of d coordinates."""

    steps: list[Affine]
    basis: np.ndarray
    """n x m: the identity, or an orthonormal basis of the disagreement."""
    covariance: np.ndarray
    """Of the noise, m d x m d."""

    def workers(self, states: np.ndarray) -> np.ndarray:
        """The points (..., n, d) of states (..., s)."""
        m = self.basis.shape[1]
        d = len(self.covariance) // m if m else 1
        return np.einsum("ik,...kd->...id", self.basis, states[..., : m * d].reshape(*states.shape[:-1], m, d))


def lift(topology: Topology, problem: Quadratics, lr: float, gamma: float, move: Move) -> Lifted:
    """The affine maps of one period, reduced to the disagreement where that is possible."""
    n, d = problem.size, problem.dimension
    if topology.size != n:
        raise MixingError(f"{topology!r} has {topology.size} workers, but there are quadratics for {n}")
    if topology.period is None:
        raise MixingError(
            f"topology {topology.name!r} is drawn anew at every step and has no stationary state of its own; use a "
            "long sample of it: from_matrices([topology[t] for t in range(100)])"
        )
    for name, value in (("lr", lr), ("gamma", gamma)):
        if not (np.isfinite(value) and value >= 0.0):
            raise MixingError(f"{name} must be finite and not negative, got {value}")
    reduced = problem.is_common and topology.promise != "column"
    basis = disagreement_basis(n) if reduced else np.eye(n)
    states = basis.shape[1] * d * (1 if move.momentum == 0.0 else 2)
    if states > LARGEST:
        raise MixingError(f"{n} workers of {d} coordinates make {states} states, more than {LARGEST} that are solved")
    hessian = np.kron(np.eye(n - 1), problem.hessians[0]) if reduced else np.asarray(block_diag(*problem.hessians))
    wide = np.kron(basis, np.eye(d))
    covariance = wide.T @ np.asarray(block_diag(*problem.noise)) @ wide
    pull = (basis.T @ problem.linear).ravel()
    steps = [_affine(_mix(w, basis, gamma, d), hessian, pull, lr, move) for w in _rounds(topology)]
    return Lifted(steps, basis, covariance)


def _rounds(topology: Topology) -> Iterable[MixingMatrix]:
    return (topology[t] for t in range(topology.period or 0))


def _mix(w: MixingMatrix, basis: np.ndarray, gamma: float, d: int) -> np.ndarray:
    mixed = (1.0 - gamma) * np.eye(basis.shape[1]) + gamma * (basis.T @ (w.weights @ basis))
    return np.kron(mixed, np.eye(d))


def _affine(mix: np.ndarray, hessian: np.ndarray, pull: np.ndarray, lr: float, move: Move) -> Affine:
    one, beta = np.eye(len(mix)), move.momentum
    direct, carried = (1.0 + beta, beta * beta) if move.nesterov else (1.0, beta)
    seen = mix if move.order == "cta" else one
    decayed = one if move.order == "atc" else mix
    reach = mix if move.order == "atc" else one
    gradient = hessian @ seen + move.weight_decay * decayed
    a11, b1 = mix - lr * direct * reach @ gradient, -lr * direct * reach
    if beta == 0.0:
        return Affine(a11, b1, -b1 @ pull)
    a = np.block([[a11, -lr * carried * reach], [gradient, beta * one]])
    b = np.vstack([b1, one])
    return Affine(a, b, -b @ pull)


def _matrices(size: int, given: Any, what: str, dimension: int | None = None) -> np.ndarray:
    """(n, d, d) from a diagonal, one matrix or one per worker; symmetric and finite."""
    values = np.asarray(given, dtype=np.float64)
    if values.ndim <= 1:
        values = np.diag(np.atleast_1d(values))
    if values.ndim == 2:
        values = np.broadcast_to(values, (size, *values.shape))
    d = values.shape[-1] if dimension is None else dimension
    if values.shape != (size, d, d) or d == 0 or not np.isfinite(values).all():
        raise MixingError(
            f"{what} must be a finite diagonal, one matrix or one per worker, ({size}, {d}, {d}); got shape "
            f"{np.shape(given)}"
        )
    if np.abs(values - np.swapaxes(values, 1, 2)).max(initial=0.0) > 1e-10 * max(1.0, float(np.abs(values).max())):
        raise MixingError(f"{what} must be symmetric")
    return 0.5 * (values + np.swapaxes(values, 1, 2))
