"""How fast the simulation of n workers is: against the physical limit, other ways of doing it, and in memory.

Every comparison of times runs in one process, the contenders in turn (the processes of the rival wait meanwhile), after
a check that they compute the same. No time is asserted here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from dissensus.experiments.bench.simulate_limit import against_the_limit
from dissensus.experiments.bench.simulate_loop import against_loops
from dissensus.experiments.bench.simulate_memory import memory
from dissensus.experiments.bench.simulate_models import CASES
from dissensus.experiments.bench.simulate_processes import Group, against_processes
from dissensus.experiments.bench.simulate_rivals import OPTIMIZERS
from dissensus.experiments.errors import ConfigError

Scale = Literal["small", "full"]
PARTS = ("limit", "processes", "loop", "memory")

WIDE, NARROW, SMALL = "mlp 784-256-128-10, b=16", "mlp 64-64-10, b=16", "cnn 8x8, b=16"
TEN_THOUSAND = "mlp 64-133-10, b=16"
"""Some ten thousand parameters, for the many workers of the memory part."""


def bench_simulate(
    scale: Scale = "small", *, threads: Sequence[int] = (1, 2), parts: Sequence[str] = PARTS, only: str = ""
) -> dict[str, Any]:
    """Measures; `full` adds 64 workers everywhere and more optimizers. A JSON-able dictionary.

    Args:
        scale: how much.
        threads: with how many threads inside an operation each comparison is made.
        parts: which comparisons.
        only: only models whose name contains this.
    """
    if scale not in ("small", "full"):
        raise ConfigError(f"scale must be 'small' or 'full', got {scale!r}")
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"parts must be among {', '.join(PARTS)}, got {part!r}")
    if not threads or min(threads) < 1:
        raise ConfigError(f"threads must name at least one count of at least 1, got {list(threads)}")
    plan, load = _Plan(scale, tuple(threads), only), _load()
    rows = [row for part in PARTS if part in parts for row in getattr(plan, part)()]
    return {
        "scale": scale,
        "threads": list(threads),
        "cores": os.cpu_count(),
        "load_before_and_after": [load, _load()],
        "torch": str(torch.__version__),
        "rows": rows,
    }


def _load() -> float | None:
    """How many processes wanted to run, averaged over a minute, where the system tells."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


@dataclass(frozen=True)
class _Plan:
    """Which comparisons are made, and for how long."""

    scale: Scale
    threads: tuple[int, ...]
    only: str

    @property
    def time(self) -> tuple[float, int]:
        """Seconds for the contenders of a row, and how often each of them runs at least."""
        return (0.4, 3) if self.scale == "small" else (1.2, 5)

    def limit(self) -> Iterator[dict[str, Any]]:
        for name in self._among(name for name in CASES if name != TEN_THOUSAND):
            for n in (16,) if self.scale == "small" else (16, 64):
                for optimizer in self._optimizers(name):
                    for count in self.threads:
                        yield against_the_limit(CASES[name], n, optimizer, OPTIMIZERS[optimizer], count, *self.time)

    def processes(self) -> Iterator[dict[str, Any]]:
        names = list(self._among((NARROW,) if self.scale == "small" else (NARROW, WIDE, SMALL)))
        if not names:
            return
        seconds, least = (4.0, 3) if self.scale == "small" else (8.0, 5)
        with Group(16) as group:
            for name in names:
                yield from against_processes(group, name, "momentum", list(self.threads), seconds, least)

    def loop(self) -> Iterator[dict[str, Any]]:
        small = [(NARROW, 2), (NARROW, 64), (SMALL, 4), (WIDE, 64)]
        for name, n in small if self.scale == "small" else self._every_loop():
            if self.only in name:
                for count in self.threads:
                    yield against_loops(CASES[name], n, "momentum", OPTIMIZERS["momentum"], count, *self.time)

    def memory(self) -> Iterator[dict[str, Any]]:
        for name in self._among((TEN_THOUSAND,)):
            for optimizer in ("sgd",) if self.scale == "small" else ("sgd", "momentum"):
                for chunk in (None, 64):
                    yield memory(name, 1024, chunk, optimizer)

    def _among(self, names: Any) -> Iterator[str]:
        return (name for name in names if self.only in name)

    def _optimizers(self, name: str) -> tuple[str, ...]:
        """All where the move is a good part of the step; momentum where the gradient is nearly all of it."""
        full = self.scale == "full"
        if name == WIDE or (full and name == NARROW):
            return ("sgd", "momentum", "adam")
        light = name == SMALL or CASES[name].kind == "mlp"
        return ("sgd", "momentum") if full and light else ("momentum",)

    def _every_loop(self) -> Iterator[tuple[str, int]]:
        for name in CASES:
            if name != TEN_THOUSAND:
                for n in (2, 16, 64) if name in (WIDE, NARROW) else (16,):
                    yield name, n
