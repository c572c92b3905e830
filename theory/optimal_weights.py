r"""The fastest mixing weights on given links, with a certificate that nothing faster exists.

Over symmetric W with rows summing to one and nothing outside the links, written $W = I - \sum_e w_e\, b_e b_e^\top$
with $b_e = e_i - e_j$ for the link e = (i, j), minimise $\rho(W) = \|W - J\|_2$, $J = 11^\top/n$: a semidefinite
program (FDLA; FMMC if the weights may not be negative; Xiao and Boyd, Fast linear iterations for distributed
averaging, 2004). A budget adds $\sum_e c_e |w_e| \le B$.

**The certificate** (ours, elementary). For any symmetric Z with nuclear norm at most one,

$$ \|W-J\|_2 \ge \langle Z, W-J\rangle = \langle Z, I-J\rangle - \sum_e w_e r_e, \qquad r_e = b_e^\top Z b_e . $$

Some optimal W has $\|W\|_2\le1$, hence $|w_e|\le1$, so that for every $\mu\ge0$ (and, without negative weights, every
$v\ge0$, because then $\sum_{e\ni i} w_e\le1$ at each worker)

$$ \sum_e w_e r_e \;\le\; \mu B + \sum_i v_i + \sum_e \big(|r_e| - v_i - v_j - \mu c_e\big)_+ $$

with $r_e$ in place of $|r_e|$ where weights are not negative. The right-hand side is evaluated here in numpy, after Z
has been normalised: whatever the solver did, `lower_bound` is a bound, up to the rounding of an eigendecomposition.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.weights import complete_diagonal, links, refuse_disconnected, size_of

GAP_TOLERANCE = 1e-6
"""How far the value found may lie above the lower bound to be called certified."""
UNUSED = 1e-8
"""Links with a smaller weight than this are noise of the solver: they are dropped."""


@dataclass(frozen=True)
class Optimum:
    """The fastest mixing matrix found, how fast it is, and how fast anything can be."""

    matrix: MixingMatrix
    value: float
    """The contraction ||W - J||_2 of `matrix`, recomputed from its weights."""
    lower_bound: float
    """No admissible W contracts faster than this: checked by weak duality, independently of the solver."""
    status: str
    """What the solver said of its own answer."""

    @property
    def certified(self) -> bool:
        """Whether the solver claims the optimum and our own lower bound agrees to `GAP_TOLERANCE`."""
        return self.status == "optimal" and self.value - self.lower_bound <= GAP_TOLERANCE


@dataclass(frozen=True)
class Problem:
    """The links e = (i, j) with i < j, and what they may cost in all; `nonnegative` also keeps self weights >= 0."""

    n: int
    i: np.ndarray
    j: np.ndarray
    nonnegative: bool
    cost: np.ndarray | None = None
    """The cost of each link, or `None` where no budget binds."""
    budget: float = 0.0

    def matrix(self, w: np.ndarray) -> MixingMatrix:
        """The mixing matrix with weight w_e on link e: symmetric, and the self weights make the sums one."""
        ends = (np.concatenate([self.i, self.j]), np.concatenate([self.j, self.i]))
        off = sp.csr_array((np.concatenate([w, w]), ends), shape=(self.n, self.n))
        return complete_diagonal(off, signed=not self.nonnegative)

    def totals(self, w: np.ndarray) -> np.ndarray:
        """The sum of w_e over the links of each worker."""
        return np.bincount(self.i, w, self.n) + np.bincount(self.j, w, self.n)


def fastest_mixing(adjacency: Any, *, nonnegative: bool = False) -> Optimum:
    """The symmetric W on these links with the smallest ||W - J||_2: FDLA, or FMMC if no weight may be negative."""
    return _solve(_problem(adjacency, nonnegative))


def fastest_under_budget(adjacency: Any, cost: Any, budget: float, *, nonnegative: bool = False) -> Optimum:
    r"""The fastest symmetric W whose links cost no more than the budget, $\sum_{i<j} c_{ij}|w_{ij}| \le B$.

    `cost` is a symmetric matrix of what one full use of the link i - j costs (seconds, bytes, money), 0 for a free
    link. With `nonnegative` weights this is half the expected cost of a step when each worker listens to one
    other, drawn as in `permutation_schedule(W)`: `w_ij` is how often a link is used, so slow links are used rarely
    rather than not at all. No budget (`inf`) gives `fastest_mixing`; a budget of zero leaves only the free links.
    """
    free = _problem(adjacency, nonnegative)
    if not budget >= 0:
        raise MixingError(f"the budget must be at least 0, got {budget}; 0 leaves the free links, inf is no budget")
    c = _costs(cost, free)
    if budget >= c.sum():  # no weight exceeds one: the budget cannot bind
        return _solve(free)
    return _solve(Problem(free.n, free.i, free.j, nonnegative, c, float(budget)))


def _problem(adjacency: Any, nonnegative: bool) -> Problem:
    a = links(adjacency)
    refuse_disconnected(a, "the fastest mixing matrix")
    upper = sp.coo_array(sp.triu(a, k=1))
    return Problem(size_of(a), *(np.asarray(c, dtype=np.int64) for c in upper.coords), nonnegative=nonnegative)


def _costs(cost: Any, p: Problem) -> np.ndarray:
    c = np.asarray(cost.toarray() if sp.issparse(cost) else cost, dtype=np.float64)
    if c.shape != (p.n, p.n):
        raise MixingError(f"the costs must be a {p.n} x {p.n} matrix like the adjacency, got shape {c.shape}")
    forth, back = c[p.i, p.j], c[p.j, p.i]
    bad = np.flatnonzero(~(np.isfinite(forth) & (forth >= 0)))
    if len(bad):
        e = bad[0]
        raise MixingError(
            f"the link ({p.i[e]}, {p.j[e]}) has the cost {forth[e]:.6g}: a cost is a number of at least 0 "
            "(leave a link out of the adjacency to forbid it)"
        )
    uneven = np.flatnonzero(forth != back)
    if len(uneven):
        e = uneven[0]
        raise MixingError(
            f"the costs are not symmetric: link ({p.i[e]}, {p.j[e]}) costs {forth[e]:.6g} one way and {back[e]:.6g} "
            "the other; the weights are symmetric, so give both ways one cost (their sum or their larger)"
        )
    return forth


def _solve(p: Problem) -> Optimum:
    n, m = p.n, len(p.i)
    if n == 1:
        return Optimum(MixingMatrix.identity(1), 0.0, 0.0, "optimal")
    cp = _cvxpy()
    at = np.arange(m)
    rows = np.concatenate([p.i * n + p.i, p.j * n + p.j, p.i * n + p.j, p.j * n + p.i])
    signs = np.repeat([1.0, 1.0, -1.0, -1.0], m)
    spread = sp.csr_array((signs, (rows, np.tile(at, 4))), shape=(n * n, m))
    s, w = cp.Variable(), cp.Variable(m)
    centred = np.eye(n) - 1.0 / n - cp.reshape(spread @ w, (n, n), order="C")
    above, below = s * np.eye(n) - centred >> 0, s * np.eye(n) + centred >> 0
    constraints = [above, below]
    if p.nonnegative:
        ends = sp.csr_array((np.ones(2 * m), (np.concatenate([p.i, p.j]), np.tile(at, 2))), shape=(n, m))
        constraints += [w >= 0, ends @ w <= 1]
    if p.cost is not None:
        scale = float(p.cost.max())
        constraints += [(p.cost / scale) @ cp.abs(w) <= p.budget / scale]
    program = cp.Problem(cp.Minimize(s), constraints)
    status = _run(cp, program)
    found = p.matrix(_polished(np.asarray(w.value, dtype=np.float64), p))
    value = contraction(found)
    if value > 1.0:  # never worse than nobody speaking
        found, value = MixingMatrix.identity(n), 1.0
    dual = np.asarray(above.dual_value) - np.asarray(below.dual_value)
    return Optimum(found, value, lower_bound(dual, p), status)


def _run(cp: Any, program: Any) -> str:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "may be inaccurate" is read from the status, and never certified
        for tol in (1e-9, 1e-8):
            try:
                program.solve(solver=cp.CLARABEL, tol_gap_abs=tol, tol_gap_rel=tol, tol_feas=tol)
            except cp.SolverError as error:
                raise MixingError(f"the semidefinite program of the fastest weights was not solved: {error}") from None
            if program.status == "optimal":
                break
    if program.status not in ("optimal", "optimal_inaccurate"):
        raise MixingError(f"the semidefinite program of the fastest weights was not solved: {program.status}")
    return str(program.status)


def contraction(w: MixingMatrix) -> float:
    """||W - J||_2 of a symmetric W, dense."""
    return float(np.abs(np.linalg.eigvalsh(w.dense() - 1.0 / w.size)).max())


def lower_bound(dual: np.ndarray, p: Problem) -> float:
    """The bound of the module's docstring for this Z (any matrix: it is symmetrised, centred and normalised first)."""
    z = (dual + dual.T) / 2
    z = z - z.mean(axis=0)
    z = z - z.mean(axis=1, keepdims=True)
    nuclear = float(np.abs(np.linalg.eigvalsh(z)).sum())
    if not nuclear > 0:
        return 0.0
    z /= nuclear
    r = z[p.i, p.i] + z[p.j, p.j] - 2 * z[p.i, p.j]
    return max(0.0, float(np.trace(z)) - _support(r if p.nonnegative else np.abs(r), p))


