r"""A worker in a loop whose numbers are not finite is cut off, and nobody misses it: `on_nan="isolate"`.

Nobody else can know of it in time, so it goes on answering, with messages that say nothing: their first number is not a
number, which in a message that was checked before it left cannot be. Who receives one gives its weight back to its own,
and the isolated worker mixes with nobody: a symmetric round stays doubly stochastic among the others. It does not move
any more either; its point stays the last finite one, of which a copy is kept at the beginning of every step.

At the step in which it is cut off its neighbours may have mixed with the point that it had sent before. A round that is
not symmetric would lose its sums, an algorithm that remembers what its neighbours were sent would be wrong about them
from then on, and one that tracks a sum over all workers would keep what is gone in it: they are refused. (The stacked
engine, whose processes ask each other, has the last one start anew.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.engines.distributed.rounds import Part
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm
from dissensus.theory.topology import Topology

if TYPE_CHECKING:
    from dissensus.algorithms.engines.distributed.exchange import Ticket


class Isolation:
    """Whether this worker is cut off, and the point it stays at."""

    def __init__(self, algorithm: Algorithm, topology: Topology) -> None:
        why = ""
        if algorithm.static:
            why = f"the workers of {algorithm.name!r} remember what their neighbours have sent"
        elif algorithm.promise == "column":
            why = f"{algorithm.name!r} keeps sums, and a sender cannot know which of its messages count"
        elif algorithm.promise is not None and not topology.is_symmetric:
            why = (
                f"the rounds of topology {topology.name!r} are not symmetric, and one that says nothing would be missed"
            )
        elif hasattr(algorithm, "reformed"):
            why = f"{algorithm.name!r} keeps a sum over all, and who is no neighbour does not hear that one is gone"
        if why:
            raise AlgorithmError(f"on_nan='isolate' is not possible: {why}; use on_nan='stop', or dsgd on a ring")
        self.since: int | None = None
        """The step at which it was cut off."""
        self._kept: dict[int, Tensor] = {}
        self._nothing: dict[tuple[torch.Size, torch.dtype, torch.device], Tensor] = {}

    def keep(self, k: int, point: Tensor, *, overwritten: bool) -> None:
        """Remembers where part k is at the beginning of a step; a copy, if that place will be written to."""
        if self.since is not None:
            return
        if not overwritten:
            self._kept[k] = point
        elif k in self._kept:
            self._kept[k].copy_(point)
        else:
            self._kept[k] = point.clone()

    def forget(self) -> None:
        """The parts are others from now on; what was kept of them is of no use."""
        self._kept.clear()

    def cut_off(self, t: int, points: Sequence[Tensor]) -> None:
        """From now on this worker is alone, at the points where the step began."""
        if self.since is None:
            self.since = t
            for k, kept in self._kept.items():
                if points[k] is not kept:
                    points[k].copy_(kept)

    def nothing(self, value: Tensor) -> Tensor:
        """The message that says nothing."""
        key = (value.shape, value.dtype, value.device)
        if key not in self._nothing:
            self._nothing[key] = torch.full_like(value, torch.nan)
        return self._nothing[key]


def delivered(ticket: Ticket) -> Ticket:
    """The exchange without the messages that say nothing."""
    lost = [bool(box.reshape(-1)[0].isnan()) for box in ticket.heard]
    if not any(lost):
        return ticket
    heard = [box for box, gone in zip(ticket.heard, lost, strict=True) if not gone]
    return replace(ticket, heard=heard, part=without(ticket.part, lost))


def without(part: Part, lost: Sequence[bool]) -> Part:
    """A round in which some of those that are heard say nothing: their weights go back to the own ones."""
    columns = np.repeat(lost, [len(who) for _, who in part.receives])
    receives = tuple(one for one, gone in zip(part.receives, lost, strict=True) if not gone)
    own = part.own + np.diag(part.heard[:, columns].sum(axis=1))
    return Part(part.sends, receives, own, part.heard[:, ~columns])
