r"""Lanczos with full re-orthogonalisation, from one start vector or from several side by side.

After m steps $Q^\top H Q = T$ with T tridiagonal (diagonal `alpha`, beside it `beta`) and
$H Q = Q T + \beta_m\, q_{m+1} e_m^\top$. So a Ritz pair $T s = \theta s$ has the residual norm
$\lVert H Q s - \theta Q s\rVert = \beta_m |s_m|$, and the squared first components of the $s$ are the weights of the
Gauss quadrature of $q_1^\top f(H) q_1$, exact for polynomials of degree up to 2m - 1.

Reference: Golub and Welsch (1969); Golub and Meurant, Matrices, Moments and Quadrature (2010). Every new vector is
orthogonalised twice against all before it: without that, copies of converged pairs appear.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dissensus.probes.operator import Operator

BREAKDOWN = 1e3
"""A new direction shorter than this many eps of the operator's size is rounding, not a direction."""


class Krylov:
    """Krylov spaces of an operator, grown step by step from k starts at once (a product per start and step)."""

    def __init__(self, operator: Operator, starts: Tensor, against: Tensor | None = None) -> None:
        """Begins at the rows of `starts`; `against` (r, d), orthonormal rows, is projected out of the operator."""
        self.operator = operator
        self._against = against
        starts = self._outside(starts.reshape(-1, operator.size))
        self.norms = lengths(starts)
        """The lengths of the start vectors."""
        self._next = starts / torch.where(self.norms > 0, self.norms, torch.ones_like(self.norms))[:, None]
        self._open = self.norms > 0
        self._kept = starts[:, None, :][:, :0]
        self._steps = 0
        self._alpha: list[np.ndarray] = []
        self._beta: list[np.ndarray] = []
        self._scale = torch.zeros_like(self.norms)

    @property
    def steps(self) -> int:
        """The number m of steps taken."""
        return self._steps

    @property
    def closed(self) -> bool:
        """Whether every space has become invariant: nothing more can be reached from the starts."""
        return not bool(self._open.any())

    @property
    def basis(self) -> Tensor:
        """The orthonormal vectors, (k, m, d); zero after a space has closed."""
        return self._kept[:, : self._steps]

    @property
    def newest(self) -> Tensor:
        """The last basis vectors, (k, d)."""
        return self._kept[:, self._steps - 1]

    def extend(self) -> Tensor:
        """One more step; returns the products with the newest basis vectors, (k, d)."""
        q = self._next
        self._keep(q)
        image = self._outside(self.operator.matvec(q))
        alpha = (image * q).sum(1)
        self._scale = torch.maximum(self._scale, lengths(image))
        rest, basis = image, self.basis
        for _ in range(2):
            rest = self._outside(rest)
            rest = rest - torch.einsum("km,kmd->kd", torch.einsum("kmd,kd->km", basis, rest), basis)
        beta = lengths(rest)
        floor = BREAKDOWN * torch.finfo(rest.dtype).eps * self._scale
        room = self.steps < self.operator.size - (0 if self._against is None else len(self._against))
        self._open = self._open & (beta > floor) & room
        beta = torch.where(self._open, beta, torch.zeros_like(beta))
        self._next = torch.where(self._open[:, None], rest / torch.where(beta > 0, beta, 1.0)[:, None], 0.0)
        self._alpha.append(alpha.double().cpu().numpy())
        self._beta.append(beta.double().cpu().numpy())
        return image

    def run(self, steps: int) -> Krylov:
        """Extends to `steps` steps, or until closed."""
        while self.steps < steps and not self.closed:
            self.extend()
        return self

    def restart(self, start: Tensor) -> bool:
        """After closing (one start only): goes on from what `start` has outside the space; False if that is nothing."""
        basis, rest = self.basis, start.reshape(1, -1)
        for _ in range(3):
            rest = self._outside(rest)
            rest = rest - torch.einsum("km,kmd->kd", torch.einsum("kmd,kd->km", basis, rest), basis)
            length = lengths(rest)[:, None]
            if self.steps >= self.operator.size or float(length) == 0:
                return False
            rest = rest / length
        self._next, self._open = rest, torch.ones_like(self._open)
        return True

    def tridiagonal(self) -> tuple[np.ndarray, np.ndarray]:
        """The diagonals (k, m) and the couplings (k, m) beside them; the last coupling leads out of the space."""
        return np.stack(self._alpha, axis=1), np.stack(self._beta, axis=1)

    def _keep(self, q: Tensor) -> None:
        """Stores new basis vectors; room for them doubles, so that a step does not copy the whole basis."""
        if self._steps == self._kept.shape[1]:
            room = min(max(2 * self._steps, 8), max(self.operator.size, self._steps + 1))
            larger = q.new_empty(len(q), room, self.operator.size)
            larger[:, : self._steps] = self._kept
            self._kept = larger
        self._kept[:, self._steps] = q
        self._steps += 1

    def _outside(self, rows: Tensor) -> Tensor:
        return rows if self._against is None else rows - (rows @ self._against.T) @ self._against


@dataclass(frozen=True)
class Ritz:
    """The Ritz pairs of one Krylov space, ascending."""

    values: np.ndarray
    vectors: np.ndarray
    """Columns s: the pair's vector is Q s."""
    residuals: np.ndarray


def ritz(alpha: np.ndarray, beta: np.ndarray) -> Ritz:
    """The eigenpairs of a tridiagonal matrix (diagonal `alpha`, couplings `beta`, the last one leading out)."""
    from scipy.linalg import eigh_tridiagonal  # slow to import

    values, vectors = eigh_tridiagonal(alpha, beta[:-1])
    return Ritz(values, vectors, np.abs(beta[-1] * vectors[-1]))


def quadrature(alpha: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gauss nodes and weights (summing to one) of the spectral measure of the start vector."""
    found = ritz(alpha, beta)
    return found.values, found.vectors[0] ** 2


def lengths(rows: Tensor) -> Tensor:
    """Euclidean norms along the last dimension; squares of 1e-30 or 1e30 would be lost in float32."""
    largest = rows.abs().amax(-1, keepdim=True)
    scaled = rows / torch.where(largest > 0, largest, torch.ones_like(largest))
    return torch.linalg.vector_norm(scaled, dim=-1) * largest.squeeze(-1)


def fresh_directions(rows: Tensor, basis: Tensor) -> Tensor:
    """Orthonormal rows for what `rows` have outside the orthonormal rows of `basis`; fewer where that is rounding."""
    scale = float(lengths(rows).max()) if len(rows) else 0.0
    held = basis
    for row in rows:
        rest = row
        for _ in range(3):
            rest = rest - (held @ rest) @ held
        length = float(lengths(rest))
        if length > BREAKDOWN * torch.finfo(row.dtype).eps * scale:
            rest = rest / length
            rest = rest - (held @ rest) @ held  # a short rest was mostly rounding before it was stretched
            held = torch.cat([held, (rest / lengths(rest))[None]])
    return held[len(basis) :]


def rademacher(generator: torch.Generator, count: int, operator: Operator) -> Tensor:
    """Rows of independent signs."""
    bits = torch.randint(0, 2, (count, operator.size), generator=generator)
    return (2 * bits - 1).to(dtype=operator.dtype, device=operator.device)


def gaussian(generator: torch.Generator, operator: Operator) -> Tensor:
    """One normal vector."""
    draw = torch.randn(operator.size, generator=generator, dtype=torch.float64)
    return draw.to(dtype=operator.dtype, device=operator.device)
