r"""Paired statistics: two arms run on the same seeds, and whether one exceeds the other.

Everything rests on the differences $d_s = a_s - b_s$, one per seed. `paired` reports their mean with a BCa bootstrap
interval, the paired t test, the sign-flip permutation test (every one of the $2^n$ sign patterns up to 12 pairs,
seeded Monte Carlo above) and the effect size $d_z = \bar d / \mathrm{sd}(d)$.

The verdict on "a exceeds b by more than m" follows one rule, fixed before the data are seen. With the p-value of
$H_0: \mathbb{E}\,d = m$ (two-sided, so each direction errs at alpha/2),

- *supported* if p < alpha and $\bar d > m$,
- *not supported* if p < alpha and $\bar d < m$,
- *inconclusive* otherwise.

The p-value is the t test's; where there are pairs enough for the permutation test to reach alpha at all
($2^{1-n} < \alpha$), both tests must agree, that is the larger p counts. Differences without any spread say nothing to
a t test: then the permutation test alone decides, which needs 6 pairs at alpha = 0.05. Intervals are for the reader;
the bootstrap is too short with few pairs to decide anything.

References: Efron 1987 (BCa), Fisher 1935 (sign flips), Holm 1979 (step-down correction). The computing is scipy's.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from dissensus.theory.errors import DissensusError

Verdict = Literal["supported", "not supported", "inconclusive"]

EXACT_PAIRS = 12
"""Up to this many pairs all sign patterns are counted."""
BOOTSTRAP_PAIRS = 4
"""With fewer pairs there is too little to resample, and the interval is Student's."""


class StatisticsError(DissensusError):
    """Data from which the asked statistic does not follow: the message names where and what is needed."""


@dataclass(frozen=True)
class Paired:
    """The comparison of two arms on the same seeds; every number is finite, what is not defined is `None`."""

    n: int
    mean_difference: float
    interval: tuple[float, float]
    interval_method: Literal["bca", "t", "none"]
    """`bca`; `t` with fewer than 4 pairs; `none` where all differences are equal (the interval is that value)."""
    level: float
    t_pvalue: float | None
    """Two-sided; `None` where all differences are equal."""
    permutation_pvalue: float
    """Two-sided; cannot fall below 2^(1-n)."""
    effect_size: float | None
    r"""$d_z$; `None` where all differences are equal and not zero."""
    seed: int
    resamples: int
    differences: tuple[float, ...] = field(repr=False)
    spread: bool = field(default=True, repr=False)
    """Whether the differences differ by more than rounding."""

    def pvalues(self, minimum_effect: float = 0.0) -> tuple[float | None, float]:
        """Those of the t test and of the sign flips, of the hypothesis that the mean difference is `minimum_effect`."""
        if minimum_effect == 0.0:
            return self.t_pvalue, self.permutation_pvalue
        d = np.array(self.differences) - minimum_effect
        return _t_pvalue(d) if self.spread else None, _sign_flips(d, self.resamples, self.seed)

    def pvalue(self, minimum_effect: float = 0.0, alpha: float = 0.05) -> float:
        """The p-value the verdict goes by; correct several of them with `holm` and hand them back to `verdict`."""
        t, permutation = self.pvalues(minimum_effect)
        if t is None:
            return permutation
        return max(t, permutation) if 2.0 ** (1 - self.n) < alpha else t

    def verdict(self, alpha: float = 0.05, minimum_effect: float = 0.0, *, pvalue: float | None = None) -> Verdict:
        """Whether "the first arm exceeds the second by more than `minimum_effect`" is supported, by the fixed rule.

        `pvalue` replaces the comparison's own p-value, for one that is corrected over several arms.
        """
        if not 0.0 < alpha < 1.0:
            raise StatisticsError(f"alpha must lie in (0, 1), got {alpha}")
        if not math.isfinite(minimum_effect):
            raise StatisticsError(f"minimum_effect must be finite, got {minimum_effect}")
        p = self.pvalue(minimum_effect, alpha) if pvalue is None else pvalue
        if not p < alpha or self.mean_difference == minimum_effect:
            return "inconclusive"
        return "supported" if self.mean_difference > minimum_effect else "not supported"

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, for JSON and tables."""
        return {
            "n": self.n,
            "mean_difference": self.mean_difference,
            "interval": list(self.interval),
            "interval_method": self.interval_method,
            "level": self.level,
            "t_pvalue": self.t_pvalue,
            "permutation_pvalue": self.permutation_pvalue,
            "effect_size": self.effect_size,
            "seed": self.seed,
            "resamples": self.resamples,
            "differences": list(self.differences),
        }


@dataclass(frozen=True, eq=False)
class Band:
    """Mean and interval of every column of a (runs, time) table."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: int
    """With one run there is no interval: low and high equal the mean."""
    level: float


