r"""Exponential graphs: worker i hears i - 1, i - 2, i - 4, ..., at once or one at a time.

With $\tau = \lceil\log_2 n\rceil$ hops, a mode $z = e^{2\pi\mathrm i j/n} \ne 1$ has the eigenvalue
$\frac{1}{1+\tau}(1 + \sum_k z^{2^k})$. Doubling its angle reaches the far half circle while there is a doubling left,
and there $|1 + w + w^2| \le 1$: three terms count as one at most, which proves the gap (ours; the value is published).

Reference: Ying et al., Exponential graph is provably efficient for decentralized deep training (2021).
"""

from __future__ import annotations

from math import pi, sin
from typing import ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Kind, Provenance, bound
from dissensus.theory.bounds.conditions import WORKERS
from dissensus.theory.bounds.gap_closed_forms import Sized


def hops(n: int) -> int:
    """The number of distances 1, 2, 4, ... below n: the logarithm of n, rounded up."""
    return (int(n) - 1).bit_length()


@bound
class GapExponential(Bound[Sized]):
    """Even sizes: the mode of alternating signs, which only hop 1 turns over."""

    name: ClassVar[str] = "gap-exponential"
    title: ClassVar[str] = "spectral gap of the static exponential graph of an even number of workers"
    kind: ClassVar[Kind] = "equal"
    statement: ClassVar[str] = r"1-\lambda = \frac{2}{1+\lceil\log_2 n\rceil}, \quad n \text{ even}"
    reference: ClassVar[str] = "Ying et al. 2021, from memory"
    provenance: ClassVar[Provenance] = "recalled"
    problem: ClassVar[type] = Sized
    assumptions: ClassVar[tuple[Assumption[Sized], ...]] = (
        Assumption("size", r"n \ge 2, n \text{ even}", lambda p: p.size >= 2 and p.size % 2 == 0),
    )

    def formula(self, p: Sized) -> float:
        """2 / (1 + tau)."""
        return 2.0 / (1 + hops(p.size))


@bound
class GapExponentialAny(Bound[Sized]):
    """Every size has at least that gap."""

    name: ClassVar[str] = "gap-exponential-any"
    title: ClassVar[str] = "spectral gap of the static exponential graph"
    kind: ClassVar[Kind] = "lower"
    statement: ClassVar[str] = r"1-\lambda \ge \frac{2}{1+\lceil\log_2 n\rceil}"
    reference: ClassVar[str] = "Ying et al. 2021, from memory; proof ours"
    provenance: ClassVar[Provenance] = "recalled"
    tight: ClassVar[str] = "every even n"
    problem: ClassVar[type] = Sized
    assumptions: ClassVar[tuple[Assumption[Sized], ...]] = (WORKERS,)

    def formula(self, p: Sized) -> float:
        """2 / (1 + tau)."""
        return 2.0 / (1 + hops(p.size))


@bound
class OnePeerExponential(Bound[Sized]):
    """What one pass through the hops leaves of disagreement: nothing for a power of two."""

    name: ClassVar[str] = "one-peer-exponential"
    title: ClassVar[str] = "contraction of one period of the one-peer exponential graph"
    kind: ClassVar[Kind] = "equal"
    statement: ClassVar[str] = (
        r"\lVert W_{\tau-1}\cdots W_0-J\rVert_2 = \frac{\lvert\sin(2^\tau\pi/n)\rvert}{2^\tau\sin(\pi/n)},"
        r"\quad \tau=\lceil\log_2 n\rceil, \text{ which is } 0 \text{ for } n=2^\tau"
    )
    reference: ClassVar[str] = "exactness: Ying et al. 2021; what is left for other sizes: ours"
    provenance: ClassVar[Provenance] = "ours"
    problem: ClassVar[type] = Sized
    assumptions: ClassVar[tuple[Assumption[Sized], ...]] = (WORKERS,)

    def formula(self, p: Sized) -> float:
        """The telescoped product at the slowest mode."""
        whole = 1 << hops(p.size)
        return sin(pi * (whole % p.size) / p.size) / (whole * sin(pi / p.size))
