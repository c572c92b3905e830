"""Which processes of a group are on one host and can have lines between them, found out by trying.

Every process opens a door: a Unix socket by a name that the kernel keeps for as long as the process lives, and that
nobody can reach from another host, another container or another network namespace. It knocks at the doors of the
processes with lower numbers and hands in the room where it wants its messages, and its hall; those hand back theirs.
What has worked is then compared, so that both ends of a pair use their line or neither does.

`DISSENSUS_SAME_HOST=gloo` in the environment of any process keeps that process to the transport's own way.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from dissensus.algorithms.engines.distributed.shared_room import HALL_BYTES, ROOM_BYTES, Hall, Room, new_file
from dissensus.algorithms.errors import AlgorithmError
from dissensus.theory.errors import nearest

VARIABLE, WAYS = "DISSENSUS_SAME_HOST", ("memory", "gloo")
PATIENCE = 30.0
"""Seconds in which a process that lives does its part."""


class End(NamedTuple):
    """What a process needs for its end of a line."""

    bell: socket.socket
    here: Room
    """Where the messages of the other process come."""
    there: Room
    """Where those for the other process go."""
    theirs: Hall
    """Where the other process wants long ones."""


class Door:
    """Where processes of the same host can knock."""

    def __init__(self, size: int) -> None:
        """For a group of so many processes."""
        self._said = os.environ.get(VARIABLE, "memory")
        self._slot: socket.socket | None = None
        self.name: str | None = None
        """How others find it; None where this process can have no lines."""
        self.hall: Hall | None = None
        """Where this process wants long messages."""
        self._hall = -1
        if self._said != "memory" or sys.platform != "linux":
            return
        name = f"\0dissensus-{secrets.token_hex(16)}"
        with suppress(OSError):
            self._hall = new_file(HALL_BYTES)
            self.hall = Hall(self._hall)
            self._slot = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            weakref.finalize(self, self._slot.close)
            self._slot.settimeout(PATIENCE)
            self._slot.bind(name)
            self._slot.listen(size)
            self.name = name

    @property
    def refused(self) -> str | None:
        """What is wrong with the setting, if anything."""
        if self._said in WAYS:
            return None
        return f"{VARIABLE} must be 'memory' or 'gloo', got {self._said!r}{nearest(self._said, WAYS)}"

    def lines(
        self, rank: int, secret: str, names: Sequence[str | None], gather: Callable[[Any], list[Any]]
    ) -> dict[int, End]:
        """The ends of the lines of this process, by process. All processes of the group call it together."""
        made: dict[int, End] = {}
        if sum(name is not None for name in names) > 1:
            knocked = {q: line for q in range(rank) if (line := self._knock(rank, secret, names[q])) is not None}
            callers = [q for q, theirs in enumerate(gather(list(knocked))) if rank in theirs]
            made = {**self._let_in(secret, callers), **_let_in_by(knocked)}
            kept = gather(list(made))
            for q in [q for q in made if rank not in kept[q]]:
                made.pop(q).bell.close()
        if self._slot is not None:
            self._slot.close()
        if self._hall >= 0:
            os.close(self._hall)
        return made

    def _knock(self, rank: int, secret: str, name: str | None) -> tuple[socket.socket, Room] | None:
        """Goes to a door; None if it cannot be reached from here."""
        if name is None or self.name is None:
            return None
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bell.settimeout(PATIENCE)
            bell.connect(name)
            return bell, _hand_in(bell, f"{secret} {rank}", self._hall)
        except (OSError, ValueError):
            bell.close()
            return None

    def _let_in(self, secret: str, callers: Sequence[int]) -> dict[int, End]:
        """Opens to those who have knocked."""
        made: dict[int, End] = {}
        expected = {f"{secret} {q}": q for q in callers}
        while expected and self._slot is not None:
            try:
                bell, _ = self._slot.accept()
            except OSError:
                break
            try:
                bell.settimeout(PATIENCE)
                said, there, theirs = _take(bell)
                caller = expected.pop(said)
                made[caller] = End(bell, _hand_in(bell, "come in", self._hall), there, theirs)
            except (OSError, ValueError, KeyError):  # somebody else's knock, or a room that cannot be mapped
                bell.close()
        return made


def check_settings(refused: Sequence[str | None]) -> None:
    """Ends all processes with the same sentence if one of them has a setting that means nothing."""
    for process, said in enumerate(refused):
        if said is not None:
            raise AlgorithmError(f"process {process} could not start: {said}")


def _let_in_by(knocked: dict[int, tuple[socket.socket, Room]]) -> dict[int, End]:
    """Waits for those doors to be opened."""
    made = {}
    for q, (bell, here) in knocked.items():
        try:
            _, there, theirs = _take(bell)
            made[q] = End(bell, here, there, theirs)
        except (OSError, ValueError):
            bell.close()
    return made


def _hand_in(bell: socket.socket, said: str, hall: int) -> Room:
    """Gives the other process a new room to write to, and the descriptor of the hall."""
    descriptor = new_file(ROOM_BYTES)
    try:
        here = Room(descriptor)
        socket.send_fds(bell, [said.encode().ljust(64)], [descriptor, hall])
    finally:
        os.close(descriptor)
    return here


def _take(bell: socket.socket) -> tuple[str, Room, Hall]:
    """What the other process says, its room and its hall."""
    said, descriptors, _, _ = socket.recv_fds(bell, 64, 2)
    try:
        if len(descriptors) != 2:
            raise OSError("no room was handed over")
        return said.decode().rstrip(), Room(descriptors[0]), Hall(descriptors[1])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
