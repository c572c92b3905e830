"""Which schedule to train with on a machine: predicted time of an iteration, and how well workers stay together for it.

For every topology the recursions of `theory.runtime` are run with the computing times and links of the machine. Beside
the time stands what it buys: the effective number of neighbours (`theory.effective`), and how much of the disagreement
goes in a second. What is guaranteed is a theorem (`theory.runtime.closed_forms`), what is predicted a simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.planning.machines import Machine
from dissensus.theory.analysis import report
from dissensus.theory.errors import DissensusError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.registry import topology
from dissensus.theory.runtime import Order, Round, all_reduce_pace, pace, pace_bounds
from dissensus.theory.runtime.recursion import all_reduce_step
from dissensus.theory.runtime.simulation import all_reduce_slowest
from dissensus.theory.topology import Topology, from_matrices

MODELS: dict[str, tuple[int, str]] = {
    "resnet50": (25_557_032, "ResNet-50 for ImageNet"),
    "gpt2-small": (124_439_808, "GPT-2 small"),
    "wrn-28-10": (36_479_194, "Wide ResNet 28-10 for CIFAR-10"),
    "wrn-16-8": (10_961_370, "Wide ResNet 16-8 for CIFAR-10"),
}
"""Parameters of well-known models."""
CANDIDATES = (
    "one-peer-ring",
    "one-peer-exponential",
    "one-peer-hypercube",
    "aer",
    "ring",
    "exponential",
    "hypercube",
    "torus",
    "base-k",
    "complete",
)
"""What is tried where nobody says what."""
AS_FAST = 1.03
"""Times nearer than this are as good as equal: then the better mixing decides, and all-reduce before anything else."""


@dataclass(frozen=True)
class Row:
    """One schedule on the machine."""

    topology: str
    order: Order
    iteration_seconds: float
    standard_error: float
    speedup: float
    """Against all-reduce that overlaps."""
    speedup_without_overlap: float
    guaranteed_speedup: float
    """Against all-reduce that overlaps, by the upper bound of the iteration."""
    exchange_seconds: float
    """The longest of a round, mean over the rounds."""
    effective_neighbours: float | None
    neighbours_per_second: float | None
    contraction_per_second: float | None
    """Minus the logarithm of what a second leaves of the disagreement; None if rounds become exact or do not mix."""
    exact_after: int | None
    """Rounds after which mixing is exact, if ever."""


@dataclass(frozen=True)
class Plan:
    """All schedules on a machine, the fastest first, and what to do."""

    machine: str
    workers: int
    parameters: int
    message_bytes: float
    compute_seconds: float
    compute: str
    all_reduce_seconds: float
    """Of the communication alone."""
    iteration_all_reduce: float
    iteration_all_reduce_overlapped: float
    gamma: float
    """All-reduce communication over computing."""
    rows: list[Row]
    left_out: dict[str, str]
    recommendation: str
    begins: float
    """The share of computing after which an all-reduce that overlaps begins to send."""
    buckets: int
    """How many it sends one after another."""
    memory: float
    """At which neighbours are counted."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def make_plan(
    machine: Machine,
    parameters: int,
    *,
    topologies: Sequence[str] = (),
    order: Order = "awc",
    every: int = 1,
    message_bytes: int = 4,
    begins: float = 0.4,
    buckets: int = 10,
    memory: float = 0.9,
    iterations: int = 2000,
    seed: int = 0,
) -> Plan:
    """Predicts and ranks.

    Args:
        machine: what the links and the computing are like.
        parameters: how many the model has.
        topologies: names; those that fit of `CANDIDATES` if none are given.
        order: what waits for what.
        every: only every so many-th step exchanges (local steps); all-reduce does at every step.
        message_bytes: bytes of a parameter in an exchange; all-reduce takes 4, those of its gradient.
        begins: the share of computing after which an all-reduce that overlaps begins to send.
        buckets: how many it sends one after another.
        memory: at which effective neighbours are counted.
        iterations: simulated.
        seed: of the simulation.
    """
    if parameters < 1 or every < 1:
        raise ConfigError(f"a model has at least one parameter, and every is at least 1, got {parameters} and {every}")
    n, unit = machine.size, machine.seconds
    sums = machine.all_reduce(4.0 * parameters)
    plain, overlapped = (
        unit * _all_reduce(machine, sums / unit, *how, iterations, seed) for how in ((None, 1), (begins, buckets))
    )
    rows, left_out = [], {}
    for name in topologies or CANDIDATES:
        try:
            chosen = _rarely(_built(name, machine), every)
            rounds = [_in_units(one, unit) for one in machine.rounds(chosen, float(message_bytes) * parameters)]
            rows.append(_row(chosen, rounds, machine, order, plain, overlapped, memory, iterations, seed))
        except DissensusError as error:
            if topologies:
                raise ConfigError(f"{name} on {n} workers: {error}") from None
            left_out[name] = str(error)
    rows.sort(key=lambda row: row.iteration_seconds)
    return Plan(
        machine=machine.name,
        workers=n,
        parameters=parameters,
        message_bytes=float(message_bytes) * parameters,
        compute_seconds=unit,
        compute=machine.compute.name,
        all_reduce_seconds=sums,
        iteration_all_reduce=plain,
        iteration_all_reduce_overlapped=overlapped,
        gamma=sums / unit,
        rows=rows,
        left_out=left_out,
        recommendation=recommended(rows, overlapped, n, order),
        begins=begins,
        buckets=buckets,
        memory=memory,
    )


