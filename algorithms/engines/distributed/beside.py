"""Threads that carry messages beside the loop, and what becomes of them when the process ends."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable

LAST_BREATH = 2.0
"""Seconds that such a thread has when the process ends: another process may still want what it carries."""


def beside(work: Callable[[], None], shut: Callable[[], None]) -> None:
    """Does something in a thread of its own; `shut` makes it end from any other."""
    thread = threading.Thread(target=work, daemon=True)
    _RUNNING[thread] = shut
    thread.start()


_RUNNING: weakref.WeakKeyDictionary[threading.Thread, Callable[[], None]] = weakref.WeakKeyDictionary()


@atexit.register
def _end() -> None:
    """Lets them finish what can be finished. A thread inside of torch when the interpreter ends would abort it."""
    for thread, shut in list(_RUNNING.items()):
        if thread.is_alive():  # it is not in a fork of the process, which must leave the other's messages alone
            thread.join(LAST_BREATH)
            shut()
            thread.join(LAST_BREATH)
