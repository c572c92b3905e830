r"""Against a process per worker: real processes on the same cores, exchanging messages with gloo.

Two training loops are tried in every process (see `simulate_worker`), and the faster is the rival. The processes are
started once and wait, without using the cores, while ours has its turn. They end when told to, when whoever started
them is gone, or when a message does not come in time.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus.experiments.bench.simulate_agreement import STEPS, TOLERANCE, Ours, difference
from dissensus.experiments.bench.simulate_models import CASES, starting_points
from dissensus.experiments.bench.simulate_rivals import OPTIMIZERS
from dissensus.experiments.bench.simulate_worker import LOOPS, serve
from dissensus.experiments.bench.timing import race, spread
from dissensus.experiments.bench.workers import Workers
from dissensus.experiments.threads import threads

AT_LEAST = 10.0
"""Worker-steps per second of ours, in units of the better rival."""


class Group(Workers):
    """The processes, which meet at a file."""

    patience = 120.0

    def __init__(self, size: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        super().__init__(_context(), serve, [(i, size, store) for i in range(size)])

    def build(self, case: str, optimizer: str) -> None:
        """Sets up every loop in every process, at its start."""
        self._ask("build", case, optimizer)

    def run(self, loop: str, steps: int) -> None:
        """So many steps of every worker."""
        self._ask("run", loop, steps)

    def x(self, loop: str) -> Tensor:
        """The points of the workers, (n, d)."""
        return torch.stack([torch.from_numpy(row) for row in self._ask("x", loop)])

    def _end(self) -> None:
        super()._end()
        self._folder.cleanup()


def against_processes(
    group: Group, name: str, optimizer: str, counts: list[int], seconds: float, least: int
) -> Iterator[dict[str, Any]]:
    """Rows: the processes and ours with so many threads inside an operation, in turn; one process is one worker."""
    case, factory, n = CASES[name], OPTIMIZERS[optimizer], group.size
    ours = {count: Ours(case, n, factory, case.samples(n), start=starting_points(case, n)) for count in counts}
    agreed = _agreement(group, name, optimizer, ours)

    def run(count: int, steps: int) -> None:
        with threads(count):
            for _ in range(steps):
                ours[count].step()

    runs: dict[str, Callable[[int], None]] = {f"processes, {k}": lambda steps, k=k: group.run(k, steps) for k in LOOPS}
    runs |= {f"ours, {count} threads": lambda steps, count=count: run(count, steps) for count in counts}
    share = seconds / (least * len(runs))
    steps = {who: _fitting(run, share) for who, run in runs.items()}
    blocks = race({who: lambda who=who: runs[who](steps[who]) for who in runs}, seconds, least=least, warm=0)
    laps = {who: spread([t / steps[who] for t in times]) for who, times in blocks.items()}
    for count in counts:
        mine = f"ours, {count} threads"
        of = {who: lap for who, lap in laps.items() if who == mine or who.startswith("processes")}
        rates, fastest = ({who: n / lap[kind] for who, lap in of.items()} for kind in ("median", "min"))
        ratio, ratio_of_fastest = (r[mine] / max(v for who, v in r.items() if who != mine) for r in (rates, fastest))
        yield {
            "part": "processes",
            "case": name,
            "kind": case.kind,
            "n": n,
            "b": case.batch,
            "d": ours[count].d,
            "optimizer": optimizer,
            "threads": count,
            "route": ours[count].engine.route,
            "seconds": {("ours" if who == mine else who): lap for who, lap in of.items()},
            "steps_in_a_block": {("ours" if who == mine else who): steps[who] for who in of},
            "worker_steps_per_second": {("ours" if who == mine else who): rate for who, rate in rates.items()},
            "times_more": ratio,
            "times_more_of_fastest": ratio_of_fastest,
            "limit": f"at least {AT_LEAST:g} x more",
            "met": ratio >= AT_LEAST,
            "met_by_fastest": ratio_of_fastest >= AT_LEAST,
            **agreed,
        }


def _agreement(group: Group, name: str, optimizer: str, ours: Mapping[int, Ours]) -> dict[str, Any]:
    """Builds both loops in the processes; whether they and ours come to the same points."""
    group.build(name, optimizer)
    start, found = starting_points(CASES[name], group.size), {}
    for count, contender in ours.items():
        with threads(count):
            for _ in range(STEPS):
                contender.step()
    expected = next(iter(ours.values())).x
    for loop in LOOPS:
        group.run(loop, STEPS)
        found[f"processes, {loop}"] = difference(group.x(loop), expected, start)
    found |= {f"ours, {count} threads": difference(o.x, expected, start) for count, o in ours.items()}
    return {"difference": found, "agree": all(value < TOLERANCE[torch.float32] for value in found.values())}


def _fitting(run: Callable[[int], None], seconds: float) -> int:
    """How many steps take about so long."""
    run(3)
    begin = time.perf_counter()
    run(10)
    return max(3, round(10 * seconds / (time.perf_counter() - begin)))


def _context() -> Any:
    """Processes with nothing of this one in them; they fork from one server, which imports torch once for all."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([serve.__module__])
    return context
