"""A line between two processes of one host: messages lie in memory that both have mapped, a socket is the doorbell.

The transport's own way costs a small message two copies by the kernel and the waking of four threads. Here whoever
sends copies it into the room of the receiver and rings, and the receiver copies it out. Nobody else is woken.

The doorbell is a connected pair of Unix sockets. It orders the writes to the memory, it can be waited for with a time
limit, and it closes when the other process ends, however it ends. Two things are said over it, in records of one
length: that a message lies *there* (with its size, its kind of numbers and its tag), and that what lay there *was
read*. The latter travels with the next message the other way, or once enough of it has come together: it wakes nobody
by itself.

The messages of a line come in the order in which they were sent, and are held against what was expected in that order:
a process that has skipped a step is found out at once. Sending never waits. Where the room is full (the receiver is
several messages behind) the record says so, and the message itself goes the transport's own way.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from dissensus.algorithms.engines.distributed.shared_room import ROOM_BYTES, Room

LONGEST_BYTES = 32 << 20
"""Messages of so many bytes, or so many together in a round, go the transport's own way, which takes a copy less."""
CONFIRMED = 16
"""After so many messages the other process is told that they were read, at the latest."""
BESIDE = 1 << 29
"""Tags from here on are of messages for which there was no room, counted."""
RECORD = struct.Struct("=Iiqqq")
"""What is said, of a message of which kind, size and tag, and where it lies."""
MESSAGE, READ = 1, 2
ELSEWHERE = -1
"""Where a message is that did not find room."""


@dataclass(eq=False)
class Awaited:
    """A message that is to come."""

    into: Tensor
    tag: int
    come: bool = False
    beside: Any = None
    """The transport's work, if it comes the transport's way."""
    error: str = ""


