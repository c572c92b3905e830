r"""Decentralized SGD on smooth functions that need not be convex.

With $\Delta = 2(F(x_0)-\inf F)/(\alpha K) + \alpha L\sigma^2/n$ and $\delta$, a bound on L times the root mean square
disagreement, $\delta = \alpha L\,(S\zeta + \sqrt N\sigma)/(1-\alpha L\Gamma)$,

$$ \frac1K\sum_{t<K}\mathbb E\lVert\nabla F(\bar x_t)\rVert^2 \le
   \Bigl(\frac{\lvert 1-\alpha L\rvert\,\delta + \sqrt{\delta^2+(2-\alpha L)\Delta}}{2-\alpha L}\Bigr)^2. $$

At $\alpha L = 1$ it is $\Delta + \delta^2$, and for $\alpha L \le 1$ never more than that. Memory $\Gamma, S, N$: see
`memory.py`. Ours; proof in docs, bounds about descent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.dsgd import EXCESS, HETEROGENEITY, NOISE, STATIC, WITHIN_MEMORY
from dissensus.theory.bounds.memory import Memory, Order, geometric

BELOW_TWO = Assumption[Any]("step size", r"\alpha < 2/L", lambda p: p.lr * p.smoothness < 2.0)
"""Beyond it gradient descent itself diverges."""


@dataclass(frozen=True)
class NonconvexProblem:
    """What is known of a run of decentralized SGD from an equal start."""

    size: int
    contraction: float
    r"""$\lambda \ge \lVert W_t-J\rVert_2$ in every round."""
    smoothness: float
    """L, of every worker's function."""
    lr: float
    steps: int
    """K: the average runs over the iterates 0 to K-1."""
    excess: float
    r"""$F(x_0)-\inf F$."""
    noise: float = 0.0
    r"""$\sigma^2$: the mean square of each worker's noise given the past, independent across workers."""
    heterogeneity: float = 0.0
    r"""$\zeta^2$: the largest mean square of the workers' gradients about their mean, along the mean iterate."""
    order: Order = "awc"


def nonconvex_value(
    memory: Memory,
    *,
    size: int,
    smoothness: float,
    lr: float,
    steps: int,
    excess: float,
    noise: float,
    heterogeneity: float,
) -> float:
    """The common right-hand side: the larger root of a quadratic inequality in the root mean square gradient."""
    step = lr * smoothness
    pushed = memory.swing * math.sqrt(heterogeneity) + math.sqrt(memory.diffusion * noise)
    strayed = step * pushed / (1.0 - step * memory.gain)
    budget = 2.0 * excess / (lr * steps) + step * noise / size
    return ((abs(1.0 - step) * strayed + math.sqrt(strayed**2 + (2.0 - step) * budget)) / (2.0 - step)) ** 2


@bound
class NonconvexDescent(Bound[NonconvexProblem]):
    """The mean square gradient at the mean iterate."""

    name: ClassVar[str] = "nonconvex-descent"
    title: ClassVar[str] = "mean square gradient at the mean iterate of decentralized SGD, smooth functions"
    statement: ClassVar[str] = (
        r"\begin{array}{rl}\frac1K\sum_{t<K}\mathbb E\lVert\nabla F(\bar x_t)\rVert^2 &\le"
        r"\Bigl(\frac{|1-\alpha L|\,\delta+\sqrt{\delta^2+(2-\alpha L)\Delta}}{2-\alpha L}\Bigr)^2,\\"
        r"\Delta &= \frac{2(F(x_0)-\inf F)}{\alpha K}+\frac{\alpha L\sigma^2}{n},\quad "
        r"\delta = \frac{\alpha L(S\zeta+\sqrt N\sigma)}{1-\alpha L\Gamma},\\"
        r"S^2 &= \frac{o^2}{K}\sum_{t<K}\Bigl(\frac{1-\lambda^t}{1-\lambda}\Bigr)^2,\quad "
        r"N = \Bigl(1-\frac1n\Bigr)\frac{o^2}{K}\sum_{t<K}\frac{1-\lambda^{2t}}{1-\lambda^2}\end{array}"
    )
    reference: ClassVar[str] = "derived for this project"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = (
        "Delta: one step on a parabola at lr = 1/L, or a long straight slope as lr -> 0; delta: two workers of"
        " curvature L and -L pulled apart, K -> infinity, then lr -> 0"
    )
    problem: ClassVar[type] = NonconvexProblem
    assumptions: ClassVar[tuple[Assumption[NonconvexProblem], ...]] = (
        *STATIC,
        EXCESS,
        NOISE,
        HETEROGENEITY,
        BELOW_TWO,
        WITHIN_MEMORY,
    )

    def formula(self, p: NonconvexProblem) -> float:
        """Excess, noise and disagreement, joined by the quadratic inequality."""
        return nonconvex_value(
            geometric(p.contraction, p.steps, p.order, p.size),
            size=p.size,
            smoothness=p.smoothness,
            lr=p.lr,
            steps=p.steps,
            excess=p.excess,
            noise=p.noise,
            heterogeneity=p.heterogeneity,
        )
