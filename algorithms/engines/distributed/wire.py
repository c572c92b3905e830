"""Messages between the processes of one group, and errors that say who, with whom, at which step, at what.

A `Wire` wraps a `torch.distributed` process group of any backend. Messages are point to point: no communicator per
edge, no collective per exchange. Processes of one host have a `line` between them, others a `road`. What is under way
is a `Flight`, which keeps everything alive that the transport reads or writes until it has landed. Where the transport
knows tags (gloo) a message carries its step, so that a process that has skipped one is found out.

A wire can outlive its processes: under a guard (`surviving`) it goes on with those that are left. Processes keep
their numbers then, and `present` says who is there.
"""

from __future__ import annotations

import math
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from dissensus.algorithms.engines.distributed.flight import Flight, Refused
from dissensus.algorithms.engines.distributed.line import SHORT_BYTES
from dissensus.algorithms.engines.distributed.message import Left
from dissensus.algorithms.engines.distributed.peers import PeerError, Peers
from dissensus.algorithms.engines.distributed.road import RECEIVING, SENDING

T = TypeVar("T")
TAGS = 1 << 30
"""The tag of a message is its step, counted up to here; tags from here on are for other things."""


class Wire(Peers):
    """What processes say to each other. With one process nothing is said."""

    def post(
        self,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[tuple[int, Tensor | Left]],
        *,
        what: str,
        step: int,
        tag: int | None = None,
        wanted: bool = False,
    ) -> Flight:
        """Starts messages: `sends` and `receives` are (process, contiguous tensor). Every message needs its twin.

        What a process `leaves` may be read where it lies (`Left`). Where messages are `wanted`, what comes goes into an
        `inbox`, if there is one, in every process.
        """
        flight = Flight(what, step)
        if not sends and not receives:
            flight.landed = True
            return flight
        flight.held += [t for _, t in sends]
        flight.held += [t for _, t in receives]
        try:
            if self._coalesced:
                self._post_together(flight, sends, receives)
            else:
                self._post_each(flight, sends, receives, tag, wanted)
        except RuntimeError as error:
            raise self.lost(flight, (sends or receives)[0][0], SENDING, error) from error
        self.timeline.count("messages", len(sends))
        self.timeline.count("bytes", sum([t.nbytes for _, t in sends]))
        if self.timeline.traced:
            flight.watched = threading.Event()
            self.timeline.watch(lambda: self._watch(flight), time.perf_counter(), what=what, step=step)
        return flight

    def land(self, flight: Flight) -> None:
        """Waits until everything has come and everything has left."""
        if flight.landed:
            return
        began = time.perf_counter()
        if flight.watched is not None:
            flight.watched.wait()
            if flight.error is not None:
                raise flight.error
        if flight.watched is None or self._coalesced:  # NCCL makes the stream of the thread wait that asks
            self._land(flight)
        flight.landed = True
        flight.works.clear()
        flight.held.clear()
        self.timeline.add("wait", began, time.perf_counter(), what=flight.what, step=flight.step)

    def sum(self, value: Tensor, *, what: str, step: int) -> Tensor:
        """The sum over all processes, in place."""
        self.sums([value], what=what, step=step)
        return value

    def sums(self, values: Sequence[Tensor], *, what: str, step: int) -> int:
        """The sums of several tensors over the same processes, in place; returns how many processes these are."""
        if self.alone and self.guard is None:
            return 1
        began = time.perf_counter()

        def act() -> tuple[Sequence[Tensor], int]:
            totals = values if self.guard is None else [v.clone() for v in values]  # what breaks off may be anything
            for total in totals:
                self.group.allreduce([total], self._within(dist.AllreduceOptions())).wait()
            return totals, len(self.present)

        totals, count = self._together(act, lambda: (values, 1), (what, step, "summing with"))
        if totals is not values:
            for value, total in zip(values, totals, strict=True):
                value.copy_(total)
        self.timeline.add("wait", began, time.perf_counter(), what=what, step=step)
        return count

    def gather(self, value: Any, *, what: str, step: int = 0) -> list[Any]:
        """One picklable value of every process, in their order."""

        def act() -> list[Any]:
            own = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(self._device)
            sizes = [int(size) for size in self._all(torch.tensor([len(own)], device=self._device))]
            padded = torch.zeros(max(sizes), dtype=torch.uint8, device=self._device)
            padded[: len(own)] = own
            rows = zip(self._all(padded), sizes, strict=True)
            return [pickle.loads(row[:size].cpu().numpy().tobytes()) for row, size in rows]

        return self._together(act, lambda: [self._only(value, what, step)], (what, step, "gathering from"))

    def rows(self, value: Tensor, *, what: str, step: int = 0) -> tuple[Tensor, tuple[int, ...]]:
        """The tensors of all processes, stacked in their order, and whose they are."""
        whole = value.contiguous()
        sent = whole.to(self._device) if self._coalesced else whole  # NCCL knows no tensors of the CPU

        def act() -> tuple[Tensor, tuple[int, ...]]:
            return torch.stack(self._all(sent)).to(whole.device), self.present

        return self._together(act, lambda: (whole.unsqueeze(0), (self.rank,)), (what, step, "gathering from"))

    def broadcast(self, value: Tensor, source: int, *, what: str, step: int = 0) -> None:
        """Overwrites a tensor, however it lies in memory, by that of process `source`."""
        dense = value.contiguous()

        def act() -> None:
            options = self._within(dist.BroadcastOptions())
            options.rootRank = self._at[source]
            self.group.broadcast([dense], options).wait()

        self._together(act, lambda: self._only(None, what, step), (what, step, "receiving from"), source)
        if dense is not value:
            value.copy_(dense)

    def told(self, value: Any, source: int, *, what: str, step: int = 0) -> Any:
        """The picklable value of process `source`, in all of them."""
        own = bytearray(pickle.dumps(value)) if self.rank == source else bytearray()
        size = torch.tensor([len(own)], device=self._device)
        self.broadcast(size, source, what=what, step=step)
        data = torch.frombuffer(own or bytearray(int(size)), dtype=torch.uint8).to(self._device)
        self.broadcast(data, source, what=what, step=step)
        return value if self.rank == source else pickle.loads(data.cpu().numpy().tobytes())

    def operation(self) -> AbstractContextManager[None]:
        """Several things that all do together; when somebody is lost meanwhile, all of them are given up everywhere."""
        return nullcontext() if self.guard is None else self.guard.operation()

    def barrier(self) -> None:
        """Waits for everybody."""
        self.gather(None, what="barrier")

    @property
    def _device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device()) if self._coalesced else torch.device("cpu")

    def _all(self, value: Tensor) -> list[Tensor]:
        found = [torch.empty_like(value) for _ in self.present]
        of_torch: Any = dist.distributed_c10d
        self.group.allgather([found], [value], self._within(of_torch.AllgatherOptions())).wait()
        return found

    def _within(self, options: Any) -> Any:
        """Options of what all do together, with the time-out of this wire; NCCL knows that of the group only."""
        if self._limit is not None and not self._coalesced:
            options.timeout = self._limit
        return options

    def _together(
        self, act: Callable[[], T], alone: Callable[[], T], about: tuple[str, int, str], source: int | None = None
    ) -> T:
        """Does what all do together; alone if nobody else is there."""

        def told() -> T:
            if self.alone:
                return alone()
            try:
                return act()
            except RuntimeError as error:
                what, step, doing = about
                raise self.lost(Flight(what, step), source, doing, error) from error

        return told() if self.guard is None else self.guard.together(told, alone)

    def _only(self, value: T, what: str, step: int) -> T:
        if not self.alone:
            raise PeerError(f"{what} was given up at step {step}: the processes re-formed meanwhile", None, step)
        return value

    def delivers(self, peer: int, size: int, device: torch.device) -> bool:
        """Whether messages of so many bytes from that process are written by it to where they are wanted."""
        return self.hall is not None and self._near(peer, device) and not self._short(size)

    def leaves(self, peer: int, size: int, device: torch.device) -> bool:
        """Whether messages of so many bytes from that process are left where this one can read them: see `Left`."""
        return self._near(peer, device) and self._short(size)

    def inbox(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor to which others can deliver, for whoever asks to keep."""
        assert self.hall is not None
        return self.hall.inbox(shape, dtype)

    def is_inbox(self, value: Tensor) -> bool:
        """Whether a tensor is one."""
        return self.hall is not None and self.hall.at(value) is not None

    def _near(self, peer: int, device: torch.device) -> bool:
        return peer in self.lines and device.type == "cpu"

    def _short(self, size: int) -> bool:
        """Whether a message is left in a room; both ends answer alike. An empty one lies nowhere."""
        return not size or max(size, self.volume) < SHORT_BYTES

    def _receive(self, peer: int, into: Tensor | Left, tag: int) -> Any:
        """By the line, if it goes there."""
        if isinstance(into, Left):
            return self.lines[peer].receive(into, tag)
        if not self._near(peer, into.device):
            return None
        if self._short(into.nbytes):
            return self.lines[peer].receive(into, tag)
        at = None if self.hall is None else self.hall.at(into)
        return None if at is None else self.lines[peer].want(into, at, tag)

    def _send(self, peer: int, value: Tensor, tag: int, wanted: bool) -> Any:
        """By the line, if it goes there."""
        if not self._near(peer, value.device):
            return None
        if self._short(value.nbytes):
            return self.lines[peer].send(value, tag)
        return self.lines[peer].deliver(value, tag) if wanted else None

    def _land(self, flight: Flight) -> None:
        for work, peer, doing in flight.works:
            try:
                if self._limit is None or self._coalesced:
                    work.wait()
                else:
                    work.wait(self._limit)
            except RuntimeError as error:
                raise self.lost(flight, peer, doing, error) from error

    def _watch(self, flight: Flight) -> None:
        assert flight.watched is not None
        try:
            self._land(flight)
        except PeerError as error:
            flight.error = error
        flight.watched.set()

    def _post_each(
        self,
        flight: Flight,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[tuple[int, Any]],
        tag: int | None,
        wanted: bool,
    ) -> None:
        far: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        aside = tag is not None
        step = -math.inf if aside else flight.step if wanted else math.inf
        tag = flight.step % TAGS if tag is None else tag
        for peer, into in receives:
            if (work := self._receive(peer, into, tag)) is not None:
                flight.works.append((work, peer, RECEIVING))
            else:
                far.setdefault(peer, ([], []))[0].append(into)
        for peer, value in sends:
            if (work := self._send(peer, value, tag, wanted)) is not None:
                flight.works.append((work, peer, SENDING))
            else:
                far.setdefault(peer, ([], []))[1].append(value)
        for peer, (incoming, outgoing) in far.items():
            road = self.roads.to(self._at[peer], aside=aside)
            try:
                halves = road.carry(incoming, outgoing, step, tag)
            except RuntimeError as error:
                flight.works.append((Refused(error), peer, SENDING if outgoing else RECEIVING))
                continue
            flight.works += [(half, peer, half.doing) for half in halves]

    def _post_together(
        self, flight: Flight, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Any]]
    ) -> None:
        ops = [dist.P2POp(dist.irecv, into, self._global[peer], self.group) for peer, into in receives]
        ops += [dist.P2POp(dist.isend, value, self._global[peer], self.group) for peer, value in sends]
        peers = {peer for peer, _ in (*sends, *receives)}
        whom = next(iter(peers)) if len(peers) == 1 else None
        flight.works += [(work, whom, "exchanging with") for work in dist.batch_isend_irecv(ops)]
