r"""Two levels: exact averaging on the fast links inside a machine, any topology across machines on the slow ones.

With N nodes of L workers and the rounds $V_0, V_1, \dots$ of a topology over N, the period is

$$ I_N\otimes J_L,\; V_0\otimes I_L,\; I_N\otimes J_L,\; V_1\otimes I_L,\; \dots $$

Averaging inside commutes with mixing across, so the product over a period is $(\cdots V_1V_0)\otimes J_L$ and its
contraction is that of the topology across (ours).
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.registry import register, topology
from dissensus.theory.topologies.rounds import alone, groups
from dissensus.theory.topologies.sizes import squarest, wrong_size
from dissensus.theory.topology import ClosedForm, Topology

LONGEST_INSIDE = 1000
"""The most fast rounds between two slow ones: a period is stored round by round."""


@register("hierarchical")
def hierarchical(
    n: int, *, workers_per_node: int | None = None, across: str = "ring", inside_steps: int = 1
) -> Topology:
    r"""Two levels: average inside a node, then the i-th workers of all nodes mix over the topology named by `across`.

    Every round is doubly stochastic. `inside_steps` repeats the fast round that many times for each slow one, `across`
    is any periodic doubly stochastic topology by name. By default workers_per_node is the largest divisor of n that is
    at most its square root. One node averages at every step; nodes of one worker leave only the topology across.
    """
    per_node = squarest(n) if workers_per_node is None else workers_per_node
    if per_node < 1:
        raise MixingError(f"hierarchical: workers_per_node must be at least 1, got {per_node}")
    if inside_steps < 1:
        raise MixingError(f"hierarchical: inside_steps must be at least 1, got {inside_steps}")
    if inside_steps > LONGEST_INSIDE:
        raise MixingError(f"hierarchical: inside_steps must be at most {LONGEST_INSIDE}, got {inside_steps}")
    parameters = {"workers_per_node": per_node, "across": across, "inside_steps": inside_steps}
    if n == 1:
        return alone("hierarchical", **parameters)
    nodes, rest = divmod(n, per_node)
    if rest:
        needs = f"a multiple of workers_per_node={per_node}"
        raise wrong_size("hierarchical", needs, n, nodes * per_node, (nodes + 1) * per_node)
    slow = _across(across, nodes)
    inside = groups(np.arange(n) // per_node)
    rounds: list[MixingMatrix] = []
    for w in slow:
        rounds += [inside] * (inside_steps if per_node > 1 else 0)
        if nodes > 1:
            rounds.append(MixingMatrix(sp.csr_array(sp.kron(w.weights, sp.eye_array(per_node)))))
    known = ClosedForm(contraction=slow.closed_form.contraction, source=f"that of {across} over {nodes} nodes")
    return Topology(
        "hierarchical", n, tuple(rounds), parameters=parameters, closed_form=known, workers_per_node=per_node
    )


def _across(name: str, nodes: int) -> Topology:
    try:
        slow = topology(name, nodes)
    except MixingError as error:
        raise MixingError(f"hierarchical, across {nodes} nodes: {error}") from None
    if slow.period is None or slow.promise != "doubly":
        kind = "drawn anew at every step" if slow.period is None else f"only {slow.promise} stochastic"
        raise MixingError(
            f"hierarchical: across must be periodic and doubly stochastic, and {slow.name!r} is {kind}; 'ring' works"
        )
    return slow
