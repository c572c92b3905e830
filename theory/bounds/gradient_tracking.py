r"""Gradient tracking (DIGing) on smooth strongly convex problems: a rate, a step size and an error, by three gains.

With the stacked norms $r=\sqrt n\lVert\bar x-x^\star\rVert$, $e=\lVert X-\bar X\rVert_F$ and
$h=\lVert Y-\bar Y\rVert_F$ a step obeys, entry by entry,

$$ \begin{pmatrix} r^+ \\ e^+ \\ h^+ \end{pmatrix} \le
\underbrace{\begin{pmatrix} \varrho & \alpha L & 0 \\ 0 & \lambda & \alpha \\
\alpha L^2 & L(\kappa+\alpha L) & \lambda+\alpha L \end{pmatrix}}_{M(\alpha)}
\begin{pmatrix} r \\ e \\ h \end{pmatrix}, \qquad
\varrho=\max\{|1-\alpha\mu|,|1-\alpha L|\}, \quad \kappa=\min\{1+\lambda,1-\lambda_{\min}\} \ge \lVert W-I\rVert $$

so the spectral radius of M is a rate, its powers bound every step, and where it is below one can be solved for the step
size in closed form. Only F must be convex; a worker's loss need not be. The system is ours, in the manner of the
small-gain proofs of Nedić, Olshevsky and Shi 2017 (arXiv:1607.03218), whose own rate is here, too, as it is recalled.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, ClassVar

import numpy as np

from dissensus.theory.bounds.base import Assumption, Bound, Kind, Provenance, bound
from dissensus.theory.bounds.conditions import MIXES, SINGLE, nonnegative, positive, whole


@dataclass(frozen=True)
class Tracking:
    """What is known of the problem: the mean loss F is mu-strongly convex, every worker's loss L-smooth."""

    contraction: float
    smoothness: float
    convexity: float
    lr: float
    lambda_min: float = -1.0
    """The smallest eigenvalue of a symmetric W; -1 where it is not known or W is not symmetric."""


@dataclass(frozen=True)
class TrackingRun(Tracking):
    r"""The same with a start: all workers at one point, $y^0 = g(x^0)$."""

    steps: int = 1
    distance: float = 1.0
    heterogeneity: float = 0.0
    """The mean square of the workers' gradients about their mean, at the start."""


@dataclass(frozen=True)
class TrackingProblem:
    """The same without a step size, which is what is asked for."""

    contraction: float
    smoothness: float
    convexity: float
    lambda_min: float = -1.0


@dataclass(frozen=True)
class Diging:
    """What the recalled rate needs: convex losses, mu that of their mean."""

    size: int
    contraction: float
    smoothness: float
    convexity: float
    lr: float


CONVEX = Assumption[Any]("convexity", r"0 < \mu \le L", lambda p: 0.0 < p.convexity <= p.smoothness < inf)
ROUNDING = 1e-12
"""Eigenvalues that are computed may leave their order by so much."""
LEAST = Assumption[Any](
    "lambda min",
    r"-1 \le \lambda_{\min} \le \lambda",
    lambda p: -1.0 - ROUNDING <= p.lambda_min <= p.contraction + ROUNDING,
)
FACTS: tuple[Assumption[Any], ...] = (MIXES, CONVEX, LEAST, positive("lr", r"\alpha"))


def moved(p: Tracking | TrackingProblem) -> float:
    """Kappa: how far an exchange moves the disagreement."""
    return min(1.0 + p.contraction, 1.0 - min(p.lambda_min, p.contraction))


def gains(p: Tracking) -> np.ndarray:
    """M, entry by entry nonnegative."""
    a, smooth = p.lr, p.smoothness
    mean = max(abs(1.0 - a * p.convexity), abs(1.0 - a * smooth))
    return np.array(
        [
            [mean, a * smooth, 0.0],
            [0.0, p.contraction, a],
            [a * smooth**2, smooth * (moved(p) + a * smooth), p.contraction + a * smooth],
        ]
    )


def largest_step(p: TrackingProblem) -> float:
    r"""The step size below which the spectral radius of M is below one."""
    gap = 1.0 - p.contraction
    total = gap + moved(p)
    bend = total + sqrt(total**2 + 4.0 * (1.0 + p.smoothness / p.convexity) * gap**2)
    return 2.0 * gap**2 / (bend * p.smoothness)


