r"""Decentralized gradient descent on convex functions, without noise.

$$ \frac1K\sum_{t<K}F(\bar x_t)-F^\star \le \frac{D^2}{2\alpha K} + \frac{L\,\alpha^2 R^2\zeta_\star^2}
   {2\,(1-(\alpha L\Gamma)^2)} $$

with the memory $\Gamma, R$ of `memory.py`; for all K at once $R, \Gamma \le o/(1-\lambda)$. Both constants 1/2 are the
best possible. Ours; proof in docs, bounds about descent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.dsgd import CENTRAL, DISTANCE, HETEROGENEITY, STATIC, WITHIN_MEMORY
from dissensus.theory.bounds.memory import Memory, Order, geometric


@dataclass(frozen=True)
class ConvexProblem:
    """What is known of a run of decentralized gradient descent from an equal start."""

    contraction: float
    r"""$\lambda \ge \lVert W_t-J\rVert_2$ in every round."""
    smoothness: float
    """L, of every worker's function."""
    lr: float
    steps: int
    """K: the average runs over the iterates 0 to K-1."""
    distance: float
    """From the start to the nearest minimiser of F."""
    heterogeneity: float = 0.0
    r"""$\zeta_\star^2$: the mean square of the workers' gradients at the minimiser."""
    order: Order = "awc"
    size: int = 2
    """Workers; the bound does not depend on it."""


def convex_value(
    memory: Memory, *, smoothness: float, lr: float, steps: int, distance: float, heterogeneity: float, kicks: float
) -> float:
    """The common right-hand side: start, and the disagreement of heterogeneity and of noise (`kicks`)."""
    loop = (lr * smoothness * memory.gain) ** 2
    disagreement = lr**2 * (memory.response**2 * heterogeneity + kicks * memory.diffusion)
    return distance**2 / (2.0 * lr * steps) + 0.5 * smoothness * disagreement / (1.0 - loop)


@bound
class ConvexDescent(Bound[ConvexProblem]):
    """The mean iterate's average excess."""

    name: ClassVar[str] = "convex-descent"
    title: ClassVar[str] = "average excess of the mean iterate of decentralized gradient descent, convex functions"
    statement: ClassVar[str] = (
        r"\frac1K\sum_{t<K}F(\bar x_t)-F^\star \le \frac{\lVert x_0-x^\star\rVert^2}{2\alpha K}"
        r" + \frac{L\alpha^2\zeta_\star^2}{2(1-(\alpha L\Gamma)^2)}\cdot"
        r"\frac{o^2}{K}\sum_{t<K}\Bigl(\frac{1-\lambda^t}{1-\lambda}\Bigr)^2"
    )
    reference: ClassVar[str] = "derived for this project"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = (
        "first term: the same Huber function everywhere, lr = 1/L, any K; second: one curved worker among n -> infinity"
        " linear ones on a lazy complete graph, K -> infinity, then lr -> 0"
    )
    problem: ClassVar[type] = ConvexProblem
    assumptions: ClassVar[tuple[Assumption[ConvexProblem], ...]] = (
        *STATIC,
        DISTANCE,
        HETEROGENEITY,
        CENTRAL,
        WITHIN_MEMORY,
    )

    def formula(self, p: ConvexProblem) -> float:
        """Start and heterogeneity."""
        return convex_value(
            geometric(p.contraction, p.steps, p.order, p.size),
            smoothness=p.smoothness,
            lr=p.lr,
            steps=p.steps,
            distance=p.distance,
            heterogeneity=p.heterogeneity,
            kicks=0.0,
        )
