"""Gaps of Metropolis weights on graphs up to the slowest there are, and conductances by trying all cuts."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.metropolis_gap import Bottleneck, Connected
from dissensus.theory.trials import graphs
from dissensus.theory.trials.base import Draws, Trial, trial


def _gap(w: np.ndarray) -> float:
    return 1.0 - float(graphs.modes(w)[-1])


@trial("lazy-metropolis-gap-olshevsky")
@trial("lazy-metropolis-gap")
def lazy(draws: Draws) -> Trial:
    """Weights 1/(2 max of degrees)."""
    a = graphs.adjacency(draws, 2, 30)
    return Trial(Connected(len(a)), _gap(graphs.weighted(a, lazy=True)))


@trial("metropolis-gap")
def plain(draws: Draws) -> Trial:
    """Weights 1/(1 + max of degrees)."""
    a = graphs.adjacency(draws, 2, 30)
    return Trial(Connected(len(a)), _gap(graphs.weighted(a)))


@trial("lazy-metropolis-gap-olshevsky", "clusters on a line")
@trial("lazy-metropolis-gap", "clusters on a line")
def lazy_clusters(draws: Draws) -> Trial:
    """Two clusters far apart, which slow Metropolis weights down most."""
    a = _clusters(draws)
    return Trial(Connected(len(a)), _gap(graphs.weighted(a, lazy=True)))


@trial("metropolis-gap", "clusters on a line")
def plain_clusters(draws: Draws) -> Trial:
    """The same without laziness."""
    a = _clusters(draws)
    return Trial(Connected(len(a)), _gap(graphs.weighted(a)))


def _clusters(draws: Draws) -> np.ndarray:
    """Every second worker of a path has leaves of its own, and there are cliques at both ends."""
    line, clique, leaves = draws.integer(2, 12), draws.integer(0, 10), draws.integer(0, 4)
    middle = [i for i in range(line) if i % 2 == 1]
    n = line + 2 * clique + leaves * len(middle)
    a = np.zeros((n, n))
    for i in range(line - 1):
        a[i, i + 1] = 1.0
    for end, start in ((0, line), (line - 1, line + clique)):
        members = [end, *range(start, start + clique)]
        a[np.ix_(members, members)] = 1.0
    for k, i in enumerate(middle):
        first = line + 2 * clique + k * leaves
        a[i, first : first + leaves] = 1.0
    a = np.maximum(a, a.T)
    np.fill_diagonal(a, 0.0)
    return a


@trial("cheeger-lower")
def cheeger_lower(draws: Draws) -> Trial:
    """Any symmetric W with nonnegative weights; the gap is what it may be within rounding."""
    problem, gap = _bottleneck(graphs.symmetric(draws))
    return Trial(problem, gap + 1e-13)


@trial("cheeger-upper")
def cheeger_upper(draws: Draws) -> Trial:
    """The same; the gap is what it surely is."""
    problem, gap = _bottleneck(graphs.symmetric(draws))
    return Trial(problem, graphs.surely(gap, 1.0))


def _bottleneck(w: np.ndarray) -> tuple[Bottleneck, float]:
    narrow = graphs.resolved(_conductance(w))
    return Bottleneck(narrow, max(0.0, float(np.diag(w).min()))), _gap(w)


@trial("cheeger-upper", "hypercube")
def cheeger_cube(draws: Draws) -> Trial:
    """One side against the other is the slowest mode itself: attained."""
    k = draws.integer(1, 3)
    n = 1 << k
    a = np.array([[float((i ^ j).bit_count() == 1) for j in range(n)] for i in range(n)])
    gamma = draws.real(0.1, 1.0)
    w = (1.0 - gamma) * np.eye(n) + gamma * graphs.weighted(a)
    return Trial(*_bottleneck(w))


def _conductance(w: np.ndarray) -> float:
    """The narrowest of all cuts."""
    n = len(w)
    masks = np.arange(1, 1 << n)
    inside = ((masks[:, None] >> np.arange(n)) & 1).astype(np.float64)
    sizes = inside.sum(axis=1)
    inside, sizes = inside[2 * sizes <= n], sizes[2 * sizes <= n]
    cuts = ((inside @ w) * (1.0 - inside)).sum(axis=1)
    return float((cuts / sizes).min())
