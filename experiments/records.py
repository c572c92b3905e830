"""The run directory: what one cell (arm, seed) leaves behind, readable by anybody with pandas.

    runs/<study>/study.toml       the study that the runs belong to
    runs/<study>/<arm>-s<seed>-<hash8>/
      config.toml     the resolved study of this one cell, written before training: it alone reproduces the run
      meta.json       versions, command, host, hashes of topology, data, order and start; schema_version
      metrics.jsonl   one object a line: step, which (weights), bn, name, value, wall_s
      probes.jsonl    the same with estimate, stderr, interval, num_matvecs, seed, converged
      summary.json    final numbers and status: ok | failed | interrupted; written in one atomic move
      state.pt        where train.keep says so: what every worker held at the end
      checkpoints/    where train.checkpoint_every says so: what every worker held, to go on from
      timing.json     of `dissensus train`: where the time of every process went
      events.out.*    of `--track tensorboard`: a copy of the numbers for TensorBoard

The two JSONL files only ever grow, and each line is flushed: whatever happens, what was measured is there. A last line
that was cut off by a kill is passed over on reading; a broken line anywhere else is an error.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

from dissensus.experiments.config import Study
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.json_values import plain
from dissensus.experiments.loading import recorded, write, write_whole
from dissensus.experiments.tracking import WANDB_ID, Tracking

SCHEMA_VERSION = 1
STUDY_FILE = "study.toml"
Status = Literal["ok", "failed", "interrupted"]
Which = Literal["consensus", "workers", "mean", "worst", "single", "theory"]
"""The weights a number speaks of: their average, all of them together, single ones (the key `worker` says which), or
none: a prediction."""
_FILES = (
    "config.toml", "meta.json", "metrics.jsonl", "probes.jsonl", "summary.json", "state.pt", "timing.json", WANDB_ID
)  # fmt: skip


def directory_of(root: Path, cell: Study) -> Path:
    """Where a cell lives: its name says arm and seed, and its hash changes with any key of its configuration."""
    arm, _, seed = cell.only
    return Path(root) / cell.name / f"{arm}-s{seed}-{cell.digest}"


@dataclass
class Recorder:
    """Writes the run directory of one cell. Use it as a context manager."""

    path: Path
    started: float = field(default_factory=time.perf_counter)
    rule: str = ""
    """By what the study that the run belongs to will decide; for `meta.json`."""
    tracking: Tracking | None = None
    """Who gets a copy of every number."""
    _streams: dict[str, IO[str]] = field(default_factory=dict)

    @classmethod
    def create(cls, root: Path, cell: Study) -> Recorder:
        """Makes the directory with its configuration; an earlier run of the very same cell there is replaced."""
        path = directory_of(root, cell)
        path.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (path / name).unlink(missing_ok=True)
        for old in path.glob("events.out.tfevents.*"):
            old.unlink()
        shutil.rmtree(path / "checkpoints", ignore_errors=True)
        write(cell, path / "config.toml")
        return cls(path)

    @classmethod
    def reopen(cls, path: Path, step: int) -> Recorder:
        """Goes on with a run from a step: what was recorded before stays, what came from there on is recorded anew."""
        for name in ("metrics", "probes"):
            file = path / f"{name}.jsonl"
            kept = [json.dumps(line) for line in read_lines(file) if line["step"] < step and line["which"] != "theory"]
            write_whole(file, "".join(f"{line}\n" for line in kept))
        for name in ("summary.json", "error.txt", "state.pt", "timing.json"):
            (path / name).unlink(missing_ok=True)
        return cls(path)

    @property
    def elapsed(self) -> float:
        """Seconds since the run began, those before it was resumed included."""
        return time.perf_counter() - self.started

    def continues(self, elapsed: float) -> None:
        """The run has taken so many seconds before."""
        self.started = time.perf_counter() - elapsed

    def __enter__(self) -> Recorder:
        for name in ("metrics", "probes"):
            self._streams[name] = (self.path / f"{name}.jsonl").open("a", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()

    def meta(self, **facts: Any) -> None:
        """Writes what the run knows of itself before the first step."""
        rule = {"rule": self.rule} if self.rule else {}
        write_json(self.path / "meta.json", {"schema_version": SCHEMA_VERSION, **rule, **facts})

    def metric(self, step: int, name: str, value: float, *, which: Which, **more: Any) -> None:
        """Adds one number that is exact."""
        self._append("metrics", {"step": step, "which": which, "name": name, "value": value, **more})

    def probe(self, step: int, name: str, estimate: Mapping[str, Any], *, which: Which, **more: Any) -> None:
        """Adds one estimate with how sure it is and what it cost."""
        self._append("probes", {"step": step, "which": which, **estimate, **more, "name": name})

    def summary(self, status: Status, **facts: Any) -> None:
        """Writes the end of the run, and what became of its trackers if one of them failed."""
        if self.tracking is not None:
            self.tracking.end(status)
            facts |= {"warnings": self.tracking.warnings} if self.tracking.warnings else {}
        write_json(self.path / "summary.json", {"schema_version": SCHEMA_VERSION, "status": status, **facts})

    def _append(self, stream: str, line: dict[str, Any]) -> None:
        line["wall_s"] = round(self.elapsed, 4)
        out = self._streams[stream]
        line = plain(line)
        out.write(json.dumps(line, allow_nan=False) + "\n")
        out.flush()
        if self.tracking is not None:
            self.tracking.line(line)


def write_json(path: Path, tree: Mapping[str, Any]) -> None:
    """Writes a whole JSON file or nothing: into a neighbour first, then moved over."""
    write_whole(path, json.dumps(plain(tree), indent=2, allow_nan=False) + "\n")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file; a last line without its end is passed over."""
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.split("\n")
    written = [line for line in lines if line.strip()]
    try:  # all of them at once takes half the time
        whole = json.loads(f"[{','.join(written)}]")
    except json.JSONDecodeError:
        whole = []
    if len(whole) == len(written):
        yield from whole
        return
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                return
            raise ConfigError(f"{path}: line {number} is not JSON: {error}") from None


