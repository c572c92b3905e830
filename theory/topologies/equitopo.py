r"""EquiTopo: random shifts with a consensus rate that does not depend on n.

The basis graph of u is $A^{(u)} = \tfrac1n I + \tfrac{n-1}{n} P_u$, where P_u carries worker i's value to i + u mod n;
over all u in 1..n-1 these average to J.

| | directed | undirected |
| --- | --- | --- |
| static | the mean of M drawn basis graphs | its symmetric part |
| dynamic | each step $(1-\eta)I + \eta A^{(u)}$, u drawn | the same with a matching M_u of pairs (i, i + u) for P_u |

Each dynamic round is $W = aI + bQ$ with $a = 1-\eta+\eta/n$, $b = \eta(n-1)/n$ and Q orthogonal, so exactly

$$ E[W] = aI + b\,E[Q], \qquad E[W^\top W] = (a^2+b^2) I + ab\,(E[Q]+E[Q]^\top) . $$

Reference: Song et al., Communication-efficient topologies for decentralized learning with O(1) consensus rate (2022),
for the graphs; the moments are ours.
"""

from __future__ import annotations

from functools import reduce
from math import gcd

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError, nearest
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.registry import register
from dissensus.theory.topologies.draws import generator
from dissensus.theory.topologies.rounds import alone, pairs, shifts
from dissensus.theory.topology import ClosedForm, Moments, Topology

LARGEST_MOMENTS = 2048
"""Up to this many workers the exact moments, which are dense, are supplied."""
LARGEST_M = 1_000_000
"""The most shifts that are drawn."""


@register("equitopo")
def equitopo(
    n: int,
    *,
    kind: str = "static",
    directed: bool = False,
    M: int | None = None,
    eta: float | None = None,
    seed: int = 0,
) -> Topology:
    r"""Random shifts i -> i + u mod n: M of them at once (kind=static), or one drawn at every step (kind=dynamic).

    Static: M shifts drawn with replacement, ceil(log2 n) by default; M >= (8/3) ln(2n/p)/eps² gives a contraction below
    eps with probability 1 - p. Dynamic: u is drawn from 1..n-1, or from M shifts drawn once; eta defaults to
    n/(2(n-1)), which minimises the directed mean-square contraction $(1-\eta)^2 + \eta^2(1-2/n)$ to (n-2)/(2n-2).
    Drawn shifts that share a divisor with n would never connect everybody and are drawn again. Static rounds and the
    round of step t are pure functions of the seed. The moments of dynamic rounds are supplied up to n = 2048.
    """
    if kind not in ("static", "dynamic"):
        raise MixingError(f"equitopo: kind must be 'static' or 'dynamic', got {kind!r}{nearest(kind, _KINDS)}")
    if M is not None and M < 1:
        raise MixingError(f"equitopo needs M >= 1 shifts, got M={M}")
    if eta is not None and not 0.0 < eta <= 1.0:
        raise MixingError(f"equitopo: eta must lie in (0, 1], got {eta}")
    if eta is not None and kind == "static":
        raise MixingError("equitopo: eta belongs to kind='dynamic'; the static graph has no step to weigh")
    if n == 1:
        return alone("equitopo", kind=kind, directed=directed)
    if kind == "static":
        return _static(n, directed, (n - 1).bit_length() if M is None else M, seed)
    return _dynamic(n, directed, M, n / (2.0 * (n - 1)) if eta is None else eta, seed)


def _static(n: int, directed: bool, count: int, seed: int) -> Topology:
    drawn = _drawn_shifts(n, count, seed)
    hop = np.bincount(drawn, minlength=n) / count
    if not directed:
        hop = (hop + hop[-np.arange(n)]) / 2
    coefficients = hop * (n - 1) / n
    coefficients[0] = 1.0 / n
    known = ClosedForm()
    if not directed:
        known = ClosedForm(eigenvalues=lambda: np.fft.fft(coefficients).real, source="circulant")
    parameters = {"kind": "static", "directed": directed, "M": count, "seed": seed}
    return Topology("equitopo", n, (MixingMatrix(_circulant(coefficients)),), parameters=parameters, closed_form=known)


def _dynamic(n: int, directed: bool, count: int | None, eta: float, seed: int) -> Topology:
    basis = np.arange(1, n) if count is None else _drawn_shifts(n, count, seed)
    a, b = 1.0 - eta + eta / n, eta * (n - 1) / n

    def draw(t: int) -> MixingMatrix:
        rng = generator("equitopo", seed, t)
        u = int(basis[rng.integers(len(basis))])
        if directed:
            return MixingMatrix(shifts(n, (0, u), (a, b)))
        return pairs(matching(n, u, int(rng.integers(n))), b)

    parameters = {"kind": "dynamic", "directed": directed, "M": count, "eta": eta, "seed": seed}
    moments = _moments(n, basis, a, b, directed) if n <= LARGEST_MOMENTS else None
    return Topology("equitopo", n, draw=draw, parameters=parameters, moments=moments)


def matching(n: int, u: int, start: int) -> np.ndarray:
    """The partner of each worker when, from `start` on around the circle, whoever is free takes i + u if that is free.

    Counted from the start, blocks of u take turns in asking and being asked. Where 2u > n the askers of the first block
    beyond v = n - u find their partner taken, and blocks of v among them serve each other in the same way.
    """
    r = np.arange(n)
    partner = r.copy()
    asks = r[(r // u % 2 == 0) & (r + u < n)]
    partner[asks], partner[asks + u] = asks + u, asks
    if 2 * u > n:
        v = n - u
        late = r[(r >= 2 * v) & (r < u) & (r // v % 2 == 0)]
        partner[late], partner[late - v] = late - v, late
    return (partner[(r - start) % n] + start) % n


def _moments(n: int, basis: np.ndarray, a: float, b: float, directed: bool) -> Moments:
    """The exact moments: the circulant E[Q], by the frequency of each shift."""
    q = np.zeros(n)
    for u, frequency in enumerate(np.bincount(basis, minlength=n) / len(basis)):
        if not frequency:
            continue
        if directed:
            q[u] += frequency
        else:
            busy = np.count_nonzero(matching(n, u, 0) != np.arange(n)) / n  # the same for every start
            q[[u, 0]] += frequency * np.array([busy / 2, 1.0 - busy])
            q[-u] += frequency * busy / 2
    mean = b * q
    mean[0] += a
    square = a * b * (q + q[-np.arange(n)])
    square[0] += a * a + b * b
    return Moments(_circulant(mean), _circulant(square))


def _circulant(coefficients: np.ndarray) -> sp.csr_array:
    """The circulant in which worker i weighs what it receives from i - h by the h-th coefficient."""
    hops = np.flatnonzero(coefficients)
    return shifts(len(coefficients), hops, coefficients[hops])


def _drawn_shifts(n: int, count: int, seed: int) -> np.ndarray:
    """Shifts drawn with replacement that together reach everybody."""
    if count > LARGEST_M:
        raise MixingError(f"equitopo: M must be at most {LARGEST_M}, got {count}")
    for attempt in range(100):
        drawn = generator("equitopo", seed, attempt, 1).integers(1, n, size=count)
        if reduce(gcd, drawn.tolist(), n) == 1:
            return drawn
    raise MixingError(
        f"equitopo: no {count} shifts drawn with seed = {seed} connect n = {n} workers; M = {count + 1} may"
    )


_KINDS = ("static", "dynamic")
