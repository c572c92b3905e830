"""Random geometric graph: workers at random places, linked when they are near."""

from __future__ import annotations

from math import log, pi, sqrt

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError
from dissensus.theory.registry import register
from dissensus.theory.topologies.draws import connected_draw
from dissensus.theory.topologies.rounds import edges, on_graph
from dissensus.theory.topology import Topology


@register("geometric")
def geometric(n: int, *, radius: float | None = None, seed: int = 0, rule: str = "metropolis") -> Topology:
    r"""Workers thrown into the unit square and linked within a radius; redrawn until connected.

    The default radius is $\sqrt{2\ln n/(\pi n)}$, at which a worker has about $2\ln n$ neighbours, twice what
    connectivity needs. After a bounded number of disconnected draws the error proposes a radius. A pure function of
    (n, radius, seed).
    """
    usual = sqrt(2.0 * log(n) / (pi * n)) if n > 2 else sqrt(2.0)
    radius = usual if radius is None else radius
    if not radius > 0.0:
        raise MixingError(f"geometric: the radius must be positive, got {radius}; radius = {usual:.3g} is usual here")

    def draw(rng: np.random.Generator) -> sp.csr_array:
        from scipy.spatial import KDTree

        near = KDTree(rng.random((n, 2))).query_pairs(radius, output_type="ndarray")
        return edges(n, near[:, 0], near[:, 1])

    better = max(usual, 1.5 * radius)
    links = connected_draw("geometric", n, seed, draw, f"radius = {better:.3g} is connected most of the time")
    return on_graph("geometric", links, rule, radius=radius, seed=seed)
