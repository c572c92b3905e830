r"""How many workers' noise one worker averages away, from a few facts about W: see `theory/effective.py`.

$\frac{1}{n_W(g)} = \frac{1-g}{n}\sum_{k\ge 1} g^{k-1}\lVert W^k\rVert_F^2$, for a symmetric W the mean over its
eigenvalues of $\phi(\lambda^2)$ with $\phi(u) = (1-g)u/(1-gu)$, which is convex and rises from 0 to 1.
Proofs: docs, bounds about graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Kind, Provenance, bound
from dissensus.theory.bounds.conditions import EXPANDS_NOT, SINGLE


@dataclass(frozen=True)
class Memory:
    """A doubly stochastic W of known contraction, and how much is remembered from step to step."""

    size: int
    contraction: float
    memory: float


@dataclass(frozen=True)
class MemorySquares:
    """A doubly stochastic W of known squared weights, and how much is remembered."""

    size: int
    weight_squares: float
    r"""$\lVert W\rVert_F^2$."""
    memory: float


REMEMBERS = Assumption[Any]("memory", r"0 \le g < 1", lambda p: 0.0 <= p.memory < 1.0)
SQUARES = Assumption[MemorySquares](
    "weight squares",
    r"W \text{ doubly stochastic}, 1 \le \lVert W\rVert_F^2 \le n",
    lambda p: 1.0 - 1e-12 <= p.weight_squares <= p.size * (1.0 + 1e-12),
)


def remembered(memory: float, square: float) -> float:
    """The share of variance that a mode of this squared modulus keeps, against the mode of agreement."""
    return (1.0 - memory) * square / (1.0 - memory * square)


@bound
class EffectiveNeighboursLeast(Bound[Memory]):
    """All modes as slow as the slowest."""

    name: ClassVar[str] = "effective-neighbours-least"
    title: ClassVar[str] = "effective number of neighbours from the contraction, from below"
    kind: ClassVar[Kind] = "lower"
    statement: ClassVar[str] = r"n_W(g) \ge \frac{n}{1+(n-1)\phi(\lambda^2)}, \quad \phi(u)=\frac{(1-g)u}{1-gu}"
    reference: ClassVar[str] = "ours, for the quantity of Vogels, Hendrikx and Jaggi 2022"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "all modes but agreement equally slow: the complete graph, lazy or not"
    problem: ClassVar[type] = Memory
    assumptions: ClassVar[tuple[Assumption[Memory], ...]] = (SINGLE, EXPANDS_NOT, REMEMBERS)

    def formula(self, p: Memory) -> float:
        """The size over the trace with every eigenvalue at the contraction."""
        return p.size / (1.0 + (p.size - 1) * remembered(p.memory, min(1.0, p.contraction) ** 2))


@bound
class EffectiveNeighboursSquares(Bound[MemorySquares]):
    """Memory only adds neighbours."""

    name: ClassVar[str] = "effective-neighbours-squares"
    title: ClassVar[str] = "effective number of neighbours from the squared weights, from below"
    kind: ClassVar[Kind] = "lower"
    statement: ClassVar[str] = r"n_W(g) \ge n_W(0) = \frac{n}{\lVert W\rVert_F^2} \ge 1"
    reference: ClassVar[str] = "ours, for the quantity of Vogels, Hendrikx and Jaggi 2022"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "no memory; a projection at any memory"
    problem: ClassVar[type] = MemorySquares
    assumptions: ClassVar[tuple[Assumption[MemorySquares], ...]] = (SINGLE, SQUARES, REMEMBERS)

    def formula(self, p: MemorySquares) -> float:
        """One over the mean sum of a row's squares."""
        return p.size / p.weight_squares


@bound
class EffectiveNeighboursMost(Bound[MemorySquares]):
    """The same squares spread evenly over the modes average most."""

    name: ClassVar[str] = "effective-neighbours-most"
    title: ClassVar[str] = "effective number of neighbours of a symmetric W from its squared weights, from above"
    statement: ClassVar[str] = (
        r"n_W(g) \le \frac{n}{1+(n-1)\phi(m)} \le n, \quad \phi(u)=\frac{(1-g)u}{1-gu},"
        r" m=\frac{\lVert W\rVert_F^2-1}{n-1}, W=W^\top"
    )
    reference: ClassVar[str] = "Jensen's inequality; ours, for the quantity of Vogels, Hendrikx and Jaggi 2022"
    provenance: ClassVar[Provenance] = "ours"
    tight: ClassVar[str] = "no memory; all modes but agreement equally slow"
    problem: ClassVar[type] = MemorySquares
    assumptions: ClassVar[tuple[Assumption[MemorySquares], ...]] = (SINGLE, SQUARES, REMEMBERS)

    def formula(self, p: MemorySquares) -> float:
        """The size over the trace with every square at the mean."""
        mean = (p.weight_squares - 1.0) / (p.size - 1) if p.size > 1 else 0.0
        return p.size / (1.0 + (p.size - 1) * remembered(p.memory, min(1.0, max(0.0, mean))))
