r"""How far workers that started in agreement drift apart, in any number of steps.

All bounds here iterate one map of the root of the expected consensus distance, $r^2 \leftarrow (qr+d)^2+s$, from zero:
q is how disagreement persists, d what heterogeneity adds in a fixed direction, s the variance that fresh noise adds.
For q < 1 the map rises to the fixed point $r_\infty = \frac{qd+\sqrt{d^2+(1-q^2)s}}{1-q^2}$. Proofs: docs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.conditions import EXPANDS_NOT, ORDER, WORKERS, nonnegative, whole
from dissensus.theory.bounds.consensus_step import Order, damped


@dataclass(frozen=True)
class Smooth:
    """DSGD with constant learning rate on smooth functions, from agreement."""

    size: int
    contraction: float
    smoothness: float
    lr: float
    noise: float = 0.0
    heterogeneity: float = 0.0
    r"""At least $E\frac1n\sum_i\lVert\nabla f_i(\bar x_t)-\nabla F(\bar x_t)\rVert^2$ at every t."""
    order: Order = "awc"


@dataclass(frozen=True)
class SmoothSteps(Smooth):
    """The same for a number of steps."""

    steps: int = 1


@dataclass(frozen=True)
class Convex:
    """DSGD with a symmetric W on functions with curvatures between mu >= 0 and L, from agreement."""

    size: int
    lambda_2: float
    lambda_min: float
    smoothness: float
    lr: float
    convexity: float = 0.0
    noise: float = 0.0
    heterogeneity: float = 0.0
    r"""At least $E\frac1n\sum_i\lVert\nabla f_i(\bar x_t)-\nabla F(\bar x_t)\rVert^2$ at every t."""
    order: Order = "awc"

    @property
    def persistence(self) -> float:
        """How much of a disagreement is left after a step without noise and heterogeneity."""
        if self.order == "atc":
            moved = max(abs(1.0 - self.lr * self.convexity), abs(1.0 - self.lr * self.smoothness))
            return max(abs(self.lambda_2), abs(self.lambda_min)) * moved
        return max(abs(self.lambda_2 - self.lr * self.convexity), abs(self.lambda_min - self.lr * self.smoothness))


@dataclass(frozen=True)
class LocalSteps:
    """Steps without any exchange, from agreement."""

    size: int
    smoothness: float
    lr: float
    steps: int
    noise: float = 0.0
    heterogeneity: float = 0.0
    r"""At least $E\frac1n\sum_i\lVert\nabla f_i(\bar x_t)-\nabla F(\bar x_t)\rVert^2$ at every t."""


def iterated(q: float, d: float, s: float, steps: int) -> float:
    """r² after so many rounds of r² <- (qr + d)² + s from zero."""
    square = 0.0
    for _ in range(steps):
        square = (q * sqrt(square) + d) ** 2 + s
    return square


def limit(q: float, d: float, s: float) -> float:
    """r² at the fixed point of the same map, for q < 1."""
    return ((q * d + sqrt(d**2 + (1.0 - q**2) * s)) / (1.0 - q**2)) ** 2


DRIVEN: tuple[Assumption[Any], ...] = (
    WORKERS,
    nonnegative("smoothness", "L"),
    nonnegative("lr", r"\alpha"),
    nonnegative("noise", r"\sigma^2"),
    nonnegative("heterogeneity", r"\zeta^2"),
)
LAW = (
    r"r_{t+1}^2 = (q r_t + c\alpha\zeta)^2 + c^2\alpha^2\sigma^2\left(1-\frac1n\right), r_0=0,"
    r"\quad c=1 \text{ (AWC)}, c=\lambda \text{ (ATC)}"
)


def _map(p: Smooth) -> tuple[float, float, float]:
    c = damped(p.order, p.contraction)
    fresh = (c * p.lr) ** 2 * p.noise * (1.0 - 1.0 / p.size)
    return p.contraction + c * p.lr * p.smoothness, c * p.lr * sqrt(p.heterogeneity), fresh


@bound
class ConsensusFromAgreement(Bound[SmoothSteps]):
    """Holds for every step size, also where disagreement grows."""

    name: ClassVar[str] = "consensus-from-agreement"
    title: ClassVar[str] = "expected consensus distance of DSGD after K steps from agreement"
    statement: ClassVar[str] = r"E\,\Xi_K \le r_K^2,\quad q=\lambda+c\alpha L,\quad " + LAW
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "AWC, a common curvature -L and heterogeneity along the slowest mode, without noise"
    problem: ClassVar[type] = SmoothSteps
    assumptions: ClassVar[tuple[Assumption[SmoothSteps], ...]] = (
        *DRIVEN,
        EXPANDS_NOT,
        ORDER,
        whole("steps", "K", 0),
    )

    def formula(self, p: SmoothSteps) -> float:
        """The map, K times."""
        return iterated(*_map(p), int(p.steps))


@bound
class ConsensusFloor(Bound[Smooth]):
    """All steps at once."""

    name: ClassVar[str] = "consensus-floor"
    title: ClassVar[str] = "expected consensus distance of DSGD from agreement, at any step"
    statement: ClassVar[str] = (
        r"E\,\Xi_t \le c^2\alpha^2\left(\frac{q\zeta+\sqrt{\zeta^2+(1-q^2)\sigma^2(1-1/n)}}{1-q^2}\right)^2,"
        r"\quad q=\lambda+c\alpha L,\quad c=1 \text{ (AWC)}, c=\lambda \text{ (ATC)}"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "as t grows: no curvature, no heterogeneity, all modes of W but agreement equally slow"
    problem: ClassVar[type] = Smooth
    assumptions: ClassVar[tuple[Assumption[Smooth], ...]] = (
        *DRIVEN,
        EXPANDS_NOT,
        ORDER,
        Assumption("step size", r"\lambda+c\alpha L < 1", lambda p: _map(p)[0] < 1.0),
    )

    def formula(self, p: Smooth) -> float:
        """The fixed point."""
        return limit(*_map(p))


@bound
class ConsensusFloorConvex(Bound[Convex]):
    """Convexity lets curvature damp disagreement instead of feeding it: no step size has to pay for L."""

    name: ClassVar[str] = "consensus-floor-convex"
    title: ClassVar[str] = "expected consensus distance of DSGD on convex functions from agreement, at any step"
    statement: ClassVar[str] = (
        r"E\,\Xi_t \le c^2\alpha^2\left(\frac{q\zeta+\sqrt{\zeta^2+(1-q^2)\sigma^2(1-1/n)}}{1-q^2}\right)^2,\quad "
        r"q=\max\{\lvert\lambda_2-\alpha\mu\rvert,\lvert\lambda_{\min}-\alpha L\rvert\}, c=1 \text{ (AWC)};\quad "
        r"q=\lambda\max\{\lvert 1-\alpha\mu\rvert,\lvert 1-\alpha L\rvert\}, c=\lambda \text{ (ATC)}"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "as t grows: one curvature mu = L for all, noise only, all modes but agreement equally slow"
    problem: ClassVar[type] = Convex
    assumptions: ClassVar[tuple[Assumption[Convex], ...]] = (
        *DRIVEN,
        ORDER,
        Assumption("convexity", r"0 \le \mu \le L", lambda p: 0.0 <= p.convexity <= p.smoothness),
        Assumption(
            "eigenvalues",
            r"W=W^\top, -1 \le \lambda_{\min} \le \lambda_2 \le 1",
            lambda p: -1.0 <= p.lambda_min <= p.lambda_2 <= 1.0,
        ),
        Assumption("step size", r"q < 1", lambda p: p.persistence < 1.0),
    )

    def formula(self, p: Convex) -> float:
        """The fixed point."""
        c = damped(p.order, max(abs(p.lambda_2), abs(p.lambda_min)))
        fresh = (c * p.lr) ** 2 * p.noise * (1.0 - 1.0 / p.size)
        return limit(p.persistence, c * p.lr * sqrt(p.heterogeneity), fresh)


@bound
class LocalDrift(Bound[LocalSteps]):
    """Nothing contracts between two exchanges."""

    name: ClassVar[str] = "local-drift"
    title: ClassVar[str] = "expected consensus distance after H steps without exchange"
    statement: ClassVar[str] = (
        r"E\,\Xi_H \le r_H^2,\quad r_{h+1}^2 = ((1+\alpha L) r_h + \alpha\zeta)^2 + \alpha^2\sigma^2"
        r"\left(1-\frac1n\right), r_0=0"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "a common curvature -L"
    problem: ClassVar[type] = LocalSteps
    assumptions: ClassVar[tuple[Assumption[LocalSteps], ...]] = (*DRIVEN, whole("steps", "H", 0))

    def formula(self, p: LocalSteps) -> float:
        """The map with q = 1 + alpha L."""
        fresh = p.lr**2 * p.noise * (1.0 - 1.0 / p.size)
        return iterated(1.0 + p.lr * p.smoothness, p.lr * sqrt(p.heterogeneity), fresh, int(p.steps))


@bound
class LocalDriftConvex(Bound[LocalSteps]):
    """A gradient step on a convex function brings no two points apart."""

    name: ClassVar[str] = "local-drift-convex"
    title: ClassVar[str] = "expected consensus distance after H steps without exchange on convex functions"
    statement: ClassVar[str] = (
        r"E\,\Xi_H \le r_H^2,\quad r_{h+1}^2 = (r_h + \alpha\zeta)^2 + \alpha^2\sigma^2\left(1-\frac1n\right), r_0=0"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "linear functions"
    problem: ClassVar[type] = LocalSteps
    assumptions: ClassVar[tuple[Assumption[LocalSteps], ...]] = (
        *DRIVEN,
        whole("steps", "H", 0),
        Assumption("step size", r"f_i \text{ convex}, \alpha L \le 2", lambda p: p.lr * p.smoothness <= 2.0),
    )

    def formula(self, p: LocalSteps) -> float:
        """The map with q = 1."""
        fresh = p.lr**2 * p.noise * (1.0 - 1.0 / p.size)
        return iterated(1.0, p.lr * sqrt(p.heterogeneity), fresh, int(p.steps))
