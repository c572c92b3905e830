"""From numbers, one per seed, to parts of a claim: the three kinds of statement that a check makes about them.

- `higher`, `lower`: two arms on the same seeds, or one quantity against a threshold; by the paired rule of
  `statistics` with p-values corrected by Holm's method over all statements that are made together (`decided`);
- `within`: the mean lies within a margin of what is predicted. Supported if the whole 95 % t-interval does, not
  supported if the whole interval lies outside, inconclusive otherwise (two one-sided tests at 2.5 %);
- `exactly`: no chance is involved: a computed number either keeps a limit or does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dissensus.experiments.claims.base import Part, Verdict
from dissensus.experiments.curves import Finals
from dissensus.experiments.results import Results
from dissensus.experiments.statistics import Paired, StatisticsError, detectable_effect, holm, paired

LEVEL = 0.05
_OPPOSITE: dict[Verdict, Verdict] = {
    "supported": "not supported",
    "not supported": "supported",
    "inconclusive": "inconclusive",
}


@dataclass(frozen=True)
class Asked:
    """A statement about paired numbers that waits for the correction over all that are asked together."""

    statement: str
    test: Paired
    higher: bool
    minimum: float
    unit: str
    note: str
    counts: bool


def higher(
    statement: str, ours: Any, theirs: Any, *, minimum: float = 0.0, unit: str = "", note: str = "", counts: bool = True
) -> Asked:
    """The first is higher than the second (numbers per seed, or one number) by more than `minimum`."""
    a, b = np.broadcast_arrays(np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float))
    return Asked(statement, paired(a, b), True, minimum, unit, note, counts)


def lower(
    statement: str, ours: Any, theirs: Any, *, minimum: float = 0.0, unit: str = "", note: str = "", counts: bool = True
) -> Asked:
    """The first is lower than the second by more than `minimum`."""
    a, b = np.broadcast_arrays(np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float))
    return Asked(statement, paired(a, b), False, -minimum, unit, note, counts)


def decided(asked: Sequence[Asked], level: float = LEVEL) -> list[Part]:
    """The verdicts on statements that are asked together, corrected for how many there are."""
    if not asked:
        return []
    p_values: dict[int, float] = {}
    for counts in (True, False):  # what only informs costs the others nothing
        family = [at for at, one in enumerate(asked) if one.counts is counts]
        raw = [asked[at].test.pvalue(asked[at].minimum, alpha=level / len(family)) for at in family]
        p_values |= dict(zip(family, holm(raw) if raw else [], strict=True))
    parts = []
    for at, one in enumerate(asked):
        p = p_values[at]
        word = one.test.verdict(level, one.minimum, pvalue=p)
        parts.append(
            Part(
                one.statement,
                word if one.higher else _OPPOSITE[word],
                one.test.mean_difference,
                one.test.interval,
                one.unit,
                p,
                one.test.n,
                note=one.note,
                counts=one.counts,
            )
        )
    return parts


def together(studies: Sequence[Results], ask: Callable[[Results], Iterable[Asked | Part]]) -> list[Part]:
    """The verdicts on what is asked of every variant of a study, corrected over all of them; each names its study.

    What could not be asked comes as a part, and stands behind the others.
    """
    told: list[Asked | Part] = []
    for one in studies:
        where = f" ({one.name})" if len(studies) > 1 else ""
        told += [replace(each, statement=f"{each.statement}{where}") for each in ask(one)]
    asked = [each for each in told if isinstance(each, Asked)]
    return [*decided(asked), *(each for each in told if isinstance(each, Part))]


def within(
    statement: str, values: Any, target: float, margin: float, *, unit: str = "", note: str = "", counts: bool = True
) -> Part:
    """The mean of the values lies within `margin` of `target`."""
    numbers = Finals(np.asarray(values, dtype=float), np.zeros(len(values)))
    if not np.isfinite(numbers.values).all():
        raise StatisticsError(f"{statement}: {numbers.values} has a value that is no number")
    low, high = numbers.interval
    word: Verdict = "inconclusive"
    if len(numbers.values) < 2:
        pass
    elif target - margin <= low and high <= target + margin:
        word = "supported"
    elif high < target - margin or low > target + margin:
        word = "not supported"
    return Part(statement, word, numbers.mean, (low, high), unit, n=len(numbers.values), note=note, counts=counts)


def exactly(statement: str, holds: bool, effect: float | None = None, **more: Any) -> Part:
    """What is computed without chance holds, or does not."""
    return Part(statement, "supported" if holds else "not supported", effect, **more)


def unmeasured(statement: str) -> Part:
    """A statement that the claim asks for and these runs have no numbers for: without it the claim stays open."""
    return Part(statement, "out of reach here", note="not measured in these runs")


def power_note(n: int, tests: int, level: float = LEVEL) -> str:
    """What so many pairs can find at all."""
    strict = detectable_effect(n, level / max(1, tests))
    return f"{n} pairs find an effect of d_z = {strict:.1f} in 4 of 5 studies at the strictest of {tests} levels"
