r"""How far apart workers may be before the descent of their mean suffers.

The mean moves along $\bar g = \nabla F(\bar x) + \delta$ with $\lVert\delta\rVert \le L\sqrt{\Xi}$. Putting the worst
$\delta$ into the descent lemma, which for $\alpha L \le 1$ is one opposite to the gradient, gives one step exactly as
bad as it can be, and the distance at which half of what centralized SGD is sure to gain is lost. For small $\alpha$ and
without noise this is $\sqrt\Xi = \lVert\nabla F\rVert/(2L)$: the shape is that of Kong et al. 2021, whose constant was
not to be read; constants and proofs here are ours. Proofs: docs, bounds about graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Kind, Provenance, bound
from dissensus.theory.bounds.conditions import SINGLE, nonnegative, positive, whole


@dataclass(frozen=True)
class MeanStep:
    """Where the mean of the workers stands before a step."""

    size: int
    smoothness: float
    lr: float
    slope: float
    r"""$\lVert\nabla F(\bar x)\rVert$."""
    noise: float = 0.0

    @property
    def centralized(self) -> float:
        """What the descent lemma promises a step without disagreement, at least."""
        gain = self.lr * (1.0 - self.lr * self.smoothness / 2.0) * self.slope**2
        return gain - self.smoothness * self.lr**2 * self.noise / (2 * self.size)


@dataclass(frozen=True)
class DistantStep(MeanStep):
    """The same with workers apart."""

    consensus_distance: float = 0.0
    excess: float = 0.0
    r"""$F(\bar x) - \inf F$ before the step."""


@dataclass(frozen=True)
class ControlledRun:
    """A run whose consensus distance is kept below the critical one."""

    size: int
    smoothness: float
    lr: float
    steps: int
    excess: float
    r"""$F(\bar x_0) - \inf F$."""
    noise: float = 0.0


SHORT: tuple[Assumption[Any], ...] = (
    SINGLE,
    positive("smoothness", "L"),
    positive("lr", r"\alpha"),
    Assumption("step size", r"\alpha L \le 1", lambda p: p.lr * p.smoothness <= 1.0),
    nonnegative("noise", r"\sigma^2"),
)
SLOPE = nonnegative("slope", r"\lVert\nabla F(\bar x)\rVert")


@bound
class DescentAtDistance(Bound[DistantStep]):
    """The descent lemma for a mean whose workers are apart."""

    name: ClassVar[str] = "descent-at-distance"
    title: ClassVar[str] = "expected excess of the mean after one step from workers apart"
    statement: ClassVar[str] = (
        r"E F(\bar x^+) - F^\star \le F(\bar x)-F^\star - \alpha\left(1-\frac{\alpha L}{2}\right)\lVert\nabla F\rVert^2"
        r" + \alpha(1-\alpha L)\lVert\nabla F\rVert L\sqrt{\Xi} + \frac{\alpha^2L^3}{2}\Xi"
        r" + \frac{\alpha^2L\sigma^2}{2n}"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "one dimension: F of curvature L downhill, half of the workers where theirs is -L"
    problem: ClassVar[type] = DistantStep
    assumptions: ClassVar[tuple[Assumption[DistantStep], ...]] = (
        *SHORT,
        SLOPE,
        nonnegative("consensus_distance", r"\Xi"),
        Assumption(
            "excess",
            r"F(\bar x)-F^\star \ge \lVert\nabla F\rVert^2/(2L)",
            lambda p: p.excess * (1.0 + 1e-12) >= p.slope**2 / (2.0 * p.smoothness),
        ),
    )

    def formula(self, p: DistantStep) -> float:
        """What is left of the excess."""
        push = p.smoothness * sqrt(p.consensus_distance)
        lost = p.lr * (1.0 - p.lr * p.smoothness) * p.slope * push + p.smoothness * (p.lr * push) ** 2 / 2.0
        return p.excess - p.centralized + lost


@bound
class CriticalConsensusDistance(Bound[MeanStep]):
    """Below it, half of the sure gain of centralized SGD is sure."""

    name: ClassVar[str] = "critical-consensus-distance"
    title: ClassVar[str] = "consensus distance up to which the mean keeps half of the descent of centralized SGD"
    kind: ClassVar[Kind] = "lower"
    statement: ClassVar[str] = (
        r"\Xi_{\mathrm{crit}} \ge \frac{1}{L^2}\left(\frac{D/\alpha}{b+\sqrt{b^2+LD}}\right)^2,\quad "
        r"b=(1-\alpha L)\lVert\nabla F\rVert,\quad "
        r"D=\alpha\left(1-\frac{\alpha L}{2}\right)\lVert\nabla F\rVert^2-\frac{\alpha^2L\sigma^2}{2n}"
    )
    reference: ClassVar[str] = "ours; the notion: Kong et al. 2021, Consensus control for decentralized deep learning"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "as for descent-at-distance"
    problem: ClassVar[type] = MeanStep
    assumptions: ClassVar[tuple[Assumption[MeanStep], ...]] = (
        *SHORT,
        SLOPE,
        Assumption("descent", r"D > 0: \text{ centralized SGD is sure to descend}", lambda p: p.centralized > 0.0),
    )

    def formula(self, p: MeanStep) -> float:
        """The positive root of the quadratic that says half of D is lost."""
        b = (1.0 - p.lr * p.smoothness) * p.slope
        root = b + sqrt(b**2 + p.smoothness * p.centralized)
        return (p.centralized / p.lr / root / p.smoothness) ** 2


@bound
class ControlledDescent(Bound[ControlledRun]):
    """Workers kept within the critical distance of their time cost a constant, not a rate."""

    name: ClassVar[str] = "controlled-descent"
    title: ClassVar[str] = "mean squared gradient at the mean while the consensus distance is controlled"
    statement: ClassVar[str] = (
        r"\frac1K\sum_{t<K} E\lVert\nabla F(\bar x_t)\rVert^2 \le \frac{4(F(\bar x_0)-F^\star)}{\alpha K}"
        r" + \frac{4\alpha L\sigma^2}{n} \quad\text{if always}\quad "
        r"E\,\Xi_t \le \frac{\alpha\sigma^2}{nL} + \frac{E\lVert\nabla F(\bar x_t)\rVert^2}{2L^2}"
    )
    reference: ClassVar[str] = "ours; the shape: Kong et al. 2021, Consensus control for decentralized deep learning"
    provenance: ClassVar[Provenance] = "ours"
    problem: ClassVar[type] = ControlledRun
    assumptions: ClassVar[tuple[Assumption[ControlledRun], ...]] = (
        *SHORT,
        whole("steps", "K", 1),
        nonnegative("excess", r"F(\bar x_0)-F^\star"),
    )

    def formula(self, p: ControlledRun) -> float:
        """Twice the first and four times the second term of centralized SGD."""
        return 4.0 * p.excess / (p.lr * p.steps) + 4.0 * p.lr * p.smoothness * p.noise / p.size
