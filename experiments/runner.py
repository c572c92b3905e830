"""One cell (arm, seed) from its configuration to its run directory.

Whatever happens, the directory tells: `ok`, `failed` with the sentence of the error, or `interrupted` (Ctrl-C, or the
`stop` of a study). A failed cell is recorded and the study goes on; nothing is dropped.
"""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dissensus.experiments.cell import Setup
from dissensus.experiments.config import Study
from dissensus.experiments.measurement import measure_curvature, measure_learning, measure_workers
from dissensus.experiments.models import parameters_hash
from dissensus.experiments.prediction import Measure, predict
from dissensus.experiments.records import Recorder, Status
from dissensus.experiments.state import save_state
from dissensus.experiments.threads import threads
from dissensus.probes.schedule import Every, Never, Schedule, Share, schedule

Watch = Callable[[int], None]
"""Called after every step with the number of steps done; what it raises ends the cell."""


@dataclass(frozen=True)
class Outcome:
    """How a cell ended and where it is."""

    path: Path
    arm: str
    seed: int
    status: Status
    error: str = ""


def run_cell(cell: Study, root: Path, watch: Watch | None = None) -> Outcome:
    """Trains one cell with probes on and leaves its run directory under `root`."""
    arm, _, seed = cell.only
    recorder = Recorder.create(Path(root), cell)
    began = time.perf_counter()
    facts: dict[str, Any] = {"arm": arm, "seed": seed}
    status: Status = "failed"
    error = ""
    try:
        with recorder, threads(cell.train.threads), _between_steps() as check:
            setup = Setup.build(cell)
            recorder.meta(**setup.facts())
            facts |= _train(setup, recorder, _both(check, watch))
        status = "ok"
    except KeyboardInterrupt:
        status, error = "interrupted", "interrupted"
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
        (recorder.path / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
    recorder.summary(status, **facts, error=error, wall_s=round(time.perf_counter() - began, 3))
    return Outcome(recorder.path, arm, seed, status, error)


def _train(setup: Setup, recorder: Recorder, watch: Watch) -> dict[str, Any]:
    """The loop: step, look, step. Returns what the summary says."""
    engine, cell = setup.engine, setup.cell
    steps, probes = cell.train.steps, cell.probes
    lrs: list[float] = []
    gammas: list[float] = []
    measures: dict[int, Measure] = {}
    spent, share, curvature = 0.0, Share(probes.share), curvature_schedule(setup)
    for t in range(steps + 1):
        began = time.perf_counter()
        if t % probes.every == 0 or t == steps:
            measure_learning(setup, recorder, gammas[-1] if gammas else None)
        if t == steps or (curvature.due(t) and _allowed(share, recorder, t)):
            entered = time.perf_counter()
            found = measure_curvature(setup, recorder, noise=curvature != Never(), eigenvalue=t == steps)
            share.spent("curvature", time.perf_counter() - entered)
            if found is not None:
                measures[t] = (found.nodes, found.weights)
        spent += time.perf_counter() - began
        if t < steps:
            record = engine.step(setup.batch(t))
            lrs.append(record.lr)
            gammas.append(1.0 if record.gamma is None else record.gamma)
            watch(t + 1)
    measure_workers(setup, recorder)
    _record_prediction(setup, recorder, measures, lrs, gammas)
    if cell.train.keep:
        save_state(recorder.path, engine)
    return {
        "steps": engine.t,
        "route": engine.route,
        "parameters_hash": parameters_hash(engine.x),
        "probe_s": round(spent, 3),
        **({"isolated": {str(i): t for i, t in engine.isolated.items()}} if engine.isolated else {}),
    }


def curvature_schedule(setup: Setup) -> Schedule:
    """When the configuration wants curvature looked at, beside the end."""
    probes = setup.cell.probes
    if probes.curvature_at is None:
        return Every(probes.curvature_every) if probes.curvature_every else Never()
    return schedule(probes.curvature_at, steps=setup.cell.train.steps, steps_per_epoch=setup.order.steps_per_epoch)


def _allowed(share: Share, recorder: Recorder, t: int) -> bool:
    """Whether curvature may be looked at now; what is left out for lack of time is recorded as that."""
    allowed = share.allows("curvature")
    if not allowed:
        recorder.metric(t, "curvature_left_out", 1.0, which="consensus")
    return allowed


def _record_prediction(
    setup: Setup, recorder: Recorder, measures: dict[int, Measure], lrs: list[float], gammas: list[float]
) -> None:
    """Theory's consensus distance and envelope at the times at which they were measured."""
    expected = predict(setup, measures, lrs, gammas)
    if expected is None:
        return
    every, steps = setup.cell.probes.every, setup.cell.train.steps
    for t in sorted({*range(0, steps + 1, every), steps}):
        recorder.metric(t, "consensus_distance", expected.xi[t], which="theory")
        recorder.metric(t, "envelope", expected.envelope[t], which="theory")


def _both(check: Callable[[], None], watch: Watch | None) -> Watch:
    def after(t: int) -> None:
        if watch is not None:
            watch(t)
        check()

    return after


@contextmanager
def _between_steps() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits for the end of the step, so that nothing is torn in the middle; a second one does not wait.

    Hands out the check to call between steps. In a thread beside the main one, and where Ctrl-C is ignored or not
    Python's own, everything stays as it is.
    """
    pressed: list[int] = []

    def note(number: int, frame: Any) -> None:
        if pressed:
            signal.default_int_handler(number, frame)
        pressed.append(number)

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield check
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield check
        check()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
