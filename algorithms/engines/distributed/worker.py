"""One worker in a loop that is not ours: its buckets, its memory, and the answers to what an algorithm asks of it.

An algorithm that is `in_place` works on the parameters where they lie: its point *is* the bucket, its gradient is a
word for "what the loop left in `.grad`", and mixing and move overwrite the bucket. Any other gets a copy of its point,
and its gradient as a row; the parameters are then a place to evaluate and to move at, and hold what the algorithm
deploys between two steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dissensus.algorithms import protocol
from dissensus.algorithms.engines.distributed.buckets import Bucket, buckets_of
from dissensus.algorithms.engines.distributed.conversation import Conversation, first_gradient_elsewhere
from dissensus.algorithms.engines.distributed.copies import Copies, changed_under_way
from dissensus.algorithms.engines.distributed.exchange import Exchange, Ticket, finite
from dissensus.algorithms.engines.distributed.isolation import Isolation
from dissensus.algorithms.engines.distributed.moving import GRADIENT, LoopLocal, Movement
from dissensus.algorithms.engines.distributed.surviving import Surviving
from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.algorithms.engines.distributed.worker_state import check_state, put_back, state_of
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm
from dissensus.algorithms.registry import reformed
from dissensus.theory.topology import Topology

log = logging.getLogger("dissensus")
OnNan = Literal["stop", "isolate"] | None


class LoopWorker:
    """The worker of this process. Answers one bucket at a time (`conversation.Host`)."""

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        algorithm: Algorithm,
        topology: Topology,
        wire: Wire,
        *,
        seed: int = 0,
        message_dtype: torch.dtype | None = None,
        on_nan: OnNan = "stop",
        apart: bool = False,
        surviving: bool = False,
    ) -> None:
        if on_nan not in ("stop", "isolate", None):
            raise AlgorithmError(f"on_nan must be 'stop', 'isolate' or None, got {on_nan!r}")
        self.isolation = Isolation(algorithm, topology) if on_nan == "isolate" else None
        self.algorithm, self.wire, self.seed, self.on_nan, self.apart = algorithm, wire, seed, on_nan, apart
        self.exchange = (Surviving if surviving else Exchange)(topology, wire, message_dtype=message_dtype)
        self.exchange.some_say_nothing = self.isolation is not None
        self.in_place = bool(getattr(algorithm, "in_place", False))
        self.elsewhere = first_gradient_elsewhere(algorithm)
        """Whether the gradient is taken elsewhere than at the own point, so that the forward must be waited for."""
        self.t = 0
        self.void = False
        """Whether this step's gradient is void: it counts as zero, and the worker does not move."""
        self.notes: dict[str, Any] = {}
        self.known: set[int] = set()
        """The parameters that are exchanged, by identity."""
        self.left: list[str] = []
        """The parameters that were exchanged and are not any more, by name: workers may differ in them."""
        self.buckets: list[Bucket] = []
        self.movement = Movement(inner, self.buckets)
        self.points: list[Tensor] = []
        """Where the algorithm is, by bucket: the bucket itself for one that is `in_place`."""
        self.states: list[Any] = []
        self.conversations: list[Conversation] = []
        self._under_way: dict[int, tuple[int, Ticket]] = {}
        self._versions: dict[int, int] = {}
        """Of buckets that are under way as they are: the version that was sent."""
        self._averaged: set[int] = set()
        """Buckets whose gradient in this step is the mean of all workers by now."""
        self._copies = Copies(self)
        self.moved: set[int] = set()
        """Buckets that hold what has not been looked at: a move has written to them."""

    def adopt(self, named: Sequence[tuple[str, nn.Parameter]], limit_bytes: int | None = None) -> None:
        """Exchanges these parameters from now on, and no others; between two steps, and on every process.

        What leaves stays what it is, what stays keeps its memory, and what is new starts one, in buckets of its own.
        """
        self.restart()
        at = [c.t for c in self.conversations] if self.apart else [self.t] * len(self.buckets)
        parts = list(zip(self.buckets, self.points, self.states, at, strict=True))
        before = [place.name for bucket in self.buckets for place in bucket.places]
        new, names = [(name, p) for name, p in named if id(p) not in self.known], {name for name, _ in named}
        self.known = {id(p) for _, p in named}
        self.left = [name for name in (*self.left, *before) if name not in names]
        for found in (self.buckets, self.points, self.states):
            found.clear()
        ts = [t for bucket, point, state, t in parts if self._keep(bucket, point, state)]
        for bucket in buckets_of(new, limit_bytes):
            point = bucket.flat if self.in_place else bucket.flat.clone()
            self._lay_out(bucket, point, self.algorithm.init(point))
            ts.append(self.t)
        if len(self.buckets) > 1 and not self.algorithm.columnwise:
            kinds = sorted({f"{b.flat.dtype} on {b.flat.device}" for b in self.buckets})
            raise AlgorithmError(
                f"algorithm {self.algorithm.name!r} works on all parameters as one row of numbers, but they are of "
                f"{len(self.buckets)} kinds ({', '.join(kinds)}) or came at different times; give them one dtype"
            )
        self.wire.volume = sum(bucket.flat.nbytes for bucket in self.buckets)
        self._regroup(ts)

    def _keep(self, bucket: Bucket, point: Tensor, state: Any) -> bool:
        """Lays out what is still known of a bucket; whether anything is."""
        kept = bucket.only(self.known)
        if kept is None:
            return False
        if kept is not bucket:
            point = kept.flat if self.in_place else bucket.carried(point, kept)
            state = type(state)(*(bucket.carried(v, kept) for v in state))
        self._lay_out(kept, point, state)
        return True

    def _lay_out(self, bucket: Bucket, point: Tensor, state: Any) -> None:
        """One bucket more; the point is the bucket itself or a copy."""
        self.buckets.append(bucket)
        self.points.append(point)
        self.states.append(state)

    def _regroup(self, ts: Sequence[int]) -> None:
        """The buckets are others: who moves what, who meets whom, and at which step each goes on."""
        self.movement.regroup()
        self._copies.forget()
        self.moved.clear()
        if self.isolation is not None:
            self.isolation.forget()
        numbers = range(len(self.buckets))
        groups = [[k] for k in numbers] if self.apart else [list(numbers)] if self.buckets else []
        self.conversations = [Conversation(self, group) for group in groups]
        for conversation in self.conversations:
            conversation.t = max(self.t, ts[conversation.buckets[0]])

    @property
    def isolated(self) -> bool:
        """Whether this worker was cut off because its numbers were not finite."""
        return self.isolation is not None and self.isolation.since is not None

    @property
    def is_ready(self) -> bool:
        """Whether a forward has come in this step, and something waits for its gradient."""
        return any(conversation.is_ready for conversation in self.conversations)

    def is_under_way(self, k: int) -> bool:
        """Whether something of bucket k has been sent and not been waited for."""
        return any(own == k and not ticket.flight.landed for own, ticket in self._under_way.values())

    def stays(self, k: int) -> bool:
        """Whether this worker does not move bucket k in this step; along a mean of all it moves like the others."""
        return self.isolated or (self.void and k not in self._averaged)

    # ---- the three times of a step

    def ready(self) -> None:
        """Before the forward: up to the gradient."""
        with torch.no_grad():
            for conversation in self.conversations:
                if not conversation.is_ready:
                    self._copies.go_on(conversation)
                conversation.ready(self.t)

    def ahead(self) -> None:
        """Buckets that are exchanged `apart` end this step and begin the next, before there are other buckets.

        Some have done so inside backward, on some processes. One with a parameter that was frozen has nowhere.
        """
        for conversation in self.conversations if self.apart else ():
            buckets = [self.buckets[k] for k in conversation.buckets]
            if conversation.t == self.t and all(p.requires_grad for bucket in buckets for p in bucket.parameters):
                for bucket in buckets:
                    bucket.check()
                self.finish_one(conversation, None)
                conversation.begin(self.t + 1)

    def finish(self, again: Callable[[], Any] | None) -> None:
        """The gradient is there: the rest of the step, for every conversation that has not had it."""
        for bucket in self.buckets:
            bucket.check()
        for conversation in self.conversations:
            if conversation.t == self.t:
                self.finish_one(conversation, again)
        self.t += 1
        self.void = False
        self._averaged.clear()

    def finish_one(self, conversation: Conversation, again: Callable[[], Any] | None) -> None:
        """The rest of the step for one conversation."""
        if self.elsewhere and again is None and not conversation.is_ready:
            raise AlgorithmError(
                f"algorithm {self.algorithm.name!r} takes its gradient elsewhere than at the parameters, and no "
                "forward of the model that was given to decentralize() came before this step; call that model, or "
                "give step() a closure"
            )
        self._copies.go_on(conversation)
        conversation.ready(self.t)
        conversation.finish(again)

    def begin(self) -> None:
        """Right after a step: what is sent before the next gradient goes out."""
        for conversation in self.conversations:
            if not conversation.begun:
                conversation.begin(self.t)

    # ---- between two steps

    def land(self) -> None:
        """Waits until nothing is under way; what was begun goes on from there."""
        for _, ticket in self._under_way.values():
            self.exchange.land(ticket)
        self._versions.clear()

    def restart(self) -> None:
        """Gives up what was begun: the next step starts from what the parameters hold by then."""
        for _, ticket in self._under_way.values():
            self.exchange.drop(ticket)
        self._under_way.clear()
        self._versions.clear()
        for conversation in self.conversations:
            conversation.forget()

    def reform(self, k: int) -> None:
        """The algorithm's memory of a bucket starts anew, among other workers than before."""
        self.points[k], self.states[k] = reformed(self.algorithm, self.points[k], self.states[k])

    def means(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The average over the workers of what they deploy, by parameter; the same on every process, to the bit.

        Parameters that are not exchanged any more are averaged as they are `named`.
        """
        found = {}
        for name in self.left:
            if name in named:
                row = named[name].detach().reshape(1, -1)
                mean = self.exchange.mean(self.t, row, there=not self.isolated, between=True)
                found[name] = mean.view(named[name].shape)
        for bucket, point, state in zip(self.buckets, self.points, self.states, strict=True):
            own = self.algorithm.deployed(point, state)
            mean = self.exchange.mean(self.t, own, there=not self.isolated, between=True)
            found |= {place.name: place.view(mean) for place in bucket.places}
        return found

    def cut_off(self) -> set[int]:
        """Which workers of those that answer are isolated; all processes ask together."""
        if self.isolation is None:
            return set()
        marks, whose = self.wire.rows(torch.tensor(self.isolated), what="who is isolated", step=self.t)
        return {q for q, isolated in zip(whose, marks.tolist(), strict=True) if isolated}

    def save(self) -> dict[str, Any]:
        """What it remembers, by the names of the model."""
        return state_of(self)

    def load(self, saved: Any) -> None:
        """Goes on from what was saved, however the parameters are laid out."""
        check_state(self, saved)
        self.restart()
        put_back(self, saved)
        self.t = saved["t"]
        for conversation in self.conversations:
            conversation.t = self.t

    # ---- conversation.Host

    def start(self, k: int, t: int) -> protocol.Step[Any]:
        """The recursion of bucket k for step t."""
        if isinstance(self.exchange, Surviving):
            self.exchange.starts(k, t)
        self._copies.begin(k, t)
        if self.isolation is not None:
            self.isolation.keep(k, self.points[k], overwritten=self.in_place)
        return self.algorithm.step(self.points[k], self.states[k], LoopLocal(self, k, t))

    def answer(self, k: int, t: int, request: protocol.Request) -> Any:
        """What a bucket asks for by itself."""
        if isinstance(request, protocol.Post):
            return self._post(k, t, request.value)
        if isinstance(request, protocol.Await):
            return self._take(k, request.ticket, request.share)
        if isinstance(request, protocol.Mix):
            return self._take(k, self._post(k, t, request.value), request.share)
        if isinstance(request, protocol.Mean):
            return self._mean(k, t, request.value)
        if isinstance(request, protocol.Note):
            self.notes[request.name] = request.value
            return None
        raise AlgorithmError(f"algorithm {self.algorithm.name!r} asked for {type(request).__name__}: not a request")

    def place(self, k: int, at: Tensor) -> None:
        """The parameters hold this point from now on."""
        if at is not self.buckets[k].flat and at is not self.points[k]:
            self.buckets[k].flat.copy_(at)

    def gradient(self, k: int) -> Any:
        """What the loop left in `.grad`."""
        if self.in_place:
            return GRADIENT
        return torch.zeros_like(self.buckets[k].flat) if self.stays(k) else self.buckets[k].gradient()

    def done(self, k: int, t: int, x: Tensor, state: Any) -> None:
        """The step of a bucket is over: the parameters hold what it deploys."""
        flat = self.buckets[k].flat
        if self.isolated or not self._sound(x, t, "parameters that are not finite"):
            return
        if state:
            own = flat.untyped_storage().data_ptr()
            state = type(state)(*(v.clone() if v.untyped_storage().data_ptr() == own else v for v in state))
        self.states[k] = state
        if not self.in_place:
            self.points[k] = x
            x = self.algorithm.deployed(x, self.states[k])
            self._copies.made(k)
        if x is not flat:
            flat.copy_(x)
        self.moved.discard(k)

    def _post(self, k: int, t: int, value: Tensor) -> Ticket:
        bucket = self.buckets[k]
        known = value is self.points[k] and k not in self.moved
        sound = self.isolated or known or self._sound(value, t, "a message that is not finite")
        if self.isolation is not None and (self.isolated or not sound):
            value = self.isolation.nothing(value)
        ticket = self.exchange.post(t, value)
        self._under_way[id(ticket)] = k, ticket
        if ticket.sent is bucket.flat and not ticket.flight.landed:
            self._versions[k] = bucket.version
        return ticket

    def _take(self, k: int, ticket: Ticket, share: float | Tensor) -> Tensor:
        bucket = self.buckets[k]
        if self.isolated:
            self.exchange.drop(ticket)
            self._under_way.pop(id(ticket), None)
            return self.points[k] if ticket.value.shape == bucket.flat.shape else torch.zeros_like(ticket.value)
        sent = self._versions.pop(k, None)
        if sent is not None and sent != bucket.version:
            raise AlgorithmError(changed_under_way(ticket.step))
        self._under_way.pop(id(ticket), None)
        return self.exchange.take(ticket, share, overwrite=self.in_place and ticket.value is bucket.flat)

    def _mean(self, k: int, t: int, value: Any) -> Any:
        if value is not GRADIENT:
            there = not self.isolated and self._sound(value, t, "a message that is not finite")
            return self.exchange.mean(t, value, overwrite=self.in_place, there=there)
        if not self.wire.alone:
            row, used = self.movement.gradient_row(k, void=self.stays(k))
            there = not self.isolated and self._sound(row, t, "a gradient that is not finite")
            self.movement.take_gradient(k, self.exchange.mean(t, row, overwrite=True, there=there), used)
            self._averaged.add(k)
        return GRADIENT

    def _sound(self, value: Tensor, t: int, what: str) -> bool:
        """Whether all numbers are finite; if not, this worker stops or is cut off before anybody has heard of them."""
        if self.on_nan is None or self.wire.alone or finite(value):
            return True
        said = f"worker {self.wire.rank} has {what} at step {t}; no other worker has received anything of it"
        if self.isolation is None:
            said += "; lower the learning rate, look at its data, or isolate such workers with on_nan='isolate'"
            raise AlgorithmError(self.wire.last_words(said, t))
        log.warning("%s; it is isolated from now on", said)
        self.isolation.cut_off(t, self.points)
        for bucket, point, state in zip(self.buckets, self.points, self.states, strict=True):
            if point is not bucket.flat:
                bucket.flat.copy_(self.algorithm.deployed(point, state))
        return False
