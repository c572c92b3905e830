r"""The named topologies once more, slowly: dense float64 arrays filled entry by entry, to hold the fast ones against.

Nothing here is shared with the builders: no sparse matrix, no networkx, no common formula. A mistake would have to be
made twice to go unseen. Row = receiver: `rounds[t][i, j]` is the weight that worker i gives to what it hears from j.

The families are those of the literature: Metropolis-Hastings weights $w_{ij} = 1/(1+\max(d_i, d_j))$ on undirected
graphs; static and one-peer exponential graphs (Ying et al. 2021, arXiv:2110.13363); the alternating exponential ring
(Wang et al. 2024, arXiv:2410.11998); the length of base-(k+1) schedules (Takezawa et al. 2023, arXiv:2305.11420).
Families that are drawn at random have no single right answer and are not here: laws judge them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dissensus.theory.errors import MixingError, nearest

Rounds = list[np.ndarray]
Links = set[tuple[int, int]]

_RULES = ("metropolis", "lazy", "max-degree", "best-constant", "uniform")


def dense_rounds(name: str, n: int, *, rule: str = "metropolis", **parameters: Any) -> Rounds:
    """The rounds of one period of a deterministic named topology as dense arrays.

    `rule` is for the undirected graphs: metropolis, lazy, max-degree, best-constant, or uniform (regular ones only).
    """
    wanted = name.replace("_", "-")
    if wanted in _LINKS:
        return [dense_weights(n, _LINKS[wanted](n, **parameters), rule)]
    if wanted not in _ROUNDS:
        raise MixingError(f"no dense rounds are known for topology {name!r}{nearest(wanted, dense_names())}")
    return _ROUNDS[wanted](n, **parameters)


def dense_names() -> list[str]:
    """The names that `dense_rounds` knows."""
    return sorted([*_LINKS, *_ROUNDS])


def dense_metropolis(n: int, links: Links) -> np.ndarray:
    """Metropolis-Hastings weights on undirected links, each given in either direction."""
    hears = [{j for j in range(n) if j != i and ((i, j) in links or (j, i) in links)} for i in range(n)]
    w = np.zeros((n, n))
    for i in range(n):
        for j in hears[i]:
            w[i, j] = 1.0 / (1 + max(len(hears[i]), len(hears[j])))
        w[i, i] = 1.0 - sum(w[i, j] for j in hears[i])
    return w


def dense_weights(n: int, links: Links, rule: str) -> np.ndarray:
    r"""The weights of a rule on undirected links.

    With $L$ the Laplacian and $d_i$ the degrees: `lazy` is $(I + W)/2$ of the Metropolis weights, `max-degree`
    $I - L/(1+\max_i d_i)$ and `best-constant` $I - 2L/(\lambda_2+\lambda_n)$ (Xiao and Boyd 2004).
    """
    w = dense_metropolis(n, links)
    degrees = [sum(1 for j in range(n) if j != i and w[i, j] > 0) for i in range(n)]
    constant = 1.0 / (1 + max(degrees))
    if rule == "lazy":
        return (np.eye(n) + w) / 2
    if rule == "best-constant" and n > 1:
        laplacian = np.array([[degrees[i] if i == j else -float(w[i, j] > 0) for j in range(n)] for i in range(n)])
        values = np.linalg.eigvalsh(laplacian)
        constant = 2.0 / (values[1] + values[-1])
    elif rule == "uniform" and min(degrees) != max(degrees):
        raise MixingError(f"uniform weights need a regular graph, but the degrees are {degrees}")
    elif rule not in _RULES:
        raise MixingError(f"no dense weights are known for {rule!r}{nearest(rule, _RULES)}")
    if rule != "metropolis":
        for i in range(n):
            for j in range(n):
                w[i, j] = 1.0 - degrees[i] * constant if i == j else constant * (w[i, j] > 0)
    return w


def dense_matching(n: int, pairs: list[tuple[int, int]]) -> np.ndarray:
    """Every pair averages; who is in no pair keeps what it has."""
    w = np.eye(n)
    for i, j in pairs:
        w[i, i] = w[i, j] = w[j, i] = w[j, j] = 0.5
    return w


def hops(n: int) -> list[int]:
    """1, 2, 4, ... below n: there are ceil(log2 n) of them."""
    found, hop = [], 1
    while hop < n:
        found.append(hop)
        hop *= 2
    return found


def smallest_factor_count(n: int, limit: int) -> int | None:
    """How few factors, each at most `limit`, multiply to n; `None` if no such factors exist."""
    if n == 1:
        return 0
    counts = [smallest_factor_count(n // f, limit) for f in range(2, limit + 1) if n % f == 0]
    possible = [c for c in counts if c is not None]
    return 1 + min(possible) if possible else None


def base_k_length(n: int, k: int) -> int:
    """The number of rounds of the base-(k+1) schedule: the shorter of the simple one and the one over n = p q."""
    smooth, rest = 1, n
    for f in range(2, k + 2):
        while rest % f == 0:
            rest //= f
            smooth *= f
    across = smallest_factor_count(smooth, k + 1)
    assert across is not None
    return min(_simple_base_k_length(n, k), _simple_base_k_length(rest, k) + across)


def _simple_base_k_length(n: int, k: int) -> int:
    direct = smallest_factor_count(n, k + 1)
    if direct is not None:
        return direct
    power = 0
    while (k + 1) ** (power + 1) <= n:
        power += 1
    leading = n // (k + 1) ** power
    first_part = smallest_factor_count(leading * (k + 1) ** power, k + 1)
    assert first_part is not None
    return first_part + 1 + power  # average inside the largest part, exchange once, average inside its blocks


def _complete(n: int) -> Rounds:
    w = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            w[i, j] = 1.0 / n
    return [w]


def _ring(n: int) -> Links:
    return {(i, (i + 1) % n) for i in range(n)}


def _path(n: int) -> Links:
    return {(i, i + 1) for i in range(n - 1)}


def _star(n: int) -> Links:
    return {(0, i) for i in range(1, n)}


def most_square(n: int) -> tuple[int, int]:
    """The factorisation n = rows x columns with rows <= columns as near to each other as can be."""
    rows = max(r for r in range(1, n + 1) if n % r == 0 and r * r <= n)
    return rows, n // rows


def _shape(n: int, rows: int | None, cols: int | None) -> tuple[int, int]:
    if rows is None and cols is None:
        return most_square(n)
    return (n // cols, cols) if cols is not None else (rows or 1, n // (rows or 1))


def _grid(n: int, rows: int | None = None, cols: int | None = None) -> Links:
    a, b = _shape(n, rows, cols)
    below = {(r * b + c, (r + 1) * b + c) for r in range(a - 1) for c in range(b)}
    beside = {(r * b + c, r * b + c + 1) for r in range(a) for c in range(b - 1)}
    return below | beside


def _torus(n: int, rows: int | None = None, cols: int | None = None) -> Links:
    a, b = _shape(n, rows, cols)
    below = {(r * b + c, (r + 1) % a * b + c) for r in range(a) for c in range(b)}
    beside = {(r * b + c, r * b + (c + 1) % b) for r in range(a) for c in range(b)}
    return below | beside


def _hypercube(n: int) -> Links:
    return {(i, i ^ hop) for i in range(n) for hop in hops(n)}


def _ring_lattice(n: int, k: int | None = None) -> Links:
    k = (4 if n >= 5 else 2) if k is None else k
    return {(i, (i + distance) % n) for i in range(n) for distance in range(1, k // 2 + 1)}


def _exponential(n: int) -> Rounds:
    w = np.zeros((n, n))
    for i in range(n):
        w[i, i] = 1.0 / (1 + len(hops(n)))
        for hop in hops(n):
            w[i, (i - hop) % n] = 1.0 / (1 + len(hops(n)))
    return [w]


def _one_peer_exponential(n: int) -> Rounds:
    rounds = []
    for hop in hops(n):
        w = np.zeros((n, n))
        for i in range(n):
            w[i, i] = 0.5
            w[i, (i - hop) % n] = 0.5
        rounds.append(w)
    return rounds or [np.eye(1)]


def _one_peer_hypercube(n: int) -> Rounds:
    return [dense_matching(n, [(i, i ^ hop) for i in range(n)]) for hop in hops(n)] or [np.eye(1)]


def _one_peer_ring(n: int) -> Rounds:
    if n == 1:
        return [np.eye(1)]
    even = dense_matching(n, [(i, i + 1) for i in range(0, n, 2)])
    odd = dense_matching(n, [(i, (i + 1) % n) for i in range(1, n, 2)])
    return [even, odd]


def _aer(n: int, workers_per_node: int = 1) -> Rounds:
    nodes, rounds = n // workers_per_node, []
    for hop in hops(nodes):
        free, pairs = set(range(nodes)), []
        for node in range(nodes):
            if node in free:
                pairs.append((node, node + hop))
                free -= {node, node + hop}
        for slot in (0, 1):
            groups = []
            for number, (a, b) in enumerate(pairs):
                groups += [[a, b]] if number % 2 != slot else [[a], [b]]
            rounds.append(_average_groups(n, workers_per_node, groups))
    return rounds or [_average_groups(n, workers_per_node, [[0]])]


def _average_groups(n: int, workers_per_node: int, groups: list[list[int]]) -> np.ndarray:
    w = np.zeros((n, n))
    for group in groups:
        members = [node * workers_per_node + local for node in group for local in range(workers_per_node)]
        for i in members:
            for j in members:
                w[i, j] = 1.0 / len(members)
    return w


def _directed_ring(n: int) -> Rounds:
    w = np.zeros((n, n))
    for i in range(n):
        w[i, i] += 0.5
        w[i, (i - 1) % n] += 0.5
    return [w]


def _hierarchical(n: int, workers_per_node: int | None = None, across: str = "ring", inside_steps: int = 1) -> Rounds:
    local = most_square(n)[0] if workers_per_node is None else workers_per_node
    nodes, rounds = n // local, []
    inside = _average_groups(n, local, [[node] for node in range(nodes)])
    if nodes == 1:
        return [inside]
    for slow in dense_rounds(across, nodes):
        w = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                w[i, j] = slow[i // local, j // local] if i % local == j % local else 0.0
        rounds += [inside] * (inside_steps if local > 1 else 0) + [w]
    return rounds


_LINKS: dict[str, Callable[..., Links]] = {
    "ring": _ring,
    "path": _path,
    "star": _star,
    "grid": _grid,
    "torus": _torus,
    "hypercube": _hypercube,
    "ring-lattice": _ring_lattice,
}

_ROUNDS: dict[str, Callable[..., Rounds]] = {
    "complete": _complete,
    "exponential": _exponential,
    "one-peer-exponential": _one_peer_exponential,
    "one-peer-hypercube": _one_peer_hypercube,
    "one-peer-ring": _one_peer_ring,
    "aer": _aer,
    "directed-ring": _directed_ring,
    "hierarchical": _hierarchical,
}
