"""The runtime model put to the test: how fast its simulator is, and what it says of real processes on slow links.

*simulator*: worker-iterations per second against the time that reading and writing as many numbers takes.
*validation*: hosts joined by links with a rate, compute noise that is known, the distributed engine and torch's DDP.
What the model is given is measured in the same run without any of that: how long computing alone, an exchange alone,
and an all-reduce alone take. What it says is then held against the step times of both.
*replays*: what others published or what was measured elsewhere, against the model (see `runtime_replays`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from dissensus.experiments.bench.distributed_contenders import SCHEDULES
from dissensus.experiments.bench.distributed_group import Group
from dissensus.experiments.bench.distributed_models import MODELS
from dissensus.experiments.bench.distributed_settings import Scale
from dissensus.experiments.bench.network import NetworkError, hosts
from dissensus.experiments.bench.runtime_replays import replays
from dissensus.experiments.bench.timing import spread
from dissensus.experiments.errors import ConfigError
from dissensus.theory.registry import topology
from dissensus.theory.runtime import LogNormal, all_reduce_pace, even_rounds, pace

PARTS = ("simulator", "validation", "replays")
MODEL, SECONDS, WORKERS = "2.4M", 0.1, 4
"""What is trained in the validation, for how long it pretends to compute, by how many."""
SCHEDULES_AT: dict[str, tuple[str, ...]] = {
    "800mbit": ("ring", "one-peer-exp"),
    "400mbit": ("ring", "one-peer-exp", "complete"),
    "200mbit": ("ring", "one-peer-exp"),
}
"""What runs at which rate. With *complete* everybody sends to everybody, which an all-reduce does better."""
SIGMAS = (0.0, 0.3)
BUCKETS = ((1 / 3 + 2 / 3 / 6, 1 / 6), (1.0, 5 / 6))
"""DDP's buckets of that model: the last of six equal layers, and the rest; a third of computing is the forward pass."""
WITHIN, DIFFERENT = 0.10, 0.05
"""How far a prediction may be off, and from which difference on there is a winner."""


def bench_runtime(scale: Scale = "small", *, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """Measures; `small` takes seven minutes, `full` some sixteen, nearly all validation. A JSON-able dictionary."""
    if scale not in ("small", "full"):
        raise ConfigError(f"scale must be 'small' or 'full', got {scale!r}")
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"parts must be among {', '.join(PARTS)}, got {part!r}")
    result: dict[str, Any] = {"scale": scale, "cores": os.cpu_count(), "torch": str(torch.__version__), "skipped": {}}
    if "simulator" in parts:
        result["simulator"] = [asdict(one) for one in simulator(5 if scale == "small" else 20)]
    if "validation" in parts:
        try:
            found = validation(steps=12 if scale == "small" else 40)
            result["validation"] = {"settings": found, **verdict(found)}
        except NetworkError as error:
            result["skipped"]["validation"] = str(error)
    if "replays" in parts:
        result["replays"] = replays()
    return result


@dataclass(frozen=True)
class Speed:
    """How fast the simulator is in one regime."""

    regime: str
    worker_iterations_per_second: dict[str, float]
    """A spread of rates, not of seconds: `runs` is how many there were."""
    share_of_copying: dict[str, float]
    """Of the speed at which the same numbers are copied once, which no simulation of the kind can exceed."""


