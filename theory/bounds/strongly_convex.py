r"""The neighbourhood in which decentralized gradient descent on a strongly convex F settles, without noise.

With a symmetric W, awc and equal start, DGD is gradient descent on $\sum_i f_i(x_i) + \frac1{2\alpha}\lVert
X\rVert_{I-W}^2$, so gradients stay below $G_\star = \sqrt{2L\,\overline{e}}$ with $\overline e$ the mean of
$f_i(x_0)-\inf f_i$, and (Yuan, Ling and Yin 2016) workers stay within $\alpha G_\star/(1-\lambda)$ of their mean:

$$ \lVert\bar x_K-x^\star\rVert \le q^K\lVert x_0-x^\star\rVert + \alpha\,\frac{L-m}2\sum_{j<K} q^{K-1-j}\,
   \alpha G_\star\frac{1-\lambda^j}{1-\lambda}, \qquad q = 1-\alpha\mu, $$

where m is the least curvature of any worker's function: disagreement averages to zero, so only the *spread* of the
curvatures lets it push the mean.

The deviation is theirs, the joint statement and its q are ours; proof in docs, bounds about descent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.conditions import MIXES, nonnegative
from dissensus.theory.bounds.dsgd import DISTANCE, LR, SMOOTH, STEPS
from dissensus.theory.bounds.memory import HORIZON

STRONG = Assumption[Any]("convexity", r"0 < \mu \le L", lambda p: 0.0 < p.convexity <= p.smoothness)
CONTRACTS = Assumption[Any]("step size", r"\alpha \le 2/(\mu+L)", lambda p: p.lr * (p.convexity + p.smoothness) <= 2.0)
"""Gradient descent on F contracts at 1 - lr mu."""
LEAST = Assumption[Any](
    "least curvature", r"-L \le m \le \mu", lambda p: -p.smoothness <= p.least_curvature <= p.convexity
)


@dataclass(frozen=True)
class StronglyConvexProblem:
    """What is known of a run of decentralized gradient descent (awc) from an equal start, W static and symmetric."""

    contraction: float
    lambda_min: float
    """The smallest eigenvalue of W."""
    smoothness: float
    """L, of every worker's function."""
    convexity: float
    """mu, of F."""
    lr: float
    steps: int
    distance: float
    """From the start to the minimiser of F."""
    local_excess: float
    r"""The mean over the workers of $f_i(x_0)-\inf f_i$."""
    least_curvature: float = 0.0
    """m, of every worker's function: 0 if all are convex, -L if nothing is known."""


@bound
class StronglyConvexNeighbourhood(Bound[StronglyConvexProblem]):
    """How far the mean iterate is from the minimiser after K steps."""

    name: ClassVar[str] = "strongly-convex-neighbourhood"
    title: ClassVar[str] = "distance of the mean iterate from the minimiser, decentralized gradient descent, F convex"
    statement: ClassVar[str] = (
        r"\lVert\bar x_K-x^\star\rVert \le q^K\lVert x_0-x^\star\rVert + \alpha^2\frac{L-m}{2}\sqrt{2L\,\bar e}"
        r"\sum_{j<K} q^{K-1-j}\frac{1-\lambda^j}{1-\lambda} \le q^K\lVert x_0-x^\star\rVert +"
        r"\frac{\alpha(L-m)\sqrt{2L\,\bar e}}{2\mu(1-\lambda)},\quad q=1-\alpha\mu"
    )
    reference: ClassVar[str] = "after Yuan, Ling and Yin 2016 (deviation recalled); the joint statement ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "common parabolas of curvature mu: the first term"
    problem: ClassVar[type] = StronglyConvexProblem
    assumptions: ClassVar[tuple[Assumption[StronglyConvexProblem], ...]] = (
        SMOOTH,
        STRONG,
        LR,
        STEPS,
        MIXES,
        DISTANCE,
        nonnegative("local_excess", r"\bar e"),
        LEAST,
        CONTRACTS,
        Assumption(
            "step size against W",
            r"W = W^\top,\ \lambda_{\min} \ge -\lambda,\ \alpha \le (1+\lambda_{\min})/L",
            lambda p: p.lambda_min >= -p.contraction - 1e-9 and p.lr * p.smoothness <= 1.0 + p.lambda_min,
        ),
    )

    def formula(self, p: StronglyConvexProblem) -> float:
        """What is left of the start, and all deviations, each forgotten at the rate q."""
        q, steps = max(0.0, 1.0 - p.lr * p.convexity), int(p.steps)
        if steps > HORIZON:
            deviations = 1.0 / (p.lr * p.convexity * (1.0 - p.contraction))
        else:  # summed, because closed forms cancel where q or the contraction is close to one
            reached = np.cumsum(p.contraction ** np.arange(steps - 1.0))
            deviations = float(reached @ q ** np.arange(steps - 2.0, -1.0, -1.0))
        push = math.sqrt(2.0 * p.smoothness * p.local_excess)
        return q**steps * p.distance + p.lr**2 * half_spread(p) * push * deviations


def half_spread(p: Any) -> float:
    """By how much the mean gradient may be off, per root mean square disagreement."""
    return 0.5 * (p.smoothness - p.least_curvature)