@bound
class GradientTrackingRate(Bound[Tracking]):
    """The spectral radius of the three gains."""

    name: ClassVar[str] = "gradient-tracking-rate"
    title: ClassVar[str] = "linear rate of gradient tracking, strongly convex mean loss"
    statement: ClassVar[str] = (
        r"\limsup_{K\to\infty}\lVert X_K-\mathbf 1 x^\star\rVert_F^{1/K} \le \rho\begin{pmatrix}"
        r"\varrho & \alpha L & 0 \\ 0 & \lambda & \alpha \\ \alpha L^2 & L(\kappa+\alpha L) & \lambda+\alpha L"
        r"\end{pmatrix},\; \varrho=\max\{|1-\alpha\mu|,|1-\alpha L|\},\;"
        r" \kappa=\min\{1+\lambda,1-\lambda_{\min}\}"
    )
    reference: ClassVar[str] = "ours; in the manner of Nedić, Olshevsky and Shi 2017, arXiv:1607.03218"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "the step size tending to zero, where gradient descent of the mean decides"
    problem: ClassVar[type] = Tracking
    assumptions: ClassVar[tuple[Assumption[Any], ...]] = FACTS

    def formula(self, p: Tracking) -> float:
        """The largest modulus of an eigenvalue; more than one says nothing, but is still true."""
        return float(np.abs(np.linalg.eigvals(gains(p))).max())


@bound
class GradientTrackingError(Bound[TrackingRun]):
    """The powers of the three gains, from a common start."""

    name: ClassVar[str] = "gradient-tracking-error"
    title: ClassVar[str] = "root mean square distance to the optimum after K steps of gradient tracking"
    statement: ClassVar[str] = (
        r"\Big(\frac1n\sum_i\lVert x_i^K-x^\star\rVert^2\Big)^{1/2} \le \sqrt{z_1^2+z_2^2},\quad"
        r" z = M(\alpha)^K (D, 0, \zeta_0)^\top"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "one step; heterogeneity zero and a quadratic along its flattest direction"
    problem: ClassVar[type] = TrackingRun
    assumptions: ClassVar[tuple[Assumption[Any], ...]] = (
        *FACTS,
        whole("steps", "K", 0),
        nonnegative("distance", "D"),
        nonnegative("heterogeneity", r"\zeta_0^2"),
    )

    def formula(self, p: TrackingRun) -> float:
        """A power of a 3 x 3 matrix."""
        start = np.array([p.distance, 0.0, sqrt(p.heterogeneity)])
        with np.errstate(over="ignore", invalid="ignore"):
            z = np.linalg.matrix_power(gains(p), int(p.steps)) @ start
        return float(np.hypot(z[0], z[1])) if np.all(np.isfinite(z)) else inf


@bound
class GradientTrackingStep(Bound[TrackingProblem]):
    """Below this step size gradient tracking converges linearly."""

    name: ClassVar[str] = "gradient-tracking-step"
    title: ClassVar[str] = "step size below which gradient tracking converges linearly"
    kind: ClassVar[Kind] = "lower"
    statement: ClassVar[str] = (
        r"\alpha_{\max} \ge \frac1L\,\frac{2\delta^2}{\delta+\kappa+\sqrt{(\delta+\kappa)^2+4(1+L/\mu)\delta^2}},\quad"
        r" \delta=1-\lambda,\; \kappa=\min\{1+\lambda,1-\lambda_{\min}\}"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "a symmetric W with an eigenvalue close to -1, equal curvatures"
    problem: ClassVar[type] = TrackingProblem
    assumptions: ClassVar[tuple[Assumption[Any], ...]] = (
        MIXES,
        CONVEX,
        LEAST,
    )

    def formula(self, p: TrackingProblem) -> float:
        """The root of a quadratic."""
        return largest_step(p)


@bound
class DigingRate(Bound[Diging]):
    """The rate of the paper as it is recalled."""

    name: ClassVar[str] = "diging-rate"
    title: ClassVar[str] = "linear rate of gradient tracking, convex losses, as recalled"
    statement: ClassVar[str] = (
        r"\limsup_{K\to\infty}\lVert X_K-\mathbf 1 x^\star\rVert_F^{1/K} \le \max\left\{"
        r"\sqrt{1-\tfrac{\alpha\mu}{1.5}},\;\lambda+\sqrt{2\alpha L(1+4\sqrt{nL/\mu})}\right\}"
    )
    reference: ClassVar[str] = "Nedić, Olshevsky and Shi 2017, arXiv:1607.03218 (static graph; wording not re-read)"
    provenance: ClassVar[Provenance] = "recalled"
    problem: ClassVar[type] = Diging
    assumptions: ClassVar[tuple[Assumption[Any], ...]] = (
        SINGLE,
        MIXES,
        CONVEX,
        positive("lr", r"\alpha"),
        Assumption("rate", r"\text{value} < 1", lambda p: _recalled(p) < 1.0),
    )

    def formula(self, p: Diging) -> float:
        """The larger of the two."""
        return _recalled(p)


def _recalled(p: Diging) -> float:
    if not (p.smoothness >= p.convexity > 0.0 and p.lr > 0.0 and p.size >= 1):
        return inf
    slow = sqrt(max(0.0, 1.0 - p.lr * p.convexity / 1.5))
    return max(
        slow, p.contraction + sqrt(2.0 * p.lr * p.smoothness * (1.0 + 4.0 * sqrt(p.size * p.smoothness / p.convexity)))
    )
