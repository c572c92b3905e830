"""Ctrl-C waits for the end of the step, so that nothing is torn in the middle; a second one does not wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Interrupts:
    """Whether Ctrl-C was pressed."""

    pressed: bool = False

    def check(self) -> None:
        """Ends the run if it was. To be called between steps."""
        if self.pressed:
            raise KeyboardInterrupt

    def note(self, number: int, frame: Any) -> None:
        """Takes note of a first one; a second one ends the run at once."""
        if self.pressed:
            signal.default_int_handler(number, frame)
        self.pressed = True


@contextmanager
def between_steps() -> Iterator[Interrupts]:
    """Hands out what to check between steps.

    In a thread beside the main one, and where Ctrl-C is ignored or not Python's own, everything stays as it is.
    """
    found = Interrupts()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield found
        return
    signal.signal(signal.SIGINT, found.note)
    try:
        yield found
        found.check()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
