"""Where the time of a process goes: totals that are always kept, and spans for a trace when they are asked for.

| what | is |
|---|---|
| `wait` | this process stood still because a message had not come (or had not left) |
| `mix` | arithmetic on messages |
| `move` | the local optimizer |
| `step` | the whole of `step()`; what lies between two of them is the loop's own: forward, backward, data |
| `flight` | a message, from when it was posted to when it had come: it may lie under the loop's own work |

A trace is a file that chrome://tracing and Perfetto open: one row of work and one row of messages for every process.
How long a message was under way is only known to who waits for it, so in a trace a thread does: traces cost time.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

WORK, MESSAGES = 0, 1


class Timeline:
    """Totals in seconds by name, and spans where `traced`."""

    def __init__(self, *, traced: bool = False) -> None:
        self.traced = traced
        self.totals: dict[str, float] = defaultdict(float)
        self.counts: dict[str, int] = defaultdict(int)
        self.spans: list[dict[str, Any]] = []
        self._origin_ns = time.time_ns() - time.perf_counter_ns()
        self._queue: SimpleQueue[Callable[[], None] | None] | None = None

    def add(self, name: str, began: float, ended: float, *, lane: int = WORK, **about: Any) -> None:
        """A span of `time.perf_counter()` seconds."""
        self.totals[name] += ended - began
        self.counts[name] += 1
        if self.traced:
            at = (self._origin_ns + began * 1e9) / 1e3
            self.spans.append(
                {"name": name, "ph": "X", "ts": at, "dur": (ended - began) * 1e6, "tid": lane, "args": about}
            )

    def count(self, name: str, by: int) -> None:
        """Adds to a count: messages, bytes."""
        self.counts[name] += by

    def watch(self, landed: Callable[[], None], began: float, **about: Any) -> None:
        """In a trace: a thread waits for a message and notes when it had come."""
        if not self.traced:
            return
        if self._queue is None:
            self._queue = SimpleQueue()
            threading.Thread(target=_drain, args=(self._queue,), daemon=True).start()

        def wait() -> None:
            try:
                landed()
            except RuntimeError:
                return  # whoever needs the message will be told
            self.add("flight", began, time.perf_counter(), lane=MESSAGES, **about)

        self._queue.put(wait)

    def reset(self) -> None:
        """Forgets everything, so that what was warm-up does not count."""
        self.totals.clear()
        self.counts.clear()
        self.spans.clear()

    def summary(self) -> dict[str, float]:
        """The totals in seconds and the counts."""
        return {f"{k}_s": round(v, 6) for k, v in self.totals.items()} | {
            k: v for k, v in self.counts.items() if k not in self.totals
        }


def _drain(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while (task := queue.get()) is not None:
        task()


def write_trace(path: Path, spans: Mapping[int, Iterable[Mapping[str, Any]]]) -> None:
    """Writes the spans of all processes as one Chrome trace, whole or not at all."""
    events: list[dict[str, Any]] = []
    for process, own in sorted(spans.items()):
        events.append({"name": "process_name", "ph": "M", "pid": process, "args": {"name": f"process {process}"}})
        for lane, what in ((WORK, "work"), (MESSAGES, "messages")):
            events.append({"name": "thread_name", "ph": "M", "pid": process, "tid": lane, "args": {"name": what}})
        events += [{**span, "pid": process} for span in own]
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")
    os.replace(draft, path)
