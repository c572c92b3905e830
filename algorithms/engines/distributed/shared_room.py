"""Memory that two processes of one host have mapped, in two shapes: a room for one pair, and a hall for all.

A *room* belongs to a pair and a direction. Who writes keeps the books: a message takes the lowest place that is free,
so that a short one is written where the last but one has been, which is in the cache.

A *hall* belongs to a process, whose neighbours all have it mapped. It says itself where in it a message is to go, so
that a long message is in memory once, whoever it comes from, and that memory is used again for the next.

Both are files without a name, handed over as descriptors, so that nothing of them is left wherever a process ends.
Their pages come into being when they are first written to.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

ROOM_BYTES = 64 << 20
"""How much may lie in a room, read or unread."""
MOST = 64
"""How many messages may lie in a room."""
HALL_BYTES = 64 << 30
"""How much address space a hall has."""
ALIGNED = 64
"""Messages begin at multiples of so many bytes."""


class Room:
    """Mapped memory, as bytes, and who lies where in it."""

    def __init__(self, descriptor: int) -> None:
        """Maps the file behind a descriptor, which is not needed afterwards."""
        self._bytes = _mapped(descriptor, ROOM_BYTES)
        self._taken: list[tuple[int, int]] = []
        self._places: dict[tuple[int, torch.Size, torch.dtype], Tensor] = {}
        """Tensors that lie there; the same few places are used again and again."""

    def take(self, size: int) -> int | None:
        """A place for so many bytes, or None if there is none."""
        size = -(-size // ALIGNED) * ALIGNED
        at = k = 0
        for begin, end in self._taken:
            if begin - at >= size:
                break
            at, k = end, k + 1
        if k == MOST or at + size > ROOM_BYTES:
            return None
        self._taken.insert(k, (at, at + size))
        return at

    def give_back(self, at: int) -> None:
        """The message there has been read."""
        self._taken = [place for place in self._taken if place[0] != at]

    def write(self, at: int, value: Tensor) -> None:
        """Copies a tensor there."""
        self.what_lies(at, value.shape, value.dtype).copy_(value)

    def what_lies(self, at: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """The contiguous tensor there."""
        found = self._places.get((at, shape, dtype))
        if found is None:
            if len(self._places) >= MOST:
                self._places.clear()
            found = self._places[at, shape, dtype] = _part(self._bytes, at, shape, dtype)
        return found


class Hall:
    """Mapped memory of a process, in which messages come to lie where it wants them."""

    def __init__(self, descriptor: int) -> None:
        """Maps the file behind a descriptor, which is not needed afterwards."""
        self._bytes = _mapped(descriptor, HALL_BYTES)
        self._begin, self._used = self._bytes.data_ptr(), 0

    def inbox(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A new contiguous tensor in the hall of this process, as long as the process lives."""
        size = prod(shape) * dtype.itemsize
        at, self._used = self._used, self._used + -(-size // ALIGNED) * ALIGNED
        if self._used > HALL_BYTES:
            raise RuntimeError(f"messages of more than {HALL_BYTES >> 30} GB: set DISSENSUS_SAME_HOST=gloo")
        return _part(self._bytes, at, torch.Size(shape), dtype)

    def at(self, value: Tensor) -> int | None:
        """Where a tensor lies in this hall, if it does."""
        at = value.data_ptr() - self._begin
        return at if 0 <= at < HALL_BYTES else None

    def write(self, at: int, value: Tensor) -> None:
        """Copies a tensor there."""
        _part(self._bytes, at, value.shape, value.dtype).copy_(value)


def new_file(size: int) -> int:
    """The descriptor of a new file of so many bytes; whoever asks closes it."""
    descriptor = os.memfd_create("dissensus")
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _mapped(descriptor: int, size: int) -> Tensor:
    try:
        return torch.from_file(f"/proc/self/fd/{descriptor}", shared=True, size=size, dtype=torch.uint8)
    except RuntimeError as error:
        raise OSError(f"shared memory cannot be mapped: {error}") from error


def _part(whole: Tensor, at: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A contiguous tensor that lies there."""
    return whole[at : at + shape.numel() * dtype.itemsize].view(dtype).view(shape)
