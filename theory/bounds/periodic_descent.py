r"""Descent of decentralized SGD on schedules whose single rounds may not mix at all: one-peer graphs, DSGD-AC.

The bounds of `convex_descent_noise.py` and `nonconvex_descent.py` with the memory of the actual products of the rounds
(`memory.of_schedule`) in place of the powers of a contraction. DSGD-AC is the schedule $(1-\gamma_t)I+\gamma_tW_t$.
Ours; proof in docs, bounds about descent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.conditions import nonnegative
from dissensus.theory.bounds.convex_descent import convex_value
from dissensus.theory.bounds.dsgd import BASIC, CENTRAL, DISTANCE, EXCESS, HETEROGENEITY, NOISE
from dissensus.theory.bounds.memory import Memory
from dissensus.theory.bounds.nonconvex_descent import BELOW_TWO, nonconvex_value

GAIN = nonnegative("gain", r"\Gamma")
DIFFUSION = nonnegative("diffusion", "N")
WITHIN_GAIN = Assumption[Any](
    "step size against memory", r"\alpha L\,\Gamma < 1", lambda p: p.lr * p.smoothness * p.gain < 1.0
)


@dataclass(frozen=True)
class PeriodicConvexProblem:
    """What is known of a run of decentralized SGD from an equal start, its schedule through its memory."""

    size: int
    smoothness: float
    """L, of every worker's function."""
    lr: float
    steps: int
    """K: the average runs over the iterates 0 to K-1."""
    distance: float
    """From the start to the nearest minimiser of F."""
    gain: float
    r"""$\Gamma$."""
    response: float
    """R."""
    diffusion: float
    """N."""
    noise: float = 0.0
    r"""$\sigma^2$: the mean square of each worker's noise given the past, independent across workers."""
    heterogeneity: float = 0.0
    r"""$\zeta_\star^2$: the mean square of the workers' gradients at the minimiser."""


@dataclass(frozen=True)
class PeriodicNonconvexProblem:
    """The same where F need not be convex."""

    size: int
    smoothness: float
    """L, of every worker's function."""
    lr: float
    steps: int
    """K: the average runs over the iterates 0 to K-1."""
    excess: float
    r"""$F(x_0)-\inf F$."""
    gain: float
    r"""$\Gamma$."""
    swing: float
    """S."""
    diffusion: float
    """N."""
    noise: float = 0.0
    r"""$\sigma^2$: the mean square of each worker's noise given the past, independent across workers."""
    heterogeneity: float = 0.0
    r"""$\zeta^2$: the largest mean square of the workers' gradients about their mean, along the mean iterate."""


@bound
class PeriodicConvexDescent(Bound[PeriodicConvexProblem]):
    """The mean iterate's average expected excess, whatever the schedule."""

    name: ClassVar[str] = "periodic-convex-descent"
    title: ClassVar[str] = "average expected excess of the mean iterate on a schedule of rounds, convex functions"
    statement: ClassVar[str] = (
        r"\frac1K\sum_{t<K}\mathbb E F(\bar x_t)-F^\star \le \frac{\lVert x_0-x^\star\rVert^2}{2\alpha K}"
        r" + \frac{\alpha\sigma^2}{2n} + \frac{L\alpha^2(R^2\zeta_\star^2+N\sigma^2)}{2(1-(\alpha L\Gamma)^2)}"
    )
    reference: ClassVar[str] = "derived for this project"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "as convex-descent and convex-descent-noise"
    problem: ClassVar[type] = PeriodicConvexProblem
    assumptions: ClassVar[tuple[Assumption[PeriodicConvexProblem], ...]] = (
        *BASIC,
        DISTANCE,
        GAIN,
        nonnegative("response", "R"),
        DIFFUSION,
        NOISE,
        HETEROGENEITY,
        CENTRAL,
        WITHIN_GAIN,
    )

    def formula(self, p: PeriodicConvexProblem) -> float:
        """Start, noise of the mean, disagreement."""
        return p.lr * p.noise / (2.0 * p.size) + convex_value(
            Memory(p.gain, p.response, math.inf, p.diffusion),
            smoothness=p.smoothness,
            lr=p.lr,
            steps=p.steps,
            distance=p.distance,
            heterogeneity=p.heterogeneity,
            kicks=p.noise,
        )


@bound
class PeriodicNonconvexDescent(Bound[PeriodicNonconvexProblem]):
    """The mean square gradient at the mean iterate, whatever the schedule."""

    name: ClassVar[str] = "periodic-nonconvex-descent"
    title: ClassVar[str] = "mean square gradient at the mean iterate on a schedule of rounds, smooth functions"
    statement: ClassVar[str] = (
        r"\begin{array}{rl}\frac1K\sum_{t<K}\mathbb E\lVert\nabla F(\bar x_t)\rVert^2 &\le"
        r"\Bigl(\frac{|1-\alpha L|\,\delta+\sqrt{\delta^2+(2-\alpha L)\Delta}}{2-\alpha L}\Bigr)^2,\\"
        r"\Delta &= \frac{2(F(x_0)-\inf F)}{\alpha K}+\frac{\alpha L\sigma^2}{n},\quad "
        r"\delta = \frac{\alpha L(S\zeta+\sqrt N\sigma)}{1-\alpha L\Gamma}\end{array}"
    )
    reference: ClassVar[str] = "derived for this project"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "as nonconvex-descent"
    problem: ClassVar[type] = PeriodicNonconvexProblem
    assumptions: ClassVar[tuple[Assumption[PeriodicNonconvexProblem], ...]] = (
        *BASIC,
        EXCESS,
        GAIN,
        nonnegative("swing", "S"),
        DIFFUSION,
        NOISE,
        HETEROGENEITY,
        BELOW_TWO,
        WITHIN_GAIN,
    )

    def formula(self, p: PeriodicNonconvexProblem) -> float:
        """Excess, noise and disagreement, joined by the quadratic inequality."""
        return nonconvex_value(
            Memory(p.gain, math.inf, p.swing, p.diffusion),
            size=p.size,
            smoothness=p.smoothness,
            lr=p.lr,
            steps=p.steps,
            excess=p.excess,
            noise=p.noise,
            heterogeneity=p.heterogeneity,
        )
