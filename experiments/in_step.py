"""A study whose every cell is shared by all processes: they go through the cells in step, one after the other.

A cell that cannot be built (its data, model or topology is refused) is recorded as failed by the first process, all of
them hear of it, and they go on. A cell that fails while it trains leaves messages under way that nobody will read: then
the processes end, and whoever has started them starts them again. What came of a cell since the study was begun, which
is when `study.toml` was written, is not done again then, be it good or bad.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dissensus.experiments.cell import check_parts
from dissensus.experiments.config import Study
from dissensus.experiments.processes import Processes, launched, started_again
from dissensus.experiments.progress import Progress, Silent
from dissensus.experiments.records import STUDY_FILE, Recorder, directory_of, read_summary
from dissensus.experiments.runner import Outcome, run_cell
from dissensus.experiments.study import begin_study, every_so_often
from dissensus.theory.errors import DissensusError


def run_in_step(
    study: Study,
    root: Path,
    crew: Processes,
    *,
    progress: Progress | None = None,
    resume: bool = False,
    **options: Any,
) -> list[Outcome]:
    """Runs every cell of a study that has not ended yet; all processes call it together.

    `options` are those of `run_cell`. Raises where a cell fails in training, after it was recorded.
    """
    cells, progress = study.cells(), progress or Silent()
    done = crew.told_by_first(lambda: _begun(study, root, resume=resume))
    progress.begin(len(cells), sum(cell.train.steps for cell in cells))
    for at, cell in enumerate(cells):
        if at in done:
            progress.advance(cell.train.steps)
        else:
            watch = every_so_often(cell.train.steps, progress.advance)
            done[at] = _unbuildable(cell, root, crew) or _trained(
                run_cell(cell, root, watch, processes=crew, resume=resume, rule=study.rule, **options)
            )
        progress.finish(done[at])
    return [done[at] for at in sorted(done)]


def concluded(study: Study, root: Path, *, resume: bool) -> dict[int, Outcome]:
    """The cells that are not run: those that have ended since the study was begun, and with `resume` all `ok` ones."""
    found = {}
    began = (root / study.name / STUDY_FILE).stat().st_mtime_ns
    for at, cell in enumerate(study.cells()):
        path, (arm, _, seed) = directory_of(root, cell), cell.only
        summary = read_summary(path)
        status = summary.get("status")
        if status == "ok" and (resume or _since(began, path)):
            found[at] = Outcome(path, arm, seed, "ok")
        elif status == "failed" and _since(began, path):
            found[at] = Outcome(path, arm, seed, "failed", str(summary.get("error", "")))
    return found


def _begun(study: Study, root: Path, *, resume: bool) -> dict[int, Outcome]:
    """What is done already. Whoever is first of all begins the study: `launcher`'s caller, or process 0 of torchrun."""
    if not launched() and not (started_again() and (root / study.name / STUDY_FILE).exists()):
        begin_study(study, root)
    return concluded(study, root, resume=resume)


def _since(began: int, path: Path) -> bool:
    return (path / "summary.json").stat().st_mtime_ns >= began


def _unbuildable(cell: Study, root: Path, crew: Processes) -> Outcome | None:
    """The failure of a cell that some process cannot build; every process is told, and so all of them go on."""
    path, (arm, _, seed) = directory_of(root, cell), cell.only
    try:
        check_parts(cell, crew.wire)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
        if crew.first:
            Recorder.create(root, cell).summary("failed", arm=arm, seed=seed, error=error)
        return Outcome(path, arm, seed, "failed", error)
    return None


def _trained(outcome: Outcome) -> Outcome:
    """Ends the first process where its cell has failed in training, as the others end by their own errors."""
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    if outcome.status == "failed":
        raise DissensusError(
            f"{outcome.arm}, seed {outcome.seed} failed and is recorded as that ({outcome.error}); "
            "what is left takes new processes"
        )
    return outcome
