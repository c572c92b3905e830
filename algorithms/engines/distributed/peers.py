"""The processes of one group: their numbers, the group of the transport, and what is done when one of them is lost.

Every survivor ends with an error that names the peer it lost, step and operation, and what failed first (`last_words`).
One that ends makes all others end at once, wherever they wait.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dissensus.algorithms.engines.distributed.flight import Flight
from dissensus.algorithms.engines.distributed.last_words import LAST_WORDS, LastWords, reason_of
from dissensus.algorithms.engines.distributed.letterbox import Letterbox, Place, own_address
from dissensus.algorithms.engines.distributed.line import Line
from dissensus.algorithms.engines.distributed.membership import CALLED
from dissensus.algorithms.engines.distributed.pace import stalls
from dissensus.algorithms.engines.distributed.road import Roads, break_off
from dissensus.algorithms.engines.distributed.same_host import Door, End, check_settings
from dissensus.algorithms.engines.distributed.shared_room import Hall
from dissensus.algorithms.engines.distributed.timeline import Timeline
from dissensus.algorithms.errors import AlgorithmError

if TYPE_CHECKING:
    from dissensus.algorithms.engines.distributed.entering import Again
    from dissensus.algorithms.engines.distributed.surviving import Surviving


WITHOUT_TIMEOUT = 1800.0
"""The time-out where none was given and the group has none: that of torch's own groups."""


class PeerError(AlgorithmError):
    """A process of the group died, hangs, or has left."""

    def __init__(self, said: str, peer: int | None, step: int) -> None:
        super().__init__(said)
        self.peer, self.step = peer, step


