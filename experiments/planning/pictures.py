"""The figures of a plan: five iterations of the schedule that is best, and where this cluster stands in the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.figures.runtime import Mark, size_figure, speedup_by_size, speedup_surface, surface_figure
from dissensus.experiments.figures.style import save
from dissensus.experiments.figures.timeline import timeline, timeline_figure
from dissensus.experiments.planning.machines import Machine
from dissensus.experiments.planning.ranking import Plan
from dissensus.theory.errors import MixingError
from dissensus.theory.registry import topology
from dissensus.theory.runtime import even_rounds
from dissensus.theory.runtime.compute import deviation
from dissensus.theory.topology import Topology

MOST_ROWS = 16
"""Workers of a timeline; with more it is drawn for the first so many of a schedule of the same delays."""
SIZES = tuple(2**k for k in range(1, 9))


def draw(plan: Plan, machine: Machine, folder: Path) -> None:
    """Writes timeline.png, surface.png and size.png into a folder."""
    if not plan.rows:
        raise ConfigError("there is no schedule to draw: none of the topologies fits this number of workers")
    best, unit = plan.rows[0], plan.compute_seconds
    begins, buckets = plan.begins, plan.buckets
    n = min(plan.workers, MOST_ROWS)
    delay = best.exchange_seconds / unit
    name = best.topology.split(",")[0]  # without its local steps
    small = _of_size(name, n) or topology("one-peer-ring", n)
    told = timeline(
        even_rounds(small, delay),
        machine.compute,
        plan.gamma,
        order=best.order,
        begins=begins,
        buckets=buckets,
        name=best.topology,
    )
    save(timeline_figure(told), folder / "timeline.png")
    omega = best.exchange_seconds / plan.all_reduce_seconds
    whole = _of_size(name, plan.workers) or small
    spread = deviation(machine.compute)
    surface = speedup_surface(
        whole,
        omega,
        gammas=np.geomspace(min(0.03, plan.gamma / 2), max(30.0, 2 * plan.gamma), 61),
        deviations=np.linspace(0.0, max(0.6, 1.3 * spread), 25),
        strips=16,
        order=best.order,
        begins=begins,
        buckets=buckets,
        iterations=400,
    )
    save(surface_figure(surface, Mark(plan.gamma, spread, machine.name)), folder / "surface.png")
    sizes = [size for size in SIZES if _of_size(name, size) is not None]
    if len(sizes) > 1:
        found = speedup_by_size(
            lambda size: topology(name, size),
            lambda size: omega * (1 - 1 / plan.workers) / (1 - 1 / size),
            plan.gamma,
            deviations=sorted({0.0, 0.1, round(spread, 3), 0.4}),
            sizes=sizes,
            order=best.order,
            begins=begins,
            buckets=buckets,
        )
        save(size_figure(found), folder / "size.png")


def _of_size(name: str, n: int) -> Topology | None:
    try:
        return topology(name, n)
    except MixingError:
        return None
