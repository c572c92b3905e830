r"""The consensus distance that noise alone keeps up.

Where $x \leftarrow Wx - \alpha\xi$ (AWC) or $x \leftarrow W(x-\alpha\xi)$ (ATC), the mode of eigenvalue $\lambda_k$ of
a symmetric W forgets at that rate and takes up the variance $c_k^2\alpha^2\sigma^2$ at every step, with $c_k = 1$ (AWC)
or $c_k = \lambda_k$ (ATC). There is no curvature here. Proofs: docs, bounds about graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Kind, Provenance, bound
from dissensus.theory.bounds.conditions import MIXES, ORDER, WORKERS, nonnegative, whole
from dissensus.theory.bounds.consensus_step import Order


@dataclass(frozen=True)
class NoisySpectrum:
    """Noise through a symmetric W of known eigenvalues."""

    eigenvalues: tuple[float, ...]
    """All n - 1 but the one of agreement."""
    lr: float
    noise: float
    order: Order = "awc"


@dataclass(frozen=True)
class NoisySize:
    """Noise through a symmetric W of which only the sum of its squared weights is known."""

    size: int
    weight_squares: float
    r"""$\lVert W\rVert_F^2$."""
    lr: float
    noise: float


@dataclass(frozen=True)
class NoisyPeriods:
    """Noise through a periodic schedule."""

    size: int
    contraction: float
    r"""The largest $\lVert W_{t+\tau-1}\cdots W_t - J\rVert_2$ over the phases t of the period."""
    period: int
    lr: float
    noise: float


NOISE: tuple[Assumption[Any], ...] = (
    nonnegative("lr", r"\alpha"),
    nonnegative("noise", r"\sigma^2"),
)


@bound
class NoiseConsensus(Bound[NoisySpectrum]):
    """The exact stationary value."""

    name: ClassVar[str] = "noise-consensus"
    title: ClassVar[str] = "stationary consensus distance of noise mixed by a symmetric W"
    kind: ClassVar[Kind] = "equal"
    statement: ClassVar[str] = (
        r"\Xi_\infty = \frac{\alpha^2\sigma^2}{n}\sum_{k\ge 2}\frac{c_k^2}{1-\lambda_k^2},"
        r"\quad c_k=1 \text{ (AWC)}, c_k=\lambda_k \text{ (ATC)}"
    )
    reference: ClassVar[str] = "Xiao, Boyd and Kim 2007, Distributed average consensus with least-mean-square deviation"
    provenance: ClassVar[Provenance] = "classical"
    problem: ClassVar[type] = NoisySpectrum
    assumptions: ClassVar[tuple[Assumption[NoisySpectrum], ...]] = (
        Assumption(
            "eigenvalues",
            r"W=W^\top, \lvert\lambda_k\rvert<1 \text{ for } k\ge 2",
            lambda p: len(p.eigenvalues) > 0 and all(abs(v) < 1.0 for v in p.eigenvalues),
        ),
        ORDER,
        *NOISE,
    )

    def formula(self, p: NoisySpectrum) -> float:
        """A geometric series per mode."""
        total = sum((v**2 if p.order == "atc" else 1.0) / (1.0 - v**2) for v in p.eigenvalues)
        return p.lr**2 * p.noise * total / (len(p.eigenvalues) + 1)


@bound
class NoiseConsensusLeast(Bound[NoisySize]):
    """Spreading the same squares evenly over the modes disagrees least."""

    name: ClassVar[str] = "noise-consensus-least"
    title: ClassVar[str] = "least stationary consensus distance of noise mixed by a symmetric W (AWC)"
    kind: ClassVar[Kind] = "lower"
    statement: ClassVar[str] = (
        r"\Xi_\infty \ge \alpha^2\sigma^2\left(1-\frac1n\right)\frac{1}{1-m},"
        r"\quad m=\frac{\lVert W\rVert_F^2-1}{n-1}"
    )
    reference: ClassVar[str] = "Jensen's inequality; ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "all modes but agreement equally slow"
    problem: ClassVar[type] = NoisySize
    assumptions: ClassVar[tuple[Assumption[NoisySize], ...]] = (
        WORKERS,
        Assumption(
            "weight squares",
            r"W=W^\top \text{ doubly stochastic}, 1 \le \lVert W\rVert_F^2 < n",
            lambda p: 1.0 - 1e-12 <= p.weight_squares < p.size,
        ),
        *NOISE,
    )

    def formula(self, p: NoisySize) -> float:
        """All modes at the mean square."""
        mean = (p.weight_squares - 1.0) / (p.size - 1)
        return p.lr**2 * p.noise * (1.0 - 1.0 / p.size) / (1.0 - mean)


@bound
class NoiseConsensusPeriods(Bound[NoisyPeriods]):
    """Fresh noise is damped once in a period."""

    name: ClassVar[str] = "noise-consensus-periods"
    title: ClassVar[str] = "expected consensus distance of noise mixed by a periodic schedule from agreement (AWC)"
    statement: ClassVar[str] = (
        r"\Xi_t \le \alpha^2\sigma^2\left(1-\frac1n\right)\frac{\tau}{1-\rho^2},"
        r"\quad \rho=\max_t\lVert W_{t+\tau-1}\cdots W_t-J\rVert_2"
    )
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "a period of one with all modes but agreement equally slow"
    problem: ClassVar[type] = NoisyPeriods
    assumptions: ClassVar[tuple[Assumption[NoisyPeriods], ...]] = (
        WORKERS,
        MIXES,
        whole("period", r"\tau", 1),
        *NOISE,
    )

    def formula(self, p: NoisyPeriods) -> float:
        """The geometric series of periods, each as long as it is."""
        return p.lr**2 * p.noise * (1.0 - 1.0 / p.size) * p.period / (1.0 - p.contraction**2)
