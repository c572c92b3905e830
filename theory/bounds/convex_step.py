r"""One step of decentralized SGD on convex functions, from any state: two descent lemmas.

Koloskova et al. 2020, the descent lemma of the convex case as recalled ($\alpha\le 1/(12L)$, $\Xi$ the mean square
disagreement):

$$ \mathbb E\lVert\bar x^+-x^\star\rVert^2 \le (1-\tfrac{\alpha\mu}2)\lVert\bar x-x^\star\rVert^2
   + \frac{\alpha^2\sigma^2}n - \alpha(F(\bar x)-F^\star) + 3\alpha L\,\Xi. $$

Ours, from the same ingredients without losing constants ($\alpha\le 1/L$; proof in docs, bounds about descent):

$$ \mathbb E\lVert\bar x^+-x^\star\rVert^2 \le \lVert\bar x-x^\star\rVert^2 + \frac{\alpha^2\sigma^2}n
   - 2\alpha(F(\bar x)-F^\star) + \alpha L\,\Xi. $$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.conditions import SINGLE, nonnegative
from dissensus.theory.bounds.dsgd import CENTRAL, DISTANCE, LR, NOISE, SMOOTH


@dataclass(frozen=True)
class StepProblem:
    """What is known of the state before the step; the order of mixing does not matter to the mean."""

    size: int
    smoothness: float
    """L, of every worker's function."""
    lr: float
    distance: float
    """From the mean to a minimiser of F."""
    excess: float
    r"""$F(\bar x)-F^\star$."""
    disagreement: float
    r"""$\Xi = \frac1n\sum_i\lVert x_i-\bar x\rVert^2$."""
    noise: float = 0.0
    r"""$\sigma^2$: the mean square of each worker's noise, independent across workers."""
    convexity: float = 0.0
    """mu, of every worker's function."""


STATE: tuple[Assumption[StepProblem], ...] = (
    SINGLE,
    SMOOTH,
    LR,
    DISTANCE,
    nonnegative("excess", r"F(\bar x)-F^\star"),
    nonnegative("disagreement", r"\Xi"),
    NOISE,
    Assumption("convexity", r"0 \le \mu \le L", lambda p: 0.0 <= p.convexity <= p.smoothness),
)


@bound
class KoloskovaStep(Bound[StepProblem]):
    """The recalled lemma."""

    name: ClassVar[str] = "koloskova-step"
    title: ClassVar[str] = "expected square distance from the minimiser after one step, by Koloskova et al."
    statement: ClassVar[str] = (
        r"\mathbb E\lVert\bar x^+-x^\star\rVert^2 \le (1-\tfrac{\alpha\mu}{2})\lVert\bar x-x^\star\rVert^2"
        r"+\frac{\alpha^2\sigma^2}{n}-\alpha(F(\bar x)-F^\star)+3\alpha L\Xi"
    )
    reference: ClassVar[str] = "Koloskova et al. 2020, arXiv:2003.10422, descent lemma of the convex case"
    provenance: ClassVar[Provenance] = "recalled"
    problem: ClassVar[type] = StepProblem
    assumptions: ClassVar[tuple[Assumption[StepProblem], ...]] = (
        *STATE,
        Assumption("step size", r"\alpha \le 1/(12L)", lambda p: 12.0 * p.lr * p.smoothness <= 1.0),
    )

    def formula(self, p: StepProblem) -> float:
        """Contraction, noise, descent, disagreement."""
        return (
            (1.0 - 0.5 * p.lr * p.convexity) * p.distance**2
            + p.lr**2 * p.noise / p.size
            - p.lr * p.excess
            + 3.0 * p.lr * p.smoothness * p.disagreement
        )


@bound
class ConvexStep(Bound[StepProblem]):
    """The lemma behind `convex-descent`."""

    name: ClassVar[str] = "convex-step"
    title: ClassVar[str] = "expected square distance from the minimiser after one step, any learning rate up to 1/L"
    statement: ClassVar[str] = (
        r"\mathbb E\lVert\bar x^+-x^\star\rVert^2 \le \lVert\bar x-x^\star\rVert^2"
        r"+\frac{\alpha^2\sigma^2}{n}-2\alpha(F(\bar x)-F^\star)+\alpha L\Xi"
    )
    reference: ClassVar[str] = "derived for this project"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = (
        "common Huber functions on their linear part; at x*: common parabolas apart by curvature, lr = 1/L"
    )
    problem: ClassVar[type] = StepProblem
    assumptions: ClassVar[tuple[Assumption[StepProblem], ...]] = (*STATE, CENTRAL)

    def formula(self, p: StepProblem) -> float:
        """Distance, noise, descent, disagreement."""
        return p.distance**2 + p.lr**2 * p.noise / p.size - 2.0 * p.lr * p.excess + p.lr * p.smoothness * p.disagreement
