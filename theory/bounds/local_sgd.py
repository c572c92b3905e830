r"""Descent of local SGD: workers that run by themselves for H steps and are then averaged.

Between two averages the points drift apart along the differences of their gradients only,

$$ x_i^t - \bar x^t = -\alpha \sum_{s=t_0}^{t-1} (g_i^s - \bar g^s), $$

so with $e_j$ a bound on the root mean square of that difference j steps after an average,

$$ e_j = \alpha\Big(\sum_{k<j}(L\, e_k + \zeta) + \sigma\sqrt{(1-\tfrac1n)\, j}\Big), \qquad e_0 = 0 : $$

nothing of the size of the gradients themselves. For convex losses the gradients' deviation from those at the optimum
is instead absorbed by the descent, through the norm of the matrix of ones below the diagonal,
$C_H = 1/(2\sin\frac{\pi}{4H-2})$, which is $2H/\pi$ and not H. Both derivations are ours; for local SGD see Stich 2019
(arXiv:1805.09767) and Koloskova et al. 2020 (arXiv:2003.10422), whose constants are others.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, pi, sin, sqrt
from typing import ClassVar

import numpy as np

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.conditions import SINGLE, nonnegative, positive, whole


@dataclass(frozen=True)
class LocalNonconvex:
    """What is known of a run of local SGD on smooth losses. All workers start at one point."""

    size: int
    period: int
    """H, the number of steps from one average to the next; 1 is large-batch SGD."""
    smoothness: float
    """L, of every worker's loss."""
    lr: float
    steps: int
    excess: float
    noise: float = 0.0
    heterogeneity: float = 0.0


@dataclass(frozen=True)
class LocalConvex:
    """What is known of a run of local SGD on smooth convex losses. All workers start at one point."""

    size: int
    period: int
    smoothness: float
    lr: float
    steps: int
    distance: float
    noise: float = 0.0
    heterogeneity: float = 0.0
    r"""$\zeta_\star^2 = \frac1n\sum_i \lVert\nabla f_i(x^\star)\rVert^2$: at the optimum only."""


FACTS: tuple[Assumption[LocalNonconvex | LocalConvex], ...] = (
    SINGLE,
    whole("period", "H", 1),
    whole("steps", "K", 1),
    positive("smoothness", "L"),
    positive("lr", r"\alpha"),
    nonnegative("noise", r"\sigma^2"),
    nonnegative("heterogeneity", r"\zeta^2"),
)


def spread(p: LocalNonconvex) -> np.ndarray:
    r"""$e_j$ for j = 0 .. H - 1, or as many as there are steps."""
    count = min(int(p.period), int(p.steps))
    sigma, zeta = sqrt(p.noise * (1.0 - 1.0 / p.size)), sqrt(p.heterogeneity)
    e, drifted = [0.0], 0.0
    for j in range(1, count):
        drifted += p.smoothness * e[j - 1] + zeta
        e.append(p.lr * (drifted + sigma * sqrt(j)))
    return np.array(e)


def period_norm(period: int) -> float:
    """C_H, the norm of the H x H matrix with ones below the diagonal; zero for H = 1."""
    return 0.0 if period == 1 else 1.0 / (2.0 * sin(pi / (4 * period - 2)))


