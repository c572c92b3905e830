r"""Where a recursion is run to find its worst case: points are unknown vectors, written in coordinates.

A *leaf* is a vector that nobody knows (a starting point, a gradient, what mixing makes of a deviation); every point of
a recursion is a linear combination of leaves with rational coefficients. A point of all workers is an array (rows,
coordinates); what is unknown is the Gram matrix of the coordinates. There are two worlds, and a recursion is written
once for both:

- `size=n`: one row per worker, one coordinate per leaf of a worker, one Gram matrix.
- `size=None`: one row for all workers of a problem that looks the same to every worker. A leaf of the workers splits
  into its deviation from the mean and its mean; deviations and means are orthogonal after averaging over the workers,

  $$ \frac1n\sum_i \langle p_i, q_i\rangle = \frac1n\sum_i\langle p_i-\bar p, q_i-\bar q\rangle
     + \langle\bar p, \bar q\rangle, $$

  so the Gram matrix falls into two blocks, none of which knows n.

Coordinates are measured from the optimum $x^\star$, functions without their slope there and without their strong
convexity: $f_i(x) = \hat f_i(x) + \frac\mu2\lVert x\rVert^2 + \langle g_i^\star, x\rangle$ where $\hat f_i$ is convex,
$(L-\mu)$-smooth and smallest, with the value 0, at 0. Nothing is lost: $\sum_i g_i^\star = 0$.

Reference: the problem of all workers follows Colla and Hendrickx, arXiv:2210.07961; the two blocks: ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np

Point = np.ndarray
"""A point of all workers: (rows, coordinates), exact numbers."""

DEVIATION, MEAN = 0, 1
"""The two blocks of the compact world; the world of n workers has the block 0 only."""


@dataclass(frozen=True)
class Range:
    """All symmetric W with W1 = 1 whose other eigenvalues lie in [low, high]."""

    low: Fraction
    high: Fraction
    constant: bool = True
    """Whether every exchange uses the same W."""


@dataclass(frozen=True)
class Given:
    """The exchanges of one topology: step -> dense W with exact entries."""

    matrix: Callable[[int], np.ndarray]


@dataclass
class Exchanges:
    r"""Exchanges of one unknown W: deviations that were sent and what V made of them, in pairs.

    On the deviations $W = \frac{a+b}2 I + \frac{b-a}2 V$ where V has its eigenvalues in [-1, 1], whatever the range.
    """

    sent: list[Point] = field(default_factory=list)
    turned: list[Point] = field(default_factory=list)


@dataclass
class Sample:
    r"""One point at which every worker's function was asked: where, and the gradient of $\hat f$ there."""

    at: Point
    gradient: Point


class World:
    """Hands out leaves and remembers what was asked of the functions and of W."""

    def __init__(
        self,
        size: int | None,
        mixing: Range | Given,
        *,
        convexity: Fraction,
        heterogeneous: bool,
        capacity: int,
    ) -> None:
        """A world without points; `capacity` is the largest number of coordinates it may need."""
        self.rows = 1 if size is None else size
        self.compact = size is None
        self.mixing, self.convexity, self._capacity = mixing, convexity, capacity
        self.blocks: list[int] = []
        self.kinds: list[Literal["point", "gradient"]] = []
        """What a coordinate is measured in."""
        self.samples: list[Sample] = []
        self.exchanges: list[Exchanges] = []
        self.slopes = self.balanced("gradient") if heterogeneous else self.zero()

    def zero(self) -> Point:
        """The optimum."""
        return np.zeros((self.rows, self._capacity), dtype=object)

    def common(self) -> Point:
        """A leaf that all workers share."""
        x = self.zero()
        x[:, self._coordinate(MEAN, "point")] = 1
        return x

    def local(self, kind: Literal["point", "gradient"] = "point") -> Point:
        """A leaf of every worker."""
        x = self.zero()
        if self.compact:
            x[0, self._coordinate(DEVIATION, kind)] = x[0, self._coordinate(MEAN, kind)] = 1
        for i in range(0 if self.compact else self.rows):
            x[i, self._coordinate(DEVIATION, kind)] = 1
        return x

    def balanced(self, kind: Literal["point", "gradient"] = "point") -> Point:
        """A leaf of every worker, whose mean is zero."""
        x = self.zero()
        if self.compact:
            x[0, self._coordinate(DEVIATION, kind)] = 1
            return x
        for i in range(self.rows - 1):
            at = self._coordinate(DEVIATION, kind)
            x[i, at], x[-1, at] = 1, -1
        return x

    def mean(self, x: Point) -> Point:
        """The mean of the workers, in every row."""
        if self.compact:
            of_means = np.array([*self.blocks, *[DEVIATION] * (self._capacity - len(self.blocks))]) == MEAN
            return np.where(of_means, x, 0)
        return np.broadcast_to(x.sum(axis=0) * Fraction(1, self.rows), x.shape)

    def mix(self, x: Point, t: int) -> Point:
        """What the exchange of step t makes of x."""
        if isinstance(self.mixing, Given):
            return self.mixing.matrix(t) @ x
        mean = self.mean(x)
        sent = x - mean
        if not np.any(sent):
            return x
        if self.mixing.low == self.mixing.high:
            return mean + self.mixing.low * sent
        middle, half = (self.mixing.high + self.mixing.low) / 2, (self.mixing.high - self.mixing.low) / 2
        turned = self.balanced()
        if not self.mixing.constant or not self.exchanges:
            self.exchanges.append(Exchanges())
        self.exchanges[-1].sent.append(sent)
        self.exchanges[-1].turned.append(turned)
        return mean + middle * sent + half * turned

    def gradient(self, x: Point) -> Point:
        r"""The workers' gradients at x: a leaf, or the same one if the functions were asked at x before."""
        sample = self.samples[self.index(x)]
        return sample.gradient + self.convexity * x + self.slopes

    def index(self, x: Point) -> int:
        """Where among the samples the functions were asked at x; they are asked now if they were not."""
        for k, sample in enumerate(self.samples):
            if np.array_equal(sample.at, x):
                return k
        self.samples.append(Sample(np.array(x), self.local("gradient")))
        return len(self.samples) - 1

    def _coordinate(self, block: int, kind: Literal["point", "gradient"]) -> int:
        self.blocks.append(block if self.compact else 0)
        self.kinds.append(kind)
        return len(self.blocks) - 1
