r"""The two ends of the disagreement spectrum of a large sparse symmetric doubly stochastic W.

On the vectors that sum to zero, the eigenvalues of W lie in [-1, 1]; what matters is how near they come to either end,

$$ \text{top} = 1-\lambda_2, \qquad \text{bottom} = 1+\lambda_n, \qquad \text{gap} = \min(\text{top},\text{bottom}) . $$

Good expanders (top of order one) are settled by a few Lanczos steps on W; their factors would fill in. Poor ones (a
ring has top of order 1/n²) defeat Lanczos, but separate well: I - W without worker 0 (the *grounded* Laplacian) is
factored by sparse LU, and Lanczos on the projected pseudo-inverse converges at once. Its eigenvector is put into the
Rayleigh quotient $\sum_{i<j} w_{ij}(u_i-u_j)^2/|u|^2$, which has no cancellation: a gap of 1e-11 keeps its digits.

The dispatch and the accounting of errors are ours; the parts are classical (Lanczos 1950; the random-start bound of
Kuczyński and Woźniakowski 1992).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError

EPS = float(np.finfo(np.float64).eps)
DENSE_LIMIT = 500
"""Up to this n the dense eigenvalues are cheap and need no thought."""
SHORT, LONG = 100, 3000
"""Lanczos steps before a factorisation is thought of, and when none is possible."""
WIDEST = 6000
"""The widest breadth-first level (a separator) for which factors are affordable: their work grows as its cube."""

Route = Literal["auto", "dense", "fft", "lanczos", "grounded"]


@dataclass(frozen=True)
class Edge:
    """How far the spectrum stays from one end (1 or -1), with an absolute error and how it was found."""

    value: float
    error: float
    method: str


@dataclass(frozen=True)
class Ritz:
    """The extreme Ritz values of a Lanczos run, their error estimates, and the top vector if the basis was kept."""

    low: float
    low_error: float
    high: float
    high_error: float
    steps: int
    vector: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)


def lanczos(
    apply: Callable[[np.ndarray], np.ndarray],
    n: int,
    *,
    converged: Callable[[Ritz], bool],
    steps: int,
    project: bool = True,
    keep: bool = False,
    seed: int = 0,
) -> Ritz:
    r"""Lanczos on a symmetric operator from a random start, on the vectors that sum to zero if `project`.

    The error of a Ritz value is its residual, within which some eigenvalue lies. (The square of it over the distance to
    the next eigenvalue would be far smaller, but the next *Ritz* value does not tell that distance as long as two
    eigenvalues have not parted.) With `keep` the basis is stored, reorthogonalised, and the top Ritz vector returned.
    """
    q = np.random.default_rng(seed).standard_normal(n)
    if project:
        q -= q.mean()
    q /= np.linalg.norm(q)
    steps = min(steps, n - 1 if project else n)
    previous, basis = np.zeros(n), [q]
    alpha: list[float] = []
    beta: list[float] = []
    scale, check = 0.0, 10
    while True:
        v = apply(q)
        alpha.append(float(q @ v))
        v -= alpha[-1] * q
        if beta:
            v -= beta[-1] * previous
        if keep:
            for _ in range(2):
                for b in basis:
                    v -= (b @ v) * b
        if project:
            v -= v.mean()
        beta.append(float(np.linalg.norm(v)))
        scale = max(scale, abs(alpha[-1]), beta[-1])
        m, invariant = len(alpha), beta[-1] <= 1e3 * EPS * max(scale, 1e-300)
        if invariant or m >= steps or m >= check:
            found = _ritz(np.array(alpha), np.array(beta), exhausted=m >= (n - 1 if project else n))
            if invariant or m >= steps or converged(found):
                break
            check = m + max(10, m // 10)
        previous, q = q, v / beta[-1]
        if keep:
            basis.append(q)
    if not keep:
        return found
    from scipy.linalg import eigh_tridiagonal

    _, top = eigh_tridiagonal(np.array(alpha), np.array(beta[:-1]), select="i", select_range=(m - 1, m - 1))
    u = sum((c * b for c, b in zip(top[:, 0], basis, strict=False)), np.zeros(n))
    return Ritz(found.low, found.low_error, found.high, found.high_error, m, u / np.linalg.norm(u))


def _ritz(alpha: np.ndarray, beta: np.ndarray, *, exhausted: bool) -> Ritz:
    from scipy.linalg import eigh_tridiagonal

    m = len(alpha)
    if m == 1:
        r = 0.0 if exhausted else float(beta[-1])
        return Ritz(float(alpha[0]), r, float(alpha[0]), r, 1)
    lows, low_vectors = eigh_tridiagonal(alpha, beta[:-1], select="i", select_range=(0, 1))
    highs, high_vectors = eigh_tridiagonal(alpha, beta[:-1], select="i", select_range=(m - 2, m - 1))
    last = 0.0 if exhausted else float(beta[-1])
    floor = 4 * EPS * max(abs(lows[0]), abs(highs[1]))

    return Ritz(
        float(lows[0]),
        float(floor + abs(last * low_vectors[-1, 0])),
        float(highs[1]),
        float(floor + abs(last * high_vectors[-1, 1])),
        m,
    )


def edges(w: sp.csr_array, *, tol: float, positive: bool = False, route: Route = "auto") -> tuple[Edge, Edge | None]:
    """Top and bottom of a symmetric doubly stochastic W with n >= 2; bottom is `None` where it cannot matter.

    `positive` says that W has no negative eigenvalues (it is a Gram matrix), so that there is no bottom to look for.
    """
    from scipy.sparse.csgraph import connected_components

    n = _size(w)
    if connected_components(w, directed=False)[0] > 1:
        return Edge(0.0, 0.0, "disconnected"), None
    if route == "dense" or (route == "auto" and n <= DENSE_LIMIT):
        dense, error = w.toarray(), n * EPS
        if w.data.min() < 0:  # then an eigenvalue may lie above that of consensus, which is moved out of the way
            dense = dense + (1.0 + np.abs(dense).sum(axis=1).max()) / n
        values = np.linalg.eigvalsh(dense)
        return Edge(1.0 - float(values[-2]), error, "dense"), Edge(1.0 + float(values[0]), error, "dense")
    limit = _bottom_at_least(w)

    def settled(r: Ritz) -> bool:
        top, bottom = 1.0 - r.high, 1.0 + r.low
        sure = positive or limit > top or 1.0 + r.low - chance(r.steps, n) > top
        return r.high_error <= tol * top and (sure or r.low_error <= tol * bottom)

    def read(r: Ritz) -> tuple[Edge, Edge | None]:
        top = Edge(1.0 - r.high, r.high_error, "lanczos")
        return top, None if positive else Edge(1.0 + r.low, r.low_error, "lanczos")

    ritz = None
    if route in ("auto", "lanczos"):
        steps = SHORT if route == "auto" else LONG
        ritz = lanczos(lambda v: w @ v, n, converged=settled, steps=steps)
        if settled(ritz) or route == "lanczos":
            return read(ritz)
    width = separator(w)
    if width > WIDEST and ritz is not None:
        return read(lanczos(lambda v: w @ v, n, converged=settled, steps=LONG))
    top = _grounded_top(w, tol)
    if positive or limit >= top.value + top.error:
        return top, None
    if ritz is not None and 1.0 + ritz.low - chance(ritz.steps, n) > top.value + top.error:
        converged = ritz.low_error <= tol * (1.0 + ritz.low)
        return top, Edge(1.0 + ritz.low, ritz.low_error, "lanczos") if converged else None
    return top, _factored_bottom(w, tol)


def chance(steps: int, n: int, probability: float = 1e-9) -> float:
    r"""How far a Lanczos end may still be from the true one, except with this probability over the random start.

    $\lambda_1-\theta \le \epsilon(\lambda_1-\lambda_n)$ but with probability at most
    $1.648\sqrt n\, e^{-\sqrt\epsilon(2m-1)}$ (Kuczyński and Woźniakowski 1992); the spread is at most 2.
    """
    return 2.0 * min(1.0, (np.log(1.648 * np.sqrt(n) / probability) / (2 * steps - 1)) ** 2)


def separator(w: sp.csr_array) -> int:
    """The widest breadth-first level once trees are stripped off: how much a sparse factorisation will fill in."""
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    core = sp.csr_array(w - sp.diags_array(w.diagonal()))
    core.eliminate_zeros()
    for _ in range(64):
        keep = np.flatnonzero(np.diff(core.indptr) > 1)
        if len(keep) in (0, _size(core)):
            break
        core = sp.csr_array(core[keep][:, keep])
    else:
        keep = np.arange(_size(core))
    if len(keep) == 0:
        return 1
    widest = 1
    _, label = connected_components(core, directed=False)
    sizes = np.bincount(label)
    for c in np.argsort(-sizes)[:16]:
        if sizes[c] <= widest:
            break
        start = int(np.argmax(label == c))
        order, _ = breadth_first_order(core, start, directed=False)
        order, parent = breadth_first_order(core, int(order[-1]), directed=False)
        widest = max(widest, int(np.bincount(_depth(parent, order)).max()))
    return widest


def _depth(parent: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Hops to the root for every worker in `order`, by pointer jumping."""
    ancestor = np.where(parent < 0, np.arange(len(parent)), parent)
    depth = (parent >= 0).astype(np.int64)
    while True:
        further = depth[ancestor]
        if not further.any():
            return depth[order]
        depth = depth + further
        ancestor = ancestor[ancestor]


