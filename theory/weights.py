r"""Weights for a graph: which doubly stochastic W lives on given links between workers.

With degrees $d_i$ and the Laplacian $L = D - A$ of an undirected graph,

| rule | weights |
| --- | --- |
| `metropolis` | $w_{ij} = 1/(1+\max(d_i, d_j))$, the rest kept |
| `lazy` | $(I + W)/2$ of Metropolis: no negative eigenvalue |
| `uniform` | $w_{ij} = 1/(1+d_i)$: doubly stochastic on regular graphs only, refused elsewhere |
| `max-degree` | $W = I - L/(1+d_{\max})$ |
| `best-constant` | $W = I - aL$, $a = 2/(\lambda_2(L)+\lambda_n(L))$, the fastest with one weight for all links |
| `fdla`, `budget` | the fastest of all on these links, and under a cost budget: see `optimal_weights` |

Reference: Xiao and Boyd, Fast linear iterations for distributed averaging (2004), for the last three lines.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dissensus.theory.errors import MixingError, nearest
from dissensus.theory.mixing import MixingMatrix

if TYPE_CHECKING:
    import networkx as nx

DENSE_LIMIT = 1500
"""Up to this many workers the Laplacian's eigenvalues are computed densely."""


def weigh(
    adjacency: sp.sparray | sp.spmatrix | np.ndarray | nx.Graph, rule: str = "metropolis", **options: Any
) -> MixingMatrix:
    """Weights on the links of an undirected graph, by the named rule.

    `adjacency` is a networkx graph (workers in the order of its nodes) or a symmetric matrix of which only the pattern
    counts. `options` belong to the rule: `nonnegative` of `fdla`; `cost`, `budget` and `nonnegative` of `budget`.
    """
    wanted = rule.replace("_", "-")
    if wanted not in RULES:
        raise MixingError(f"unknown weights {rule!r}{nearest(wanted, RULES)}")
    build = RULES[wanted]
    parameters = list(inspect.signature(build).parameters.values())[1:]
    for key in options:
        if key not in [p.name for p in parameters]:
            known = nearest(key, [p.name for p in parameters]) if parameters else ": it takes none"
            raise MixingError(f"weights {wanted!r} have no option {key!r}{known}")
    for p in parameters:
        if p.default is p.empty and p.name not in options:
            raise MixingError(f"weights {wanted!r} need the option {p.name!r}")
    return build(links(adjacency), **options)


def links(adjacency: sp.sparray | sp.spmatrix | np.ndarray | nx.Graph) -> sp.csr_array:
    """The checked links of an undirected graph: a symmetric CSR pattern of ones with an empty diagonal."""
    a = as_pattern(adjacency)
    one_way = sp.coo_array(a - a.multiply(a.T))
    one_way.eliminate_zeros()
    if one_way.nnz:
        i, j = int(one_way.coords[0][0]), int(one_way.coords[1][0])
        raise MixingError(
            f"the graph is not undirected: entry ({i}, {j}) is a link but ({j}, {i}) is not; "
            "these weights need links that go both ways (add the transpose, or use a directed topology)"
        )
    return a


def as_pattern(adjacency: sp.sparray | sp.spmatrix | np.ndarray | nx.Graph) -> sp.csr_array:
    """The checked links of a graph, directed or not: a CSR pattern of ones with an empty diagonal."""
    if hasattr(adjacency, "to_undirected"):
        import networkx as nx

        graph: Any = adjacency
        if len(graph) == 0:
            raise MixingError("a graph needs at least one worker, got one without nodes")
        unweighted: Any = None
        a: Any = sp.csr_array(nx.to_scipy_sparse_array(graph, weight=unweighted, dtype=np.float64, format="csr"))
    else:
        try:
            a = sp.csr_array(adjacency, dtype=np.float64, copy=True)
        except (TypeError, ValueError) as error:
            raise MixingError(f"an adjacency must be a networkx graph or a square array of numbers: {error}") from None
    if a.ndim != 2 or a.shape[0] != a.shape[1] or a.shape[0] == 0:
        raise MixingError(f"an adjacency must be square with at least one worker, got shape {a.shape}")
    a.sum_duplicates()
    bad = ~(np.isfinite(a.data) & (a.data >= 0))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        i = int(np.searchsorted(a.indptr, at, side="right") - 1)
        raise MixingError(
            f"the link ({i}, {a.indices[at]}) has the entry {a.data[at]:.6g}; "
            "an adjacency holds 1 (or any positive number) for a link and 0 for none"
        )
    a.eliminate_zeros()
    a.sort_indices()
    loops = np.flatnonzero(a.diagonal())
    if len(loops):
        raise MixingError(
            f"worker {loops[0]} has a link to itself; what a worker keeps follows from the other weights, so remove "
            "self loops (set the diagonal to 0, or graph.remove_edges_from(nx.selfloop_edges(graph)))"
        )
    a.data[:] = 1.0
    return a


def size_of(a: sp.csr_array) -> int:
    """The number of workers of links or weights in CSR form."""
    return len(a.indptr) - 1


def laplacian(a: sp.csr_array) -> sp.csr_array:
    """L = D - A of checked links."""
    return sp.csr_array(sp.diags_array(_degrees(a).astype(np.float64)) - a)


