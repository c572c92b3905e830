r"""CHOCO: compressed gossip contracts, at a rate that two coupled lengths give exactly as far as they know it.

In the order "gossip first", $X^+ = X - \alpha G + \gamma(W-I)\hat X$ and $\hat X^+ = \hat X + Q(X^+ - \hat X)$, the
lengths $a = \sqrt{E\lVert X-\bar X\rVert_F^2}$ and $b = \sqrt{E\lVert X-\hat X\rVert_F^2}$ obey

$$ \begin{pmatrix} a\\ b\end{pmatrix}^+ \le M\begin{pmatrix} a\\ b\end{pmatrix}
+ \alpha\Gamma\begin{pmatrix} 1\\ c\end{pmatrix},
\qquad M = \begin{pmatrix} 1-\gamma\delta & \gamma\beta\\ c\gamma\beta & c(1+\gamma\beta)\end{pmatrix}, $$

$\delta = 1-\lVert W-J\rVert_2$, $\beta = \lVert I-W\rVert_2$, $c = \sqrt{1-\omega}$, by the triangle inequality alone.
"Compress first" without gradients is the same recursion with $b = \sqrt{E\lVert X-\hat X^+\rVert_F^2}$. Ours; proofs:
docs, bounds about graphs.

Reference: Koloskova, Stich and Jaggi 2019, arXiv:1902.00340, from memory, for the published rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from dissensus.theory.bounds.base import Assumption, Bound, Kind, Provenance, bound
from dissensus.theory.bounds.conditions import MIXES, nonnegative, share, whole


@dataclass(frozen=True)
class Gossip:
    """Compressed exchange with a static doubly stochastic W."""

    contraction: float
    laplacian_norm: float
    r"""$\beta = \lVert I-W\rVert_2$."""
    omega: float
    r"""$E\lVert Q(v)-v\rVert^2 \le (1-\omega)\lVert v\rVert^2$."""

    @property
    def forgets(self) -> float:
        r"""$c = \sqrt{1-\omega}$."""
        return sqrt(1.0 - self.omega)


@dataclass(frozen=True)
class ChocoRun(Gossip):
    """Steps of it."""

    consensus_step: float = 0.1
    steps: int = 1
    disagreement: float = 1.0
    r"""$\lVert X_0-\bar X_0\rVert_F$."""
    unknown: float = 0.0
    r"""$\lVert X_0-\hat X_0\rVert_F$ ("compress first": $\lVert X_0-\hat X_1\rVert_F$): what others do not know."""
    push: float = 0.0
    r"""$\alpha\Gamma$ with $\lVert G_t\rVert_F \le \Gamma$ always, "gossip first" only."""


@dataclass(frozen=True)
class ChocoRate(Gossip):
    """The published rate at the published consensus step."""

    steps: int = 1
    initial: float = 1.0
    r"""$\lVert X_0-\bar X_0\rVert_F^2 + E\lVert X_0-\hat X_1\rVert_F^2$."""

    @property
    def consensus_step(self) -> float:
        """The step that the published theorem prescribes."""
        delta, beta = 1.0 - self.contraction, self.laplacian_norm
        return (delta**2 * self.omega) / (
            16 * delta + delta**2 + 4 * beta**2 + 2 * delta * beta**2 - 8 * delta * self.omega
        )


def coupling(p: Gossip, step: float) -> np.ndarray:
    """M, the two lengths one step later."""
    c, pull = p.forgets, step * p.laplacian_norm
    return np.array([[1.0 - step * (1.0 - p.contraction), pull], [c * pull, c * (1.0 + pull)]])


GOSSIP: tuple[Assumption[Any], ...] = (
    MIXES,
    Assumption(
        "laplacian norm",
        r"1-\lambda \le \beta \le 1+\lambda",
        lambda p: 1.0 - p.contraction - 1e-12 <= p.laplacian_norm <= 1.0 + p.contraction + 1e-12,
    ),
    share("omega", r"\omega"),
)


@bound
class ChocoConsensus(Bound[ChocoRun]):
    """The two lengths, step by step."""

    name: ClassVar[str] = "choco-consensus"
    title: ClassVar[str] = "root mean square of the disagreement after K steps of compressed gossip"
    statement: ClassVar[str] = (
        r"\sqrt{E\lVert X_K-\bar X_K\rVert_F^2} \le a_K,\quad (a,b)_{t+1}^\top = M(a,b)_t^\top+\alpha\Gamma(1,c)^\top"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "no compression; one step along one mode"
    problem: ClassVar[type] = ChocoRun
    assumptions: ClassVar[tuple[Assumption[ChocoRun], ...]] = (
        *GOSSIP,
        share("consensus_step", r"\gamma"),
        whole("steps", "K", 0),
        nonnegative("disagreement", r"\lVert X_0-\bar X_0\rVert_F"),
        nonnegative("unknown", r"\lVert X_0-\hat X_0\rVert_F"),
        nonnegative("push", r"\alpha\Gamma"),
    )

    def formula(self, p: ChocoRun) -> float:
        """The matrix, K times."""
        m, state = coupling(p, p.consensus_step), np.array([p.disagreement, p.unknown])
        fresh = p.push * np.array([1.0, p.forgets])
        for _ in range(int(p.steps)):
            state = m @ state + fresh
        return float(state[0])


@bound
class ChocoStableStep(Bound[Gossip]):
    """The consensus step below which M, and so the gossip, contracts."""

    name: ClassVar[str] = "choco-stable-step"
    title: ClassVar[str] = "consensus step up to which compressed gossip converges"
    kind: ClassVar[Kind] = "lower"
    statement: ClassVar[str] = (
        r"\gamma_{\mathrm{crit}} \ge \min\left\{1, \frac{\delta(1-c)}{c\beta(\beta+\delta)}\right\}"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    problem: ClassVar[type] = Gossip
    assumptions: ClassVar[tuple[Assumption[Gossip], ...]] = GOSSIP

    def formula(self, p: Gossip) -> float:
        """Where det(I - M) turns, or one."""
        delta, c, beta = 1.0 - p.contraction, p.forgets, p.laplacian_norm
        harm = c * beta * (beta + delta)
        return min(1.0, delta * (1.0 - c) / harm) if harm > 0.0 else 1.0


@bound
class ChocoRatePublished(Bound[ChocoRate]):
    """The published theorem, for comparison."""

    name: ClassVar[str] = "choco-rate-published"
    title: ClassVar[str] = "squared disagreement and ignorance after K steps of compressed gossip at the published step"
    statement: ClassVar[str] = (
        r"E\left[\lVert X_K-\bar X_K\rVert_F^2+\lVert X_K-\hat X_{K+1}\rVert_F^2\right] \le "
        r"\left(1-\frac{\delta^2\omega}{82}\right)^K e_0,\quad "
        r"\gamma=\frac{\delta^2\omega}{16\delta+\delta^2+4\beta^2+2\delta\beta^2-8\delta\omega}"
    )
    reference: ClassVar[str] = "Koloskova, Stich and Jaggi 2019, arXiv:1902.00340, from memory"
    provenance: ClassVar[Provenance] = "recalled"
    problem: ClassVar[type] = ChocoRate
    assumptions: ClassVar[tuple[Assumption[ChocoRate], ...]] = (
        *GOSSIP,
        whole("steps", "K", 0),
        nonnegative("initial", "e_0"),
    )

    def formula(self, p: ChocoRate) -> float:
        """The rate to the number of steps."""
        return (1.0 - (1.0 - p.contraction) ** 2 * p.omega / 82.0) ** int(p.steps) * p.initial
