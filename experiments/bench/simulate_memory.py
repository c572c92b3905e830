r"""How much memory a step of many workers takes, in units of n d numbers, measured in a process of its own, two ways.

*resident*: by how much the largest resident size of the process exceeds what it was before the engine existed; this
sees everything, also what the allocator holds back. *allocated*: the largest sum of tensors alive at once, from the
allocations that torch's profiler records; this sees nothing but tensors. Both contain the engine's own points.

Activations are stated separately and not by us: they are what an ordinary module allocates at its peak, forward and
backward, on the samples of one chunk of workers, beside its parameters and their gradients.
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dissensus.experiments.bench.simulate_agreement import Ours, agreement
from dissensus.experiments.bench.simulate_models import CASES, Case, starting_points
from dissensus.experiments.bench.simulate_rivals import OPTIMIZERS, PythonLoop
from dissensus.theory.registry import topology

UNITS = 4.0
"""n d numbers that a step of plain SGD may take, points included, beside the activations of one chunk."""

STEPS = 3
TIME_OUT = 120.0
"""Seconds after which the process is given up."""


def memory(name: str, workers: int, chunk: int | None, optimizer: str = "sgd") -> dict[str, Any]:
    """One row, from a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "dissensus.experiments.bench.simulate_memory"]
    arguments = [name, str(workers), str(chunk or 0), optimizer]
    failed = f"the memory of {name!r} with {workers} workers could not be measured"
    try:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=TIME_OUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{failed} within {TIME_OUT:g} seconds") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
        raise RuntimeError(f"{failed}: {last}")
    found = json.loads(done.stdout.splitlines()[-1])
    unit, activations = found["bytes_of_n_d"], found["activation_bytes"]
    own = {kind: (found[f"{kind}_bytes"] - activations) / unit for kind in ("resident", "allocated")}
    limited = optimizer == "sgd"
    return {
        "part": "memory",
        "case": name,
        "kind": CASES[name].kind,
        "n": workers,
        "b": CASES[name].batch,
        "optimizer": optimizer,
        "chunk": chunk,
        **found,
        "units": {kind: found[f"{kind}_bytes"] / unit for kind in ("resident", "allocated")},
        "units_of_activations": activations / unit,
        "units_without_activations": own,
        "limit": f"{UNITS:g} n d beside activations" if limited else None,
        "met": all(value <= UNITS for value in own.values()) if limited else None,
        **_agreement(CASES[name], optimizer, chunk),
    }


def _agreement(case: Case, optimizer: str, chunk: int | None, workers: int = 4) -> dict[str, Any]:
    """Whether a few workers, in chunks if there are any, come to the points of the Python loop."""
    batch, start, factory = case.samples(workers), starting_points(case, workers), OPTIMIZERS[optimizer]
    ours = Ours(case, workers, factory, batch, start=start, gradients="vmap", chunk=None if chunk is None else 2)
    loop = PythonLoop(case, topology("ring", workers), factory, batch, start)
    return agreement(loop, {"ours": ours}, start)


def measure(case: Case, workers: int, chunk: int | None, optimizer: str) -> dict[str, Any]:
    """What a fresh process finds out about itself."""
    torch.set_num_threads(1)
    factory = OPTIMIZERS[optimizer]
    Ours(case, 4, factory, case.samples(4), chunk=2, gradients="vmap").step()  # libraries make room at their first use
    batch = case.samples(workers)
    gc.collect()
    before = resident()
    reset_peak()
    ours = Ours(case, workers, factory, batch, chunk=chunk, gradients="vmap")
    for _ in range(STEPS):
        ours.step()
    peak, d, after = peak_resident(), ours.d, resident()
    del ours

    def all_of_it() -> None:
        again = Ours(case, workers, factory, batch, chunk=chunk, gradients="vmap")
        for _ in range(STEPS):
            again.step()

    return {
        "d": d,
        "bytes_of_n_d": 4 * workers * d,
        "resident_bytes": peak - before,
        "resident_between_steps_bytes": after - before,
        "allocated_bytes": allocated(all_of_it),
        "activation_bytes": activations(case, min(chunk or workers, workers)),
    }


def activations(case: Case, workers: int) -> int:
    """The peak of an ordinary forward and backward pass on the samples of so many workers, gradients being there."""
    model, batch = case.model(), tuple(leaf.flatten(0, 1) for leaf in case.samples(workers))

    def once() -> None:
        case.loss(model, batch).backward()

    once()
    return allocated(once)


def allocated(run: Callable[[], Any]) -> int:
    """The largest sum of tensors that are alive at once while it runs, in bytes, beside those there were before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    now = peak = 0
    recorded: Any = profile.profiler
    events = [e for e in recorded.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def resident() -> int:
    """The resident size of this process in bytes; where the system does not tell, its largest so far."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else peak_resident()


def reset_peak() -> None:
    """Forgets the largest resident size so far, where the system can."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")


def peak_resident() -> int:
    """The largest resident size of this process in bytes.

    On Linux `ru_maxrss` is inherited by a process from the one that started it, so the kernel's own mark is read.
    """
    mark = of_the_kernel("status", "VmHWM")
    if mark is not None:
        return mark
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes if sys.platform == "darwin" else 1024 * kilobytes


def of_the_kernel(file: str, name: str) -> int | None:
    """What a file of `/proc/self` says under this name, in bytes; None if it says nothing."""
    path = Path("/proc/self", file)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)


if __name__ == "__main__":
    _name, _workers, _chunk, _optimizer = sys.argv[1:]
    _found = measure(CASES[_name], int(_workers), int(_chunk) or None, _optimizer)
    sys.stdout.write(json.dumps(_found) + "\n")
