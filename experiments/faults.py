"""The faults of a run, from its configuration: a topology with links that fail, and who takes part at which step."""

from __future__ import annotations

from dissensus.algorithms import Independent, OnOff, Participation, Straggler
from dissensus.algorithms.streams import stream_seed
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.sections import Faults
from dissensus.theory import Topology
from dissensus.theory.faults import dropped


def with_faults(graph: Topology, faults: Faults | None, seed: int) -> Topology:
    """The topology with the links of `faults.drop` taken out; the same links for every arm of a seed."""
    if faults is None or faults.drop == 0.0:
        return graph
    return dropped(graph, faults.drop, seed=_seed(seed, "links"), burst=faults.burst)


def participation(workers: int, faults: Faults | None, seed: int) -> Participation | None:
    """Who takes part when, or `None` if everybody always does."""
    if faults is None:
        return None
    chosen: list[Participation] = []
    if faults.away > 0.0 and faults.stay is None:
        chosen.append(Independent(workers, 1.0 - faults.away, seed=_seed(seed, "away")))
    elif faults.away > 0.0 and faults.stay is not None:
        chosen.append(OnOff(workers, away=faults.away, stay=faults.stay, seed=_seed(seed, "away")))
    if faults.straggler is not None:
        if faults.straggler >= workers:
            raise ConfigError(f"faults.straggler is a worker, 0 to {workers - 1}, got {faults.straggler}")
        chosen.append(Straggler(workers, worker=faults.straggler, every=faults.every))
    if len(chosen) == 2:
        return chosen[0] & chosen[1]
    return chosen[0] if chosen else None


def _seed(seed: int, what: str) -> int:
    return stream_seed(seed, "faults", what) >> 1
