"""The state a run ended in, beside its records: what every worker held, so that it can be looked at or gone on with.

`state.pt` is the engine's `state_dict()`: points, buffers, the algorithm's and the optimizer's memory. Where several
processes shared the workers, or the run saved checkpoints, it is the one of the last step. Either is read back
without unpickling code, into an engine built from the run's own configuration, and checked against the hash that the
summary keeps. A run without one can be trained again: its configuration alone reproduces it, to the bit where versions
and machine are the same, which the hash tells.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dissensus.algorithms.engines.distributed.nest import read_nest
from dissensus.algorithms.engines.stacked import StackedEngine
from dissensus.algorithms.errors import AlgorithmError
from dissensus.experiments.cell import Setup
from dissensus.experiments.checkpoints import found_in, go_on
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.models import parameters_hash
from dissensus.experiments.records import Run
from dissensus.experiments.threads import threads

STATE_FILE = "state.pt"


def save_state(folder: Path, engine: StackedEngine) -> Path:
    """Writes the engine's state into a run directory, whole or not at all."""
    path = Path(folder) / STATE_FILE
    draft = path.with_name(f".{STATE_FILE}.{os.getpid()}")
    torch.save(engine.state_dict(), draft)
    os.replace(draft, path)
    return path


def finished(run: Run, *, again: bool = False, watch: Callable[[int], None] | None = None) -> Setup:
    """The setup of a run with its engine in the state the run ended in.

    Read from the run directory, or, with `again`, trained once more from its configuration and kept there.
    """
    path = run.path / STATE_FILE
    if run.status != "ok":
        raise ConfigError(
            f"{run.path} did not end well ({run.status}): run its configuration again with `dissensus simulate`"
        )
    with threads(run.study.train.threads):
        setup = Setup.build(run.study)
    if path.exists():
        setup.engine.load_state_dict(read_state(path))
        _check(run, setup, f"{path} is not the state its summary speaks of")
    elif (last := found_in(run.path)) is not None and last.step == run.study.train.steps:
        go_on(last, setup)
        _check(run, setup, f"{last.path} is not the state its summary speaks of")
    elif again:
        with threads(run.study.train.threads):
            for t in range(run.study.train.steps):
                setup.engine.step(setup.batch(t))
                if watch is not None:
                    watch(t + 1)
        _check(run, setup, f"{run.path} does not come out the same when trained again here (other versions or machine)")
        save_state(run.path, setup.engine)
    else:
        raise ConfigError(
            f"{run.path} holds no weights (no {STATE_FILE}): train it once more with --again "
            f"({run.study.train.steps} steps)"
        )
    return setup


def read_state(path: Path) -> dict[str, Any]:
    """Reads a file of tensors and plain values; code in it is refused."""
    try:
        saved = read_nest(path)
    except AlgorithmError as error:
        raise ConfigError(str(error)) from None
    if not isinstance(saved, dict | list | tuple | torch.Tensor):
        raise ConfigError(f"{path} holds a {type(saved).__name__}: expected tensors by name")
    return saved  # type: ignore[return-value]


def _check(run: Run, setup: Setup, otherwise: str) -> None:
    expected = run.summary.get("parameters_hash")
    try:
        found = parameters_hash(setup.engine.x)
    except AlgorithmError as error:
        raise ConfigError(f"{otherwise}: {error}") from None
    if expected is not None and found != expected:
        raise ConfigError(f"{otherwise}: parameters {found}, expected {expected}")
