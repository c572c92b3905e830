r"""The instance behind a certificate: functions, mixing matrix and starting point that reach it.

Of a program of n workers the Gram matrix is factored, and its factor holds the points and gradients of every worker.

Of the compact form the two blocks are factored apart. On the deviations $W = a I + (b-a) P$ with a symmetric operator
$0 \preceq P \preceq I$ that takes what was sent to $R = (X + Y)/2$,

$$ P X = R, \qquad P = R\,(X^\top R)^+ R^\top , $$

which exists because T is symmetric and positive semidefinite. In its eigenvectors the deviation falls into r
coordinates, of which coordinate j is mixed by an eigenvalue $w_j \in [a, b]$ of W. Take n = 2^m > r workers and r rows
$\varphi_j \in \{-1, 1\}^n$ of a Hadamard matrix, orthogonal to each other and to the row of ones. Worker i gets the
function of the representative, reflected: $f_i(u, z) = f(u, \varphi_{\cdot i} z)$. Then

$$ W = \frac1n\Big(\mathbf 1\mathbf 1^\top + \sum_j w_j\,\varphi_j\varphi_j^\top\Big) $$

mixes coordinate j by exactly $w_j$, means vanish in every coordinate of the deviations, and *every* worker sees the
Gram matrices of the compact form. So the compact value is reached by n workers, and it is the worst case over all n.

Reference: ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.linalg

from dissensus.theory.certificates.certificate import Certificate
from dissensus.theory.certificates.instance import Instance
from dissensus.theory.certificates.interpolation import Interpolant
from dissensus.theory.certificates.program import Program
from dissensus.theory.certificates.setting import Setting
from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.topology import Topology, from_matrices

RANK = 1e-7
"""Directions of a Gram matrix below this part of the largest are left out."""


@dataclass(frozen=True, eq=False)
class WorstCase(Instance):
    r"""n workers that are as bad as the class allows. The optimum is 0 and F is 0 there.

    Worker i has $f_i(x) = \hat f_i(x) + \frac\mu2\lVert x\rVert^2 + \langle g_i, x\rangle$.
    """

    setting: Setting
    topology: Topology
    points: np.ndarray
    """(n, samples, d): where the convex parts are known, the optimum last."""
    gradients: np.ndarray
    """(n, samples, d)."""
    values: np.ndarray
    """(n, samples)."""
    slopes: np.ndarray
    """(n, d): the gradients at the optimum."""
    start: np.ndarray
    """(n, d)."""
    tracker: np.ndarray | None = None
    """(n, d): the tracking variable at the start, where the criterion is a rate."""

    @property
    def dimension(self) -> int:
        """The number of coordinates."""
        return self.points.shape[2]

    @cached_property
    def functions(self) -> list[Interpolant]:
        """The convex parts."""
        ell = self.setting.smoothness - self.setting.convexity
        return [Interpolant(*data, ell) for data in zip(self.points, self.gradients, self.values, strict=True)]

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """The gradient of every worker at its row of x."""
        convex = np.stack([f.value_and_gradient(row)[1] for f, row in zip(self.functions, x, strict=True)])
        return convex + self.setting.convexity * x + self.slopes

    def objective(self, x: np.ndarray) -> float:
        """F at one point (d,)."""
        convex = np.mean([f.value_and_gradient(x)[0] for f in self.functions])
        return float(convex + 0.5 * self.setting.convexity * x @ x)


def worst_case(certificate: Certificate) -> WorstCase:
    """The instance behind a certificate; the class of time-varying exchanges has none of this form."""
    of, program = certificate.setting, certificate.program
    if certificate.multipliers is None:
        raise MixingError(f"there is no worst case to rebuild: {certificate.checked.reason}")
    if isinstance(of.mixing, Topology):
        return _of_workers(certificate, of.mixing)
    if of.lipschitz is not None:
        raise MixingError(
            "worst functions of bounded slope are not rebuilt: a run depends on which subgradient is taken"
        )
    if of.time_varying:
        raise MixingError("the worst case of a class of time-varying exchanges is not rebuilt; certify one topology")
    if of.size is not None:
        raise MixingError(
            f"the worst case of the class with size = {of.size} is not rebuilt; leave size out: the compact form has "
            "the same value and says how many workers reach it"
        )
    return _of_class(certificate, program)


def _of_workers(certificate: Certificate, topology: Topology) -> WorstCase:
    program = certificate.program
    leaves = _factor(certificate.solution.grams[0]) * program.units[:, None]
    points, gradients = (np.swapaxes(a.astype(np.float64) @ leaves, 0, 1) for a in (program.points, program.gradients))
    return _assembled(
        certificate, topology, points, gradients, certificate.solution.values.T, lambda v: v.astype(np.float64) @ leaves
    )


def _of_class(certificate: Certificate, program: Program) -> WorstCase:
    low, high = (float(v) for v in certificate.setting.range or (0.0, 0.0))
    deviations, means = program.coordinates(0), program.coordinates(1)
    delta = _factor(certificate.solution.grams[0]) * program.units[deviations, None]
    mean = _factor(certificate.solution.grams[1]) * program.units[means, None]
    rank = delta.shape[1]
    if program.groups:
        (group,) = program.groups
        sent, turned = (a[:, 0][:, deviations].astype(np.float64) @ delta for a in (group.sent, group.turned))
        values, basis = operator(sent.T, turned.T)
        eigenvalues = low + (high - low) * values
        delta = delta @ basis
    else:
        eigenvalues = np.full(rank, high)
    size = 2
    while size <= rank:
        size *= 2
    signs = scipy.linalg.hadamard(size).astype(np.float64)[1 : rank + 1]
    rest = np.eye(size) - 1.0 / size - signs.T @ signs / size  # eigenvalues nothing depends on: those nearest to 0
    idle = min(max(0.0, low), high)
    w = np.full((size, size), 1.0 / size) + (signs.T * eigenvalues) @ signs / size + idle * rest
    topology = from_matrices(MixingMatrix.of((w + w.T) / 2.0, signed=True), name="worst-of-class", may_disconnect=True)

    def vectors(coefficients: np.ndarray) -> np.ndarray:
        """(..., 1, coordinates) -> (..., n, d): reflected deviations, then means."""
        c = coefficients.astype(np.float64)
        own = np.einsum("...c,cr,ri->...ir", c[..., 0, :][..., deviations], delta, signs)
        shared = c[..., 0, :][..., means] @ mean
        return np.concatenate([own, np.broadcast_to(shared[..., None, :], (*own.shape[:-1], mean.shape[1]))], axis=-1)

    points, gradients = (np.swapaxes(vectors(a), 0, 1) for a in (program.points, program.gradients))
    values = np.broadcast_to(certificate.solution.values.T, (size, program.samples))
    return _assembled(certificate, topology, points, gradients, values, vectors)


def _assembled(
    certificate: Certificate,
    topology: Topology,
    points: np.ndarray,
    gradients: np.ndarray,
    values: np.ndarray,
    vectors: Callable[[np.ndarray], np.ndarray],
) -> WorstCase:
    """The instance from the vectors of its samples; `vectors` makes numbers of exact coefficients."""
    program, of = certificate.program, certificate.setting
    n, _, d = points.shape
    squares = {m.name: m.squares for m in program.limits}
    first = squares["measure" if of.criterion == "rate" else "distance"]
    start, slopes, tracker = vectors(first[0].vector), np.zeros((n, d)), None
    if "heterogeneity" in squares:
        slopes = vectors(squares["heterogeneity"][0].vector)
    optimum = np.zeros((n, 1, d))
    world = WorstCase(
        setting=of,
        topology=topology,
        points=np.concatenate([points, optimum], axis=1),
        gradients=np.concatenate([gradients, optimum], axis=1),
        values=np.concatenate([values * program.length * program.slope, np.zeros((n, 1))], axis=1),
        slopes=slopes,
        start=start,
    )
    if of.criterion == "rate":
        off = vectors(first[1].vector)
        tracker = off + world.gradient(start).mean(axis=0)
    return _within(world, tracker)


def _within(world: WorstCase, tracker: np.ndarray | None) -> WorstCase:
    """Start and slopes scaled back into the class where the solver's accuracy left them just outside."""
    of = world.setting
    if of.criterion == "rate":
        return replace(world, tracker=tracker)
    far = float(np.sqrt((world.start**2).sum(axis=1).max()))
    steep = float((world.slopes**2).sum(axis=1).mean())
    start = world.start * min(1.0, of.distance / far) if far > 0 else world.start
    slopes = world.slopes * min(1.0, np.sqrt(of.heterogeneity / steep)) if steep > 0 else world.slopes
    return replace(world, start=start, slopes=slopes)


def operator(sent: np.ndarray, turned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues in [0, 1] and eigenvectors of the symmetric P = (I + V)/2 where V takes columns to columns."""
    r = (sent + turned) / 2.0
    middle = sent.T @ r
    p = r @ scipy.linalg.pinvh((middle + middle.T) / 2.0, rtol=1e-9) @ r.T
    values, basis = np.linalg.eigh((p + p.T) / 2.0)
    return np.clip(values, 0.0, 1.0), basis


def _factor(gram: np.ndarray) -> np.ndarray:
    """(coordinates, rank) whose rows have this Gram matrix but for its smallest directions."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > RANK * max(values[-1], 0.0)
    if not kept.any():
        return np.zeros((len(gram), 1))
    return vectors[:, kept] * np.sqrt(values[kept])
