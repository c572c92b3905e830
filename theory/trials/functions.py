r"""Random functions of known constants, one per worker: what the bounds about optimisation are tried on.

Four kinds, all with $F = \frac1n\sum_i f_i$ and an exact smoothness $L \ge \max_i\operatorname{Lip}(\nabla f_i)$:
quadratics (convex or not), regularised logistic sums, sums of cosines with linear heterogeneity, and functions of one
variable whose derivative is a broken line, with which worst cases can be built by hand. Arrays of points have the shape
(..., n, d): any number of leading axes, then workers, then coordinates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from scipy.special import expit

from dissensus.theory.trials.base import Draws


class Functions(Protocol):
    """One smooth function per worker."""

    @property
    def size(self) -> int:
        """The number of workers."""
        ...

    @property
    def dimension(self) -> int:
        """The number of coordinates."""
        ...

    @property
    def smoothness(self) -> float:
        """A Lipschitz constant of every worker's gradient."""
        ...

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """Every worker's gradient at its own point: (..., n, d) to (..., n, d)."""
        ...

    def values(self, x: np.ndarray) -> np.ndarray:
        """Every worker's value at its own point: (..., n, d) to (..., n)."""
        ...


def mean_value(functions: Functions, x: np.ndarray) -> np.ndarray:
    """F at common points: (..., d) to (...)."""
    return functions.values(_everywhere(functions, x)).mean(axis=-1)


def mean_gradient(functions: Functions, x: np.ndarray) -> np.ndarray:
    """The gradient of F at common points: (..., d) to (..., d)."""
    return functions.gradients(_everywhere(functions, x)).mean(axis=-2)


def heterogeneity_at(functions: Functions, x: np.ndarray) -> float:
    r"""$\frac1n\sum_i\lVert\nabla f_i(x)-\nabla F(x)\rVert^2$ at one point."""
    g = functions.gradients(_everywhere(functions, x))
    return float(np.mean(np.sum((g - g.mean(axis=-2, keepdims=True)) ** 2, axis=-1)))


def _everywhere(functions: Functions, x: np.ndarray) -> np.ndarray:
    return np.repeat(np.asarray(x, dtype=float)[..., None, :], functions.size, axis=-2)


@dataclass(frozen=True, eq=False)
class Quadratics:
    r"""$f_i(x) = \frac12 x^\top H_i x + b_i^\top x$."""

    curvature: np.ndarray
    """(n, d, d), symmetric."""
    slope: np.ndarray
    """(n, d)."""
    size: int = field(init=False)
    dimension: int = field(init=False)
    smoothness: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.slope.shape[0])
        object.__setattr__(self, "dimension", self.slope.shape[1])
        object.__setattr__(self, "smoothness", float(np.abs(np.linalg.eigvalsh(self.curvature)).max()))

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """H x + b."""
        return np.einsum("nij,...nj->...ni", self.curvature, x) + self.slope

    def values(self, x: np.ndarray) -> np.ndarray:
        """Half x'Hx + b'x."""
        return np.sum((0.5 * np.einsum("nij,...nj->...ni", self.curvature, x) + self.slope) * x, axis=-1)

    def minimiser(self) -> np.ndarray:
        """Where the mean gradient is zero (the shortest such point if there are many)."""
        return -np.linalg.lstsq(self.curvature.mean(axis=0), self.slope.mean(axis=0), rcond=None)[0]


@dataclass(frozen=True, eq=False)
class Logistic:
    r"""$f_i(x) = \frac1m\sum_j\log(1+e^{-a_{ij}^\top x}) + \frac r2\lVert x\rVert^2$, labels taken into $a_{ij}$."""

    data: np.ndarray
    """(n, m, d)."""
    decay: float
    size: int = field(init=False)
    dimension: int = field(init=False)
    smoothness: float = field(init=False)

    def __post_init__(self) -> None:
        n, m, d = self.data.shape
        gram = np.einsum("nmi,nmj->nij", self.data, self.data) / (4.0 * m)
        object.__setattr__(self, "size", n)
        object.__setattr__(self, "dimension", d)
        object.__setattr__(self, "smoothness", float(np.linalg.eigvalsh(gram).max()) + self.decay)

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """Minus the mean of sigmoid(-a'x) a, plus r x."""
        weight = expit(-np.einsum("nmd,...nd->...nm", self.data, x)) / self.data.shape[1]
        return self.decay * x - np.einsum("...nm,nmd->...nd", weight, self.data)

    def values(self, x: np.ndarray) -> np.ndarray:
        """The mean logistic loss and the decay."""
        margins = np.einsum("nmd,...nd->...nm", self.data, x)
        return np.logaddexp(0.0, -margins).mean(axis=-1) + 0.5 * self.decay * np.sum(x**2, axis=-1)

    def minimiser(self) -> np.ndarray:
        """By Newton's method with halved steps, to the last digits."""
        x = np.zeros(self.dimension)
        for _ in range(100):
            s = expit(np.einsum("nmd,d->nm", self.data, x))
            hessian = np.einsum("nm,nmi,nmj->ij", s * (1.0 - s), self.data, self.data) / s.size
            step = np.linalg.solve(hessian + self.decay * np.eye(len(x)), mean_gradient(self, x))
            scale = 1.0
            while mean_value(self, x - scale * step) > mean_value(self, x) and scale > 1e-6:
                scale *= 0.5
            x = x - scale * step
            if np.linalg.norm(step) < 1e-14 * (1.0 + np.linalg.norm(x)):
                break
        return x


