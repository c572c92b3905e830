r"""Decentralized SGD on a strongly convex F: mean and disagreement as two coupled errors, K steps of both.

With $r_t^2 \ge \mathbb E\lVert\bar x_t-x^\star\rVert^2$ and $e_t^2$ at least the expected mean square disagreement,

$$ r_{t+1}^2 = \Big(q\,r_t + \alpha\frac{L-m}2\,e_t\Big)^2 + \frac{\alpha^2\sigma^2}n, \qquad
   e_{t+1}^2 = \Big(\lambda e_t + o\,\alpha\big(L\sqrt{r_t^2+e_t^2} + \zeta_\star\big)\Big)^2
   + o^2\Big(1-\frac1n\Big)\alpha^2\sigma^2, $$

$q = 1-\alpha\mu$, m the least curvature of any worker's function, $r_0 = \lVert x_0-x^\star\rVert$, $e_0 = 0$, and
$o = 1$ (awc) or $\lambda$ (atc). Both maps are monotone, so the recursion is a bound at every K and for every learning
rate at which gradient descent contracts; it stays bounded where mixing removes more than gradients add. Ours; proof in
docs, bounds about descent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.dsgd import DISTANCE, HETEROGENEITY, NOISE, STATIC
from dissensus.theory.bounds.memory import Order
from dissensus.theory.bounds.strongly_convex import CONTRACTS, LEAST, STRONG, half_spread


@dataclass(frozen=True)
class NoisyStronglyConvexProblem:
    """What is known of a run of decentralized SGD from an equal start; any doubly stochastic schedule."""

    size: int
    contraction: float
    r"""$\lambda \ge \lVert W_t-J\rVert_2$ in every round."""
    smoothness: float
    """L, of every worker's function."""
    convexity: float
    """mu, of F."""
    lr: float
    steps: int
    distance: float
    """From the start to the minimiser of F."""
    noise: float = 0.0
    r"""$\sigma^2$: the mean square of each worker's noise given the past, independent across workers."""
    heterogeneity: float = 0.0
    r"""$\zeta_\star^2$: the mean square of the workers' gradients at the minimiser."""
    order: Order = "awc"
    least_curvature: float = 0.0
    """m, of every worker's function: 0 if all are convex, -L if nothing is known."""


@bound
class NoisyStronglyConvexDescent(Bound[NoisyStronglyConvexProblem]):
    """The mean iterate's expected square distance from the minimiser after K steps."""

    name: ClassVar[str] = "strongly-convex-noise"
    title: ClassVar[str] = "expected square distance of the mean iterate from the minimiser, decentralized SGD"
    statement: ClassVar[str] = (
        r"\begin{array}{rl}\mathbb E\lVert\bar x_K-x^\star\rVert^2 &\le r_K^2,\quad "
        r"r_{t+1}^2 = \bigl((1-\alpha\mu)r_t+\alpha\tfrac{L-m}{2}e_t\bigr)^2+\tfrac{\alpha^2\sigma^2}{n},\\"
        r"e_{t+1}^2 &= \bigl(\lambda e_t+o\alpha(L\sqrt{r_t^2+e_t^2}+\zeta_\star)\bigr)^2"
        r"+o^2(1-\tfrac1n)\alpha^2\sigma^2\end{array}"
    )
    reference: ClassVar[str] = "derived for this project"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "common parabolas of curvature mu on the complete graph, atc"
    problem: ClassVar[type] = NoisyStronglyConvexProblem
    assumptions: ClassVar[tuple[Assumption[NoisyStronglyConvexProblem], ...]] = (
        *STATIC,
        STRONG,
        DISTANCE,
        NOISE,
        HETEROGENEITY,
        LEAST,
        CONTRACTS,
    )

    def formula(self, p: NoisyStronglyConvexProblem) -> float:
        """K steps of the recursion, or fewer if it has come to rest."""
        push, kick = math.sqrt(p.heterogeneity), p.lr**2 * p.noise
        first = p.contraction if p.order == "atc" else 1.0
        q, loop, drag = 1.0 - p.lr * p.convexity, p.lr * p.smoothness, p.lr * half_spread(p)
        r, e = p.distance, 0.0
        for _ in range(int(p.steps)):
            before = r, e
            pull = p.contraction * e + first * (loop * math.hypot(r, e) + p.lr * push)
            r, e = (
                math.hypot(q * r + (drag * e if drag else 0.0), math.sqrt(kick / p.size)),
                math.hypot(pull, first * math.sqrt(kick * (1.0 - 1.0 / p.size))),
            )
            if (r, e) == before or r > 1e150:
                break
        return r**2 if r <= 1e150 else math.inf
