r"""Decentralized gradient descent, $X^+ = WX - \alpha\nabla f(X)$ with a symmetric W, descends a potential.

The potential is $\Phi(X) = \sum_i f_i(x_i) + \frac{1}{2\alpha}\operatorname{tr} X^\top(I-W)X$, whose gradient
changes at most $L + (1-\lambda_{\min})/\alpha$ times as fast as X; for $\alpha \le (1+\lambda_{\min})/L$ that is at
most $2/\alpha$, so $\Phi$ never rises. From agreement, gradients then stay bounded by what the functions could still
fall, and so does the deviation. Convexity, which the paper assumes, is not needed for these two. Proofs: docs.

Reference: Yuan, Ling and Yin, On the convergence of decentralized gradient descent (2016), from memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isinf, sqrt
from typing import Any, ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.conditions import nonnegative, positive, whole


@dataclass(frozen=True)
class Descent:
    """DGD from agreement on L-smooth functions that are bounded below."""

    lambda_min: float
    smoothness: float
    lr: float
    shortfall: float
    r"""$\sum_i (f_i(x_0) - \inf f_i)$: how far every function could fall by itself."""


@dataclass(frozen=True)
class Deviation(Descent):
    """The same, and how fast disagreement is forgotten."""

    contraction: float = 0.0
    steps: float = inf
    """How many steps; all of them unless told."""


@dataclass(frozen=True)
class OwnFixedPoint:
    """DGD on functions with curvatures between mu and L, and where it ends."""

    lambda_min: float
    smoothness: float
    convexity: float
    lr: float
    steps: int
    distance: float
    r"""$\lVert X_0 - X_\infty\rVert_F$ to the fixed point of DGD itself, which is not agreement."""

    @property
    def rate(self) -> float:
        r"""The largest modulus that $W - \alpha H$ can have."""
        return max(1.0 - self.lr * self.convexity, self.lr * self.smoothness - self.lambda_min)


STEP_SIZE = Assumption[Any](
    "step size", r"0 < \alpha \le (1+\lambda_{\min})/L", lambda p: 0.0 < p.lr * p.smoothness <= 1.0 + p.lambda_min
)
SYMMETRIC = Assumption[Any](
    "eigenvalues",
    r"W=W^\top \text{ doubly stochastic}, -1 \le \lambda_{\min} \le 1",
    lambda p: -1.0 <= p.lambda_min <= 1.0,
)
SHORTFALL = nonnegative("shortfall", r"\sum_i (f_i(x_0)-\inf f_i)")


@bound
class YuanLingYinGradients(Bound[Descent]):
    """Gradients stay bounded without assuming it."""

    name: ClassVar[str] = "yuan-ling-yin-gradients"
    title: ClassVar[str] = "norm of all gradients along DGD from agreement"
    statement: ClassVar[str] = r"\lVert\nabla f(X_k)\rVert_F \le D_g := \sqrt{2L\textstyle\sum_i (f_i(x_0)-\inf f_i)}"
    reference: ClassVar[str] = "Yuan, Ling and Yin 2016, from memory; without convexity: ours"
    provenance: ClassVar[Provenance] = "recalled"
    tight: ClassVar[str] = "at the first step: quadratics of one curvature L"
    problem: ClassVar[type] = Descent
    assumptions: ClassVar[tuple[Assumption[Descent], ...]] = (
        SYMMETRIC,
        positive("smoothness", "L"),
        STEP_SIZE,
        SHORTFALL,
    )

    def formula(self, p: Descent) -> float:
        """Smooth functions have gradients as steep as they can fall."""
        return sqrt(2.0 * p.smoothness * p.shortfall)


@bound
class YuanLingYinDeviation(Bound[Deviation]):
    """Bounded gradients push, mixing pulls."""

    name: ClassVar[str] = "yuan-ling-yin-deviation"
    title: ClassVar[str] = "disagreement along DGD from agreement"
    statement: ClassVar[str] = r"\lVert X_k-\bar X_k\rVert_F \le \alpha D_g\frac{1-\lambda^k}{1-\lambda}"
    reference: ClassVar[str] = "Yuan, Ling and Yin 2016, from memory; without convexity: ours"
    provenance: ClassVar[Provenance] = "recalled"
    tight: ClassVar[str] = "the first step from the mean of optima of one curvature L; nearly: slow mixing, small steps"
    problem: ClassVar[type] = Deviation
    assumptions: ClassVar[tuple[Assumption[Deviation], ...]] = (
        SYMMETRIC,
        positive("smoothness", "L"),
        STEP_SIZE,
        SHORTFALL,
        Assumption("contraction", r"0 \le \lambda < 1", lambda p: 0.0 <= p.contraction < 1.0),
        Assumption("steps", r"k \ge 0", lambda p: p.steps >= 0 and (isinf(p.steps) or float(p.steps).is_integer())),
    )

    def formula(self, p: Deviation) -> float:
        """The geometric series of k gradients."""
        left = 0.0 if isinf(p.steps) else p.contraction**p.steps
        return p.lr * sqrt(2.0 * p.smoothness * p.shortfall) * (1.0 - left) / (1.0 - p.contraction)


@bound
class DgdOwnFixedPoint(Bound[OwnFixedPoint]):
    """DGD converges linearly, but to a point of its own."""

    name: ClassVar[str] = "dgd-own-fixed-point"
    title: ClassVar[str] = "distance of DGD to its own fixed point"
    statement: ClassVar[str] = (
        r"\lVert X_k-X_\infty\rVert_F \le \max\{1-\alpha\mu, \alpha L-\lambda_{\min}\}^k \lVert X_0-X_\infty\rVert_F"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "one curvature mu for all, workers displaced alike"
    problem: ClassVar[type] = OwnFixedPoint
    assumptions: ClassVar[tuple[Assumption[OwnFixedPoint], ...]] = (
        SYMMETRIC,
        Assumption("convexity", r"0 < \mu \le L", lambda p: 0.0 < p.convexity <= p.smoothness),
        Assumption(
            "step size",
            r"0 < \alpha < (1+\lambda_{\min})/L",
            lambda p: 0.0 < p.lr * p.smoothness < 1.0 + p.lambda_min,
        ),
        whole("steps", "k", 0),
        nonnegative("distance", r"\lVert X_0-X_\infty\rVert_F"),
    )

    def formula(self, p: OwnFixedPoint) -> float:
        """The rate to the number of steps."""
        return p.rate ** int(p.steps) * p.distance