@dataclass(frozen=True, eq=False)
class Cosines:
    r"""$f_i(x) = \sum_j a_j\cos(w_j^\top x+\varphi_j) + b_i^\top x$, $\sum_i b_i = 0$: not convex, $F \ge -\sum a_j$.

    The workers differ by a linear function, so their gradients' mean square about the mean is the same everywhere.
    """

    amplitude: np.ndarray
    """(m,), positive."""
    frequency: np.ndarray
    """(m, d)."""
    phase: np.ndarray
    """(m,)."""
    slope: np.ndarray
    """(n, d), its columns sum to zero."""
    size: int = field(init=False)
    dimension: int = field(init=False)
    smoothness: float = field(init=False)

    def __post_init__(self) -> None:
        bend = np.einsum("m,mi,mj->ij", self.amplitude, self.frequency, self.frequency)
        object.__setattr__(self, "size", self.slope.shape[0])
        object.__setattr__(self, "dimension", self.slope.shape[1])
        object.__setattr__(self, "smoothness", float(np.linalg.eigvalsh(bend).max()))

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """Minus the sum of a sin(w'x + phi) w, plus b."""
        return self.slope - (self.amplitude * np.sin(x @ self.frequency.T + self.phase)) @ self.frequency

    def values(self, x: np.ndarray) -> np.ndarray:
        """The sum of cosines and the slope."""
        waves = np.cos(x @ self.frequency.T + self.phase) @ self.amplitude
        return waves + np.sum(self.slope * x, axis=-1)

    @property
    def infimum(self) -> float:
        """A lower bound on F: every cosine at its lowest."""
        return -float(self.amplitude.sum())

    @property
    def heterogeneity(self) -> float:
        """The mean square of the workers' gradients about their mean, everywhere."""
        return float(np.mean(np.sum(self.slope**2, axis=1)))


def random_spread(rng: np.random.Generator, size: int, dimension: int, mean_square: float) -> np.ndarray:
    """Rows that sum to zero, of a given mean square length: gradients that disagree."""
    b = rng.normal(size=(size, dimension))
    b -= b.mean(axis=0)
    scale = math.sqrt(float(np.mean(np.sum(b**2, axis=1))))
    return b * (math.sqrt(mean_square) / scale if scale > 0.0 else 0.0)


def one_against_many(size: int, bend: float = 0.0) -> Quadratics:
    """In one dimension, one worker of curvature 1 and others of curvature `bend` that hold it in balance at zero."""
    bends, push = np.full((size, 1, 1), bend), np.full((size, 1), -1.0 / (size - 1))
    bends[0] = push[0] = 1.0
    return Quadratics(bends, push)


def random_quadratics(
    draws: Draws, size: int, dimension: int, *, heterogeneity: float, condition: float = 0.0, common: bool = False
) -> Quadratics:
    """Quadratics of smoothness 1 with minimiser 0, of given mean square gradient there; low ranks and zeros happen.

    Args:
        draws: where the numbers come from.
        size: workers.
        dimension: coordinates.
        heterogeneity: mean square of the gradients at the minimiser.
        condition: the smallest curvature; zero allows flat directions.
        common: the same Hessian for all workers.
    """
    rng = draws.generator()
    power = draws.real(0.0, 4.0)
    curvature = np.zeros((size, dimension, dimension))
    for i in range(size):
        q = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
        h = condition + (1.0 - condition) * rng.random(dimension) ** power
        curvature[i] = (q * h) @ q.T
    if common:
        curvature[:] = curvature[0]
    curvature *= 1.0 / np.linalg.eigvalsh(curvature).max()
    return Quadratics(curvature, random_spread(rng, size, dimension, heterogeneity))


def random_logistic(draws: Draws, size: int, dimension: int) -> Logistic:
    """Logistic sums of 3 to 6 samples per worker, heterogeneous by their data."""
    rng = draws.generator()
    shift = draws.real(0.0, 2.0)
    samples = 3 + int(rng.integers(4))
    data = rng.normal(size=(size, samples, dimension)) + shift * rng.normal(size=(size, 1, dimension))
    return Logistic(data, draws.real(1e-2, 1.0, log=True))


def random_cosines(draws: Draws, size: int, dimension: int, *, heterogeneity: float) -> Cosines:
    """One to four waves."""
    rng = draws.generator()
    waves = 1 + int(rng.integers(4))
    return Cosines(
        rng.uniform(0.2, 1.0, waves),
        rng.normal(size=(waves, dimension)),
        rng.uniform(0.0, 2.0 * math.pi, waves),
        random_spread(rng, size, dimension, heterogeneity),
    )
