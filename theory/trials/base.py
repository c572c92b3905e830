r"""Trials: random problems on which what a bound speaks of is computed exactly and held against it.

A trial draws a problem through a `Draws`, so that chance, a search or Hypothesis can be at the wheel. It computes what
the bound bounds from first principles in dense float64 (a recursion, exact moments, an eigenvalue; never the bound's
own formula, and no Monte Carlo where moments can be had). Families of trials isolate the terms of a bound: no noise, no
heterogeneity, a start at the optimum, a contraction near one. A constant can only be trusted as far as the tightest
family reaches.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from dissensus.theory.bounds.base import Bound

Item = TypeVar("Item")


class Draws(Protocol):
    """Where the numbers of a trial come from."""

    def real(self, low: float, high: float, *, log: bool = False) -> float:
        """A number in [low, high]; with `log`, evenly in its logarithm."""
        ...

    def integer(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        ...

    def choice(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        ...

    def generator(self) -> np.random.Generator:
        """A generator for what has no knobs worth turning (matrices of normals, say)."""
        ...


class RandomDraws:
    """Draws from a seeded generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def real(self, low: float, high: float, *, log: bool = False) -> float:
        """A number in [low, high]; with `log`, evenly in its logarithm."""
        if log:
            return float(math.exp(self._rng.uniform(math.log(low), math.log(high))))
        return float(self._rng.uniform(low, high))

    def integer(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return int(self._rng.integers(low, high + 1))

    def choice(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[int(self._rng.integers(len(items)))]

    def generator(self) -> np.random.Generator:
        """A generator of its own."""
        return np.random.default_rng(int(self._rng.integers(1 << 62)))


@dataclass(frozen=True)
class Trial:
    """One problem and what was measured on it."""

    problem: Any
    """The bound's dataclass of facts; assumptions hold unless the trial is about their failure."""
    measured: float
    """The quantity that the bound speaks of, from first principles."""
    rounding: float = 0.0
    """The absolute error of `measured` in float64, where it may be zero: as much is forgiven, no more."""
    certified: float | None = None
    """The exact worst case over all functions, where a certificate was computed for this problem."""


Draw = Callable[[Draws], Trial]


@dataclass(frozen=True)
class Family:
    """A named way to draw trials for one bound."""

    bound: str
    name: str
    draw: Draw
    needs: str = ""
    """A package that is not always there, without which nothing can be drawn."""
    most: int | None = None
    """More instances than this are not worth their time."""

    @property
    def available(self) -> bool:
        """Whether what it needs is there."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None


_families: dict[str, list[Family]] = {}


def trial(bound: str, family: str = "general", *, needs: str = "", most: int | None = None) -> Callable[[Draw], Draw]:
    """Registers a way to draw trials for the bound of that name."""

    def add(draw: Draw) -> Draw:
        _families.setdefault(bound, []).append(Family(bound, family, draw, needs, most))
        return draw

    return add


def slack(bound: Bound[Any], value: float, measured: float) -> float:
    """How far the bound is from what was measured, as a factor >= 1 if the bound holds.

    Upper bounds: value / measured; lower bounds: measured / value; an equality gives 1 + its relative error's excess
    over rounding. Where both are zero to rounding the bound is attained.
    """
    if bound.kind == "equal":
        scale = max(abs(value), abs(measured), 1e-300)
        error = abs(value - measured) / scale
        return 1.0 if error <= 1e-8 else 1.0 - error
    over, under = (value, measured) if bound.kind == "upper" else (measured, value)
    if under <= 0.0:
        return math.inf if over > 0.0 else (1.0 if over == under else 0.0)
    return over / under
