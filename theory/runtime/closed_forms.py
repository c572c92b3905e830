r"""What is known of the mean time T of an iteration without simulating it. Times in units of the mean computing time.

$c$ is a computing time, $c_{(n)}$ the longest of n, $\delta$ the delay of an exchange, $m$ how many a worker waits for,
itself included. All of it is ours (the published formulas were not to be had).

**All-reduce**, communication $g$: $T = \operatorname{E} c_{(n)} + g$; overlapped as in `recursion`, the mean of the
step's formula over $c_{(n)}$. Exact.

**Without noise** and with the same delay for all in a round: $T = \max(1, \delta)$ for AWC, $1 + \delta$ for ATC and
CTA, averaged over the rounds. Exact.

**Sandwich** (AWC): $\operatorname{E}\max(c, \delta) \le T \le \operatorname{E}\max(c_{(n)}, \delta)$. A worker waits at
least for its own exchange, and at most for everybody: the recursion is monotone in who is waited for. (Where delays
differ, their mean over workers from below and the longest of the round from above.)

**Paths.** With `order` AWC, $e_i(K)$ is the largest sum over paths that go back from i: a step either stays, which
costs $\max(c, \delta)$, or comes from one of $m-1$ others, which costs $\delta$. There are $m^K$ paths and the costs
along one are independent. So, with $M$ any cut, $c\wedge M$ the smaller of both, and for every $\theta > 0$,

$$ e^{\theta \operatorname{E} \max_i e_i(K)} \le \sum_{\text{paths}} \operatorname{E} e^{\theta\,\text{cost}}
   = n\bigl(\operatorname{E} e^{\theta \max(c\wedge M,\delta)} + (m-1)e^{\theta\delta}\bigr)^K ,$$

$$ T \le \inf_{\theta, M}\ \tfrac1\theta
   \log\bigl(\operatorname{E} e^{\theta\max(c\wedge M,\delta)} + (m-1)e^{\theta\delta}\bigr)
   + \operatorname{E}(c_{(n)} - M)^+ .$$

The last term pays for the cut: a step is longer than its cut version by at most $\max_i (c_i - M)^+$. Where c has
exponential moments M may be infinite and the bound does not know n: **what a worker loses to the others' noise stays
bounded as n grows, while all-reduce loses $\operatorname{E} c_{(n)} - 1 \to \infty$.** For ATC and CTA every step of a
path carries somebody's c: $T \le \delta + \inf \frac1\theta\log(m \operatorname{E}e^{\theta (c\wedge M)}) + \dots$

**Explicit.** If $\log\operatorname{E} e^{\theta(c-1)} \le \theta^2 s^2/2$ (normal times of deviation s; bounded times
with $s$ half their range), then with $\theta = \sqrt{2\log(1+m)}/s$, since $e^{\theta\max(c,\delta)} \le e^{\theta c} +
e^{\theta\delta}$,

$$ T_{\text{AWC}} \le \max(1,\delta) + s\sqrt{2\log(1+m)}, \qquad T_{\text{ATC}} \le 1 + \delta + s\sqrt{2\log m}. $$
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, special

from dissensus.theory.runtime.compute import SCORES, SHARES, Compute, expected_longest, longest
from dissensus.theory.runtime.recursion import Buckets, Order, Round, all_reduce_step

CUTS = (12.0, 9.0, 7.0, 6.0, 5.0, 4.5, 4.0, 3.5, 3.0, 2.5)
"""Scores at which computing times are cut in the path bound; beyond the first there is nothing to be seen."""
LARGEST_EXPONENT = 600.0


@dataclass(frozen=True)
class Bounds:
    """What T lies between, and by which argument the upper bound came about."""

    lower: float
    upper: float
    by: str


def all_reduce_pace(
    compute: Compute, n: int, communication: float, *, begins: float | None = None, buckets: Buckets = 1
) -> float:
    """T of all-reduce among n workers with independent times, exact."""
    return expected_longest(compute, n, lambda slowest: all_reduce_step(slowest, communication, begins, buckets))


def pace_bounds(rounds: Sequence[Round], compute: Compute, *, order: Order = "awc") -> Bounds:
    """What T of a schedule lies between: the sandwich, and from above the paths where they are better."""
    n, times = rounds[0].size, compute.at(SCORES)
    delays = np.stack([one.delay for one in rounds])
    if order == "awc":
        own = {d: float(SHARES @ np.maximum(times, d)) for d in set(delays.ravel().tolist())}
        lower = float(np.mean([own[d] for d in delays.ravel().tolist()]))
        slowest = longest(compute, n)
        upper = float(np.mean([SHARES @ np.maximum(slowest, d) for d in delays.max(axis=1)]))
    else:
        lower = float(SHARES @ times + delays.mean())
        upper = float(expected_longest(compute, n) + delays.max(axis=1).mean())
    paths = path_bound([(one.delay.max(), one.heard) for one in rounds], compute, n, order=order)
    return Bounds(lower, min(upper, paths), "paths" if paths < upper else "everybody waits for everybody")


def path_bound(rounds: Sequence[tuple[float, int]], compute: Compute, n: int, *, order: Order = "awc") -> float:
    """The bound by paths, for rounds of (delay, how many a worker waits for, itself included)."""
    times, slowest = compute.at(SCORES), longest(compute, n)
    kinds, best = Counter((float(d), m) for d, m in rounds), np.inf
    for cut in CUTS:
        most = float(compute.at(np.array([cut]))[0])
        beyond = float(SHARES @ np.maximum(slowest - most, 0.0))
        within = np.minimum(times, most)

        def per_step(log_theta: float, within: np.ndarray = within) -> float:
            theta = np.exp(log_theta)
            per_round = [times * _log_moment(theta, within, d, m, order) for (d, m), times in kinds.items()]
            return float(sum(per_round) / len(rounds) / theta)

        top = np.log(LARGEST_EXPONENT / max(1.0, within[-1], *(d for d, _ in kinds)))
        found: Any = optimize.minimize_scalar(per_step, bounds=(-7.0, top), method="bounded", options={"xatol": 1e-6})
        best = min(best, float(found.fun) + beyond)
    return best


def explicit_bound(deviation: float, delay: float, heard: int, *, order: Order = "awc") -> float:
    """The bound for sub-Gaussian times of that parameter, in closed form."""
    if order == "awc":
        return max(1.0, delay) + deviation * float(np.sqrt(2 * np.log(1 + heard)))
    return 1.0 + delay + deviation * float(np.sqrt(2 * np.log(heard)))


def _log_moment(theta: float, within: np.ndarray, delay: float, heard: int, order: Order) -> float:
    if order == "awc":
        stays: Any = special.logsumexp(theta * np.maximum(within, delay), b=SHARES)
        return float(np.logaddexp(stays, np.log(heard - 1) + theta * delay) if heard > 1 else stays)
    moment: Any = special.logsumexp(theta * within, b=SHARES)
    return float(moment + np.log(heard) + theta * delay)
