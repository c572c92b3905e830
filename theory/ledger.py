r"""The ledger of tightness: every bound against random and searched instances of every family of its trials.

A row tells how many instances were tried, how many of them broke the bound (none may), how many the bound did not apply
to, the smallest and the median slack (bound over measured, 1 where it is attained), the smallest slack that a search
found, and the ratio to the exact worst case where one was computed. The smallest slack says how blunt the test is: an
error of a constant by less than that factor would not be seen.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dissensus.theory import bounds, trials
from dissensus.theory.errors import MixingError, nearest
from dissensus.theory.trials.base import Family, RandomDraws
from dissensus.theory.trials.search import Tightest, measure, search

ROUNDING = 1e-9
"""A slack this little below one is rounding."""


@dataclass(frozen=True)
class Row:
    """What the ledger says of one bound and one family of trials."""

    bound: str
    family: str
    kind: str
    provenance: str
    instances: int
    """Instances to which the bound applied."""
    elsewhere: int
    """Instances to which it did not."""
    violations: int
    smallest: float
    """The smallest slack among the random instances."""
    median: float
    searched: float
    """The smallest slack that the search found."""
    certificate: float | None
    """The smallest ratio of the bound to the exact worst case, where there is one."""

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return asdict(self)


def ledger(
    names: Sequence[str] = (),
    *,
    instances: int = 1000,
    searches: int = 200,
    seed: int = 0,
    processes: int = 1,
    told: Callable[[Row], None] = lambda _: None,
) -> list[Row]:
    """The rows of the named bounds (default: all), `instances` random ones per bound shared among its families.

    A family that is dear to draw from gives what it has to give, and the others the rest.
    The same seed gives the same rows, whatever the number of processes. `told` is called with every row as it is done.
    """
    families = trials.families()
    for name in names:
        if name not in families:
            raise MixingError(f"no trials for a bound {name!r}{nearest(name, families)}")
    jobs = [
        (name, at, count, tries, seed)
        for name in (names or families)
        for at, (count, tries) in enumerate(shares(families[name], instances, searches))
    ]
    rows = []
    if processes <= 1:
        for job in jobs:
            rows.append(_row(job))
            told(rows[-1])
        return rows
    with ProcessPoolExecutor(processes) as pool:
        for row in pool.map(_row, jobs):
            rows.append(row)
            told(row)
    return rows


def shares(families: Sequence[Family], instances: int, searches: int) -> list[tuple[int, int]]:
    """How many random instances and how many of a search each family of a bound gets."""
    even = math.ceil(instances / max(1, len(families)))
    dear = {at: min(f.most, even) for at, f in enumerate(families) if f.most is not None}
    rest = max(1, math.ceil((instances - sum(dear.values())) / max(1, len(families) - len(dear))))
    return [
        (dear.get(at, rest), searches if f.most is None else min(searches, f.most)) for at, f in enumerate(families)
    ]


def _row(job: tuple[str, int, int, int, int]) -> Row:
    name, at, count, searches, seed = job
    bound, family = bounds.find(name), trials.families()[name][at]
    slacks, ratios, elsewhere = [], [], 0
    for k in range(count):
        drawn = family.draw(RandomDraws(_generator(family, seed, k)))
        found = measure(bound, drawn)
        if found is None:
            elsewhere += 1
            continue
        slacks.append(found)
        if drawn.certified:
            ratios.append(bound.value(drawn.problem).value / drawn.certified)
    found_by_search = search(bound, family, tries=searches, seed=seed) if searches else Tightest(math.inf, None, 0)
    tightest, hardest = found_by_search.slack, found_by_search.trial
    if hardest is not None and hardest.certified:
        ratios.append(bound.value(hardest.problem).value / hardest.certified)
    broken = sum(value < 1.0 - ROUNDING for value in slacks) + (tightest < 1.0 - ROUNDING)
    finite = [value for value in slacks if math.isfinite(value)]
    return Row(
        bound=name,
        family=family.name,
        kind=bound.kind,
        provenance=bound.provenance,
        instances=len(slacks),
        elsewhere=elsewhere,
        violations=int(broken),
        smallest=min(slacks, default=math.inf),
        median=float(np.median(finite)) if finite else math.inf,
        searched=tightest,
        certificate=min(ratios, default=None),
    )


def _generator(family: Family, seed: int, k: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(f"{family.bound}/{family.name}".encode()), k])
