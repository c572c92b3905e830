"""Timing contenders in one process: in turn, several times over, so that a slow moment of the machine hits all of them.

Two ways of taking turns. `interleaved` runs each contender a fixed number of times and hands back what it returned.
`race` is for steps that are repeated anyway: it goes on for as long as it may, starts every round with another
contender, and runs a short one once unmeasured before it is measured, since a contender that comes after one that swept
the caches would otherwise pay for it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SHORT = 0.02
"""A run below so many seconds is preceded by an unmeasured one."""

PATIENCE = 5
"""Races that take so many times as long as they may are cut short."""

Spread = dict[str, float]
"""`median`, `min`, `max` in seconds, and how many `runs`."""


def interleaved(contenders: Mapping[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, Spread], dict[str, Any]]:
    """Runs all contenders in turn, `repeats` times; returns their times in seconds and their last results."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, run in contenders.items():
            begin = time.perf_counter()
            results[name] = run()
            times[name].append(time.perf_counter() - begin)
    return {name: spread(t) for name, t in times.items()}, results


def race(
    contenders: Mapping[str, Callable[[], Any]], seconds: float, *, least: int = 5, most: int = 41, warm: int = 1
) -> dict[str, list[float]]:
    """Lets the contenders run in turn for about so many seconds; the times of every measured run.

    Every contender runs `warm` times before anything is measured. It is measured at most `most` times, and at least
    `least` times unless that takes `PATIENCE` times as long as it may: then twice has to do.
    """
    last = dict.fromkeys(contenders, 0.0)
    for name, run in contenders.items():
        for _ in range(warm):
            last[name] = _lap(run)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names, begin = list(contenders), time.perf_counter()
    for turn in range(most):
        spent = time.perf_counter() - begin
        if (turn >= least and spent > seconds) or (turn >= 2 and spent > PATIENCE * seconds):
            break
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            if last[name] < SHORT:
                contenders[name]()
            last[name] = _lap(contenders[name])
            times[name].append(last[name])
    return times


def spread(times: Sequence[float]) -> Spread:
    """Median, smallest and largest of some times, and how many they are."""
    return {"median": float(statistics.median(times)), "min": min(times), "max": max(times), "runs": len(times)}


class Share:
    """How many cores this process really had while something ran: less than its threads if others were running, too."""

    cores: float = 0.0

    def __enter__(self) -> Share:
        self._begin = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        wall, own = self._begin
        self.cores = (time.process_time() - own) / (time.perf_counter() - wall)


def _lap(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
