r"""The figures of a topology's report once more, from their definitions: dense float64, no shortcut, no closed form.

With $P$ the product of the rounds of a period and $J = \mathbf{1}\mathbf{1}^\top/n$: contraction is $\|P - J\|_2$,
the spectral gap is $1 - \max_{k\ge2}|\lambda_k|$ of a static symmetric round, else $1 - \|P-J\|_2^{1/\text{period}}$.
The effective number of neighbours of a static symmetric round at memory $g$ is (Vogels et al. 2022)

$$ n_W(g) = \frac{1/(1-g)}{\frac1n\sum_i \lambda_i^2/(1-g\lambda_i^2)} . $$

For any other schedule the sum is what it is the solution of: the mean variance of the process
$x \leftarrow W_t(\sqrt g\,x + \text{noise})$ once it has become periodic, averaged over workers and phases; there is
none for weights whose rows do not average.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dissensus.theory.topology import Topology

EXACT = 1e-12
"""A product counts as exact averaging when no entry is farther than this from 1/n ..."""


def dense_report(topology: Topology, memory: float = 0.9) -> dict[str, Any]:
    """Every figure that a report must give of a periodic topology, recomputed with numpy alone."""
    n, rounds = topology.size, [w.dense() for w in topology]
    p = product(rounds, 0, len(rounds))
    rows = all(abs(sum(w[i]) - 1) <= 1e-10 for w in rounds for i in range(n))
    columns = all(abs(sum(w[:, j]) - 1) <= 1e-10 for w in rounds for j in range(n))
    symmetric = all(np.abs(w - w.T).max() <= 1e-12 for w in rounds)
    contraction = float(np.linalg.norm(p - np.full((n, n), 1 / n), 2))
    gap = 1 - contraction ** (1 / len(rounds))
    if symmetric and len(rounds) == 1:
        moduli = np.sort(np.abs(np.linalg.eigvalsh(rounds[0])))[::-1]
        gap = float(1 - moduli[1]) if n > 1 else 1.0
    exact_after = first_exact(rounds, 0)
    return {
        "name": topology.name,
        "n": n,
        "period": len(rounds),
        "row_stochastic": rows,
        "column_stochastic": columns,
        "doubly_stochastic": rows and columns,
        "symmetric": symmetric,
        "connected": strongly_connected(rounds),
        "contraction": contraction,
        "spectral_gap": gap,
        "effective_neighbors": effective_neighbors(rounds, memory) if rows else None,
        "exact_after": exact_after,
        "exact_phases": exact_phases(rounds, exact_after),
        "messages_per_step": sum(count_messages(w) for w in rounds) / len(rounds),
        "diameter": diameter(rounds),
    }


def product(rounds: list[np.ndarray], start: int, steps: int) -> np.ndarray:
    """W_{start+steps-1} ... W_{start}: the first round acts first, so it stands rightmost."""
    p = np.eye(len(rounds[0]))
    for t in range(start, start + steps):
        p = rounds[t % len(rounds)] @ p
    return p


def first_exact(rounds: list[np.ndarray], start: int, limit: int | None = None) -> int | None:
    """After how many steps from phase `start` everyone holds the exact average; `None` if never within the limit."""
    n = len(rounds[0])
    limit = max(len(rounds), 2 * n) if limit is None else limit
    left = np.eye(n) - 1 / n  # what is left of every possible disagreement, made of length one again after each round
    if n == 1:
        return 0
    for steps in range(limit):
        left = rounds[(start + steps) % len(rounds)] @ left
        left = left - left.mean(axis=0)
        length = np.linalg.norm(left)
        if length <= EXACT:
            return steps + 1
        left /= length
    return None


def exact_phases(rounds: list[np.ndarray], steps: int | None) -> list[int]:
    """The phases from which that many steps average exactly."""
    n = len(rounds[0])
    if steps is None:
        return []
    return [s for s in range(len(rounds)) if np.abs(product(rounds, s, steps) - 1 / n).max() <= EXACT]


def effective_neighbors(rounds: list[np.ndarray], memory: float) -> float:
    """n_W(memory), by eigenvalues when the round is static and symmetric, else by the periodic covariance."""
    n = len(rounds[0])
    if len(rounds) == 1 and np.abs(rounds[0] - rounds[0].T).max() <= 1e-12:
        squares = np.linalg.eigvalsh(rounds[0]) ** 2
        variance = float(np.mean(squares / (1 - memory * squares)))
    else:
        variance = float(np.mean([np.trace(s) / n for s in periodic_covariances(rounds, memory)]))
    return 1 / (1 - memory) / variance


def periodic_covariances(rounds: list[np.ndarray], memory: float) -> list[np.ndarray]:
    """The covariances after each round of S <- W (memory S + I) W^T, once they repeat: by plain iteration."""
    n = len(rounds[0])
    s, before = np.zeros((n, n)), None
    while before is None or np.abs(s - before).max() > 1e-15 * max(1.0, np.abs(s).max()):
        before = s
        for w in rounds:
            s = w @ (memory * s + np.eye(n)) @ w.T
    found = []
    for w in rounds:
        s = w @ (memory * s + np.eye(n)) @ w.T
        found.append(s)
    return found


def count_messages(w: np.ndarray) -> int:
    """Nonzero weights off the diagonal."""
    return sum(1 for i in range(len(w)) for j in range(len(w)) if i != j and w[i, j] != 0)


def union_graph(rounds: list[np.ndarray]) -> list[set[int]]:
    """For every worker j, the workers that hear it in some round."""
    n = len(rounds[0])
    return [{i for i in range(n) if i != j and any(w[i, j] != 0 for w in rounds)} for j in range(n)]


def distances_from(source: int, heard_by: list[set[int]]) -> dict[int, int]:
    """Breadth first along the messages."""
    found, frontier, steps = {source: 0}, {source}, 0
    while frontier:
        steps += 1
        frontier = {i for j in frontier for i in heard_by[j]} - found.keys()
        found |= dict.fromkeys(frontier, steps)
    return found


def strongly_connected(rounds: list[np.ndarray]) -> bool:
    """Whether the news of every worker can reach every other over the rounds, repeated."""
    heard_by = union_graph(rounds)
    return all(len(distances_from(j, heard_by)) == len(heard_by) for j in range(len(heard_by)))


def diameter(rounds: list[np.ndarray]) -> int | None:
    """The longest shortest path in the union of the rounds; `None` if some worker is never reached."""
    heard_by = union_graph(rounds)
    if not strongly_connected(rounds):
        return None
    return max(max(distances_from(j, heard_by).values()) for j in range(len(heard_by)))
