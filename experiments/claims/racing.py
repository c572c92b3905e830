"""Steps of ours and of torch's all-reduce on real processes, block by block in turn, for claims about time.

Four gloo processes of the benchmark of the distributed engine, one a worker. Most of a step is slept through, so they
are not what keeps the cores busy; what is slept differs from step to step and worker to worker where that is asked for.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch.distributed as dist

from dissensus.experiments.bench.distributed_group import Group
from dissensus.experiments.bench.distributed_models import MODELS
from dissensus.experiments.bench.network import hosts
from dissensus.experiments.claims.base import OutOfReachError
from dissensus.experiments.errors import ConfigError

WORKERS = 4
SCHEDULE = "one-peer-exp"


@dataclass(frozen=True)
class Race:
    """What is run: a model, how long computing a step takes beside it, and a rate of the links if there is one."""

    model: str
    seconds: float
    sigma: float
    rate: str | None
    blocks: int
    steps: int


@dataclass(frozen=True)
class Laps:
    """Seconds of a step, one number a block; the two of a block were run one after the other."""

    ours: list[float]
    ddp: list[float]


def race(of: Race) -> Laps:
    """Runs it; which of the two comes first changes from block to block. Links with a rate need root."""
    if not (dist.is_available() and dist.is_gloo_available()):
        raise OutOfReachError("steps are timed on gloo processes, and this build of torch has no gloo")
    laps = Laps([], [])
    plan = {"optimizer": "sgd", "schedule": SCHEDULE, "seconds": of.seconds, "sigma": of.sigma}
    network = nullcontext() if of.rate is None else hosts(WORKERS, rate=of.rate, delay_ms=0)
    try:
        with network as net, Group(WORKERS, net) as group:
            group.build(MODELS[of.model], ["ours", "ddp"], plan)
            for block in range(of.blocks):
                for name in ("ours", "ddp") if block % 2 == 0 else ("ddp", "ours"):
                    getattr(laps, name).append(group.run(name, of.steps)[0])
    except (RuntimeError, TimeoutError) as error:
        raise ConfigError(f"the processes whose steps are timed did not get through: {error}") from error
    return laps
