r"""The alternating exponential ring: exact averaging over machines at half the network traffic.

N = 2^r nodes of L workers. In round k the nodes are paired at distance 2^k, and the pairs are counted in the order of
their first node, without resetting the count. A round takes two steps: in the first the even-numbered pairs average
inside each node (weights 1/L) and the odd-numbered ones over both nodes (1/2L); in the second the roles are swapped.
So at any step only half of the pairs of nodes use the network between machines.

Reference: the schedule of arXiv:2410.11998 (the alternating exponential ring of its figure 12).
"""

from __future__ import annotations

import numpy as np

from dissensus.theory.errors import MixingError
from dissensus.theory.registry import register
from dissensus.theory.topologies.rounds import alone, groups
from dissensus.theory.topologies.sizes import is_power_of_two, power_of_two_near, wrong_size
from dissensus.theory.topology import ClosedForm, Topology


@register("aer")
def aer(n: int, *, workers_per_node: int = 1) -> Topology:
    r"""Alternating exponential ring: nodes paired at distance 2^k, half of the pairs on the network at a time.

    Period $2\log_2 N$ for $N = n/L$ nodes of L = workers_per_node, which must be a power of two. The product over a
    period is J exactly when it starts at an even step; for N >= 4 a window that starts at an odd step is not exact.
    A single node averages at every step.
    """
    per_node = workers_per_node
    if per_node < 1:
        raise MixingError(f"aer: workers_per_node must be at least 1, got {per_node}")
    if n == 1:
        return alone("aer", workers_per_node=per_node)
    nodes, rest = divmod(n, per_node)
    if rest or not is_power_of_two(nodes):
        below, above = (nodes, max(1, 2 * nodes)) if is_power_of_two(nodes) else power_of_two_near(nodes)
        needs = "a power of two" if per_node == 1 else f"{per_node} workers on each of a power of two of nodes"
        raise wrong_size("aer", needs, n, below * per_node, above * per_node)
    node = np.arange(n) // per_node
    if nodes == 1:
        return Topology("aer", n, (groups(node),), closed_form=ClosedForm(1.0, 0.0, None, "W = J"), workers_per_node=n)
    rounds = [groups(labels[node]) for labels in _merged_nodes(nodes)]
    exact = ClosedForm(contraction=0.0, source="exact over 2 log2 N steps from an even step")
    return Topology("aer", n, tuple(rounds), closed_form=exact, workers_per_node=per_node)


def _merged_nodes(nodes: int) -> list[np.ndarray]:
    """For each step, the label of every node: two nodes that average together bear the same."""
    node, count, labels = np.arange(nodes), 0, []
    for k in range(nodes.bit_length() - 1):
        first = node & ~(1 << k)
        numbered = count + np.searchsorted(np.unique(first), first)
        count += nodes // 2
        labels += [np.where(numbered % 2 == step, node, first) for step in (0, 1)]
    return labels
