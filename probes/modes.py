r"""The disagreement taken apart by the modes of the graph: who disagrees with whom, and how curved the loss is there.

A normal mixing matrix splits the workers' space into orthogonal eigenspaces with projections $P_k$; the mean is one of
them (λ = 1), and what is left is the disagreement. With X the stacked workers (n, d)

$$ \Xi = \sum_{k\ge2} \Xi_k, \qquad \Xi_k = \frac1n \lVert P_k X\rVert_F^2, \qquad
   \operatorname{tr}(H\Sigma) = \sum_{k\ge2} \operatorname{tr}(H\Sigma_k),\quad \Sigma_k = \frac1n X^\top P_k X . $$

So the mean curvature $\operatorname{tr}(H\Sigma_k)/\Xi_k$ along every mode stands beside its eigenvalue: a mode that
the graph hardly damps can only be damped by curvature. Conjugate eigenvalues share a mode (X is real). Ours.

A schedule with a period is taken as the product of its rounds; `factor` is what is left of the mode after one step.
Where the eigenspaces are not orthogonal (the matrix is not normal) energies would not add up, and it is refused;
`singular=True` then takes the right singular spaces, in which one period shrinks energy by its squared singular value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dissensus.probes.disagreement import displacements
from dissensus.probes.errors import ProbeError
from dissensus.probes.operator import Operator
from dissensus.probes.untouched import undisturbed
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.topology import Topology

SAME = 1e-9
"""Eigenvalues closer than this belong to one mode."""


@dataclass(frozen=True)
class ModeEnergy:
    """One eigenspace of the graph and the disagreement in it."""

    eigenvalue: complex
    """Of one period; real where the rounds are symmetric, with positive imaginary part where a pair is meant."""
    factor: float
    """|eigenvalue| to the power of one over the period: what one step leaves of the mode."""
    multiplicity: int
    """The dimension of the eigenspace among the workers."""
    energy: float
    """Its part of Ξ."""
    share: float
    """energy / Ξ; nan in consensus."""

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        value = self.eigenvalue
        return {
            "eigenvalue": value.real if value.imag == 0 else [value.real, value.imag],
            "factor": self.factor,
            "multiplicity": self.multiplicity,
            "energy": self.energy,
            "share": self.share,
        }


@dataclass(frozen=True)
class ModeCurvature:
    """One mode of the graph with the curvature along the disagreement in it."""

    mode: ModeEnergy
    numerator: float
    """tr(H Σ_k), exact on the given data; the modes add up to tr(H Σ)."""
    rayleigh: float
    """tr(H Σ_k) / Ξ_k: the mean curvature; nan where nothing disagrees."""

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return {**self.mode.to_dict(), "numerator": self.numerator, "rayleigh": self.rayleigh}


def by_mode(x: Tensor, graph: Topology | MixingMatrix | np.ndarray, *, singular: bool = False) -> list[ModeEnergy]:
    """The disagreement of the rows of x (n, d) in every eigenspace of the graph, the slowest mode first."""
    away = displacements(x)
    spaces = _spaces(graph, len(away), singular=singular)
    total = float(away.square().sum()) / len(away)
    return [space.energy(away, total) for space in spaces]


@undisturbed()
def curvature_by_mode(
    operator: Operator, x: Tensor, graph: Topology | MixingMatrix | np.ndarray, *, singular: bool = False
) -> list[ModeCurvature]:
    """The mean curvature along every mode, from n - 1 products at the operator's point."""
    away = displacements(operator.select(x) if hasattr(operator, "select") else x)  # type: ignore[attr-defined]
    if away.shape[1] != operator.size:
        raise ProbeError(f"x has rows of {away.shape[1]} numbers, the operator takes {operator.size}")
    spaces = _spaces(graph, len(away), singular=singular)
    total = float(away.square().sum()) / len(away)
    found = []
    for space in spaces:
        rows = torch.as_tensor(space.basis.T, device=away.device) @ away
        image = operator.matvec(rows.to(dtype=operator.dtype, device=operator.device)).double()
        numerator = float((rows.to(image.device) * image).sum()) / len(away)
        mode = space.energy(away, total)
        found.append(ModeCurvature(mode, numerator, numerator / mode.energy if mode.energy > 0 else float("nan")))
    return found


