r"""When to look during training: at steps that are known beforehand, so that two runs are looked at alike.

A `Share` of the time may leave looks out, where they would cost more than that.

`Every(250)` looks at steps 0, 250, 500, ...; `Epochs(37.5)` at the first step of every epoch; `LogSpaced(12, 5000)` at
step 0 and at about twelve steps evenly spaced in $\log t$ up to 5000, dense where training changes fast.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch.distributed as dist

from dissensus.probes.errors import ProbeError


class Schedule(Protocol):
    """Says at which steps to look; step t is before the t-th update, counted from 0."""

    def due(self, t: int) -> bool:
        """Whether to look at step t."""
        ...


@dataclass(frozen=True)
class Every:
    """Every so many steps, from step `start` on."""

    steps: int
    start: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ProbeError(f"Every needs a positive number of steps, got {self.steps}; Never() never looks")

    def due(self, t: int) -> bool:
        """Whether to look at step t."""
        return t >= self.start and (t - self.start) % self.steps == 0


@dataclass(frozen=True)
class Epochs:
    """At the first step of every `every`-th epoch, also where an epoch is no whole number of steps."""

    steps_per_epoch: float
    every: int = 1

    def __post_init__(self) -> None:
        if not self.steps_per_epoch > 0 or self.every < 1:
            raise ProbeError(f"an epoch has a positive number of steps and every >= 1, got {self}")

    def due(self, t: int) -> bool:
        """Whether to look at step t."""
        width = self.steps_per_epoch * self.every
        return t == 0 or math.floor(t / width + 1e-9) > math.floor((t - 1) / width + 1e-9)


@dataclass(frozen=True)
class LogSpaced:
    """At step 0 and at about `count` steps evenly spaced in log t from 1 to `last`, both included."""

    count: int
    last: int

    def __post_init__(self) -> None:
        if self.count < 2 or self.last < 1:
            raise ProbeError(f"LogSpaced needs at least 2 looks and a last step of at least 1, got {self}")

    @cached_property
    def steps(self) -> frozenset[int]:
        """The steps, some of them merged where they fall together."""
        return frozenset({0, *(round(self.last ** (k / (self.count - 1))) for k in range(self.count))})

    def due(self, t: int) -> bool:
        """Whether to look at step t."""
        return t in self.steps


@dataclass(frozen=True)
class Never:
    """At no step."""

    def due(self, t: int) -> bool:
        """Whether to look at step t."""
        return t < 0


def schedule(text: str, *, steps: int, steps_per_epoch: float) -> Schedule:
    """The schedule that a configuration says: `never`, `250`, `every 250`, `epoch`, `epoch 5`, `log 12`."""
    words = text.lower().split()
    try:
        match words:
            case ["never"] | ["0"]:
                return Never()
            case ["every", count] | [count] if count.isdigit():
                return Every(int(count))
            case ["epoch" | "epochs"]:
                return Epochs(steps_per_epoch)
            case ["epoch" | "epochs", count]:
                return Epochs(steps_per_epoch, int(count))
            case ["log", count]:
                return LogSpaced(int(count), max(steps, 1))
    except ValueError as error:
        if isinstance(error, ProbeError):
            raise
    raise ProbeError(f"no schedule {text!r}; there are 'never', 'every 250', 'epoch', 'epoch 5', 'log 12'")


class Share:
    """A part of the time since it was made that looking may take; `None`: all of it.

    A look is allowed if, at what it cost last time, all looks together stay within the share; one whose cost is not
    known yet is allowed. Among several ranks the first decides for all.
    """

    def __init__(
        self, share: float | None, *, group: Any = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if share is not None and not 0 < share <= 1:
            raise ProbeError(f"share is a part of the time, in (0, 1], got {share}; 0.15 means at most 15 %")
        self._share, self._group, self._clock, self._began = share, group, clock, clock()
        self._cost: dict[Hashable, float] = {}
        self.seconds = 0.0
        """The time spent so far."""

    def spent(self, look: Hashable, seconds: float) -> None:
        """Books what a look cost."""
        self.seconds += seconds
        self._cost[look] = seconds

    def allows(self, look: Hashable) -> bool:
        """Whether there is time for it now."""
        if self._share is None or look not in self._cost:
            return True
        cost = self._cost[look]
        allowed = self.seconds + cost <= self._share * (self._clock() - self._began + cost)
        if self._group is not None or (dist.is_available() and dist.is_initialized()):
            agreed = [allowed]
            dist.broadcast_object_list(agreed, src=_first(self._group), group=self._group)
            allowed = bool(agreed[0])
        return allowed


def _first(group: Any) -> int:
    return 0 if group is None else dist.get_global_rank(group, 0)
