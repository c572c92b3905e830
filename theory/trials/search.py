r"""A search for the instance on which a bound is tightest, or wrong: hill climbing over the numbers that a trial draws.

A trial takes its numbers from a point u of the unit cube, in the order in which it asks for them (`UnitDraws`). From
the tightest of some random points, single coordinates are moved, by wide steps and then by narrow ones, and whatever
lowers the slack is kept. It knows nothing of the bound, so it finds what random instances miss in proportion to how
smoothly the slack depends on the numbers; generators are seeded from one coordinate, and so are merely tried again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dissensus.theory.bounds.base import Bound
from dissensus.theory.trials.base import Family, Trial, slack

Item = TypeVar("Item")


class UnitDraws:
    """Draws from a point of the unit cube; coordinates beyond its end come from a generator and are remembered."""

    def __init__(self, point: Sequence[float], rng: np.random.Generator) -> None:
        self.point = list(point)
        self._rng, self._at = rng, 0

    def _next(self) -> float:
        if self._at == len(self.point):
            self.point.append(float(self._rng.random()))
        self._at += 1
        return self.point[self._at - 1]

    def real(self, low: float, high: float, *, log: bool = False) -> float:
        """A number in [low, high]; with `log`, evenly in its logarithm."""
        u = self._next()
        if log:
            return float(math.exp(math.log(low) + u * (math.log(high) - math.log(low))))
        return float(low + u * (high - low))

    def integer(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return min(high, low + int(self._next() * (high - low + 1)))

    def choice(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[self.integer(0, len(items) - 1)]

    def generator(self) -> np.random.Generator:
        """A generator seeded by one coordinate."""
        return np.random.default_rng(int(self._next() * (1 << 53)))


@dataclass(frozen=True)
class Tightest:
    """The tightest instance that a search found."""

    slack: float
    trial: Trial | None
    tried: int


def measure(bound: Bound[Any], drawn: Trial) -> float | None:
    """The slack of one trial; None where the bound does not apply."""
    answer = bound.value(drawn.problem)
    if not answer.applies:
        return None
    forgiven = {"upper": -drawn.rounding, "lower": drawn.rounding, "equal": 0.0}[bound.kind]
    return slack(bound, answer.value, max(drawn.measured + forgiven, 0.0) if forgiven else drawn.measured)


def search(bound: Bound[Any], family: Family, *, tries: int = 200, seed: int = 0) -> Tightest:
    """Looks for the smallest slack within `tries` instances, a quarter of them random starts."""
    rng = np.random.default_rng(seed)
    best: tuple[float, list[float], Trial | None] = (math.inf, [], None)
    starts = max(1, tries // 4)
    for k in range(tries):
        if k < starts or not best[1]:
            point: list[float] = []
        else:
            point = list(best[1])
            width = 0.5 ** (1 + 7 * (k - starts) / max(1, tries - starts))
            for at in rng.choice(len(point), size=min(len(point), int(rng.integers(1, 3))), replace=False):
                point[at] = float(np.clip(point[at] + width * rng.normal(), 0.0, 1.0 - 1e-12))
        draws = UnitDraws(point, rng)
        drawn = family.draw(draws)
        found = measure(bound, drawn)
        if found is not None and found < best[0]:
            best = (found, draws.point, drawn)
    return Tightest(best[0], best[2], tries)
