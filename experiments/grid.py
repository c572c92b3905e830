"""The grid of a study: keys with lists of values, whose product becomes plain arms before anything else looks.

    [grid]
    "lr.peak" = [0.05, 0.1]           # multiplies every arm
    "arms.dsgd-ac.p" = [1.0, 3.0]     # multiplies this arm only

Expanded arms are numbered (`dsgd-ac-1`, ...): a name encodes no configuration, the label says it in words.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from dissensus.experiments.config import SHARED, Study
from dissensus.experiments.dotted import flatten, place
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.sections import Named, Section
from dissensus.theory.errors import nearest

KEY = "grid"
Axis = tuple[str, str, list[Any]]
"""Where in the table of an arm the values go, what a label calls that, and the values."""


def expanded(tree: Mapping[str, Any], origin: dict[tuple[str, ...], str]) -> dict[str, Any]:
    """The tables of a study without its grid: every arm that the grid touches is replaced by its product.

    `origin` says where each key comes from, for errors, and is told where the new arms come from.
    """
    plain = {key: value for key, value in tree.items() if key != KEY}
    if KEY not in tree:
        return plain
    grid, arms = tree[KEY], plain.get("arms", {})
    if not isinstance(grid, Mapping):
        raise ConfigError(f"{_from(origin)}grid must be a table of keys with lists of values, got {grid!r}")
    axes: dict[str, list[Axis]] = {name: [] for name in arms}
    for path, values in flatten(grid).items():
        try:
            _check_values(path, values)
            for name, axis in _axes(path, values, arms).items():
                _add(axes[name], axis, name, arms[name])
        except ConfigError as error:
            raise ConfigError(f"{_from(origin, path)}{error}") from None
        if tuple(path.split(".")) in origin and origin[tuple(path.split("."))].startswith("command line"):
            raise ConfigError(
                f"command line: --{path}: the grid varies {path!r}, so one value for it says nothing; "
                f"override its list: --grid.{path} '[...]'"
            )
        origin.setdefault(tuple(path.split(".")), f"{_from(origin, path)}grid")
    products = {name: _product(name, arms, axes[name], origin) for name in arms}
    _check_decision(plain, {name: list(products[name]) for name, found in axes.items() if found}, origin)
    return plain | {"arms": {name: arm for product in products.values() for name, arm in product.items()}}


def _check_values(path: str, values: Any) -> None:
    if not isinstance(values, list | tuple):
        raise ConfigError(f"grid: {path!r} must be a list of values, got {values!r}: write [{values!r}]")
    if not values:
        raise ConfigError(f"grid: {path!r} has no values: an empty list leaves no arm")
    for at, value in enumerate(values):
        if value in values[:at]:
            raise ConfigError(f"grid: {path!r} lists {value!r} twice: every value is one arm")


def _axes(path: str, values: list[Any], arms: Mapping[str, Any]) -> dict[str, Axis]:
    """The arms that a key multiplies, and how."""
    first, *rest = path.split(".")
    if first == "arms" and rest:
        name, inside = rest[0], ".".join(rest[1:])
        if name not in arms:
            raise ConfigError(f"grid: {path!r}: there is no arm {name!r}{nearest(name, arms)}")
        if inside in ("", "label", "changes"):
            raise ConfigError(f"grid: {path!r} cannot be varied: name a parameter of the arm, such as 'arms.{name}.p'")
        if inside.startswith("changes."):
            _check_key(inside.removeprefix("changes."))
        return {name: (inside, inside.removeprefix("changes."), list(values))}
    _check_key(path)
    return {name: (f"changes.{path}", path, list(values)) for name in arms}


def _check_key(path: str) -> None:
    """Refuses a key that belongs to the whole study, or that no section has."""
    first, *rest = path.split(".")
    if first in SHARED:
        raise ConfigError(f"grid: {path!r} belongs to the whole study and cannot be varied between arms")
    sections = [key for key in Study.model_fields if key not in SHARED]
    if first not in sections:
        raise ConfigError(f"grid: unknown key {path!r}{nearest(first, sections)}")
    section = _section(first)
    if not rest:
        raise ConfigError(f"grid: {path!r} is a section: vary one of its keys, such as '{path}.{_example(section)}'")
    if issubclass(section, Section) and rest[0] not in section.model_fields:
        raise ConfigError(f"grid: unknown key {path!r}{nearest(rest[0], section.model_fields)}")


def _section(name: str) -> type[BaseModel]:
    annotation = Study.model_fields[name].annotation
    kinds = [annotation, *getattr(annotation, "__args__", ())]
    return next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section | Named))


def _example(section: type[BaseModel]) -> str:
    return next(iter(section.model_fields))


def _add(axes: list[Axis], axis: Axis, name: str, arm: Any) -> None:
    """Adds an axis to those of an arm, unless somebody has set that key already."""
    where, said, _ = axis
    if any(where == other for other, _, _ in axes):
        raise ConfigError(f"grid: {said!r} is varied twice in arm {name!r}: for all arms, and for this one")
    own = flatten(arm.get("changes", {})) if isinstance(arm, Mapping) else {}
    if where == f"changes.{said}" and said in own:
        raise ConfigError(f"grid: arm {name!r} sets {said!r} itself, in its changes: leave one of the two out")
    axes.append(axis)


def _product(
    name: str, arms: Mapping[str, Any], axes: list[Axis], origin: dict[tuple[str, ...], str]
) -> dict[str, Any]:
    """What becomes of an arm: one for every point of the product of its axes, or itself."""
    if not axes or not isinstance(arms[name], Mapping):
        return {name: arms[name]}
    points = list(itertools.product(*(values for _, _, values in axes)))
    width = len(str(len(points)))
    found = {}
    for number, point in enumerate(points, start=1):
        new = f"{name}-{number:0{width}}"
        if new in arms:
            raise ConfigError(f"{_from(origin)}grid: the arms of {name!r} are numbered, and there is {new!r} already")
        found[new] = _at(arms[name], name, axes, point)
        origin[("arms", new)] = f"{_from(origin)}grid"
    return found


def _at(arm: Mapping[str, Any], name: str, axes: list[Axis], point: tuple[Any, ...]) -> dict[str, Any]:
    """The arm at one point of the product."""
    one: dict[str, Any] = copy.deepcopy(dict(arm))
    words = [str(arm.get("label") or name)]
    for (where, said, _), value in zip(axes, point, strict=True):
        if where == f"changes.{said}":
            one["changes"] = {**flatten(one.get("changes", {})), said: value}
        else:
            place(one, where, value)
        words.append(f"{said} {_word(value)}")
    one["label"] = ", ".join(words)
    return one


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.12g}"
    return " ".join(map(_word, value)) if isinstance(value, list | tuple) else str(value)


def _check_decision(
    plain: Mapping[str, Any], products: Mapping[str, list[str]], origin: Mapping[tuple[str, ...], str]
) -> None:
    """Refuses a treatment or a control that became several arms: which is meant is fixed before anything runs."""
    decision = plain.get("decision", {})
    if not isinstance(decision, Mapping):
        return
    for key in ("treatment", "controls"):
        said = decision.get(key)
        for chosen in said if isinstance(said, list | tuple) else [said]:
            if isinstance(chosen, str) and chosen in products:
                new = products[chosen]
                shown = new if len(new) <= 6 else [*new[:2], "...", new[-1]]
                where = origin.get(("decision", key), "")
                raise ConfigError(
                    f"{where + ': ' if where else ''}decision.{key}: {chosen!r} is an arm that the grid multiplies: "
                    f"name one of {', '.join(shown)}"
                )


def _from(origin: Mapping[tuple[str, ...], str], path: str = "") -> str:
    where = origin.get((KEY, path)) or origin.get((KEY,)) or ""
    return f"{where}: " if where else ""
