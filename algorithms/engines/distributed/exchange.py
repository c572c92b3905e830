r"""One exchange between the rows of many processes, in two halves: `post` sends, `take` waits and mixes.

With one worker a process the arithmetic is a chain of interpolations, $x \leftarrow x + a_j (x_j - x)$ over the
neighbours j, with the $a_j$ for which the chain ends at $(1-\gamma)\,x + \gamma \sum_j w_j x_j$. It leaves workers that
agree where they are, to the bit, and needs no second copy where the caller allows x to be overwritten. With more
workers, or with γ beyond 1, it is two products.

Messages in a shorter number format (bfloat16) are rounded, $q(x)$, and mixed as differences of what was sent,

$$ x_i^+ = x_i + \gamma \sum_j w_{ij} \big( q(x_j) - q(x_i) \big), $$

so that doubly stochastic rounds keep the mean of the x whatever the rounding does, and workers that agree stay where
they are. One such exchange differs from the exact one by $\gamma (W - I) E$ with $|E| \le u |X|$ entry by entry and
$u = 2^{-8}$ for bfloat16. So consensus is not reached beyond a floor: for a static W whose adapted contraction is
$\rho < 1$, $\limsup \|X - \bar X\|_F \le \gamma \|W - I\|_2\, u \|X\|_F / (1 - \rho)$. Ours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.engines.distributed.isolation import delivered
from dissensus.algorithms.engines.distributed.message import Left
from dissensus.algorithms.engines.distributed.rounds import Part, Rounds
from dissensus.algorithms.engines.distributed.wire import Flight, Wire
from dissensus.algorithms.errors import AlgorithmError
from dissensus.theory.topology import Topology

PIECE = 1 << 18
"""So many numbers at a time go through arithmetic that needs room of its own: they stay in the cache."""


@dataclass(eq=False)
class Ticket:
    """An exchange under way."""

    step: int
    value: Tensor
    """The own rows, (k, c)."""
    sent: Tensor
    """What the others hear of them: the rows themselves, or rounded."""
    inboxes: list[Tensor | Left]
    """Where the rows come to lie that every process sends that is heard, (m_q, c)."""
    flight: Flight
    part: Part
    heard: list[Tensor] = field(default_factory=list)
    """Those rows, once they have come."""


class Exchange:
    """Exchanges of tensors with one row per worker of this process."""

    def __init__(
        self,
        topology: Topology,
        wire: Wire,
        *,
        message_dtype: torch.dtype | None = None,
    ) -> None:
        if topology.size % wire.size:
            raise AlgorithmError(
                f"{topology.size} workers cannot be shared evenly among {wire.size} processes; the nearest that works: "
                f"{max(wire.size, topology.size // wire.size * wire.size)} workers"
            )
        self.wire, self.rounds = wire, Rounds(topology, wire.rank, wire.size)
        self.topology, self._message_dtype = topology, message_dtype
        self.some_say_nothing = False
        """Whether messages must be looked at: some may come from an isolated worker (`isolation`)."""
        self._room: dict[tuple[torch.Size, torch.dtype, torch.device, bool], list[Tensor]] = {}

    def post(self, t: int, value: Tensor, what: str = "exchange") -> Ticket:
        """Sends the rows of `value` to whoever hears them in round t. They must stay as they are until taken."""
        part = self.rounds[t]
        sent, short = value, self._message_dtype
        if short is not None and short != value.dtype and value.is_floating_point() and not part.silent:
            sent = self._borrow(value.shape, short, value.device).copy_(value)
        outgoing = [(q, _rows(sent, rows)) for q, rows in part.sends]
        incoming = [(q, self._inbox(q, len(who), sent)) for q, who in part.receives]
        flight = self.wire.post(outgoing, incoming, what=what, step=t, wanted=True)
        return Ticket(t, value, sent, [box for _, box in incoming], flight, part)

    def take(self, ticket: Ticket, share: float | Tensor = 1.0, *, overwrite: bool = False) -> Tensor:
        """This process's rows of the adapted round's product, as a new tensor or in its place."""
        self.wire.land(ticket.flight)
        began = time.perf_counter()
        ticket.heard = [box.there if isinstance(box, Left) else box for box in ticket.inboxes]
        heard = delivered(ticket) if self.some_say_nothing else ticket
        mixed = self._mixed(heard, share, ticket.value if overwrite else ticket.value.clone())
        self._give_back(ticket)
        self.wire.timeline.add("mix", began, time.perf_counter(), step=ticket.step)
        return mixed

    def land(self, ticket: Ticket) -> None:
        """Waits until an exchange is done."""
        self.wire.land(ticket.flight)

    def drop(self, ticket: Ticket) -> None:
        """Waits for an exchange that nobody wants any more."""
        self.wire.land(ticket.flight)
        self._give_back(ticket)

    def mean(
        self, t: int, value: Tensor, *, overwrite: bool = False, there: bool = True, between: bool = False
    ) -> Tensor:
        """The mean over all workers, in every row, as a new tensor or, with one worker a process, in its place.

        Where some may be isolated, those that are not `there` count for nothing; the mean of nobody is the own value.
        `between` two steps it is the loop that asks, and not the algorithm: that matters to `Surviving`.
        """
        del between
        own = value if overwrite else value.clone()
        total = own if len(value) == 1 else value.sum(dim=0, keepdim=True)
        block = self.rounds.block
        if self.some_say_nothing:
            total = total if there else torch.zeros_like(total)
            marks = torch.tensor([block if there else 0], device=value.device)
            self.wire.sums([total, marks], what="all-reduce", step=t)
            count = int(marks)
            if not count:
                return own
        else:  # of whom it is the sum is known once it is there: somebody may be lost meanwhile
            count = block * self.wire.sums([total], what="all-reduce", step=t)
        return total.div_(count).expand_as(value)

    def _mixed(self, ticket: Ticket, share: float | Tensor, x: Tensor) -> Tensor:
        part = ticket.part
        if part.silent:
            return x
        if ticket.sent is not ticket.value:
            return self._by_differences(ticket, share, x)
        if x.shape[0] == 1 and part.convex and float(share) <= 1.0:
            return _toward(x, ticket.heard, part.weights, float(share))
        own, heard = self._dense(ticket)
        mixed = own @ ticket.value if len(x) > 1 else ticket.value * own[0, 0]
        for box, columns in zip(ticket.heard, heard, strict=True):
            mixed.addmm_(columns, box)
        if isinstance(share, Tensor):
            return x.lerp_(mixed, share.to(x.dtype))
        return x.copy_(mixed) if share == 1.0 else x.lerp_(mixed, share)

    def _by_differences(self, ticket: Ticket, share: float | Tensor, x: Tensor) -> Tensor:
        """Mixes what was sent, x + γ (W - I) q by differences of q, a piece of the columns at a time."""
        own, heard = self._dense(ticket)
        sums = own.sum(dim=1) + sum(columns.sum(dim=1) for columns in heard)
        # what a row of W - I sums to: zero, unless the round only keeps the sum of all rows (push-sum)
        beyond = torch.zeros_like(sums) if ticket.part.convex else sums - 1.0
        pull = own - torch.diag(sums - beyond)
        gamma = share.to(x.dtype) if isinstance(share, Tensor) else share
        for lo in range(0, x.shape[1], PIECE):
            piece = slice(lo, lo + PIECE)
            mine = ticket.sent[:, piece].to(x.dtype)
            if len(x) == 1:
                boxes = [box[:, piece] for box in ticket.heard]
                change = mine * beyond
                for box, w in zip(boxes, heard, strict=True):
                    change += (box.to(x.dtype) - mine) * w
            else:
                change = pull @ mine
                for box, columns in zip(ticket.heard, heard, strict=True):
                    change += columns @ box[:, piece].to(x.dtype)
            x[:, piece] += change * gamma
        return x

    def _dense(self, ticket: Ticket) -> tuple[Tensor, list[Tensor]]:
        """The weights among the own rows, and those of every inbox, as tensors."""
        part, like = ticket.part, ticket.value
        own = torch.from_numpy(part.own).to(like.device, like.dtype)
        heard = torch.from_numpy(part.heard).to(like.device, like.dtype)
        return own, list(heard.split([len(who) for _, who in part.receives], dim=1))

    def _inbox(self, q: int, rows: int, like: Tensor) -> Tensor | Left:
        """Room for so many rows of process q: where it leaves them, where it can write them to, or anywhere."""
        shape = like.shape if rows == like.shape[0] else torch.Size((rows, *like.shape[1:]))
        size = shape.numel() * like.element_size()
        if self.wire.leaves(q, size, like.device):
            return Left(shape, like.dtype)
        return self._borrow(shape, like.dtype, like.device, delivered=self.wire.delivers(q, size, like.device))

    def _borrow(
        self, shape: torch.Size, dtype: torch.dtype, device: torch.device, *, delivered: bool = False
    ) -> Tensor:
        """Room for a message, kept from step to step: fresh pages would cost as much as the message."""
        spare = self._room.get((shape, dtype, device, delivered))
        if spare:
            return spare.pop()
        return self.wire.inbox(shape, dtype) if delivered else torch.empty(shape, dtype=dtype, device=device)

    def _give_back(self, ticket: Ticket) -> None:
        """Others may use the room of an exchange from now on."""
        for box in ticket.inboxes:
            if isinstance(box, Left):
                box.let_go()
            else:
                self._keep(box)
        if ticket.sent is not ticket.value:
            self._keep(ticket.sent)

    def _keep(self, room: Tensor) -> None:
        key = room.shape, room.dtype, room.device, self.wire.is_inbox(room)
        self._room.setdefault(key, []).append(room)


def finite(value: Tensor) -> bool:
    """Whether all numbers are finite. One pass; only when its sum is not, each number is looked at."""
    return math.isfinite(value.sum().item()) or bool(torch.isfinite(value).all())


def _rows(value: Tensor, rows: np.ndarray) -> Tensor:
    """Those rows as one contiguous tensor; a view where they lie together."""
    if len(rows) == value.shape[0]:
        return value
    if rows[-1] - rows[0] + 1 == len(rows):
        return value[int(rows[0]) : int(rows[-1]) + 1]
    return value[torch.from_numpy(rows).to(value.device)]


def _toward(x: Tensor, heard: Sequence[Tensor], weights: Sequence[float], share: float) -> Tensor:
    """The chain of interpolations of the module, in place: $a_j$ is γ w_j over what those after it leave."""
    left = 1.0 - share * sum(weights[1:])
    for k, box in enumerate(heard):
        x.lerp_(box, min(share * weights[k] / left, 1.0))
        left += share * weights[k + 1] if k + 1 < len(weights) else 0.0
    return x
