r"""Base-(k+1) graphs: exact averaging after finitely many rounds, for any n, with at most k neighbours a round.

Three constructions, b = k + 1.

*Hyper-hypercube*, when every prime factor of n is at most b: write n = f_1 ... f_q with all f <= b and average in
groups of f_l, one digit of the mixed-radix number of a worker after the other: q rounds.

*Simple base*, any other n: write $n = \sum_l a_l b^{p_l}$ with $p_1 > p_2 > \dots$ and $1\le a_l\le k$, and split the
workers into parts of $a_l b^{p_l}$. First every part averages inside itself; then, part after part, each worker of all
later parts exchanges with one worker of each of the $a_l$ blocks of part l, at the weight that makes the later parts
hold the mean of all; last, each block averages inside itself. $2p_1 + 1 + [a_1 > 1]$ rounds.

*Base*: n = p q with p the b-smooth part: p copies of the simple base on q workers, then hyper-hypercubes across the
copies. The shorter of the last two is taken.

Reference: Takezawa et al., Beyond exponential graph (2023), arXiv:2305.11420.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.registry import register
from dissensus.theory.topologies.rounds import alone, edges, group_weights
from dissensus.theory.topology import ClosedForm, Topology

Labels = np.ndarray
"""One label a worker: those with the same label average among themselves."""


@dataclass(frozen=True)
class Exchange:
    """Links between single workers at a weight, beside the groups of a round."""

    first: np.ndarray
    second: np.ndarray
    weight: float


@dataclass(frozen=True)
class Round:
    """Groups that average, and for the workers that are alone in theirs, exchanges."""

    labels: Labels
    exchange: Exchange | None = None

    def beside(self, copies: int) -> Round:
        """This round in several copies of the workers, one copy after the other."""
        n, copy = len(self.labels), np.arange(copies)[:, None]
        labels = (copy * n + self.labels).ravel()
        if (e := self.exchange) is None:
            return Round(labels)
        return Round(labels, Exchange((copy * n + e.first).ravel(), (copy * n + e.second).ravel(), e.weight))

    def matrix(self) -> MixingMatrix:
        """The mixing matrix: averaging in groups, minus the weighted Laplacian of the exchanges."""
        w = group_weights(self.labels)
        if (e := self.exchange) is not None:
            links = e.weight * edges(len(self.labels), e.first, e.second)
            w = w + links - sp.diags_array(np.asarray(links.sum(axis=1)).ravel())
        return MixingMatrix(sp.csr_array(w))


@register("base-k")
def base_k(n: int, *, k: int = 1, simple: bool = False) -> Topology:
    r"""Base-(k+1) finite-time graph: exact for every n after at most 2 log_{k+1} n + 2 rounds of degree <= k.

    Every round is symmetric and doubly stochastic, and the product of one period, from its first round on, is J: the
    order matters. `simple=True` keeps to the simple base where the base construction would be shorter.
    """
    if k < 1:
        raise MixingError(f"base-k needs at least one neighbour a round, got k={k}; the nearest that works is k=1")
    if n == 1:
        return alone("base-k", k=k)
    base = min(k, n - 1) + 1  # more neighbours than there are workers are all of them
    rounds = tuple(r.matrix() for r in (_simple(n, base) if simple else _base(n, base)))
    exact = ClosedForm(contraction=0.0, source="the product of a period is J, from its first round on")
    return Topology("base-k", n, rounds, parameters={"k": k}, closed_form=exact)


def _factors(n: int, b: int) -> list[int]:
    """Ascending factors 2..b whose product is n, as few as greed finds; none if a prime factor of n exceeds b."""
    found, rest = [], n
    for f in range(min(b, n), 1, -1):
        while rest % f == 0:
            found.append(f)
            rest //= f
    return found[::-1] if rest == 1 else []


def _digits(n: int, b: int) -> list[Labels]:
    """The hyper-hypercube on n workers: at round l those average whose numbers differ in digit l alone."""
    worker, stride, rounds = np.arange(n), 1, []
    for f in _factors(n, b):
        rounds.append(worker // (stride * f) * stride + worker % stride)
        stride *= f
    return rounds


def _base(n: int, b: int) -> list[Round]:
    """The base graph, or the simple base graph where that is shorter."""
    simple = _simple(n, b)
    q = n
    for f in range(2, b + 1):
        while q % f == 0:
            q //= f
    p = n // q
    if p == 1 or q == 1:
        return simple
    worker = np.arange(n)
    across = [Round(labels[worker // q] * q + worker % q) for labels in _digits(p, b)]
    inside = [r.beside(p) for r in _simple(q, b)]
    return simple if len(simple) < len(inside) + len(across) else inside + across


def _simple(n: int, b: int) -> list[Round]:
    """The simple base graph, or the hyper-hypercube where n allows it."""
    if _factors(n, b):
        return [Round(labels) for labels in _digits(n, b)]
    parts = _parts(n, b)
    opening = len(_digits(parts[0].size, b))
    length = opening + 1 + len(_digits(parts[0].block, b))
    return [_simple_round(m, opening, parts, b) for m in range(length)]


@dataclass(frozen=True)
class Part:
    """The workers start..start+size-1, in blocks of a power of b."""

    start: int
    size: int
    block: int

    def average(self, m: int, b: int) -> Labels:
        """The m-th (cyclic) round of averaging over the whole part."""
        return self.start + _turn(_digits(self.size, b), m, self.size)

    def average_blocks(self, m: int, b: int) -> Labels:
        """The m-th (cyclic) round of averaging inside each block, inside the part where it is smaller than b."""
        if self.size < b:
            return self.average(m, b)
        worker = np.arange(self.size)
        inner = _turn(_digits(self.block, b), m, self.block)
        return self.start + worker // self.block * self.block + inner[worker % self.block]


def _turn(rounds: list[Labels], m: int, n: int) -> Labels:
    return rounds[m % len(rounds)] if rounds else np.arange(n)


def _parts(n: int, b: int) -> list[Part]:
    """The digits of n in base b, largest first: one part for each that is not zero."""
    block, parts, start = 1, [], 0
    while block * b <= n:
        block *= b
    while start < n:
        size = (n - start) // block * block
        if size:
            parts.append(Part(start, size, block))
        start, block = start + size, block // b
    return parts


def _simple_round(m: int, opening: int, parts: list[Part], b: int) -> Round:
    """Round m of the simple base graph: first rounds inside the parts, then an exchange for each part but the last."""
    if m < opening:
        return Round(np.concatenate([part.average(m, b) for part in parts]))
    now = m - opening  # the part whose workers all later parts exchange with
    n, last = parts[-1].start + parts[-1].size, len(parts) - 1
    labels = np.arange(n)
    for turn, part in enumerate(parts):
        done = now - turn - 1 if turn < last else now - last
        if done >= 0:
            labels[part.start : part.start + part.size] = part.average_blocks(done, b)
    if now >= last:
        return Round(labels)
    part = parts[now]
    later = np.arange(part.start + part.size, n)
    blocks = part.size // part.block
    asked = part.start + np.arange(blocks)[:, None] * part.block + np.arange(len(later))
    spare = np.setdiff1d(np.arange(part.start, part.start + part.size), asked)
    labels[spare] = spare[np.arange(len(spare)) // b * b]  # who is not asked averages in groups of b: it costs no time
    share = part.size / (n - part.start)
    return Round(labels, Exchange(np.tile(later, blocks), asked.ravel(), share / blocks))
