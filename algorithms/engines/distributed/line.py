"""A line between two processes of one host: messages lie in memory that both have mapped, a doorbell says where.

The transport's own way costs a message two copies by the kernel and the waking of four threads. Here whoever sends
copies it to where the receiver finds it, and rings (`doorbell`). There are two ways.

*Left in the room* (`send`, `receive`), for short messages: the sender finds a place in the room of the receiver, who
copies the message out, or works with it where it lies (`Left`), and says some time later that it was read: with the
next message the other way, or once enough of it has come together. Sending never waits, however far the receiver is
behind; where the room is full the record says so, and the message itself goes the transport's own way.

*Delivered* (`deliver`, `want`), for long ones: the receiver says where it wants the message, in its own hall, and the
sender writes it there, so that it is in memory once and is mixed where it lies. A sender who has not heard yet where to
leaves the message to a thread that does it as soon as it is known, and waits for that thread before the message is
overwritten.

The messages of a line come in the order in which they were sent, each way for itself, and are held against what was
expected in that order: a process that has skipped a step is found out at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dissensus.algorithms.engines.distributed.beside import beside
from dissensus.algorithms.engines.distributed.doorbell import Doorbell, Record
from dissensus.algorithms.engines.distributed.message import About, Awaited, Left, Owed, unlike
from dissensus.algorithms.engines.distributed.same_host import End
from dissensus.algorithms.engines.distributed.shared_room import ROOM_BYTES

SHORT_BYTES = 8 << 20
"""Messages of fewer bytes, or fewer together in a round, are left in the room; others are delivered."""
CONFIRMED = 16
"""After so many messages the other process is told that they were read, at the latest."""
BESIDE = 1 << 29
"""Tags from here on are of messages for which there was no room, counted."""
MESSAGE, READ, WANTED, DELIVERED = 1, 2, 3, 4
ELSEWHERE = -1
"""Where a message is that did not find room."""


class Receiving:
    """Waits for a message."""

    def __init__(self, line: Line, awaited: Awaited) -> None:
        self._line, self._awaited = line, awaited

    def wait(self, limit: timedelta | None = None) -> None:
        """Until it has come, or for so long."""
        awaited = self._awaited
        self._line.until(lambda: awaited.come, limit)
        if awaited.error:
            raise RuntimeError(awaited.error)
        if awaited.beside is not None:
            awaited.beside.wait(*([] if limit is None else [limit]))


class Delivering:
    """Waits until a message is where it is wanted: it may be overwritten then."""

    def __init__(self, line: Line, owed: Owed) -> None:
        self._line, self._owed = line, owed

    def wait(self, limit: timedelta | None = None) -> None:
        """Until it is there, or for so long."""
        owed = self._owed
        if not owed.gone:
            self._line.until(lambda: owed.gone, limit)
        if owed.error:
            raise RuntimeError(owed.error)


class Sent:
    """A message that lies where the receiver finds it, or that could not be brought there."""

    def __init__(self, error: str) -> None:
        self._error = error

    def wait(self, limit: timedelta | None = None) -> None:
        """There is nothing to wait for."""
        del limit
        if self._error:
            raise RuntimeError(self._error)


class Line:
    """This process's end of a line."""

    def __init__(self, end: End, *, group: Any, place: int, limit: float) -> None:
        """What finds no room goes over `group`, where the other process has this `place`.

        `limit` is how many seconds a message has to come in, unless another limit is given.
        """
        self._here, self._there, self._theirs = end.here, end.there, end.theirs
        self._group, self._place = group, place
        self.bell = Doorbell(end.bell, self._heard, limit)
        self.sent, self.left = 0, 0
        """How many messages have gone this way, and how many of them were left in the room."""
        self._received = 0
        self._expected: deque[Awaited] = deque()
        self._rung: deque[tuple[About, int]] = deque()
        self._wanted_here: deque[Awaited] = deque()
        self._wanted_there: deque[tuple[About, int]] = deque()
        self._owed: deque[Owed] = deque()
        self._paying = False
        self._unconfirmed = 0
        """Bytes that were read here, of which the other process does not know yet."""

    def send(self, value: Tensor, tag: int) -> Any:
        """Leaves a contiguous tensor for the other process, without waiting for anybody. A work of the transport."""
        about = About.of(value, tag)
        self.sent += 1
        number, self.left = self.left, self.left + 1
        with self.bell.lock:
            at = self._there.take(value.nbytes)
            if at is None:
                self._look()
                at = self._there.take(value.nbytes)
            if at is not None:
                self._there.write(at, value)
            self._say(MESSAGE, about, ELSEWHERE if at is None else at)
        if at is None and not self.bell.closed:
            return self._group.send([value], self._place, BESIDE + number % BESIDE)
        return Sent(self.bell.closed)

    def receive(self, into: Tensor | Left, tag: int) -> Receiving:
        """Expects the next message that is left here: in a contiguous tensor, or where it lies."""
        awaited = Awaited(into, About.of(into, tag))
        with self.bell.lock:
            self._expected.append(awaited)
        return Receiving(self, awaited)

    def deliver(self, value: Tensor, tag: int) -> Delivering:
        """Writes a contiguous tensor to where the other process wants it, once that is known."""
        owed = Owed(value, About.of(value, tag))
        self.sent += 1
        with self.bell.lock:
            self._owed.append(owed)
            self._look()
            self._pay()
            if not owed.gone and not self._paying:
                self._paying = True
                beside(self._pay_all, self.shut)
        return Delivering(self, owed)

    def want(self, into: Tensor, at: int, tag: int) -> Receiving:
        """Wants the next message that is delivered in a tensor that lies there in the own hall."""
        awaited = Awaited(into, About.of(into, tag))
        with self.bell.lock:
            self._wanted_here.append(awaited)
            self._say(WANTED, awaited.about, at)
        return Receiving(self, awaited)

    def until(self, happened: Callable[[], bool], limit: timedelta | None = None) -> None:
        """Waits for something, and meanwhile does what can be done."""
        self.bell.until(happened, self._act, limit)

    def shut(self) -> None:
        """Ends whatever waits at this line, at both ends and from any thread."""
        self.bell.shut()

    def _act(self) -> None:
        self._take_in()
        self._pay()

    def _heard(self, record: Record) -> None:
        what, kind, size, tag, at = record
        if what == READ:
            self._there.give_back(at)
        elif what == MESSAGE:
            self._rung.append((About(kind, size, tag), at))
        elif what == WANTED:
            self._wanted_there.append((About(kind, size, tag), at))
        else:
            awaited = self._wanted_here.popleft()
            awaited.error, awaited.come = unlike(awaited.about, About(kind, size, tag)), True

    def _take_in(self) -> None:
        """Takes what was left here and was expected."""
        while self._rung and self._expected:
            awaited, (about, at) = self._expected.popleft(), self._rung.popleft()
            number, self._received = self._received, self._received + 1
            awaited.error = unlike(awaited.about, about)
            if not awaited.error:
                self._take(awaited, about, at, number)
            awaited.come = True

    def _take(self, awaited: Awaited, about: About, at: int, number: int) -> None:
        into = awaited.into
        if at == ELSEWHERE:
            if isinstance(into, Left):
                into.value = torch.empty(into.shape, dtype=into.dtype)
                into = into.value
            awaited.beside = self._group.recv([into], self._place, BESIDE + number % BESIDE)
            return
        lies = self._here.what_lies(at, into.shape, into.dtype)
        if isinstance(into, Left):
            into.value, into.let_go = lies, partial(self._let_go, about, at)
        else:
            into.copy_(lies)
            self._read(about, at)

    def _let_go(self, about: About, at: int) -> None:
        with self.bell.lock:
            self._read(about, at)

    def _read(self, about: About, at: int) -> None:
        """The place of a message may be used again, once the other process is told."""
        self.bell.say(READ, *about, at)
        self._unconfirmed += about.size
        if self.bell.unsaid > CONFIRMED or self._unconfirmed > ROOM_BYTES // 4:
            self._flush()

    def _pay(self) -> None:
        """Writes what is owed to where it is wanted."""
        while self._owed and self._wanted_there:
            owed, (about, at) = self._owed.popleft(), self._wanted_there.popleft()
            owed.error = unlike(about, owed.about, "this process has")
            if not owed.error:
                self._theirs.write(at, owed.value)
            self._say(DELIVERED, owed.about, at)
            owed.error = owed.error or self.bell.closed
            owed.gone = True

    def _pay_all(self) -> None:
        """The same in a thread of its own, until nothing is owed: the loop goes on meanwhile."""
        try:
            while self._still_owes():
                self.until(lambda: not self._owed)
        except RuntimeError:  # whoever waits for the message is told
            self._paying = False

    def _still_owes(self) -> bool:
        with self.bell.lock:
            self._paying = bool(self._owed)
            return self._paying

    def _look(self) -> None:
        """Listens for a moment, unless another thread does."""
        if not self.bell.attended:
            with suppress(RuntimeError):
                self.bell.listen()

    def _say(self, what: int, about: About, at: int) -> None:
        self.bell.say(what, *about, at)
        self._flush()

    def _flush(self) -> None:
        self._unconfirmed = 0
        self.bell.flush()
