"""Where the time of every process of a run went: `timing.json` beside the records, and a trace to look at.

| key | seconds in which a process |
|---|---|
| `compute_s` | took gradients and moved |
| `communicate_s` | handed messages over and did arithmetic on them |
| `wait_s` | stood still for a message, or for others in an operation of all |
| `data_s` | drew batches |
| `look_s` | looked (the first process), or waited for it while it did (the others) |
| `checkpoint_s` | saved |

A message is under way under the gradient, and only what is left of it then is waited for. How long it was under way is
known in a trace alone (`--trace`), which chrome://tracing and Perfetto open.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from dissensus.algorithms.engines.distributed.timeline import Timeline, write_trace
from dissensus.algorithms.engines.stacked import StackedEngine
from dissensus.experiments.processes import Processes
from dissensus.experiments.records import SCHEMA_VERSION, write_json

_PARTS = {
    "compute_s": ("gradient", "move"),
    "communicate_s": ("post", "mix"),
    "wait_s": ("wait",),
    "data_s": ("data",),
    "look_s": ("look",),
    "checkpoint_s": ("checkpoint",),
}


def write_timing(run: Path, processes: Processes, engine: StackedEngine, trace: Path | None = None) -> None:
    """Writes the times of all processes, and their trace if one is asked for; all of them call it together."""
    own = {
        "process": 0 if processes.wire is None else processes.wire.rank,
        "host": platform.node(),
        "device": str(processes.device),
        "workers": [engine.workers.start, engine.workers.stop - 1],
        **seconds(processes.timeline),
    }
    everybody = processes.gather(own, what="timing", step=engine.t)
    if processes.first:
        about = {"backend": processes.facts().get("backend"), "steps": engine.t, "processes": everybody}
        write_json(run / "timing.json", {"schema_version": SCHEMA_VERSION, **about})
    write_traces(processes, trace, engine.t)


def write_traces(processes: Processes, trace: Path | None, step: int = 0) -> None:
    """Writes the timeline of all processes, if it is asked for; all of them call it together."""
    if trace is None:
        return
    spans = processes.gather(list(processes.timeline.spans), what="trace", step=step)
    if processes.first:
        write_trace(trace, dict(enumerate(spans)))


def seconds(timeline: Timeline) -> dict[str, Any]:
    """The totals in the terms of the module, with the number of steps, messages and bytes sent."""
    totals, counts = timeline.totals, timeline.counts
    found: dict[str, Any] = {
        key: round(sum(totals.get(name, 0.0) for name in names), 6) for key, names in _PARTS.items()
    }
    found["step_s"] = round(totals.get("step", 0.0), 6)
    return found | {"messages": counts.get("messages", 0), "bytes": counts.get("bytes", 0)}
