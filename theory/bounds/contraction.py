r"""How fast disagreement shrinks under products of doubly stochastic matrices.

With $J = \mathbf 1\mathbf 1^\top/n$ and $E_t = X_t - \bar X_t$, a doubly stochastic W maps $E$ to $(W-J)E$, because
$WJ = JW = J$; so products of $W_t - J$ are $W_K\cdots W_1 - J$, and norms multiply. Proofs: docs, bounds about graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Kind, Provenance, bound
from dissensus.theory.bounds.conditions import EXPANDS_NOT, ROUNDING, nonnegative, share, whole

DISTANCE = nonnegative("disagreement", r"\lVert X_0-\bar X_0\rVert_F")


@dataclass(frozen=True)
class Rounds:
    """What is known of K rounds of exchange."""

    contractions: tuple[float, ...]
    r"""$\lVert W_t - J\rVert_2$ of every round."""
    disagreement: float
    r"""$\lVert X_0 - \bar X_0\rVert_F$."""


@dataclass(frozen=True)
class Periods:
    """What is known of a periodic schedule."""

    contraction: float
    r"""$\lVert W_{\tau-1}\cdots W_0 - J\rVert_2$ over one period."""
    period: int
    steps: int
    disagreement: float
    r"""$\lVert X_0 - \bar X_0\rVert_F$ at the beginning of a period."""


@dataclass(frozen=True)
class Adapted:
    r"""A mixing matrix weakened to $W_\gamma = (1-\gamma)I + \gamma W$."""

    gamma: float
    contraction: float
    r"""$\lVert W-J\rVert_2$ of W itself."""


@dataclass(frozen=True)
class AdaptedSpectrum:
    """The same for a symmetric W of known extreme eigenvalues."""

    gamma: float
    lambda_2: float
    """The largest eigenvalue but the one of agreement."""
    lambda_min: float


@bound
class ContractionOfProducts(Bound[Rounds]):
    """Norms multiply."""

    name: ClassVar[str] = "contraction-of-products"
    title: ClassVar[str] = "disagreement after K rounds of exchange"
    statement: ClassVar[str] = (
        r"\lVert X_K-\bar X_K\rVert_F \le \prod_{t<K} \lVert W_t-J\rVert_2 \, \lVert X_0-\bar X_0\rVert_F"
    )
    reference: ClassVar[str] = "textbook; Xiao and Boyd 2004 for one matrix"
    provenance: ClassVar[Provenance] = "classical"
    tight: ClassVar[str] = "a static symmetric W and disagreement along its slowest mode"
    problem: ClassVar[type] = Rounds
    assumptions: ClassVar[tuple[Assumption[Rounds], ...]] = (
        Assumption(
            "contractions",
            r"W_t \text{ doubly stochastic}, 0 \le \lVert W_t-J\rVert_2 \le 1",
            lambda p: all(0.0 <= c <= 1.0 + ROUNDING for c in p.contractions),
        ),
        DISTANCE,
    )

    def formula(self, p: Rounds) -> float:
        """The product of the norms, times what there was."""
        return prod(p.contractions) * p.disagreement


@bound
class ContractionOverPeriods(Bound[Periods]):
    """Whole periods contract, what is left over does not expand."""

    name: ClassVar[str] = "contraction-over-periods"
    title: ClassVar[str] = "disagreement after K rounds of a periodic schedule"
    statement: ClassVar[str] = (
        r"\lVert X_K-\bar X_K\rVert_F \le \rho^{\lfloor K/\tau\rfloor} \lVert X_0-\bar X_0\rVert_F,"
        r"\quad \rho=\lVert W_{\tau-1}\cdots W_0-J\rVert_2"
    )
    reference: ClassVar[str] = "textbook"
    provenance: ClassVar[Provenance] = "classical"
    tight: ClassVar[str] = "after whole periods of commuting symmetric rounds, along their slowest mode"
    problem: ClassVar[type] = Periods
    assumptions: ClassVar[tuple[Assumption[Periods], ...]] = (
        EXPANDS_NOT,
        whole("period", r"\tau", 1),
        whole("steps", "K", 0),
        DISTANCE,
    )

    def formula(self, p: Periods) -> float:
        """The norm of one period to the number of whole periods."""
        return p.contraction ** (int(p.steps) // int(p.period)) * p.disagreement


@bound
class AdaptedContraction(Bound[Adapted]):
    """A weakened exchange contracts at least in proportion."""

    name: ClassVar[str] = "adapted-contraction"
    title: ClassVar[str] = "contraction of an exchange weakened by gamma, for any W"
    statement: ClassVar[str] = r"\lVert (1-\gamma)I+\gamma W-J\rVert_2 \le 1-\gamma(1-\lambda)"
    reference: ClassVar[str] = "triangle inequality on the disagreement"
    provenance: ClassVar[Provenance] = "classical"
    tight: ClassVar[str] = "a symmetric W whose eigenvalue of largest modulus is positive"
    problem: ClassVar[type] = Adapted
    assumptions: ClassVar[tuple[Assumption[Adapted], ...]] = (EXPANDS_NOT, share("gamma", r"\gamma"))

    def formula(self, p: Adapted) -> float:
        """The convex combination of 1 and the contraction."""
        return 1.0 - p.gamma * (1.0 - p.contraction)


@bound
class AdaptedContractionSymmetric(Bound[AdaptedSpectrum]):
    """The exact contraction from the two ends of a symmetric spectrum, also beyond gamma = 1."""

    name: ClassVar[str] = "adapted-contraction-symmetric"
    title: ClassVar[str] = "contraction of a symmetric exchange weakened or strengthened by gamma"
    kind: ClassVar[Kind] = "equal"
    statement: ClassVar[str] = (
        r"\lVert (1-\gamma)I+\gamma W-J\rVert_2 = "
        r"\max\{\lvert 1-\gamma(1-\lambda_2)\rvert, \lvert 1-\gamma(1-\lambda_{\min})\rvert\}"
    )
    reference: ClassVar[str] = "spectral theorem"
    provenance: ClassVar[Provenance] = "classical"
    problem: ClassVar[type] = AdaptedSpectrum
    assumptions: ClassVar[tuple[Assumption[AdaptedSpectrum], ...]] = (
        Assumption(
            "eigenvalues",
            r"W=W^\top, -1 \le \lambda_{\min} \le \lambda_2 \le 1",
            lambda p: -1.0 <= p.lambda_min <= p.lambda_2 <= 1.0,
        ),
        nonnegative("gamma", r"\gamma"),
    )

    def formula(self, p: AdaptedSpectrum) -> float:
        """The largest modulus is at one of the ends."""
        return max(abs(1.0 - p.gamma * (1.0 - p.lambda_2)), abs(1.0 - p.gamma * (1.0 - p.lambda_min)))
