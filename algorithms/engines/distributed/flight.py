"""Messages under way: everything that the transport reads or writes, kept alive until it has landed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

CHUNK_BYTES = 4 << 20
"""A larger message travels in pieces of this size."""


@dataclass
class Flight:
    """Messages under way between this process and its peers."""

    what: str
    """The operation, for an error: "exchange"."""
    step: int
    works: list[tuple[Any, int | None, str]] = field(default_factory=list)
    """(work, peer, what this process does: "receiving from", "sending to")."""
    held: list[Any] = field(default_factory=list)
    landed: bool = False
    watched: threading.Event | None = None
    """Set once a thread has seen it land, or fail with `error`; a work must not be waited for twice."""
    error: Exception | None = None


def pieces(value: Tensor) -> Sequence[Tensor]:
    """A message as the transport takes it."""
    each = max(1, CHUNK_BYTES // value.element_size())
    return value.view(-1).split(each) if value.numel() > each else (value,)
