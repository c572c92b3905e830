r"""Blocks of workers: k = n/P rows of the n stacked workers in each of P processes, for the stacked engine.

Nothing of an algorithm is written twice for it. A step is the same step on k rows; only an exchange goes over the
wire: it leaves when it is posted, runs under whatever lies between `Post` and `Await`, and is mixed when it is waited
for. Who sends what follows from the round alone (`rounds`), random numbers from the number of the worker (`streams`),
so a run has the same numbers in every layout, up to the rounding of sums that are taken in another order.

Strips are messages here, one to every neighbour, so they are wider than in one process (`layout`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.algorithms.engines.distributed.exchange import Exchange, Ticket
from dissensus.algorithms.engines.distributed.handshake import agree, facts_of
from dissensus.algorithms.engines.distributed.rounds import Part
from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.algorithms.protocol import Algorithm
from dissensus.theory.topology import Topology


class _Posted(NamedTuple):
    ticket: Ticket
    ours: bool
    """Whether the rows are a copy that nobody else reads, so that they may be mixed in place."""


class Across:
    """The exchange between workers of whom a block is in each process."""

    def __init__(self, topology: Topology, wire: Wire) -> None:
        self._exchange, self._wire = Exchange(topology, wire), wire

    def post(self, t: int, value: Tensor) -> _Posted:
        """Sends the rows to whoever hears them in round t."""
        began = time.perf_counter()
        whole = value.contiguous()  # rows of a strip lie apart
        posted = _Posted(self._exchange.post(t, whole), whole is not value)
        self._wire.timeline.add("post", began, time.perf_counter(), step=t)
        return posted

    def take(self, t: int, ticket: _Posted, share: float | Tensor) -> Tensor:
        """Waits for the rows of the others and mixes; with the weights of now, if somebody was isolated meanwhile."""
        under_way, part = ticket.ticket, self._exchange.rounds[t]
        if part is not under_way.part:
            under_way = replace(under_way, part=_reweighted(under_way.part, part))
        return self._exchange.take(under_way, share, overwrite=ticket.ours)

    def mean(self, t: int, present: Tensor, count: int) -> Tensor:
        """The mean over all workers that are there, by an all-reduce."""
        total = present.sum(dim=0, keepdim=True)
        return self._wire.sum(total, what="all-reduce", step=t).div_(count)


def check_equal(wire: Wire, template: nn.Module, algorithm: Algorithm, topology: Topology, seed: int) -> None:
    """Compares with the other processes what must be the same everywhere; all of them end where it is not.

    From then on the wire knows how much goes over it in a round.
    """
    named = [(name, p) for name, p in template.named_parameters() if p.requires_grad]
    agree(wire, facts_of(named, algorithm, topology, the_seed=seed))
    wire.volume = topology.size // wire.size * sum(p.nbytes for _, p in named)


def gathered(
    wire: Wire, rows: Sequence[Tensor], *, to: int | None = None, what: str = "gather", step: int = 0
) -> list[Tensor] | None:
    """The rows of all workers in one process, `to`, or in all: each tensor with the rows of all processes in order.

    All processes call it together; those that get nothing get `None`.
    """
    if wire.alone:
        return [value.clone() for value in rows]
    mine = [value.detach().contiguous() for value in rows]
    targets = [q for q in range(wire.size) if to in (None, q)]
    sends = [(q, value) for q in targets if q != wire.rank for value in mine if value.numel()]
    found: list[list[Tensor]] = []
    if wire.rank in targets:
        found = [[torch.empty_like(value) for _ in range(wire.size)] for value in mine]
    others = [q for q in range(wire.size) if q != wire.rank]
    receives = [(q, parts[q]) for q in others for parts in found if parts[q].numel()]
    wire.land(wire.post(sends, receives, what=what, step=step))
    for parts, value in zip(found, mine, strict=False):
        parts[wire.rank] = value
    return [torch.cat(parts) for parts in found] if wire.rank in targets else None


def _reweighted(before: Part, now: Part) -> Part:
    """What was under way, with the weights of a round in which fewer take part: who is silent there counts nothing."""
    was, still = _workers(before), _workers(now)
    heard = np.zeros((len(now.own), len(was)))
    heard[:, np.searchsorted(was, still)] = now.heard
    return replace(before, own=now.own, heard=heard)


def _workers(part: Part) -> np.ndarray:
    """Whose rows come, in the order in which they come."""
    return np.concatenate([who for _, who in part.receives] or [np.empty(0, dtype=np.int64)])
