r"""Directed exponential graphs: worker i hears i - 1, i - 2, i - 4, ..., all at once or one at a time.

There are $\tau = \lceil\log_2 n\rceil$ hops $2^0,\dots,2^{\tau-1}$, all below n.

Reference: Ying et al., Exponential graph is provably efficient for decentralized deep training (2021).
"""

from __future__ import annotations

from math import pi, sin

from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.registry import register
from dissensus.theory.topologies.rounds import alone, shifts
from dissensus.theory.topologies.sizes import is_power_of_two
from dissensus.theory.topology import ClosedForm, Topology


@register("exponential")
def exponential(n: int) -> Topology:
    r"""Static exponential graph: worker i receives from i - 2^k mod n for every k, weights 1/(1+ceil(log2 n)).

    Circulant, hence normal: for even n the contraction is exactly $1 - 2/(1+\tau)$ (the mode of alternating signs,
    which hop 1 turns over and all other hops keep); for odd n it is smaller and has no closed form that we know.
    """
    if n == 1:
        return alone("exponential")
    tau = (n - 1).bit_length()
    w = MixingMatrix(shifts(n, [0, *(1 << k for k in range(tau))], 1.0 / (1 + tau)))
    gap = 2.0 / (1 + tau)
    known = (
        ClosedForm(gap, (tau - 1) / (tau + 1), None, "1 - 2/(1+ceil(log2 n)), n even") if n % 2 == 0 else ClosedForm()
    )
    return Topology("exponential", n, (w,), closed_form=known)


@register("one-peer-exponential")
def one_peer_exponential(n: int) -> Topology:
    r"""One hop of the exponential graph at a time: at step k worker i receives from i - 2^k mod n, weights 1/2.

    Directed and doubly stochastic, period $\tau$. All rounds are circulant and commute, and the product of their
    eigenvalues telescopes, $\prod_k |\cos(\pi j 2^k/n)| = |\sin(\pi j 2^\tau/n)| / (2^\tau |\sin(\pi j/n)|)$, largest
    at j = 1 (ours). So any $\tau$ steps in a row are exact for a power of two, and for no other n.
    """
    if n == 1:
        return alone("one-peer-exponential")
    tau = (n - 1).bit_length()
    rounds = tuple(MixingMatrix(shifts(n, (0, 1 << k), 0.5)) for k in range(tau))
    left = 0.0 if is_power_of_two(n) else abs(sin(pi * ((1 << tau) % n) / n)) / ((1 << tau) * sin(pi / n))
    known = ClosedForm(contraction=left, source="|sin(pi 2^tau/n)| / (2^tau sin(pi/n))")
    return Topology("one-peer-exponential", n, rounds, closed_form=known)
