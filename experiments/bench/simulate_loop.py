"""Against Python loops over n modules, and what `auto` makes of the choice between our own two routes."""

from __future__ import annotations

from typing import Any

from dissensus.experiments.bench.simulate_agreement import Contender, Ours, agreement
from dissensus.experiments.bench.simulate_models import Case, starting_points
from dissensus.experiments.bench.simulate_rivals import OptimizerFactory, PythonLoop, TunedLoop
from dissensus.experiments.bench.timing import Share, race, spread
from dissensus.experiments.threads import threads
from dissensus.theory.registry import topology

ROUTES = ("auto", "vmap", "loop")
FASTER, SLOWER = 3.0, 1.05
"""At least so many times faster than the plain loop (64 workers, MLP); nowhere more times slower than either loop."""


def against_loops(
    case: Case, workers: int, optimizer: str, factory: OptimizerFactory, count: int, seconds: float, least: int
) -> dict[str, Any]:
    """One row: both loops and ours by every route, in turn."""
    batch, ring, start = case.samples(workers), topology("ring", workers), starting_points(case, workers)
    with threads(count):
        plain = PythonLoop(case, ring, factory, batch, start)
        tuned = TunedLoop(case, ring, factory, batch, start)
        ours = {r: Ours(case, workers, factory, batch, start=start, gradients=r) for r in ROUTES}
        others: dict[str, Contender] = {"tuned python loop": tuned, **{f"ours, {r}": o for r, o in ours.items()}}
        agreed = agreement(plain, others, start)
        runs = {"python loop": plain.step} | {name: other.step for name, other in others.items()}
        with Share() as share:
            times = race(runs, seconds, least=least)
    laps = {name: spread(t) for name, t in times.items()}
    median, fastest = ({name: lap[kind] for name, lap in laps.items()} for kind in ("median", "min"))
    must = case.kind == "mlp" and workers >= 64
    speedup, slowdown = median["python loop"] / median["ours, auto"], _slowdown(median)
    return {
        "part": "loop",
        "case": case.name,
        "kind": case.kind,
        "n": workers,
        "b": case.batch,
        "d": ours["auto"].d,
        "optimizer": optimizer,
        "threads": count,
        "route": ours["auto"].engine.route,
        "cores_had": share.cores,
        "seconds": laps,
        "times_faster_than_python_loop": speedup,
        "times_faster_than_python_loop_of_fastest": fastest["python loop"] / fastest["ours, auto"],
        "times_slower_than_faster_loop": slowdown,
        "times_slower_than_faster_loop_of_fastest": _slowdown(fastest),
        "auto_to_better_route": median["ours, auto"] / min(median["ours, vmap"], median["ours, loop"]),
        "auto_to_better_route_of_fastest": fastest["ours, auto"] / min(fastest["ours, vmap"], fastest["ours, loop"]),
        "limit": f"at least {FASTER:g} x faster" if must else f"at most {SLOWER} x slower",
        "met": speedup >= FASTER if must else slowdown <= SLOWER,
        "met_by_fastest": (
            fastest["python loop"] / fastest["ours, auto"] >= FASTER if must else _slowdown(fastest) <= SLOWER
        ),
        **agreed,
    }


def _slowdown(seconds: dict[str, float]) -> float:
    return seconds["ours, auto"] / min(seconds["python loop"], seconds["tuned python loop"])
