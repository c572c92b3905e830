r"""Workers on a line or a rectangle: path, grid, torus.

The Laplacian of a product of graphs has the sums of the factors' eigenvalues. A path of a workers has
$4\sin^2(\pi i/2a)$ and a cycle of $a\ge3$ has $4\sin^2(\pi i/a)$, $i=0,\dots,a-1$; a cycle of 2 is one link (0 and 2).
"""

from __future__ import annotations

from math import cos, pi, sin

import numpy as np

from dissensus.theory.registry import register
from dissensus.theory.topologies.ring import lattice_laplacian
from dissensus.theory.topologies.rounds import Laplacian, edges, neighbour_table, on_graph
from dissensus.theory.topologies.sizes import two_sides
from dissensus.theory.topology import Topology


@register("path")
def path(n: int, *, rule: str = "metropolis") -> Topology:
    r"""A line of workers, each with the one before and the one after it.

    Metropolis weights are 1/3 on every link for n >= 3 (the two ends keep 2/3), so
    $\lambda_k = 1 - \tfrac43\sin^2(\pi k/2n)$ and the spectral gap is $\tfrac43\sin^2(\pi/2n)$; two workers average.
    """
    i = np.arange(n - 1)
    return on_graph("path", edges(n, i, i + 1), rule, path_laplacian(n))


@register("grid")
def grid(n: int, *, rows: int | None = None, cols: int | None = None, rule: str = "metropolis") -> Topology:
    r"""A rectangle of workers without wrap-around, each with up to four neighbours.

    The most square factorisation of n unless rows or cols say otherwise (a prime n is a path). Metropolis weights
    differ at the border and have no closed form; with `rule="max-degree"`, $W = I - L/5$ and
    $\lambda_{ij} = 1 - \tfrac45(\sin^2(\pi i/2a) + \sin^2(\pi j/2b))$ on an a x b grid with both sides above 2.
    """
    rows, cols = two_sides("grid", n, rows, cols)
    i = np.arange(n)
    right, down = i[i % cols < cols - 1], i[: n - cols]
    links = edges(n, np.concatenate([right, down]), np.concatenate([right + 1, down + cols]))
    spectrum = _product(rows, cols, path_laplacian(rows), path_laplacian(cols))
    return on_graph("grid", links, rule, spectrum, rows=rows, cols=cols)


@register("torus")
def torus(n: int, *, rows: int | None = None, cols: int | None = None, rule: str = "metropolis") -> Topology:
    r"""A rectangle of workers wrapped around both ways, each with four neighbours at weight 1/5.

    The most square factorisation of n unless rows or cols say otherwise (a prime n is a ring). A side of 2 has one
    neighbour that way, not the same one twice, and a side of 1 has none; with d neighbours in all every weight is
    1/(1+d), so W is doubly stochastic at any shape. With sides a, b >= 3,
    $\lambda_{ij} = (1 + 2\cos(2\pi i/a) + 2\cos(2\pi j/b))/5$ and, once the longer side is at least 4, the gap is
    $\tfrac45\sin^2(\pi/\max(a,b))$.
    """
    rows, cols = two_sides("torus", n, rows, cols)
    r, c = np.divmod(np.arange(n), cols)
    columns = [r * cols + (c + hop) % cols for hop in _hops(cols)]
    columns += [(r + hop) % rows * cols + c for hop in _hops(rows)]
    links = neighbour_table(np.stack(columns, axis=1) if columns else np.empty((n, 0), dtype=np.int64))
    spectrum = _product(rows, cols, lattice_laplacian(rows, 2), lattice_laplacian(cols, 2))
    return on_graph("torus", links, rule, spectrum, rows=rows, cols=cols)


def path_laplacian(n: int) -> Laplacian:
    r"""The Laplacian of the path: $4\sin^2(\pi k/2n)$."""
    return Laplacian(
        4.0 * sin(pi / (2 * n)) ** 2,
        4.0 * cos(pi / (2 * n)) ** 2,
        lambda: 4.0 * np.sin(pi * np.arange(n) / (2 * n)) ** 2,
        "path: 4 sin²(pi k/2n)",
    )


def _hops(side: int) -> tuple[int, ...]:
    """The distinct neighbours along a wrapped side."""
    return () if side == 1 else (1,) if side == 2 else (-1, 1)


def _product(rows: int, cols: int, down: Laplacian, across: Laplacian) -> Laplacian:
    """The Laplacian of the product of two graphs; a side of 1 contributes nothing."""
    sides = [s for length, s in ((rows, down), (cols, across)) if length > 1]

    def every() -> np.ndarray:
        return np.add.outer(down.eigenvalues(), across.eigenvalues()).ravel()

    smallest = min((s.smallest for s in sides), default=0.0)
    return Laplacian(smallest, sum(s.largest for s in sides), every, "sums of the spectra of the sides")
