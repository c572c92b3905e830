"""The checkpoints of a run, beside its records: `<run>/checkpoints/step_000100/` with one file a worker.

They are the same whether all workers share a process or not, so that a run can go on in another layout: to the bit in
the layout it was saved in, up to rounding in another. What a run remembers beside its workers is with worker 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dissensus.algorithms.engines.distributed.checkpoint import Checkpoint, latest
from dissensus.algorithms.engines.distributed.resuming import load
from dissensus.algorithms.engines.distributed.saving import save
from dissensus.algorithms.engines.generators import generators, restore_generators
from dissensus.experiments.cell import Setup
from dissensus.experiments.history import History
from dissensus.experiments.processes import Processes

FOLDER = "checkpoints"
KEPT = 3
"""How many complete ones stay, unless the configuration says."""


def save_checkpoint(run: Path, setup: Setup, history: History, crew: Processes, elapsed: float = 0.0) -> Path:
    """Saves all workers; all processes call it together."""
    engine = setup.engine
    own: Mapping[int, dict[str, Any]] = engine.save_rows()
    drawing = generators()
    for i, state in own.items():
        state["generators"] = drawing
        if i == 0:
            state["extra"]["run"] = {**history.saved(), "elapsed": elapsed}
    return save(
        run / FOLDER,
        engine.t,
        own,
        size=engine.size,
        facts={**_facts(setup), "isolated": sorted(engine.isolated)},
        together=lambda said: crew.gather(said, what="checkpoint", step=engine.t),
        keep=setup.cell.train.checkpoint_keep or KEPT,
    )


def found_in(run: Path) -> Checkpoint | None:
    """The last complete checkpoint of a run."""
    return latest(run / FOLDER)


def go_on(found: Checkpoint, setup: Setup) -> tuple[History, float]:
    """Puts the workers of this process where they were; returns what the run remembered, and its seconds so far."""
    engine = setup.engine
    _, states = load(found, engine.workers, size=engine.size, expect=_facts(setup))
    engine.load_rows(states)
    restore_generators(states[engine.workers.start]["generators"])
    remembered = (states[0] if 0 in states else found.state(0))["extra"]["run"]
    return History.read(remembered), float(remembered["elapsed"])


def _facts(setup: Setup) -> dict[str, Any]:
    return {
        "configuration": setup.cell.digest,
        "algorithm": setup.engine.algorithm.name,
        "topology": setup.topology.name,
    }
