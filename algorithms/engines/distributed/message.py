"""A message on a line (`line`): what it is, where it is to lie or has come to lie, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

import torch
from torch import Tensor


class About(NamedTuple):
    """What a message is."""

    kind: int
    size: int
    tag: int

    @classmethod
    def of(cls, value: Tensor | Left, tag: int) -> About:
        """Of a tensor."""
        return cls(_kind(value.dtype), value.nbytes, tag)


@dataclass(eq=False)
class Left:
    """A message that stays where the sender has left it, until it is let go of."""

    shape: torch.Size
    dtype: torch.dtype
    value: Tensor | None = None
    """The message, once it has come."""
    let_go: Callable[[], None] = lambda: None

    @property
    def there(self) -> Tensor:
        """The message that has come."""
        assert self.value is not None
        return self.value

    @property
    def nbytes(self) -> int:
        """How long it is."""
        return self.shape.numel() * self.dtype.itemsize


@dataclass(eq=False)
class Awaited:
    """A message that is to come."""

    into: Tensor | Left
    about: About
    come: bool = False
    beside: Any = None
    """The transport's work, if it comes the transport's way."""
    error: str = ""


@dataclass(eq=False)
class Owed:
    """A message that is to be delivered."""

    value: Tensor
    about: About
    gone: bool = False
    error: str = ""


def _kind(dtype: torch.dtype) -> int:
    found = _KINDS.get(dtype)
    if found is None:
        found = _KINDS[dtype] = crc32(str(dtype).encode()) >> 1
    return found


_KINDS: dict[torch.dtype, int] = {}


def unlike(due: About, found: About, whose: str = "it sent") -> str:
    """In which way a message is not the one that is due; nothing if it is."""
    if found == due:
        return ""
    if found.tag != due.tag:
        return f"{whose} the message of step {found.tag} where that of step {due.tag} is due: it has gone another way"
    if found.size != due.size:
        return f"{whose} {found.size} bytes where {due.size} are due: its model or its topology is another"
    names = {number: str(dtype) for dtype, number in _KINDS.items()}
    sent, wanted = (names.get(about.kind, "another dtype") for about in (found, due))
    return f"{whose} numbers of {sent} where {wanted} is due"
