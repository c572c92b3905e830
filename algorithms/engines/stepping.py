"""One step of the stacked engine: who answers what an algorithm asks for, and what becomes of its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dissensus.algorithms.engines.distributed.timeline import Timeline
from dissensus.algorithms.engines.gradients import GradientRoute, Stacked
from dissensus.algorithms.engines.lockstep import lockstep
from dissensus.algorithms.engines.moves import Move
from dissensus.algorithms.engines.participation import stayed
from dissensus.algorithms.engines.presence import Presence, not_finite
from dissensus.algorithms.engines.workers import Workers
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Await, Gradient, Mean, Mix, Note, Post, Request
from dissensus.algorithms.streams import stream


@dataclass(frozen=True)
class StepRecord:
    """What happened in one step. Where there are several processes, rows are the workers of this one."""

    t: int
    lr: float
    losses: Tensor
    """The loss of every worker on its batch, at the first point it took a gradient at: (n,). What a worker that was
    not there would have had is in it, too."""
    notes: Mapping[str, Tensor | float]
    """What the algorithm noted."""
    there: Tensor | None = None
    """Who took part, (n,) bools; `None` if everybody did."""

    @property
    def gamma(self) -> float | None:
        """The adaptive factor used in this step, if the algorithm has one."""
        value = self.notes.get("gamma")
        return float(value.reshape(-1)[0]) if isinstance(value, Tensor) else value


@dataclass(frozen=True)
class StripLocal:
    """What the workers know and can do by themselves at this step, for the columns of one strip."""

    t: int
    lr: float
    _step: Stepping
    _k: int

    @property
    def rate(self) -> float | Tensor:
        """The learning rate of these columns, by worker where they differ."""
        return self._step.move.rate(self._k)

    @property
    def decay(self) -> float | Tensor:
        """The weight decay that a move adds to the gradient of these columns."""
        return self._step.move.decay(self._k)

    def generators(self, purpose: str) -> list[torch.Generator]:
        """Every worker's own generator."""
        return [stream(self._step.seed, purpose, self.t, i) for i in self._step.here]

    def move(self, x: Tensor, g: Tensor) -> Tensor:
        """The local optimizer's step; the memory of a worker that is not there stays as it is."""
        began, there = time.perf_counter(), self._step.there
        self._step.written = True
        put_back = None if there is None else self._step.move.keeping(self._k, ~there)
        moved = self._step.move(self._k, x, g, there, over=self._step.workers.is_loose(x))
        if put_back is not None:
            put_back()
        if self._step.timeline is not None:
            self._step.timeline.add("move", began, time.perf_counter(), step=self.t)
        return moved


