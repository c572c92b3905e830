"""One cell (arm, seed) from its configuration to its run directory.

Whatever happens, the directory tells: `ok`, `failed` with the sentence of the error, or `interrupted` (Ctrl-C, or the
`stop` of a study). A failed cell is recorded and the study goes on; nothing is dropped.

Several processes may share the workers. Then all of them run the same loop; the first one looks and keeps the records,
and the others wait for it meanwhile.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dissensus.algorithms.engines.distributed.checkpoint import Checkpoint
from dissensus.experiments.cell import Setup
from dissensus.experiments.checkpoints import found_in, go_on, save_checkpoint
from dissensus.experiments.config import Study
from dissensus.experiments.history import History
from dissensus.experiments.interrupts import Interrupts, between_steps
from dissensus.experiments.measurement import measure_curvature, measure_learning, measure_workers
from dissensus.experiments.models import parameters_hash
from dissensus.experiments.prediction import predict
from dissensus.experiments.processes import Processes
from dissensus.experiments.records import Recorder, Status, directory_of, read_summary
from dissensus.experiments.state import save_state
from dissensus.experiments.threads import threads
from dissensus.experiments.timing import write_timing
from dissensus.experiments.tracking import Tracking, check_trackers
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


def run_cell(
    cell: Study,
    root: Path,
    watch: Watch | None = None,
    *,
    processes: Processes | None = None,
    resume: bool = False,
    trace: Path | None = None,
    track: Sequence[str] = (),
    rule: str = "",
) -> Outcome:
    """Trains one cell with probes on and leaves its run directory under `root`.

    Args:
        cell: the configuration.
        root: where run directories are.
        watch: called after every step.
        processes: who shares the workers, if anybody does. All of them call it together; what goes wrong is recorded
            by the first, and raised in the others.
        resume: goes on from the last checkpoint in the run directory, if there is one; a run that is done stays.
        trace: gets the timeline of all processes.
        track: trackers that get a copy of the records, such as `tensorboard`; the first process has them.
        rule: by what the study that it belongs to will decide (`Study.rule`), for the records to say.
    """
    check_trackers(track)
    (arm, _, seed), path = cell.only, directory_of(Path(root), cell)
    crew = processes or Processes()
    found = crew.told_by_first(lambda: _earlier(path) if resume else None)
    if isinstance(found, str):
        return Outcome(path, arm, seed, "ok")
    recorder = None
    if crew.first:
        recorder = Recorder.create(Path(root), cell) if found is None else Recorder.reopen(path, found.step)
        recorder.rule = rule
        if track:
            recorder.tracking = Tracking.begin(track, path, cell, None if found is None else found.step)
    began, error = time.perf_counter(), ""
    facts: dict[str, Any] = {"arm": arm, "seed": seed}
    status: Status = "failed"
    interrupts = Interrupts()
    try:
        with recorder or nullcontext(), threads(cell.train.threads), between_steps() as interrupts:
            course = _Course.start(cell, path, recorder, crew, found)
            began -= course.elapsed
            facts |= course.run(_both(interrupts, watch), trace)
        status = "ok"
    except KeyboardInterrupt:
        if recorder is None:
            raise
        status, error = "interrupted", "interrupted"
    except Exception as failure:
        if recorder is None:
            raise
        if interrupts.pressed:  # whoever ends this process ends the others, too, and perhaps sooner
            status, error = "interrupted", "interrupted"
        else:
            error = f"{type(failure).__name__}: {failure}"
            (path / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
    if recorder is not None:
        recorder.summary(status, **facts, error=error, wall_s=round(time.perf_counter() - began, 3))
    return Outcome(path, arm, seed, status, error)


@dataclass
class _Course:
    """The loop of one cell in one process: look, step, look."""

    setup: Setup
    path: Path
    recorder: Recorder | None
    """Only the first process has one."""
    crew: Processes
    history: History
    elapsed: float = 0.0
    """Seconds that the run took before it was resumed."""

    @classmethod
    def start(
        cls, cell: Study, path: Path, recorder: Recorder | None, crew: Processes, found: Checkpoint | None
    ) -> _Course:
        """The setup where it starts, or where a checkpoint has it."""
        setup = Setup.build(cell, crew.wire, crew.device)
        if found is not None:
            history, elapsed = go_on(found, setup)
            if recorder is not None:
                recorder.continues(elapsed)
            return cls(setup, path, recorder, crew, history, elapsed)
        seen = setup.engine.snapshot(0)
        if recorder is not None:
            recorder.meta(**setup.facts(seen), **crew.facts())
        return cls(setup, path, recorder, crew, History())

    def run(self, watch: Watch, trace: Path | None) -> dict[str, Any]:
        """Trains to the end. Returns what the summary says."""
        setup, engine, cell = self.setup, self.setup.engine, self.setup.cell
        steps, probes, timeline = cell.train.steps, cell.probes, self.crew.timeline
        share, curvature = Share(probes.share), curvature_schedule(setup)
        noisy = curvature != Never() and probes.noise_batches > 0
        for t in range(engine.t, steps + 1):
            learning = t % probes.every == 0 or t == steps
            curved = t == steps or (curvature.due(t) and self._allowed(share, t))
            if learning or curved:
                self._look(share if curved else None, learning=learning, noise=noisy)
            if t < steps:
                began = time.perf_counter()
                batch = setup.batch(t)
                timeline.add("data", began, time.perf_counter(), step=t)
                self.history.add(engine.step(batch))
                self._save_if_due()
                watch(t + 1)
        return self._end(trace)

    def _look(self, share: Share | None, *, learning: bool, noise: bool) -> None:
        """The first process looks, at curvature too if it is given a share of the time for it; the others wait."""
        began, t = time.perf_counter(), self.setup.engine.t
        seen = self.setup.engine.snapshot(0)
        entered = time.perf_counter()
        with self.crew.only_first():
            if self.recorder is not None:
                if learning:
                    measure_learning(self.setup, seen, self.recorder, self.history.gamma)
                entered = time.perf_counter()
                if share is not None:
                    last = t == self.setup.cell.train.steps
                    found = measure_curvature(self.setup, seen, self.recorder, noise=noise, eigenvalue=last)
                    self.history.measured(t, found)
        if share is not None:
            share.spent("curvature", time.perf_counter() - entered)
        self.history.probe_s += time.perf_counter() - began

    def _allowed(self, share: Share, t: int) -> bool:
        """Whether curvature may be looked at now; what is left out for lack of time is recorded as that."""
        allowed = share.allows("curvature")
        if not allowed and self.recorder is not None:
            self.recorder.metric(t, "curvature_left_out", 1.0, which="consensus")
        return allowed

    def _save_if_due(self) -> None:
        train, t = self.setup.cell.train, self.setup.engine.t
        # at the end it takes the place of `state.pt`, where no process has all workers
        due = train.checkpoint_every is not None and t % train.checkpoint_every == 0
        if due or (t == train.steps and (train.checkpoint_every or (train.keep and not self.crew.alone))):
            began = time.perf_counter()
            elapsed = self.recorder.elapsed if self.recorder is not None else 0.0
            save_checkpoint(self.path, self.setup, self.history, self.crew, elapsed)
            self.crew.timeline.add("checkpoint", began, time.perf_counter(), step=t)

    def _end(self, trace: Path | None) -> dict[str, Any]:
        engine, train = self.setup.engine, self.setup.cell.train
        seen = engine.snapshot(0)
        with self.crew.only_first():
            if self.recorder is not None:
                measure_workers(self.setup, seen, self.recorder)
                _record_prediction(self.setup, self.recorder, self.history)
        if train.keep and self.crew.alone:
            save_state(self.path, engine)
        if self.crew.wire is not None:
            write_timing(self.path, self.crew, engine, trace)
        return {
            "steps": engine.t,
            "route": engine.route,
            "parameters_hash": parameters_hash(seen.x),
            "probe_s": round(self.history.probe_s, 3),
            **({"isolated": {str(i): t for i, t in engine.isolated.items()}} if engine.isolated else {}),
        }


def curvature_schedule(setup: Setup) -> Schedule:
    """When the configuration wants curvature looked at, beside the end."""
    probes = setup.cell.probes
    if probes.curvature_at is None:
        return Every(probes.curvature_every) if probes.curvature_every else Never()
    return schedule(probes.curvature_at, steps=setup.cell.train.steps, steps_per_epoch=setup.order.steps_per_epoch)


def _earlier(path: Path) -> Checkpoint | Literal["ok"] | None:
    """What there is of a run: `ok` if it is done, the last checkpoint, or nothing to go on from."""
    if read_summary(path).get("status") == "ok":
        return "ok"
    return found_in(path)


def _record_prediction(setup: Setup, recorder: Recorder, history: History) -> None:
    """Theory's consensus distance and envelope at the times at which they were measured."""
    expected = predict(setup, history.measures, history.lrs, history.gammas)
    if expected is None:
        return
    every, steps = setup.cell.probes.every, setup.cell.train.steps
    for t in sorted({*range(0, steps + 1, every), steps}):
        recorder.metric(t, "consensus_distance", expected.xi[t], which="theory")
        recorder.metric(t, "envelope", expected.envelope[t], which="theory")


def _both(interrupts: Interrupts, watch: Watch | None) -> Watch:
    def after(t: int) -> None:
        if watch is not None:
            watch(t)
        interrupts.check()

    return after
