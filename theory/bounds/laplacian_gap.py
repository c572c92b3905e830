r"""What the shape of a graph says about the second eigenvalue of its Laplacian $L = D - A$.

The gap of every $W = I - aL$ is $a\lambda_2(L)$. All proofs put a vector, or the eigenvector, into
$\lambda_2(L) = \min_{x\perp\mathbf 1} \sum_{ij \in E}(x_i-x_j)^2 / \lVert x\rVert^2$. Proofs: docs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sin
from typing import ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Kind, Provenance, bound
from dissensus.theory.bounds.conditions import WORKERS


@dataclass(frozen=True)
class Span:
    """A connected graph and the longest of its shortest paths."""

    size: int
    diameter: int


@dataclass(frozen=True)
class EdgeCut:
    """A graph and how many links must fail to split it."""

    size: int
    edge_connectivity: int


@dataclass(frozen=True)
class VertexCut:
    """A graph and how many workers must fail to split it."""

    size: int
    vertex_connectivity: int


@dataclass(frozen=True)
class LeastDegree:
    """A graph and the number of neighbours of its loneliest worker."""

    size: int
    least_degree: int


@bound
class LaplacianDiameter(Bound[Span]):
    """Short paths make a large second eigenvalue."""

    name: ClassVar[str] = "laplacian-diameter"
    title: ClassVar[str] = "second eigenvalue of the Laplacian from the diameter"
    kind: ClassVar[Kind] = "lower"
    statement: ClassVar[str] = r"\lambda_2(L) \ge \frac{4}{n \operatorname{diam}}"
    reference: ClassVar[str] = "Mohar 1991, Eigenvalues, diameter, and mean distance in graphs"
    provenance: ClassVar[Provenance] = "classical"
    tight: ClassVar[str] = "two linked workers"
    problem: ClassVar[type] = Span
    assumptions: ClassVar[tuple[Assumption[Span], ...]] = (
        WORKERS,
        Assumption(
            "diameter",
            r"G \text{ connected}, 1 \le \operatorname{diam} \le n-1",
            lambda p: 1 <= p.diameter <= p.size - 1,
        ),
    )

    def formula(self, p: Span) -> float:
        """4 / (n diam)."""
        return 4.0 / (p.size * p.diameter)


@bound
class LaplacianEdgeConnectivity(Bound[EdgeCut]):
    """The second eigenvalue is at least that of a path of as many parallel links as the graph hangs together by."""

    name: ClassVar[str] = "laplacian-edge-connectivity"
    title: ClassVar[str] = "second eigenvalue of the Laplacian from the edge connectivity"
    kind: ClassVar[Kind] = "lower"
    statement: ClassVar[str] = r"\lambda_2(L) \ge 2 e(G) \left(1-\cos\frac{\pi}{n}\right)"
    reference: ClassVar[str] = "Fiedler 1973, Algebraic connectivity of graphs"
    provenance: ClassVar[Provenance] = "classical"
    tight: ClassVar[str] = "a path"
    problem: ClassVar[type] = EdgeCut
    assumptions: ClassVar[tuple[Assumption[EdgeCut], ...]] = (
        WORKERS,
        Assumption("edge connectivity", r"0 \le e(G) \le n-1", lambda p: 0 <= p.edge_connectivity <= p.size - 1),
    )

    def formula(self, p: EdgeCut) -> float:
        """2 e (1 - cos(pi/n)), without cancellation."""
        return 4.0 * p.edge_connectivity * sin(pi / (2 * p.size)) ** 2


@bound
class LaplacianVertexConnectivity(Bound[VertexCut]):
    """A graph that few workers hold together has a small second eigenvalue."""

    name: ClassVar[str] = "laplacian-vertex-connectivity"
    title: ClassVar[str] = "second eigenvalue of the Laplacian from the vertex connectivity"
    statement: ClassVar[str] = r"\lambda_2(L) \le v(G)"
    reference: ClassVar[str] = "Fiedler 1973, Algebraic connectivity of graphs"
    provenance: ClassVar[Provenance] = "classical"
    tight: ClassVar[str] = "a cut set of which every member is linked to all others: stars, complete bipartite graphs"
    problem: ClassVar[type] = VertexCut
    assumptions: ClassVar[tuple[Assumption[VertexCut], ...]] = (
        WORKERS,
        Assumption("not complete", r"0 \le v(G) \le n-2", lambda p: 0 <= p.vertex_connectivity <= p.size - 2),
    )

    def formula(self, p: VertexCut) -> float:
        """The connectivity itself."""
        return float(p.vertex_connectivity)


@bound
class LaplacianLeastDegree(Bound[LeastDegree]):
    """No graph mixes faster than its loneliest worker lets it."""

    name: ClassVar[str] = "laplacian-least-degree"
    title: ClassVar[str] = "second eigenvalue of the Laplacian from the least degree"
    statement: ClassVar[str] = r"\lambda_2(L) \le \frac{n}{n-1} d_{\min}"
    reference: ClassVar[str] = "Fiedler 1973, Algebraic connectivity of graphs"
    provenance: ClassVar[Provenance] = "classical"
    tight: ClassVar[str] = "the complete graph"
    problem: ClassVar[type] = LeastDegree
    assumptions: ClassVar[tuple[Assumption[LeastDegree], ...]] = (
        WORKERS,
        Assumption("least degree", r"0 \le d_{\min} \le n-1", lambda p: 0 <= p.least_degree <= p.size - 1),
    )

    def formula(self, p: LeastDegree) -> float:
        """That of the complete graph, where all have so many neighbours."""
        return p.size * p.least_degree / (p.size - 1)
