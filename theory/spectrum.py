r"""Spectra of mixing: eigenvalues, the contraction of a period, and the spectral gap, each with its error.

The contraction of a schedule is $\|W_{P-1}\cdots W_0 - \tfrac1n 11^\top\|_2$; for rounds drawn anew at every step it is
the mean-square one per step, $\sqrt{\lambda_{\max}(E[W^\top W])}$ on the vectors that sum to zero. The spectral gap is
$1-\max(|\lambda_2|, |\lambda_n|)$ for one symmetric round, else $1-\text{contraction}^{1/P}$.

How a number is found: the topology's closed form; circulant rounds by FFT, its extremes evaluated again as
$\sum_k r_k\,2\sin^2(\pi jk/n)$ so that no digits cancel; n <= 500 dense; else `spectrum_large`. A schedule without
symmetry is brought there through the Gram matrix $P^\top P$ of its product, symmetric doubly stochastic again, whose
second eigenvalue is the squared contraction (ours). Every result carries its error and its method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import SUM_TOLERANCE, MixingMatrix
from dissensus.theory.spectrum_large import DENSE_LIMIT, EPS, Edge, Ritz, Route, edges, lanczos
from dissensus.theory.topology import Topology, from_matrices

DENSE_EIGENVALUES = 5000
"""Up to this n all eigenvalues of a matrix without structure are computed."""
GRAM_ENTRIES = 64
"""Up to this many entries per worker the Gram matrix of a period is formed."""


@dataclass(frozen=True)
class Gap:
    """A spectral gap: the true one lies within `error` of `value`. Eigenvalues are signed, `None` where not known."""

    value: float
    error: float
    method: str
    second: float | None = None
    """The second largest eigenvalue of a symmetric round."""
    smallest: float | None = None
    """The smallest eigenvalue of a symmetric round; `None` too where it was only shown that it does not matter."""

    @property
    def lower(self) -> float:
        """The value less its error."""
        return self.value - self.error

    @property
    def upper(self) -> float:
        """The value plus its error."""
        return self.value + self.error


@dataclass(frozen=True)
class Contraction:
    """By how much a window of rounds shrinks the disagreement at worst, with its absolute error."""

    value: float
    error: float
    method: str
    kind: Literal["product", "mean square per step"]
    loss: float
    """1 - value, kept separately because it has digits where the value is one to rounding."""
    loss_error: float


def is_circulant(w: MixingMatrix) -> bool:
    """Whether row i is row 0 shifted by i, decided in one pass over the stored weights."""
    return circulant_row(w) is not None


def circulant_row(w: MixingMatrix) -> tuple[np.ndarray, np.ndarray] | None:
    """The offsets k and weights r_k of `x_i <- sum_k r_k x_{(i+k) mod n}`, or `None` if W is not circulant.

    Weights of different rows may differ by rounding (4 eps).
    """
    n, a = w.size, w.weights
    k = int(a.indptr[1])
    if k == 0 or a.nnz != n * k or not np.array_equal(a.indptr, np.arange(0, n * k + 1, k)):
        return None
    columns, data = a.indices.reshape(n, k), a.data.reshape(n, k)
    offsets, weights = columns[0].astype(np.int64), data[0]
    for i in (n - 1, n // 2):  # most matrices fail here already
        if not np.array_equal(np.sort((columns[i] - i) % n), offsets):
            return None
    # Row i holds the same offsets; the m that reach past n come first. Between two thresholds m does not change.
    cuts = [0, *(n - int(o) for o in offsets[::-1] if o), n]
    for m, (lo, hi) in enumerate(pairwise(cuts)):
        if lo == hi:
            continue
        reach = np.roll(offsets, m)
        reach[:m] -= n
        expected = np.arange(lo, hi, dtype=columns.dtype)[:, None] + reach.astype(columns.dtype)
        if not np.array_equal(columns[lo:hi], expected):
            return None
        if np.abs(data[lo:hi] - np.roll(weights, m)).max() > 4 * EPS:
            return None
    return offsets, weights.copy()


def circulant_eigenvalues(row: tuple[np.ndarray, np.ndarray], n: int) -> np.ndarray:
    """All n eigenvalues by FFT, complex, in the order of the Fourier modes."""
    first = np.zeros(n)
    first[row[0]] = row[1]
    return np.fft.ifft(first) * n


def eigenvalues(w: MixingMatrix) -> np.ndarray:
    """All n eigenvalues, largest real part first: by FFT if W is circulant, else dense. Real if W is symmetric."""
    row = circulant_row(w)
    if row is not None:
        values = circulant_eigenvalues(row, w.size)
        values = np.real(values) if w.is_symmetric else values
    elif w.size > DENSE_EIGENVALUES:
        raise MixingError(
            f"all eigenvalues of a matrix that is not circulant are computed up to n={DENSE_EIGENVALUES}, got "
            f"n={w.size}; spectral_gap and contraction work at any n"
        )
    elif w.is_symmetric:
        values = np.linalg.eigvalsh(w.dense())
    else:
        values = np.linalg.eigvals(w.dense())
    return values[np.argsort(-np.real(values), kind="stable")]


def spectral_gap(topology: Topology | MixingMatrix, *, tol: float = 1e-8, route: Route = "auto") -> Gap:
    """The spectral gap of a topology or of a matrix that is used at every step.

    Args:
        topology: what to look at.
        tol: relative error of the gap at which an iteration may stop; the error reached is in the result.
        route: force one way of computing instead of the closed form and the best one (for comparisons).
    """
    topology = _topology(topology)
    if topology.size == 1:
        return Gap(1.0, 0.0, "one worker", None, None)
    known = topology.closed_form
    if route == "auto" and known.spectral_gap is not None:
        ends = np.sort(known.eigenvalues()) if known.eigenvalues is not None else None
        second, smallest = (None, None) if ends is None else (float(ends[-2]), float(ends[0]))
        return Gap(float(known.spectral_gap), 8 * EPS * float(known.spectral_gap), "closed form", second, smallest)
    if (known_gap := _found.get(topology, {}).get((tol, route))) is not None:
        return known_gap
    gap = _numeric_gap(topology, tol, route)
    gap = replace(gap, error=gap.error + _slack(topology))
    _found.setdefault(topology, {})[tol, route] = gap
    return gap


_found: WeakKeyDictionary[Topology, dict[tuple[float, str], Gap]] = WeakKeyDictionary()
"""The gaps computed for topologies that still live: a contraction asks for the gap, a report for both."""


def _numeric_gap(topology: Topology, tol: float, route: Route) -> Gap:
    if topology.is_static and route in ("auto", "fft"):
        row = circulant_row(topology[0])
        if row is not None and _is_even(row, topology.size):
            return _circulant_gap(row, topology.size)
        if row is not None:
            c = _circulant_contraction([row], topology.size)
            return Gap(c.loss, c.loss_error, c.method)
    if topology.is_static and _has_symmetric_gap(topology[0]):
        return _symmetric_gap(topology, tol, route)
    c = contraction(topology, tol=tol, route=route)
    steps = 1 if c.kind != "product" else topology.period or 1
    return Gap(_root_loss(c.loss, steps), _root_error(c, steps), c.method)


def contraction(
    topology: Topology | MixingMatrix,
    start: int = 0,
    steps: int | None = None,
    *,
    tol: float = 1e-8,
    route: Route = "auto",
) -> Contraction:
    """The contraction of `steps` rounds from step `start` on: of one period unless told otherwise.

    For a schedule drawn anew at every step, and no `steps` given, it is the mean-square contraction per step, from the
    exact moments of the round.
    """
    topology = _topology(topology)
    if steps is not None and steps < 0:
        raise MixingError(f"a window has at least 0 steps, got {steps}")
    if topology.period is None and steps is None:
        return _mean_square(topology, tol, route)
    found = _window_contraction(topology, start, steps, tol, route)
    off = _slack(topology) * (steps if steps is not None else topology.period or 1)
    return replace(found, error=found.error + off, loss_error=found.loss_error + off) if off else found


def _slack(topology: Topology) -> float:
    """What the sums of the rounds are off one by beyond rounding: the routes take them as one."""
    rounds = topology.rounds or (topology[0],)
    off = max(float(np.abs(np.asarray(w.weights.sum(axis=1)) - 1.0).max()) for w in rounds)
    return off if 1e-14 < off <= SUM_TOLERANCE else 0.0


def _window_contraction(topology: Topology, start: int, steps: int | None, tol: float, route: Route) -> Contraction:
    n, period = topology.size, topology.period
    window = steps if steps is not None else period or 1
    if n == 1 or window == 0:
        return _contraction(1.0 if n == 1 else 0.0, 0.0, "one worker" if n == 1 else "no step")
    known = topology.closed_form.contraction
    if route == "auto" and known is not None and window == period and start % window == 0:
        known, gap = float(known), topology.closed_form.spectral_gap if topology.is_static else None
        loss, error = (float(gap), 8 * EPS * float(gap)) if gap is not None else (1.0 - known, 8 * EPS)
        return Contraction(known, 8 * EPS * known, "closed form", "product", loss, error)
    if topology.is_static and _has_symmetric_gap(topology[0]):
        gap = spectral_gap(topology, tol=tol, route=route)
        log = np.log1p(-gap.value) if gap.value < 1 else -np.inf
        return _contraction(float(-np.expm1(window * log)), window * gap.error, gap.method)
    rounds = [topology[t] for t in range(start, start + window)]
    if route in ("auto", "fft"):
        rows = [circulant_row(w) for w in dict.fromkeys(rounds)]
        known_rows = {w: r for w, r in zip(dict.fromkeys(rounds), rows, strict=True) if r is not None}
        if len(known_rows) == len(rows):
            return _circulant_contraction([known_rows[w] for w in rounds], n)
        if route == "fft":
            raise MixingError(f"topology {topology.name!r} is not circulant: the FFT does not give its spectrum")
    if route == "dense" or (route == "auto" and n <= DENSE_LIMIT):
        product = topology.product(start, window) - 1.0 / n
        value = float(np.linalg.norm(product, 2))
        return Contraction(value, window * n * EPS, "dense", "product", 1.0 - value, window * n * EPS)
    return _large_contraction(rounds, n, tol, route)


def _topology(of: Topology | MixingMatrix) -> Topology:
    return from_matrices(of, may_disconnect=True) if isinstance(of, MixingMatrix) else of


def _contraction(loss: float, loss_error: float, method: str) -> Contraction:
    return Contraction(1.0 - loss, loss_error + EPS, method, "product", loss, loss_error)


def _from_gram(edge: Edge, kind: Literal["product", "mean square per step"]) -> Contraction:
    """From 1 - c² to c and 1 - c."""
    loss = _root_loss(edge.value, 2)
    value = float(np.sqrt(max(0.0, 1.0 - edge.value)))
    error = min(np.sqrt(edge.error), edge.error / max(2 * value, 1e-300)) + EPS
    loss_error = min(error, edge.error) if value > 0.5 else error
    return Contraction(value, float(error), edge.method, kind, loss, float(loss_error))


def _root_loss(loss: float, root: int) -> float:
    """1 - (1 - loss)^(1/root), without cancellation; a contraction above one gives a negative loss."""
    return 1.0 if loss >= 1.0 else float(-np.expm1(np.log1p(-loss) / root))


def _root_error(c: Contraction, root: int) -> float:
    high, low = _root_loss(c.loss + c.loss_error, root), _root_loss(c.loss - c.loss_error, root)
    return (high - low) / 2 if root > 1 else c.loss_error


def _symmetric_gap(topology: Topology, tol: float, route: Route) -> Gap:
    if route == "fft":
        raise MixingError(f"topology {topology.name!r} is not circulant: the FFT does not give its spectrum")
    if route == "auto" and topology.closed_form.eigenvalues is not None:
        values = np.sort(topology.closed_form.eigenvalues())
        top, bottom = 1.0 - float(values[-2]), 1.0 + float(values[0])
        nearer = min(top, bottom)
        if tol * nearer >= 8 * EPS or nearer <= 8 * EPS:
            return Gap(nearer, 8 * EPS, "closed form", float(values[-2]), float(values[0]))
    top, bottom = edges(topology[0].weights, tol=tol, route=route)
    end = top if bottom is None or top.value <= bottom.value else bottom
    smallest = None if bottom is None else bottom.value - 1.0
    return Gap(end.value, end.error, end.method, 1.0 - top.value, smallest)


def _has_symmetric_gap(w: MixingMatrix) -> bool:
    return w.is_symmetric and w.is_doubly_stochastic


def _is_even(row: tuple[np.ndarray, np.ndarray], n: int) -> bool:
    """Whether the circulant of this row is symmetric: the weight of k is that of -k, to rounding."""
    weight = dict(zip(row[0].tolist(), row[1].tolist(), strict=True))
    return all(abs(weight.get(-k % n, 0.0) - r) <= 4 * EPS for k, r in weight.items())


def _circulant_gap(row: tuple[np.ndarray, np.ndarray], n: int) -> Gap:
    """Symmetric circulant: 1 - lambda_j = sum_k r_k 2 sin²(pi j k / n), and 1 + lambda_j with cos²: no cancellation."""
    offsets, weights = row
    values = np.real(circulant_eigenvalues(row, n))[1 : n // 2 + 1]
    slack = 8 * EPS * max(1.0, np.log2(n)) * float(np.abs(weights).sum())

    def refined(nearness: np.ndarray, quarter: int) -> tuple[float, float]:
        chosen, missed = _nearest(nearness, slack)
        angles = _angle(2 * (chosen[:, None] + 1) * offsets + quarter * n, 2 * n)
        best = float((np.sin(angles) ** 2 @ (2 * weights)).min())
        return best, missed + 8 * EPS * abs(best)

    top, top_error = refined(1.0 - values, 0)
    bottom, bottom_error = refined(1.0 + values, 1)
    value, error = (top, top_error) if top <= bottom else (bottom, bottom_error)
    return Gap(value, error, "fft", 1.0 - top, bottom - 1.0)


def _circulant_contraction(rows: Sequence[tuple[np.ndarray, np.ndarray]], n: int) -> Contraction:
    """Circulant rounds commute and are normal: the contraction is the largest product of |lambda_j|, j > 0."""

    def log_modulus(modes: np.ndarray) -> np.ndarray:
        """Sums log |lambda_j|² over rounds, from 1 - |lambda|² = a(2 - a) - b² with the heaviest offset moved to 0."""
        total = np.zeros(len(modes))
        for offsets, weights in rows:
            angle = _angle(modes[:, None] * (offsets - offsets[np.argmax(weights)]), n)
            a, b = 2 * np.sin(angle) ** 2 @ weights, np.sin(2 * angle) @ weights
            with np.errstate(divide="ignore"):
                total += np.log1p(-np.minimum(1.0, a * (2 - a) - b * b))
        return total

    squares = np.ones(n // 2)
    for row in rows:
        squares *= np.abs(circulant_eigenvalues(row, n)[1 : n // 2 + 1]) ** 2
    slack = 16 * EPS * len(rows) * max(1.0, np.log2(n))
    chosen, missed = _nearest(-squares, slack)
    worst = float(log_modulus(chosen + 1).max())
    loss = float(-np.expm1(worst / 2))
    error = missed + 16 * EPS * len(rows) * loss
    return Contraction(float(np.exp(worst / 2)), error + EPS, "fft", "product", loss, error)


def _angle(multiple: np.ndarray, of: int) -> np.ndarray:
    """The angle pi * multiple / of, brought into (-pi/2, pi/2] as a whole number, so that its sine keeps all digits."""
    m = multiple % of
    return np.pi / of * np.where(2 * m > of, m - of, m)


def _nearest(distance: np.ndarray, slack: float, most: int = 4096) -> tuple[np.ndarray, float]:
    """The places that may hold the true minimum when each distance is off by `slack`, and the error of leaving some."""
    chosen = np.flatnonzero(distance <= distance.min() + 2 * slack)
    if len(chosen) <= most:
        return chosen, 0.0
    return chosen[np.argsort(distance[chosen], kind="stable")[:most]], 2 * slack


def _mean_square(topology: Topology, tol: float, route: Route) -> Contraction:
    kind = "mean square per step"
    if topology.size == 1:
        return Contraction(0.0, 0.0, "one worker", kind, 1.0, 0.0)
    if topology.moments is None:
        raise MixingError(
            f"topology {topology.name!r} is drawn at every step and states no moments E[W], E[WᵀW]: its mean-square "
            "contraction is not known; give a window, contraction(topology, start, steps)"
        )
    square = sp.csr_array(topology.moments.square)
    if topology.promise != "doubly" or not np.allclose(np.asarray(square.sum(axis=1)).ravel(), 1.0, rtol=0, atol=1e-8):
        raise MixingError(f"topology {topology.name!r}: the rounds are not doubly stochastic, E[WᵀW] does not average")
    top, _ = edges(square, tol=tol, positive=True, route="auto" if route == "fft" else route)
    return _from_gram(top, kind)


def _large_contraction(rounds: list[MixingMatrix], n: int, tol: float, route: Route) -> Contraction:
    doubly = all(w.is_doubly_stochastic for w in rounds)
    signed = any(w.signed for w in rounds)
    if doubly and not signed:
        gram = _gram(rounds, n)
        if gram is not None:
            return _from_gram(edges(gram, tol=tol, positive=True, route=route)[0], "product")

    def apply(v: np.ndarray) -> np.ndarray:
        """AᵀA v for A = W_last ··· W_first - 11ᵀ/n."""
        y = v
        for w in rounds:
            y = w.weights @ y
        y = z = y - v.mean()
        for w in reversed(rounds):
            z = w.weights.T @ z
        return z - y.mean()

    def settled(r: Ritz) -> bool:
        return r.high_error <= tol * (abs(1.0 - r.high) if doubly else r.high)

    ritz = lanczos(apply, n, converged=settled, steps=1000, project=doubly)
    return _from_gram(Edge(1.0 - ritz.high, ritz.high_error, "lanczos"), "product")


def _gram(rounds: list[MixingMatrix], n: int) -> sp.csr_array | None:
    """PᵀP of the product, or `None` once it has too many entries to be worth it."""
    product: Any = rounds[0].weights
    for w in rounds[1:]:
        product = w.weights @ product
        if product.nnz > GRAM_ENTRIES * n:
            return None
    gram: Any = sp.csr_array(product.T @ product)
    return gram if gram.nnz <= GRAM_ENTRIES * n else None