def recommended(rows: Sequence[Row], all_reduce: float, n: int, order: Order) -> str:
    """One sentence: what to train with, how fast it is, and what it costs."""
    if not rows:
        return f"All-reduce, {_ms(all_reduce)} an iteration: no schedule fits {n} workers."
    fastest = rows[0].iteration_seconds
    if all_reduce <= AS_FAST * fastest:
        return (
            f"Keep all-reduce ({_ms(all_reduce)} an iteration, overlapped): the fastest schedule, {rows[0].topology}, "
            f"takes {_ms(fastest)} and lets workers disagree for nothing."
        )
    near = [row for row in rows if row.iteration_seconds <= AS_FAST * fastest]
    best = max(near, key=lambda row: row.effective_neighbours or 0.0)
    mixing = "" if best.effective_neighbours is None else f"; it averages like {best.effective_neighbours:.3g} of {n}"
    bound = f", at least {best.guaranteed_speedup:.3g} times by theory" if best.guaranteed_speedup > 1 else ""
    return (
        f"Use {best.topology} with order {order}: {_ms(best.iteration_seconds)} an iteration, {best.speedup:.3g} "
        f"times as fast as all-reduce that overlaps{bound}{mixing}."
    )


def _built(name: str, machine: Machine) -> Topology:
    if name in ("aer", "hierarchical") and machine.per_node > 1:
        return topology(name, machine.size, workers_per_node=machine.per_node)
    return topology(name, machine.size)


def _rarely(chosen: Topology, every: int) -> Topology:
    """Steps without exchange between the rounds of a topology."""
    if every == 1:
        return chosen
    if chosen.period is None:
        raise ConfigError(f"{chosen.name} is drawn at every step: it has no rounds to put local steps between")
    silent = MixingMatrix.of(sp.eye_array(chosen.size, format="csr"))
    rounds = [one for w in chosen.rounds for one in (*[silent] * (every - 1), w)]
    return from_matrices(
        rounds, name=f"{chosen.name}, every {every}", workers_per_node=chosen.workers_per_node, may_disconnect=True
    )


def _in_units(one: Round, unit: float) -> Round:
    return Round(one.senders, one.delay / unit)


def _all_reduce(
    machine: Machine, communication: float, begins: float | None, buckets: int, iterations: int, seed: int
) -> float:
    if machine.speeds is None:
        return all_reduce_pace(machine.compute, machine.size, communication, begins=begins, buckets=buckets)
    slowest = all_reduce_slowest(
        machine.compute, machine.size, speeds=machine.speeds, iterations=10 * iterations, seed=seed
    )
    return float(all_reduce_step(slowest, communication, begins, buckets).mean())


def _row(
    chosen: Topology,
    rounds: list[Round],
    machine: Machine,
    order: Order,
    plain: float,
    overlapped: float,
    memory: float,
    iterations: int,
    seed: int,
) -> Row:
    found = pace(rounds, machine.compute, order=order, speeds=machine.speeds, iterations=iterations, seed=seed)
    seconds = machine.seconds * float(found.value[0, 0])
    known = report(chosen, memory=memory)
    slowest = 1.0 if machine.speeds is None else float(machine.speeds.max())  # a bound for all is one for each
    upper = slowest * pace_bounds([_in_units(one, slowest) for one in rounds], machine.compute, order=order).upper
    rate = None
    if known.contraction is not None and 0 < known.contraction < 1:
        rate = -np.log(known.contraction) / ((chosen.period or 1) * seconds)
    neighbours = known.effective_neighbors
    return Row(
        topology=chosen.name,
        order=order,
        iteration_seconds=seconds,
        standard_error=machine.seconds * float(found.standard_error[0, 0]),
        speedup=overlapped / seconds,
        speedup_without_overlap=plain / seconds,
        guaranteed_speedup=overlapped / (machine.seconds * upper),
        exchange_seconds=machine.seconds * float(np.mean([one.delay.max() for one in rounds])),
        effective_neighbours=neighbours,
        neighbours_per_second=None if neighbours is None else neighbours / seconds,
        contraction_per_second=rate,
        exact_after=known.exact_after,
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
