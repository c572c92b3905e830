"""Who takes part in a step: workers that come and go, and workers cut off because their numbers are not finite.

A number that is not finite is found before it is sent: in a loss, in a gradient, in a message, in a new point. Then the
run stops, or the worker is isolated: from this step on it neither computes nor moves nor exchanges anything, its point
stays the last finite one, and its links give their weight back to both ends, so that the others go on with a doubly
stochastic round (push-sum: a column stochastic one) among themselves.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.engines.columns import Columns
from dissensus.algorithms.engines.mixing import Mixing
from dissensus.algorithms.engines.participation import there_at, without_absent
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm
from dissensus.theory.errors import nearest
from dissensus.theory.faults import WhoIsThere
from dissensus.theory.topology import Topology

OnNan = Literal["stop", "isolate"]
POLICIES = ("stop", "isolate")


class Presence:
    """Who is there, and the rounds between those that are."""

    def __init__(
        self,
        topology: Topology,
        algorithm: Algorithm,
        columns: Columns,
        participation: WhoIsThere | None,
        on_nan: OnNan,
    ) -> None:
        if on_nan not in POLICIES:
            raise AlgorithmError(f"on_nan must be 'stop' or 'isolate', got {on_nan!r}{nearest(str(on_nan), POLICIES)}")
        self._topology, self._algorithm, self._participation = topology, algorithm, participation
        self._dtype, self._device, self._on_nan = columns.dtype, columns.device, on_nan
        self.isolated: dict[int, int] = {}
        """Worker -> the step at which it was cut off."""
        if on_nan == "isolate" or participation is not None:
            without_absent(topology, self._who, algorithm)  # refuses now what it would refuse in the middle
        self._mixing = self._rounds()

    def at(self, t: int) -> Tensor | None:
        """Who is there at step t, (n,) bools, or `None` if everybody is."""
        if self._participation is None and not self.isolated:
            return None
        return there_at(self._who, t, self._topology.size, self._device)

    def mix(self, t: int, value: Tensor) -> Tensor:
        """The rows of W_t value among those that are there."""
        return self._mixing(t, value)

    def without(self, bad: Tensor, t: int, what: str) -> Tensor | None:
        """Deals with the workers of a mask whose numbers are not finite; returns who is there from now on."""
        workers = [int(i) for i in bad.nonzero().flatten()]
        if self._on_nan == "stop":
            raise AlgorithmError(
                f"worker {workers[0]} has {what} at step {t}; no other worker has received anything of it; lower the "
                'learning rate, look at its data, or isolate such workers with on_nan="isolate"'
            )
        self.isolated |= {i: t for i in workers if i not in self.isolated}
        if len(self.isolated) == self._topology.size:
            raise AlgorithmError(f"every worker is isolated at step {t}: the last one has {what}")
        self._mixing = self._rounds()
        return self.at(t)

    def load(self, isolated: dict[int, int]) -> None:
        """Takes over who was isolated."""
        self.isolated = dict(isolated)
        self._mixing = self._rounds()

    def _who(self, t: int) -> np.ndarray:
        there = np.ones(self._topology.size, dtype=bool) if self._participation is None else self._participation(t)
        if not self.isolated:
            return there
        there = np.array(there)
        there[list(self.isolated)] = False
        return there

    def _rounds(self) -> Mixing:
        whole = self._participation is None and not self.isolated
        topology = self._topology if whole else without_absent(self._topology, self._who, self._algorithm)
        return Mixing(topology, self._dtype, self._device)


def not_finite(value: Tensor) -> Tensor | None:
    """Which rows hold a number that is not finite, or `None`. One pass; rows are looked at only when it finds one."""
    if math.isfinite(value.sum().item()):
        return None
    bad = ~torch.isfinite(value).reshape(len(value), -1).all(dim=1)
    return bad if bool(bad.any()) else None
