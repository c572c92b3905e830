"""Memory that two processes of one host have mapped: the room of one for the messages of the other.

It is a file without a name, handed over as a descriptor, so that nothing of it is left wherever a process ends. Its
pages come into being when they are first written to. Who writes keeps the books: a message takes the lowest place that
is free, so that a short one is written where the last but one has been, which is in the cache.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

ROOM_BYTES = 64 << 20
"""How much may lie in a room, read or unread."""
MOST = 64
"""How many messages may lie in a room."""
ALIGNED = 64
"""Messages begin at multiples of so many bytes."""


class Room:
    """Mapped memory, as bytes, and who lies where in it."""

    def __init__(self, descriptor: int) -> None:
        """Maps the file behind a descriptor, which is not needed afterwards."""
        try:
            path = f"/proc/self/fd/{descriptor}"
            self._bytes = torch.from_file(path, shared=True, size=ROOM_BYTES, dtype=torch.uint8)
        except RuntimeError as error:
            raise OSError(f"shared memory cannot be mapped: {error}") from error
        self._taken: list[tuple[int, int]] = []

    def take(self, size: int) -> int | None:
        """A place for so many bytes, or None if there is none."""
        size = -(-size // ALIGNED) * ALIGNED
        at = 0
        for k, (begin, end) in enumerate([*self._taken, (ROOM_BYTES, ROOM_BYTES)][:MOST]):
            if begin - at >= size:
                self._taken.insert(k, (at, at + size))
                return at
            at = end
        return None

    def give_back(self, at: int) -> None:
        """The message there has been read."""
        self._taken = [place for place in self._taken if place[0] != at]

    def write(self, at: int, value: Tensor) -> None:
        """Copies a contiguous tensor there."""
        flat = value.view(-1).view(torch.uint8)
        self._bytes[at : at + flat.numel()].copy_(flat)

    def read(self, at: int, into: Tensor) -> None:
        """Copies what lies there into a contiguous tensor."""
        flat = into.view(-1).view(torch.uint8)
        flat.copy_(self._bytes[at : at + flat.numel()])


def new_room() -> tuple[int, Room]:
    """A room and the descriptor of its file."""
    descriptor = os.memfd_create("dissensus")
    try:
        os.ftruncate(descriptor, ROOM_BYTES)
        return descriptor, Room(descriptor)
    except OSError:
        os.close(descriptor)
        raise
