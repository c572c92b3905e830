r"""The check of a dual certificate: nothing of the solver is believed but the multipliers, and these not as they are.

Multipliers are rounded to a grid, negative ones are set to zero, and the rest is exact rational arithmetic:

1. What the function values leave over is put on the inequalities between a sample and the optimum, so that their
   coefficients match exactly.
2. S is put together from the program's exact numbers, by formulas of its own.
3. S and the symmetric part of every Z are shown to be positive semidefinite: if a Cholesky factorisation in floating
   point of S - cI runs through, with c above what rounding can do in it, then S is.

Then no instance whatever of the class exceeds $\sum_m\tau_m c_m$, which is rounded upwards.

Reference: step 3, Rump, Verification of positive definiteness, BIT 46 (2006).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy.linalg

from dissensus.theory.certificates.program import Program, Square
from dissensus.theory.certificates.solver import Multipliers

GRID = 2**70
"""Multipliers are rounded to multiples of 1/GRID (in the program's units)."""


@dataclass(frozen=True)
class Checked:
    """What is left of a dual certificate after the check."""

    bound: float
    """No instance exceeds it; infinite if the multipliers prove nothing."""
    reason: str
    """Why they prove nothing; empty if they do."""
    value_residual: float
    """The largest coefficient of a function value that had to be absorbed."""
    negativity: float
    """The most negative multiplier that was set to zero."""
    slack: float
    """The smallest eigenvalue of S, over unit coordinates."""

    @property
    def proves(self) -> bool:
        """Whether `bound` is proven."""
        return not self.reason


def check(program: Program, multipliers: Multipliers) -> Checked:
    """What the multipliers prove."""
    wrong = _misshapen(program, multipliers)
    if wrong:
        return Checked(math.inf, wrong, math.nan, math.nan, math.nan)
    negativity = float(-min(0.0, multipliers.pairs.min(initial=0.0), multipliers.limits.min(initial=0.0)))
    criterion = program.criterion
    unit, rows, n = Fraction(criterion.unit), program.rows, program.samples
    pair_unit = unit / (Fraction(program.length) * Fraction(program.slope))
    residual = Fraction(0)
    pairs = []
    for i in range(rows):
        lam = _on_grid(np.maximum(multipliers.pairs[i], 0.0)) * pair_unit
        lam[np.arange(n + 1), np.arange(n + 1)] = Fraction(0)
        # coefficients of f_s: lam from s minus lam to s must be minus that of the criterion
        for s in range(n):
            over = lam[s].sum() - lam[:, s].sum() + criterion.values.get(s, 0)
            residual = max(residual, abs(over) / pair_unit)
            if over > 0:
                lam[n, s] += over
            else:
                lam[s, n] -= over
        pairs.append(lam)
    tau = [
        Fraction(round(Fraction(max(v, 0.0)) * GRID), GRID) * unit / Fraction(m.unit)
        for v, m in zip(multipliers.limits, program.limits, strict=True)
    ]
    total = -_squares(program, criterion.squares)
    for m, weight in zip(program.limits, tau, strict=True):
        total = total + weight * _squares(program, m.squares)
    for i in range(rows):
        total = total - _interpolation(program, i, pairs[i])
    for group, given in zip(program.groups, multipliers.mixing, strict=True):
        z = _on_grid(given)
        slack = _smallest((z + z.T) * Fraction(1, 2))
        if slack <= 0.0:  # the solver keeps Z inside the cone but for its residual: lift it back
            z = z + _on_grid(np.eye(len(z)) * (1.001 * -slack + 1e-15 * (1.0 + np.abs(given).max())))
        if not _is_positive((z + z.T) * Fraction(1, 2)):
            return Checked(
                math.inf, "the multiplier of mixing is not positive semidefinite", *_rest(residual, negativity)
            )
        z = z * (unit / Fraction(program.length) ** 2)
        left, right = group.sides
        for i in range(rows):
            total = total - _product(left[:, i], z, right[:, i]) * Fraction(1, rows)
    total = (total + total.T) * Fraction(1, 2)
    smallest = math.inf
    for b in np.unique(program.blocks):
        of = program.coordinates(int(b))
        u = np.array([Fraction(v) for v in program.units[of]], dtype=object)
        block = total[np.ix_(of, of)] * np.outer(u, u) / unit
        smallest = min(smallest, _smallest(block))
        if not _is_positive(block):
            about = f"its smallest eigenvalue is about {smallest:.3g} in units of the criterion"
            reason = f"S is not proven positive semidefinite: {about}"
            return Checked(math.inf, reason, *_rest(residual, negativity, smallest))
    bound = sum((w * m.most for w, m in zip(tau, program.limits, strict=True)), Fraction(0))
    return Checked(_upwards(bound), "", *_rest(residual, negativity, smallest))


def _rest(residual: Fraction, negativity: float, slack: float = math.nan) -> tuple[float, float, float]:
    return float(residual), negativity, slack


def _misshapen(program: Program, multipliers: Multipliers) -> str:
    n, rows = program.samples, program.rows
    expected = [(rows, n + 1, n + 1), (len(program.limits),), *((len(g.sent),) * 2 for g in program.groups)]
    arrays = [multipliers.pairs, multipliers.limits, *multipliers.mixing]
    if [a.shape for a in arrays] != expected:
        return "the multipliers are not those of this program: their shapes differ"
    return "" if all(np.isfinite(a).all() for a in arrays) else "some multipliers are not finite"


def _on_grid(array: np.ndarray) -> np.ndarray:
    return np.vectorize(lambda v: Fraction(round(Fraction(v) * GRID), GRID), otypes=[object])(array)


def _squares(program: Program, squares: tuple[Square, ...]) -> np.ndarray:
    width = len(program.units)
    total = np.zeros((width, width), dtype=object)
    for square in squares:
        total = total + _product(square.vector, _unit(program.rows), square.vector) * (square.weight / program.rows)
    return total


def _unit(size: int) -> np.ndarray:
    return np.eye(size, dtype=int).astype(object)


def _interpolation(program: Program, i: int, lam: np.ndarray) -> np.ndarray:
    r"""$-\sum_{st}\lambda_{st}(\langle h_t, x_s-x_t\rangle + \kappa\lVert h_s-h_t\rVert^2)$ of one row, as a matrix."""
    n = program.samples
    x, h = program.points[:, i], program.gradients[:, i]
    out, into = lam.sum(axis=1)[:n], lam.sum(axis=0)[:n]
    inner = lam[:n, :n]
    # <h_t, x_s> lam_st - <h_t, x_t> (sum_s lam_st); the optimum is the zero vector
    mixed = _product(h, inner.T - np.diag(into), x)
    spread = _product(h, np.diag(out + into) - inner - inner.T, h)
    return -(mixed + program.kappa * spread) * Fraction(1, program.rows)


def _product(left: np.ndarray, middle: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The product left' middle right, exactly: common denominators first, whole numbers after."""
    (a, da), (b, db), (c, dc) = (_whole(m) for m in (left, middle, right))
    whole = a.T @ b @ c
    return np.vectorize(lambda v: Fraction(int(v), da * db * dc), otypes=[object])(whole)


def _whole(array: np.ndarray) -> tuple[np.ndarray, int]:
    """An array of rationals as whole numbers over one denominator."""
    fractions = [Fraction(v) for v in array.ravel()]
    denominator = math.lcm(*(f.denominator for f in fractions)) if fractions else 1
    whole = np.empty(len(fractions), dtype=object)
    whole[:] = [f.numerator * (denominator // f.denominator) for f in fractions]
    return whole.reshape(array.shape), denominator


def _smallest(matrix: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(matrix.astype(np.float64))[0]) if len(matrix) else math.inf


def _is_positive(matrix: np.ndarray) -> bool:
    """Whether an exact symmetric matrix is proven positive semidefinite."""
    if not len(matrix):
        return True
    near = matrix.astype(np.float64)
    size, eps = len(near), np.finfo(np.float64).eps
    trace = float(np.abs(np.diag(near)).sum())
    if not matrix.any():
        return True
    if not np.isfinite(near).all() or (np.diag(near) < 0).any():
        return False
    # rounding to floats moves no eigenvalue by more than the Frobenius norm of the change; twice what Cholesky can do
    shift = eps * np.linalg.norm(near) + 2.0 * (size + 2) * eps * trace + np.finfo(np.float64).tiny
    try:
        scipy.linalg.cholesky(near - shift * np.eye(size), lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        return False
    return True


def _upwards(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)
