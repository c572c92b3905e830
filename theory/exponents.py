r"""What $\gamma = (\alpha/\alpha_{\max})^p$ does to the disagreement as the learning rate falls: vanish, stay or grow.

For small steps a mode has $S \sim a^2s^2/[2(\gamma\delta + ah)]$ with $a=\alpha/(1-\beta)$ and $\delta = 1-\lambda$,
so its logarithmic slope in the learning rate is, with the share of damping that the graph gives,

$$ \frac{d\log S}{d\log\alpha} = 1 + (1-p)\,\theta, \qquad \theta = \frac{\gamma\delta}{\gamma\delta+ah}
   \qquad\text{(white noise)}, $$

and for noise that persists (heterogeneity, or batches that resemble each other longer than a mode remembers), where
$e = a\,b/(\gamma\delta+ah)$, twice $(1-p)\,\theta$. The slope of $\Xi$ or P is the mean over modes, weighted by what
each contributes. Hence, whatever the spectrum, at p = 1 white noise leaves a disagreement proportional to the learning
rate and persistent noise one that does not depend on it; and P stays constant at $p = 1 + 1/\theta$ (p = 2 while mixing
dominates). As $\alpha\to0$ curved directions have $\theta\to1$ for p < 1 and $\theta\to0$ for p > 1, flat ones
$\theta=1$ always:

| | white noise | persistent |
|---|---|---|
| envelope P (curved directions) | max(2 - p, 1) | max(2 - 2p, 0) |
| $\Xi$ along flat directions | 2 - p | 2 - 2p |
| P over the excess risk of the mean | max(1 - p, 0) | |

A quantity vanishes with the learning rate if its exponent is positive, stays if it is 0, grows if it is negative. Ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from dissensus.theory import stationary
from dissensus.theory.errors import MixingError, nearest
from dissensus.theory.modes import Move, disagreement_eigenvalues
from dissensus.theory.persistent import persistent_variance
from dissensus.theory.stationary import mean_excess, spectrum
from dissensus.theory.topology import Topology
from dissensus.theory.variance import factors

Quantity = Literal["envelope", "consensus_distance", "ratio"]
Fate = Literal["vanishes", "stays", "grows"]
_STEP = 5e-3
"""Half the logarithmic distance of the two learning rates between which a slope is taken."""


def limit_exponent(p: float, quantity: Quantity, *, persistent: bool = False, flat: bool = False) -> float | None:
    """The exponent in the learning rate as it goes to zero at constant settings (the table above).

    `flat`: there is noise along directions without curvature. `None` where the table has no entry.
    """
    if quantity not in get_args(Quantity):
        raise MixingError(f"unknown quantity {quantity!r}{nearest(quantity, get_args(Quantity))}")
    if quantity == "ratio":
        return None if persistent else max(1.0 - p, 0.0)
    mixing, curved = (2.0 - 2.0 * p, 0.0) if persistent else (2.0 - p, 1.0)
    if quantity == "consensus_distance" and flat:
        return min(mixing, max(mixing, curved))
    return max(mixing, curved)


def fate(exponent: float, tolerance: float = 0.01) -> Fate:
    """What becomes of a quantity as the learning rate falls, from its exponent."""
    if abs(exponent) <= tolerance:
        return "stays"
    return "vanishes" if exponent > 0 else "grows"


@dataclass(frozen=True, eq=False)
class Point:
    """Stationary disagreement at one learning rate, and how it depends on it there."""

    lr: float
    gamma: float
    consensus_distance: float
    envelope: float
    ratio: float | None
    slopes: dict[str, float | None]
    """The measured d log / d log lr of the three quantities, by evaluating the stationary theory on both sides."""
    theta: float | None
    """The share of the graph in the damping, weighted by what a mode contributes to the envelope."""
    expected: float | None
    """The slope of the envelope that the small-step law gives for this share."""

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, for JSON."""
        return {
            "lr": self.lr, "gamma": self.gamma, "consensus_distance": self.consensus_distance,
            "envelope": self.envelope, "ratio": self.ratio, "slopes": dict(self.slopes),
            "graph_share": self.theta, "expected_slope": self.expected,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Exponents:
    """One exponent p of the schedule of gamma, over a range of learning rates."""

    p: float
    memory: float
    """The autocorrelation of the noise: 0 white, 1 a constant difference between the workers' data."""
    limits: dict[str, float | None]
    """Exponents of the three quantities as the learning rate goes to zero; `None` in between white and constant."""
    points: tuple[Point, ...] = field(repr=False)
    """From the largest learning rate to the smallest."""

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, for JSON."""
        fates = {name: None if value is None else fate(value) for name, value in self.limits.items()}
        points = [point.to_dict() for point in self.points]
        return {"p": self.p, "memory": self.memory, "limits": self.limits, "fates": fates, "points": points}


def exponents(
    topology: Topology | Any,
    curvatures: Any,
    noise: Any = 1.0,
    *,
    p: float,
    lr_max: float,
    lrs: Any = None,
    momentum: float = 0.0,
    order: str = "awc",
    nesterov: bool = False,
    memory: float = 0.0,
) -> Exponents:
    """The exponent map for one p: stationary disagreement at `lrs`, with gamma = (lr / lr_max)^p.

    `topology`, `curvatures`, `noise` as in `stationary.predict`; `lrs` defaults to lr_max down to lr_max / 1000.
    `memory` > 0 gives the noise an autocorrelation (1: a constant force), for static symmetric topologies.
    """
    move = Move.of(order, momentum, nesterov=nesterov)
    h, s2 = spectrum(curvatures, noise)
    for name, value in (("p", p), ("lr_max", lr_max)):
        if not (np.isfinite(value) and value >= 0.0):
            raise MixingError(f"{name} must be finite and not negative, got {value}")
    rates = np.geomspace(lr_max, 1e-3 * lr_max, 31) if lrs is None else np.atleast_1d(np.asarray(lrs, dtype=np.float64))
    if rates.ndim != 1 or not len(rates) or not (np.isfinite(rates).all() and (rates > 0).all()):
        raise MixingError("lrs must be a list of positive learning rates")
    if rates.max() > lr_max * (1 + 1e-12):
        raise MixingError(f"lr = {rates.max():g} is larger than lr_max = {lr_max:g}: gamma would exceed 1")
    if memory > 0.0 and isinstance(topology, Topology) and not (topology.is_static and topology.is_symmetric):
        raise MixingError(f"noise with a memory is solved for one symmetric matrix, not for {topology!r}")
    lookup = _Setting(topology, h, s2, p, lr_max, move, memory)
    points = tuple(lookup.point(float(rate)) for rate in sorted(rates, reverse=True))
    known = memory in (0.0, 1.0)
    flat = bool(((h == 0) & (s2 > 0)).any())
    limits = {
        q: limit_exponent(p, q, persistent=memory == 1.0, flat=flat) if known else None for q in get_args(Quantity)
    }
    return Exponents(float(p), float(memory), limits, points)


@dataclass(frozen=True, eq=False)
class _Setting:
    """Everything but the learning rate."""

    topology: Topology | Any
    h: np.ndarray
    s2: np.ndarray
    p: float
    lr_max: float
    move: Move
    memory: float

    def gamma(self, lr: float) -> float:
        return (lr / self.lr_max) ** self.p

    def values(self, lr: float) -> tuple[float, float, float | None, float | None]:
        """Consensus distance, envelope, ratio, and the share of the graph in the damping."""
        move, gamma = self.move, self.gamma(lr)
        settings = {"lr": lr, "momentum": move.momentum, "gamma": gamma, "order": move.order, "nesterov": move.nesterov}
        found = stationary.predict(self.topology, self.h, self.s2, **settings)
        if isinstance(self.topology, Topology) and not (self.topology.is_static and self.topology.is_symmetric):
            return found.consensus_distance, found.envelope, found.ratio, None
        lam, n = disagreement_eigenvalues(self.topology)
        table = found.modes.variances
        if self.memory > 0.0:
            table = persistent_variance(
                lam[:, None], self.h, lr, move.momentum, gamma, move.order, move.nesterov, self.s2, memory=self.memory
            )
        parts = 0.5 * table * self.h / n
        f = factors(lam[:, None], self.h, lr, gamma, move)
        graph = (1.0 - move.momentum) * gamma * (1.0 - lam[:, None]) / f.slow
        total = float(parts.sum())
        share = float((parts * graph).sum()) / total if total > 0.0 else None
        excess = self.excess(n, lr)
        return float(table.sum()) / n, total, total / excess if excess else None, share

    def excess(self, n: int, lr: float) -> float | None:
        """The excess risk of the mean under the same noise; constant forces of mean zero leave the mean alone."""
        if self.memory == 0.0:
            return mean_excess(self.h, self.s2, n, lr, self.move)
        if self.memory == 1.0 or (self.h < 0).any():
            return None
        h, s2 = self.h[self.h > 0], self.s2[self.h > 0]
        settings = (lr, self.move.momentum, 1.0, self.move.order, self.move.nesterov)
        return 0.5 * float(h @ persistent_variance(1.0, h, *settings, s2 / n, memory=self.memory))

    def point(self, lr: float) -> Point:
        """The values at a learning rate and their slopes."""
        xi, envelope, ratio, theta = self.values(lr)
        # at the largest rate gamma is 1 and has no neighbour above: the slope is taken from below, of second order
        inside = lr * np.exp(_STEP) <= self.lr_max
        at = np.exp(_STEP * (np.array([1.0, -1.0]) if inside else np.array([0.0, -1.0, -2.0]))) * lr
        weights = np.array([1.0, -1.0] if inside else [3.0, -4.0, 1.0]) / (2.0 * _STEP)
        near = [self.values(float(rate)) for rate in at]
        slopes = {
            name: _slope([row[column] for row in near], weights)
            for name, column in (("envelope", 1), ("consensus_distance", 0), ("ratio", 2))
        }
        twice = 2.0 if self.memory == 1.0 else 1.0
        expected = None
        if theta is not None and self.memory in (0.0, 1.0):
            expected = twice * (1.0 - self.p) * theta + (0.0 if self.memory else 1.0)
        return Point(lr, self.gamma(lr), xi, envelope, ratio, slopes, theta, expected)


def _slope(values: list[float | None], weights: np.ndarray) -> float | None:
    if any(v is None or v <= 0.0 for v in values):
        return None
    return float(weights @ np.log(np.array(values, dtype=np.float64)))
