r"""The dual program, handed to an interior-point solver without a modelling layer in between.

With multipliers $\lambda \ge 0$ of the inequalities, $\tau \ge 0$ of the limits and Z of T (its symmetric part positive
semidefinite, the rest free: it belongs to $T = T^\top$), every feasible instance satisfies

$$ \text{criterion} \;\le\; \sum_m \tau_m c_m - \langle S, G\rangle \;\le\; \sum_m \tau_m c_m $$

as soon as the coefficients of the function values match and

$$ S = \sum_m \tau_m A_m - C - \sum_j \lambda_j Q_j - Q(Z) \succeq 0 . $$

The unknowns of the solver are the multipliers themselves; the Gram matrix G comes back as its dual variable. S is asked
to be at least a small multiple of the identity, so that what rounding takes away from it later is there to be taken.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dissensus.theory.certificates.backend import minimise
from dissensus.theory.certificates.cone import Cone
from dissensus.theory.certificates.program import Program

TOLERANCE = 1e-10
"""What the solver aims at. It may stop short of it: whether that matters, the check decides."""


@dataclass(frozen=True, eq=False)
class Multipliers:
    """A dual certificate, in the program's units."""

    pairs: np.ndarray
    """(rows, samples + 1, samples + 1): of `f_s - f_t - ... >= 0`, the optimum last; the diagonal is zero."""
    limits: np.ndarray
    mixing: tuple[np.ndarray, ...] = ()
    """Z of every unknown W."""

    def perturbed(self, scale: float, seed: int = 0) -> Multipliers:
        """Every number changed by a random relative amount of at most this size: to see a check refuse it."""
        rng = np.random.default_rng(seed)

        def shaken(array: np.ndarray) -> np.ndarray:
            return array * (1.0 + scale * rng.uniform(-1.0, 1.0, array.shape))

        mixing = tuple(shaken(z) for z in self.mixing)
        return replace(self, pairs=shaken(self.pairs), limits=shaken(self.limits), mixing=mixing)


@dataclass(frozen=True, eq=False)
class Solution:
    """What the solver answers, in the program's units."""

    status: str
    multipliers: Multipliers | None
    """None where the solver gave up."""
    grams: tuple[np.ndarray, ...]
    """The Gram matrix of every block."""
    values: np.ndarray
    """(samples, rows): the functions at the samples."""
    primal: float
    """The criterion of this instance, as it is and not in the program's units."""
    dual: float
    """What the multipliers promise, unchecked."""
    seconds: float
    iterations: int = 0
    margin: float = 0.0


def solve(program: Program, *, margin: float = 0.0) -> Solution:
    """Solves the dual of the program, with S at least `margin` times the identity."""
    began = time.perf_counter()
    cone = Cone(program)
    sizes = [len(program.coordinates(int(b))) for b in np.unique(program.blocks)]
    cones = [("zero", cone.known), ("nonnegative", cone.signed), *(("psd", k) for k in [*sizes, *cone.orders])]
    cost, nil = cone.cost, sp.csc_matrix((len(cone.cost),) * 2)
    answer = minimise(nil, cost, cone.matrix(), cone.right(margin), cones, tolerance=TOLERANCE)
    status, u, z = str(answer.status), np.asarray(answer.x), np.asarray(answer.z)
    seconds = time.perf_counter() - began
    if "Infeasible" in status or not (np.isfinite(u).all() and np.isfinite(z).all()):
        nothing_found = np.zeros((program.samples, program.rows))
        return Solution(status, None, (), nothing_found, np.nan, np.nan, seconds, answer.iterations, margin)
    gram = z[cone.known + cone.signed :][: len(cone.criterion)]
    values = z[: cone.known].reshape(program.samples, program.rows)
    primal = float(cone.criterion @ gram + (cone.weights * values).sum())
    unit = program.criterion.unit
    return Solution(
        status,
        _multipliers(cone, u),
        cone.grams(gram),
        values,
        unit * primal,
        unit * float(cost @ u),
        seconds,
        answer.iterations,
        margin,
    )


def nothing(program: Program) -> Solution:
    """The solution of a program whose criterion is zero whatever happens: zero multipliers prove it."""
    cone = Cone(program)
    return Solution(
        "nothing to solve",
        _multipliers(cone, np.zeros(len(cone.cost))),
        cone.grams(np.zeros(len(cone.criterion))),
        np.zeros((program.samples, program.rows)),
        primal=0.0,
        dual=0.0,
        seconds=0.0,
    )


def _multipliers(cone: Cone, u: np.ndarray) -> Multipliers:
    program, at = cone.program, cone.program.inequalities
    pairs = np.zeros((program.rows, program.samples + 1, program.samples + 1))
    pairs[:, *cone.pairs] = u[:at].reshape(program.rows, -1)
    mixing = []
    for k in cone.orders:
        mixing.append(u[at : at + k * k].reshape(k, k))
        at += k * k
    return Multipliers(pairs, u[at:], tuple(mixing))
