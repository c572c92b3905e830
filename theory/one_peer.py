r"""Two one-peer schedules in closed form: the ring of alternating pairs and the hypercube of XOR pairs.

No momentum; curvature h, noise variance $s^2$ per worker. Every phase of the period has the same $\Xi$.

*Ring* (n even, two rounds that do not commute): with $p = 1-\alpha h$ and $q = 1-\gamma-\alpha h$ (AWC) or
$p\,(1-\gamma)$ (ATC, CTA), $w = pq$ and $y_m=(p-q)\cos(2\pi m/n)$,

$$ \Xi = \frac{\alpha^2s^2}{n}\Big[\frac1{1-q^2} + \sum_{m=1}^{n/2-1} \Big(2 +
   \frac{1-w}{(1+w)\,((1-w)^2-y_m^2)}\Big(p^2+q^2+2w^2+\frac{2wy_m^2}{1-w}\Big)\Big)\Big] :$$

Bloch's theorem leaves 2 x 2 blocks. *Hypercube* ($n=2^d$): with $u = 1-\gamma$ and the shrinking $\sigma = 1-\alpha h$
that in ATC and CTA commutes with every round,

$$ \Xi = \frac{\alpha^2s^2}{2^d}\sum_{r=0}^{d-1}\sigma^{2r}\sum_{(i,j)\ne(0,0)}
   \binom{r}{i}\binom{d-r}{j}\,\frac{u^{2i}}{1-u^{2(i+j)}\sigma^{2d}} ; $$

AWC only without curvature. ATC is CTA without what is fresh:
$\Xi_{\text{ATC}} = (\Xi_{\text{CTA}} - \alpha^2s^2(1-1/n))/\sigma^2$. Ours; no eigensolver, O(n) and O(d^3).
"""

from __future__ import annotations

from math import comb

import numpy as np

from dissensus.theory.errors import MixingError
from dissensus.theory.modes import Move


def one_peer_ring_distance(
    n: int, curvature: float = 0.0, *, lr: float, gamma: float = 1.0, order: str = "awc", noise: float = 1.0
) -> float:
    """The stationary consensus distance along one direction on the alternating ring of n (even) workers."""
    move = Move.of(order, 0.0)
    if n < 2 or n % 2:
        raise MixingError(f"the ring of pairs needs an even number of workers, got {n}")
    p = 1.0 - lr * curvature
    q = p - gamma if move.order == "awc" else p * (1.0 - gamma)
    w, y2 = p * q, ((p - q) * np.cos(2.0 * np.pi * np.arange(1, n // 2) / n)) ** 2
    below = (1.0 - w) ** 2 - y2
    if abs(q) >= 1.0 or abs(w) >= 1.0 or (below <= 0.0).any():
        raise MixingError(
            f"lr = {lr:g}, gamma = {gamma:g}, curvature {curvature:g} has no stationary state on this ring"
        )
    pairs = 2.0 + (1.0 - w) / ((1.0 + w) * below) * (p**2 + q**2 + 2.0 * w**2 + 2.0 * w * y2 / (1.0 - w))
    return _ordered(float(pairs.sum()) + 1.0 / (1.0 - q**2), n, p, move) * lr**2 * noise / n


def one_peer_hypercube_distance(
    dimension: int, curvature: float = 0.0, *, lr: float, gamma: float = 1.0, order: str = "awc", noise: float = 1.0
) -> float:
    """The same on 2^dimension workers that pair up along one axis of a hypercube after the other."""
    move = Move.of(order, 0.0)
    if dimension < 1:
        raise MixingError(f"a hypercube needs at least one dimension, got {dimension}")
    if move.order == "awc" and curvature != 0.0:
        raise MixingError("with curvature the hypercube has a closed form in orders atc and cta only; use predict")
    shrink, u = 1.0 - lr * curvature, 1.0 - gamma
    if abs(u * shrink**dimension) >= 1.0 or abs(shrink) > 1.0:
        raise MixingError(f"lr = {lr:g}, gamma = {gamma:g}, curvature {curvature:g} has no stationary state here")
    total = 0.0
    for r in range(dimension):
        inner = 0.0
        for i in range(r + 1):
            for j in range(dimension - r + 1):
                if i or j:
                    weight = comb(r, i) * comb(dimension - r, j)
                    inner += weight * u ** (2 * i) / (1.0 - u ** (2 * (i + j)) * shrink ** (2 * dimension))
        total += shrink ** (2 * r) * inner
    return _ordered(total, 2**dimension, shrink, move) * lr**2 * noise / 2**dimension


def _ordered(bracket: float, n: int, shrink: float, move: Move) -> float:
    """The bracket of CTA and AWC as it is; ATC without the n - 1 of the noise that is not yet mixed."""
    return (bracket - (n - 1)) / shrink**2 if move.order == "atc" else bracket
