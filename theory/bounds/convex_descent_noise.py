r"""Decentralized SGD on convex functions, with gradient noise.

$$ \frac1K\sum_{t<K}\mathbb E F(\bar x_t)-F^\star \le \frac{D^2}{2\alpha K} + \frac{\alpha\sigma^2}{2n}
   + \frac{L\,\alpha^2(R^2\zeta_\star^2 + N\sigma^2)}{2\,(1-(\alpha L\Gamma)^2)} $$

with the memory $\Gamma, R, N$ of `memory.py`. The push of heterogeneity is deterministic and the noise is a martingale,
so their squares add without a cross term. Ours; proof in docs, bounds about descent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.convex_descent import convex_value
from dissensus.theory.bounds.dsgd import CENTRAL, DISTANCE, HETEROGENEITY, NOISE, STATIC, WITHIN_MEMORY
from dissensus.theory.bounds.memory import Order, geometric


@dataclass(frozen=True)
class NoisyConvexProblem:
    """What is known of a run of decentralized SGD from an equal start."""

    size: int
    contraction: float
    r"""$\lambda \ge \lVert W_t-J\rVert_2$ in every round."""
    smoothness: float
    """L, of every worker's function."""
    lr: float
    steps: int
    """K: the average runs over the iterates 0 to K-1."""
    distance: float
    """From the start to the nearest minimiser of F."""
    noise: float
    r"""$\sigma^2$: the mean square of each worker's noise given the past, independent across workers."""
    heterogeneity: float = 0.0
    r"""$\zeta_\star^2$: the mean square of the workers' gradients at the minimiser."""
    order: Order = "awc"


@bound
class NoisyConvexDescent(Bound[NoisyConvexProblem]):
    """The mean iterate's average expected excess."""

    name: ClassVar[str] = "convex-descent-noise"
    title: ClassVar[str] = "average expected excess of the mean iterate of decentralized SGD, convex functions"
    statement: ClassVar[str] = (
        r"\frac1K\sum_{t<K}\mathbb E F(\bar x_t)-F^\star \le \frac{\lVert x_0-x^\star\rVert^2}{2\alpha K}"
        r" + \frac{\alpha\sigma^2}{2n} + \frac{L\alpha^2 o^2}{2(1-(\alpha L\Gamma)^2)}\cdot\frac1K\sum_{t<K}"
        r"\Bigl(\zeta_\star^2\Bigl(\frac{1-\lambda^t}{1-\lambda}\Bigr)^2"
        r" + \sigma^2\Bigl(1-\frac1n\Bigr)\frac{1-\lambda^{2t}}{1-\lambda^2}\Bigr)"
    )
    reference: ClassVar[str] = "derived for this project"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = (
        "noise of the mean: quadratics, complete graph, atc, lr = 1/L, start at the minimiser, K large"
    )
    problem: ClassVar[type] = NoisyConvexProblem
    assumptions: ClassVar[tuple[Assumption[NoisyConvexProblem], ...]] = (
        *STATIC,
        DISTANCE,
        NOISE,
        HETEROGENEITY,
        CENTRAL,
        WITHIN_MEMORY,
    )

    def formula(self, p: NoisyConvexProblem) -> float:
        """Start, noise of the mean, disagreement."""
        return p.lr * p.noise / (2.0 * p.size) + convex_value(
            geometric(p.contraction, p.steps, p.order, p.size),
            smoothness=p.smoothness,
            lr=p.lr,
            steps=p.steps,
            distance=p.distance,
            heterogeneity=p.heterogeneity,
            kicks=p.noise,
        )
