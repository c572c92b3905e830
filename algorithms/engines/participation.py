r"""Who takes part when: stragglers and workers that come and go, as functions of the step.

A participation maps a step to one truth value per worker, and depends on nothing but its own fields and the step. What
a worker that is away does at that step is nothing: it computes no gradient, does not move and exchanges nothing; its
point, state, buffers and the memory of its optimizer stay as they are, bit for bit (but for what an algorithm keeps of
the schedule: the learning rate that γ of DSGD-AC is relative to is one for all). Its links are taken out of the
round (`dissensus.theory.faults.absent`), so that with $A_t$ who is there, and a symmetric $W_t$,

- mixing keeps $\sum_i x_i$ over all workers, and over $A_t$ (the round is the identity outside $A_t$ and doubly
  stochastic within it): for an algorithm whose mean moves by its gradients alone,
  $\bar x^+ = \bar x - \tfrac{\alpha}{n}\sum_{i\in A_t} g_i$: the step of the mean shrinks with $|A_t|/n$;
- what an algorithm keeps of sums through mixing it still keeps: $\sum_i y_i = \sum_i g_i$ in gradient tracking, with
  $g_i$ the gradient that worker i took last; $\sum_i w_i = n$ in push-sum;
- a mean over all workers (all-reduce) becomes the mean over those that are there, and only they get it.

If presence is independent of the gradients but not equally likely, the fixed point is that of $\sum_i a_i f_i$ rather
than of the mean of the $f_i$: a straggler's data weighs less. Ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm
from dissensus.theory.errors import MixingError
from dissensus.theory.faults import Outages, WhoIsThere, absent, chance, present
from dissensus.theory.topology import Topology

Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Participation:
    """Everybody, always; and what all schedules share: `a & b` is who is there by both."""

    size: int

    def __post_init__(self) -> None:
        _check(self, self.size >= 1, f"needs at least one worker, got size={self.size}")

    def __call__(self, t: int) -> np.ndarray:
        """Who is there at step t, (n,) bools."""
        _check(self, t >= 0, f"counts steps from 0, got {t}")
        return self._present(int(t))

    def _present(self, t: int) -> np.ndarray:
        del t
        return np.ones(self.size, dtype=bool)

    @property
    def shares(self) -> np.ndarray | None:
        """P(worker i is there), if that is independent between workers and steps; `None` otherwise."""
        return np.ones(self.size)

    def __and__(self, other: Participation) -> Participation:
        return Both(self.size, self, other)


@dataclass(frozen=True)
class Both(Participation):
    """Who is there by both of two schedules."""

    one: Participation
    other: Participation

    def __post_init__(self) -> None:
        _check(self, self.one.size == self.other.size, f"is of {self.one.size} and of {self.other.size} workers")

    def _present(self, t: int) -> np.ndarray:
        return self.one(t) & self.other(t)

    @property
    def shares(self) -> np.ndarray | None:
        """Not stated: two schedules of one seed are not independent."""
        return None


@dataclass(frozen=True)
class Independent(Participation):
    """Worker i is there with probability `probability` (or its own, in a tuple), anew at every step."""

    probability: float | Sequence[float] = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        a = np.asarray(self.probability, dtype=np.float64)
        _check(self, a.shape in ((), (self.size,)), f"needs one probability or {self.size}, got {a.size}")
        _check(self, ((a >= 0) & (a <= 1)).all(), f"needs probabilities in [0, 1], got {self.probability}")
        _check(self, self.seed >= 0, f"needs a seed of at least 0, got {self.seed}")

    def _present(self, t: int) -> np.ndarray:
        return chance(self.seed, "participation", t, np.arange(self.size)) < np.asarray(self.probability)

    @property
    def shares(self) -> np.ndarray:
        """The probabilities."""
        return np.broadcast_to(np.asarray(self.probability, dtype=np.float64), (self.size,))


@dataclass(frozen=True)
class Cyclic(Participation):
    """Workers take turns: at step t the `active` workers from number t · active on, counted around."""

    active: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, 1 <= self.active <= self.size, f"needs 1 to {self.size} active workers, got {self.active}")

    def _present(self, t: int) -> np.ndarray:
        return (np.arange(self.size) - t * self.active) % self.size < self.active

    @property
    def shares(self) -> np.ndarray | None:
        """Only if everybody always is."""
        return np.ones(self.size) if self.active == self.size else None


@dataclass(frozen=True)
class OnOff(Participation):
    """Workers leave and come back by themselves: away a share of all steps, for `stay` steps at a time on average."""

    away: float = 0.1
    stay: float = 10.0
    seed: int = 0
    _outages: Outages = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, 0.0 <= self.away < 1.0, f"needs a share of steps away in [0, 1), got {self.away}")
        outages = Outages(self.seed, "participation on and off", self.stay)
        try:
            outages.check("participation", np.asarray(self.away))
        except MixingError as error:
            raise AlgorithmError(str(error)) from None
        object.__setattr__(self, "_outages", outages)

    def _present(self, t: int) -> np.ndarray:
        return ~self._outages(t, self.away, np.arange(self.size))

    @property
    def shares(self) -> np.ndarray | None:
        """Steps are not independent."""
        return None


@dataclass(frozen=True)
class Intervals(Participation):
    """Explicit absences: worker -> the steps [start, stop) during which it is away; `stop=None` is for good."""

    away: Mapping[int, Sequence[tuple[int, int | None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for worker, spans in self.away.items():
            _check(self, 0 <= worker < self.size, f"has the workers 0 to {self.size - 1}, got worker {worker}")
            for start, stop in spans:
                good = start >= 0 and (stop is None or start < stop)
                _check(self, good, f"needs steps start < stop, but worker {worker} is away from {start} to {stop}")

    def _present(self, t: int) -> np.ndarray:
        there = np.ones(self.size, dtype=bool)
        for worker, spans in self.away.items():
            there[worker] = not any(start <= t and (stop is None or t < stop) for start, stop in spans)
        return there

    @property
    def shares(self) -> np.ndarray | None:
        """Only if nobody is ever away."""
        return None if self.away else np.ones(self.size)


@dataclass(frozen=True)
class Straggler(Participation):
    """One worker that is slow for good: there only at steps `phase`, `phase + every`, `phase + 2 every`, ..."""

    worker: int = 0
    every: int = 4
    phase: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, 0 <= self.worker < self.size, f"has the workers 0 to {self.size - 1}, got worker {self.worker}")
        _check(self, self.every >= 1, f"needs a straggler that computes every k-th step with k >= 1, got {self.every}")

    def _present(self, t: int) -> np.ndarray:
        there = np.ones(self.size, dtype=bool)
        there[self.worker] = (t - self.phase) % self.every == 0
        return there

    @property
    def shares(self) -> np.ndarray | None:
        """Only if the straggler is none."""
        return np.ones(self.size) if self.every == 1 else None


def without_absent(topology: Topology, participation: WhoIsThere, algorithm: Algorithm) -> Topology:
    """The topology an algorithm sees when workers come and go: push-sum keeps sums, others need symmetric rounds.

    One that never mixes runs on any topology: nobody asks what its rounds keep.
    """
    if algorithm.static:
        raise AlgorithmError(
            f"algorithm {algorithm.name!r} cannot run with absent workers: its workers remember what their neighbours "
            "have sent, and one that misses a message would be wrong about them from then on; use dsgd"
        )
    unused = algorithm.promise is None and topology.promise == "doubly"
    try:
        return absent(topology, participation, keep="column" if unused or algorithm.promise == "column" else None)
    except MixingError as error:
        raise AlgorithmError(f"algorithm {algorithm.name!r} cannot run with absent workers: {error}") from None


def there_at(participation: WhoIsThere, t: int, n: int, device: torch.device) -> Tensor | None:
    """Who is there at step t as a bool tensor (n,), or `None` if everybody is."""
    try:
        there = present(participation, t, n)
    except MixingError as error:
        raise AlgorithmError(str(error)) from None
    return None if there.all() else torch.from_numpy(there.copy()).to(device)


def stayed(there: Tensor | None, before: Kept, after: Kept) -> Kept:
    """The step's outcome for those that are there, and what was before for the rest, bit for bit.

    Tensors have one row per worker; tuples, NamedTuples, lists and dicts of them are walked through.
    """
    if there is None:
        return after
    old: Any = before
    new: Any = after
    if isinstance(new, Tensor):
        kept: Any = torch.where(there.view(-1, *(1,) * (new.ndim - 1)), new, old)
        return kept
    if isinstance(new, Mapping):
        return type(new)({k: stayed(there, old[k], v) for k, v in new.items()})  # type: ignore[call-arg]
    parts = [stayed(there, b, a) for b, a in zip(old, new, strict=True)]
    return type(new)(*parts) if hasattr(new, "_fields") else type(new)(parts)


def _check(who: Participation, good: Any, problem: str) -> None:
    if not good:
        raise AlgorithmError(f"participation {type(who).__name__} {problem}")
