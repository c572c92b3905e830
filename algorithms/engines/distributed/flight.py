"""Messages under way: everything that the transport reads or writes, kept alive until it has landed."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any


class Refused:
    """A message that the transport did not take, which is told when it is waited for.

    The last exchange that is begun is of a step that never comes, and the process it is with may have ended by then.
    """

    def __init__(self, error: Exception) -> None:
        self._said = str(error)

    def wait(self, limit: Any = None) -> None:
        """Says so."""
        del limit
        raise RuntimeError(self._said)


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
    """Set once a thread has seen it land, or fail with `error`; a work of gloo must not be waited for twice."""
    error: Exception | None = None
