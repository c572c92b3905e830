"""A random directed graph for push-sum: every worker knows only how many it sends to."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.registry import register
from dissensus.theory.topologies.draws import generator
from dissensus.theory.topologies.sizes import wrong_size
from dissensus.theory.topology import Topology


@register("random-digraph")
def random_digraph(n: int, *, degree: int | None = None, seed: int = 0) -> Topology:
    """Each worker splits its mass evenly between itself and `degree` random workers; column stochastic, for push-sum.

    One of the links follows a random cycle through all workers, so that news gets everywhere at every draw; the others
    are drawn uniformly. Columns sum to one (what is sent is not lost), rows in general do not. By default degree = 3,
    less where n is too small. A pure function of (n, degree, seed).
    """
    if degree is None:
        degree = min(3, n - 1)
    if n > 1 and degree < 1:
        raise MixingError(f"random-digraph needs a degree of at least 1, got {degree}")
    if 1 < n <= degree:
        raise wrong_size("random-digraph", f"more than degree={degree} workers", n, None, degree + 1)
    degree = min(degree, n - 1)
    rng = generator("random-digraph", seed, 0)
    sender = np.repeat(np.arange(n), degree + 1)
    w = sp.csr_array((np.full(len(sender), 1.0 / (degree + 1)), (_receivers(n, degree, rng).ravel(), sender)), (n, n))
    return Topology("random-digraph", n, (MixingMatrix(w, "column"),), parameters={"degree": degree, "seed": seed})


def _receivers(n: int, degree: int, rng: np.random.Generator) -> np.ndarray:
    """For every sender: itself, its successor on a random cycle, and degree - 1 further distinct workers."""
    order = rng.permutation(n)
    to = np.empty((n, degree + 1), dtype=np.int64)
    to[:, 0] = np.arange(n)
    if degree:
        to[order, 1] = np.roll(order, -1)
    for d in range(2, degree + 1):
        clash = np.ones(n, dtype=bool)
        while clash.any():
            to[clash, d] = rng.integers(n, size=int(clash.sum()))
            clash = (to[:, :d] == to[:, d, None]).any(axis=1)
    return to
