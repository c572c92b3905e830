r"""How long a step of computing takes: a random time of mean 1, as a function of a standard normal score.

Every distribution here is a nondecreasing function $c = q(z)$ of a score $z\sim N(0,1)$ (its quantile at $\Phi(z)$). So
all distributions can be drawn from the same scores: what is compared is compared on common random numbers, surfaces
over $\sigma$ are smooth, and expectations of the longest of n are one integral,

$$ \operatorname{E} f\bigl(\max_{i\le n} c_i\bigr) = \int f\bigl(q(z_n)\bigr)\,\varphi(z)\,dz,
   \qquad \Phi(z_n)=\Phi(z)^{1/n}. $$

`deviation` is the standard deviation of c, in units of its mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from scipy import special, stats

from dissensus.theory.errors import MixingError

SCORES = np.linspace(-12.0, 12.0, 2401)
"""Where integrals over a score are evaluated."""
SHARES = np.exp(-0.5 * SCORES**2)
SHARES /= SHARES.sum()
TABLE = 1 << 16
"""Entries of the table that inverts a mixture."""


class Compute(Protocol):
    """A distribution of computing times."""

    @property
    def name(self) -> str:
        """In words, with its parameters."""
        ...

    def at(self, score: np.ndarray) -> np.ndarray:
        """The time at standard normal scores; nondecreasing and not negative."""
        ...


@dataclass(frozen=True)
class Constant:
    """Every step takes as long as every other."""

    name: str = "constant"

    def at(self, score: np.ndarray) -> np.ndarray:
        """One."""
        return np.ones_like(score)


@dataclass(frozen=True)
class LogNormal:
    r"""$c = e^{sz - s^2/2}$ with $s^2 = \log(1 + \text{deviation}^2)$."""

    deviation: float

    def __post_init__(self) -> None:
        _check_deviation("LogNormal", self.deviation)

    @classmethod
    def of_log(cls, deviation: float) -> LogNormal:
        """The one whose logarithm has that standard deviation."""
        return cls(float(np.sqrt(np.expm1(deviation**2))))

    @property
    def name(self) -> str:
        """As in `Compute`."""
        return f"log-normal, deviation {self.deviation:g}"

    def at(self, score: np.ndarray) -> np.ndarray:
        """As in `Compute`."""
        s = np.sqrt(np.log1p(self.deviation**2)).astype(score.dtype)
        return np.exp(s * score - s * s / 2)


@dataclass(frozen=True)
class Gamma:
    """A sum of many small times: a gamma distribution of mean 1."""

    deviation: float

    def __post_init__(self) -> None:
        _check_deviation("Gamma", self.deviation)

    @property
    def name(self) -> str:
        """As in `Compute`."""
        return f"gamma, deviation {self.deviation:g}"

    def at(self, score: np.ndarray) -> np.ndarray:
        """As in `Compute`."""
        if self.deviation == 0:
            return np.ones_like(score)
        shape = self.deviation**-2
        high = stats.gamma.isf(special.ndtr(-score), shape) / shape
        low = stats.gamma.ppf(special.ndtr(score), shape) / shape
        return np.where(score > 0, high, low).astype(score.dtype)


@dataclass(frozen=True)
class ShiftedExponential:
    """A fixed time and an exponential one on top, of mean `deviation`: random sleeps, waiting in queues."""

    deviation: float

    def __post_init__(self) -> None:
        _check_deviation("ShiftedExponential", self.deviation)
        if self.deviation > 1:
            raise MixingError(
                f"ShiftedExponential: the waiting is a part of the mean of 1, so deviation must be at most 1, "
                f"got {self.deviation:g}; use Gamma or LogNormal"
            )

    @property
    def name(self) -> str:
        """As in `Compute`."""
        return f"fixed + exponential, deviation {self.deviation:g}"

    def at(self, score: np.ndarray) -> np.ndarray:
        """As in `Compute`."""
        return 1.0 - self.deviation - self.deviation * special.log_ndtr(-score)


@dataclass(frozen=True, eq=False)
class Empirical:
    """Measured times, by linear interpolation between them in order; divided by their mean."""

    samples: np.ndarray

    def __post_init__(self) -> None:
        found = np.sort(np.asarray(self.samples, dtype=np.float64).ravel())
        if len(found) < 2 or not np.isfinite(found).all() or found[0] < 0 or found[-1] == 0:
            raise MixingError("Empirical: needs at least two measured times, finite, not negative and not all zero")
        at = np.linspace(0.0, 1.0, len(found))
        middle = np.interp((np.arange(TABLE) + 0.5) / TABLE, at, found).mean()
        object.__setattr__(self, "samples", found / middle)

    @property
    def name(self) -> str:
        """As in `Compute`."""
        return f"{len(self.samples)} measured times, deviation {self.samples.std():.3g}"

    def at(self, score: np.ndarray) -> np.ndarray:
        """As in `Compute`."""
        return np.interp(special.ndtr(score), np.linspace(0.0, 1.0, len(self.samples)), self.samples)


@dataclass(frozen=True)
class Stragglers:
    """Another distribution, and every step with some probability `times` as long: the mean is above 1."""

    base: Compute
    probability: float
    times: float
    _table: tuple[np.ndarray, np.ndarray] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (0 <= self.probability <= 1 and self.times >= 1):
            raise MixingError(
                f"Stragglers: needs a probability in [0, 1] and times >= 1, got {self.probability:g} and {self.times:g}"
            )
        even = self.base.at(special.ndtri((np.arange(TABLE) + 0.5) / TABLE))
        values = np.concatenate([even, self.times * even])
        shares = np.repeat([1 - self.probability, self.probability], TABLE) / TABLE
        order = np.argsort(values, kind="stable")
        until = np.cumsum(shares[order]) - shares[order] / 2
        object.__setattr__(self, "_table", (until, values[order]))

    @property
    def name(self) -> str:
        """As in `Compute`."""
        return f"{self.base.name}, {self.probability:g} of all steps {self.times:g} times as long"

    def at(self, score: np.ndarray) -> np.ndarray:
        """As in `Compute`."""
        return np.interp(special.ndtr(score), *self._table)


def mean(compute: Compute) -> float:
    """E c."""
    return float(SHARES @ compute.at(SCORES))


def deviation(compute: Compute) -> float:
    """The standard deviation of c."""
    found = compute.at(SCORES)
    return float(np.sqrt(SHARES @ (found - SHARES @ found) ** 2))


def longest(compute: Compute, n: int) -> np.ndarray:
    """The longest of n independent times at `SCORES`: with `SHARES` a rule for integrals over it."""
    if n < 1:
        raise MixingError(f"the longest of n times needs n >= 1, got {n}")
    below = special.log_ndtr(SCORES) / n
    with np.errstate(under="ignore"):
        near_one = -special.ndtri(-np.expm1(np.maximum(below, -1.0)))
    return compute.at(np.where(below > -0.7, near_one, special.ndtri_exp(below)))


def expected_longest(compute: Compute, n: int, of: Callable[[np.ndarray], np.ndarray] | None = None) -> float:
    """E f(max of n independent times); f is the identity unless given."""
    found = longest(compute, n)
    return float(SHARES @ (found if of is None else of(found)))


def _check_deviation(who: str, deviation: float) -> None:
    if not (np.isfinite(deviation) and deviation >= 0):
        raise MixingError(f"{who}: deviation must be a finite number >= 0, got {deviation}")
