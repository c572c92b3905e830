"""A checkpoint on the disk: one file a worker, and a description without which it does not count.

    checkpoints/step_000100/
      worker_0000.pt ...   the state of one worker, written by whichever process holds it (see `nest`)
      state.json           step, size, facts of the run, versions, bytes and sha256 of every worker's file

A directory of that name with a `state.json` is complete (`saving` says why); anything else is passed over. The last one
is the one saved last, which its `serial` says, also where a run went back to an earlier step. A worker's state is

    {"parameters": {name: tensor}, "buffers": {name: tensor}, "optimizer": nest, "algorithm": {field: tensor},
     "deployed": {name: tensor}, "names": [name], "generators": nest, "engine": nest, "extra": nest}

of which all but the first may be absent: `deployed` where it differs from the parameters, `names` what the state_dict
of the bare model holds, `engine` what the engine needs besides (an exchange in flight), `extra` what the run wants
back: its position in the data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from dissensus.algorithms.engines.distributed.durable import Written, measured
from dissensus.algorithms.engines.distributed.nest import read_nest
from dissensus.algorithms.errors import AlgorithmError

SCHEMA_VERSION = 1
STATE = "state.json"
PARTS = ("parameters", "buffers", "optimizer", "algorithm", "deployed", "names", "generators", "engine", "extra")
_COMPLETE = re.compile(r"step_(\d{6,})(\.replaced)?")
_PARTIAL = re.compile(r"step_(\d{6,})\.partial-[0-9a-f]+")

State = Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint, as its `state.json` describes it."""

    path: Path
    step: int
    size: int
    """How many workers the run has; those that were gone when it was saved have no file."""
    serial: int
    facts: Mapping[str, Any]
    versions: Mapping[str, str]
    files: Mapping[int, Written]

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Reads the description."""
        try:
            return cls._parsed(path)
        except FileNotFoundError:
            raise AlgorithmError(f"{path} is no complete checkpoint: it has no {STATE}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, AlgorithmError):
                raise
            raise AlgorithmError(f"{path / STATE} is damaged ({error}){instead(path)}") from None

    @classmethod
    def _parsed(cls, path: Path) -> Checkpoint:
        found = json.loads((path / STATE).read_text(encoding="utf-8"))
        if found["schema_version"] != SCHEMA_VERSION:
            ours = f"dissensus {metadata.version('dissensus')} reads version {SCHEMA_VERSION}"
            raise AlgorithmError(
                f"{path / STATE} has schema version {found['schema_version']}, {ours}: go on with the dissensus that "
                "wrote it"
            )
        files = {int(i): Written(one["bytes"], one["sha256"]) for i, one in found["workers"].items()}
        kept = {key: found[key] for key in ("step", "size", "serial", "facts", "versions")}
        return cls(path=path, files=dict(sorted(files.items())), **kept)

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers it holds."""
        return tuple(self.files)

    def state(self, worker: int, *, mapped: bool = False) -> State:
        """The state of one worker, from a file that is what was written. `mapped`: see `read_nest`."""
        if worker not in self.files:
            known = f"workers {', '.join(map(str, self.files))}"
            raise AlgorithmError(f"{self.path} has no worker {worker}: of {self.size} workers it holds {known}")
        file, expected = self.path / worker_file(worker), self.files[worker]
        try:
            if file.stat().st_size != expected.bytes:
                raise AlgorithmError(
                    f"{file} is cut off or changed: {file.stat().st_size} bytes where {expected.bytes} were written"
                    f"{instead(self.path)}"
                )
            if measured(file) != expected:
                raise AlgorithmError(
                    f"{file} is damaged: its sha256 is not that of what was written{instead(self.path)}"
                )
        except FileNotFoundError:
            raise AlgorithmError(f"{file} is missing{instead(self.path)}") from None
        return read_nest(file, mapped=mapped)


def worker_file(worker: int) -> str:
    """The name of a worker's file."""
    return f"worker_{worker:04d}.pt"


def checkpoints(folder: Path | str, *, damaged: Literal["raise", "skip"] = "raise") -> list[Checkpoint]:
    """The complete checkpoints of a folder, in the order in which they were saved.

    `damaged` says what becomes of one whose `state.json` cannot be read.
    """
    found = []
    for path in places(Path(folder))[0]:
        try:
            found.append(Checkpoint._parsed(path))
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError, AttributeError):
            if damaged == "raise":
                found.append(Checkpoint.read(path))
    return sorted(found, key=lambda one: one.serial)


def latest(folder: Path | str) -> Checkpoint | None:
    """The checkpoint saved last, or `None`; what is incomplete is passed over."""
    return next(reversed(checkpoints(folder)), None)


def places(folder: Path) -> tuple[list[Path], list[Path]]:
    """The directories that may be complete checkpoints, and those that cannot."""
    try:
        found = sorted(path for path in folder.iterdir() if path.is_dir())
    except FileNotFoundError:
        return [], []
    whole = [path for path in found if _COMPLETE.fullmatch(path.name) and (path / STATE).exists()]
    return whole, [p for p in found if (_COMPLETE.fullmatch(p.name) or _PARTIAL.fullmatch(p.name)) and p not in whole]


def instead(path: Path) -> str:
    """What to do where a checkpoint is damaged."""
    others = [one for one in checkpoints(path.parent, damaged="skip") if one.path != path]
    if not others:
        return f"; there is no other complete checkpoint in {path.parent}"
    return f"; remove the directory {path.name} to go on from {others[-1].path.name}"
