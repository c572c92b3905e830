r"""Random gossip: at every step some disjoint pairs of linked workers, drawn anew, average.

A round of disjoint averaging pairs is an orthogonal projection, so whatever the law of the pairs is,

$$ E[W^\top W] = E[W] = I - \tfrac12 \sum_e p_e L_e , \qquad p_e = P(\text{link } e \text{ is drawn}), $$

and only the $p_e$ have to be known. With m links and degrees d:

- `pair`: one link, uniformly: $p_e = 1/m$ (Boyd, Ghosh, Prabhakar and Shah, Randomized gossip algorithms, 2006).
- `local`: every link draws a number, and those lower than all links they touch are used: $p_e = 1/(d_i+d_j-1)$.
- `maximal`: the links in a random order, each used if both its workers are still free, so that no further pair would
  fit. On the complete graph $p_e = 1/(n-1)$ (n even) or $1/n$ (n odd); on other graphs of up to 12 workers by
  recursion over the workers still free; beyond that there is no formula, and the schedule has no exact moments.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import scipy.sparse as sp

from dissensus.theory.decomposition import pairwise, union_of_links
from dissensus.theory.errors import MixingError, nearest
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.registry import register, topology
from dissensus.theory.topology import Moments, Topology

MODES = ("pair", "local", "maximal")
RECURSION_LIMIT = 12
"""Up to this many workers the law of a maximal matching is computed exactly on any graph."""


@register("random-gossip")
def random_gossip(n: int, *, graph: str = "complete", mode: str = "pair", seed: int = 0) -> Topology:
    r"""Randomly drawn pairs of workers average, on the links of another topology.

    `graph` names the topology whose links are used; `mode` is `pair` (one link per step), `local` or `maximal`
    (many disjoint links per step). Every round is a function of (seed, step) only.
    """
    if mode not in MODES:
        raise MixingError(f"topology 'random-gossip': unknown mode {mode!r}{nearest(mode, MODES)}")
    if seed < 0:
        raise MixingError(f"topology 'random-gossip': the seed must be at least 0, got {seed}")
    i, j = base_links("random-gossip", graph, n)
    m = len(i)

    def draw(t: int) -> MixingMatrix:
        rng = np.random.default_rng([seed, t])
        if m == 0:
            used = np.zeros(0, dtype=np.int64)
        elif mode == "pair":
            used = rng.integers(m, size=1)
        else:
            used = first_links(i, j, rng.random(m), n, rounds=1 if mode == "local" else None)
        return pairwise(n, np.stack([i[used], j[used]], axis=1))

    p = _probabilities(i, j, n, mode)
    moments = None
    if p is not None:
        mean = mean_of_pairs(i, j, p, n)
        moments = Moments(mean=mean, square=mean)
    used = {"graph": graph, "mode": mode, "seed": seed}
    return Topology("random-gossip", n, draw=draw, parameters=used, moments=moments)


def base_links(name: str, graph: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The links i < j of the topology called `graph`, over its whole period, for the drawn topology called `name`."""
    try:
        base = topology(graph, n)
        if base.period is None:
            raise MixingError(f"{graph!r} is itself drawn at every step; name a topology with a period")
        upper = sp.coo_array(sp.triu(union_of_links(base), k=1))
    except MixingError as error:
        raise MixingError(f"topology {name!r} on the graph {graph!r}: {error}") from None
    i, j = (c.astype(np.int64) for c in upper.coords)
    return i, j


def first_links(i: np.ndarray, j: np.ndarray, number: np.ndarray, n: int, rounds: int | None) -> np.ndarray:
    """The links whose number is lower than those of all links they touch, then such among the rest, and so on.

    Without a limit on the rounds this ends in a maximal matching: the one that going through the links in the order of
    their numbers gives.
    """
    found, left = [], np.arange(len(i))
    while len(left) and (rounds is None or len(found) < rounds):
        lowest = np.full(n, np.inf)
        np.minimum.at(lowest, i[left], number[left])
        np.minimum.at(lowest, j[left], number[left])
        first = left[(number[left] == lowest[i[left]]) & (number[left] == lowest[j[left]])]
        found.append(first)
        busy = np.zeros(n, dtype=bool)
        busy[i[first]] = busy[j[first]] = True
        left = left[~(busy[i[left]] | busy[j[left]])]
    return np.concatenate(found) if found else left


def mean_of_pairs(i: np.ndarray, j: np.ndarray, p: np.ndarray, n: int) -> sp.csr_array:
    """I - 1/2 sum of p_e L_e: the mean of rounds that average disjoint pairs."""
    ends = (np.concatenate([i, j]), np.concatenate([j, i]))
    off = sp.csr_array((np.concatenate([p, p]) / 2.0, ends), shape=(n, n))
    return sp.csr_array(off + sp.diags_array(1.0 - np.asarray(off.sum(axis=1)).ravel()))


def _probabilities(i: np.ndarray, j: np.ndarray, n: int, mode: str) -> np.ndarray | None:
    m = len(i)
    if m == 0 or mode == "pair":
        return np.full(m, 1.0 / max(m, 1))
    if mode == "local":
        degree = np.bincount(i, minlength=n) + np.bincount(j, minlength=n)
        return 1.0 / (degree[i] + degree[j] - 1.0)
    if m == n * (n - 1) // 2:
        return np.full(m, 1.0 / (n - 1 if n % 2 == 0 else n))
    return _greedy_probabilities(i, j, n) if n <= RECURSION_LIMIT else None


def _greedy_probabilities(i: np.ndarray, j: np.ndarray, n: int) -> np.ndarray:
    """How often each link is in the matching that a random order of the links leads to.

    The next link used is uniform among those between free workers: recursion over the sets of free workers.
    """
    ends = (1 << i) | (1 << j)

    @cache
    def used(free: int) -> tuple[float, ...]:
        open_links = np.flatnonzero((ends & free) == ends)
        p = np.zeros(len(i))
        for e in open_links:
            p += np.array(used(free & ~int(ends[e])))
            p[e] += 1.0
        return tuple(p / max(len(open_links), 1))

    return np.array(used((1 << n) - 1))
