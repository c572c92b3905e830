"""Numbers on their way to a figure or table: seeds as rows, and the interval of their mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit


@dataclass(frozen=True)
class Curve:
    """One quantity of one arm over the steps, with one row per seed."""

    steps: np.ndarray
    values: np.ndarray
    """(seeds, steps); nan where a seed was not measured."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", np.asarray(self.steps, dtype=float))
        object.__setattr__(self, "values", np.atleast_2d(np.asarray(self.values, dtype=float)))

    @property
    def mean(self) -> np.ndarray:
        """The mean over the seeds."""
        return self.values.mean(axis=0)

    @property
    def is_measured(self) -> bool:
        """Whether there is any number in it."""
        return bool(np.isfinite(self.values).any())

    def logarithm(self) -> Curve:
        """The natural logarithm of every value; nan where there is none."""
        positive = np.where(self.values > 0, self.values, np.nan)
        return Curve(self.steps, np.log(positive))

    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """The 95 % t-interval of the mean over the seeds; no width for a single seed."""
        n = len(self.values)
        if n < 2:
            return self.mean, self.mean
        half = stdtrit(n - 1, 0.975) * self.values.std(axis=0, ddof=1) / math.sqrt(n)
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Finals:
    """One final number per seed, with the error of its estimator."""

    values: np.ndarray
    errors: np.ndarray
    """Half-widths of the estimator's own 95 % interval, one per seed; zeros where it is exact."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", np.asarray(self.values, dtype=float))
        object.__setattr__(self, "errors", np.asarray(self.errors, dtype=float))

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return float(self.values.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % t-interval of the mean over the seeds."""
        low, high = Curve(np.zeros(1), self.values[:, None]).band()
        return float(low[0]), float(high[0])


def plus_minus(mean: float, half: float) -> str:
    """`0.957 ± 0.002`: both to the first digits of the half-width; powers of ten where the number is tiny."""
    if not math.isfinite(mean):
        return "–"
    if mean == 0 and half == 0:
        return "0"
    if abs(mean) < 1e-3 or abs(mean) >= 1e6:
        exponent = math.floor(math.log10(max(abs(mean), half)))
        return f"({plus_minus_fixed(mean / 10**exponent, half / 10**exponent)})·10{_superscript(exponent)}"
    return plus_minus_fixed(mean, half)


def plus_minus_fixed(mean: float, half: float) -> str:
    """The same without powers of ten."""
    if not math.isfinite(half) or half <= 0:
        return f"{mean:.4g}"
    leading = math.floor(math.log10(half))
    digits = max(0, -leading + (1 if half / 10**leading < 3 else 0))
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def _superscript(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
