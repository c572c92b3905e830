"""Workers on a circle: ring, ring lattice, directed ring, and the ring that speaks to one side at a time."""

from __future__ import annotations

from math import cos, pi, sin

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.registry import register
from dissensus.theory.topologies.rounds import Laplacian, alone, neighbour_table, on_graph, pairs, shifts
from dissensus.theory.topologies.sizes import wrong_size
from dissensus.theory.topology import ClosedForm, Topology


@register("ring")
def ring(n: int, *, rule: str = "metropolis") -> Topology:
    r"""Each worker with the one before and the one after it, weights 1/3.

    $\lambda_k = \tfrac13 + \tfrac23\cos(2\pi k/n)$ and the spectral gap is $\tfrac43\sin^2(\pi/n)$ for n >= 3; two
    workers average (weights 1/2). `rule="lazy"` halves what moves: 2/3, 1/6, 1/6.
    """
    return on_graph("ring", _both_sides(n, 2), rule, lattice_laplacian(n, 2))


@register("ring-lattice")
def ring_lattice(n: int, *, k: int | None = None, rule: str = "metropolis") -> Topology:
    r"""Each worker with its k nearest on a circle, k/2 on either side, weights 1/(k+1).

    $\lambda_m = \frac{\sin(\pi m (k+1)/n)}{(k+1)\sin(\pi m/n)}$, largest in modulus at m = 1 (a Dirichlet kernel), so
    the spectral gap is $\frac{4}{k+1}\sum_{h=1}^{k/2}\sin^2(\pi h/n)$. k must be even and below n, except that k = 2
    is the ring for every n; by default k = 4, or 2 where n < 5.
    """
    if k is None:
        k = 4 if n >= 5 else 2
    if k < 2 or k % 2:
        raise MixingError(
            f"ring-lattice needs an even number of neighbours k >= 2, got k={k}; "
            + (f"the nearest that work are {k - 1} and {k + 1}" if k > 2 else "the nearest that works is 2")
        )
    if k > 2 and k >= n > 1:
        raise wrong_size("ring-lattice", f"more workers than its k={k} neighbours", n, None, k + 1)
    return on_graph("ring-lattice", _both_sides(n, k), rule, lattice_laplacian(n, k), k=k)


@register("directed-ring")
def directed_ring(n: int) -> Topology:
    r"""Each worker hears only the one before it: worker i receives from i - 1, weights 1/2 and 1/2.

    Doubly stochastic and normal, not symmetric: $\lambda_k = (1 + e^{-2\pi\mathrm{i}k/n})/2$ of modulus
    $|\cos(\pi k/n)|$, so the contraction is $\cos(\pi/n)$ and the gap $2\sin^2(\pi/2n)$.
    """
    if n == 1:
        return alone("directed-ring")
    known = ClosedForm(2 * sin(pi / (2 * n)) ** 2, cos(pi / n) if n > 2 else 0.0, None, "|cos(pi k/n)|, normal matrix")
    return Topology("directed-ring", n, (MixingMatrix(shifts(n, (0, 1), 0.5)),), closed_form=known)


@register("one-peer-ring")
def one_peer_ring(n: int) -> Topology:
    r"""The ring, one neighbour at a time: even steps pair (0,1), (2,3), ..., odd steps (1,2), ..., (n-1,0).

    Over its period of 2 the contraction is $\|W_1W_0 - J\|_2 = |\cos(2\pi/n)|$ (the product is not normal: its
    spectral radius is $\cos^2(2\pi/n)$); four workers agree exactly after two steps. Needs an even n.
    """
    if n == 1:
        return alone("one-peer-ring")
    if n % 2:
        raise wrong_size("one-peer-ring", "an even number of workers", n, n - 1, n + 1)
    i = np.arange(n)
    if n == 2:
        return Topology("one-peer-ring", 2, (pairs(1 - i),), closed_form=ClosedForm(1.0, 0.0, None, "W = J"))
    known = ClosedForm(contraction=abs(cos(2 * pi / n)) if n != 4 else 0.0, source="|cos(2 pi/n)| per two steps")
    odd_step = np.where(i % 2, i + 1, i - 1) % n
    return Topology("one-peer-ring", n, (pairs(i ^ 1), pairs(odd_step)), closed_form=known)


def lattice_laplacian(n: int, k: int) -> Laplacian:
    r"""The Laplacian of the ring lattice: $\ell_m = 4\sum_{h\le k/2}\sin^2(\pi m h/n)$."""
    if n <= 2:
        return Laplacian(2.0, 2.0, lambda: np.array([0.0, 2.0])[:n], "one link")
    hops = np.arange(1, k // 2 + 1)

    def values(m: np.ndarray) -> np.ndarray:
        return sum((4.0 * np.sin(pi * m * h / n) ** 2 for h in hops), np.zeros(len(m)))

    smallest = float(values(np.ones(1))[0])
    at = np.array([n // 2]) if k == 2 else np.arange(1, n // 2 + 1)
    return Laplacian(smallest, float(values(at).max()), lambda: values(np.arange(n)), "circulant: a Dirichlet kernel")


def _both_sides(n: int, k: int) -> sp.csr_array:
    near = np.arange(1, k // 2 + 1 if n > 1 else 1)
    hops = np.unique(np.concatenate([near, -near]) % n)
    return neighbour_table((np.arange(n)[:, None] + hops) % n)
