"""Workers at the corners of a d-dimensional cube: all d neighbours at once, or one dimension at a time."""

from __future__ import annotations

import numpy as np

from dissensus.theory.registry import register
from dissensus.theory.topologies.rounds import Laplacian, alone, neighbour_table, on_graph, pairs
from dissensus.theory.topologies.sizes import is_power_of_two, power_of_two_near, wrong_size
from dissensus.theory.topology import ClosedForm, Topology


@register("hypercube")
def hypercube(n: int, *, rule: str = "metropolis") -> Topology:
    r"""Each of n = 2^d workers with the d that differ from it in one bit, weights 1/(d+1).

    $\lambda_k = 1 - 2k/(d+1)$ with multiplicity $\binom{d}{k}$; the spectral gap is $2/(1+\log_2 n)$.
    """
    d = _dimension("hypercube", n)
    i = np.arange(n)
    table = np.stack([i ^ (1 << k) for k in range(d)], axis=1) if d else np.empty((1, 0), dtype=np.int64)
    spectrum = Laplacian(2.0, 2.0 * d, lambda: 2.0 * _ones(i, d), "hypercube: 2k, C(d, k) times")
    return on_graph("hypercube", neighbour_table(table), rule, spectrum)


@register("one-peer-hypercube")
def one_peer_hypercube(n: int) -> Topology:
    r"""One dimension of the hypercube at a time: at step k worker i averages with i XOR 2^k.

    Symmetric matchings with weights 1/2; the $\log_2 n$ rounds commute and any $\log_2 n$ steps in a row average
    exactly, so the contraction of a period is 0.
    """
    d = _dimension("one-peer-hypercube", n)
    if d == 0:
        return alone("one-peer-hypercube")
    i = np.arange(n)
    rounds = tuple(pairs(i ^ (1 << k)) for k in range(d))
    return Topology("one-peer-hypercube", n, rounds, closed_form=ClosedForm(contraction=0.0, source="exact in log2 n"))


def _dimension(name: str, n: int) -> int:
    if not is_power_of_two(n):
        raise wrong_size(name, "a power of two", n, *power_of_two_near(n))
    return n.bit_length() - 1


def _ones(i: np.ndarray, d: int) -> np.ndarray:
    """How many of the d bits of each number are set."""
    return ((i[:, None] >> np.arange(d)) & 1).sum(axis=1)
