"""Letters between processes, beside the transport: what must get through when the transport does not.

Every process has a box that a thread of its own keeps open, whatever the process itself is doing: computing, or waiting
for a message that will never come. A letter is a small dictionary, answered at once by what the receiver says of itself
at that moment. Nothing here waits for long, and what comes of a letter says something of the receiver:

| a letter is | so the receiver |
|---|---|
| `delivered` | lives |
| `refused`: nobody listens there any more | is gone, for certain |
| `unanswered` | is stopped, cut off or overloaded, or this process was: nobody can tell |
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import torch.distributed as dist

LONGEST = 1 << 20
"""Bytes of the longest letter."""
ANSWERED_WITHIN = 3.0
"""Seconds after which a letter counts as unanswered."""

Letter = Mapping[str, Any]
Outcome = Literal["delivered", "refused", "unanswered"]
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Place(NamedTuple):
    """Where a box is."""

    host: str
    port: int


class Posted(NamedTuple):
    """What became of a letter."""

    outcome: Outcome
    answer: dict[str, Any]
    """What the receiver says of itself; empty unless delivered."""


class Letterbox:
    """The box of this process: keeps the last letter of every kind from everybody."""

    def __init__(self, number: int, listen: str = "127.0.0.1", advertised: str | None = None) -> None:
        """`number` is who this process is among all; letters say so."""
        self.number = number
        self.secret = secrets.token_hex(16)
        """Letters without it are not read; all of a run share one."""
        self.answer: Callable[[dict[str, Any]], Letter] = _nothing
        """What a letter is answered with, in a thread of the box."""
        self.takes: Callable[[dict[str, Any]], bool] = _anything
        """Whether a letter is kept. Must not wait: the box stands still meanwhile."""
        self.on_letter: Callable[[dict[str, Any]], object] = _nothing
        """Called with every letter that is kept, once it can be read, in a thread of the box."""
        self.news = threading.Condition()
        self._kept: dict[tuple[str, int], dict[str, Any]] = {}
        slot = socket.create_server((listen, 0), backlog=256)
        self.place = Place(advertised or listen, slot.getsockname()[1])
        threading.Thread(target=_keep, args=(slot, weakref.WeakMethod(self._deliver)), daemon=True).start()
        self.close = weakref.finalize(self, _close, slot)

    def letter(self, kind: str, sender: int) -> dict[str, Any] | None:
        """The last letter of that kind from that process, if any."""
        return self._kept.get((kind, sender))

    def letters(self, kind: str) -> dict[int, dict[str, Any]]:
        """The last letters of that kind, by sender."""
        return {sender: letter for (what, sender), letter in list(self._kept.items()) if what == kind}

    def wait(self, seconds: float) -> None:
        """Until the next letter, but not longer than that."""
        with self.news:
            self.news.wait(seconds)

    def send(self, place: Place, letter: Letter, patience: float = ANSWERED_WITHIN) -> Posted:
        """Sends a letter and returns what became of it."""
        text = json.dumps({**letter, "from": self.number, "secret": self.secret}).encode() + b"\n"
        until = time.monotonic() + patience
        try:
            with socket.create_connection(place, timeout=patience) as connection:
                connection.settimeout(max(until - time.monotonic(), 0.01))
                connection.sendall(text)
                with connection.makefile("rb") as answers:
                    line = answers.readline(LONGEST)
        except ConnectionRefusedError:
            return Posted("refused", {})
        except OSError:
            return Posted("unanswered", {})
        if not line:  # one that died, or that waited for this process too long
            return Posted("unanswered", {})
        answer = _object(line)
        return Posted("refused", {}) if answer is None else Posted("delivered", answer)

    def send_all(
        self, places: Mapping[int, Place], letter: Letter, patience: float = ANSWERED_WITHIN
    ) -> dict[int, Posted]:
        """The same to many at once; takes about as long as one."""
        others = {number: place for number, place in places.items() if number != self.number}
        if not others:
            return {}
        with ThreadPoolExecutor(min(len(others), 64)) as threads:
            found = threads.map(lambda place: self.send(place, letter, patience), others.values())
            return dict(zip(others, found, strict=True))

    def _deliver(self, letter: dict[str, Any]) -> dict[str, Any] | None:
        """Takes a letter in; the answer, or None, which refuses one that is not of this run."""
        if not secrets.compare_digest(str(letter.pop("secret", "")), self.secret):
            return None
        kind, sender = letter.get("kind"), letter.get("from")
        if not isinstance(kind, str) or not isinstance(sender, int):
            return None
        with self.news:
            if taken := self.takes(letter):
                self._kept[kind, sender] = letter
                self.news.notify_all()
        if taken:
            self.on_letter(letter)
        return dict(self.answer(letter))


def _nothing(letter: dict[str, Any]) -> Letter:
    del letter
    return {}


def _anything(letter: dict[str, Any]) -> bool:
    del letter
    return True


def own_address() -> tuple[str, str]:
    """Where to listen, and the name by which other machines of the run reach this one.

    The way to the store's host decides: whoever comes from loopback is on the host itself, under the name all know.
    """
    master = os.environ.get("MASTER_ADDR") or _store_host()
    if master in LOOPBACK:
        return "127.0.0.1", "127.0.0.1"
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master or "192.0.2.1", 9))  # sends nothing: it only finds the way
        own = probe.getsockname()[0]
        if not own.startswith("127."):
            return "", own
        return ("", master) if master else (own, own)
    return "127.0.0.1", "127.0.0.1"


def alive(posted: Mapping[int, Posted]) -> Iterable[int]:
    """Who has answered."""
    return (number for number, one in posted.items() if one.outcome == "delivered")


def _store_host() -> str | None:
    store: Any = dist.distributed_c10d._get_default_store() if dist.is_initialized() else None
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None)


def _keep(slot: socket.socket, deliver: weakref.WeakMethod[Any]) -> None:
    """Takes letters in until the slot is closed, each in a thread of its own: a sender may die halfway through one."""
    while True:
        try:
            connection, _ = slot.accept()
        except OSError:
            return
        threading.Thread(target=_read, args=(connection, deliver), daemon=True).start()


def _read(connection: socket.socket, deliver: weakref.WeakMethod[Any]) -> None:
    with connection, suppress(OSError, ValueError):
        connection.settimeout(ANSWERED_WITHIN)
        with connection.makefile("rb") as letters:
            letter = _object(letters.readline(LONGEST))
        take_in = deliver()
        answer = take_in(letter) if take_in is not None and letter is not None else None
        connection.sendall(json.dumps(answer).encode() + b"\n")


def _object(line: bytes) -> dict[str, Any] | None:
    """What a letter or an answer says; None for what is neither."""
    with suppress(ValueError):
        said = json.loads(line)
        return said if isinstance(said, dict) else None
    return None


def _close(slot: socket.socket) -> None:
    with suppress(OSError):
        slot.shutdown(socket.SHUT_RDWR)  # who waits for a letter stops waiting
    slot.close()
