r"""What compressors lose: $E\lVert Q(v)-v\rVert^2 \le (1-\omega)\lVert v\rVert^2$ with $\omega$ exact.

All values are shares of $\lVert v\rVert^2$, $v \ne 0$. Proofs: docs, bounds about graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Kind, Provenance, bound
from dissensus.theory.bounds.conditions import whole


@dataclass(frozen=True)
class Kept:
    """k of d numbers are sent."""

    dimension: int
    kept: int


@dataclass(frozen=True)
class Signs:
    """Signs are sent, with the mean modulus."""

    dimension: int
    flatness: float | None = None
    r"""$\lVert v\rVert_1^2/(d\lVert v\rVert_2^2)$, one for equal moduli; 1/d, the least it can be, unless told."""


@dataclass(frozen=True)
class Levels:
    """Every number is rounded at random to one of s levels of the norm, and the result divided by tau."""

    dimension: int
    levels: int

    @property
    def tau(self) -> float:
        r"""$\tau = 1+\min(d/s^2, \sqrt d/s)$, that by which is divided."""
        return 1.0 + min(self.dimension / self.levels**2, sqrt(self.dimension) / self.levels)


SOME = whole("dimension", "d", 1)
KEPT = Assumption[Kept]("kept", r"1 \le k \le d", lambda p: 1 <= p.kept <= p.dimension)


@bound
class TopKLoss(Bound[Kept]):
    """What is left out is the smallest."""

    name: ClassVar[str] = "top-k-loss"
    title: ClassVar[str] = "share of the square that keeping the k largest of d numbers loses"
    statement: ClassVar[str] = r"\lVert Q(v)-v\rVert^2 \le \left(1-\frac kd\right)\lVert v\rVert^2"
    reference: ClassVar[str] = "textbook; Stich, Cordonnier and Jaggi 2018"
    provenance: ClassVar[Provenance] = "classical"
    tight: ClassVar[str] = "equal moduli"
    problem: ClassVar[type] = Kept
    assumptions: ClassVar[tuple[Assumption[Kept], ...]] = (SOME, KEPT)

    def formula(self, p: Kept) -> float:
        """1 - k/d."""
        return (p.dimension - p.kept) / p.dimension


@bound
class RandomKLoss(Bound[Kept]):
    """Every number is kept equally often."""

    name: ClassVar[str] = "random-k-loss"
    title: ClassVar[str] = "expected share of the square that keeping k random ones of d numbers loses"
    kind: ClassVar[Kind] = "equal"
    statement: ClassVar[str] = r"E\lVert Q(v)-v\rVert^2 = \left(1-\frac kd\right)\lVert v\rVert^2"
    reference: ClassVar[str] = "textbook"
    provenance: ClassVar[Provenance] = "classical"
    problem: ClassVar[type] = Kept
    assumptions: ClassVar[tuple[Assumption[Kept], ...]] = (SOME, KEPT)

    def formula(self, p: Kept) -> float:
        """1 - k/d."""
        return (p.dimension - p.kept) / p.dimension


@bound
class ScaledSignLoss(Bound[Signs]):
    """The mean modulus is the best scale for signs."""

    name: ClassVar[str] = "scaled-sign-loss"
    title: ClassVar[str] = "share of the square that sending signs and the mean modulus loses"
    statement: ClassVar[str] = (
        r"\lVert Q(v)-v\rVert^2 \le \left(1-\phi\right)\lVert v\rVert^2,\quad "
        r"\phi=\frac{\lVert v\rVert_1^2}{d\lVert v\rVert_2^2} \ge \frac1d"
    )
    reference: ClassVar[str] = "Karimireddy et al. 2019, Error feedback fixes SignSGD"
    provenance: ClassVar[Provenance] = "classical"
    tight: ClassVar[str] = "always where the flatness is told and no number is zero"
    problem: ClassVar[type] = Signs
    assumptions: ClassVar[tuple[Assumption[Signs], ...]] = (
        SOME,
        Assumption(
            "flatness",
            r"1/d \le \phi \le 1",
            lambda p: p.flatness is None or 1.0 / p.dimension - 1e-12 <= p.flatness <= 1.0 + 1e-12,
        ),
    )

    def formula(self, p: Signs) -> float:
        """One less the flatness."""
        return max(0.0, 1.0 - (1.0 / p.dimension if p.flatness is None else p.flatness))


LEVELS: tuple[Assumption[Levels], ...] = (SOME, whole("levels", "s", 1))


@bound
class QuantizedLoss(Bound[Levels]):
    """The form that is cited."""

    name: ClassVar[str] = "quantized-loss"
    title: ClassVar[str] = "expected share of the square that random rounding to s levels loses"
    statement: ClassVar[str] = (
        r"E\lVert Q(v)-v\rVert^2 \le \left(1-\frac1\tau\right)\lVert v\rVert^2,\quad "
        r"\tau=1+\min\left\{\frac{d}{s^2},\frac{\sqrt d}{s}\right\}"
    )
    reference: ClassVar[str] = "Alistarh et al. 2017 (QSGD); Koloskova, Stich and Jaggi 2019"
    provenance: ClassVar[Provenance] = "classical"
    problem: ClassVar[type] = Levels
    assumptions: ClassVar[tuple[Assumption[Levels], ...]] = LEVELS

    def formula(self, p: Levels) -> float:
        """1 - 1/tau."""
        return 1.0 - 1.0 / p.tau


@bound
class QuantizedLossSharp(Bound[Levels]):
    """A rounding at random has at most a quarter of a level's square as variance, which tau counts whole."""

    name: ClassVar[str] = "quantized-loss-sharp"
    title: ClassVar[str] = "the same with the variance of rounding counted as what it can be"
    statement: ClassVar[str] = (
        r"E\lVert Q(v)-v\rVert^2 \le \left(1-\frac2\tau+\frac{1+V}{\tau^2}\right)\lVert v\rVert^2,\quad "
        r"V=\min\left\{\frac{d}{4s^2},\frac{\sqrt d}{s}\right\},\quad "
        r"\tau=1+\min\left\{\frac{d}{s^2},\frac{\sqrt d}{s}\right\}"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "all numbers midway between two levels"
    problem: ClassVar[type] = Levels
    assumptions: ClassVar[tuple[Assumption[Levels], ...]] = LEVELS

    def formula(self, p: Levels) -> float:
        """Bias and variance of the divided estimate."""
        variance = min(p.dimension / (4.0 * p.levels**2), sqrt(p.dimension) / p.levels)
        return ((p.tau - 1.0) ** 2 + variance) / p.tau**2
