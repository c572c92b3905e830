r"""Non-convex descent of DAdam, with $\epsilon$ inside the root and both bias corrections.

Every worker runs Adam on its own gradients and mixes its point, never its moments. At step t = 0, 1, ...

$$ u_i^t = \frac{\hat m_i^t}{\sqrt{\hat v_i^t+\epsilon}}, \qquad
   \hat m_i^t = \sum_{s\le t} a_{ts}\, g_i^s, \quad \hat v_i^t = \sum_{s\le t} b_{ts}\, (g_i^s)^2, \qquad
   a_{ts} = \frac{(1-\beta_1)\beta_1^{t-s}}{1-\beta_1^{t+1}}, \quad b_{ts} = \frac{(1-\beta_2)\beta_2^{t-s}}
   {1-\beta_2^{t+1}}, $$

and the mean of the workers moves by $\bar x^{t+1} = \bar x^t - \alpha\,\bar u^t$ in all three orders. The bound has the
shape of those for Adam by itself (Défossez et al. 2022, arXiv:2003.02395): initial excess over $\alpha K$, plus terms
of the step size and of the noise; what disagreement adds is part of the drift. It is ours, and not the theorem of the
paper on DAdam (arXiv:2410.11998). Proof: docs, bounds for adaptive and local methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import ClassVar

import numpy as np
from scipy.signal import lfilter

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.conditions import MIXES, nonnegative, positive, whole

FORGOTTEN = 1e-14
"""What Adam's first moment remembers less of than this is bounded, not summed."""
SETTLED = 1e-17
"""A bias correction that is this close to one is one."""

ORDERS = Assumption["Adaptive"](
    "order",
    r"\text{order} \in \{\text{awc}, \text{atc}, \text{cta}\}",
    lambda p: p.order in ("awc", "atc", "cta"),
)
MOMENTS = Assumption["Adaptive"](
    "moments", r"0 \le \beta_1 < 1, 0 \le \beta_2 < 1", lambda p: 0.0 <= p.beta1 < 1.0 and 0.0 <= p.beta2 < 1.0
)


@dataclass(frozen=True)
class Adaptive:
    """What is known of a run of DAdam. All workers start at one point with empty moments."""

    contraction: float
    r"""The largest $\lVert W_t - J\rVert_2$, of the matrices that are used (with a factor gamma, of $W_\gamma$)."""
    smoothness: float
    """L, of every worker's loss."""
    dimension: int
    """d, the number of parameters."""
    largest_gradient: float
    r"""$G \ge \lVert g_i^t\rVert_\infty$, noise included, always."""
    lr: float
    steps: int
    excess: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    noise: float = 0.0
    heterogeneity: float = 0.0
    order: str = "awc"


FACTS: tuple[Assumption[Adaptive], ...] = (
    MIXES,
    ORDERS,
    MOMENTS,
    positive("eps", r"\epsilon"),
    positive("lr", r"\alpha"),
    positive("smoothness", "L"),
    positive("largest_gradient", "G"),
    whole("dimension", "d", 1),
    whole("steps", "K", 1),
    nonnegative("excess", r"F(x_0)-F^\star"),
    nonnegative("noise", r"\sigma^2"),
    nonnegative("heterogeneity", r"\zeta^2"),
)
"""What every bound on DAdam needs: numbers that can be."""


def largest_root(linear: float, constant: float) -> float:
    r"""The largest z with $z^2 \le \text{linear}\, z + \text{constant}$."""
    return (linear + sqrt(linear * linear + 4.0 * constant)) / 2.0


def move_limits(p: Adaptive) -> np.ndarray:
    r"""$U_t \ge \lVert u_i^t\rVert_\infty$ for every step, by Cauchy's inequality with weights.

    $U_t^2 = \sum_{s\le t} a_{ts}^2 / (b_{ts} + a_{ts}\epsilon/G^2)$: finite for all moments, at most $G^2/\epsilon$,
    and for $\beta_1=0$ exactly the largest possible move.
    """
    share = p.eps / p.largest_gradient**2
    lags, settled = _lags(p), _settled(p)
    steps = min(p.steps, settled + lags)
    total = np.zeros(steps)
    first, second = _weights(p.beta1, steps), _weights(p.beta2, steps)
    for j in range(lags):
        a, b = first[j:] * p.beta1**j, second[j:] * p.beta2**j
        total[j:] += a * a / (b + share * a)
    total[lags:] += p.beta1**lags / share
    return np.sqrt(np.pad(total, (0, p.steps - steps), mode="edge"))


