"""Whether an algorithm may run on a topology: every engine asks before the first step."""

from __future__ import annotations

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm
from dissensus.theory.topology import Topology


def check_fit(algorithm: Algorithm, topology: Topology) -> None:
    """Refuses a topology that does not keep what the algorithm relies on."""
    needed, given = algorithm.promise, topology.promise
    if needed is not None and given not in ("doubly", needed):
        advice = "use sgp" if given == "column" else "use a doubly stochastic topology"
        raise AlgorithmError(
            f"algorithm {algorithm.name!r} needs {needed} stochastic mixing, but topology {topology.name!r} is only "
            f"{given} stochastic; {advice}"
        )
    if algorithm.static and topology.period != 1:
        raise AlgorithmError(
            f"algorithm {algorithm.name!r} remembers W times what was sent, so every round must be the same, but "
            f"topology {topology.name!r} has {topology.period or 'endlessly many'} rounds; use a static topology"
        )
