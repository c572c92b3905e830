"""From files and overrides to a study: merged left to right, then `section.key=value`, and every error with its place.

Precedence: defaults < first file < ... < last file < overrides. Every leaf remembers where it came from, so an error
says `ring.toml: unknown key 'train.stesp'; did you mean 'steps'?`. A misspelt key is never passed over.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dissensus.experiments.config import Arm, Study, resolved
from dissensus.experiments.dotted import flatten, place
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.grid import KEY as GRID
from dissensus.experiments.grid import expanded
from dissensus.experiments.sections import Data, Model, Optimizer, TopologyChoice
from dissensus.experiments.toml import write_toml
from dissensus.theory.errors import MixingError, nearest

Path_ = tuple[str, ...]
_COMMAND_LINE = "command line"


def load(files: str | Path | Sequence[str | Path] = (), overrides: Iterable[str] = (), **values: Any) -> Study:
    """Reads TOML files, merged left to right, then applies `section.key=value` overrides, then checks every name.

    Keyword arguments are sections given in Python, below all files: `load(arms={"dsgd": {"algorithm": "dsgd"}})`.
    """
    tree: dict[str, Any] = {}
    origin: dict[Path_, str] = {}
    _merge(tree, values, "arguments", origin)
    files = [files] if isinstance(files, str | Path) else list(files)
    if files:
        origin[()] = ", ".join(map(str, files))
    for file in files:
        _merge(tree, _read(Path(file)), str(file), origin)
    for override in overrides:
        path, value = _override(override)
        try:
            if path.startswith(f"{GRID}."):
                _merge(tree, {GRID: {path.removeprefix(f"{GRID}."): value}}, f"{_COMMAND_LINE}: --{path}", origin)
                continue
            place(tree, path, value)
        except ConfigError as error:
            raise ConfigError(f"{_COMMAND_LINE}: {error}") from None
        parts = tuple(path.split("."))
        for end in range(1, len(parts)):  # a table that only the command line speaks of has its place there
            origin.setdefault(parts[:end], f"{_COMMAND_LINE}: --{path}")
        origin[parts] = f"{_COMMAND_LINE}: --{path}"
    return study_of(expanded(tree, origin), origin)


def study_of(tree: Mapping[str, Any], origin: Mapping[Path_, str] | None = None) -> Study:
    """A checked study from nested tables."""
    origin = origin or {}
    try:
        # as JSON, where a list may be a tuple but a text is no number and a number no truth value
        study = Study.model_validate_json(json.dumps(tree, default=_plain), strict=True)
    except ValidationError as error:
        raise ConfigError(_explain(error, origin)) from None
    checked: set[str] = set()
    for arm in study.arms:
        _check_names(study, arm, origin, checked)
    return study


def _plain(value: Any) -> Any:
    """What Python may hand over and JSON does not know: whole sections, numbers of numpy, paths."""
    if isinstance(value, BaseModel):
        return resolved(value)
    return value.item() if hasattr(value, "item") else str(value)


def recorded(path: Path) -> Study:
    """The configuration that a run has written; the names in it were checked before it ran."""
    try:
        return Study.model_validate(_read(path))
    except ValidationError as error:
        raise ConfigError(_explain(error, {(): str(path)})) from None


def write(study: Study, path: Path) -> None:
    """Writes the resolved study; `load(path)` gives it back and reproduces its runs."""
    write_whole(path, write_toml(resolved(study)))


def write_whole(path: Path, text: str) -> None:
    """Writes a whole text file or nothing: into a neighbour first, then moved over."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            return tomllib.load(stream)
    except FileNotFoundError:
        beside = sorted(p.name for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        raise ConfigError(f"no configuration file {str(path)!r}{nearest(path.name, beside)}") from None
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {str(path)!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def _merge(tree: dict[str, Any], new: Mapping[str, Any], source: str, origin: dict[Path_, str], at: Path_ = ()) -> None:
    for key, value in new.items():
        origin[(*at, key)] = source
        if (*at, key) == (GRID,) and isinstance(value, Mapping):  # its keys are paths, in quotes or not
            tree[GRID] = {**tree.get(GRID, {}), **flatten(value)}
            origin.update({(GRID, path): source for path in flatten(value)})
        elif isinstance(value, Mapping):
            below = tree.get(key)
            tree[key] = below = dict(below) if isinstance(below, Mapping) else {}
            _merge(below, value, source, origin, (*at, key))
        else:
            tree[key] = value


def _override(text: str) -> tuple[str, Any]:
    path, equals, value = text.removeprefix("--").partition("=")
    if not equals or not path or not all(path.split(".")):
        raise ConfigError(f"{_COMMAND_LINE}: expected section.key=value, got {text!r}")
    try:
        return path, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return path, value


def _where(path: Path_, origin: Mapping[Path_, str]) -> str:
    for end in range(len(path), -1, -1):
        if path[:end] in origin:
            return f"{origin[path[:end]]}: "
    return ""


def _explain(error: ValidationError, origin: Mapping[Path_, str]) -> str:
    lines = []
    for problem in error.errors():
        path = tuple(str(part) for part in problem["loc"] if part != "[key]")
        where, dotted = _where(path, origin), ".".join(path)
        if problem["type"] == "extra_forbidden":
            lines.append(f"{where}unknown key {dotted!r}{nearest(path[-1], _fields(path[:-1]))}")
        elif problem["type"] == "missing":
            lines.append(f"{where}{dotted!r} is missing{_misspelt(path, problem['input'])}")
        else:
            said = problem["msg"].removeprefix("Value error, ")
            got = "" if isinstance(problem["input"], Mapping | BaseModel) else f", got {problem['input']!r}"
            lines.append(f"{where}{dotted + ': ' if dotted else ''}{said}{got}")
    return "\n".join(lines)


def _misspelt(path: Path_, section: Any) -> str:
    """What was perhaps meant for the missing last key of a path."""
    others = [key for key in section if key not in _fields(path[:-1])] if isinstance(section, Mapping) else []
    close = difflib.get_close_matches(path[-1], others, n=1)
    return f"; did you write {close[0]!r} for it?" if close else ""


def _fields(path: Path_) -> list[str]:
    """The keys of the section at a path."""
    model: Any = Study
    for part in path:
        model = Arm if model is Study and part == "arms" else model
        field = model.model_fields.get(part) if model is not Arm else None
        model = _present(field.annotation) if field is not None else model
    return [*model.model_fields, GRID] if not path else list(model.model_fields)


def _present(annotation: Any) -> Any:
    """The section itself where a study may do without it."""
    return next((a for a in typing.get_args(annotation) if a is not type(None)), annotation)


def _check_names(study: Study, arm: str, origin: Mapping[Path_, str], checked: set[str]) -> None:
    """Builds everything that an arm names, apart from the data, and gives a refusal its place.

    What is in `checked` was built for another arm already.
    """
    from dissensus.algorithms.registry import algorithms
    from dissensus.experiments.data import DATASETS
    from dissensus.experiments.models import MODELS
    from dissensus.experiments.optimizers import check_optimizer, optimizer_parameters
    from dissensus.theory import registry, topology

    try:
        cell = study.cell(arm, study.seeds[0])
    except ValidationError as error:
        raise ConfigError(
            f"{_where(('arms', arm, 'changes'), origin)}arms.{arm}.changes: {_explain(error, {})}"
        ) from None
    chosen = cell.arms[arm]
    checks = {
        ("data",): lambda: DATASETS.check(cell.data.name, cell.data.parameters),
        ("model",): lambda: MODELS.check(cell.model.name, cell.model.parameters),
        ("optimizer",): lambda: check_optimizer(cell.optimizer.name, cell.optimizer.parameters),
        ("topology",): lambda: topology(cell.topology.name, cell.train.workers, **cell.topology.parameters),
        ("arms", arm): lambda: _build(chosen),
    }
    known = {
        ("data",): (Data, cell.data, lambda: DATASETS.parameters(cell.data.name)),
        ("model",): (Model, cell.model, lambda: MODELS.parameters(cell.model.name)),
        ("optimizer",): (Optimizer, cell.optimizer, lambda: optimizer_parameters(cell.optimizer.name)),
        ("topology",): (TopologyChoice, cell.topology, lambda: registry.entry(cell.topology.name).parameters),
        ("arms", arm): (Arm, chosen, lambda: _settable(algorithms().get(chosen.algorithm.replace("_", "-")))),
    }
    for path, check in checks.items():
        kind, section, parameters = known[path]
        about = f"{path[0]}, {cell.train.workers} workers: {section.model_dump_json(exclude={'label'})}"
        if about in checked:
            continue
        checked.add(about)
        try:
            _check_own_keys(kind, section.parameters, parameters)
            check()
        except (ValueError, TypeError, MixingError) as error:
            key = (*path, _mentioned(str(error), cell, path))
            changed = next((p for p in flatten(study.arms[arm].changes) if p == ".".join(key)), None)
            if changed is not None:
                where = _where(("arms", arm, "changes"), origin)
                raise ConfigError(f"{where}[arms.{arm}.changes] {changed}: {error}") from None
            where = _where(key, origin) or _where(path, origin)
            raise ConfigError(f"{where}[{'.'.join(path)}] {error}") from None


def _build(chosen: Arm) -> None:
    """Builds the algorithm of an arm; where it trips over a type, the type that it declares is named."""
    from dissensus.algorithms.registry import algorithm, algorithms
    from dissensus.experiments.registry import check_values

    try:
        algorithm(chosen.algorithm, **chosen.parameters)
    except TypeError:
        name = chosen.algorithm.replace("_", "-")
        check_values(f"algorithm {name!r}", algorithms()[name], chosen.parameters)
        raise


def _settable(of: type | None) -> list[str]:
    return [field.name for field in dataclasses.fields(of) if field.init] if of is not None else []


def _check_own_keys(kind: type[BaseModel], parameters: Mapping[str, Any], known: Callable[[], Iterable[str]]) -> None:
    """Refuses an unknown key that is nearer to a key of the section itself than to a parameter of what it names."""
    own, others = list(kind.model_fields), list(known()) if parameters else []
    for key in parameters:
        close = difflib.get_close_matches(key, [*others, *own], n=1, cutoff=0.5)
        if key not in others and close and close[0] in own:
            raise ConfigError(f"there is no parameter {key!r}; did you mean {close[0]!r}?")


def _mentioned(message: str, cell: Study, path: Path_) -> str:
    """The key of the section that the message quotes, so that the place is the place of that key."""
    section: Any = cell.arms[path[1]] if path[0] == "arms" else getattr(cell, path[0])
    keys = [*section.parameters, "name" if path[0] != "arms" else "algorithm"]
    return next((key for key in keys if f"parameter {key!r}" in message), keys[-1])