class Receiving:
    """Waits for a message."""

    def __init__(self, line: Line, awaited: Awaited) -> None:
        self._line, self._awaited = line, awaited

    def wait(self, limit: timedelta | None = None) -> None:
        """Until it has come, or for so long."""
        awaited = self._awaited
        self._line.bring(awaited, limit)
        if awaited.error:
            raise RuntimeError(awaited.error)
        if awaited.beside is not None:
            awaited.beside.wait(*([] if limit is None else [limit]))


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

    def __init__(self, bell: socket.socket, here: Room, there: Room, *, group: Any, place: int, limit: float) -> None:
        """`here` is what the other process writes to, `there` what this one does.

        What finds no room goes over `group`, where the other process has this `place`; `limit` is how many seconds a
        message has to come in, unless another limit is given.
        """
        self.bell, self._here, self._there = bell, here, there
        self._group, self._place, self._limit = group, place, limit
        bell.setblocking(False)
        self._heard, self._unsaid = bytearray(), bytearray()
        self._expected: deque[Awaited] = deque()
        self._rung: deque[tuple[int, int, int, int]] = deque()
        self._sent, self._received = 0, 0
        self._unconfirmed = 0
        """Bytes that were read here, of which the other process does not know yet."""
        self._lock = threading.Lock()
        self._somebody_waits = self._flushing = False
        self._closed = ""
        weakref.finalize(self, bell.close)

    def send(self, value: Tensor, tag: int) -> Any:
        """Leaves a contiguous tensor for the other process, without waiting for anybody. A work of the transport."""
        number, self._sent = self._sent, self._sent + 1
        with self._lock:
            at = self._there.take(value.nbytes)
            if at is None and not self._somebody_waits:
                with suppress(RuntimeError):
                    self._listen()
                at = self._there.take(value.nbytes)
            if at is not None:
                self._there.write(at, value)
            self._say(MESSAGE, value.nbytes, _kind(value), tag, ELSEWHERE if at is None else at)
            self._flush()
        if at is None and not self._closed:
            return self._group.send([value], self._place, BESIDE + number % BESIDE)
        return Sent(self._closed)

    def receive(self, into: Tensor, tag: int) -> Receiving:
        """Expects the next message, in a contiguous tensor."""
        awaited = Awaited(into, tag)
        with self._lock:
            self._expected.append(awaited)
        return Receiving(self, awaited)

    def bring(self, awaited: Awaited, limit: timedelta | None = None) -> None:
        """Waits for a message, and takes in what comes before it."""
        until = time.monotonic() + (self._limit if limit is None else limit.total_seconds())
        while True:
            with self._lock:
                self._somebody_waits = False
                self._take_in()
                while not awaited.come and self._listen():
                    self._take_in()
                if awaited.come:
                    return
                self._somebody_waits = True
            if not self._ready(select.POLLIN, until - time.monotonic()):
                self._somebody_waits = False
                raise RuntimeError("timed out")

    def shut(self) -> None:
        """Ends whatever waits at this line, at both ends and from any thread."""
        with suppress(OSError):
            self.bell.shutdown(socket.SHUT_RDWR)

    def _take_in(self) -> None:
        """Copies out what has come and was expected."""
        while self._rung and self._expected:
            awaited, (size, kind, tag, at) = self._expected.popleft(), self._rung.popleft()
            number, self._received = self._received, self._received + 1
            into = awaited.into
            if (size, kind, tag) != (into.nbytes, _kind(into), awaited.tag):
                awaited.error = _unlike(awaited, size, kind, tag)
            elif at == ELSEWHERE:
                awaited.beside = self._group.recv([into], self._place, BESIDE + number % BESIDE)
            else:
                self._here.read(at, into)
                self._say(READ, size, kind, tag, at)
                self._unconfirmed += size
            awaited.come = True
        if len(self._unsaid) > CONFIRMED * RECORD.size or self._unconfirmed > ROOM_BYTES // 4:
            self._flush()

    def _listen(self) -> bool:
        """Whether something was said by the other process; raises when it has ended."""
        try:
            said = self.bell.recv(1 << 12)
        except BlockingIOError:
            return False
        except OSError as error:
            raise RuntimeError(f"Connection closed: {error}") from error
        if not said:
            raise RuntimeError("Connection closed by the other process")
        self._heard += said
        whole = len(self._heard) // RECORD.size * RECORD.size
        for what, kind, size, tag, at in RECORD.iter_unpack(bytes(self._heard[:whole])):
            if what == READ:
                self._there.give_back(at)
            else:
                self._rung.append((size, kind, tag, at))
        del self._heard[:whole]
        return True

    def _say(self, what: int, size: int, kind: int, tag: int, at: int) -> None:
        self._unsaid += RECORD.pack(what, kind, size, tag, at)

    def _flush(self) -> None:
        """Says what is unsaid, as far as the socket takes it."""
        if not self._unsaid or self._closed:
            return
        self._unconfirmed = 0
        try:
            del self._unsaid[: self.bell.send(self._unsaid, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._closed = f"Connection closed: {error}"
            return
        if self._unsaid and not self._flushing:
            self._flushing = True
            threading.Thread(target=self._flush_all, daemon=True).start()

    def _flush_all(self) -> None:
        """Says the rest when the other process listens again: whoever has something to say may have to compute."""
        while self._unsaid and not self._closed:
            self._ready(select.POLLOUT, self._limit)
            with self._lock:
                self._flush()
        self._flushing = False

    def _ready(self, event: int, seconds: float) -> bool:
        """Waits for the socket."""
        bell = select.poll()
        bell.register(self.bell, event)
        return seconds > 0 and bool(bell.poll(1000 * seconds))


def _kind(value: Tensor) -> int:
    found = _KINDS.get(value.dtype)
    if found is None:
        found = _KINDS[value.dtype] = crc32(str(value.dtype).encode()) >> 1
    return found


_KINDS: dict[torch.dtype, int] = {}


def _unlike(awaited: Awaited, size: int, kind: int, tag: int) -> str:
    """In which way a message is not the one that was expected."""
    into = awaited.into
    if tag != awaited.tag:
        return f"it sent the message of step {tag} where that of step {awaited.tag} is due: it has gone another way"
    if size != into.nbytes:
        return f"it sent {size} bytes where {into.nbytes} are due: its model or its topology is another"
    said = next((str(dtype) for dtype, number in _KINDS.items() if number == kind), "another dtype")
    return f"it sent numbers of {said} where {into.dtype} is due"
