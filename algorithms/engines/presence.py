"""Who takes part in a step: workers that come and go, and workers cut off because their numbers are not finite.

A number that is not finite is found before it is sent: in a loss, in a gradient, in a message, in a new point. Then the
run stops, or the worker is isolated: from this step on it neither computes nor moves nor exchanges anything, its point
stays the last finite one, and its links give their weight back to both ends, so that the others go on with a doubly
stochastic round (push-sum: a column stochastic one) among themselves. What an algorithm remembers of others (tracked
gradients, push-sum weights) starts anew among those that are left when that step is over.

Where the workers are spread over processes, who is there by schedule is known to each of them without a word. Who is
not finite is known to its own process only: to isolate, all processes ask each other at every check (a few bytes each
time), so that all of them change the same round, and a run is the same in every layout. To stop, nobody is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.engines.columns import Columns
from dissensus.algorithms.engines.distributed.blocks import Across
from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.algorithms.engines.mixing import Mixing
from dissensus.algorithms.engines.participation import there_at, without_absent
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm, toward
from dissensus.theory.errors import nearest
from dissensus.theory.faults import WhoIsThere
from dissensus.theory.topology import Topology

OnNan = Literal["stop", "isolate"]
POLICIES = ("stop", "isolate")


class Exchange(Protocol):
    """How rows get from worker to worker, in two halves."""

    def post(self, t: int, value: Tensor) -> Any:
        """Starts the exchange of step t; the answer is a ticket. The rows stay as they are until it is taken."""
        ...

    def take(self, t: int, ticket: Any, share: float | Tensor) -> Tensor:
        """The rows of (1 - γ) value + γ W_t value, as a new tensor."""
        ...

    def mean(self, t: int, present: Tensor, count: int) -> Tensor:
        """The mean (1, c) over the `count` workers that are there, of whom these are the rows in this process."""
        ...


class Presence:
    """Who is there, and the rounds between those that are."""

    def __init__(
        self,
        topology: Topology,
        algorithm: Algorithm,
        columns: Columns,
        participation: WhoIsThere | None,
        on_nan: OnNan,
        wire: Wire | None = None,
    ) -> None:
        if on_nan not in POLICIES:
            raise AlgorithmError(f"on_nan must be 'stop' or 'isolate', got {on_nan!r}{nearest(str(on_nan), POLICIES)}")
        self._topology, self._algorithm, self._participation = topology, algorithm, participation
        self._dtype, self._device, self._on_nan, self._wire = columns.dtype, columns.device, on_nan, wire
        block = topology.size // (1 if wire is None else wire.size)
        first = 0 if wire is None else wire.rank * block
        self.here = range(first, first + block)
        """The workers of this process."""
        self.isolated: dict[int, int] = {}
        """Worker -> the step at which it was cut off."""
        if on_nan == "isolate" or participation is not None:
            without_absent(topology, self._who, algorithm)  # refuses now what it would refuse in the middle
        self._exchange = self._rounds()

    @property
    def asks(self) -> bool:
        """Whether a check for finite numbers is one of all processes together."""
        return self._wire is not None and self._on_nan == "isolate"

    @property
    def left(self) -> Tensor:
        """Which workers of this process are not isolated, bools: those that are away come again."""
        return torch.tensor([i not in self.isolated for i in self.here], device=self._device)

    def at(self, t: int) -> Tensor | None:
        """Who of this process is there at step t, bools, or `None` if all workers of all processes are."""
        if self._participation is None and not self.isolated:
            return None
        there = there_at(self._who, t, self._topology.size, self._device)
        return None if there is None else there[self.here.start : self.here.stop]

    def post(self, t: int, value: Tensor) -> Any:
        """Starts an exchange among those that are there; the answer is a ticket."""
        return self._exchange.post(t, value)

    def take(self, t: int, ticket: Any, share: float | Tensor) -> Tensor:
        """Waits for it: the rows of (1 - γ) value + γ W_t value."""
        return self._exchange.take(t, ticket, share)

    def mean(self, t: int, value: Tensor, there: Tensor | None) -> Tensor:
        """The mean over those that are there, in every row."""
        present = value if there is None else value[there]
        count = self._topology.size if there is None else int(self._who(t).sum())
        return self._exchange.mean(t, present, count).expand_as(value)

    def without(self, bad: Tensor | None, t: int, what: Callable[[], str]) -> bool:
        """Deals with workers whose numbers are not finite: those of this process by mask, `None` if all are well.

        Returns whether fewer are there from now on. Where workers are isolated all processes call it together.
        """
        found = self._everywhere(bad, t)
        workers = [i for i in found if self._who(t)[i]]
        if not workers:
            return False
        if self._on_nan == "stop":
            said = (
                f"worker {workers[0]} has {what()} at step {t}; no other worker has received anything of it; lower the "
                'learning rate, look at its data, or isolate such workers with on_nan="isolate"'
            )
            if self._wire is not None:
                self._wire.last_words(said)
            raise AlgorithmError(said)
        self.isolated |= {i: t for i in workers if i not in self.isolated}
        if len(self.isolated) == self._topology.size:
            raise AlgorithmError(f"every worker is isolated at step {t}: the last one has {what()}")
        self._exchange = self._rounds()
        return True

    def load(self, isolated: dict[int, int]) -> None:
        """Takes over who was isolated."""
        self.isolated = dict(isolated)
        self._exchange = self._rounds()

    def _everywhere(self, bad: Tensor | None, t: int) -> list[int]:
        """The workers of the mask, or of the masks of all processes."""
        own = [] if bad is None else [self.here.start + int(i) for i in bad.nonzero().flatten()]
        if self._wire is None or not self.asks:
            return own
        marks = torch.zeros(self._topology.size, dtype=torch.int32, device=self._device)
        marks[own] = 1
        return [int(i) for i in self._wire.sum(marks, what="check for finite numbers", step=t).nonzero().flatten()]

    def _who(self, t: int) -> np.ndarray:
        there = np.ones(self._topology.size, dtype=bool) if self._participation is None else self._participation(t)
        if not self.isolated:
            return there
        there = np.array(there)
        there[list(self.isolated)] = False
        return there

    def _rounds(self) -> Exchange:
        whole = self._participation is None and not self.isolated
        topology = self._topology if whole else without_absent(self._topology, self._who, self._algorithm)
        if self._wire is None:
            return _Here(topology, self._dtype, self._device)
        return Across(topology, self._wire)


class _Here:
    """All workers are in this process: what is posted is mixed when it is waited for, because it is cached then."""

    def __init__(self, topology: Topology, dtype: torch.dtype, device: torch.device) -> None:
        self._mixing = Mixing(topology, dtype, device)

    def post(self, t: int, value: Tensor) -> Tensor:
        del t
        return value

    def take(self, t: int, ticket: Tensor, share: float | Tensor) -> Tensor:
        return toward(ticket, self._mixing(t, ticket), share)

    def mean(self, t: int, present: Tensor, count: int) -> Tensor:
        del t, count
        return present.mean(dim=0, keepdim=True)


def not_finite(value: Tensor) -> Tensor | None:
    """Which rows hold a number that is not finite, or `None`. One pass; rows are looked at only when it finds one."""
    if math.isfinite(value.sum().item()):
        return None
    bad = ~torch.isfinite(value).reshape(len(value), -1).all(dim=1)
    return bad if bool(bad.any()) else None
