r"""What a topology promises, in one report: every figure with its definition, what could not be had with its reason.

Definitions (J is averaging, $11^\top/n$; P the period; a window of t steps from phase s is $W_{s+t-1}\cdots W_s$):

- `contraction`: $\|W_{P-1}\cdots W_0-J\|_2$; for a drawn schedule the mean-square one per step (`contraction_kind`).
- `spectral_gap`: one minus the second largest eigenvalue modulus of a static symmetric round, else
  $1-\text{contraction}^{1/P}$.
- `exact_after`: the fewest steps from phase 0 whose window equals J to 1e-12 (0 for one worker); `exact_phases`: all
  phases from which that many steps do.
- `mixing_time`: the fewest steps from phase 0 after which $\|\text{window}-J\|_2$ is at most 1/4, and 1/1000; exact or
  an upper bound, as `mixing_time_kind` says.
- `diameter`: hops between the farthest two workers in the union of all rounds.
- `push_sum_contraction`: for column-stochastic weights that are not doubly so, $\|W_{P-1}\cdots W_0-\phi 1^\top\|_2$
  around their own `limit` $\phi$; `limit` is $\pi$ of $1\pi^\top$ for row-stochastic ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp

from dissensus.theory.effective import effective_neighbours, estimate_neighbours
from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.mixing_time import exact_after, exact_phases, mixing_time
from dissensus.theory.spectrum import DENSE_LIMIT, circulant_row, contraction, spectral_gap
from dissensus.theory.topology import Topology

DRAWS = 64
"""Steps of a drawn schedule over which messages and degrees are counted."""
ALL_PAIRS = 2000
"""Up to this n the diameter is found from all shortest paths."""


@dataclass(frozen=True)
class Report:
    """The figures of one topology; `None` where one does not exist or is too dear, and `skipped` says which and why."""

    name: str
    n: int
    period: int | None
    row_stochastic: bool
    column_stochastic: bool
    doubly_stochastic: bool
    symmetric: bool
    connected: bool | None
    connected_rounds: list[bool] | None
    contraction: float | None
    contraction_kind: str
    contraction_error: float | None
    spectral_gap: float | None
    spectral_gap_error: float | None
    spectral_gap_method: str | None
    second_eigenvalue: float | None
    smallest_eigenvalue: float | None
    memory: float
    effective_neighbors: float | None
    effective_neighbors_error: float | None
    exact_after: int | None
    exact_phases: list[int]
    messages_per_step: float
    workers_per_node: int
    messages_intra_node: float
    messages_inter_node: float
    max_degree: int
    mean_degree: float
    diameter: int | None
    mixing_time: dict[str, int | None]
    mixing_time_kind: str | None
    push_sum_contraction: float | None
    limit: list[float] | None
    skipped: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary; what is not finite becomes null."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


def report(topology: Topology, *, memory: float = 0.9) -> Report:
    """Everything in `Report` about one topology, at any n."""
    if not 0.0 <= memory < 1.0:
        raise MixingError(f"memory must lie in [0, 1), got {memory}: at 1 noise is never forgotten")
    skipped: list[str] = []
    rounds = topology.rounds or tuple(topology[t] for t in range(DRAWS))
    rows, columns = all(w.is_row_stochastic for w in rounds), all(w.is_column_stochastic for w in rounds)
    union = _union(topology, skipped)
    traffic = _traffic(rounds, topology.workers_per_node)
    if topology.period is None:
        skipped.append(f"messages and degrees are means over the first {DRAWS} steps drawn")
    shrink = _tried("contraction", skipped, contraction, topology)
    gap = _tried("spectral_gap", skipped, spectral_gap, topology)
    near, near_error = _neighbours(topology, memory, skipped)
    exact = exact_after(topology)
    times = mixing_time(topology, shrink, exact=exact) if shrink else None
    limit, push_sum = _own_limit(topology, rows, columns, skipped)
    return Report(
        name=topology.name,
        n=topology.size,
        period=topology.period,
        row_stochastic=rows,
        column_stochastic=columns,
        doubly_stochastic=rows and columns,
        symmetric=all(w.is_symmetric for w in rounds),
        connected=None if union is None else _is_connected(union),
        connected_rounds=None if topology.period is None else [_is_connected(w.weights) for w in rounds],
        contraction=shrink.value if shrink else None,
        contraction_kind=shrink.kind if shrink else "unknown",
        contraction_error=shrink.error if shrink else None,
        spectral_gap=gap.value if gap else None,
        spectral_gap_error=gap.error if gap else None,
        spectral_gap_method=gap.method if gap else None,
        second_eigenvalue=gap.second if gap else None,
        smallest_eigenvalue=gap.smallest if gap else None,
        memory=memory,
        effective_neighbors=near,
        effective_neighbors_error=near_error,
        exact_after=exact,
        exact_phases=exact_phases(topology, exact),
        workers_per_node=topology.workers_per_node,
        diameter=_diameter(topology, union, skipped),
        mixing_time={f"{level:g}": steps for level, steps in times.steps.items()} if times else {},
        mixing_time_kind=times.kind if times else None,
        push_sum_contraction=push_sum,
        limit=limit,
        skipped=skipped,
        **traffic,
    )


def bytes_per_step(topology: Topology, parameter_bytes: int) -> dict[str, float]:
    """Bytes sent per step over all workers (`total`, `intra_node`, `inter_node`), one message = the parameters once."""
    if parameter_bytes < 0:
        raise MixingError(f"a message has at least 0 bytes, got parameter_bytes={parameter_bytes}")
    traffic = _traffic(topology.rounds or tuple(topology[t] for t in range(DRAWS)), topology.workers_per_node)
    return {
        "total": traffic["messages_per_step"] * parameter_bytes,
        "intra_node": traffic["messages_intra_node"] * parameter_bytes,
        "inter_node": traffic["messages_inter_node"] * parameter_bytes,
    }


Figure = TypeVar("Figure")


def _tried(figure: str, skipped: list[str], compute: Callable[[Topology], Figure], topology: Topology) -> Figure | None:
    try:
        return compute(topology)
    except MixingError as error:
        skipped.append(f"{figure}: {error}")
        return None


def _union(topology: Topology, skipped: list[str]) -> sp.csr_array | None:
    """All links of a period, by their weights; of a drawn schedule, those of E[W]."""
    if topology.moments is not None:
        return sp.csr_array(topology.moments.mean)
    if topology.period is None:
        skipped.append("connected, diameter: a drawn schedule without moments has no known union of links")
        return None
    return sp.csr_array(sum((abs(w.weights) for w in topology.rounds), sp.csr_array((topology.size, topology.size))))


def _is_connected(w: sp.csr_array) -> bool:
    from scipy.sparse.csgraph import connected_components

    return bool(connected_components(w, directed=True, connection="strong")[0] == 1)


def _traffic(rounds: tuple[MixingMatrix, ...], workers_per_node: int) -> dict[str, Any]:
    """Messages per step and degrees, means over the rounds; a degree counts whom a worker hears, or who hears it."""
    total = inside = largest = 0
    n = rounds[0].size
    for w in rounds:
        receiver, sender = w.weights.tocoo().coords
        other = receiver != sender
        receiver, sender = receiver[other], sender[other]
        total += len(sender)
        inside += int(np.count_nonzero(receiver // workers_per_node == sender // workers_per_node))
        if len(sender):
            largest = max(largest, int(np.bincount(receiver).max()), int(np.bincount(sender).max()))
    count = len(rounds)
    return {
        "messages_per_step": total / count,
        "messages_intra_node": inside / count,
        "messages_inter_node": (total - inside) / count,
        "max_degree": largest,
        "mean_degree": total / count / n,
    }


def _neighbours(topology: Topology, memory: float, skipped: list[str]) -> tuple[float | None, float | None]:
    """The exact n_W(g) with error 0, else its estimate with the standard error and the truncation added up."""
    if not all(w.is_row_stochastic for w in topology.rounds):
        return _tried("effective_neighbors", skipped, lambda t: effective_neighbours(t, memory), topology), None
    try:
        return effective_neighbours(topology, memory), 0.0
    except MixingError:
        found = estimate_neighbours(topology, memory)
        skipped.append(f"effective_neighbors is an estimate from {found.probes} probes over {found.steps} steps")
        return found.value, found.standard_error + found.truncation


def _diameter(topology: Topology, union: sp.csr_array | None, skipped: list[str]) -> int | None:
    from scipy.sparse.csgraph import shortest_path

    n = topology.size
    if union is None:
        return None
    if not _is_connected(union):
        skipped.append("diameter: some workers never hear of each other")
        return None
    alike = topology.rounds and all(circulant_row(w) is not None for w in topology.rounds)
    if n <= ALL_PAIRS or alike:
        # entry (i, j) of W is a message from j to i: distances of the transpose, whose largest is the same
        hops = shortest_path(union, unweighted=True, indices=[0] if alike else None)
        return int(hops.max())
    far = int(shortest_path(union, unweighted=True, indices=[0]).max())
    skipped.append(f"diameter: all pairs are too dear at n={n}; worker 0 is {far} hops from the farthest")
    return None


def _own_limit(
    topology: Topology, rows: bool, columns: bool, skipped: list[str]
) -> tuple[list[float] | None, float | None]:
    """The vector of phi 1ᵀ (column stochastic) or 1 piᵀ (row stochastic), and the contraction of push-sum."""
    n = topology.size
    if topology.period is None or rows == columns:  # doubly stochastic: the limit is J, its contraction `contraction`
        return None, None
    if n > DENSE_LIMIT:
        skipped.append(f"limit, push_sum_contraction: dense figures, computed up to n={DENSE_LIMIT}")
        return None, None
    product = topology.product()
    p = product if columns else product.T
    # Pφ = φ with entries that sum to one: the least-squares solution is exact when the period is connected
    phi = np.linalg.lstsq(np.vstack([p - np.eye(n), np.ones(n)]), np.eye(n + 1)[n], rcond=None)[0]
    push_sum = float(np.linalg.norm(p - phi[:, None], 2)) if columns else None
    return [float(v) for v in phi], push_sum
