r"""MATCHA: the links of a graph as matchings, each used at random so that a step costs a given fraction of them all.

With the Laplacians $L_j$ of M matchings and independent $B_j \sim \text{Bernoulli}(p_j)$, a round is
$W_t = I - a\sum_j B_j L_j$. The probabilities maximise $\lambda_2(\sum_j p_j L_j)$ over $0\le p\le1$,
$\sum_j p_j \le C_b M$. Because $L_j^2 = 2L_j$, with $\bar L = \sum_j p_j L_j$ and
$\tilde L = \sum_j p_j(1-p_j) L_j$,

$$ E[W] = I - a\bar L, \qquad E[W^\top W] = I - 2a\bar L + a^2(\bar L^2 + 2\tilde L), $$

and a minimises $\|E[W^\top W] - J\|_2$, convex in a.

Reference: Wang, Sahu, Yang, Joshi and Kar, MATCHA (2019). Both optimisations are semidefinite programs there; here the
first is solved by Newton's method on its logarithmic barrier, with a duality gap that is checked, and the second is one
scalar (both ours). The matchings come from our own edge colouring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from dissensus.theory.decomposition import matchings
from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.registry import register
from dissensus.theory.topologies.random_gossip import base_links
from dissensus.theory.topology import Moments, Topology

LARGEST = 1024
"""The plan takes dense eigenvalues of n x n matrices; beyond this it would take minutes."""
SMALLEST_BUDGET = 1e-6
"""Below this the workers as good as never meet, and the plan has no digits left."""
RELATIVE_GAP = 1e-9
"""How far lambda_2 may stay below its proven upper bound, relative to it."""


@register("matcha")
def matcha(n: int, *, graph: str = "ring", budget: float = 0.5, seed: int = 0) -> Topology:
    r"""MATCHA: matchings of another topology's links, drawn at random within a communication budget.

    `graph` names the topology whose links are used; `budget` in (0, 1] is the fraction of its matchings that a step
    uses on average. Every round is a function of (seed, step) only. A worker in several matchings may keep less than
    nothing of itself, so rounds may have negative self weights.
    """
    if n > LARGEST:
        raise MixingError(
            f"topology 'matcha' is planned for at most {LARGEST} workers, got n={n}; nearest: n={LARGEST}"
        )
    if not SMALLEST_BUDGET <= budget <= 1.0:
        raise MixingError(
            "topology 'matcha': the budget is the fraction of matchings used, "
            f"from {SMALLEST_BUDGET:g} to 1, got {budget}"
        )
    if seed < 0:
        raise MixingError(f"topology 'matcha': the seed must be at least 0, got {seed}")
    i, j = base_links("matcha", graph, n)
    a = sp.csr_array((np.ones(len(i)), (i, j)), shape=(n, n))
    plan = plan_matchings(n, matchings(sp.csr_array(a + a.T)), budget)
    used = {"graph": graph, "budget": budget, "seed": seed}
    return Topology(
        "matcha",
        n,
        draw=lambda t: plan.round(np.random.default_rng([seed, t]).random(len(plan.matchings)) < plan.probabilities),
        parameters=used,
        moments=Moments(mean=plan.mean, square=plan.square),
    )


@dataclass(frozen=True, eq=False)
class Plan:
    """Which matchings there are, how often each is used, and the weight on their links."""

    size: int
    matchings: tuple[np.ndarray, ...]
    probabilities: np.ndarray
    weight: float
    connectivity: float
    """lambda_2 of the mean Laplacian: what the probabilities maximise."""
    upper_bound: float
    """No probabilities within the budget have a larger lambda_2 (weak duality)."""

    def round(self, active: np.ndarray) -> MixingMatrix:
        """The round in which the marked matchings are used."""
        lap = _combined(self.size, self.matchings, active.astype(np.float64))
        return MixingMatrix(sp.csr_array(sp.eye_array(self.size) - self.weight * lap), signed=True)

    @cached_property
    def mean(self) -> sp.csr_array:
        """E[W]."""
        lap = _combined(self.size, self.matchings, self.probabilities)
        return sp.csr_array(sp.eye_array(self.size) - self.weight * lap)

    @cached_property
    def square(self) -> sp.csr_array:
        """E[WᵀW]."""
        first, second = _moment_terms(self.size, self.matchings, self.probabilities)
        return sp.csr_array(sp.eye_array(self.size) - 2 * self.weight * first + self.weight**2 * second)


def plan_matchings(n: int, parts: Sequence[np.ndarray], budget: float) -> Plan:
    """The activation probabilities and the weight for these matchings of a connected graph under the budget."""
    if not parts:
        return Plan(n, (), np.zeros(0), 0.0, 0.0, 0.0)
    p, value, bound = activation(n, parts, budget)
    return Plan(n, tuple(parts), p, best_weight(n, parts, p), value, bound)


def best_weight(n: int, parts: Sequence[np.ndarray], p: np.ndarray) -> float:
    """The a that minimises ||E[WᵀW] - J||_2, a convex function of one variable."""
    from scipy.optimize import minimize_scalar

    first, second = (m.toarray() for m in _moment_terms(n, parts, p))
    centre = np.eye(n) - 1.0 / n

    def contraction(a: float) -> float:
        return float(np.linalg.eigvalsh(centre - 2 * a * first + a * a * second)[-1])

    # beyond 2/lambda_n the top eigenvector of the mean Laplacian alone expands
    limit = 2.0 / float(np.linalg.eigvalsh(first)[-1])
    found: Any = minimize_scalar(
        contraction, bounds=(0.0, limit), method="bounded", options={"xatol": 1e-12, "maxiter": 200}
    )
    return float(found.x)


def activation(n: int, parts: Sequence[np.ndarray], budget: float) -> tuple[np.ndarray, float, float]:
    """The probabilities that maximise lambda_2 of the mean Laplacian, that lambda_2, and a proven upper bound on it.

    Equal probabilities are the optimum on many symmetric graphs; where they are not, Newton's method follows the
    centres of the logarithmic barrier until the bound is within `RELATIVE_GAP`, or rounding ends the progress.
    """
    m = len(parts)
    total = budget * m
    p = np.full(m, budget)
    values, vectors = np.linalg.eigh(_combined(n, parts, p).toarray())
    near = values <= values[1] * (1 + 1e-9)
    near[0] = False
    space = vectors[:, near]
    value, bound = float(values[1]), _bound(space @ space.T / space.shape[1], parts, total)
    if bound - value <= RELATIVE_GAP * value:
        return p, value, bound
    return _follow_centres(n, parts, total, value)


def _follow_centres(n: int, parts: Sequence[np.ndarray], total: float, unit: float) -> tuple[np.ndarray, float, float]:
    m = len(parts)
    mates = np.tile(np.arange(n), (m, 1))
    for k, part in enumerate(parts):
        mates[k, part[:, 0]], mates[k, part[:, 1]] = part[:, 1], part[:, 0]
    averaging = np.full((n, n), 1.0 / n)
    x = np.append(np.full(m, 0.9 * total / m), 0.45)  # the probabilities, and lambda_2 in the given unit

    def slack_matrix(x: np.ndarray) -> np.ndarray:
        """Mean Laplacian - t (I - J) + J: positive definite where t < lambda_2."""
        lap = _combined(n, parts, x[:-1]).toarray()
        return lap - unit * x[-1] * (np.eye(n) - averaging) + averaging

    def barrier(x: np.ndarray, tau: float) -> float:
        p, rest = x[:-1], total - x[:-1].sum()
        if p.min() <= 0 or p.max() >= 1 or rest <= 0:
            return np.inf
        try:
            factor = np.linalg.cholesky(slack_matrix(x))
        except np.linalg.LinAlgError:
            return np.inf
        logs = np.log(p).sum() + np.log1p(-p).sum() + np.log(rest)
        return float(-tau * x[-1] - 2 * np.log(np.diag(factor)).sum() - logs)

    best, value, bound, start = np.full(m, total / m), unit, np.inf, float(n + 2 * m)
    tau = start
    while bound - value > RELATIVE_GAP * value and tau < 1e13 * start:
        previous = np.inf
        while True:
            inverse = np.linalg.inv(slack_matrix(x)) - averaging
            gradient, hessian = _derivatives(x, tau, inverse, mates, total, unit)
            step = -np.linalg.solve(hessian, gradient)
            decrement, length = float(-gradient @ step), 1.0
            if decrement <= 1e-10 or (decrement < 0.05 and decrement > previous / 2):
                break  # at the centre, or as near to it as rounding lets us
            if decrement >= 0.05:  # nearer to the centre the full step is safe and converges quadratically
                here = barrier(x, tau)
                while barrier(x + length * step, tau) > here - 0.25 * length * decrement and length > 1e-6:
                    length /= 2
            x, previous = x + length * step, decrement
        p = x[:-1] * min(total / x[:-1].sum(), 1.0 / x[:-1].max())
        now = float(np.linalg.eigvalsh(_combined(n, parts, p).toarray())[1])
        best, value = (p, now) if now > value else (best, value)
        tighter = _bound(inverse / np.trace(inverse), parts, total)
        if tighter >= bound and decrement > 1e-10:  # rounding has the last word
            break
        bound, tau = min(bound, tighter), tau * 10.0
    return best, value, bound


def _derivatives(
    x: np.ndarray, tau: float, inverse: np.ndarray, mates: np.ndarray, total: float, unit: float
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and Hessian of the barrier; S L_j is S minus S with its columns swapped along matching j."""
    p, (m, n) = x[:-1], mates.shape
    rest = total - p.sum()
    trace, cross, square = np.zeros(m), np.zeros(m), np.zeros((m, m))
    block = max(1, 10**7 // (m * n))
    for lo in range(0, n, block):
        rows = np.arange(lo, min(lo + block, n))
        some = inverse[rows]
        forward = some[None] - some[:, mates].transpose(1, 0, 2)  # rows of S L_j
        backward = some[None] - inverse[mates[:, rows]]  # rows of L_j S
        trace += forward[:, np.arange(len(rows)), rows].sum(axis=1)
        cross += np.einsum("jrc,rc->j", forward, some)
        square += forward.reshape(m, -1) @ backward.reshape(m, -1).T
    gradient = np.append(-trace - 1 / p + 1 / (1 - p) + 1 / rest, -tau + unit * np.trace(inverse))
    hessian = np.zeros((m + 1, m + 1))
    hessian[:m, :m] = square + np.diag(1 / p**2 + 1 / (1 - p) ** 2) + 1 / rest**2
    hessian[:m, m] = hessian[m, :m] = -unit * cross
    hessian[m, m] = unit**2 * np.sum(inverse * inverse)
    return gradient, hessian


def _bound(dual: np.ndarray, parts: Sequence[np.ndarray], total: float) -> float:
    r"""The upper bound on lambda_2 by any positive semidefinite Y of trace one with Y1 = 0.

    $\lambda_2(\sum p_j L_j) \le \sum_j p_j \langle Y, L_j\rangle$, at most what the best `total` of matchings give.
    """
    gains = []
    for part in parts:
        i, j = part[:, 0], part[:, 1]
        gains.append(float((dual[i, i] + dual[j, j] - 2 * dual[i, j]).sum()))
    ranked = np.sort(np.maximum(gains, 0.0))[::-1]
    return float(ranked @ np.clip(total - np.arange(len(ranked)), 0.0, 1.0))


def _combined(n: int, parts: Sequence[np.ndarray], c: np.ndarray) -> sp.csr_array:
    """The sum of c_j L_j."""
    links = np.concatenate([*parts, np.zeros((0, 2), dtype=np.int64)])
    w = np.repeat(c, [len(part) for part in parts])
    ends = (np.concatenate([links[:, 0], links[:, 1]]), np.concatenate([links[:, 1], links[:, 0]]))
    off = sp.csr_array((np.concatenate([w, w]), ends), shape=(n, n))
    return sp.csr_array(sp.diags_array(np.asarray(off.sum(axis=1)).ravel()) - off)


def _moment_terms(n: int, parts: Sequence[np.ndarray], p: np.ndarray) -> tuple[sp.csr_array, sp.csr_array]:
    """The mean Laplacian, and the mean of the squared Laplacian."""
    mean = _combined(n, parts, p)
    return mean, sp.csr_array(mean @ mean + 2.0 * _combined(n, parts, p * (1.0 - p)))
