"""What the distributed engine is held to: a ratio of times, and whether it is met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dissensus.experiments.bench.timing import Spread, spread

RESOLUTION = 0.02
"""Two times that are nearer to each other than this share of them cannot be told apart: neither is slower."""

Yardstick = Literal["sum", "max", "local", "ddp", "decent-dp"]


@dataclass(frozen=True)
class Limit:
    """Ours against a yardstick: `sum` or `max` of a worker's own step and the best exchange, or another contender."""

    yardstick: Yardstick
    times: float
    """At most so many times as long as `sum`, `max`, `local`; at least so many times faster than another contender."""
    who: str = "ours"
    """Which of ours."""

    @property
    def at_most(self) -> bool:
        """Whether it bounds from above; against other contenders it bounds from below."""
        return self.yardstick in ("sum", "max", "local")

    @property
    def said(self) -> str:
        """In words."""
        what = {"sum": "(local + exchange)", "max": "max(local, exchange)", "local": "local"}
        if self.at_most:
            return f"{self.who}: at most {self.times:g} x {what[self.yardstick]}"
        if self.times == 1.0:
            return f"{self.who}: never slower than {self.yardstick} (by more than {RESOLUTION:.0%})"
        return f"{self.who}: at least {self.times:g} x faster than {self.yardstick}"

    def needs(self) -> set[str]:
        """Contenders without which there is no ratio, beside any exchange."""
        own = {"sum": "local", "max": "local"}
        return {self.who, own.get(self.yardstick, self.yardstick)}

    def ratio(self, seconds: Mapping[str, float]) -> float:
        """What is bounded, from the seconds a step of every contender."""
        ours = seconds[self.who]
        if not self.at_most:
            return _best(seconds, self.yardstick) / ours
        if self.yardstick == "local":
            return ours / seconds["local"]
        best = _best(seconds, "exchange")
        return ours / (seconds["local"] + best if self.yardstick == "sum" else max(seconds["local"], best))

    def met(self, ratio: float) -> bool:
        """Whether such a ratio will do."""
        if self.at_most:
            return ratio <= self.times
        return ratio >= (1.0 - RESOLUTION if self.times == 1.0 else self.times)


def _best(seconds: Mapping[str, float], kind: str) -> float:
    """Of the ways in which somebody does it, the fastest."""
    return min(value for name, value in seconds.items() if name.split(",")[0] == kind)


def verdict(limit: Limit, times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The ratio of medians, of the fastest blocks, and from round to round, and whether the limit is met.

    `times` are the seconds a step of every contender, one number for every round; numbers of one round belong together.
    """
    said = {"limit": limit.said, "who": limit.who}
    lacking = sorted(limit.needs() - set(times))
    if lacking:
        nothing = dict.fromkeys(("ratio", "ratio_of_fastest", "ratio_by_round", "met", "met_by_fastest"))
        return {**said, **nothing, "note": f"without {', '.join(lacking)}"}
    laps: dict[str, Spread] = {name: spread(t) for name, t in times.items()}
    median, fastest = (limit.ratio({name: lap[kind] for name, lap in laps.items()}) for kind in ("median", "min"))
    rounds = [limit.ratio(dict(zip(times, one, strict=True))) for one in zip(*times.values(), strict=True)]
    return {
        **said,
        "ratio": median,
        "ratio_of_fastest": fastest,
        "ratio_by_round": spread(rounds),
        "met": limit.met(median),
        "met_by_fastest": limit.met(fastest),
        "note": "",
    }
