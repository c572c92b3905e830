r"""Gaps that Metropolis weights have on every connected graph, and what the conductance says of any symmetric W.

The neighbourhoods of workers on a shortest path overlap little: a worker is linked to at most three of its members,
which lie within two links. Counted along the path this gives $\sum_e \max(d_i,d_j) \le 4n$, and with the argument of
Mohar the bounds "ours" below, 35 times above the published constant. Proofs: docs, bounds about graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Kind, Provenance, bound
from dissensus.theory.bounds.conditions import WORKERS


@dataclass(frozen=True)
class Connected:
    """A connected graph of so many workers."""

    size: int


@dataclass(frozen=True)
class Bottleneck:
    """A symmetric W with nonnegative weights, and its narrowest cut."""

    conductance: float
    r"""$\phi = \min_{0<|S|\le n/2} \sum_{i\in S, j\notin S} w_{ij}/|S|$."""
    keep: float = 0.0
    """The least weight that a worker gives to itself."""


@bound
class LazyMetropolisGapOlshevsky(Bound[Connected]):
    """The published constant, for comparison."""

    name: ClassVar[str] = "lazy-metropolis-gap-olshevsky"
    title: ClassVar[str] = "gap of lazy Metropolis weights on any connected graph, as published"
    kind: ClassVar[Kind] = "lower"
    statement: ClassVar[str] = r"1-\lambda_2 \ge \frac{1}{71 n^2}, \quad w_{ij}=\frac{1}{2\max(d_i,d_j)}"
    reference: ClassVar[str] = "Olshevsky 2014, Linear time average consensus on fixed graphs, from memory"
    provenance: ClassVar[Provenance] = "recalled"
    problem: ClassVar[type] = Connected
    assumptions: ClassVar[tuple[Assumption[Connected], ...]] = (WORKERS,)

    def formula(self, p: Connected) -> float:
        """1 / (71 n²)."""
        return 1.0 / (71.0 * p.size**2)


@bound
class LazyMetropolisGap(Bound[Connected]):
    """The same with a smaller constant."""

    name: ClassVar[str] = "lazy-metropolis-gap"
    title: ClassVar[str] = "gap of lazy Metropolis weights on any connected graph"
    kind: ClassVar[Kind] = "lower"
    statement: ClassVar[str] = r"1-\lambda_2 \ge \frac{1}{2 n^2}, \quad w_{ij}=\frac{1}{2\max(d_i,d_j)}"
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    problem: ClassVar[type] = Connected
    assumptions: ClassVar[tuple[Assumption[Connected], ...]] = (WORKERS,)

    def formula(self, p: Connected) -> float:
        """1 / (2n²)."""
        return 0.5 / p.size**2


@bound
class MetropolisGap(Bound[Connected]):
    """Metropolis weights with the neighbourhood counted closed, as `weigh` makes them."""

    name: ClassVar[str] = "metropolis-gap"
    title: ClassVar[str] = "gap of Metropolis weights on any connected graph"
    kind: ClassVar[Kind] = "lower"
    statement: ClassVar[str] = r"1-\lambda_2 \ge \frac{1}{n^2}, \quad w_{ij}=\frac{1}{1+\max(d_i,d_j)}"
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    problem: ClassVar[type] = Connected
    assumptions: ClassVar[tuple[Assumption[Connected], ...]] = (WORKERS,)

    def formula(self, p: Connected) -> float:
        """1 / n²."""
        return 1.0 / p.size**2


CUT = Assumption[Bottleneck](
    "conductance",
    r"W=W^\top \ge 0, 0 \le \text{keep} \le 1, 0 \le \phi \le 1-\text{keep}",
    lambda p: 0.0 <= p.keep <= 1.0 and 0.0 <= p.conductance <= (1.0 - p.keep) * (1.0 + 1e-12),
)


@bound
class CheegerLower(Bound[Bottleneck]):
    """Without a narrow cut there is a gap."""

    name: ClassVar[str] = "cheeger-lower"
    title: ClassVar[str] = "gap of a symmetric W from its conductance, from below"
    kind: ClassVar[Kind] = "lower"
    statement: ClassVar[str] = r"1-\lambda_2 \ge s-\sqrt{s^2-\phi^2} \ge \frac{\phi^2}{2s}, \quad s=1-\min_i w_{ii}"
    reference: ClassVar[str] = "Sinclair and Jerrum 1989; the weight kept put in by us"
    provenance: ClassVar[Provenance] = "classical"
    problem: ClassVar[type] = Bottleneck
    assumptions: ClassVar[tuple[Assumption[Bottleneck], ...]] = (CUT,)

    def formula(self, p: Bottleneck) -> float:
        """The smaller root of a(2s - a) = phi², without cancellation."""
        s = 1.0 - p.keep
        root = s + sqrt(max(0.0, s**2 - p.conductance**2))
        return p.conductance**2 / root if root > 0.0 else 0.0


@bound
class CheegerUpper(Bound[Bottleneck]):
    """A narrow cut leaves no gap."""

    name: ClassVar[str] = "cheeger-upper"
    title: ClassVar[str] = "gap of a symmetric W from its conductance, from above"
    statement: ClassVar[str] = r"1-\lambda_2 \le 2\phi"
    reference: ClassVar[str] = "Sinclair and Jerrum 1989"
    provenance: ClassVar[Provenance] = "classical"
    tight: ClassVar[str] = "two workers; a hypercube"
    problem: ClassVar[type] = Bottleneck
    assumptions: ClassVar[tuple[Assumption[Bottleneck], ...]] = (CUT,)

    def formula(self, p: Bottleneck) -> float:
        """Twice the conductance."""
        return 2.0 * p.conductance
