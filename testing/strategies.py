"""Hypothesis strategies for graphs, mixing matrices and topologies.

Everything is made from drawn integers and permutations, so that a failing example shrinks to few workers, few links and
weights of small denominators, and replays from its seed. No random module and no global state take part.

    from hypothesis import given
    from dissensus.testing import check_topology, topologies

    @given(topologies(max_size=12))
    def test_mine(topology):
        check_topology(topology)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, Literal

import networkx as nx
import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

from dissensus.theory import MixingError, MixingMatrix, Topology, from_matrices
from dissensus.theory.registry import catalogue as registered
from dissensus.theory.registry import entry, topology

Kind = Literal["named", "graph", "matrix", "schedule"]
KINDS: tuple[Kind, ...] = ("named", "graph", "matrix", "schedule")


@st.composite
def graphs(draw: st.DrawFn, min_size: int = 1, max_size: int = 16) -> nx.Graph:
    """Connected undirected graphs on workers 0..n-1: a drawn tree and some more links. Simplest: one worker, a star."""
    parents = draw(st.lists(_any_worker(max_size), min_size=min_size - 1, max_size=max_size - 1))
    g = nx.empty_graph(len(parents) + 1)
    g.add_edges_from((parent % i, i) for i, parent in enumerate(parents, start=1))
    g.add_edges_from(_links(len(g), draw(_pairs(max_size))))
    return g


@st.composite
def digraphs(draw: st.DrawFn, min_size: int = 1, max_size: int = 16) -> nx.DiGraph:
    """Strongly connected digraphs with the weights of push-sum: an edge (j, i) carries what i makes of what j sends.

    Every worker divides what it has evenly among itself (a loop) and those it sends to, so that the weights that leave
    a worker sum to one: as a matrix, row = receiver, they are column stochastic (`push_sum_matrices`).
    """
    ears = draw(st.lists(_pair(max_size), min_size=min_size - 1, max_size=max_size - 1))
    g = nx.empty_graph(len(ears) + 1, create_using=nx.DiGraph)
    if draw(st.booleans()):  # each worker is inserted between two earlier ones, which may be the same
        for i, (before, after) in enumerate(ears, start=1):
            g.add_edges_from([(before % i, i), (i, after % i)])
    elif len(g) > 1:
        g.add_edges_from((i, (i + 1) % len(g)) for i in range(len(g)))
    g.add_edges_from(_links(len(g), draw(_pairs(max_size))))
    g.add_edges_from((i, i) for i in range(len(g)))
    for j, i in g.edges:
        g.edges[j, i]["weight"] = 1.0 / g.out_degree(j)
    return g


def push_sum_matrices(min_size: int = 1, max_size: int = 16) -> st.SearchStrategy[MixingMatrix]:
    """Column stochastic mixing matrices of strongly connected digraphs."""
    return digraphs(min_size, max_size).map(_column_stochastic)


@st.composite
def mixing_matrices(
    draw: st.DrawFn,
    min_size: int = 1,
    max_size: int = 16,
    symmetric: bool | None = None,
    sparse: bool | None = None,
) -> MixingMatrix:
    """Doubly stochastic mixing matrices, connected or not.

    Metropolis weights of a drawn graph, or convex combinations of drawn permutations (every doubly stochastic matrix
    is one: Birkhoff). `symmetric` True or False asks for symmetric ones or for ones that are certainly not (n >= 3);
    `sparse` True asks for at most three permutations or for a graph, False for weights that are all positive.
    """
    least = max(min_size, 3) if symmetric is False else min_size
    if least > max_size:
        raise ValueError(f"a mixing matrix that is not symmetric needs 3 workers, but max_size is {max_size}")
    n = draw(st.integers(least, max_size))
    if symmetric is not False and draw(st.booleans()):
        w = _metropolis(draw(graphs(n, n)))
    else:
        drawn = draw(st.lists(st.tuples(st.integers(1, 12), _pairs(max_size)), min_size=1, max_size=3 if sparse else 6))
        parts = [(weight, _permutation(n, swaps)) for weight, swaps in drawn]
        if symmetric is False:  # a cycle with more than half of the weight cannot be undone by the others
            parts.append((1 + sum(m for m, _ in parts), [(i + 1) % n for i in range(n)]))
        w = _convex_combination(n, parts)
        w = (w + w.T) / 2 if symmetric else w
    return MixingMatrix.of((w + 1.0 / n) / 2 if sparse is False else w)


@st.composite
def schedules(
    draw: st.DrawFn, min_size: int = 1, max_size: int = 16, min_period: int = 1, max_period: int = 4
) -> list[MixingMatrix]:
    """The rounds of one period, doubly stochastic and connected only together.

    The links of a drawn graph are dealt to the rounds; each round has the Metropolis weights of its own links.
    """
    g = draw(graphs(min_size, max_size))
    period = draw(st.integers(min_period, max_period))
    dealt: list[nx.Graph] = [nx.empty_graph(len(g)) for _ in range(period)]
    turns = draw(st.lists(st.integers(0, max_period - 1), min_size=1, max_size=2 * max_size))
    for k, link in enumerate(g.edges):
        dealt[turns[k % len(turns)] % period].add_edge(*link)
    return [MixingMatrix.of(_metropolis(part)) for part in dealt]


@st.composite
def topologies(
    draw: st.DrawFn,
    min_size: int = 1,
    max_size: int = 16,
    names: Collection[str] | None = None,
    kinds: Sequence[Kind] = KINDS,
) -> Topology:
    """Topologies: every registered name with valid sizes and parameters, and custom ones of three kinds.

    `names` restricts the named ones (and leaves out the custom ones unless `kinds` says otherwise); `kinds` is any of
    "named", "graph" (Metropolis on a drawn graph), "matrix" (a drawn directed doubly stochastic or push-sum matrix) and
    "schedule" (several rounds).
    """
    chosen = ("named",) if names is not None and tuple(kinds) == KINDS else tuple(kinds)
    wanted = sorted(registered() if names is None else {entry(name).name for name in names}, key=_simplest_first)
    kind = draw(st.sampled_from(chosen))
    if kind == "graph":
        return from_matrices(_metropolis(draw(graphs(min_size, max_size))), name="drawn-graph")
    if kind == "schedule":
        return from_matrices(draw(schedules(min_size, max_size)), name="drawn-schedule")
    if kind == "matrix":
        if max_size >= 3 and draw(st.booleans()):
            return from_matrices(draw(mixing_matrices(min_size, max_size, symmetric=False)), name="drawn-matrix")
        return from_matrices(draw(push_sum_matrices(min_size, max_size)), name="drawn-digraph")
    name, wished = draw(st.sampled_from(wanted)), draw(st.integers(min_size, max_size))
    n = _nearest_size(name, wished, min_size, max_size)
    if n is None and len(wanted) == 1:
        raise ValueError(f"topology {name!r} exists for no number of workers between {min_size} and {max_size}")
    if n is None:
        reject()
    return topology(name, n, **draw(_parameters(name, n)))


def gammas(min_value: float = 0.0, max_value: float = 1.0) -> st.SearchStrategy[float]:
    """Factors of adaptive consensus in 64ths between two values of [0, 1]. Simplest: the greatest."""
    low, high = int(np.ceil(64 * min_value)), int(np.floor(64 * max_value))
    return st.integers(0, high - low).map(lambda k: (high - k) / 64)


def seeds() -> st.SearchStrategy[int]:
    """Seeds of drawn topologies, from 0 to 2**32 - 1. Simplest: 0."""
    return st.integers(0, 2**32 - 1)


# Draws depend on the drawn size only through a remainder, so that shrinking the size leaves the rest in place.


def _any_worker(max_size: int) -> st.SearchStrategy[int]:
    return st.integers(0, max_size - 1)


def _pair(max_size: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(_any_worker(max_size), _any_worker(max_size))


def _pairs(max_size: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    return st.lists(_pair(max_size), max_size=2 * max_size)


def _links(n: int, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(a % n, b % n) for a, b in pairs if a % n != b % n]


def _permutation(n: int, swaps: Sequence[tuple[int, int]]) -> list[int]:
    p = list(range(n))
    for a, b in swaps:
        p[a % n], p[b % n] = p[b % n], p[a % n]
    return p


def _convex_combination(n: int, parts: Sequence[tuple[int, Sequence[int]]]) -> np.ndarray:
    w = np.zeros((n, n))
    for weight, permutation in parts:
        w[np.arange(n), permutation] += weight
    return w / sum(weight for weight, _ in parts)


def _metropolis(g: nx.Graph) -> np.ndarray:
    w = np.zeros((len(g), len(g)))
    for i, j in g.edges:
        w[i, j] = w[j, i] = 1.0 / (1 + max(g.degree[i], g.degree[j]))
    np.fill_diagonal(w, 1.0 - w.sum(axis=1))
    return w


def _column_stochastic(g: nx.DiGraph) -> MixingMatrix:
    w = np.zeros((len(g), len(g)))
    for j, i, weight in g.edges.data("weight"):
        w[i, j] = weight
    return MixingMatrix.of(w, promise="column")


def _simplest_first(name: str) -> tuple[bool, str]:
    return name != "complete", name


def _nearest_size(name: str, wished: int, low: int, high: int) -> int | None:
    """The size nearest to the wished one, smaller ones first, for which the topology exists: found by asking it."""
    for distance in range(high - low + 1):
        for n in (wished - distance, wished + distance):
            if low <= n <= high and (name in _SIZED_BY_PARAMETERS or _accepts(name, n)):
                return n
    return None


@cache
def _accepts(name: str, n: int) -> bool:
    try:
        topology(name, n)
    except MixingError:
        return False
    return True


def _parameters(name: str, n: int) -> st.SearchStrategy[dict[str, Any]]:
    """Valid parameters of a named topology; a name that is in no table below has a seed or its own defaults."""
    by_size = _PARAMETERS_BY_SIZE.get(name)
    drawn = {**_PARAMETERS.get(name, {}), **({} if by_size is None else by_size(n))}
    known = entry(name).parameters
    if "seed" in known:
        drawn["seed"] = seeds()
    if "rule" in known:
        drawn["rule"] = st.sampled_from(["metropolis", "lazy", "max-degree", "best-constant"])
    needed = {key: drawn.pop(key) for key in _SIZED_BY_PARAMETERS.get(name, ())}
    return st.fixed_dictionaries(needed, optional=drawn)


def _divisors(n: int) -> st.SearchStrategy[int]:
    return st.sampled_from([d for d in range(1, n + 1) if n % d == 0])


def _workers_of_a_power_of_two_of_nodes(n: int) -> st.SearchStrategy[int]:
    return st.sampled_from([local for local in range(1, n + 1) if n % local == 0 and (n // local).bit_count() == 1])


def _regular_degrees(n: int) -> st.SearchStrategy[int]:
    return st.sampled_from([d for d in range(min(2, n - 1), n) if n * d % 2 == 0])


_SIZED_BY_PARAMETERS = {"aer": ("workers_per_node",)}
"""Parameters that must be drawn because the sizes that work depend on them."""

_PARAMETERS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "erdos-renyi": {"p": st.integers(6, 8).map(lambda eighths: eighths / 8)},
    "geometric": {"radius": st.integers(3, 6).map(lambda quarters: quarters / 4)},
    "base-k": {"k": st.integers(1, 4), "simple": st.booleans()},
    "equitopo": {"kind": st.sampled_from(["static", "dynamic"]), "directed": st.booleans()},
    "hierarchical": {
        "across": st.sampled_from(["ring", "complete", "one-peer-exponential"]),
        "inside_steps": st.integers(1, 2),
    },
    "random-gossip": {
        "graph": st.sampled_from(["complete", "ring", "path"]),
        "mode": st.sampled_from(["pair", "local", "maximal"]),
    },
    "matcha": {"graph": st.sampled_from(["ring", "path"]), "budget": st.sampled_from([0.5, 0.25, 1.0])},
}

_PARAMETERS_BY_SIZE: dict[str, Callable[[int], dict[str, st.SearchStrategy[Any]]]] = {
    "aer": lambda n: {"workers_per_node": _workers_of_a_power_of_two_of_nodes(n)},
    "grid": lambda n: {"rows": _divisors(n)},
    "torus": lambda n: {"rows": _divisors(n)},
    "hierarchical": lambda n: {"workers_per_node": _divisors(n)},
    "ring-lattice": lambda n: {"k": st.integers(1, max(1, (n - 1) // 2)).map(lambda half: 2 * half)},
    "random-regular": lambda n: {"degree": _regular_degrees(n)},
    "random-digraph": lambda n: {"degree": st.integers(min(1, n - 1), n - 1)},
}
