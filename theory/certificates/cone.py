r"""The dual program as the arrays a conic solver takes: minimise $q^\top u$ over u with $b - A u$ in a cone.

The unknowns u are the multipliers: $\lambda$ of every inequality, the entries of Z of every unknown W, $\tau$ of every
limit. Four groups of rows: the coefficients of the function values (equal), the signs of $\lambda$ and $\tau$, the
blocks of S and the symmetric parts of Z (positive semidefinite, packed: upper triangle by columns, off-diagonal entries
times $\sqrt2$). All of it over unit coordinates, in units of the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dissensus.theory.certificates.program import Group, Program, Square

Triangle = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Row, column and scale of the packed upper triangle of a block of coordinates."""


@dataclass(frozen=True, eq=False)
class Cone:
    """The dual of one program."""

    program: Program

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """The ordered pairs (s, t) of different samples; the optimum is the last one."""
        s, t = np.nonzero(~np.eye(self.program.samples + 1, dtype=bool))
        return s, t

    @cached_property
    def triangles(self) -> list[Triangle]:
        """Of every block."""
        return [_triangle(self.program.coordinates(int(b))) for b in np.unique(self.program.blocks)]

    @property
    def known(self) -> int:
        """Function values."""
        return self.program.samples * self.program.rows

    @property
    def signed(self) -> int:
        """Multipliers that are not negative."""
        return self.program.inequalities + len(self.program.limits)

    @property
    def orders(self) -> list[int]:
        """The order of every Z."""
        return [len(g.sent) for g in self.program.groups]

    @cached_property
    def criterion(self) -> np.ndarray:
        """The packed matrix of the criterion."""
        c = self.program.criterion
        return self.packed(quadratic(self.program, c.squares, c.unit))

    @cached_property
    def weights(self) -> np.ndarray:
        """The coefficients of the function values in the criterion, (samples, rows)."""
        program = self.program
        w = np.zeros((program.samples, program.rows))
        for k, share in program.criterion.values.items():
            w[k] = float(share) * program.length * program.slope / program.criterion.unit / program.rows
        return w

    @property
    def cost(self) -> np.ndarray:
        """What is minimised."""
        free = sum(k * k for k in self.orders)
        limits = [float(m.most) / m.unit for m in self.program.limits]
        return np.concatenate([np.zeros(self.program.inequalities + free), limits])

    def matrix(self) -> sp.csc_matrix:
        """A."""
        count, free, limits = self.program.inequalities, sum(k * k for k in self.orders), len(self.program.limits)
        total = count + free + limits
        equalities = sp.hstack([self._incidence().T, sp.csr_array((self.known, free + limits))])
        signs = sp.vstack(
            [
                sp.hstack([-sp.eye_array(count), sp.csr_array((count, free + limits))]),
                sp.hstack([sp.csr_array((limits, count + free)), -sp.eye_array(limits)]),
            ]
        )
        mixings = [sp.csr_array(self._mixing(g)) for g in self.program.groups]
        bounds = [self.packed(quadratic(self.program, m.squares, m.unit)) for m in self.program.limits]
        grams = sp.vstack([self._interpolation(), *mixings, -sp.csr_array(np.stack(bounds))]).T
        parts, at = [], count
        for k in self.orders:
            half = -_symmetric_part(k)
            left, right = sp.csr_array((len(half), at)), sp.csr_array((len(half), total - at - k * k))
            parts.append(sp.hstack([left, sp.csr_array(half), right]))
            at += k * k
        return sp.csc_matrix(sp.vstack([equalities, signs, grams, *parts]))

    def right(self, margin: float) -> np.ndarray:
        """The right-hand side b, with S at least `margin` times the identity."""
        identity = self.packed(np.eye(len(self.program.units)))
        triangle = sum(k * (k + 1) // 2 for k in self.orders)
        grams = -self.criterion - margin * identity
        return np.concatenate([-self.weights.ravel(), np.zeros(self.signed), grams, np.zeros(triangle)])

    def packed(self, matrix: np.ndarray) -> np.ndarray:
        """The blocks of a symmetric matrix as one vector."""
        return np.concatenate([scale * matrix[i, j] for i, j, scale in self.triangles])

    def grams(self, packed: np.ndarray) -> tuple[np.ndarray, ...]:
        """The blocks of a vector as symmetric matrices."""
        found, at = [], 0
        for block in np.unique(self.program.blocks):
            size = len(self.program.coordinates(int(block)))
            i, j, scale = _triangle(np.arange(size))
            full = np.zeros((size, size))
            full[i, j] = full[j, i] = packed[at : at + len(i)] / scale
            found.append(full)
            at += len(i)
        return tuple(found)

    def _interpolation(self) -> sp.csr_array:
        """The packed Q_j of every inequality, row by row of the program."""
        program, (s, t) = self.program, self.pairs
        x, h = sampled(program)
        kappa = float(program.kappa) * program.slope / program.length
        found = []
        for i in range(program.rows):
            dx, dh = x[s, i] - x[t, i], h[s, i] - h[t, i]
            parts = [-(_outer(h[t, i], dx, tri) + kappa * _outer(dh, dh, tri)) / program.rows for tri in self.triangles]
            found.append(sp.csr_array(np.concatenate(parts, axis=1)))
        return sp.csr_array(sp.vstack(found))

    def _incidence(self) -> sp.csr_array:
        """The coefficients of the function values in every inequality; the value at the optimum is 0."""
        program, (s, t) = self.program, self.pairs
        rows, count = program.rows, program.inequalities
        to, of = (index[None] * rows + np.arange(rows)[:, None] for index in (s, t))
        data = np.concatenate([np.ones(count), -np.ones(count)]) / rows
        place = (np.tile(np.arange(count), 2), np.concatenate([to.ravel(), of.ravel()]))
        return sp.csr_array((data, place), shape=(count, self.known + rows))[:, : self.known]

    def _mixing(self, group: Group) -> np.ndarray:
        """The packed matrix of every T_kl, by rows."""
        left, right = self.sides(group)
        return np.array(
            [
                sum(
                    np.concatenate([_outer(a[None], b[None], tri)[0] for tri in self.triangles])
                    for a, b in zip(left[k], right[m], strict=True)
                )
                / self.program.rows
                for k in range(len(left))
                for m in range(len(right))
            ]
        )

    def sides(self, group: Group) -> tuple[np.ndarray, np.ndarray]:
        """The two sides of T of every exchange, in the program's units."""
        left, right = (scaled(a, self.program, "point") for a in group.sides)
        return left, right


def scaled(array: np.ndarray, program: Program, kind: str) -> np.ndarray:
    """Exact vectors as floats over unit coordinates: points over the unit of length, gradients over that of slopes."""
    unit = program.length if kind == "point" else program.slope
    return array.astype(np.float64) * (program.units / unit)


def sampled(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """Points and gradients of the samples and, last, of the optimum."""
    x, h = scaled(program.points, program, "point"), scaled(program.gradients, program, "gradient")
    return np.concatenate([x, np.zeros_like(x[:1])]), np.concatenate([h, np.zeros_like(h[:1])])


def quadratic(program: Program, squares: tuple[Square, ...], unit: float) -> np.ndarray:
    """The matrix of a sum of squares, over unit coordinates, in units of `unit`."""
    total = np.zeros((len(program.units),) * 2)
    for square in squares:
        v = square.vector.astype(np.float64) * program.units
        total += float(square.weight) / (program.rows * unit) * v.T @ v
    return total


def _triangle(of: np.ndarray) -> Triangle:
    j, i = np.tril_indices(len(of))
    return of[i], of[j], np.where(i == j, 1.0, np.sqrt(2.0))


def _outer(u: np.ndarray, v: np.ndarray, triangle: Triangle) -> np.ndarray:
    """The packed symmetric parts of u v', one per row."""
    i, j, scale = triangle
    return 0.5 * scale * (u[:, i] * v[:, j] + u[:, j] * v[:, i])


def _symmetric_part(k: int) -> np.ndarray:
    """The map from the entries of Z to its packed symmetric part."""
    rows = []
    for a, b in zip(*np.tril_indices(k), strict=True):
        row = np.zeros((k, k))
        row[a, b] += 0.5
        row[b, a] += 0.5
        rows.append((1.0 if a == b else np.sqrt(2.0)) * row.ravel())
    return np.array(rows)