def complete_diagonal(off: sp.csr_array, *, signed: bool = False) -> MixingMatrix:
    """The mixing matrix with these symmetric off-diagonal weights: every worker keeps what its row lacks to one."""
    keep = 1.0 - np.asarray(off.sum(axis=1)).ravel()
    keep[np.abs(keep) <= 8 * np.finfo(float).eps] = 0.0  # the rounding of this difference, not a weight
    return MixingMatrix(sp.csr_array(off + sp.diags_array(keep)), signed=signed)


def _metropolis(a: sp.csr_array) -> MixingMatrix:
    d = _degrees(a)
    data = 1.0 / (1.0 + np.maximum(np.repeat(d, d), d[a.indices]))
    return complete_diagonal(sp.csr_array((data, a.indices, a.indptr), shape=a.shape))


def _lazy(a: sp.csr_array) -> MixingMatrix:
    return _metropolis(a).adapted(0.5)


def _uniform(a: sp.csr_array) -> MixingMatrix:
    d = _degrees(a)
    rows = np.repeat(np.arange(size_of(a)), d)
    uneven = np.flatnonzero(d[rows] != d[a.indices])
    if len(uneven):
        i, j = int(rows[uneven[0]]), int(a.indices[uneven[0]])
        raise MixingError(
            f"uniform weights 1/(1+degree) are doubly stochastic on regular graphs only: the linked workers {i} and "
            f"{j} have degrees {d[i]} and {d[j]}; use weights 'metropolis'"
        )
    return _metropolis(a)  # on a regular graph the two rules are one


def _max_degree(a: sp.csr_array) -> MixingMatrix:
    return complete_diagonal(a * (1.0 / (1.0 + _degrees(a).max())))


def _best_constant(a: sp.csr_array) -> MixingMatrix:
    if size_of(a) == 1:
        return MixingMatrix.identity(1)
    refuse_disconnected(a, "the best constant weight")
    low, high = _laplacian_extremes(laplacian(a))
    return complete_diagonal(a * (2.0 / (low + high)), signed=True)


def _fdla(a: sp.csr_array, nonnegative: bool = False) -> MixingMatrix:
    from dissensus.theory.optimal_weights import fastest_mixing

    return fastest_mixing(a, nonnegative=nonnegative).matrix


def _budget(a: sp.csr_array, cost: Any, budget: float, nonnegative: bool = False) -> MixingMatrix:
    from dissensus.theory.optimal_weights import fastest_under_budget

    return fastest_under_budget(a, cost, budget, nonnegative=nonnegative).matrix


RULES: Mapping[str, Callable[..., MixingMatrix]] = {
    "metropolis": _metropolis,
    "lazy": _lazy,
    "uniform": _uniform,
    "max-degree": _max_degree,
    "best-constant": _best_constant,
    "fdla": _fdla,
    "budget": _budget,
}
"""Every rule by name: from checked links (and the rule's options) to a mixing matrix."""


def refuse_disconnected(a: sp.csr_array, what: str) -> None:
    """Refuses links that leave two workers without a path, naming them."""
    count, label = connected_components(a, directed=False)
    if count > 1:
        other = int(np.flatnonzero(label != label[0])[0])
        raise MixingError(f"{what} needs a connected graph: there is no path from worker 0 to worker {other}")


def _degrees(a: sp.csr_array) -> np.ndarray:
    return np.diff(a.indptr)


def _laplacian_extremes(lap: sp.csr_array) -> tuple[float, float]:
    """The smallest nonzero and the largest eigenvalue of the Laplacian of a connected graph.

    Beyond `DENSE_LIMIT` by Lanczos: where it does not converge (long rings, grids) the factorisation that shift and
    invert needs is cheap, and where that fills in (expanders) plain Lanczos converges.
    """
    n = size_of(lap)
    if n <= DENSE_LIMIT:
        values = np.linalg.eigvalsh(lap.toarray())
        return float(values[1]), float(values[-1])
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    d = lap.diagonal()
    coo = sp.coo_array(lap)
    bound = float((d[coo.coords[0]] + d[coo.coords[1]])[coo.data < 0].max())  # Anderson and Morley: above lambda_n
    options: dict[str, Any] = {"v0": np.random.default_rng(0).standard_normal(n), "tol": 1e-11}
    patience: dict[str, Any] = {"which": "LA", "ncv": 20, "maxiter": 100 if n < 20_000 else 10}

    def flipped(x: np.ndarray) -> np.ndarray:
        """Applies bound - L, with the constant vector moved from the top to the bottom of the spectrum."""
        x = x.ravel()
        return bound * (x - x.mean()) - lap @ x

    def by_factors(shift: float, k: int) -> float:
        return float(eigsh(sp.csc_array(lap), k=k, sigma=shift, which="LM", **options)[0].max())

    flip: Any = LinearOperator((n, n), matvec=flipped, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    try:
        high = float(eigsh(lap, k=1, **patience, **options)[0][0])
    except ArpackNoConvergence:
        high = by_factors(bound * (1.0 + 1e-9), 1)
    try:
        low = bound - float(eigsh(flip, k=1, **patience, **options)[0][0])
    except ArpackNoConvergence:
        low = by_factors(-1e-9 * bound, 2)
    return low, high
