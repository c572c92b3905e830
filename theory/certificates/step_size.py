r"""The learning rate whose worst case is smallest, found through the certificate.

The worst case as a function of the learning rate is a maximum over instances; nothing says that it has one valley. A
logarithmic grid over $(0, 2/L]$ finds the lowest place, golden-section search sharpens it between its neighbours, and
only the winner is certified with a check: the minimum is over what was tried, the value there is proven.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dissensus.theory.certificates.certificate import Certificate, certificate_of
from dissensus.theory.certificates.posing import pose
from dissensus.theory.certificates.setting import Setting
from dissensus.theory.certificates.solver import solve
from dissensus.theory.errors import MixingError

GRID = 13
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True, eq=False)
class BestRate:
    """The best learning rate among those tried."""

    lr: float
    certificate: Certificate
    tried: tuple[tuple[float, float], ...]
    """(learning rate, worst case) in the order of the rates; not checked one by one."""


def best_rate(of: Setting, *, low: float | None = None, high: float | None = None, accuracy: float = 1e-3) -> BestRate:
    """The learning rate in [low, high] with the smallest worst case, to a relative accuracy.

    Unless given, the interval is from 0.01/L to 2/L.
    """
    low = 0.01 / of.smoothness if low is None else low
    high = 2.0 / of.smoothness if high is None else high
    if not 0.0 < low < high < math.inf:
        raise MixingError(f"the learning rates to search must be 0 < low < high, got [{low!r}, {high!r}]")
    if not 0.0 < accuracy < 1.0:
        raise MixingError(f"accuracy of the learning rate is relative, between 0 and 1, got {accuracy!r}")
    values: dict[float, float] = {}

    def worst(lr: float) -> float:
        if lr not in values:
            solution = solve(pose(replace(of, lr=lr)))
            values[lr] = solution.dual if solution.multipliers is not None else math.inf
        return values[lr]

    grid = [float(v) for v in np.geomspace(low, high, GRID)]
    at = int(np.argmin([worst(v) for v in grid]))
    a, b = grid[max(at - 1, 0)], grid[min(at + 1, GRID - 1)]
    left, right = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
    while b - a > accuracy * b:
        if worst(left) <= worst(right):
            b, right = right, left
            left = b - GOLDEN * (b - a)
        else:
            a, left = left, right
            right = a + GOLDEN * (b - a)
    lr = min(values, key=lambda v: values[v])
    return BestRate(lr, certificate_of(replace(of, lr=lr)), tuple(sorted(values.items())))
