"""Saving a checkpoint: complete or not there, whenever and wherever a process is killed.

All processes of a run call `save`, each with the states of its own workers, on one shared file system. What they need
of each other is `together`: it takes a value from every process and hands all of them to each. Four times they meet:

1. all mean the same step, the same facts, and no worker is held twice;
2. the process of the first worker has swept what earlier kills left behind, and made a directory of a name that
   nobody else has (`.partial-...`): what a run writes that should be dead cannot get in;
3. every worker's file is on the disk, with its length and hash;
4. `state.json` is, and the directory has got its name in one atomic move: from here on the checkpoint is complete.

Then old ones go, `state.json` first, so that half of one is never taken for whole. One that is saved again at the same
step steps aside (`.replaced`) just before the new one takes its name. If one process fails on the way, all raise its
sentence, and the last complete checkpoint is what it was.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dissensus.algorithms.engines.distributed.checkpoint import (
    PARTS,
    SCHEMA_VERSION,
    STATE,
    State,
    checkpoints,
    places,
    worker_file,
)
from dissensus.algorithms.engines.distributed.durable import Written, remove_last, settle, write_durably
from dissensus.algorithms.engines.distributed.nest import write_nest
from dissensus.algorithms.errors import AlgorithmError
from dissensus.theory.errors import nearest

PATIENCE = 10.0
"""Seconds in which a network file system may show what another machine has written."""

Together = Callable[[Any], Sequence[Any]]


def alone(said: Any) -> Sequence[Any]:
    """The meeting of a single process."""
    return [said]


def save(
    folder: Path | str,
    step: int,
    own: Mapping[int, State],
    *,
    size: int,
    facts: Mapping[str, Any] | None = None,
    together: Together = alone,
    keep: int | None = 3,
) -> Path:
    """Writes the checkpoint of a step; every process calls it, with the states of its own workers.

    Args:
        folder: where the checkpoints of the run are, the same for all processes.
        step: which step the states are of.
        own: worker -> state, of the workers of this process.
        size: how many workers the run has.
        facts: what a run is checked against when it goes on (`algorithm`, `topology`, ...), the same in all processes.
        together: the meeting of the processes.
        keep: how many complete checkpoints stay, `None` for all.

    Returns:
        the directory, complete on the disk.
    """
    place = Path(folder) / f"step_{step:06d}"

    def plan() -> dict[str, Any]:
        _check_call(step, own, size, keep)
        try:
            plain = json.loads(json.dumps({} if facts is None else dict(facts), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise AlgorithmError(f"facts must be plain values that JSON has, but {error}") from None
        return {"step": step, "size": size, "keep": keep, "facts": plain, "workers": sorted(own)}

    if together is alone and len(own) < size:
        raise AlgorithmError(
            f"{len(own)} of {size} workers are to be saved by a process that is alone: pass together=, a function that "
            "gathers a value from all processes"
        )
    failed = f"the checkpoint {place.name} could not be written"
    plans = meet(together, failed, plan)
    holder = _agreed(plans)
    first = plans[holder]["workers"][0] in own
    partial = place.with_name(meet(together, failed, lambda: _make_room(place, keep) if first else None)[holder])
    wrote = meet(together, failed, lambda: _write_own(partial, own))
    files = {i: Written(*written) for part in wrote for i, written in part}
    meet(together, failed, lambda: _complete(partial, place, plans[holder], files) if first else None)
    if first:
        _prune(place.parent, keep)
    return place


def _check_call(step: int, own: Mapping[int, State], size: int, keep: int | None) -> None:
    if step < 0:
        raise AlgorithmError(f"a step is counted from 0, got {step}")
    if keep is not None and keep < 1:
        raise AlgorithmError(f"keep is how many checkpoints stay and must be at least 1, got {keep}; None keeps all")
    for worker, state in own.items():
        if not 0 <= worker < size:
            raise AlgorithmError(f"there is no worker {worker}: workers are counted from 0 to {size - 1}")
        strange = next((key for key in state if key not in PARTS), None)
        if strange is not None:
            raise AlgorithmError(f"the state of worker {worker} has no part {strange!r}{nearest(strange, PARTS)}")
        if not state.get("parameters"):
            raise AlgorithmError(f"the state of worker {worker} has no parameters: it needs {{name: tensor}} there")


def meet(together: Together, failed: str, act: Callable[[], Any]) -> list[Any]:
    """Everybody acts and hears what came of it; if anybody failed, all raise the same: `failed` and why."""
    failure: Exception | None = None
    answer = None
    try:
        answer = act()
    except Exception as error:
        failure = error
    told = None if failure is None else _told(failure, failed)
    heard = together((answer, told))
    if isinstance(failure, AlgorithmError):
        raise failure
    for _, problem in heard:
        if problem is not None:
            raise AlgorithmError(problem) from failure
    return [one for one, _ in heard]


def _told(error: Exception, failed: str) -> str:
    if isinstance(error, AlgorithmError):
        return str(error)
    first: BaseException | None = error
    while first is not None and not isinstance(first, OSError):
        first = first.__context__  # torch complains about the end of a file that a full disk has cut off
    if first is None:
        return f"{failed}: {str(error).strip().split(chr(10))[0] or type(error).__name__}"
    error = first
    at = f"{error.filename}: " if error.filename else ""
    swept = "; does another run save there and has swept it?" if isinstance(error, FileNotFoundError) else ""
    return f"{failed}: {at}{error.strerror or error}{swept}"


def _agreed(plans: Sequence[Mapping[str, Any]]) -> int:
    """Which process holds the first worker, once all mean the same and no worker is held twice."""
    holders: dict[int, int] = {}
    for process, plan in enumerate(plans):
        for key in ("step", "size", "keep", "facts"):
            if plan[key] != plans[0][key]:
                raise AlgorithmError(
                    f"process {process} saves a checkpoint with {key} {plan[key]!r}, process 0 with {plans[0][key]!r}: "
                    "all must say the same"
                )
        for worker in plan["workers"]:
            if worker in holders:
                raise AlgorithmError(
                    f"processes {holders[worker]} and {process} both save worker {worker}: each worker is saved once"
                )
            holders[worker] = process
    if not holders:
        raise AlgorithmError("no process has a worker to save: pass own={worker: state}")
    return holders[min(holders)]


def _make_room(place: Path, keep: int | None) -> str:
    """The name of an empty directory that nobody else knows; what is incomplete is swept."""
    folder = place.parent
    os.makedirs(folder, exist_ok=True)
    _prune(folder, keep)
    for path in places(folder)[1]:
        with suppress(OSError):  # somebody's own folder in there: it stays, and is passed over
            remove_last(path, STATE)
    partial = place.with_name(f"{place.name}.partial-{secrets.token_hex(4)}")
    os.mkdir(partial)
    return partial.name


def _write_own(place: Path, own: Mapping[int, State]) -> list[tuple[int, Written]]:
    _await(place.is_dir, place)
    return [(i, write_nest(place / worker_file(i), dict(state))) for i, state in own.items()]


def _complete(partial: Path, place: Path, plan: Mapping[str, Any], files: Mapping[int, Written]) -> None:
    """Writes `state.json` when every worker's file is seen to be there, and gives the directory its name."""
    for worker, written in files.items():
        file = partial / worker_file(worker)
        _await(lambda file=file, size=written.bytes: file.exists() and file.stat().st_size == size, file)
    others = [one.serial for one in checkpoints(place.parent, damaged="skip")]
    state = {
        "schema_version": SCHEMA_VERSION,
        "step": plan["step"],
        "size": plan["size"],
        "serial": max(others, default=0) + 1,
        "facts": plan["facts"],
        "versions": _versions(),
        "workers": {i: {"file": worker_file(i), **written._asdict()} for i, written in sorted(files.items())},
    }
    text = json.dumps(state, indent=1, allow_nan=False) + "\n"
    write_durably(partial / STATE, lambda stream: stream.write(text.encode()))
    if (place / STATE).exists():
        os.rename(place, place.with_name(f"{place.name}.replaced"))
    os.rename(partial, place)
    settle(place.parent)


def _await(is_there: Callable[[], bool], path: Path) -> None:
    """Waits for what another process has written."""
    until = time.monotonic() + PATIENCE
    while not is_there():
        if time.monotonic() > until:
            raise AlgorithmError(
                f"{path} was written by one process and is not seen by another: all need one folder on a shared file "
                "system, and no other run may save there"
            )
        time.sleep(0.02)


def _versions() -> dict[str, str]:
    return {
        "dissensus": metadata.version("dissensus"),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _prune(folder: Path, keep: int | None) -> None:
    """Removes all but the last complete checkpoints, and any that has been replaced."""
    complete = checkpoints(folder, damaged="skip")
    paths = {one.path for one in complete}
    staying = [one for one in complete if one.path.suffix == "" or one.path.with_suffix("") not in paths]
    for old in complete:
        if old not in staying[-(keep or 0) :]:
            try:
                remove_last(old.path, STATE)
            except OSError as error:
                warnings.warn(f"the old checkpoint {old.path} could not be removed: {error.strerror}", stacklevel=3)
