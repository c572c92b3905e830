"""What a claim of the literature is here: a statement, and a check that can come out either way.

One file a claim. It says in our words what is claimed and by whom, what is measured, and the rule of decision, all of
it before anything runs; its function gets the `Evidence` and answers with `Part`s, each of which is one statement with
one verdict. A claim is the conjunction of its parts:

- *supported* if every part is,
- *not supported* if at least one part came out against it,
- *out of reach here* if nothing could be measured on this machine (no data, no permission, no time),
- *inconclusive* otherwise.

Parts that only inform (`counts=False`) have no say. A refutation is a result like any other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dissensus.experiments.errors import ConfigError

if TYPE_CHECKING:
    from dissensus.experiments.claims.evidence import Evidence

Scale = Literal["tiny", "small", "full"]
SCALES: tuple[Scale, ...] = ("tiny", "small", "full")
Verdict = Literal["supported", "not supported", "inconclusive", "out of reach here"]


class OutOfReachError(ConfigError):
    """What a check needs is not to be had on this machine: the message says what, and where it could be had."""


@dataclass(frozen=True)
class Part:
    """One statement of a claim, with its verdict and the number that led to it."""

    statement: str
    verdict: Verdict
    effect: float | None = None
    """The number the verdict goes by, in `unit`."""
    interval: tuple[float, float] | None = None
    """Its 95 % confidence interval, where it has one."""
    unit: str = ""
    pvalue: float | None = None
    """After correction over all parts of the claim."""
    n: int | None = None
    """How many seeds, pairs or instances it rests on."""
    of: str = "seeds"
    """What `n` counts."""
    note: str = ""
    counts: bool = True
    """Whether it has a say in the verdict on the claim."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self) | {"interval": None if self.interval is None else list(self.interval)}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Part:
        """From plain data."""
        between = saved.get("interval")
        return cls(**{**saved, "interval": None if between is None else (between[0], between[1])})


Check = Callable[["Evidence"], list[Part]]


@dataclass(frozen=True)
class Claim:
    """A claim of the literature and the check that it is put to."""

    name: str
    title: str
    statement: str
    """What is claimed, in our words."""
    source: str
    """Who claims it, and how sure we are of the wording."""
    measured: str
    rule: str
    check: Check = field(repr=False)
    budget: Mapping[Scale, str] = field(default_factory=dict)
    """About how long it takes on two cores, studies that it shares with others included; what a larger scale needs."""
    studies: tuple[str, ...] = ()
    """The studies it is judged by: files of `studies/<scale>/`."""

    @property
    def wording(self) -> str:
        """Twelve hexadecimal digits that change with any word of it."""
        said = [self.name, self.title, self.statement, self.source, self.measured, self.rule]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]


def overall(parts: Sequence[Part]) -> Verdict:
    """The verdict on the conjunction of the parts that count."""
    words = [part.verdict for part in parts if part.counts]
    if "not supported" in words:
        return "not supported"
    if not words or all(word == "out of reach here" for word in words):
        return "out of reach here"
    return "supported" if all(word == "supported" for word in words) else "inconclusive"