def drifts(p: Adaptive, limits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""How far the gradients that a move remembers are from $\nabla F(\bar x^t)$: the mean's own lag, and all of it.

    The first is $L\alpha\sqrt d \sum_s a_{ts} \sum_{s\le r<t} U_r$, the second adds disagreement and heterogeneity.
    """
    reach = p.lr * sqrt(p.dimension) * limits
    travelled = np.concatenate([[0.0], np.cumsum(reach)[:-1]])
    lag = p.smoothness * np.maximum(travelled - _remembered(p, travelled), 0.0)
    spread = np.concatenate([[0.0], _running(reach, p.contraction)[:-1]])
    if p.order != "awc":
        spread = p.contraction * spread
    return lag, lag + p.smoothness * _remembered(p, spread) + sqrt(p.heterogeneity)


def coupling(p: Adaptive) -> float:
    r"""The root mean square over s of $c_s = \sum_{t\ge s} a_{ts}\,(\epsilon^{-1/2}-(\epsilon+\omega_{ts}G^2)^{-1/2})$.

    It says how much the denominators of steps t know of the noise at step s: $\omega_{ts}$ is the share of the second
    moment of step t that is younger than s.
    """
    lags, settled = _lags(p), _settled(p)
    steps = min(p.steps, settled + lags)
    first, norm = _weights(p.beta1, steps), 1.0 - p.beta2 ** np.arange(1.0, steps + 1.0)
    total = np.zeros(steps)
    for j in range(lags):
        younger = (1.0 - p.beta2 ** (j + 1)) / norm[j:] * p.largest_gradient**2
        outer = np.sqrt(p.eps + younger)
        width = younger / (sqrt(p.eps) * outer * (sqrt(p.eps) + outer))
        total[: steps - j] += first[j:] * p.beta1**j * width
    if lags < steps:
        total[: steps - lags + 1] += p.beta1**lags / (1.0 - p.beta1 ** (lags + 1)) / sqrt(p.eps)
    # once corrections are one all steps count alike, but for the last ones: those between are not computed one by one
    between = (p.steps - steps) * total[settled] ** 2 if steps < p.steps else 0.0
    return float(np.sqrt((np.sum(total**2) + between) / p.steps))


def _weights(beta: float, steps: int) -> np.ndarray:
    """(1 - beta) / (1 - beta^(t+1)), the weight of the latest gradient."""
    return (1.0 - beta) / (1.0 - beta ** np.arange(1.0, steps + 1.0))


def _remembered(p: Adaptive, values: np.ndarray) -> np.ndarray:
    """The mean of what was, with the weights of the first moment."""
    return _running(values, p.beta1) * _weights(p.beta1, p.steps)


def _running(values: np.ndarray, factor: float) -> np.ndarray:
    """The sums of the values so far, each shrunk by the factor for every step of its age."""
    return np.asarray(lfilter([1.0], [1.0, -factor], values))


def _lags(p: Adaptive) -> int:
    return 1 if p.beta1 == 0.0 else min(p.steps, ceil(log(FORGOTTEN) / log(p.beta1)) + 1)


def _settled(p: Adaptive) -> int:
    """From this step on both bias corrections are one."""
    slower = max(p.beta1, p.beta2)
    return 1 if slower == 0.0 else min(p.steps, ceil(log(SETTLED) / log(slower)) + 1)


@bound
class DAdamNonconvex(Bound[Adaptive]):
    """The smaller of two roots: one with the drift over the fourth root of epsilon, one that outlives small epsilon."""

    name: ClassVar[str] = "dadam-nonconvex"
    title: ClassVar[str] = "mean squared gradient at the mean of DAdam, epsilon inside the root"
    statement: ClassVar[str] = (
        r"\frac1K\sum_{t<K}\mathbb E\lVert\nabla F(\bar x^t)\rVert^2 \le \min\left\{"
        r"R\,z\big(\tfrac{\Delta}{\epsilon^{1/4}}+\tfrac{\sigma c\sqrt R}{2}, A\big)^2,\;"
        r"\Big[z\big(\tfrac{R\sigma c}{2}, R(A+X+\tfrac{\sigma c\Delta}{2})\big)+\Delta\Big]^2\right\},"
        r"\; z(b,a)=\tfrac{b+\sqrt{b^2+4a}}{2},\; R=\sqrt{G^2+\epsilon},\;"
        r" A=\frac{F(x_0)-F^\star}{\alpha K}+\frac{L\alpha d}{2K}\sum_t U_t^2"
        r"+\frac{\sigma}{K\sqrt\epsilon}\sum_t\Lambda_t,\;"
        r" X=\frac1K\sum_t\Delta_t\big(\sqrt d\,U_t+\sigma_t/\sqrt\epsilon\big),\;"
        r" \Delta_t=\Lambda_t+L\sum_s a_{ts}e_s+\zeta,\;"
        r" \Lambda_t=L\alpha\sqrt d\sum_s a_{ts}\sum_{s\le r<t}U_r,\;"
        r" e_{t+1}=\lambda e_t+\alpha\sqrt d\,U_t \;(\text{atc, cta: } \lambda \text{ times these } e),\;"
        r" \Delta^2=\frac1K\sum_t\Delta_t^2,\; \sigma_t^2=\sigma^2\sum_s a_{ts}^2,\;"
        r" U_t^2=\sum_s \frac{a_{ts}^2}{b_{ts}+a_{ts}\epsilon/G^2},\;"
        r" c^2=\frac1K\sum_s\Big[\sum_{t\ge s}a_{ts}"
        r"\big(\epsilon^{-1/2}-(\epsilon+\omega_{ts}G^2)^{-1/2}\big)\Big]^2,\;"
        r" \omega_{ts}=\sum_{r\ge s}b_{tr}"
    )
    reference: ClassVar[str] = "ours; shape after Défossez et al. 2022, arXiv:2003.02395"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = (
        "constant gradients of modulus G in every coordinate, a small step, a common loss without noise"
    )
    problem: ClassVar[type] = Adaptive
    assumptions: ClassVar[tuple[Assumption[Adaptive], ...]] = FACTS

    def formula(self, p: Adaptive) -> float:
        """Both roots, from sequences computed step by step."""
        largest, sigma, root = sqrt(p.largest_gradient**2 + p.eps), sqrt(p.noise), sqrt(p.eps)
        limits = move_limits(p)
        lag, drift = drifts(p, limits)
        rms = float(np.sqrt(np.mean(drift**2)))
        step = p.smoothness * p.lr * p.dimension / 2.0 * float(np.mean(limits**2))
        known = sigma * coupling(p) / 2.0 if sigma > 0.0 else 0.0
        a = p.excess / (p.lr * p.steps) + step + sigma / root * float(np.mean(lag))
        by_epsilon = largest * largest_root(rms / sqrt(root) + known * sqrt(largest), a) ** 2
        powers = p.beta1 ** np.arange(1.0, p.steps + 1.0)
        remembered = sigma * np.sqrt((1.0 - p.beta1) / (1.0 + p.beta1) * (1.0 + powers) / (1.0 - powers))
        x = float(np.mean(drift * (sqrt(p.dimension) * limits + remembered / root)))
        by_moves = (largest_root(largest * known, largest * (a + x + known * rms)) + rms) ** 2
        return min(by_epsilon, by_moves)


@bound
class DAdamSmallStep(Bound[Adaptive]):
    """Without noise and with a step that epsilon can hold, gradients vanish up to heterogeneity."""

    name: ClassVar[str] = "dadam-small-step"
    title: ClassVar[str] = "mean squared gradient at the mean of DAdam without noise, for small steps"
    statement: ClassVar[str] = (
        r"\frac1K\sum_{t<K}\lVert\nabla F(\bar x^t)\rVert^2 \le"
        r" \Big[\big(\sqrt R+\alpha L c\,\epsilon^{-1/4}\big) z + \zeta\Big]^2,\;"
        r" z=z\Big(\frac{\zeta}{\epsilon^{1/4}(1-q)}, \frac{F(x_0)-F^\star}{\alpha K(1-q)}\Big),\;"
        r" z(b,a)=\tfrac{b+\sqrt{b^2+4a}}{2},\; c=\frac{\beta_1}{1-\beta_1}+\frac{\sqrt C}{1-\lambda}"
        r"\;(\text{atc, cta: } \tfrac{\lambda\sqrt C}{1-\lambda}),\;"
        r" C=\sum_{j\ge0}\frac{(1-\beta_1)\beta_1^j}{1-\beta_1^{j+2}},\;"
        r" q=\frac{\alpha L(c+1/2)}{\sqrt\epsilon},\; R=\sqrt{G^2+\epsilon}"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "gradients small beside the root of epsilon, a small step size"
    problem: ClassVar[type] = Adaptive
    assumptions: ClassVar[tuple[Assumption[Adaptive], ...]] = (
        *FACTS,
        Assumption("noise", r"\sigma^2 = 0", lambda p: p.noise == 0.0),
        Assumption("step size", r"\alpha L (c + 1/2) < \sqrt\epsilon", lambda p: _load(p) < 1.0),
    )

    def formula(self, p: Adaptive) -> float:
        """The root, and what the drift adds to it."""
        left, quarter, zeta = 1.0 - _load(p), p.eps**0.25, sqrt(p.heterogeneity)
        z = largest_root(zeta / (quarter * left), p.excess / (p.lr * p.steps * left))
        largest = sqrt(p.largest_gradient**2 + p.eps)
        return (
            (sqrt(largest) + p.lr * p.smoothness * memory(p.beta1, p.contraction, p.order) / quarter) * z + zeta
        ) ** 2


def memory(beta1: float, contraction: float, order: str) -> float:
    """How many steps a gradient acts: through the first moment, and through the disagreement it leaves.

    The corrected first moment lends the first gradients more than their share: steps to come give gradient 1 the
    weight C, and none of the later ones more.
    """
    ages = np.arange(1.0 if beta1 == 0.0 else ceil(log(FORGOTTEN) / log(beta1)) + 1.0)
    last = beta1 ** len(ages) / (1.0 - beta1)
    share = float(np.sum((1.0 - beta1) * beta1**ages / (1.0 - beta1 ** (ages + 2.0)))) + last
    first = 1.0 if order == "awc" else contraction
    return beta1 / (1.0 - beta1) + sqrt(share) * first / (1.0 - contraction)


def _load(p: Adaptive) -> float:
    if not (p.eps > 0.0 and 0.0 <= p.contraction < 1.0 and 0.0 <= p.beta1 < 1.0):
        return float("inf")
    return p.lr * p.smoothness * (memory(p.beta1, p.contraction, p.order) + 0.5) / sqrt(p.eps)
