r"""Decentralized subgradient descent on convex functions with gradients at most R, an average over the iterates 0 to K.

As recalled (the form that performance estimation papers compare with), awc:

$$ F(\bar x_{\mathrm{av}})-F^\star \le \frac{D^2}{2\alpha(K+1)} + \frac{\alpha R^2}2 + \frac{2\alpha R^2}{1-\lambda}. $$

Ours, for the average of the values too, with $C = o\,\frac{1-\lambda^{K}}{1-\lambda}$:

$$ \frac1{K+1}\sum_{t\le K}F(\bar x_t)-F^\star \le \frac{D^2}{2\alpha(K+1)} + \alpha R^2\max_{0\le u\le 1}
   \Big(\frac{1-u^2}2 + C(u+u^2)\Big): $$

gradients that agree (u = 0) make long steps, gradients that differ (u = 1) make disagreement, and none do both; for
$C \ge 1/2$ the maximum is $2C$ and the recalled middle term is gone. Proof in docs, bounds about descent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.conditions import EXPANDS_NOT, MIXES, ORDER, positive, whole
from dissensus.theory.bounds.dsgd import DISTANCE, LR
from dissensus.theory.bounds.memory import Order, limit


@dataclass(frozen=True)
class SubgradientProblem:
    """What is known of a run of decentralized subgradient descent from an equal start."""

    contraction: float
    r"""$\lambda \ge \lVert W_t-J\rVert_2$ in every round."""
    lipschitz: float
    """R: the longest subgradient of any worker."""
    lr: float
    steps: int
    """K: the average runs over the iterates 0 to K."""
    distance: float
    """From the start to the nearest minimiser of F."""
    order: Order = "awc"


FACTS: tuple[Assumption[Any], ...] = (
    positive("lipschitz", "R"),
    LR,
    whole("steps", "K", 0),
    DISTANCE,
)


@bound
class SubgradientRecalled(Bound[SubgradientProblem]):
    """The known form."""

    name: ClassVar[str] = "subgradient-recalled"
    title: ClassVar[str] = "excess at the average iterate of decentralized subgradient descent, as known"
    statement: ClassVar[str] = (
        r"F(\bar x_{\mathrm{av}})-F^\star \le \frac{\lVert x_0-x^\star\rVert^2}{2\alpha(K+1)}"
        r"+\frac{\alpha R^2}{2}+\frac{2\alpha R^2}{1-\lambda}"
    )
    reference: ClassVar[str] = "as quoted by Colla and Hendrickx"
    provenance: ClassVar[Provenance] = "recalled"
    problem: ClassVar[type] = SubgradientProblem
    assumptions: ClassVar[tuple[Assumption[SubgradientProblem], ...]] = (
        *FACTS,
        MIXES,
        Assumption("order", r"\text{order} = \text{awc}", lambda p: p.order == "awc"),
    )

    def formula(self, p: SubgradientProblem) -> float:
        """Start, step, disagreement."""
        spread = 0.5 + 2.0 / (1.0 - p.contraction)
        return p.distance**2 / (2.0 * p.lr * (p.steps + 1)) + p.lr * p.lipschitz**2 * spread


@bound
class SubgradientDescent(Bound[SubgradientProblem]):
    """The average excess."""

    name: ClassVar[str] = "subgradient-descent"
    title: ClassVar[str] = "average excess of the mean iterate of decentralized subgradient descent"
    statement: ClassVar[str] = (
        r"\frac{1}{K+1}\sum_{t\le K}F(\bar x_t)-F^\star \le \frac{\lVert x_0-x^\star\rVert^2}{2\alpha(K+1)}"
        r"+\alpha R^2\max_{0\le u\le1}\Bigl(\frac{1-u^2}{2}+C(u+u^2)\Bigr),\quad C=o\,\frac{1-\lambda^K}{1-\lambda}"
    )
    reference: ClassVar[str] = "derived for this project"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "complete graph, atc: the absolute value, started on the lattice of its steps"
    problem: ClassVar[type] = SubgradientProblem
    assumptions: ClassVar[tuple[Assumption[SubgradientProblem], ...]] = (*FACTS, EXPANDS_NOT, ORDER)

    def formula(self, p: SubgradientProblem) -> float:
        """Start, and the worse of agreeing and differing."""
        spread = worst_split(limit(p.contraction, int(p.steps), p.order))
        return p.distance**2 / (2.0 * p.lr * (p.steps + 1)) + p.lr * p.lipschitz**2 * spread


def worst_split(memory: float) -> float:
    r"""$\max_{0\le u\le 1}\frac{1-u^2}2 + C(u+u^2)$: a parabola in u, largest inside only for small C."""
    bend = memory - 0.5
    u = 1.0 if bend >= 0.0 else min(1.0, -memory / (2.0 * bend))
    return 0.5 + memory * u + bend * u**2
