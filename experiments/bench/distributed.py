"""How fast decentralized training in many processes is: against its parts, torch's DDP and the package decent-dp.

For every setting one set of processes is started, and inside it all contenders run, some steps each in turn, for many
rounds. Before, they show that they compute what they are said to. No time is asserted here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from dissensus.experiments.bench.distributed_agreement import agreement
from dissensus.experiments.bench.distributed_contenders import missing
from dissensus.experiments.bench.distributed_group import Group
from dissensus.experiments.bench.distributed_limits import verdict
from dissensus.experiments.bench.distributed_memory import memory, memory_cases
from dissensus.experiments.bench.distributed_models import MODELS
from dissensus.experiments.bench.distributed_settings import Scale, Setting, settings
from dissensus.experiments.bench.distributed_waiting import waiting_allows
from dissensus.experiments.bench.network import NetworkError, hosts
from dissensus.experiments.bench.timing import SHORT, spread
from dissensus.experiments.errors import ConfigError

PARTS = ("loopback", "bandwidth", "latency", "noise", "memory")


def bench_distributed(scale: Scale = "small", *, parts: Sequence[str] = PARTS, only: str = "") -> dict[str, Any]:
    """Measures; `full` takes about an hour. A JSON-able dictionary; Ctrl-C leaves the settings that were done.

    Args:
        scale: how much.
        parts: which settings.
        only: only settings whose name contains this.
    """
    if scale not in ("small", "full"):
        raise ConfigError(f"scale must be 'small' or 'full', got {scale!r}")
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"parts must be among {', '.join(PARTS)}, got {part!r}")
    rows: list[dict[str, Any]] = []
    skipped, failed, interrupted = missing(), {}, False
    timed = [setting for setting in settings(scale) if setting.part in parts and only in setting.name]
    counted = memory_cases(scale, only) if "memory" in parts else {}
    try:
        for setting in timed:
            if reason := _too_large(setting):
                skipped[setting.name] = reason
                continue
            try:
                rows += measured(setting, *_effort(scale, setting))
            except NetworkError as error:
                skipped[setting.name if setting.congestion else setting.part] = str(error)
            except (RuntimeError, TimeoutError) as error:  # the other settings are not to blame
                failed[f"{setting.part}: {setting.name}"] = str(error)
        for name, case in counted.items():
            try:
                rows.append(memory(*case))
            except RuntimeError as error:
                failed[f"memory: {name}"] = str(error)
    except KeyboardInterrupt:
        interrupted = True
    return {
        "interrupted": interrupted,
        "scale": scale,
        "cores": os.cpu_count(),
        "torch": str(torch.__version__),
        "skipped": skipped,
        "failed": failed,
        "rows": rows,
    }


def measured(setting: Setting, rounds: int, block: float, least: int = 2) -> list[dict[str, Any]]:
    """The rows of one setting, one for each of its limits: so many rounds, in blocks of about so many seconds."""
    lacking = missing()
    names = [name for name in setting.contenders if name not in lacking]
    plan = {
        "optimizer": setting.optimizer,
        "schedule": setting.schedule,
        "seconds": setting.seconds,
        "sigma": setting.sigma,
    }
    with _group(setting) as (group, congestion):
        agreed = agreement(group, names, setting.optimizer, setting.schedule)
        group.build(MODELS[setting.model], names, plan)
        steps = _steps(group, names, block, least, alike=setting.sigma > 0)
        times: dict[str, list[float]] = {name: [] for name in names}
        worked: dict[str, list[float]] = {name: [] for name in names}
        began: dict[str, list[int]] = {name: [] for name in names}
        for turn in range(rounds):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                began[name].append(group.taken[name])
                clock, cores = group.run(name, steps[name])
                times[name].append(clock)
                worked[name].append(cores)
    about = {
        "part": setting.part,
        "setting": setting.name,
        "n": setting.size,
        "model": setting.model,
        "d": MODELS[setting.model].d,
        "optimizer": setting.optimizer,
        "schedule": setting.schedule,
        "rate": setting.rate,
        "congestion": congestion,
        "delay_ms": setting.delay_ms,
        "compute_seconds": setting.seconds,
        "noise": setting.sigma,
        "waiting_allows": None,
        "seconds": {name: spread(t) for name, t in times.items()},
        "core_seconds": {name: spread(t) for name, t in worked.items()},
        "steps_in_a_block": steps,
        "difference": agreed["difference"],
        "rounded": agreed["rounded"],
    }
    if setting.sigma and {"ours", "ddp"} <= set(names):
        about["waiting_allows"] = waiting_allows(setting, began["ours"], began["ddp"], steps["ours"])
    rows = []
    for limit in setting.limits:
        agree = all(agreed["agree"].get(name, True) for name in limit.needs())
        rows.append({**about, **verdict(limit, times), "agree": agree})
    return rows


def _steps(group: Group, names: Sequence[str], block: float, least: int, *, alike: bool) -> dict[str, int]:
    """How many steps of each contender are a block, an even number: schedules of period two run through."""
    found = {}
    for name in names:
        one, _ = group.run(name, 1)
        if one < SHORT:
            one, _ = group.run(name, 6)
        found[name] = max(least, 2 * round(block / one / 2))
    most = max(found.values())
    return {name: most for name in names} if alike else found  # noqa: C420


@contextlib.contextmanager
def _group(setting: Setting) -> Iterator[tuple[Group, str]]:
    """The processes, and how TCP shares the links of their network."""
    if not setting.shaped:
        with Group(setting.size) as group:
            yield group, ""
        return
    with (
        hosts(setting.size, rate=setting.rate, delay_ms=setting.delay_ms, congestion=setting.congestion) as net,
        Group(setting.size, net) as group,
    ):
        yield group, net.congestion


def _effort(scale: Scale, setting: Setting) -> tuple[int, float]:
    """Rounds, and seconds of a block."""
    if setting.sigma:
        return (2, 1.2) if scale == "small" else (5, 3.0)
    if setting.shaped:
        return (3, 0.4) if scale == "small" else (7, 1.0)
    return (7, 0.12) if scale == "small" else (15, 0.4)


def _too_large(setting: Setting) -> str:
    table = Path("/proc/meminfo")
    if not table.exists():
        return ""
    free = [int(line.split()[1]) for line in table.read_text().splitlines() if line.startswith("MemAvailable")]
    if not free or 1024 * free[0] > setting.bytes:
        return ""
    return f"needs about {setting.bytes / 1e9:.1f} GB, and {1024 * free[0] / 1e9:.1f} are free"
