r"""The worst case of a recursion as a semidefinite program, in exact numbers.

Unknown are the Gram matrix G of all coordinates and the values $\hat f_{s,i}$ of the functions at the samples. The
largest value of the criterion is sought under

$$ \hat f_s - \hat f_t - \langle h_t, x_s - x_t\rangle - \kappa\lVert h_s-h_t\rVert^2 \ge 0,
   \qquad \kappa = \frac1{2(L-\mu)}, $$

for every worker and every ordered pair of samples (the optimum, with x = h = 0 and value 0, among them); under the
limits of the class, $\frac1n\sum_i\lVert v_i\rVert^2 \le c$; and, for a class of mixing matrices, under

$$ T_{kl} = \frac1n\sum_i \big\langle x_{k,i} - y_{k,i},\; x_{l,i} + y_{l,i}\big\rangle,
   \qquad T = T^\top \succeq 0 $$

for deviations $x_k$ that were sent and $y_k = Vx_k$, where $W = \frac{a+b}2 I + \frac{b-a}2 V$ on the deviations and
a, b are the ends of the range: V has its eigenvalues in [-1, 1].

Reference: interpolation, Taylor, Hendrickx and Glineur, arXiv:1502.05666; mixing, Colla and Hendrickx,
arXiv:2210.07961.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from dissensus.theory.certificates.world import Point, World


@dataclass(frozen=True, eq=False)
class Square:
    r"""$c\,\frac1n\sum_i\lVert v_i\rVert^2$."""

    weight: Fraction
    vector: Point


@dataclass(frozen=True, eq=False)
class Limit:
    """A sum of squares that is at most so much."""

    name: str
    squares: tuple[Square, ...]
    most: Fraction
    unit: float
    """What `most` is measured in, a power of two."""


@dataclass(frozen=True, eq=False)
class Criterion:
    """What is made as large as possible: values at samples, averaged over the workers, and squares."""

    values: dict[int, Fraction]
    squares: tuple[Square, ...]
    unit: float

    @property
    def is_nothing(self) -> bool:
        """Whether it is zero whatever happens."""
        return not self.values and not any(s.vector.any() for s in self.squares)


@dataclass(frozen=True, eq=False)
class Group:
    """Exchanges of one unknown W: deviations and what V makes of them, (k, rows, coordinates) each."""

    sent: np.ndarray
    turned: np.ndarray

    @property
    def sides(self) -> tuple[np.ndarray, np.ndarray]:
        """The two sides of T: x - y and x + y."""
        return self.sent - self.turned, self.sent + self.turned


@dataclass(frozen=True, eq=False)
class Program:
    """Everything the solver and the check need to know; both put their own matrices together from it."""

    blocks: np.ndarray
    """The block of the Gram matrix that each coordinate belongs to."""
    units: np.ndarray
    """What each coordinate is measured in: powers of two, so that scaling is exact."""
    points: np.ndarray
    """(samples, rows, coordinates)."""
    gradients: np.ndarray
    """(samples, rows, coordinates)."""
    kappa: Fraction
    """Not above 1/(2(L - mu)): a smaller one loosens the inequalities, and the bound stays one."""
    length: float
    slope: float
    """Units of points and of gradients."""
    criterion: Criterion
    limits: tuple[Limit, ...]
    groups: tuple[Group, ...] = field(default=())

    @property
    def rows(self) -> int:
        """Workers that are told apart: n, or 1 in the compact form."""
        return self.points.shape[1]

    @property
    def samples(self) -> int:
        """Points at which the functions are asked, the optimum not counted."""
        return self.points.shape[0]

    @property
    def inequalities(self) -> int:
        """Ordered pairs of samples (with the optimum) times rows."""
        return self.rows * (self.samples + 1) * self.samples

    def coordinates(self, block: int) -> np.ndarray:
        """Which coordinates belong to a block."""
        return np.flatnonzero(self.blocks == block)

    def measured_by(self, value: float) -> Program:
        """The same program with its criterion in units of a value found."""
        return replace(self, criterion=replace(self.criterion, unit=2.0 ** round(math.log2(value))))


def gathered(
    world: World,
    criterion: Criterion,
    limits: tuple[Limit, ...],
    *,
    kappa: Fraction,
    length: float,
    slope: float,
) -> Program:
    """The program of what happened in a world, without coordinates and exchanges that nothing depends on."""
    width = len(world.blocks)
    samples = world.samples
    squares = [*criterion.squares, *(s for limit in limits for s in limit.squares)]
    used = np.zeros(width, dtype=bool)
    for array in [*(s.at for s in samples), *(s.gradient for s in samples), *(s.vector for s in squares)]:
        used |= (array[:, :width] != 0).any(axis=0)
    kept = _needed(world, used)
    of = np.flatnonzero(used)

    def cut(arrays: list[Point]) -> np.ndarray:
        return np.stack([a[:, of] for a in arrays])

    def cut_squares(these: tuple[Square, ...]) -> tuple[Square, ...]:
        return tuple(Square(s.weight, s.vector[:, of]) for s in these)

    return Program(
        blocks=np.array(world.blocks)[of],
        units=np.array([length if kind == "point" else slope for kind in world.kinds])[of],
        points=cut([s.at for s in samples]),
        gradients=cut([s.gradient for s in samples]),
        kappa=kappa,
        length=length,
        slope=slope,
        criterion=Criterion(criterion.values, cut_squares(criterion.squares), criterion.unit),
        limits=tuple(Limit(x.name, cut_squares(x.squares), x.most, x.unit) for x in limits),
        groups=tuple(Group(cut([s for s, _ in pairs]), cut([r for _, r in pairs])) for pairs in kept),
    )


def _needed(world: World, used: np.ndarray) -> list[list[tuple[Point, Point]]]:
    """The exchanges whose outcome something depends on, by unknown W; what they sent is marked as used."""
    groups = []
    for exchanges in reversed(world.exchanges):
        pairs = []
        for sent, turned in zip(reversed(exchanges.sent), reversed(exchanges.turned), strict=True):
            if (turned[:, : len(used)] != 0).any(axis=0)[used].any():
                used |= (sent[:, : len(used)] != 0).any(axis=0) | (turned[:, : len(used)] != 0).any(axis=0)
                pairs.append((sent, turned))
        if pairs:
            groups.append(pairs[::-1])
    return groups[::-1]