def _support(r: np.ndarray, p: Problem) -> float:
    """The smallest right-hand side of the module's second inequality that a linear program proposes.

    The program only proposes (v, mu); they are made nonnegative and the inequality's side is summed here.
    """
    from scipy.optimize import linprog

    m, n = len(r), p.n if p.nonnegative else 0
    cost, budget = (np.zeros(m), 0.0) if p.cost is None else (p.cost, p.budget)
    at = np.arange(m)
    columns = [sp.eye_array(m)]
    if n:
        columns.append(sp.csr_array((np.ones(2 * m), (np.tile(at, 2), np.concatenate([p.i, p.j]))), shape=(m, n)))
    columns.append(sp.csr_array(cost[:, None]))
    objective = np.concatenate([np.ones(m + n), [budget]])
    proposed = linprog(objective, A_ub=-sp.hstack(columns, format="csr"), b_ub=-r, bounds=(0, None), method="highs")
    x = np.zeros(m + n + 1) if proposed.x is None else np.maximum(proposed.x, 0.0)
    v, mu = x[m : m + n], float(x[-1])
    covered = mu * cost + (v[p.i] + v[p.j] if n else 0.0)
    return mu * budget + float(v.sum()) + float(np.maximum(r - covered, 0.0).sum())


def _polished(w: np.ndarray, p: Problem) -> np.ndarray:
    """Solver noise removed, then scaled down link by link or as a whole until every promise holds exactly."""
    w = np.where(np.abs(w) < UNUSED, 0.0, w)
    if p.nonnegative:
        w = np.maximum(w, 0.0)
        over = np.maximum(p.totals(w), 1.0)
        over = np.where(over > 1.0, over * (1.0 + 1e-14), 1.0)
        w = w / np.maximum(over[p.i], over[p.j])
    if p.cost is not None:
        spent = float(p.cost @ np.abs(w))
        if spent > p.budget:
            w = np.where(p.cost > 0, w * (p.budget / spent) * (1.0 - 1e-14), w)
    return w


def _cvxpy() -> Any:
    try:
        return importlib.import_module("cvxpy")
    except ImportError:
        raise MixingError(
            "the fastest mixing weights need the optional cvxpy and clarabel: pip install 'dissensus[theory]'; "
            "without them use weights 'best-constant'"
        ) from None