def simulator(repeats: int = 5) -> list[Speed]:
    """Several regimes, each beside plain copies of as many numbers, in turn."""
    found = []
    for regime, n, factors, replicas, steps in (
        ("16 workers, 10 delays, many replicas", 16, 10, None, 4000),
        ("16 workers, one delay, many replicas", 16, 1, None, 8000),
        ("1024 workers, 10 delays", 1024, 10, None, 800),
        ("1,000,000 workers, one delay, one replica", 10**6, 1, 1, 40),
    ):
        rounds = even_rounds(topology("one-peer-ring", n), 1.0)
        speeds, shares = [], []
        for seed in range(repeats):
            began = time.perf_counter()
            made = pace(
                rounds,
                LogNormal(0.2),
                factors=list(np.linspace(0.5, 1.5, factors)),
                iterations=steps,
                replicas=replicas,
                seed=seed,
            )
            seconds = time.perf_counter() - began
            work = n * factors * made.replicas * steps
            speeds.append(work / seconds)
            numbers = np.ones((factors, n, made.replicas), np.float32)  # zeros would all be one page of memory
            target, copies = numbers.copy(), max(1, steps // 8)
            began = time.perf_counter()
            for _ in range(copies):
                np.copyto(target, numbers)
            shares.append(speeds[-1] * (time.perf_counter() - began) / (copies * numbers.size))
        found.append(Speed(regime, spread(speeds), spread(shares)))
    return found


@dataclass(frozen=True)
class Padded:
    """Computing times in seconds: what is really computed, and a pause that differs from step to step."""

    fixed: float
    pause: float
    sigma: float
    name: str = "computing and a log-normal pause"

    def at(self, score: np.ndarray) -> np.ndarray:
        """As in `theory.runtime.Compute`."""
        return self.fixed + self.pause * np.exp(self.sigma * score - 0.5 * self.sigma**2)


def validation(steps: int) -> list[dict[str, Any]]:
    """Predicted and measured seconds of a step, setting by setting."""
    found = []
    for rate, schedules in SCHEDULES_AT.items():
        with hosts(WORKERS, rate=rate, delay_ms=0) as net, Group(WORKERS, net) as group:
            for schedule in schedules:
                plan = {"optimizer": "sgd", "schedule": schedule, "seconds": SECONDS}
                alone = _alone(group, plan)
                for sigma in SIGMAS:
                    predicted = _predicted(alone, schedule, sigma)
                    found.append({"rate": rate, "sigma": sigma, "schedule": schedule}
                                 | alone | _measured(group, plan | {"sigma": sigma}, predicted, steps))  # fmt: skip
    return found


def _alone(group: Group, plan: dict[str, Any]) -> dict[str, float]:
    """What the model is given: computing, an exchange in the better of two ways, an all-reduce, each by itself."""
    group.build(MODELS[MODEL], ["local", "exchange, whole", "exchange, 4 MB", "all-reduce"], plan | {"sigma": 0.0})
    local = group.run("local", 4)[0]
    laps = {name: [group.run(name, 4)[0] for _ in range(3)] for name in ("exchange, whole", "exchange, 4 MB")}
    return {
        "local_seconds": local,
        "exchange_seconds": min(float(np.median(some)) for some in laps.values()),
        "all_reduce_seconds": float(np.median([group.run("all-reduce", 4)[0] for _ in range(3)])),
    }


def _predicted(alone: dict[str, float], schedule: str, sigma: float) -> dict[str, float]:
    compute = Padded(max(0.0, alone["local_seconds"] - SECONDS), SECONDS, sigma)
    rounds = even_rounds(topology(SCHEDULES[schedule], WORKERS), alone["exchange_seconds"])
    return {
        "ours": float(pace(rounds, compute).value[0, 0]),
        "ddp": all_reduce_pace(compute, WORKERS, alone["all_reduce_seconds"], buckets=BUCKETS),
    }


def _measured(group: Group, plan: dict[str, Any], predicted: dict[str, float], steps: int) -> dict[str, Any]:
    group.build(MODELS[MODEL], ["ours", "ddp"], plan)
    laps: dict[str, list[float]] = {"ours": [], "ddp": []}
    for _ in range(2):
        for name, times in laps.items():
            times.append(group.run(name, steps)[0])
    measured = {name: float(np.mean(times)) for name, times in laps.items()}
    return {
        "predicted": predicted,
        "measured": measured,
        "measured_blocks": laps,
        "off": {name: predicted[name] / measured[name] - 1 for name in predicted},
        "speedup_predicted": predicted["ddp"] / predicted["ours"],
        "speedup_measured": measured["ddp"] / measured["ours"],
    }


def verdict(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """In how many settings both predictions are close, and whether the winner is right where there is one."""
    close = {name: sum(abs(one["off"][name]) <= WITHIN for one in found) for name in ("ours", "ddp")}
    differ = [one for one in found if abs(one["speedup_measured"] - 1) > DIFFERENT]
    right = sum((one["speedup_predicted"] > 1) == (one["speedup_measured"] > 1) for one in differ)
    both = sum(max(abs(off) for off in one["off"].values()) <= WITHIN for one in found)
    return {
        "of": len(found),
        "within": WITHIN,
        "close": close,
        "both_close": both,
        "differ": len(differ),
        "right": right,
    }
