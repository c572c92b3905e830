"""Messages between the processes of one group, and errors that say who, with whom, at which step, at what.

A `Wire` wraps a `torch.distributed` process group of any backend. Messages are point to point: no communicator per
edge, no collective per exchange. Large ones are cut into chunks, receives are posted before sends, and what is under
way is a `Flight`, which keeps everything alive that the transport reads or writes until it has landed.

What can go wrong here: a process that died, hangs, or left. The transport notices at the neighbours only, and names
nobody. So whoever notices first leaves *last words* in the store of the group, and every later error quotes them: all
survivors name the first failure, not the one that it caused at their side. A process that stops on its own account (a
number that is not finite) leaves its last words before it goes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dissensus.algorithms.engines.distributed.timeline import Timeline
from dissensus.algorithms.errors import AlgorithmError

CHUNK_BYTES = 4 << 20
"""A larger message travels in pieces of this size."""
STORE_SECONDS = 2.0
"""How long a survivor listens for last words: the store may have died with its host."""


class PeerError(AlgorithmError):
    """A process of the group died, hangs, or has left."""

    def __init__(self, said: str, peer: int | None, step: int) -> None:
        super().__init__(said)
        self.peer, self.step = peer, step


@dataclass
class Flight:
    """Messages under way between this process and its peers."""

    what: str
    """The operation, for an error: "exchange"."""
    step: int
    works: list[tuple[Any, int | None, str]] = field(default_factory=list)
    """(work, peer, what this process does: "receives from", "sends to")."""
    held: list[Tensor] = field(default_factory=list)
    landed: bool = False


class Wire:
    """What processes say to each other. With one process nothing is said."""

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        timeout: float | None = None,
        timeline: Timeline | None = None,
        own: bool = False,
    ) -> None:
        """Takes a group; `own` makes one beside it on the same processes, so that nobody else's messages interfere."""
        self.timeline = timeline or Timeline()
        self.alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1)
        self.size = 1 if self.alone else dist.get_world_size(group)
        self.rank = 0 if self.alone else dist.get_rank(group)
        self.backend = "" if self.alone else dist.get_backend(group)
        self._limit = None if timeout is None else timedelta(seconds=timeout)
        self._ranks = list(range(self.size)) if self.alone or group is None else dist.get_process_group_ranks(group)
        if own and not self.alone:
            group = dist.new_group(self._ranks, timeout=self._limit, use_local_synchronization=True)
        self.group = group
        self._coalesced = not self.alone and self.backend != "gloo"

    def post(
        self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]], *, what: str, step: int
    ) -> Flight:
        """Starts messages: `sends` and `receives` are (process, contiguous tensor). Every message needs its twin."""
        flight = Flight(what, step, held=[t for _, t in (*sends, *receives)])
        if not flight.held:
            flight.landed = True
            return flight
        try:
            if self._coalesced:
                self._post_together(flight, sends, receives)
            else:
                for peer, into in receives:
                    for piece in _pieces(into):
                        work = dist.irecv(piece, self._ranks[peer], group=self.group)
                        flight.works.append((work, peer, "receiving from"))
                for peer, value in sends:
                    for piece in _pieces(value):
                        work = dist.isend(piece, self._ranks[peer], group=self.group)
                        flight.works.append((work, peer, "sending to"))
        except RuntimeError as error:
            raise self._lost(flight, (sends or receives)[0][0], "sending to", error) from error
        self.timeline.count("messages", len(sends))
        self.timeline.count("bytes", sum(t.numel() * t.element_size() for _, t in sends))
        if self.timeline.traced:
            works = list(flight.works)
            self.timeline.watch(lambda: [w.wait() for w, _, _ in works], time.perf_counter(), what=what, step=step)  # type: ignore[func-returns-value]
        return flight

    def land(self, flight: Flight) -> None:
        """Waits until everything has come and everything has left."""
        if flight.landed:
            return
        began = time.perf_counter()
        for work, peer, doing in flight.works:
            try:
                if self._limit is None or self._coalesced:
                    work.wait()
                else:
                    work.wait(self._limit)
            except RuntimeError as error:
                raise self._lost(flight, peer, doing, error) from error
        flight.landed = True
        flight.works.clear()
        flight.held.clear()
        self.timeline.add("wait", began, time.perf_counter(), what=flight.what, step=flight.step)

    def sum(self, value: Tensor, *, what: str, step: int) -> Tensor:
        """The sum over all processes, in place."""
        if self.alone:
            return value
        began = time.perf_counter()
        try:
            dist.all_reduce(value, group=self.group)
        except RuntimeError as error:
            raise self._lost(Flight(what, step), None, "summing with", error) from error
        self.timeline.add("wait", began, time.perf_counter(), what=what, step=step)
        return value

    def gather(self, value: Any, *, what: str, step: int = 0) -> list[Any]:
        """One picklable value of every process, in their order."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(found, value, group=self.group)
        except RuntimeError as error:
            raise self._lost(Flight(what, step), None, "gathering from", error) from error
        return found

    def rows(self, value: Tensor, *, what: str, step: int = 0) -> Tensor:
        """The tensors of all processes, stacked in their order."""
        if self.alone:
            return value.unsqueeze(0)
        value = value.contiguous()
        found = [torch.empty_like(value) for _ in range(self.size)]
        try:
            dist.all_gather(found, value, group=self.group)
        except RuntimeError as error:
            raise self._lost(Flight(what, step), None, "gathering from", error) from error
        return torch.stack(found)

    def broadcast(self, value: Tensor, source: int, *, what: str, step: int = 0) -> None:
        """Overwrites a tensor by that of process `source`."""
        if self.alone:
            return
        try:
            dist.broadcast(value, self._ranks[source], group=self.group)
        except RuntimeError as error:
            raise self._lost(Flight(what, step), source, "receiving from", error) from error

    def barrier(self) -> None:
        """Waits for everybody."""
        if not self.alone:
            self.gather(None, what="barrier")

    def last_words(self, said: str) -> str:
        """Leaves a sentence for the others, or finds that of whoever failed first; never waits for long."""
        if self.alone:
            return said
        heard = [said]

        def speak() -> None:
            try:
                store = dist.distributed_c10d._get_default_store()
                heard[0] = store.compare_set("dissensus/last-words", "", said).decode() or said
            except (RuntimeError, ValueError):
                return  # the store died with the process that held it

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        thread.join(STORE_SECONDS)
        return heard[0]

    def _lost(self, flight: Flight, peer: int | None, doing: str, error: Exception) -> PeerError:
        whom = f"{doing} process {peer}" if peer is not None else f"{doing} the others"
        reason = _reason(str(error))
        said = f"process {self.rank} lost its peer at step {flight.step}, {flight.what}, {whom}: {reason}"
        first = self.last_words(said)
        return PeerError(said if first == said else f"{said}; what failed first: {first}", peer, flight.step)

    def _post_together(
        self, flight: Flight, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]
    ) -> None:
        ops = [dist.P2POp(dist.irecv, into, self._ranks[peer], self.group) for peer, into in receives]
        ops += [dist.P2POp(dist.isend, value, self._ranks[peer], self.group) for peer, value in sends]
        peers = {peer for peer, _ in (*sends, *receives)}
        whom = next(iter(peers)) if len(peers) == 1 else None
        flight.works += [(work, whom, "exchanging with") for work in dist.batch_isend_irecv(ops)]


def _pieces(value: Tensor) -> Sequence[Tensor]:
    each = max(1, CHUNK_BYTES // value.element_size())
    return value.view(-1).split(each) if value.numel() > each else (value,)


def _reason(said: str) -> str:
    """What the transport says, in a few words."""
    if "Connection closed" in said or "Connection reset" in said or "Broken pipe" in said:
        return "its connection is closed, so it has died or left"
    if "imed out" in said or "imeout" in said:
        return "nothing happened until the time-out, so it hangs or has gone another way"
    return said.strip().split("\n")[0][:200]
