r"""The exchange of a run that outlives its processes: like `Exchange`, with others whenever somebody is lost or comes.

Who loses a peer calls all others away from what they wait for, and those that are left agree on a new group
(`membership`). The exchange in which that happens is given up by whoever is still in it: it keeps its own value, and so
it does until step $t^*$, the first that nobody had begun. From then on those that are left mix with each other, by the
rounds of the topology without those that are gone (`theory/survivors`), and the loop of each makes all its steps.

What holds then, and what does not:

- among those that are left every round is doubly stochastic, so that mixing keeps their mean from $t^*$ on; where one
  worker had taken a mixture that its neighbour gave up, their mean has jumped once, by no more than they disagreed;
- what an algorithm remembers of others speaks of a group that is no more: it starts anew at $t^*$ (`reformed`);
- what all processes do together (a mean of all, a checkpoint) is done by those that are left; whoever had it behind it
  already does not do it again, and the others then answer it alone (a mean is the own value) or give it up.

One that comes takes everything over from a neighbour in the topology, as it stands when $t^*$ begins. What the loops of
the others do together between that and their next step (a checkpoint after a step, an average) may belong to the turn
of the loop before $t^*$, which the one that comes does not make. So they do it without it, and it by itself, until its
first step is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.engines.distributed.entering import announce
from dissensus.algorithms.engines.distributed.exchange import Exchange, Ticket
from dissensus.algorithms.engines.distributed.flight import Flight
from dissensus.algorithms.engines.distributed.handing_over import Host, donor, hand_over, take_over
from dissensus.algorithms.engines.distributed.membership import CALLED, Membership
from dissensus.algorithms.engines.distributed.peers import PeerError
from dissensus.algorithms.engines.distributed.reconnecting import Reconnecting
from dissensus.algorithms.engines.distributed.rounds import Part, Rounds
from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.algorithms.errors import AlgorithmError
from dissensus.theory.survivors import among
from dissensus.theory.topology import Topology

T = TypeVar("T")
MANY = 1 << 32
"""More than processes ever do together in one step."""
log = logging.getLogger("dissensus")


class Surviving:
    """An exchange, and the guard of its wire."""

    def __init__(self, topology: Topology, wire: Wire, *, message_dtype: torch.dtype | None = None) -> None:
        if wire.backend != "gloo" or wire.box is None:
            raise AlgorithmError(
                f"on_failure='continue' needs several processes in a gloo group, not {wire.backend or 'one process'}; "
                "use on_failure='stop', with checkpoints to go on from"
            )
        self._whole, self.wire = topology, wire
        self._exchange = Exchange(topology, wire, message_dtype=message_dtype)
        self._timeout = wire.patience
        self._transport = Reconnecting(wire.box, timeout=self._timeout)
        self.membership = Membership(wire.box, wire.places, timeout=self._timeout, meets=self._transport.meets)
        self.membership.on_call = lambda: wire.interrupt(lambda: self.membership.called)
        self.host: Host | None = None
        self.begins = 0
        """The step from which on this group mixes."""
        self._reached, self._count, self._behind = 0, 0, 0
        self._pending: set[int] | None = None
        """The parts that have begun to go on with this group; None if all have."""
        self._full: tuple[Any, Sequence[int]] = wire.group, wire.present
        """The group with those that come, who are with the others from its first step on."""
        self._been: tuple[Any, Sequence[int]] = self._full
        """The group without them."""
        self._joined = -1
        """The step with which this process came again, if it did."""
        self._asked: int | None = None
        """The step whose mean the algorithm asks for; None where it is the loop that wants something."""
        self._inside: int | None = None
        self._counts = True
        """Whether what all do together is counted."""
        self._under_way: dict[int, Ticket] = {}
        self._newcomer = False
        wire.hang_up()  # who has read what is known to two processes only: others cannot go on from there
        wire.guard = self
        announce(wire.box, in_pieces=wire.in_pieces)

    @property
    def some_say_nothing(self) -> bool:
        """As in `Exchange`."""
        return self._exchange.some_say_nothing

    @some_say_nothing.setter
    def some_say_nothing(self, value: bool) -> None:
        self._exchange.some_say_nothing = value

    @property
    def first(self) -> int:
        """The lowest process that has been there before the last change, of those that are not isolated, if any."""
        been, isolated = self._been[1], self.membership.now.isolated
        return min((q for q in been if q not in isolated), default=min(been))

    # ---- what an exchange does

    def starts(self, k: int, t: int) -> None:
        """Part k begins step t; before anything of it is sent."""
        self._reached = max(self._reached, t)
        self._attend()
        if self._pending is None or t < self.begins or k in self._pending:
            return
        assert self.host is not None
        if not self._pending:
            try:
                with self._once():
                    self.host.align(self.first)
            except PeerError:
                return  # somebody else was lost: it is for the next group
            self.wire.reform(*self._full)
        self.host.reform(k)
        self._pending.add(k)
        if len(self._pending) == self.host.parts:
            self._pending = None
            members = self.membership.now
            for newcomer in members.newcomers:
                if self._donor(newcomer) == self.wire.rank:
                    with self._surviving():
                        hand_over(self.wire, self.host.give(self.begins, newcomer), newcomer, self.begins)
                if self.membership.now is not members:
                    return  # who comes now comes to the next group

    def post(self, t: int, value: Tensor, what: str = "exchange") -> Ticket:
        """As in `Exchange`."""
        self._reached = max(self._reached, t)
        self._attend()
        if t >= self.begins:
            with self._surviving():
                ticket = self._exchange.post(t, value, what)
                if not ticket.flight.landed:
                    self._under_way[id(ticket)] = ticket
                return ticket
        return _given_up(Ticket(t, value, value, [], Flight(what, t, landed=True), Part((), (), *_nobody(value))))

    def land(self, ticket: Ticket) -> None:
        """Waits until an exchange is done, or given up."""
        if not ticket.flight.landed:
            with self._surviving():
                self.wire.land(ticket.flight)
        self._under_way.pop(id(ticket), None)

    def take(self, ticket: Ticket, share: float | Tensor = 1.0, *, overwrite: bool = False) -> Tensor:
        """As in `Exchange`; the own value if the exchange was given up."""
        self.land(ticket)
        return self._exchange.take(ticket, share, overwrite=overwrite)

    def drop(self, ticket: Ticket) -> None:
        """As in `Exchange`."""
        self.land(ticket)
        self._exchange.drop(ticket)

    def mean(
        self, t: int, value: Tensor, *, overwrite: bool = False, there: bool = True, between: bool = False
    ) -> Tensor:
        """As in `Exchange`, over the processes that are left."""
        self._asked = None if between else t
        try:
            return self._exchange.mean(t, value, overwrite=overwrite, there=there)
        finally:
            self._asked = None

    # ---- the guard of the wire

    def together(self, act: Callable[[], T], alone: Callable[[], T]) -> T:
        """Does what all processes do together, with those that are left."""
        if self._by_itself:
            if self._inside is not None:
                raise PeerError("given up by a process that came again: it is not its turn", None, self._reached)
            with self.wire.among(None, [self.wire.rank]):
                return alone()
        index = self._next
        while True:
            with self._fitting():
                self._attend()
                if self._inside is not None and self._inside != self.membership.now.generation:
                    told = "given up, because the processes re-formed meanwhile; do it again"
                    raise PeerError(told, None, self._reached)
                if index < self._behind and self._counts:
                    answer = alone()
                    break
                try:
                    answer = act()
                    break
                except PeerError as error:
                    self._reform(error)
        if self._inside is None:
            self._count = index + 1
        return answer

    @contextmanager
    def operation(self) -> Iterator[None]:
        """Several things that all do together, and that are given up together when somebody is lost."""
        index, counts = self._next, not self._by_itself
        if counts:
            self._count = index
        self._inside = self.membership.now.generation if index >= self._behind else -1
        try:
            yield
        finally:
            self._inside = None
            self._count += counts

    @contextmanager
    def _once(self) -> Iterator[None]:
        """What a group does at its first step: given up with the group, and not counted: the next does it anew."""
        self._inside, self._counts = self.membership.now.generation, False
        try:
            yield
        finally:
            self._inside, self._counts = None, True

    @property
    def _next(self) -> int:
        """The number of what is done together next.

        It begins anew with what the loop does between two steps, and with what the algorithm does in a step: so it is
        known to one that comes.
        """
        begun = 2 * self._reached if self._asked is None else 2 * self._asked + 1
        return max(self._count, begun * MANY)

    @property
    def _by_itself(self) -> bool:
        """Whether this process has just come, and the others do such things without it."""
        return self._asked is None and self._reached <= self._joined

    def _fitting(self) -> AbstractContextManager[None]:
        """Among whom something is done together: without those that come, until they are there for it."""
        early = self._reached <= self.begins if self._asked is None else self._asked < self.begins
        if early and self.membership.now.newcomers and self.wire.present != self._been[1]:
            return self.wire.among(*self._been)
        return nullcontext()

    # ---- a new group

    def join(self, host: Host) -> None:
        """For a process that was started again: becomes a member, and takes over where the others are."""
        self._newcomer = True
        host.welcome(self.membership.visit())
        why: str | PeerError = f"process {self.wire.rank} was started again"
        while True:
            self._reform(why)
            try:
                given = take_over(self.wire, self._donor(self.wire.rank), self.begins)
                break
            except PeerError as error:
                why = error
        self._newcomer, self._pending = False, None
        self._reached = self._joined = self.begins
        self._count = (2 * self.begins + 1) * MANY
        host.receive(given)

    def serve(self, host: Host) -> None:
        """Whose exchange it is."""
        self.host, self.membership.facts = host, host.facts

    def _attend(self) -> None:
        if self.membership.called:
            self._reform(CALLED)

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except PeerError as error:
            self._reform(error)

    def _reform(self, why: str | PeerError) -> None:
        """Agrees with the others on a group, until one stands; the exchanges that are under way are given up."""
        before = self.wire.present
        self.wire.interrupt()
        for ticket in self._under_way.values():
            _given_up(ticket)
        self._under_way.clear()
        while True:
            count = self._count + (self._inside is not None and self._counts)
            lost = why.peer if isinstance(why, PeerError) else None
            cut_off = self.host is not None and self.host.isolated
            state: Any = {"lost": lost, "newcomer": self._newcomer, "isolated": cut_off}
            members = self.membership.agree(self._reached, count, str(why), **state)
            groups = self._transport.connected(members, self.membership)
            if groups is not None:
                break
            why = "the group that was agreed upon did not come together"
        self.membership.commit(members)
        self._full = groups.full, members.numbers
        self._been = groups.been, tuple(q for q in members.numbers if q not in members.newcomers)
        self.wire.reform(*(self._full if self._newcomer else self._been))
        self._exchange.rounds = Rounds(self._among(members.numbers), self.wire.rank, self.wire.size)
        self.begins, self._behind, self._pending = members.step, members.count, set()
        if members.leader == self.wire.rank:
            gone = [q for q in before if q not in members.numbers]
            log.warning("%s go on from step %d: %s", _named(members.numbers, gone), members.step, members.why)

    def _among(self, numbers: Sequence[int]) -> Topology:
        k = self._whole.size // self.wire.size
        return among(self._whole, [worker for q in numbers for worker in range(q * k, (q + 1) * k)])

    def _donor(self, newcomer: int) -> int:
        return donor(self._whole, self.wire.size, newcomer, self._been[1], self.membership.now.isolated)


def _given_up(ticket: Ticket) -> Ticket:
    """From now on the exchange answers with the own value; its room is not used again."""
    ticket.flight = Flight(ticket.flight.what, ticket.step, landed=True)
    ticket.part, ticket.inboxes, ticket.sent = Part((), (), *_nobody(ticket.value)), [], ticket.value
    return ticket


def _nobody(value: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The weights of a round in which everybody keeps what they have."""
    return np.eye(len(value)), np.zeros((len(value), 0))


def _named(there: Sequence[int], lost: Sequence[int]) -> str:
    without = f" without {', '.join(map(str, lost))}" if lost else ""
    return f"processes {', '.join(map(str, there))}{without}"
