r"""An estimate: a number together with how sure it is and what it cost.

From m independent samples with mean $\bar s$ and sample standard deviation $\sigma$ the t-interval at confidence c is

$$ \bar s \pm t_{m-1,\,(1+c)/2}\;\sigma/\sqrt m . $$

It is exact for normal samples and close for the sums of many terms that probes average. What no sampling went into
(an exact trace, a quadratic form) has standard error 0 and says so.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dissensus.probes.errors import ProbeError


@dataclass(frozen=True)
class Estimate:
    """What a probe returns in place of a bare number."""

    name: str
    value: float
    stderr: float
    """Standard error; 0 where nothing was sampled, nan where it cannot be known (one sample)."""
    interval: tuple[float, float]
    interval_method: str
    """How the interval was made: `t over 24 probe vectors`, `exact`, `residual bound`, ..."""
    samples: int
    num_matvecs: int
    """Products with the operator that this number took."""
    seed: int | None
    dtype: str
    converged: bool
    """Whether the asked accuracy was reached (True where none was asked for)."""
    confidence: float = 0.95
    notes: tuple[str, ...] = ()
    """What a reader has to know: the method chosen, whose buffers were used, ..."""

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        cost = f", {self.num_matvecs} products" if self.num_matvecs else f", {self.samples} samples"
        open_end = "" if self.converged else ", not converged"
        if math.isnan(self.stderr):
            return f"{self.value:.4g} (no interval{cost}{open_end})"
        if self.stderr == 0:
            return f"{self.value:.6g} ± 0 ({self.interval_method}{cost}{open_end})"
        value, error, low, high = _aligned(self.stderr, self.value, self.stderr, *self.interval)
        return f"{value} ± {error} ({100 * self.confidence:g} % {low} to {high}{cost}{open_end})"

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.interval[1] - self.interval[0]) / 2

    def scaled(self, factor: float, name: str | None = None) -> Estimate:
        """The estimate of `factor` times the quantity."""
        low, high = sorted((factor * self.interval[0], factor * self.interval[1]))
        changed = {"value": factor * self.value, "stderr": abs(factor) * self.stderr, "interval": (low, high)}
        return Estimate(**{**self._fields(), **changed, "name": name or self.name})

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON; what is not finite becomes None."""
        fields = asdict(self)
        fields["interval"] = [_finite(end) for end in self.interval]
        fields["notes"] = list(self.notes)
        return {key: _finite(value) if isinstance(value, float) else value for key, value in fields.items()}

    def _fields(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in self.__dataclass_fields__}


def t_quantile(confidence: float, degrees: int) -> float:
    """The two-sided quantile of Student's t; infinite without degrees of freedom."""
    if not 0 < confidence < 1:
        raise ProbeError(f"confidence must lie between 0 and 1, got {confidence!r}; 0.95 is usual")
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(degrees, (1 + confidence) / 2)) if degrees > 0 else math.inf


def from_samples(
    name: str,
    samples: Any,
    *,
    weights: Any = None,
    of: str,
    num_matvecs: int,
    seed: int | None,
    dtype: str,
    offset: float = 0.0,
    confidence: float = 0.95,
    converged: bool = True,
    notes: tuple[str, ...] = (),
) -> Estimate:
    r"""The (weighted) mean of independent samples plus an exactly known offset, with its t-interval.

    With weights $w_b$ summing to one the squared standard error is $\frac{m}{m-1}\sum_b w_b^2 (s_b - \bar s)^2$, which
    for equal weights is the usual $\sigma^2/m$.
    """
    values = np.asarray(samples, dtype=np.float64)
    m = len(values)
    if m == 0:
        raise ProbeError(f"{name}: no samples to average; give at least one")
    share = np.full(m, 1 / m) if weights is None else np.asarray(weights, dtype=np.float64) / np.sum(weights)
    mean = float(share @ values)
    method = f"t over {m} {of}"
    if m == 1:
        stderr, half, method = math.nan, math.inf, f"none: one of {of} has no spread"
    else:
        stderr = math.sqrt(m / (m - 1) * float(share**2 @ (values - mean) ** 2))
        half = t_quantile(confidence, m - 1) * stderr
    value = offset + mean
    return Estimate(
        name=name,
        value=value,
        stderr=stderr,
        interval=(value - half, value + half),
        interval_method=method,
        samples=m,
        num_matvecs=num_matvecs,
        seed=seed,
        dtype=dtype,
        converged=converged,
        confidence=confidence,
        notes=notes,
    )


def exact(name: str, value: float, *, num_matvecs: int, dtype: str, notes: tuple[str, ...] = ()) -> Estimate:
    """A number that no sampling went into: exact on the given data, up to rounding."""
    return Estimate(name, value, 0.0, (value, value), "exact", 0, num_matvecs, None, dtype, True, notes=notes)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _aligned(stderr: float, *values: float) -> list[str]:
    """All values to the last digit that the standard error supports (two when it begins with 1)."""
    exponent = math.floor(math.log10(stderr))
    digits = (1 if stderr / 10**exponent < 2 else 0) - exponent
    largest = max(abs(v) for v in values if math.isfinite(v))
    if largest >= 1e6 or digits > 6:
        significant = max(math.floor(math.log10(largest)) + digits, 1) if largest > 0 else 1
        return [f"{value:.{significant}e}" for value in values]
    return [f"{round(value, digits):.{max(digits, 0)}f}" for value in values]
