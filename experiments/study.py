"""Arms times seeds: every cell of a study, one after the other or in several processes, and what came of them.

Ctrl-C ends the cells that run, each with a readable, `interrupted` run directory, and is passed on. With `resume` the
cells that are `ok` on disk are not run again, and those that have checkpoints go on from the last.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from dissensus.experiments.config import Study
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import write
from dissensus.experiments.progress import Progress, Silent
from dissensus.experiments.records import STUDY_FILE, Recorder, directory_of, read_summary
from dissensus.experiments.runner import Outcome, run_cell
from dissensus.experiments.tracking import check_trackers

_REPORTED = 20
"""Steps between two messages about progress."""


def run_study(
    study: Study,
    root: Path | str = "runs",
    *,
    processes: int = 1,
    progress: Progress | None = None,
    resume: bool = False,
    track: Sequence[str] = (),
) -> list[Outcome]:
    """Runs every cell of a study and returns how each ended, in the order of the cells.

    With more than one process, cells run in fresh interpreters (spawn): call it from an importable main module or a
    notebook. Results do not depend on the number of processes, nor on trackers (`track`), which get a copy of them.
    """
    if processes < 1:
        raise ConfigError(f"processes must be at least 1, got {processes}")
    check_trackers(track)
    root, progress, options = (
        Path(root),
        progress or Silent(),
        {"resume": resume, "track": track, "rule": study.rule},
    )
    cells = study.cells()
    kept = {at: outcome for at, cell in enumerate(cells) if resume and (outcome := _finished(cell, root)) is not None}
    todo = {at: cell for at, cell in enumerate(cells) if at not in kept}
    begin_study(study, root, todo.values())
    progress.begin(len(cells), sum(cell.train.steps for cell in cells))
    for at, outcome in kept.items():
        progress.advance(cells[at].train.steps)
        progress.finish(outcome)
    if processes == 1 or len(todo) <= 1:
        done = _here(todo, root, progress, **options)
    else:
        done = _in_processes(todo, root, progress, min(processes, len(todo)), **options)
    outcomes = {**kept, **done}
    return [outcomes[at] for at in sorted(outcomes)]


def begin_study(study: Study, root: Path, cells: Iterable[Study] | None = None) -> None:
    """Writes the resolved study into its folder, if nothing that is optional is missing for its cells."""
    check_extras(study.cells() if cells is None else cells)
    (root / study.name).mkdir(parents=True, exist_ok=True)
    write(study, root / study.name / STUDY_FILE)


def check_extras(cells: Iterable[Study]) -> None:
    """Refuses data that an optional package would have to provide, before anything is written."""
    from dissensus.experiments.data import DATASETS

    for name in {cell.data.name for cell in cells}:
        DATASETS.require(name)


def _finished(cell: Study, root: Path) -> Outcome | None:
    path, (arm, _, seed) = directory_of(root, cell), cell.only
    return Outcome(path, arm, seed, "ok") if read_summary(path).get("status") == "ok" else None


def _here(cells: dict[int, Study], root: Path, progress: Progress, **options: Any) -> dict[int, Outcome]:
    done = {}
    for at, cell in cells.items():
        watch = every_so_often(cell.train.steps, progress.advance)
        done[at] = run_cell(cell, root, watch, **options)
        if done[at].status == "ok":
            watch(cell.train.steps)  # a run that was resumed at its end has made no step
        progress.finish(done[at])
        if done[at].status == "interrupted":
            raise KeyboardInterrupt
    return done


def every_so_often(steps: int, tell: Callable[[int], Any]) -> Callable[[int], None]:
    """Tells about every twentieth step, and about the last, how many more are done."""
    told = 0

    def watch(t: int) -> None:
        nonlocal told
        if t % _REPORTED == 0 or t == steps:
            tell(t - told)
            told = t

    return watch


_messages: Any = None
_stop: Any = None


def _initialize(messages: Any, stop: Any) -> None:
    """A process of the pool: leaves Ctrl-C to its parent, which raises `stop`, and ends when its parent is killed."""
    global _messages, _stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _messages, _stop = messages, stop
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _in_pool(cell: Study, root: Path, **options: Any) -> Outcome:
    if _stop.is_set():  # it was waiting in the queue of the pool: leave no directory
        arm, _, seed = cell.only
        return Outcome(directory_of(root, cell), arm, seed, "interrupted", "not started")
    tell = every_so_often(cell.train.steps, _messages.put)

    def watch(t: int) -> None:
        tell(t)
        if _stop.is_set():
            raise KeyboardInterrupt

    return run_cell(cell, root, watch, **options)


def _in_processes(
    cells: dict[int, Study], root: Path, progress: Progress, processes: int, **options: Any
) -> dict[int, Outcome]:
    context = mp.get_context("spawn")
    messages, stop = context.Queue(), context.Event()
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_initialize, initargs=(messages, stop))
    try:
        with _deaf_children():
            futures = {at: pool.submit(partial(_in_pool, **options), cell, root) for at, cell in cells.items()}
        done = _follow(futures, messages, progress, lambda at: _died(cells[at], root))
    except KeyboardInterrupt:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()
    return done


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that begin in here ignore Ctrl-C from their first instruction on, long before `_initialize`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _died(cell: Study, root: Path) -> Outcome:
    """What is left of a cell when a process of the pool was killed, which ends all the others too."""
    arm, _, seed = cell.only
    path = directory_of(root, cell)
    error = "a process of the pool died (killed, or out of memory); what is missing runs with resume"
    if (path / "config.toml").exists() and not (path / "summary.json").exists():
        Recorder(path).summary("failed", arm=arm, seed=seed, error=error)
    return Outcome(path, arm, seed, "failed", error)


def _follow(
    futures: Mapping[int, Future[Outcome]], messages: Any, progress: Progress, died: Callable[[int], Outcome]
) -> dict[int, Outcome]:
    """Passes messages of the processes on until all cells are done, and says how they ended."""
    waiting, done = dict(futures), {}
    while waiting:
        with contextlib.suppress(queue.Empty):
            progress.advance(messages.get(timeout=0.1))
        for at in [at for at, future in waiting.items() if future.done()]:
            try:
                done[at] = waiting.pop(at).result()
            except BrokenProcessPool:
                done[at] = died(at)
            progress.finish(done[at])
    while True:
        try:
            progress.advance(messages.get(timeout=0.05))
        except queue.Empty:
            return done
