r"""Rounds in which a worker talks to one other: graphs as matchings, doubly stochastic matrices as permutations.

- A graph with largest degree $\Delta$ splits into at most $\Delta+1$ matchings (Vizing 1964; the construction of Misra
  and Gries 1992), into $\Delta$ if it is bipartite (König 1916); the complete graph of even n into n - 1 (round robin).
  Averaging over one matching per step, $W = I - L_M/2$, turns any graph into a one-peer schedule.
- A doubly stochastic W is a convex combination of permutations, $W = \sum_k c_k P_k$ with at most $n^2-2n+2$ terms
  (Birkhoff 1946). Each term here is a permutation whose smallest weight is as large as possible.
- Drawing one of those permutations at every step keeps W on average. With $\kappa = \min_i W_{ii}$,
  $V = (W-\kappa I)/(1-\kappa)$ is doubly stochastic too, and drawing $W_t = \kappa I + (1-\kappa)P$ with $E[P] = V$ has

$$ E[W_t] = W, \qquad E[W_t^\top W_t] = (1-2\kappa) I + \kappa (W + W^\top) \qquad\text{(ours)}, $$

  which falls in κ: keeping more is always better, and with κ = 0 the workers are only moved about, never mixed.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.topology import Moments, Topology
from dissensus.theory.weights import complete_diagonal, links, size_of

NOTHING = 1e-15
"""Weights at most this large, left over by subtracting permutations, are rounding."""


def union_of_links(source: Any) -> sp.csr_array:
    """The undirected links of a topology (over its whole period), a mixing matrix, a networkx graph or an adjacency."""
    if isinstance(source, MixingMatrix):
        source = Topology("matrix", source.size, (source,), may_disconnect=True)
    if isinstance(source, Topology):
        union = sum((abs(w.weights) for w in source), sp.csr_array((source.size, source.size)))
        source = sp.csr_array(union - sp.diags_array(union.diagonal()))
    return links(source)


def matchings(source: Any) -> list[np.ndarray]:
    """The links of a graph or topology as matchings: integer arrays of rows (i, j), i < j, no worker twice in one.

    At most one matching more than the largest degree, and not one more for bipartite graphs and even complete ones.
    """
    a = union_of_links(source)
    n, upper = size_of(a), sp.coo_array(sp.triu(a, k=1))
    i, j = (c.astype(np.int64) for c in upper.coords)
    if len(i) == n * (n - 1) // 2:
        colour = _round_robin(i, j, n)
    else:
        colour = np.array(_coloured(list(zip(i.tolist(), j.tolist(), strict=True)), a), dtype=np.int64)
    split = [np.flatnonzero(colour == c) for c in range(colour.max(initial=-1) + 1)]
    return [np.stack([i[e], j[e]], axis=1) for e in split if len(e)]


def pairwise(n: int, matching: np.ndarray) -> MixingMatrix:
    """The round in which the two workers of each row (i, j) average and everybody else rests."""
    i, j = (matching[:, 0], matching[:, 1]) if len(matching) else (np.empty(0, np.int64), np.empty(0, np.int64))
    partner = np.arange(n)
    partner[i], partner[j] = j, i
    return _kept(0.5, partner)


def one_peer_schedule(source: Any, *, name: str | None = None) -> Topology:
    """Any undirected graph or periodic topology as a periodic schedule in which each worker talks to at most one other.

    Every round averages pairs (weights 1/2); one period uses every link once.
    """
    a = union_of_links(source)
    rounds = tuple(pairwise(size_of(a), m) for m in matchings(a)) or (MixingMatrix.identity(size_of(a)),)
    called = name or (f"one-peer({source.name})" if isinstance(source, Topology) else "one-peer")
    return Topology(called, size_of(a), rounds)


def birkhoff(matrix: MixingMatrix | np.ndarray | sp.sparray) -> list[tuple[float, np.ndarray]]:
    r"""A doubly stochastic W as $\sum_k c_k P_k$: pairs (c, sender), where worker i receives from `sender[i]`.

    The coefficients are positive, sum to one and do not increase from term to term; at most n² - 2n + 2 of them.
    """
    from scipy.sparse.csgraph import maximum_bipartite_matching

    w = matrix if isinstance(matrix, MixingMatrix) else MixingMatrix.of(matrix)
    if w.promise != "doubly":
        raise MixingError(
            f"only a doubly stochastic matrix is a mixture of permutations, this one is {w.promise} stochastic"
        )
    if w.weights.nnz and w.weights.data.min() < 0:
        raise MixingError("a matrix with negative weights is no mixture of permutations; use nonnegative weights")
    rest, worker = w.weights.copy(), np.arange(w.size)

    def widest() -> np.ndarray | None:
        """The permutation whose smallest weight is largest, by bisection over the weights."""
        levels, best = np.unique(rest.data), None
        lo, hi = 0, len(levels) - 1
        while lo <= hi:
            mid = (lo + hi) // 2
            kept = rest.copy()
            kept.data[kept.data < levels[mid]] = 0.0
            kept.eliminate_zeros()
            sender = maximum_bipartite_matching(kept, perm_type="column")
            if (sender >= 0).all():
                best, lo = sender, mid + 1
            else:
                hi = mid - 1
        return best

    terms: list[tuple[float, np.ndarray]] = []
    most = w.size**2 - 2 * w.size + 2  # each term lowers the dimension of the face that the rest lies on
    while rest.nnz and len(terms) < most and (sender := widest()) is not None:
        c = float(rest[worker, sender].min())
        terms.append((c, sender.astype(np.int64)))
        rest = sp.csr_array(rest - sp.csr_array((np.full(w.size, c), (worker, sender)), shape=rest.shape))
        rest.data[rest.data <= NOTHING] = 0.0
        rest.eliminate_zeros()
    total = sum(c for c, _ in terms)
    return [(c / total, sender) for c, sender in terms]


def permutation_schedule(
    matrix: MixingMatrix | np.ndarray | sp.sparray, *, seed: int = 0, name: str | None = None
) -> Topology:
    r"""A drawn schedule with mean W in which each worker hears one other per step (see the module for its moments).

    Every worker must keep something of itself ($W_{ii} > 0$); otherwise make W lazy first, `w.adapted(0.5)`.
    """
    w = matrix if isinstance(matrix, MixingMatrix) else MixingMatrix.of(matrix)
    n, keep = w.size, w.weights.diagonal()
    kappa = float(keep.min())
    if kappa <= 0:
        raise MixingError(
            f"worker {int(keep.argmin())} keeps nothing of itself: drawn permutations with this mean only move the "
            "workers about and never mix them; make the matrix lazy first, w.adapted(0.5)"
        )
    eye = sp.eye_array(n, format="csr")
    if kappa >= 1 - NOTHING:
        terms = [(1.0, np.arange(n))]
    else:
        moving = sp.csr_array(w.weights - sp.diags_array(keep))
        busiest = float(np.asarray(moving.sum(axis=1)).max())  # 1 - kappa, without what the row is off by
        terms = birkhoff(complete_diagonal(sp.csr_array(moving / busiest), signed=w.signed))
    ends = np.cumsum([c for c, _ in terms])
    rounds = [_kept(kappa, sender) for _, sender in terms]

    def draw(t: int) -> MixingMatrix:
        u = np.random.default_rng([seed, t]).random() * ends[-1]
        return rounds[min(int(np.searchsorted(ends, u, side="right")), len(rounds) - 1)]

    square = sp.csr_array((1.0 - 2.0 * kappa) * eye + kappa * (w.weights + w.weights.T))
    return Topology(
        name or "permutations", n, draw=draw, parameters={"seed": seed}, moments=Moments(mean=w.weights, square=square)
    )


def _kept(kappa: float, sender: np.ndarray) -> MixingMatrix:
    """The round kappa I + (1 - kappa) P in which worker i hears `sender[i]`."""
    n, i = len(sender), np.arange(len(sender))
    ends = (np.concatenate([i, i]), np.concatenate([i, sender]))
    return MixingMatrix(sp.csr_array((np.repeat([kappa, 1.0 - kappa], n), ends), shape=(n, n)))


def _round_robin(i: np.ndarray, j: np.ndarray, n: int) -> np.ndarray:
    """The circle method on the complete graph: link (i, j) in round i + j; of an even n, the last at the centre."""
    around = n - 1 if n % 2 == 0 else n
    return np.where((j == n - 1) & (n % 2 == 0), 2 * i, i + j) % max(around, 1)


class _Colouring:
    """Colours on the links of a graph, no two alike at a worker, put on one link at a time.

    A link takes the first colour that is free at both ends. Where there is none, one is made free: by swapping two
    colours along a path on a bipartite graph, else by turning a fan of links as well (Misra and Gries).
    """

    def __init__(self, n: int, palette: int) -> None:
        self.palette = palette
        self.at: list[dict[int, int]] = [{} for _ in range(n)]  # at[worker][colour] = the neighbour on that link
        self.of: dict[tuple[int, int], int] = {}

    def put(self, u: int, v: int, c: int) -> None:
        self.at[u][c], self.at[v][c] = v, u
        self.of[min(u, v), max(u, v)] = c

    def take(self, u: int, v: int) -> int:
        c = self.of.pop((min(u, v), max(u, v)))
        del self.at[u][c], self.at[v][c]
        return c

    def free(self, *workers: int) -> int | None:
        """The first colour that none of the workers uses."""
        return next((c for c in range(self.palette) if not any(c in self.at[u] for u in workers)), None)

    def some_free(self, u: int) -> int:
        c = self.free(u)
        assert c is not None  # the palette is larger than the number of coloured links at u
        return c

    def swap_from(self, u: int, first: int, second: int) -> None:
        """Exchanges two colours along the path from u that starts with `first` (`second` is free at u)."""
        path, c = [u], first
        while c in self.at[path[-1]]:
            path.append(self.at[path[-1]][c])
            c = second if c == first else first
        steps = list(itertools.pairwise(path))
        old = [self.take(x, y) for x, y in steps]
        for (x, y), c in zip(steps, old, strict=True):
            self.put(x, y, second if c == first else first)

    def add_bipartite(self, u: int, v: int) -> None:
        c, d = self.some_free(u), self.some_free(v)
        self.swap_from(v, c, d)  # ends on the side of v: never at u, where c stays free
        self.put(u, v, c)

    def add(self, u: int, v: int) -> None:
        fan = self.fan(u, v)
        c, d = self.some_free(u), self.some_free(fan[-1])
        if d in self.at[u]:
            self.swap_from(u, d, c)
        # the shortest part of the fan that is still one after the swap and ends where d is free
        end = 0
        while d in self.at[fan[end]]:
            end += 1
        for x, y in itertools.pairwise(fan[: end + 1]):
            self.put(u, x, self.take(u, y))
        self.put(u, fan[end], d)

    def fan(self, u: int, v: int) -> list[int]:
        """Neighbours of u from v on, each linked to u in a colour that is free at the one before; maximal."""
        fan, left = [v], {c: w for c, w in self.at[u].items() if w != v}
        while (c := next((c for c in left if c not in self.at[fan[-1]]), None)) is not None:
            fan.append(left.pop(c))
        return fan


def _coloured(edges: list[tuple[int, int]], a: sp.csr_array) -> list[int]:
    import networkx as nx

    graph: Any = nx.Graph(edges)
    bipartite, largest = nx.is_bipartite(graph), int(np.diff(a.indptr).max())
    colours = _Colouring(size_of(a), largest if bipartite else largest + 1)
    for u, v in edges:
        c = colours.free(u, v)
        if c is not None:
            colours.put(u, v, c)
        elif bipartite:
            colours.add_bipartite(u, v)
        else:
            colours.add(u, v)
    return [colours.of[e] for e in edges]
