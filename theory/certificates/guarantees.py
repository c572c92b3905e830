r"""What the bounds say of the class of a certificate: the two must agree that a certificate is never above a bound.

A bound speaks of one problem, a certificate of a class; the facts that a bound needs are the worst that the class
allows. Functions are L-smooth and $\mu$-strongly convex, the gradients $g_i$ at $x^\star$ have mean square $\zeta^2$,
and so, with $\sum_i g_i = 0$,

$$ \frac1n\sum_i\big(f_i(x_0)-\inf f_i\big) \le \frac L2 D^2 + \frac{\zeta^2}{2\mu}, \qquad
   \sqrt{\tfrac1n\textstyle\sum_i\lVert\nabla f_i(x_0)-\nabla F(x_0)\rVert^2} \le \zeta + \frac{L-\mu}2 D: $$

the first because $f_i(x_0) \le f_i(x^\star) + \langle g_i, x_0-x^\star\rangle + \frac L2D^2$ and a $\mu$-strongly
convex function falls by $\lVert g_i\rVert^2/2\mu$ at most; the second because $\nabla f_i(x_0) - g_i$ lies in a ball of
radius $\frac{L-\mu}2D$ that is the same for all workers. EXTRA's potential starts at no more than
$n\big(D^2 + 2\alpha^2\zeta^2/(1-\lambda_2)\big)$ and stays above $\frac{1+\lambda_{\min}}2\sum_i\lVert
x_i-x^\star\rVert^2$. Sums over workers are taken per worker. Ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dissensus.theory.bounds.base import Answer, find
from dissensus.theory.bounds.convex_descent import ConvexProblem
from dissensus.theory.bounds.extra import ExtraStep
from dissensus.theory.bounds.gradient_tracking import TrackingRun
from dissensus.theory.bounds.memory import of_schedule
from dissensus.theory.bounds.periodic_descent import PeriodicConvexProblem
from dissensus.theory.bounds.strongly_convex import StronglyConvexProblem
from dissensus.theory.bounds.subgradient import SubgradientProblem
from dissensus.theory.bounds.yuan_ling_yin import Deviation
from dissensus.theory.certificates.setting import Setting
from dissensus.theory.topology import Topology


@dataclass(frozen=True, eq=False)
class Guarantee:
    """A bound and the problem that stands for a class; what it bounds is `scale` times a power of the criterion."""

    bound: str
    problem: Any
    power: float = 1.0
    scale: float = 1.0

    @property
    def answer(self) -> Answer:
        """What the bound says, in its own units."""
        return find(self.bound).value(self.problem)

    def of(self, criterion: float) -> float:
        """A criterion in the units of the bound."""
        return self.scale * criterion**self.power

    @property
    def value(self) -> float:
        """What the bound says, in the units of the criterion; infinite where it does not apply."""
        answer = self.answer
        return (answer.value / self.scale) ** (1.0 / self.power) if answer.applies else math.inf


@dataclass(frozen=True)
class _Facts:
    """Of the class of mixing matrices."""

    contraction: float
    lambda_min: float
    lambda_2: float
    symmetric: bool
    static: bool


def guarantees(of: Setting) -> list[Guarantee]:
    """Every bound that says something of the class, those whose assumptions fail left out."""
    return [g for g in _candidates(of) if g.answer.applies]


def _candidates(of: Setting) -> Iterator[Guarantee]:
    facts = _facts(of)
    if of.method == "dsgd" and of.lipschitz is not None:
        yield from _subgradients(of, facts)
    elif of.lipschitz is not None:
        return
    elif of.method == "dsgd" and of.order in ("awc", "atc") and of.criterion == "objective":
        yield from _descent(of, facts)
    elif of.method == "dsgd" and of.order == "awc" and facts.symmetric and facts.static:
        yield from _around_a_fixed_point(of, facts)
    elif of.method == "gradient-tracking" and of.criterion in ("distance", "mean", "consensus") and facts.static:
        spread = (math.sqrt(of.heterogeneity) + 0.5 * (of.smoothness - of.convexity) * of.distance) ** 2
        least = facts.lambda_min if facts.symmetric else -1.0
        yield Guarantee(
            "gradient-tracking-error",
            TrackingRun(
                facts.contraction, of.smoothness, of.convexity, of.lr, least, of.steps, of.distance, spread
            ),
            power=0.5,
        )  # fmt: skip
    elif of.method == "extra" and of.criterion in ("distance", "mean", "consensus") and facts.lambda_2 < 1.0:
        potential = of.distance**2 + 2.0 * of.lr**2 * of.heterogeneity / (1.0 - facts.lambda_2)
        problem = ExtraStep(of.smoothness, of.lr, facts.lambda_min, potential, moved=0.0)
        yield Guarantee("extra-step", problem, scale=0.5 * (1.0 + facts.lambda_min))


def _subgradients(of: Setting, facts: _Facts) -> Iterator[Guarantee]:
    if of.criterion == "average" and of.order in ("awc", "atc"):
        order: Any = of.order
        problem = SubgradientProblem(facts.contraction, of.lipschitz or 0.0, of.lr, of.steps, of.distance, order)
        yield Guarantee("subgradient-descent", problem)
        yield Guarantee("subgradient-recalled", problem)


def _descent(of: Setting, facts: _Facts) -> Iterator[Guarantee]:
    order: Any = of.order
    yield Guarantee(
        "convex-descent",
        ConvexProblem(
            facts.contraction, of.smoothness, of.lr, of.steps, of.distance, of.heterogeneity, order, of.size or 2
        ),
    )
    if isinstance(of.mixing, Topology):
        rounds = [of.mixing[t].dense() for t in range(of.steps)]
        memory = of_schedule(rounds, of.steps, of.order)
        yield Guarantee(
            "periodic-convex-descent",
            PeriodicConvexProblem(
                of.mixing.size, of.smoothness, of.lr, of.steps, of.distance, memory.gain, memory.response,
                memory.diffusion, heterogeneity=of.heterogeneity,
            ),
        )  # fmt: skip


def _around_a_fixed_point(of: Setting, facts: _Facts) -> Iterator[Guarantee]:
    if of.convexity == 0.0 and of.heterogeneity > 0.0:
        return  # a linear function falls without end
    shortfall = 0.5 * of.smoothness * of.distance**2
    shortfall += of.heterogeneity / (2.0 * of.convexity) if of.heterogeneity else 0.0
    if of.criterion == "consensus":
        problem = Deviation(facts.lambda_min, of.smoothness, of.lr, shortfall, facts.contraction, float(of.steps))
        yield Guarantee("yuan-ling-yin-deviation", problem, power=0.5)
    if of.criterion == "mean":
        yield Guarantee(
            "strongly-convex-neighbourhood",
            StronglyConvexProblem(
                facts.contraction, facts.lambda_min, of.smoothness, of.convexity, of.lr, of.steps, of.distance,
                shortfall, of.convexity,
            ),
            power=0.5,
        )  # fmt: skip


def _facts(of: Setting) -> _Facts:
    if isinstance(of.mixing, tuple):
        low, high = of.mixing
        return _Facts(max(abs(low), abs(high)), low, high, symmetric=True, static=not of.time_varying)
    rounds = [of.mixing[t].dense() for t in range(of.steps if not of.mixing.is_static else 1)]
    contraction = max(float(np.linalg.norm(w - 1.0 / len(w), 2)) for w in rounds)
    symmetric = all(np.array_equal(w, w.T) for w in rounds)
    modes = np.linalg.eigvalsh(rounds[0])[:-1] if symmetric and len(rounds[0]) > 1 else np.array([-1.0, 1.0])
    return _Facts(min(contraction, 1.0), float(modes[0]), float(modes[-1]), symmetric, of.mixing.is_static)
