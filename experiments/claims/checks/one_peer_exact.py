r"""One-peer exponential rounds average exactly; whether those of AER do depends on where one begins.

The product of the rounds of a window is the exact average J if and only if every entry is 1/n. Weights are powers of
two wherever n is, so that the product is exact in floating point and the distance to J is 0 or it is not.
"""

from __future__ import annotations

import numpy as np

from dissensus.experiments.claims.base import Part
from dissensus.experiments.claims.evidence import Evidence
from dissensus.experiments.claims.judging import exactly
from dissensus.experiments.claims.registry import claim
from dissensus.theory import Topology, topology

SIZES = {"tiny": 8, "small": 10, "full": 10}
"""Up to two to this power workers."""


@claim(
    "one-peer-exact",
    title="One-peer exponential rounds average exactly in log2 n steps; AER's exactness depends on phase",
    statement=(
        "For n a power of two, any log2 n consecutive rounds of the one-peer exponential schedule bring every worker "
        "to the exact average, and for other n they do not. The alternating exponential ring (AER) averages exactly "
        "over a period that begins at an even slot, and with four nodes or more not over one that begins at an odd one."
    ),
    source=(
        "Ying et al. 2021, Exponential graph is provably efficient (one-peer; that other n are not exact is our own "
        "check); Wang et al. 2024, arXiv:2410.11998 "
        "(AER); the dependence on phase was found by multiplying the published schedule out"
    ),
    measured="the largest entry of |product of the rounds of a window − J|, for every window of a period",
    rule="exact means 0 up to 4 n units of rounding; not exact means above 1/(4n)",
    budget={"tiny": "seconds", "small": "seconds", "full": "seconds"},
)
def one_peer_exact(at: Evidence) -> list[Part]:
    """Multiplies the rounds out."""
    powers = [2**k for k in range(1, at.sized(SIZES) + 1)]
    exact = [_worst(topology("one-peer-exponential", n), _hops(n), range(_hops(n))) for n in powers]
    others = [n for n in range(3, max(powers)) if n & (n - 1)][:: max(1, len(powers) // 2)]
    inexact = [_worst(topology("one-peer-exponential", n), _hops(n), range(1)) * n for n in others]
    aer = [(nodes, each) for nodes in (2, 4, 8, 16) for each in (1, 2, 4) if nodes * each <= max(powers)]
    even, odd = [], []
    for nodes, each in aer:
        graph, slots = topology("aer", nodes * each, workers_per_node=each), 2 * int(np.log2(nodes))
        even.append(_worst(graph, slots, range(0, slots, 2)))
        if nodes >= 4:
            odd.append(min(_worst(graph, slots, [start]) for start in range(1, slots, 2)) * nodes * each)
    tiny = 4 * max(powers) * np.finfo(float).eps
    return [
        exactly(
            f"every window of log2 n one-peer rounds is exact, n = 2 to {max(powers)}",
            max(exact) <= tiny, max(exact), unit="(largest error)", n=len(powers), of="sizes",
        ),
        exactly(
            f"for other n up to {max(powers)} the rounds from step 0 are not exact",
            min(inexact) > 0.25, min(inexact), unit="(smallest error, times n)", n=len(others), of="sizes",
        ),
        exactly(
            "AER from an even slot is exact over a period",
            max(even) <= tiny, max(even), unit="(largest error)", n=len(even), of="clusters",
        ),
        exactly(
            "AER of four nodes and more from an odd slot is not",
            min(odd) > 0.25, min(odd), unit="(smallest error, times n)", n=len(odd), of="clusters",
        ),
    ]  # fmt: skip


def _hops(n: int) -> int:
    return int(np.ceil(np.log2(n)))


def _worst(graph: Topology, length: int, starts: range | list[int]) -> float:
    """The largest error of a window over its possible starts."""
    worst = 0.0
    for start in starts:
        product = np.eye(graph.size)
        for t in range(start, start + length):
            product = graph[t].weights @ product
        worst = max(worst, float(np.abs(product - 1 / graph.size).max()))
    return worst
