"""One step of the stacked engine: who answers what an algorithm asks for, and what becomes of its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dissensus.algorithms.engines.gradients import GradientRoute, Stacked
from dissensus.algorithms.engines.lockstep import lockstep
from dissensus.algorithms.engines.moves import Move
from dissensus.algorithms.engines.participation import stayed
from dissensus.algorithms.engines.presence import Presence, not_finite
from dissensus.algorithms.engines.workers import Workers
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Await, Gradient, Mean, Mix, Note, Post, Request, toward
from dissensus.algorithms.streams import stream


@dataclass(frozen=True)
class StepRecord:
    """What happened in one step."""

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

    def generators(self, purpose: str) -> list[torch.Generator]:
        """Every worker's own generator."""
        return [stream(self._step.seed, purpose, self.t, i) for i in range(self._step.workers.size)]

    def move(self, x: Tensor, g: Tensor) -> Tensor:
        """The local optimizer's step; the memory of a worker that is not there stays as it is."""
        there = self._step.there
        put_back = None if there is None else self._step.move.keeping(self._k, ~there)
        moved = self._step.move(self._k, x, g, there)
        if put_back is not None:
            put_back()
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
    ) -> None:
        self.workers, self.move, self.seed, self.t = workers, move, seed, t
        self._route, self._presence, self._lr, self._clip, self._batch = route, presence, lr, clip, batch
        self.there = presence.at(t)
        self.written = False
        """Whether points have been written: an error after that leaves the workers halfway through the step."""
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
        while True:
            try:
                answers = self._together(meeting.send(answers))
            except StopIteration:
                break
        held.buffers = self._buffers
        losses = self._losses[0] if self._losses else torch.empty(0)
        return StepRecord(self.t, self._lr, losses, self._notes, self.there)

    def _alone(self, k: int, request: Request) -> Any:
        if isinstance(request, Note):
            self._notes.setdefault(request.name, request.value)
            return None
        if isinstance(request, Await):
            return self._mixed(request.ticket, request.share)
        if isinstance(request, Mix):
            return self._mixed(self._checked(k, request.value), request.share)
        if isinstance(request, Post):
            return self._checked(k, request.value)  # what is posted is mixed when it is waited for: it is cached then
        if isinstance(request, Mean):
            value = self._checked(k, request.value)
            present = value if self.there is None else value[self.there]
            return present.mean(dim=0, keepdim=True).expand_as(value)
        name = self.workers.algorithm.name
        raise AlgorithmError(f"algorithm {name!r} asked for {type(request).__name__}: no request of the protocol")

    def _mixed(self, value: Tensor, share: float | Tensor) -> Tensor:
        return toward(value, self._presence.mix(self.t, value), share)

    def _together(self, requests: Sequence[Any]) -> Sequence[Any]:
        if isinstance(requests[0], Gradient):
            return self._gradient([request.at for request in requests])
        squares = torch.stack([request.value.square().sum(dim=1) for request in requests])
        return [squares.sum(dim=0).sqrt()[:, None]] * len(requests)

    def _gradient(self, at: Sequence[Tensor]) -> list[Tensor]:
        count = len(self._losses)
        room = self.workers.gradients(count)
        where = self.workers.gathered(at).parameters
        found = self._route(where, room.parameters, self._buffers, self._batch, (self.t, count))
        blocks = room.blocks
        self._losses.append(found.losses)
        bad = not_finite(found.losses[:, None])
        if bad is not None:
            self._exclude(bad, f"the loss {found.losses[bad][0].item()}", blocks)
        for block in blocks:
            bad = not_finite(block)
            if bad is not None:
                self._exclude(bad, "a gradient that is not finite", blocks)
        self._buffers = stayed(self.there, self._buffers, found.buffers)
        if self._clip is not None:
            norm = torch.stack([block.square().sum(dim=1) for block in blocks]).sum(dim=0).sqrt()
            scale = (self._clip / norm).clamp(max=1.0).nan_to_num(nan=1.0)[:, None]
            for block in blocks:
                block *= scale
        return room.strips

    def _exclude(self, bad: Tensor, what: str, blocks: Sequence[Tensor]) -> None:
        """The workers with these gradients are out, or the run stops; nobody computes with them."""
        if self.there is None or bool((bad & self.there).any()):
            self.there = self._presence.without(bad if self.there is None else bad & self.there, self.t, what)
        for block in blocks:
            block[bad] = 0.0

    def _checked(self, k: int, value: Tensor) -> Tensor:
        """A message, in which a worker that cannot send a finite one is out and holds its point instead."""
        x = self.workers.point(k)
        if value is x or value.data_ptr() == x.data_ptr():
            return value
        bad = not_finite(value)
        if bad is None:
            return value
        self.there = self._presence.without(bad, self.t, "a message that is not finite")
        return torch.where(bad[:, None], torch.zeros_like(value), value)

    def _finish(self, k: int, x: Tensor, state: Any) -> None:
        bad = not_finite(x)
        if bad is not None and (self.there is None or bool((bad & self.there).any())):
            self.there = self._presence.without(bad, self.t, "parameters that are not finite")
        self.written = True
        self.workers.put(
            k, stayed(self.there, self.workers.point(k), x), stayed(self.there, self.workers.states[k], state)
        )
