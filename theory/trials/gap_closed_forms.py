"""Matrices written out entry by entry, their contraction by singular values."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.gap_closed_forms import Cube, Sides, Sized
from dissensus.theory.trials import graphs
from dissensus.theory.trials.base import Draws, Trial, trial


def _gap(w: np.ndarray) -> float:
    return 1.0 - graphs.contraction(w)


def circle(n: int) -> np.ndarray:
    """Links to both sides."""
    a = np.zeros((n, n))
    for i in range(n):
        a[i, (i + 1) % n] = a[(i + 1) % n, i] = 1.0
    np.fill_diagonal(a, 0.0)
    return a


@trial("gap-ring")
def ring(draws: Draws) -> Trial:
    """Any size from three."""
    n = draws.integer(3, 60)
    return Trial(Sized(n), _gap(graphs.weighted(circle(n))))


@trial("gap-path")
def path(draws: Draws) -> Trial:
    """A circle without one link."""
    n = draws.integer(3, 60)
    a = circle(n)
    a[0, n - 1] = a[n - 1, 0] = 0.0
    return Trial(Sized(n), _gap(graphs.weighted(a)))


@trial("gap-star")
def star(draws: Draws) -> Trial:
    """One in the middle."""
    n = draws.integer(3, 60)
    a = np.zeros((n, n))
    a[0, 1:] = a[1:, 0] = 1.0
    return Trial(Sized(n), _gap(graphs.weighted(a)))


@trial("gap-directed-ring")
def directed_ring(draws: Draws) -> Trial:
    """Half from the one before."""
    n = draws.integer(2, 60)
    return Trial(Sized(n), _gap((np.eye(n) + np.roll(np.eye(n), 1, axis=0)) / 2.0))


@trial("gap-one-peer-ring")
def one_peer_ring(draws: Draws) -> Trial:
    """Two matchings, one after the other."""
    n = 2 * draws.integer(2, 30)
    w = []
    for first in (0, 1):
        m = np.eye(n) / 2.0
        for i in range(first, n, 2):
            m[i, (i + 1) % n] = m[(i + 1) % n, i] = 0.5
        w.append(m)
    return Trial(Sized(n), _gap(w[1] @ w[0]))


@trial("gap-hypercube")
def hypercube(draws: Draws) -> Trial:
    """Links where one digit differs."""
    k = draws.integer(1, 6)
    n = 1 << k
    a = np.array([[float((i ^ j).bit_count() == 1) for j in range(n)] for i in range(n)])
    return Trial(Cube(k), _gap(graphs.weighted(a)))


@trial("gap-torus")
def torus(draws: Draws) -> Trial:
    """A product of two circles."""
    rows, columns = draws.integer(3, 9), draws.integer(3, 9)
    a = np.kron(circle(rows), np.eye(columns)) + np.kron(np.eye(rows), circle(columns))
    return Trial(Sides(rows, columns), _gap(graphs.weighted(a)))
