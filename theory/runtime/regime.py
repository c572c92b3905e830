r"""In which regime of (gamma, omega, sigma, n) a decentralized schedule is faster than all-reduce by a given margin.

$\gamma$ is the communication of all-reduce over computing, $\omega$ decentralized over all-reduce communication, so the
delay of an exchange is $\delta = \omega\gamma$; $\sigma$ the deviation of computing times, n the workers, $m$ how many
a worker waits for (itself included; 2 for one-peer schedules), $1 + r$ the speed-up asked for. Ours, with proofs.

**Theorem.** With U any upper bound on the mean iteration of the schedule (`closed_forms`: everybody waits for
everybody, or paths), the speed-up is at least $1 + r$ wherever

$$ T_{\text{AR}}(\gamma, \sigma, n) \ \ge\ (1 + r)\, U(\omega\gamma, \sigma, m). $$

*Proof.* The left is exact, the right at least $(1+r)T$. ∎  It is sufficient, not necessary; `possible_speedup` bounds
the speed-up from above by the lower bound of T in the same way, so what lies between both is where only simulation
tells.

**Corollary, without noise** (all-reduce not overlapped, AWC): the speed-up is $(1+\gamma)/\max(1, \omega\gamma)$, so it
is at least $1+r$ exactly for

$$ r \le \gamma \le \frac{1}{(1+r)\omega - 1} \quad(\text{no upper end if } (1+r)\omega \le 1), $$

it is largest at $\gamma = 1/\omega$, namely $1 + 1/\omega$; a schedule with $\omega > 1/r$ reaches $1+r$ nowhere.

**Corollary, any noise that is sub-Gaussian with parameter s**: with $\kappa = s\sqrt{2\log(1+m)}$ and
$T_{\text{AR}} \ge 1 + \gamma$, at least $1 + r$ for

$$ (1+r)(1+\kappa) - 1 \ \le\ \gamma \ \le\ \frac{1 - (1+r)\kappa}{(1+r)\omega - 1}, $$

for every n at once. What all-reduce loses to noise, $\operatorname{E}c_{(n)} - 1$, adds to $\gamma$ on the left, so for
n large enough the lower end is gone: without any cost of communication the schedule wins by waiting for fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize

from dissensus.theory.errors import MixingError
from dissensus.theory.runtime.closed_forms import all_reduce_pace, path_bound
from dissensus.theory.runtime.compute import SCORES, SHARES, Compute, longest
from dissensus.theory.runtime.recursion import Buckets, Order

SEARCHED = np.geomspace(1e-3, 1e3, 61)
"""Where ends of an interval of gamma are looked for."""


@dataclass(frozen=True)
class Rivals:
    """What is compared: a schedule that costs `omega` times the communication of all-reduce, among n workers."""

    omega: float
    n: int
    heard: int = 2
    """For how many a worker waits, itself included."""
    order: Order = "awc"
    begins: float | None = None
    """The share of computing after which all-reduce begins to send; None if it waits for all of it."""
    buckets: Buckets = 1

    def __post_init__(self) -> None:
        if not (np.isfinite(self.omega) and self.omega >= 0):
            raise MixingError(f"omega must be finite and not negative, got {self.omega}")
        if not 1 <= self.heard <= self.n:
            raise MixingError(
                f"a worker waits for 1 to n = {self.n} workers, itself included, got heard = {self.heard}"
            )

    def guaranteed_speedup(self, gamma: float, compute: Compute) -> float:
        """All-reduce over an upper bound of the schedule: it is at least so many times as fast."""
        delay = self.omega * gamma
        if self.order == "awc":
            everybody = float(SHARES @ np.maximum(longest(compute, self.n), delay))
        else:
            everybody = float(SHARES @ longest(compute, self.n)) + delay
        if everybody <= self._lower(delay, compute) * (1 + 1e-9):
            return self._all_reduce(gamma, compute) / everybody
        paths = path_bound([(delay, self.heard)], compute, self.n, order=self.order)
        return self._all_reduce(gamma, compute) / min(everybody, paths)

    def possible_speedup(self, gamma: float, compute: Compute) -> float:
        """All-reduce over a lower bound of the schedule: it is at most so many times as fast."""
        return self._all_reduce(gamma, compute) / self._lower(self.omega * gamma, compute)

    def guaranteed_regime(self, margin: float, compute: Compute) -> list[tuple[float, float]]:
        """The intervals of gamma in which the schedule is for certain faster by the margin.

        Ends are found between neighbours of `SEARCHED`; an interval that lies between two of them is not seen.
        """

        def excess(gamma: float) -> float:
            return self.guaranteed_speedup(gamma, compute) - 1 - margin

        grid = [0.0, *SEARCHED]
        if self.omega * (1 + margin) > 1:  # it ends somewhere: far out the speed-up is 1 / omega
            while excess(grid[-1]) >= 0:
                grid.append(10 * grid[-1])
        signs = [excess(gamma) >= 0 for gamma in grid]
        solve: Any = optimize.brentq
        ends = [
            float(solve(excess, low, high, xtol=1e-9, rtol=1e-9))
            for low, high, before, after in zip(grid, grid[1:], signs, signs[1:], strict=False)
            if before != after
        ]
        ends = ([0.0] if signs[0] else []) + ends + ([np.inf] if signs[-1] else [])
        return list(zip(ends[::2], ends[1::2], strict=True))

    def _lower(self, delay: float, compute: Compute) -> float:
        times = compute.at(SCORES)
        return float(SHARES @ (np.maximum(times, delay) if self.order == "awc" else times + delay))

    def _all_reduce(self, gamma: float, compute: Compute) -> float:
        return all_reduce_pace(compute, self.n, gamma, begins=self.begins, buckets=self.buckets)


def noiseless_regime(margin: float, omega: float) -> tuple[float, float] | None:
    """The interval of gamma in which AWC beats all-reduce without overlap by the margin, without noise; exact."""
    return subgaussian_regime(margin, omega, 0.0, 2)


def subgaussian_regime(margin: float, omega: float, deviation: float, heard: int) -> tuple[float, float] | None:
    """The same for sub-Gaussian noise of that parameter, for every n: sufficient."""
    kappa = deviation * float(np.sqrt(2 * np.log(1 + heard)))
    low = (1 + margin) * (1 + kappa) - 1
    slope, rest = (1 + margin) * omega - 1, 1 - (1 + margin) * kappa
    if slope > 0:
        high = rest / slope
    elif slope < 0:
        low, high = max(low, rest / slope), np.inf
    else:
        high = np.inf if rest >= 0 else 0.0
    return (low, high) if low <= high else None
