"""The doorbell of a line: a connected pair of Unix sockets over which two processes tell each other short things.

What is said are records of one length: what happened, of a message of which kind, size and tag, and where it lies. The
pair orders what is written to shared memory before and after, can be waited for with a time limit, and closes when the
other process ends, however it ends. Saying never waits: what the socket does not take at once is said by a thread.

Several threads of a process may wait at one bell. One of them listens for all, and wakes the others once it has heard
something: whoever reads from a socket takes it away from the rest.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

YIELDS = 30
"""So often others may compute before who waits goes to sleep: what is awaited is often just being computed, and to be
woken costs both sides more."""
RECORD = struct.Struct("=Iiqqq")
"""What happened, to a message of which kind, size and tag, and where it lies."""

Record = tuple[int, int, int, int, int]


class Doorbell:
    """This process's end. `heard` takes one record after the other, with the lock held."""

    def __init__(self, bell: socket.socket, heard: Callable[[Record], None], limit: float) -> None:
        self.socket, self._heard, self._limit = bell, heard, limit
        bell.setblocking(False)
        self.lock = threading.Lock()
        """Held by whoever says, listens, or touches what belongs to the line."""
        self.closed = ""
        """Why nothing can be said any more."""
        self.attended = False
        """Whether some thread listens, so that nobody else may."""
        self._turn = threading.Condition(self.lock)
        self._come, self._unsaid = b"", bytearray()
        self._flushing = False
        self._said = _poll(bell, select.POLLIN)
        weakref.finalize(self, bell.close)

    def say(self, what: int, kind: int, size: int, tag: int, at: int) -> None:
        """Puts a record to what is said at the next `flush`."""
        self._unsaid += RECORD.pack(what, kind, size, tag, at)

    @property
    def unsaid(self) -> int:
        """Records that were not said yet."""
        return len(self._unsaid) // RECORD.size

    def flush(self) -> None:
        """Says what is unsaid, as far as the socket takes it."""
        if not self._unsaid or self.closed:
            return
        try:
            del self._unsaid[: self.socket.send(self._unsaid, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass
        except OSError as error:
            self.closed = f"Connection closed: {error}"
            return
        if self._unsaid and not self._flushing:
            self._flushing = True
            threading.Thread(target=self._flush_all, daemon=True).start()

    def listen(self) -> bool:
        """Whether something was said by the other process; raises when it has ended."""
        try:
            said = self.socket.recv(1 << 12)
        except BlockingIOError:
            return False
        except OSError as error:
            raise RuntimeError(f"Connection closed: {error}") from error
        if not said:
            raise RuntimeError("Connection closed by the other process")
        if self._come or len(said) % RECORD.size:
            said = self._completed(said)
        for record in RECORD.iter_unpack(said):
            self._heard(record)
        return True

    def until(self, happened: Callable[[], bool], act: Callable[[], None], limit: timedelta | None = None) -> None:
        """Waits until something has happened; `act` does what can be done by now, each time something was heard."""
        end = time.monotonic() + (self._limit if limit is None else limit.total_seconds())
        with self.lock:
            while True:
                act()
                while not (happened() or self.attended) and self.listen():
                    act()
                if happened():
                    return
                left = end - time.monotonic()
                if left <= 0.0:
                    raise RuntimeError("timed out")
                if self.attended:
                    self._turn.wait(left)
                else:
                    self._attend(left)

    def shut(self) -> None:
        """Ends whatever waits at this bell, at both ends and from any thread."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _attend(self, seconds: float) -> None:
        """Waits for the socket without the lock, and wakes the others afterwards."""
        self.attended = True
        self.lock.release()
        try:
            for _ in range(YIELDS):
                os.sched_yield()
                if self._said.poll(0):
                    return
            self._said.poll(1000 * seconds)
        finally:
            self.lock.acquire()
            self.attended = False
            self._turn.notify_all()

    def _completed(self, said: bytes) -> bytes:
        """What had come of a record before and what comes now, up to the last record that is whole."""
        come = self._come + said
        length = len(come) // RECORD.size * RECORD.size
        self._come = come[length:]
        return come[:length]

    def _flush_all(self) -> None:
        """Says the rest when the other process listens again: whoever has something to say may have to compute."""
        writable = _poll(self.socket, select.POLLOUT)
        while self._unsaid and not self.closed:
            writable.poll(1000 * self._limit)
            with self.lock:
                self.flush()
        self._flushing = False


def _poll(of: socket.socket, event: int) -> select.poll:
    """What waits for a socket."""
    found = select.poll()
    found.register(of, event)
    return found
