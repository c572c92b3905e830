"""Trackers: TensorBoard and Weights & Biases get a copy of what a run records. Off unless asked for.

A tracker is a mirror. It changes no number and no name of a run directory, it is not part of the configuration, and
where it fails the run goes on without it and says so once, in its summary.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dissensus.experiments.config import Study, resolved
from dissensus.experiments.dotted import flatten
from dissensus.experiments.errors import ConfigError
from dissensus.theory.errors import nearest

WANDB_ID = "wandb-run"
"""The file in a run directory that says which run of Weights & Biases a resumed one goes on with."""


class Tracker(Protocol):
    """Gets the numbers of one run."""

    def __init__(self, path: Path, cell: Study, from_step: int | None) -> None:
        """Begins the run of a directory, or goes on with it from a step."""
        ...

    def number(self, step: int, tag: str, value: float) -> None:
        """One number as it is recorded."""
        ...

    def end(self, status: str) -> None:
        """The run has ended."""
        ...


class TensorBoard:
    """Event files in the run directory itself: `tensorboard --logdir runs/NAME` names runs by arm and seed."""

    def __init__(self, path: Path, cell: Study, from_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        self._writer = SummaryWriter(str(path), purge_step=from_step, flush_secs=10)
        if from_step is None:
            values = {key: v if isinstance(v, bool | int | float | str) else str(v) for key, v in _config(cell).items()}
            shown = {"test_accuracy/consensus": 0.0, "test_loss/consensus": 0.0, "consensus_distance/workers": 0.0}
            for part in hparams(values, shown):
                self._writer._get_file_writer().add_summary(part)

    def number(self, step: int, tag: str, value: float) -> None:
        """A scalar."""
        self._writer.add_scalar(tag, value, step)

    def end(self, status: str) -> None:
        """Writes what is still in memory."""
        self._writer.add_text("status", status)
        self._writer.close()


class WandB:
    """A run in the project of the study's name, in the group of its arm; `WANDB_MODE=offline` works as ever."""

    def __init__(self, path: Path, cell: Study, from_step: int | None) -> None:
        wandb: Any = importlib.import_module("wandb")

        (arm, _, seed), file = cell.only, path / WANDB_ID
        known = file.read_text(encoding="utf-8") if from_step is not None and file.exists() else None
        self._run = wandb.init(
            project=cell.name,
            group=arm,
            name=f"{arm}-s{seed}",
            config=_config(cell),
            dir=str(path),
            id=known,
            resume="allow" if known else None,
            settings=wandb.Settings(console="off", silent=True),  # standard output is for --json
        )
        file.write_text(self._run.id, encoding="utf-8")
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")  # theory's numbers come at the end, for all steps

    def number(self, step: int, tag: str, value: float) -> None:
        """A point of a history whose axis is the step."""
        self._run.log({"step": step, tag: value})

    def end(self, status: str) -> None:
        """Ends the run; one that is not `ok` is marked as failed."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status == "ok" else 1)


TRACKERS: dict[str, tuple[type[Tracker], str, str]] = {
    "tensorboard": (TensorBoard, "tensorboard", "tracking"),
    "wandb": (WandB, "wandb", "wandb"),
}
"""By name: the tracker, the package it needs, and our extra with it."""


def check_trackers(names: Iterable[str]) -> None:
    """Refuses a tracker that is unknown or whose package is missing."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"there is no tracker {name!r}{nearest(name, TRACKERS)}")
        _, package, extra = TRACKERS[name]
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:  # a folder of that name, such as trackers leave, is no package
            raise ConfigError(f"--track {name} needs the package {package}: pip install 'dissensus[{extra}]'")


@dataclass
class Tracking:
    """The trackers of one run, none of which can harm it."""

    warnings: list[str] = field(default_factory=list)
    """What each that failed said, once."""
    _trackers: dict[str, Tracker] = field(default_factory=dict)

    @classmethod
    def begin(cls, names: Iterable[str], path: Path, cell: Study, from_step: int | None) -> Tracking:
        """Begins them all."""
        found = cls()
        for name in dict.fromkeys(names):
            make = TRACKERS[name][0]
            found._guarded(name, lambda name=name, make=make: found._add(name, make(path, cell, from_step)))
        return found

    def line(self, line: Mapping[str, Any]) -> None:
        """One line of the records."""
        value = line.get("value")
        if isinstance(value, int | float):
            which = f"worker {line['worker']}" if "worker" in line else line["which"]
            for name, tracker in list(self._trackers.items()):
                tag = f"{line['name']}/{which}"
                self._guarded(name, lambda tracker=tracker, tag=tag: tracker.number(line["step"], tag, value))

    def end(self, status: str) -> None:
        """Ends them all."""
        for name, tracker in list(self._trackers.items()):
            self._guarded(name, lambda tracker=tracker: tracker.end(status))
        self._trackers.clear()

    def _add(self, name: str, tracker: Tracker) -> None:
        self._trackers[name] = tracker

    def _guarded(self, name: str, act: Callable[[], Any]) -> None:
        try:
            act()
        except Exception as error:
            self._trackers.pop(name, None)
            self.warnings.append(f"tracking with {name} ended: {type(error).__name__}: {error}")


def _config(cell: Study) -> dict[str, Any]:
    """The configuration by dotted keys, with the only arm called `arm`."""
    tree = resolved(cell)
    name, _, seed = cell.only
    arm = tree.pop("arms")[name]
    return flatten({**tree, "arm": {"name": name, **arm}, "seed": seed})
