"""The processes of the benchmark as seen by whoever starts them: on the loopback, or each on a host of a network.

They are started once for a setting and then wait for commands, which come through a pipe and so never over the network
that is measured. They end when told to, when whoever started them is gone, or when a message does not come in time.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing import forkserver
from typing import Any

import numpy as np

from dissensus.experiments.bench.distributed_models import Perceptron
from dissensus.experiments.bench.distributed_worker import AHEAD, Plan, serve
from dissensus.experiments.bench.network import Network
from dissensus.experiments.bench.workers import Workers


class Group(Workers):
    """So many processes, one a worker."""

    def __init__(self, size: int, net: Network | None = None) -> None:
        env = {} if net is None else net.env
        names = [""] * size if net is None else [net.name(i) for i in range(size)]
        super().__init__(_context(), serve, [(i, size, names[i], env) for i in range(size)])
        self.taken: dict[str, int] = {}
        """How many steps each contender has taken."""

    def build(self, case: Perceptron, names: Sequence[str], plan: Plan) -> None:
        """Sets these contenders up in every process, at their start."""
        self._ask("build", case, list(names), dict(plan))
        self.taken = dict.fromkeys(names, 0)

    def run(self, name: str, steps: int) -> tuple[float, float]:
        """Seconds a step of this contender by the clock and of the cores, means over the workers of so many steps."""
        clock, cores = np.mean(self._ask("run", name, steps), axis=0)
        self.taken[name] += AHEAD + steps
        return float(clock), float(cores)

    def take(self, names: Sequence[str], steps: int) -> dict[str, np.ndarray]:
        """Where the workers of each contender stand after so many steps, (n, d) each."""
        answers = self._ask("take", list(names), steps)
        self.taken.update({name: self.taken[name] + steps for name in names})
        return {name: np.stack([answer[k] for answer in answers]) for k, name in enumerate(names)}

    def _meet(self) -> None:
        """The first worker opens a store at any port that is free, and the others are told which."""
        first, *others = self._lines
        first.send(0)
        port = self._answers("start", [first])[0]
        for line in others:
            line.send(port)
        self._answers("start", others)
        self._answers("start")


def _context() -> Any:
    """Processes with nothing of this one in them; they fork from one server, which imports torch once for all."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([serve.__module__])
    before = os.environ.get("TORCH_CPP_LOG_LEVEL")
    os.environ["TORCH_CPP_LOG_LEVEL"] = before or "ERROR"  # in a namespace it warns that hosts have no names
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["TORCH_CPP_LOG_LEVEL"]
    return context
