r"""Spectral gaps $1 - \lVert W-J\rVert_2$ known exactly, undirected with Metropolis weights $1/(1+\max(d_i,d_j))$.

Each is an equality, so a trial that differs in the tenth digit refutes it. Derivations: docs, bounds about graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sin
from typing import ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Kind, Provenance, bound
from dissensus.theory.bounds.conditions import WORKERS, whole


@dataclass(frozen=True)
class Sized:
    """A family with one graph for every number of workers."""

    size: int


@dataclass(frozen=True)
class Cube:
    """A hypercube of $2^{dimension}$ workers."""

    dimension: int


@dataclass(frozen=True)
class Sides:
    """A grid closed to a torus."""

    rows: int
    columns: int


THREE = whole("size", "n", 3)


class _Exact(Bound[Sized]):
    """What the equalities of one size share."""

    kind: ClassVar[Kind] = "equal"
    reference: ClassVar[str] = "textbook"
    provenance: ClassVar[Provenance] = "classical"
    problem: ClassVar[type] = Sized
    assumptions: ClassVar[tuple[Assumption[Sized], ...]] = (THREE,)


@bound
class GapRing(_Exact):
    """Weights 1/3."""

    name: ClassVar[str] = "gap-ring"
    title: ClassVar[str] = "spectral gap of a ring"
    statement: ClassVar[str] = r"1-\lambda = \frac43 \sin^2\frac{\pi}{n}"

    def formula(self, p: Sized) -> float:
        """The mode that goes round once."""
        return 4.0 / 3.0 * sin(pi / p.size) ** 2


@bound
class GapPath(_Exact):
    """Weights 1/3 on every link."""

    name: ClassVar[str] = "gap-path"
    title: ClassVar[str] = "spectral gap of a path"
    statement: ClassVar[str] = r"1-\lambda = \frac43 \sin^2\frac{\pi}{2n}"

    def formula(self, p: Sized) -> float:
        """Half a wave on the path."""
        return 4.0 / 3.0 * sin(pi / (2 * p.size)) ** 2


@bound
class GapStar(_Exact):
    """Weights 1/n on every link."""

    name: ClassVar[str] = "gap-star"
    title: ClassVar[str] = "spectral gap of a star"
    statement: ClassVar[str] = r"1-\lambda = \frac1n"

    def formula(self, p: Sized) -> float:
        """Two leaves that differ."""
        return 1.0 / p.size


@bound
class GapDirectedRing(_Exact):
    """Weights 1/2 for oneself and for the one before."""

    name: ClassVar[str] = "gap-directed-ring"
    title: ClassVar[str] = "spectral gap of a ring in one direction"
    statement: ClassVar[str] = r"1-\lambda = 1-\cos\frac{\pi}{n}"
    assumptions: ClassVar[tuple[Assumption[Sized], ...]] = (WORKERS,)

    def formula(self, p: Sized) -> float:
        """1 - cos(pi/n), without cancellation."""
        return 2.0 * sin(pi / (2 * p.size)) ** 2


@bound
class GapOnePeerRing(_Exact):
    """Pairs (0,1), (2,3), ... and then (1,2), ..., (n-1,0), who average."""

    name: ClassVar[str] = "gap-one-peer-ring"
    title: ClassVar[str] = "spectral gap of two rounds of a ring that speaks to one side at a time"
    statement: ClassVar[str] = r"1-\lVert W_1W_0-J\rVert_2 = 1-\left\lvert\cos\frac{2\pi}{n}\right\rvert"
    reference: ClassVar[str] = "ours"
    provenance: ClassVar[Provenance] = "ours"
    assumptions: ClassVar[tuple[Assumption[Sized], ...]] = (
        Assumption("size", r"n \ge 4, n \text{ even}", lambda p: p.size >= 4 and p.size % 2 == 0),
    )

    def formula(self, p: Sized) -> float:
        """Four workers agree; beyond, 1 - cos(2 pi/n) without cancellation."""
        return 1.0 if p.size == 4 else 2.0 * sin(pi / p.size) ** 2


@bound
class GapHypercube(Bound[Cube]):
    """Weights 1/(k+1)."""

    name: ClassVar[str] = "gap-hypercube"
    title: ClassVar[str] = "spectral gap of a hypercube"
    kind: ClassVar[Kind] = "equal"
    statement: ClassVar[str] = r"1-\lambda = \frac{2}{k+1}, \quad n=2^k"
    reference: ClassVar[str] = "textbook"
    provenance: ClassVar[Provenance] = "classical"
    problem: ClassVar[type] = Cube
    assumptions: ClassVar[tuple[Assumption[Cube], ...]] = (whole("dimension", "k", 1),)

    def formula(self, p: Cube) -> float:
        """One side of the cube against the other."""
        return 2.0 / (p.dimension + 1)


@bound
class GapTorus(Bound[Sides]):
    """Weights 1/5."""

    name: ClassVar[str] = "gap-torus"
    title: ClassVar[str] = "spectral gap of a torus"
    kind: ClassVar[Kind] = "equal"
    statement: ClassVar[str] = r"1-\lambda = \frac45 \sin^2\frac{\pi}{\max(a,b)}"
    reference: ClassVar[str] = "textbook"
    provenance: ClassVar[Provenance] = "classical"
    problem: ClassVar[type] = Sides
    assumptions: ClassVar[tuple[Assumption[Sides], ...]] = (whole("rows", "a", 3), whole("columns", "b", 3))

    def formula(self, p: Sides) -> float:
        """Once round the longer way."""
        return 0.8 * sin(pi / max(p.rows, p.columns)) ** 2