def _bottom_at_least(w: sp.csr_array) -> float:
    """Gershgorin: 1 + lambda_n is at least the smallest 1 + w_ii - sum of |w_ij|, which is 2 w_ii without signs."""
    diagonal = w.diagonal()
    off = np.asarray(abs(w).sum(axis=1)).ravel() - np.abs(diagonal)
    return float(np.min(1.0 + diagonal - off))


def _size(w: sp.csr_array) -> int:
    return len(w.indptr) - 1


def _split(w: sp.csr_array) -> tuple[sp.coo_array, np.ndarray, np.ndarray]:
    """The links above the diagonal, each worker's total link weight, and the diagonal."""
    upper = sp.coo_array(sp.triu(w, k=1))
    i, j = upper.coords
    degree = np.bincount(i, upper.data, _size(w)) + np.bincount(j, upper.data, _size(w))
    return upper, degree, w.diagonal()


def _factor(a: sp.sparray) -> Callable[[np.ndarray], np.ndarray]:
    from scipy.sparse.linalg import splu

    lu = splu(sp.csc_array(a), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    return lu.solve


def _grounded_top(w: sp.csr_array, tol: float) -> Edge:
    n = _size(w)
    upper, degree, _ = _split(w)
    laplacian = sp.csr_array(sp.diags_array(degree) - upper - upper.T)
    solve = _factor(laplacian[1:, 1:])

    def pseudo_inverse(v: np.ndarray) -> np.ndarray:
        y = np.empty(n)
        y[0] = 0.0
        y[1:] = solve(v[1:])
        return y - y.mean()

    ritz = lanczos(pseudo_inverse, n, converged=lambda r: r.high_error <= 1e-2 * tol * r.high, steps=80, keep=True)
    if ritz.low < -1e-6 * ritz.high:
        raise MixingError(
            f"an eigenvalue {1 - 1 / ritz.low:.6g} of W lies above 1 (negative weights): such a W does not mix"
        )
    u = _smoothed(ritz, pseudo_inverse)
    i, j = upper.coords
    value = float(upper.data @ (u[i] - u[j]) ** 2)
    return _from_vector(value, laplacian @ u - value * u)


def _factored_bottom(w: sp.csr_array, tol: float) -> Edge:
    n = _size(w)
    upper, degree, diagonal = _split(w)
    signless = sp.csr_array(sp.diags_array(degree + 2 * diagonal) + upper + upper.T)
    try:
        solve = _factor(signless)
    except RuntimeError:  # exactly singular: a bipartite graph on which nobody keeps anything
        return Edge(0.0, n * EPS, "factored")
    ritz = lanczos(
        solve, n, converged=lambda r: r.high_error <= 1e-2 * tol * r.high, steps=80, project=False, keep=True
    )
    u = _smoothed(ritz, solve)
    i, j = upper.coords
    value = float(upper.data @ (u[i] + u[j]) ** 2 + 2 * diagonal @ u**2)
    edge = _from_vector(value, signless @ u - value * u)
    return Edge(edge.value, edge.error, "factored")


def _smoothed(ritz: Ritz, inverse: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The top Ritz vector after two steps of inverse iteration, which take out what is rough in it."""
    u = ritz.vector
    for _ in range(2):
        u = inverse(u)
        u /= np.linalg.norm(u)
    return u


def _from_vector(value: float, residual: np.ndarray) -> Edge:
    """A Rayleigh quotient and its residual, within which an eigenvalue lies."""
    return Edge(value, float(np.linalg.norm(residual)) + 16 * EPS * value, "grounded")
