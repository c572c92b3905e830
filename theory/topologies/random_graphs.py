"""Random graphs, drawn once from a seed: Erdos-Renyi and random regular."""

from __future__ import annotations

from math import isqrt, log

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError
from dissensus.theory.registry import register
from dissensus.theory.topologies.draws import connected_draw
from dissensus.theory.topologies.rounds import edges, on_graph
from dissensus.theory.topologies.sizes import wrong_size
from dissensus.theory.topology import Topology


@register("erdos-renyi")
def erdos_renyi(n: int, *, p: float | None = None, seed: int = 0, rule: str = "metropolis") -> Topology:
    r"""Each pair of workers linked with probability p, drawn once; redrawn until connected.

    The default $p = \min(1, 2\ln n/n)$ is twice the threshold of connectivity, $\ln n/n$. After a bounded number of
    disconnected draws the error proposes a p. A pure function of (n, p, seed).
    """
    usual = min(1.0, 2.0 * log(n) / n) if n > 2 else 1.0
    p = usual if p is None else p
    if not 0.0 <= p <= 1.0:
        raise MixingError(f"erdos-renyi: p must lie in [0, 1], got {p}; p = {usual:.3g} is connected most of the time")
    total = n * (n - 1) // 2

    def draw(rng: np.random.Generator) -> sp.csr_array:
        chosen = rng.choice(total, size=rng.binomial(total, p), replace=False, shuffle=False) if total else np.empty(0)
        return edges(n, *_pair(chosen.astype(np.int64)))

    better = min(1.0, max(usual, 2.0 * p))
    links = connected_draw("erdos-renyi", n, seed, draw, f"p = {better:.3g} is connected most of the time")
    return on_graph("erdos-renyi", links, rule, p=p, seed=seed)


@register("random-regular")
def random_regular(n: int, *, degree: int | None = None, seed: int = 0, rule: str = "metropolis") -> Topology:
    """Every worker with the same number of random neighbours, drawn once; redrawn until connected.

    Links are paired at random and clashes paired again (after Steger and Wormald, asymptotically uniform). n times
    degree must be even and degree below n; by default 3 for even n and 4 for odd n, less where n is too small. A pure
    function of (n, degree, seed).
    """
    if degree is None:
        degree = min(n - 1, 4 if n % 2 else 3)
    if n > 1 and (degree < 1 or degree >= n or degree * n % 2):
        _refuse_degree(n, degree)
    if n > 2 and degree == 1:
        raise MixingError(f"random-regular: with degree 1 only pairs are linked, got n = {n}; degree 2 is a ring")
    advice = "a larger degree is connected more often"
    links = connected_draw("random-regular", n, seed, lambda rng: _regular(n, degree if n > 1 else 0, rng), advice)
    return on_graph("random-regular", links, rule, degree=degree, seed=seed)


def _refuse_degree(n: int, degree: int) -> None:
    if degree < 1:
        raise MixingError(f"random-regular needs a degree of at least 1, got {degree}")
    step = 2 if degree % 2 else 1
    above = max(n + 1, degree + 1)
    above += above % step
    below = (n - 1) // step * step
    needs = f"{'an even number of' if step == 2 else 'more'} workers {'above' if step == 2 else 'than'} degree={degree}"
    raise wrong_size("random-regular", needs, n, below if below > degree else None, above)


def _pair(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pair (i, j), i > j, of each number in the order (1,0), (2,0), (2,1), (3,0), ...; exact below 2^50."""
    i = ((1.0 + np.sqrt(1.0 + 8.0 * index)) / 2.0).astype(np.int64)
    return i, index - i * (i - 1) // 2


def _regular(n: int, degree: int, rng: np.random.Generator) -> sp.csr_array:
    """One random regular graph without loops and double links."""
    if degree > (n - 1) // 2 and n > 2:  # the complement of a regular graph is one, and sparser
        return _complement(n, _regular(n, n - 1 - degree, rng))
    while True:
        stubs = np.repeat(np.arange(n, dtype=np.int64), degree)
        taken = np.empty(0, dtype=np.int64)  # the links so far as sorted keys i n + j, i < j
        for _ in range(20 + isqrt(n)):
            rng.shuffle(stubs)
            a, b = np.minimum(stubs[::2], stubs[1::2]), np.maximum(stubs[::2], stubs[1::2])
            key = a * n + b
            fresh = np.zeros(len(key), dtype=bool)
            fresh[np.unique(key, return_index=True)[1]] = True
            fresh &= (a != b) & (np.searchsorted(taken, key, "left") == np.searchsorted(taken, key, "right"))
            taken = np.sort(np.concatenate([taken, key[fresh]]), kind="stable")
            stubs = np.concatenate([a[~fresh], b[~fresh]])
            if not len(stubs):
                return edges(n, taken // n, taken % n)


def _complement(n: int, graph: sp.csr_array) -> sp.csr_array:
    return sp.csr_array(1.0 - np.eye(n) - graph.toarray())
