"""Everybody with everybody, and everybody with one."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.registry import register
from dissensus.theory.topologies.rounds import Laplacian, edges, on_graph
from dissensus.theory.topologies.sizes import wrong_size
from dissensus.theory.topology import ClosedForm, Topology

LARGEST_COMPLETE = 5000
"""All n² weights are stored; beyond this a step of exact averaging wants no matrix."""


@register("complete")
def complete(n: int) -> Topology:
    r"""All-to-all averaging, exact at every step.

    $W = 11^\top/n$: the eigenvalues are 1 once and 0 otherwise, the spectral gap is 1. The n² weights are stored, so n
    is limited to 5000.
    """
    if n > LARGEST_COMPLETE:
        needs = f"at most {LARGEST_COMPLETE} workers (all n² weights are stored)"
        raise wrong_size("complete", needs, n, LARGEST_COMPLETE, None)
    w = MixingMatrix(sp.csr_array(np.full((n, n), 1.0 / n)))
    known = ClosedForm(1.0, 0.0, lambda: np.eye(1, n).ravel(), "W = J")
    return Topology("complete", n, (w,), closed_form=known)


@register("star")
def star(n: int, *, rule: str = "metropolis") -> Topology:
    r"""Worker 0 in the middle, everybody else linked to it alone.

    Metropolis weights are 1/n on every link: the centre averages, a leaf keeps 1 - 1/n. The Laplacian has the values
    0, 1 (n - 2 times) and n, so W has 1, 1 - 1/n and 0, and the gap is 1/n.
    """
    leaves = np.arange(1, n)
    spectrum = Laplacian(1.0 if n > 2 else 2.0, float(n), lambda: _star_laplacian(n), "star: {0, 1, ..., 1, n}")
    return on_graph("star", edges(n, np.zeros_like(leaves), leaves), rule, spectrum)


def _star_laplacian(n: int) -> np.ndarray:
    values = np.ones(n)
    values[0], values[-1] = 0.0, n
    return values
