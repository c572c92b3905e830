"""Graphs of which the shape is counted and the second eigenvalue computed."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.laplacian_gap import EdgeCut, LeastDegree, Span, VertexCut
from dissensus.theory.trials import graphs
from dissensus.theory.trials.base import Draws, Trial, trial


def _second(a: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(graphs.laplacian(a))[1])


@trial("laplacian-diameter")
def diameter(draws: Draws) -> Trial:
    """The longest of the shortest paths, by powers of the adjacency."""
    a = graphs.adjacency(draws, 2, 16)
    reach, steps = np.eye(len(a)), 0
    while (reach == 0).any():
        reach, steps = np.minimum(reach @ (np.eye(len(a)) + a), 1.0), steps + 1
    return Trial(Span(len(a), steps), _second(a))


@trial("laplacian-edge-connectivity")
def edge_connectivity(draws: Draws) -> Trial:
    """The smallest cut, by maximal flows."""
    import networkx as nx

    a = graphs.adjacency(draws)
    return Trial(EdgeCut(len(a), int(nx.edge_connectivity(nx.from_numpy_array(a)))), _second(a))


@trial("laplacian-vertex-connectivity")
def vertex_connectivity(draws: Draws) -> Trial:
    """The smallest set of workers without whom the rest is split, by maximal flows."""
    import networkx as nx

    a = graphs.adjacency(draws, 3, 12)
    if a.sum() == len(a) * (len(a) - 1):  # complete: without one link it is not
        a[0, 1] = a[1, 0] = 0.0
    return Trial(VertexCut(len(a), int(nx.node_connectivity(nx.from_numpy_array(a)))), _second(a))


@trial("laplacian-least-degree")
def least_degree(draws: Draws) -> Trial:
    """Counted."""
    a = graphs.adjacency(draws, 2, 16)
    return Trial(LeastDegree(len(a), int(a.sum(axis=1).min())), _second(a))