@dataclass(frozen=True, eq=False)
class _Space:
    value: complex
    factor: float
    basis: np.ndarray

    def energy(self, away: Tensor, total: float) -> ModeEnergy:
        part = torch.as_tensor(self.basis.T, device=away.device) @ away
        energy = float(part.square().sum()) / len(away)
        share = energy / total if total > 0 else float("nan")
        return ModeEnergy(self.value, self.factor, self.basis.shape[1], energy, share)


def _spaces(graph: Topology | MixingMatrix | np.ndarray, n: int, *, singular: bool) -> list[_Space]:
    """Orthonormal bases (n, multiplicity) of the disagreement's eigenspaces, the slowest first."""
    matrix, period = _over_a_period(graph)
    if matrix.shape != (n, n):
        raise ProbeError(f"the graph has {len(matrix)} workers, x has {n} rows; take the topology of this run")
    if np.abs(matrix.sum(1) - 1).max() > SAME or np.abs(matrix.sum(0) - 1).max() > SAME:
        raise ProbeError(
            "the modes of a graph need doubly stochastic rounds: with others the mean is no mode of its own"
        )
    u = np.full(n, n**-0.5)
    u[0] += 1.0
    outside = (np.eye(n) - np.outer(u, u) / u[0])[:, 1:]  # orthonormal, every column of sum zero
    inside = outside.T @ matrix @ outside
    if singular:
        values, basis = np.linalg.eigh(inside.T @ inside)
        values = np.sqrt(np.clip(values, 0, None)).astype(complex)
    else:
        off = np.abs(inside @ inside.T - inside.T @ inside).max(initial=0.0)
        if off > 1e-12 * max(10, n):
            raise ProbeError(
                f"this graph is not normal (W W' and W' W differ by {off:.2g}): its eigenspaces are not orthogonal; "
                "use singular=True"
            )
        values, basis = _real_eigenspaces(inside)
    order = sorted(
        range(n - 1), key=lambda k: tuple(round(v, 9) for v in (-abs(values[k]), -values[k].real, values[k].imag))
    )
    spaces: list[list[int]] = []
    for k in order:
        near = spaces and abs(values[spaces[-1][-1]] - values[k]) <= SAME * max(10, n)
        if near:
            spaces[-1].append(k)
        else:
            spaces.append([k])
    return [
        _Space(value, abs(value) ** (1 / period), outside @ basis[:, own])
        for own in spaces
        for value in [_clean(values[own].mean())]
    ]


def _real_eigenspaces(normal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (imaginary part >= 0) and a real orthonormal basis that spans every pair of conjugate spaces.

    The symmetric part and the square of the skew part commute; a generic combination separates what either confuses.
    """
    even, odd = (normal + normal.T) / 2, (normal - normal.T) / 2
    turning = odd.T @ odd
    _, basis = np.linalg.eigh(even + 0.5477225575051661 * turning)
    real = np.einsum("ik,ij,jk->k", basis, even, basis)
    imaginary = np.sqrt(np.clip(np.einsum("ik,ij,jk->k", basis, turning, basis), 0, None))
    return real + 1j * np.where(imaginary > 1e-8, imaginary, 0.0), basis


def _over_a_period(graph: Topology | MixingMatrix | np.ndarray) -> tuple[np.ndarray, int]:
    if isinstance(graph, MixingMatrix):
        return graph.dense(), 1
    if isinstance(graph, np.ndarray):
        return np.atleast_2d(graph.astype(np.float64)), 1
    if graph.period is None:
        raise ProbeError(
            f"topology {graph.name!r} is drawn at every step and has no modes of its own; pass its mean as a matrix"
        )
    product = np.eye(graph.size)
    for t in range(graph.period):
        product = graph[t].dense() @ product
    return product, graph.period


def _clean(value: complex) -> complex:
    """Without what rounding left of a zero."""
    parts = (value.real, value.imag)
    return complex(*(0.0 if abs(part) <= 1e-13 else float(part) for part in parts))