class Stepping:
    """Answers the requests of one step. Built for a step, and of no use after it."""

    def __init__(
        self,
        workers: Workers,
        move: Move,
        route: GradientRoute,
        presence: Presence,
        *,
        t: int,
        lr: float,
        seed: int,
        clip: float | None,
        batch: Any,
        timeline: Timeline | None = None,
    ) -> None:
        self.workers, self.move, self.seed, self.t = workers, move, seed, t
        self.here, self.timeline = presence.here, timeline
        self._route, self._presence, self._lr, self._clip, self._batch = route, presence, lr, clip, batch
        self.there = presence.at(t)
        self.written = False
        """Whether a move has begun or points were written: an error after that leaves the workers halfway."""
        self._fewer = False
        """Whether a worker was isolated in this step."""
        self._buffers: Stacked = workers.buffers
        self._losses: list[Tensor] = []
        self._notes: dict[str, Tensor | float] = {}

    def run(self) -> StepRecord:
        """The step from its beginning to its end."""
        held = self.workers
        recursions = [
            held.algorithm.step(held.point(k), held.states[k], StripLocal(self.t, self._lr, self, k))
            for k in held.strips
        ]
        meeting = lockstep(recursions, self._alone, self._finish)
        answers: Any = None
        try:
            while True:
                try:
                    answers = self._together(meeting.send(answers))
                except StopIteration:
                    break
        finally:
            if self._fewer:  # also after an error: whoever is isolated stays so
                held.reform(self._presence.left)
        held.buffers = self._buffers
        losses = self._losses[0] if self._losses else torch.empty(0)
        return StepRecord(self.t, self._lr, losses, self._notes, self.there)

    def _alone(self, k: int, request: Request) -> Any:
        if isinstance(request, Note):
            self._notes.setdefault(request.name, request.value)
            return None
        if isinstance(request, Await):
            return self._presence.take(self.t, request.ticket, request.share)
        if isinstance(request, Mix):
            ticket = self._presence.post(self.t, self._checked(k, request.value))
            return self._presence.take(self.t, ticket, request.share)
        if isinstance(request, Post):
            return self._presence.post(self.t, self._checked(k, request.value))
        if isinstance(request, Mean):
            return self._presence.mean(self.t, self._checked(k, request.value), self.there)
        name = self.workers.algorithm.name
        raise AlgorithmError(f"algorithm {name!r} asked for {type(request).__name__}: no request of the protocol")

    def _together(self, requests: Sequence[Any]) -> Sequence[Any]:
        if isinstance(requests[0], Gradient):
            return self._gradient([request.at for request in requests])
        squares = torch.stack([request.value.square().sum(dim=1) for request in requests])
        return [squares.sum(dim=0).sqrt()[:, None]] * len(requests)

    def _gradient(self, at: Sequence[Tensor]) -> list[Tensor]:
        began, count = time.perf_counter(), len(self._losses)
        room = self.workers.gradients(count)
        where = self.workers.gathered(at).parameters
        found = self._route(where, room.parameters, self._buffers, self._batch, (self.t, count))
        if self.timeline is not None:
            self.timeline.add("gradient", began, time.perf_counter(), step=self.t)
        blocks = room.blocks
        self._losses.append(found.losses)
        bad = not_finite(found.losses[:, None])
        self._exclude(bad, lambda: f"the loss {found.losses[bad].tolist()[0] if bad is not None else 'nan'}", blocks)
        for block, held in zip(blocks, self.workers.layout.blocks, strict=True):
            known = all(part.name in found.finite for part in held.parts)  # still asks the other processes
            self._exclude(None if known else not_finite(block), lambda: "a gradient that is not finite", blocks)
        self._buffers = stayed(self.there, self._buffers, found.buffers)
        if self._clip is not None:
            norm = torch.stack([block.square().sum(dim=1) for block in blocks]).sum(dim=0).sqrt()
            scale = (self._clip / norm).clamp(max=1.0).nan_to_num(nan=1.0)[:, None]
            for block in blocks:
                block *= scale
        return room.strips

    def _exclude(self, bad: Tensor | None, what: Callable[[], str], blocks: Sequence[Tensor] = ()) -> None:
        """The workers with these numbers are out, or the run stops; nobody computes with their gradients."""
        if (bad is not None or self._presence.asks) and self._presence.without(bad, self.t, what):
            self.there, self._fewer = self._presence.at(self.t), True
        if bad is not None:
            for block in blocks:
                block[bad] = 0.0

    def _checked(self, k: int, value: Tensor) -> Tensor:
        """A message, in which a worker that cannot send a finite one is out and sends nothing but zeros."""
        x = self.workers.point(k)
        if value is x or value.data_ptr() == x.data_ptr():
            return value
        bad = not_finite(value)
        self._exclude(bad, lambda: "a message that is not finite")
        return value if bad is None else torch.where(bad[:, None], torch.zeros_like(value), value)

    def _finish(self, k: int, x: Tensor, state: Any) -> None:
        self._exclude(not_finite(x), lambda: "parameters that are not finite")
        self.written = True
        kept = stayed(self.there, self.workers.states[k], state)
        common: tuple[str, ...] = getattr(self.workers.algorithm, "common", ())
        if common:
            kept = kept._replace(**{name: getattr(state, name) for name in common})
        self.workers.put(k, stayed(self.there, self.workers.point(k), x), kept)
