"""How far a study is: every cell with its status, also those that were never begun, and how much is left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from dissensus.experiments.config import Study
from dissensus.experiments.loading import load
from dissensus.experiments.records import STUDY_FILE, directory_of, read_summary

State = Literal["ok", "failed", "interrupted", "missing"]


@dataclass(frozen=True)
class CellStatus:
    """One cell on disk."""

    arm: str
    seed: int
    status: State
    """`missing`: it has no run directory; `interrupted`: it was ended or killed, or is running now."""
    path: Path
    wall_s: float | None
    error: str

    @classmethod
    def of(cls, cell: Study, folder: Path) -> CellStatus:
        """Reads no more than how the run in the folder of its study ended."""
        (arm, _, seed), path = cell.only, folder / directory_of(folder, cell).name
        if not (path / "config.toml").exists():
            return cls(arm, seed, "missing", path, None, "")
        summary = read_summary(path)
        return cls(
            arm,
            seed,
            summary.get("status", "interrupted"),
            path,
            summary.get("wall_s"),
            str(summary.get("error") or ""),
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return vars(self) | {"path": str(self.path)}

    def __str__(self) -> str:
        said = f"{self.arm}, seed {self.seed}: {'not run' if self.status == 'missing' else self.status}"
        return f"{said}: {self.error}" if self.error not in ("", self.status) else said


@dataclass(frozen=True)
class StudyStatus:
    """All cells of a study, in the order in which they run."""

    name: str
    cells: tuple[CellStatus, ...]

    @classmethod
    def of(cls, study: Study, folder: Path) -> StudyStatus:
        """The study as it is in a folder."""
        return cls(study.name, tuple(CellStatus.of(cell, folder) for cell in study.cells()))

    @classmethod
    def read(cls, folder: Path) -> StudyStatus | None:
        """The study of a folder; `None` where no `study.toml` says which cells there should be."""
        if not (folder / STUDY_FILE).exists():
            return None
        return cls.of(load(folder / STUDY_FILE), folder)

    @property
    def left(self) -> list[CellStatus]:
        """What `--resume` would run."""
        return [cell for cell in self.cells if cell.status != "ok"]

    @property
    def seconds_left(self) -> float | None:
        """What that takes in one process, if it takes what the others took."""
        took = [cell.wall_s for cell in self.cells if cell.status == "ok" and cell.wall_s is not None]
        return mean(took) * len(self.left) if took else None

    def count(self, status: State) -> int:
        """How many cells have this status."""
        return sum(cell.status == status for cell in self.cells)

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {s}" for s in ("ok", "failed", "interrupted", "missing") if (n := self.count(s)))
        said = f"{len(self.cells)} runs: {counts}"
        if self.left and self.seconds_left is not None:
            said += f"; the {len(self.left)} that are left take about {_duration(self.seconds_left)} of one process"
        return said


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