def paired(a: Any, b: Any, *, level: float = 0.95, resamples: int = 9999, seed: int = 0) -> Paired:
    """Compares arm `a` with arm `b`, run on the same seeds in the same order: is a - b positive?

    `resamples` counts the bootstrap's and, above 12 pairs, the permutation test's.
    """
    first, second = _values(a, "the first arm"), _values(b, "the second arm")
    if len(first) != len(second):
        raise StatisticsError(
            f"a paired comparison needs both arms on the same seeds, got {len(first)} and {len(second)} values"
        )
    if len(first) < 2:
        raise StatisticsError(f"a paired comparison needs at least 2 pairs, got {len(first)}: run more seeds")
    _check_level(level)
    if resamples < 2:
        raise StatisticsError(f"resamples must be at least 2, got {resamples}; 9999 is usual")
    d = first - second
    mean, n = float(d.mean()), len(d)
    # differences that differ by rounding of their own operands only are one and the same
    rounding = 16 * np.finfo(np.float64).eps * float(np.abs(np.concatenate([first, second])).max())
    spread = bool(np.ptp(d) > rounding)
    if not spread:
        d = np.full(n, d[0] if abs(d[0]) > rounding else 0.0)
        mean = float(d[0])
        interval, method = (mean, mean), "none"
    elif n < BOOTSTRAP_PAIRS:
        interval, method = _t_interval(d, level), "t"
    else:
        interval, method = _bca(d, level, resamples, seed)
    return Paired(
        n=n,
        mean_difference=mean,
        interval=interval,
        interval_method=method,
        level=level,
        t_pvalue=_t_pvalue(d) if spread else None,
        permutation_pvalue=_sign_flips(d, resamples, seed),
        effect_size=mean / float(d.std(ddof=1)) if spread else (0.0 if mean == 0.0 else None),
        seed=seed,
        resamples=resamples,
        differences=tuple(float(v) for v in d),
        spread=spread,
    )


def holm(pvalues: Sequence[float]) -> list[float]:
    """P-values corrected for how many there are, by Holm's step-down rule, in the order given."""
    p = np.asarray(pvalues, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0.0) & (p <= 1.0)).all():
        raise StatisticsError(f"p-values must be a list of numbers in [0, 1], got {list(np.ravel(p))}")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(v) for v in adjusted]


def band(values: Any, level: float = 0.95) -> Band:
    """Mean over runs and Student's interval of it, column by column, of a table (runs, time)."""
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] == 0:
        raise StatisticsError(f"a band needs a table of at least one run, (runs, time), got shape {table.shape}")
    _check_level(level)
    if not np.isfinite(table).all():
        run, time = np.argwhere(~np.isfinite(table))[0]
        raise StatisticsError(f"run {run} has {table[run, time]} at column {time}: leave diverged runs out, and say so")
    runs, mean = len(table), table.mean(axis=0)
    if runs == 1:
        return Band(mean, mean.copy(), mean.copy(), 1, level)
    from scipy import stats

    half = stats.t.ppf(0.5 + level / 2, runs - 1) * table.std(axis=0, ddof=1) / math.sqrt(runs)
    return Band(mean, mean - half, mean + half, runs, level)


def detectable_effect(n: int, alpha: float = 0.05, power: float = 0.8) -> float:
    """The power note: the smallest effect size d_z that a two-sided paired t test on n pairs finds with this power."""
    if n < 2:
        raise StatisticsError(f"a paired comparison needs at least 2 pairs, got {n}: run more seeds")
    if not (0.0 < alpha < power < 1.0):
        raise StatisticsError(f"expected 0 < alpha < power < 1, got alpha {alpha} and power {power}")
    from scipy import optimize, special, stats

    critical = float(stats.t.ppf(1 - alpha / 2, n - 1))

    def excess(effect: float) -> float:
        # the other tail of the noncentral t is below alpha/2 at no effect and vanishes with it: it is left out
        return 1.0 - float(special.nctdtr(n - 1, effect * math.sqrt(n), critical)) - power

    high = 1.0
    while excess(high) < 0.0:
        high *= 2.0
    return float(optimize.root_scalar(excess, bracket=(0.0, high)).root)


def _values(values: Any, what: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise StatisticsError(f"{what} must be one value per seed, got an array of shape {array.shape}")
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise StatisticsError(
            f"{what} has {array[bad[0]]} for pair {bad[0]}: a run that diverged cannot be averaged, report it instead"
        )
    return array


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise StatisticsError(f"level must lie in (0, 1), got {level}")


def _t_pvalue(d: np.ndarray) -> float:
    from scipy import stats

    return float(stats.ttest_rel(d, np.zeros_like(d)).pvalue)


def _t_interval(d: np.ndarray, level: float) -> tuple[float, float]:
    from scipy import stats

    found = stats.ttest_rel(d, np.zeros_like(d)).confidence_interval(level)
    return float(found.low), float(found.high)


def _sign_flips(d: np.ndarray, resamples: int, seed: int) -> float:
    from scipy import stats

    if not d.any():
        return 1.0
    found = stats.permutation_test(
        (d,),
        _mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=2 ** len(d) if len(d) <= EXACT_PAIRS else resamples,
        **_generator(stats.permutation_test, seed),
    )
    return float(found.pvalue)


def _bca(d: np.ndarray, level: float, resamples: int, seed: int) -> tuple[tuple[float, float], Literal["bca", "t"]]:
    from scipy import stats

    # few resamples or nearly equal differences can leave BCa without a value: then Student's interval stands in
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(
            (d,),
            _mean,
            confidence_level=level,
            n_resamples=resamples,
            method="BCa",
            vectorized=True,
            **_generator(stats.bootstrap, seed),
        ).confidence_interval
    low, high = float(found.low), float(found.high)
    if math.isfinite(low) and math.isfinite(high):
        return (low, high), "bca"
    return _t_interval(d, level), "t"


def _generator(function: Callable[..., Any], seed: int) -> dict[str, Any]:
    """A seeded generator under the name by which this version of scipy takes it."""
    name = "rng" if "rng" in inspect.signature(function).parameters else "random_state"
    return {name: np.random.default_rng(seed)}


def _mean(d: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.mean(d, axis=axis)