class Peers:
    """The processes that a wire connects."""

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        timeout: float | None = None,
        timeline: Timeline | None = None,
        device: torch.device | None = None,
        own: bool = False,
        again: Again | None = None,
    ) -> None:
        """Takes a group, all of whose processes make their wires together.

        What is sent lies on that `device`, if it is given: a group may have a backend for each. `own` makes a group
        beside it on the same processes, so that nobody else's messages interfere. A process that comes `again` is alone
        until it has joined the others.
        """
        self.timeline = timeline or Timeline()
        alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1)
        self.size = 1 if alone else dist.get_world_size(group)
        """How many processes there are, or were at the start."""
        self.rank = 0 if alone else dist.get_rank(group)
        """The number of this process; it stays, whoever leaves."""
        self.backend = "" if alone else backend_of(group, device)
        self.guard: Surviving | None = None
        self.box: Letterbox | None = None
        self.places: Mapping[int, Place] = {}
        self.words: LastWords | None = None
        self.lines: Mapping[int, Line] = {}
        """To the processes of this host, whom messages reach through memory."""
        self.hall: Hall | None = None
        """Where long ones are delivered."""
        self.volume = 0
        """Bytes of what is exchanged in a round, if it is known, the same in every process; it may be many messages."""
        self.in_pieces = again is not None and again.in_pieces
        """Whether long messages go in pieces between hosts: where TCP stalls at one of the processes."""
        self._interrupted: int | None = None
        """Whose last words were heard before anything failed here."""
        self._others: tuple[Any, Mapping[int, int]] = None, {}
        """The group that another one stands in for, and the places in it."""
        self._ends = False
        """Whether this process has found a loss by itself."""
        self._limit = None if timeout is None else timedelta(seconds=timeout)
        self._global = list(range(self.size)) if alone or group is None else dist.get_process_group_ranks(group)
        self._coalesced = not alone and self.backend != "gloo"
        if not alone:
            _let_gloo_finish()
            self.box = Letterbox(self.rank, *own_address())
        found: Any = None if alone else group or dist.group.WORLD
        self.patience = _patience(found, self.backend) if timeout is None else timeout
        """Seconds after which a peer that says nothing is given up."""
        if alone or again is not None:
            self.reform(None, [self.rank])
        else:
            if own:
                limit = timedelta(seconds=self.patience)
                found = dist.new_group(self._global, timeout=limit, use_local_synchronization=True)
            self.reform(found, range(self.size))
        if self.box is not None:
            self._open(self.box, again)

    def reform(self, group: Any, present: Sequence[int]) -> None:
        """Talks through another group from now on, whose members are these processes, in this order."""
        self.group: Any = group
        self.present = tuple(present)
        """The processes that are there, by number."""
        self._at = {number: place for place, number in enumerate(self.present)}
        self.roads = Roads(group, limit=self.patience, in_pieces=self.in_pieces)
        """The transport's own ways to them."""

    @contextmanager
    def among(self, group: Any, present: Sequence[int]) -> Iterator[None]:
        """Talks through another group meanwhile; from then on through the one before, unless all has been re-formed."""
        before = self.group, self.present, self._at, self.roads
        self._others = (self.group, self._at)
        self.reform(group, present)
        meanwhile = self.roads
        try:
            yield
        finally:
            if self.roads is meanwhile:
                self.group, self.present, self._at, self.roads = before
            self._others = None, {}

    @property
    def alone(self) -> bool:
        """Whether nobody else is there."""
        return len(self.present) == 1

    def hang_up(self) -> None:
        """Every message goes the transport's own way from now on; all processes do it at the same point."""
        for line in self.lines.values():
            line.shut()
        self.lines = {}

    def interrupt(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Ends whatever waits in the group of now, here and at the peers, from any thread; it is of no use then.

        And in the one that it stands in for (`among`). `wanted` is asked once it is clear which groups these are.
        """
        for line in self.lines.values():
            line.shut()
        groups = [(self.group, self._at), self._others]
        if self.backend == "gloo" and wanted():
            for group, at in groups:
                for place in (place for number, place in at.items() if number != self.rank):
                    break_off(group, place)

    def last_words(self, said: str, step: int = 0) -> str:
        """Tells the others why this process ends on its own account; never waits for long."""
        if self.words is not None:
            self.words.leave(step, self.rank, said)
        return said

    def lost(self, flight: Flight, peer: int | None, doing: str, error: Exception) -> PeerError:
        """The error for a message, or for what all do together, that did not come about."""
        if self.guard is not None and self.guard.membership.called:
            return PeerError(CALLED, None, flight.step)
        whom = f"{doing} process {peer}" if peer is not None else f"{doing} the others"
        reason = reason_of(str(error)) if self._interrupted is None else "the others have ended"
        said = f"process {self.rank} lost its peer at step {flight.step}, {flight.what}, {whom}: {reason}"
        if self.guard is not None or self.words is None:
            return PeerError(said, peer, flight.step)
        self._ends = True
        own = self.words.leave(flight.step, peer if self._interrupted is None else self._interrupted, said)
        first = self.words.first(own)
        told = own.said if first == own else f"{own.said}; what failed first: {first.said}"
        return PeerError(told, own.peer, flight.step)

    def _open(self, box: Letterbox, again: Again | None) -> None:
        """Learns where the boxes of the others are."""
        if again is not None:
            self.places, box.secret = {**again.places, self.rank: box.place}, again.secret
        else:
            door = Door(self.size) if self.backend == "gloo" else None
            told = self._told((box.place, box.secret, stalls(), door and door.name, door and door.refused))
            check_settings([refused for *_, refused in told])
            self.places, box.secret = {q: Place(*place) for q, (place, *_) in enumerate(told)}, told[0][1]
            self.in_pieces = any(stalling for _, _, stalling, *_ in told)
            self.reform(self.group, self.present)
            if door is not None:
                ends = door.lines(self.rank, box.secret, [name for *_, name, _ in told], self._told)
                self._draw(ends)
                self.hall = door.hall
        self.words = LastWords(box, self.places)
        box.on_letter = partial(_on_letter, weakref.ref(self))

    def _told(self, value: Any) -> list[Any]:
        """A value of every process, before there is anything to say who has failed."""
        told: list[Any] = [None] * self.size
        dist.all_gather_object(told, value, group=self.group)
        return told

    def _draw(self, ends: Mapping[int, End]) -> None:
        """Has lines to those processes from now on."""
        self.lines = {
            q: Line(end, group=self.group, place=self._at[q], limit=self.patience) for q, end in sorted(ends.items())
        }


def backend_of(group: dist.ProcessGroup | None, device: torch.device | None) -> str:
    """The backend by which tensors of a device travel in a group; those of the CPU, where several may be meant."""
    said = str(dist.get_backend(group))
    if device is None and said in ("gloo", "nccl"):
        return said
    device = device or torch.device("cpu")
    found: Any = group or dist.group.WORLD
    try:
        backend = str(found._get_backend(device).name())
    except RuntimeError:
        backend = ""
    if not backend or (backend == "gloo" and device.type != "cpu"):
        instead = (
            "init_process_group('gloo'), or move the model to its device before decentralize()"
            if device.type == "cpu"
            else "init_process_group('nccl'), or leave the model on the CPU"
        )
        raise AlgorithmError(
            f"the parameters are on {device.type}, from where the backend of this group ({said}) does not send: use "
            + instead
        )
    return backend


def _patience(group: Any, backend: str) -> float:
    """The time-out of a group in seconds, where the transport tells it."""
    with suppress(AttributeError, RuntimeError, TypeError, ValueError):
        device = torch.device("cpu" if backend == "gloo" else "cuda")
        return group._get_backend(device).options._timeout.total_seconds()
    return WITHOUT_TIMEOUT


@cache
def _let_gloo_finish() -> None:
    """A thread of gloo may hold tensors of the last sum; were Python gone before it lets go, torch would abort."""
    atexit.register(time.sleep, 0.02)


def _on_letter(wire: weakref.ref[Peers], letter: dict[str, Any]) -> None:
    """One that ends makes all end at once."""
    heard = wire()
    if letter["kind"] == LAST_WORDS and heard is not None and not heard._ends and heard._interrupted is None:
        heard._interrupted = letter["from"]
        # no daemon: one that is in the transport when the interpreter ends would abort the process
        threading.Thread(target=heard.interrupt).start()
