r"""When a schedule is done: exact averaging after finitely many steps, and the steps until disagreement is small.

A window of t steps from phase s is $W_{s+t-1}\cdots W_s$. It is *exact* when it equals $J = 11^\top/n$. To tell
exactness from fast convergence, the step before must still be off by more than 1e-6 while the step itself is off by at
most 1e-12: no power sequence $\rho^t$ can do both, since $10^{-6} < \rho^{t-1}$ gives $\rho^t > 10^{-12}$ for t >= 2.
The mixing time is the fewest steps from phase 0 after which $\|\text{window}-J\|_2 \le \epsilon$. Both are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dissensus.theory.spectrum import Contraction
from dissensus.theory.topology import Topology

EXACT = 1e-12
"""What may be left of a disagreement of length one after the step that completes exact averaging."""
PRODUCTS = 128
"""Up to this n the mixing time of a schedule that is not symmetric and static is found from dense products."""


@dataclass(frozen=True)
class MixingTime:
    """Steps until the disagreement is at most each level; `kind` says whether they are exact or an upper bound."""

    steps: dict[float, int | None]
    kind: str | None


def exact_after(topology: Topology, start: int = 0, *, seed: int = 0) -> int | None:
    """The fewest steps from `start` after which all workers hold the exact average, or `None`.

    Four random vectors are pushed through the rounds, made of length one again after each: a window that is not J moves
    each of them off the mean with probability one, and the step that completes J takes all of their length at once. The
    search ends after two periods and n steps, at least 64 and at most 1024 beyond the two periods. A static symmetric
    round is its own root: it is exact after one step or never.
    """
    n = topology.size
    if n == 1:
        return 0
    if topology.period is None or not all(w.is_doubly_stochastic for w in topology):
        return None
    z = np.random.default_rng(seed).standard_normal((n, 4))
    z = z - z.mean(axis=0)
    z /= np.linalg.norm(z, axis=0)
    once = topology.is_static and topology.is_symmetric
    for t in range(1 if once else 2 * topology.period + min(max(n, 64), 1024)):
        z = topology[start + t] @ z
        z = z - z.mean(axis=0)
        length = np.linalg.norm(z, axis=0)
        if length.max() <= EXACT:
            return t + 1
        z /= np.maximum(length, EXACT)
    return None


def exact_phases(topology: Topology, steps: int | None) -> list[int]:
    """The starting phases of the period from which a window of `steps` rounds is exact averaging."""
    if steps is None or topology.period is None:
        return []
    found = {phase: exact_after(topology, phase) for phase in range(topology.period)}
    return [phase for phase, after in found.items() if after is not None and after <= steps]


def mixing_time(
    topology: Topology, rate: Contraction, levels: tuple[float, ...] = (0.25, 1e-3), *, exact: int | None = None
) -> MixingTime:
    """The steps from phase 0 to each level of disagreement (to 1e-9 of it), given the contraction of the topology.

    Exact for a static symmetric round (its powers have the norm contraction^t) and, up to n=128, from dense products.
    Else an upper bound: disagreement after k periods is at most contraction^k, and none is left after `exact` steps;
    for a drawn schedule the bound is on its root mean square. `None` where there is no bound, or where the rounds are
    not doubly stochastic.
    """
    period = topology.period
    if topology.size == 1:
        return MixingTime(dict.fromkeys(levels, 0), "exact")
    if topology.promise != "doubly":
        return MixingTime(dict.fromkeys(levels, None), None)
    by_rate = topology.is_static and topology.is_symmetric
    if period is not None and not by_rate and topology.size <= PRODUCTS:
        return MixingTime({level: _first_below(topology, level) for level in levels}, "exact")
    if rate.loss <= rate.loss_error:
        kind = "upper bound, in whole periods" if exact is not None else None
        return MixingTime(dict.fromkeys(levels, exact), kind)
    log = -math.inf if rate.loss >= 1 or rate.value == 0 else math.log1p(-rate.loss)
    periods = {level: max(1, math.ceil(math.log(level) / log - 1e-9)) for level in levels}
    if period is None:
        return MixingTime({**periods}, "upper bound on the root mean square")
    if by_rate:
        return MixingTime({**periods}, "exact")
    whole = {level: period * k for level, k in periods.items()}
    if exact is not None:
        whole = {level: min(steps, exact) for level, steps in whole.items()}
    return MixingTime({**whole}, "upper bound, in whole periods")


def _first_below(topology: Topology, level: float) -> int | None:
    """The disagreement of doubly stochastic windows never grows, so whole periods are doubled, halved, then walked."""
    level = level * (1 + 1e-9)
    n, period = topology.size, topology.period or 1

    def norm(a: np.ndarray) -> float:
        return float(np.linalg.norm(a - 1.0 / n, 2))

    powers = [topology.product()]
    while norm(powers[-1]) > level:
        if len(powers) > 60:
            return None
        powers.append(powers[-1] @ powers[-1])
    done, periods = np.eye(n), 0
    for k in range(len(powers) - 2, -1, -1):
        further = powers[k] @ done
        if norm(further) > level:
            done, periods = further, periods + 2**k
    for t in range(period):
        done = topology[t] @ done
        if norm(done) <= level:
            return periods * period + t + 1
    return (periods + 1) * period
