r"""What one step does to the consensus distance $\Xi = \frac1n\sum_i \lVert x_i-\bar x\rVert^2$.

With E the disagreement of the workers and G their gradients, a step is $E^+ = (W-J)E - \alpha(I-J)G$ where mixing and
gradient are taken at the same point (AWC), and $E^+ = (W-J)(E-\alpha(I-J)G)$ where one mixes after the move (ATC). The
bounds differ in what they know of G. Proofs: docs, bounds about graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Literal

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.conditions import EXPANDS_NOT, MIXES, ORDER, WORKERS, nonnegative

Order = Literal["awc", "atc"]


@dataclass(frozen=True)
class GivenGradients:
    """A step along gradients whose spread over the workers is known."""

    contraction: float
    lr: float
    consensus_distance: float
    r"""$\Xi$ before the step."""
    spread: float
    r"""$\Gamma = \frac1n\sum_i \lVert g_i-\bar g\rVert^2$."""
    order: Order = "awc"


@dataclass(frozen=True)
class SmoothStep:
    """A step on smooth functions with noise that is independent from worker to worker."""

    size: int
    contraction: float
    smoothness: float
    lr: float
    consensus_distance: float
    r"""$E\,\Xi$ before the step."""
    noise: float = 0.0
    heterogeneity: float = 0.0
    r"""$E\frac1n\sum_i\lVert\nabla f_i(\bar x)-\nabla F(\bar x)\rVert^2$ at the mean of the workers, or more."""
    order: Order = "awc"


STEP: tuple[Assumption[Any], ...] = (
    nonnegative("lr", r"\alpha"),
    nonnegative("consensus_distance", r"\Xi"),
    ORDER,
)


def damped(order: Order, contraction: float) -> float:
    """What mixing makes of a fresh displacement: nothing if it comes after the exchange, a contraction before."""
    return contraction if order == "atc" else 1.0


@bound
class ConsensusStepYoung(Bound[GivenGradients]):
    """The form that recursions are summed in."""

    name: ClassVar[str] = "consensus-step-young"
    title: ClassVar[str] = "consensus distance after one step along given gradients, linear in its terms"
    statement: ClassVar[str] = (
        r"\Xi^+ \le \lambda\,\Xi + \frac{\alpha^2 c^2}{1-\lambda}\Gamma,"
        r"\quad c=1 \text{ (AWC)}, c=\lambda \text{ (ATC)}"
    )
    reference: ClassVar[str] = "Young's inequality with the parameter (1-lambda)/lambda; ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = (
        r"disagreement and gradients along the slowest mode, with $c\alpha\sqrt\Gamma = (1-\lambda)\sqrt\Xi$"
    )
    problem: ClassVar[type] = GivenGradients
    assumptions: ClassVar[tuple[Assumption[GivenGradients], ...]] = (MIXES, *STEP, nonnegative("spread", r"\Gamma"))

    def formula(self, p: GivenGradients) -> float:
        """Linear in both."""
        pushed = (p.lr * damped(p.order, p.contraction)) ** 2 * p.spread
        return p.contraction * p.consensus_distance + pushed / (1.0 - p.contraction)


@bound
class ConsensusStepMinkowski(Bound[GivenGradients]):
    """The smallest that Young's inequality can give: its parameter chosen by the terms themselves."""

    name: ClassVar[str] = "consensus-step-minkowski"
    title: ClassVar[str] = "consensus distance after one step along given gradients"
    statement: ClassVar[str] = (
        r"\sqrt{\Xi^+} \le \lambda\sqrt{\Xi} + \alpha c\sqrt{\Gamma},\quad c=1 \text{ (AWC)}, c=\lambda \text{ (ATC)}"
    )
    reference: ClassVar[str] = "triangle inequality; ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "disagreement and gradients along the slowest mode"
    problem: ClassVar[type] = GivenGradients
    assumptions: ClassVar[tuple[Assumption[GivenGradients], ...]] = (
        EXPANDS_NOT,
        *STEP,
        nonnegative("spread", r"\Gamma"),
    )

    def formula(self, p: GivenGradients) -> float:
        """The square of the sum of the roots."""
        pushed = p.lr * damped(p.order, p.contraction) * sqrt(p.spread)
        return (p.contraction * sqrt(p.consensus_distance) + pushed) ** 2


@bound
class ConsensusStepSmooth(Bound[SmoothStep]):
    """Gradients of smooth functions spread with the workers; noise is orthogonal to everything in the mean."""

    name: ClassVar[str] = "consensus-step-smooth"
    title: ClassVar[str] = "expected consensus distance after one step on smooth functions"
    statement: ClassVar[str] = (
        r"E\,\Xi^+ \le \left((\lambda+c\alpha L)\sqrt{E\,\Xi}+c\alpha\zeta\right)^2"
        r"+c^2\alpha^2\sigma^2\left(1-\frac1n\right),\quad c=1 \text{ (AWC)}, c=\lambda \text{ (ATC)}"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = (
        "AWC: a common curvature -L, disagreement and heterogeneity along the slowest mode, and noise of its own size"
    )
    problem: ClassVar[type] = SmoothStep
    assumptions: ClassVar[tuple[Assumption[SmoothStep], ...]] = (
        WORKERS,
        EXPANDS_NOT,
        *STEP,
        nonnegative("smoothness", "L"),
        nonnegative("noise", r"\sigma^2"),
        nonnegative("heterogeneity", r"\zeta^2"),
    )

    def formula(self, p: SmoothStep) -> float:
        """What is moved, and the noise beside it."""
        c = damped(p.order, p.contraction)
        moved = (p.contraction + c * p.lr * p.smoothness) * sqrt(p.consensus_distance)
        moved += c * p.lr * sqrt(p.heterogeneity)
        return moved**2 + (c * p.lr) ** 2 * p.noise * (1.0 - 1.0 / p.size)
