r"""Random members of the class of a setting: what the worst case is never below.

Worker i has, in a random orthonormal basis q,
$f_i(x) = \sum_j\varphi_{ij}(\langle q_{ij}, x\rangle) + \frac\mu2\lVert x\rVert^2 + \langle g_i, x\rangle$ with
convex $\varphi$ of curvature at most $L-\mu$ and smallest at 0: parabolas, Huber functions, hyperbolas, parabolas of
one side, most of them as curved as the class allows. With bounded slopes it is
$(R-\lVert g_i\rVert)\,\lvert\langle q_i, x\rangle\rvert + \langle g_i, x\rangle$. Eigenvalues of W lie at the ends of
their range or inside. Reference: ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dissensus.theory.certificates.instance import Instance
from dissensus.theory.certificates.setting import Setting
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.topology import Topology, from_matrices

SHAPES = ("parabola", "huber", "hyperbola", "one side")


@dataclass(frozen=True, eq=False)
class Sampled(Instance):
    """n random workers of a class."""

    setting: Setting
    topology: Topology
    start: np.ndarray
    bases: np.ndarray
    """(n, d, d): rows are the directions of a worker."""
    shapes: np.ndarray
    """(n, d): of the function along each of them, an index of `SHAPES`."""
    curvatures: np.ndarray
    """(n, d): the largest along each of them; with bounded slopes (n, 1), the slope."""
    widths: np.ndarray
    """(n, d): where a Huber function or a hyperbola turns straight."""
    slopes: np.ndarray
    """(n, d)."""
    tracker: np.ndarray | None = None

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """The gradient of every worker at its row of x."""
        z = np.einsum("njd,nd->nj", self.bases, x)
        return np.einsum("nj,njd->nd", self._along(z)[1], self.bases) + self.setting.convexity * x + self.slopes

    def objective(self, x: np.ndarray) -> float:
        """F at one point (d,)."""
        own = self._along(self.bases @ x)[0].sum(axis=1).mean()
        return float(own + 0.5 * self.setting.convexity * x @ x)

    def _along(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values and derivatives of the functions of one variable, (n, d)."""
        if self.setting.lipschitz is not None:
            return self.curvatures * np.abs(z), self.curvatures * np.sign(z)
        w, far = self.widths, np.abs(z)
        root = np.sqrt(1.0 + (z / w) ** 2)
        values = (
            z**2 / 2,
            np.where(far <= w, z**2 / 2, w * (far - w / 2)),
            w**2 * (root - 1),
            np.maximum(z, 0) ** 2 / 2,
        )
        slopes = (z, np.clip(z, -w, w), z / root, np.maximum(z, 0.0))
        return self.curvatures * np.choose(self.shapes, values), self.curvatures * np.choose(self.shapes, slopes)


def sampled(of: Setting, rng: np.random.Generator, *, size: int | None = None, dimension: int | None = None) -> Sampled:
    """A random member of the class; size and dimension are drawn where they are neither given nor the setting's."""
    n = of.size or size or int(rng.integers(2, 6))
    d = dimension or int(rng.integers(1, 4))
    slopes = rng.normal(size=(n, d)) * rng.choice([0.0, 1.0], size=(n, 1), p=[0.2, 0.8])
    slopes -= slopes.mean(axis=0)
    far, square = np.linalg.norm(slopes, axis=1).max(), (slopes**2).sum(axis=1).mean()
    bases = np.linalg.qr(rng.normal(size=(n, d, d)))[0]
    if of.lipschitz is not None:
        slopes *= of.lipschitz * rng.choice([0.0, rng.random(), 1.0]) / far if far > 0 else 0.0
        bases = bases[:, :1]
        curvatures = np.maximum(0.0, of.lipschitz - np.linalg.norm(slopes, axis=1))[:, None]
    else:
        slopes *= math.sqrt(of.heterogeneity / square) if square > 0 else 0.0
        share = rng.choice([0.0, 0.5, 1.0, 1.0], size=(n, d)) * rng.choice([1.0, rng.random()])
        curvatures = share * (of.smoothness - of.convexity)
    towards = rng.normal(size=d)
    start = np.tile(of.distance * towards / np.linalg.norm(towards), (n, 1))
    member = Sampled(
        setting=of,
        topology=_topology(of, rng, n),
        start=start,
        bases=bases,
        shapes=rng.integers(len(SHAPES), size=curvatures.shape),
        curvatures=curvatures,
        widths=of.distance * rng.uniform(0.05, 1.5, size=curvatures.shape),
        slopes=slopes,
    )
    return _apart(member, rng) if of.criterion == "rate" else member


def _apart(member: Sampled, rng: np.random.Generator) -> Sampled:
    """The same from anywhere, its tracking variable in balance."""
    start = rng.normal(size=member.start.shape)
    off = rng.normal(size=start.shape) * rng.choice([0.0, 1.0]) / math.sqrt(float(member.setting.weight))
    off -= off.mean(axis=0)
    return replace(member, start=start, tracker=off + member.gradient(start).mean(axis=0))


def _topology(of: Setting, rng: np.random.Generator, n: int) -> Topology:
    if isinstance(of.mixing, Topology):
        return of.mixing
    low, high = of.mixing
    rounds: list[MixingMatrix] = []
    for _ in range(of.steps if of.time_varying else 1):
        basis = np.linalg.qr(np.concatenate([np.ones((n, 1)), rng.normal(size=(n, n - 1))], axis=1))[0][:, 1:]
        at = rng.choice([0.0, 1.0, rng.random()], size=n - 1)
        w = (basis * (low + at * (high - low))) @ basis.T + 1.0 / n
        rounds.append(MixingMatrix.of((w + w.T) / 2.0, signed=True))
    return from_matrices(rounds, name="sampled", may_disconnect=True)
