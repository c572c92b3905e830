r"""The shapes that rounds are made of: shifts, pairs, groups, and one weight on every link of a graph.

A graph whose links all carry the weight $a$ mixes with $W = I - aL$, so every eigenvalue of the Laplacian $L$ known in
closed form gives one of W, and without cancellation

$$ 1 - \max_{k\ge2}|\lambda_k(W)| = \min\{a\,\ell_2,\; 2 - a\,\ell_n\}, \qquad 0 < \ell_2 \le \dots \le \ell_n . $$
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.topology import ClosedForm, Topology

ALONE = ClosedForm(spectral_gap=1.0, contraction=0.0, eigenvalues=lambda: np.ones(1), source="one worker: W = 1")
"""The closed form of a single worker, who always agrees with everybody."""


def alone(name: str, **parameters: Any) -> Topology:
    """The topology of a single worker: the identity."""
    return Topology(name, 1, (MixingMatrix.identity(1),), parameters=parameters, closed_form=ALONE)


def shifts(n: int, hops: Iterable[int], weights: float | Iterable[float]) -> sp.csr_array:
    """The circulant matrix in which worker i gives the weights to what it receives from i - hop, all modulo n.

    The hops must differ modulo n.
    """
    offset = -np.asarray(list(hops), dtype=np.int64) % n
    order = np.argsort(offset)
    w = np.broadcast_to(np.asarray(weights if isinstance(weights, int | float) else list(weights), float), offset.shape)
    offset, w = offset[order], w[order]
    i = np.arange(n, dtype=np.int64)[:, None]
    # row i is sorted once the senders that wrapped around come first: a rotation, no sorting of n rows
    turned = (np.arange(len(offset)) + np.searchsorted(offset, n - i)) % len(offset)
    return _rows((i + offset[turned]) % n, w[turned])


def neighbour_table(table: np.ndarray) -> sp.csr_array:
    """The adjacency of a regular graph from the (n, degree) table of neighbours, which must differ within a row."""
    return _rows(np.sort(table, axis=1), np.ones(table.shape))


def edges(n: int, i: np.ndarray, j: np.ndarray) -> sp.csr_array:
    """The symmetric adjacency of n workers with the links i[e] - j[e], each listed once."""
    ends = (np.concatenate([i, j]), np.concatenate([j, i]))
    return sp.csr_array((np.ones(2 * len(i)), ends), shape=(n, n))


def pairs(partner: np.ndarray, weight: float = 0.5) -> MixingMatrix:
    """The round in which worker i mixes with partner[i] (itself: idle) at this weight."""
    n = len(partner)
    i = np.arange(n)
    busy = partner != i
    other = sp.csr_array((np.full(busy.sum(), weight), (i[busy], partner[busy])), shape=(n, n))
    return MixingMatrix(sp.csr_array(other + sp.diags_array(np.where(busy, 1.0 - weight, 1.0))))


def group_weights(labels: np.ndarray) -> sp.csr_array:
    """The matrix in which all workers with the same label average among themselves."""
    n = len(labels)
    _, group, size = np.unique(labels, return_inverse=True, return_counts=True)
    member = sp.csr_array((np.ones(n), (np.arange(n), group)), shape=(n, len(size)))
    return sp.csr_array(member @ sp.diags_array(1.0 / size) @ member.T)


def groups(labels: np.ndarray) -> MixingMatrix:
    """The round in which all workers with the same label average among themselves."""
    return MixingMatrix(group_weights(labels))


@dataclass(frozen=True)
class Laplacian:
    """The Laplacian spectrum of a connected graph in closed form: its smallest and largest nonzero value, and all."""

    smallest: float
    largest: float
    eigenvalues: Callable[[], np.ndarray]
    source: str

    def with_weight(self, a: float) -> ClosedForm:
        """The closed form of W = I - aL."""
        gap = min(a * self.smallest, 2.0 - a * self.largest)
        if abs(1.0 - gap) < 1e-15:
            gap = 1.0  # exact averaging, up to the rounding of a and of the extremes
        every = self.eigenvalues
        return ClosedForm(gap, 1.0 - gap, lambda: 1.0 - a * every(), self.source)


def on_graph(
    name: str, adjacency: sp.csr_array, rule: str, spectrum: Laplacian | None = None, **parameters: Any
) -> Topology:
    """A static topology on an undirected graph: weights by the rule, the closed form from the spectrum if known."""
    from dissensus.theory.weights import complete_diagonal, weigh

    n, rule = len(adjacency.indptr) - 1, rule.replace("_", "-")
    parameters = {**parameters, "rule": rule}
    a = None if spectrum is None or n == 1 else _one_weight(adjacency, rule, spectrum)
    if rule == "best-constant" and a is not None:  # known exactly: no eigenvalues to compute
        w = complete_diagonal(a * adjacency, signed=True)
    else:
        w = weigh(adjacency, rule)
    known = ALONE if n == 1 else ClosedForm() if a is None or spectrum is None else spectrum.with_weight(a)
    return Topology(name, n, (w,), parameters=parameters, closed_form=known)


def _one_weight(adjacency: sp.csr_array, rule: str, spectrum: Laplacian) -> float | None:
    """The weight that the rule puts on every link, or None where links differ or only a program knows."""
    degree = np.diff(adjacency.indptr)
    a = 1.0 / (1.0 + degree.max())
    match rule:
        case "max-degree":
            return a
        case "best-constant":
            return 2.0 / (spectrum.smallest + spectrum.largest)
        case "metropolis" | "uniform" | "lazy" as mild:
            # every link touches a worker of the largest degree: then Metropolis has one weight for all of them
            inner = sp.diags_array((degree < degree.max()).astype(float))
            uneven = (inner @ adjacency @ inner).count_nonzero()
            return None if uneven else a / 2 if mild == "lazy" else a
    return None


def _rows(columns: np.ndarray, weights: np.ndarray) -> sp.csr_array:
    """A CSR array from tables of columns and weights, each row as long as the others and sorted by column."""
    n, width = columns.shape
    indptr = width * np.arange(n + 1, dtype=np.int64)
    return sp.csr_array((weights.ravel(), columns.ravel(), indptr), shape=(n, n))