@bound
class LocalSgdNonconvex(Bound[LocalNonconvex]):
    """The descent of the mean, with the disagreement by its recursion; no condition ties H to the step size."""

    name: ClassVar[str] = "local-sgd-nonconvex"
    title: ClassVar[str] = "mean squared gradient at the mean of local SGD, smooth losses"
    statement: ClassVar[str] = (
        r"\frac1K\sum_{t<K}\mathbb E\lVert\nabla F(\bar x^t)\rVert^2 \le \frac{2(F(x_0)-F^\star)}{\alpha K}"
        r"+\frac{\alpha L\sigma^2}{n}+\frac{L^2}{K}\sum_{t<K}e_{t\bmod H}^2,\quad"
        r" e_j=\alpha\Big(\sum_{k<j}(L e_k+\zeta)+\sigma\sqrt{(1-\tfrac1n)j}\Big)"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "one step of gradient descent at the step size 1/L on a quadratic"
    problem: ClassVar[type] = LocalNonconvex
    assumptions: ClassVar[tuple[Assumption[LocalNonconvex], ...]] = (
        *FACTS,
        nonnegative("excess", r"F(x_0)-F^\star"),
        Assumption("step size", r"\alpha \le 1/L", lambda p: p.lr * p.smoothness <= 1.0),
    )

    def formula(self, p: LocalNonconvex) -> float:
        """Descent, noise, and the mean of the squared spreads over the phases that K steps go through."""
        e = spread(p)
        whole_periods, rest = divmod(int(p.steps), int(p.period))
        with np.errstate(over="ignore"):  # a spread that doubles for a thousand steps is beyond all numbers
            squares = float(np.sum(e[:rest] ** 2)) / p.steps
            if whole_periods:
                squares += whole_periods / p.steps * float(np.sum(e**2))
        noise = p.lr * p.smoothness * p.noise / p.size
        return 2.0 * p.excess / (p.lr * p.steps) + noise + p.smoothness**2 * squares


@bound
class LocalSgdConvex(Bound[LocalConvex]):
    """The distance of the mean to the optimum, with heterogeneity at the optimum only."""

    name: ClassVar[str] = "local-sgd-convex"
    title: ClassVar[str] = "mean excess loss at the mean of local SGD, smooth convex losses"
    statement: ClassVar[str] = (
        r"\frac1K\sum_{t<K}\mathbb E F(\bar x^t)-F^\star \le \frac{\lVert x_0-x^\star\rVert^2}{2\alpha K}"
        r"+\frac{\alpha\sigma^2}{2n}+\frac{L\alpha^2}{2}\,\frac{Q}{Q-1}"
        r"\Big(\zeta_\star\sqrt{\tfrac{(H-1)(2H-1)}{6}}+\sigma\sqrt{(1-\tfrac1n)\tfrac{H-1}{2}}\Big)^2,\quad"
        r" Q=\frac{1-\alpha L}{(\alpha L C_H)^2},\quad C_H=\frac{1}{2\sin\frac{\pi}{4H-2}}"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "H = 1 without noise on one worker's Huber function: that of gradient descent, in the limit"
    problem: ClassVar[type] = LocalConvex
    assumptions: ClassVar[tuple[Assumption[LocalConvex], ...]] = (
        *FACTS,
        nonnegative("distance", r"\lVert x_0-x^\star\rVert"),
        Assumption(
            "step size",
            r"\alpha L \le 1,\; (\alpha L C_H)^2 < 1-\alpha L \text{ for } H>1",
            lambda p: p.lr * p.smoothness <= 1.0 and _room(p) > 1.0,
        ),
    )

    def formula(self, p: LocalConvex) -> float:
        """What gradient descent has, and the drift within periods."""
        start = p.distance**2 / (2.0 * p.lr * p.steps) + p.lr * p.noise / (2.0 * p.size)
        h, room = min(int(p.period), int(p.steps)), _room(p)
        if h == 1:
            return start
        drift = sqrt(p.heterogeneity * (h - 1) * (2 * h - 1) / 6.0)
        drift += sqrt(p.noise * (1.0 - 1.0 / p.size) * (h - 1) / 2.0)
        return start + p.smoothness * p.lr**2 / 2.0 * room / (room - 1.0) * drift**2


def _room(p: LocalConvex) -> float:
    """Q: what descent there is over what the drift may take of it."""
    if not (p.period >= 1 and p.steps >= 1):
        return 0.0
    norm = p.lr * p.smoothness * period_norm(min(int(p.period), int(p.steps)))
    return (1.0 - p.lr * p.smoothness) / norm**2 if norm > 0.0 else inf