@dataclass(frozen=True)
class Run:
    """One run directory, read back."""

    path: Path
    study: Study
    meta: dict[str, Any]
    metrics: list[dict[str, Any]]
    probes: list[dict[str, Any]]
    summary: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Run:
        """Reads a run directory, finished or not."""
        path = Path(path)
        if not (path / "config.toml").exists():
            raise ConfigError(f"{path} is no run directory: it has no config.toml")
        return cls(
            path,
            recorded(path / "config.toml"),
            _read_json(path / "meta.json"),
            list(read_lines(path / "metrics.jsonl")),
            list(read_lines(path / "probes.jsonl")),
            read_summary(path),
        )

    @property
    def arm(self) -> str:
        """The name of its arm."""
        return self.study.only[0]

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.study.only[2]

    @property
    def status(self) -> Status:
        """How it ended; a run without a summary was killed."""
        return self.summary.get("status", "interrupted")

    def series(self, name: str, *, which: str | None = None) -> tuple[list[int], list[float]]:
        """The steps and values of one quantity, from the metrics or the probes; of single workers only if asked for."""
        chosen = [
            row
            for row in self._by_name.get(name, ())
            if (row["which"] != "single" if which is None else row["which"] == which) and row["value"] is not None
        ]
        return [row["step"] for row in chosen], [row["value"] for row in chosen]

    def last(self, name: str) -> dict[str, Any] | None:
        """The last record of a quantity, or `None` if it was never measured."""
        chosen = [row for row in self._by_name.get(name, ()) if row["which"] != "single"]
        return max(chosen, key=lambda row: row["step"]) if chosen else None

    @cached_property
    def _by_name(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for row in (*self.metrics, *self.probes):
            found.setdefault(row["name"], []).append(row)
        return found


def read_summary(path: Path) -> dict[str, Any]:
    """How the run in a directory ended; empty if it has not, or was killed."""
    return _read_json(path / "summary.json")


def read_runs(root: Path) -> list[Run]:
    """All run directories under a folder, in the order of their names."""
    return [Run.read(path.parent) for path in sorted(Path(root).glob("**/config.toml"))]


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # JSON that was cut off, or bytes that are no text
        raise ConfigError(f"{path} is not JSON ({error}): remove its folder to run this cell again") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} is not a JSON object: remove its folder to run this cell again")
    return tree
