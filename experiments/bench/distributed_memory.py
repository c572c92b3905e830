r"""How much memory a worker needs at the peak of a step, in bytes per parameter, measured in two processes of its own.

Two ways, from the third step on, when everything a contender keeps is there:

*resident*: the largest resident size during the steps beside what the process had before there was a model. The mark of
the kernel (`VmHWM`) is reset before; malloc takes every block from 64 kB on from the system and gives it back at once
(`MALLOC_MMAP_THRESHOLD_`), so that what is freed does not count. This sees everything, also what gloo holds.
*allocated*: the largest sum of tensors alive at once, from the allocations that torch's profiler records; this sees
nothing but tensors.

Memory that both processes have mapped (a message that one writes where the other reads it) exists once: in both counts
each process has half of it, as the kernel reckons (`Pss`). Once used it stays, so that what is there after the steps is
its peak.

The batch is one sample, so activations are thousandths of the parameters.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from dissensus.algorithms.engines.distributed.shared_room import HALL_BYTES, ROOM_BYTES
from dissensus.experiments.bench.distributed_contenders import CONTENDERS, Contender, Post, missing
from dissensus.experiments.bench.distributed_models import MODELS, Perceptron
from dissensus.experiments.bench.simulate_memory import of_the_kernel, peak_resident, reset_peak, resident

LIMITS = {("ours", "sgd"): 12.5, ("ours, fused", "sgd"): 9.0, ("ours, fused", "adam"): 18.0}
"""Bytes per parameter at the peak of a step, parameters included."""

SIZE, WARM, STEPS = 2, 3, 3
TIME_OUT = 180.0
"""Seconds after which the processes are given up."""

MAPPED = {HALL_BYTES, ROOM_BYTES}
"""What torch records when shared memory is mapped: address space, of which what is used is counted apart."""

MARK = 777_777
"""Bytes of a tensor that is made to be found again among the recorded allocations."""


def memory_cases(scale: str, only: str = "", model: str = "50M") -> dict[str, tuple[str, str, str]]:
    """Contender, optimizer and model of every row, by name; small: two that a limit speaks of."""
    lacking = missing()
    others = [(who, o) for o in ("sgd", "adam") for who in ("local", "ours", "ddp", "decent-dp")]
    cases = list(dict.fromkeys([*LIMITS, *others])) if scale == "full" else list(LIMITS)[:2]
    named = {f"{model}, n={SIZE}, {o}, {who}": (who, o, model) for who, o in cases if who not in lacking}
    return {name: case for name, case in named.items() if only in name}


def memory(who: str, optimizer: str, model: str) -> dict[str, Any]:
    """One row, the larger of the two processes."""
    found = list(_found(who, optimizer, model))
    d = MODELS[model].d
    per = {kind: max(one[kind] for one in found) / d for kind in ("resident", "allocated", "at_rest")}
    bound = LIMITS.get((who, optimizer))
    return {
        "part": "memory",
        "setting": f"{model}, n={SIZE}, {optimizer}",
        "who": who,
        "n": SIZE,
        "model": model,
        "d": d,
        "optimizer": optimizer,
        "bytes_per_parameter": per,
        "limit": None if bound is None else f"{who}, {optimizer}: at most {bound:g} bytes per parameter",
        "ratio": None if bound is None else max(per["resident"], per["allocated"]) / bound,
        "met": None if bound is None else max(per["resident"], per["allocated"]) <= bound,
    }


def _found(who: str, optimizer: str, model: str) -> Iterator[dict[str, float]]:
    command = [sys.executable, "-W", "ignore", "-m", "dissensus.experiments.bench.distributed_memory"]
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    failed = f"the memory of {who!r} with {optimizer!r} could not be measured"
    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                [*command, who, optimizer, model, str(worker), f"{folder}/store"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=env,
            )
            for worker in range(SIZE)
        ]
        try:
            for worker, process in enumerate(running):
                said, complained = process.communicate(timeout=TIME_OUT)
                if process.returncode != 0:
                    last = (complained.strip().splitlines() or [f"it ended with status {process.returncode}"])[-1]
                    raise RuntimeError(f"{failed}: {last.removeprefix(f'[rank{worker}]: ')}")
                yield json.loads(said.splitlines()[-1])
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{failed} within {TIME_OUT:g} seconds") from error
        finally:
            for process in running:
                process.kill()
                process.communicate()


def measure(who: str, optimizer: str, case: Perceptron, worker: int) -> dict[str, float]:
    """What a fresh process finds out about itself."""
    post = Post(case, optimizer, "ring", worker, SIZE, group=None)
    small = replace(post, case=replace(case, widths=(8, 8, 4)))
    _steps(CONTENDERS[who](small), WARM)  # libraries make room at their first use
    gc.collect()
    (mapped, own), size = _shared(), resident()
    before = size - mapped + own
    contender = CONTENDERS[who](post)
    _steps(contender, WARM)
    gc.collect()
    rest = resident()
    reset_peak()
    _steps(contender, STEPS)
    peak = peak_resident()
    mapped, after = _shared()
    rest, peak = (found - mapped + after - before for found in (rest, peak))
    dist.barrier()
    del contender
    gc.collect()
    return {"resident": peak, "at_rest": rest, "allocated": _allocated(lambda: CONTENDERS[who](post)) + after - own}


def _shared() -> tuple[int, int]:
    """Bytes of shared memory that this process has mapped, and what of them counts as its own."""
    own = of_the_kernel("smaps_rollup", "Pss_Shmem")
    return (0, 0) if own is None else (of_the_kernel("status", "RssShmem") or 0, own)


def _allocated(make: Callable[[], Contender]) -> int:
    """The largest sum of tensors that are alive at once during the steps, in bytes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        contender = make()
        _steps(contender, WARM)
        torch.empty(MARK, dtype=torch.uint8)
        _steps(contender, STEPS)
    recorded: Any = profile.profiler
    events = [e for e in recorded.kineto_results.events() if e.name() == "[memory]" and abs(e.nbytes()) not in MAPPED]
    now = peak = 0
    marked = False
    for event in sorted(events, key=lambda e: e.start_ns()):
        marked = marked or event.nbytes() == MARK
        now += event.nbytes()
        peak = max(peak, now) if marked else now
    return peak


def _steps(contender: Contender, steps: int) -> None:
    for _ in range(steps):
        contender.step()
    dist.barrier()


def _main(who: str, optimizer: str, model: str, worker: int, store: str) -> None:
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=worker, world_size=SIZE, timeout=limit)
    found = measure(who, optimizer, replace(MODELS[model], batch=1), worker)
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # without the destructors of gloo, which are known to abort now and then


if __name__ == "__main__":
    _who, _optimizer, _model, _worker, _store = sys.argv[1:]
    _main(_who, _optimizer, _model, int(_worker), _store)
