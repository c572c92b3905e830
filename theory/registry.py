"""Topologies by name: one file under `theory/topologies/`, one `@register` line, and every sweep finds it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from numbers import Integral, Real
from typing import Any, TypeVar, get_args, get_type_hints

from dissensus.theory.errors import MixingError, nearest
from dissensus.theory.topology import Topology

Builder = TypeVar("Builder", bound=Callable[..., Topology])


@dataclass(frozen=True)
class Entry:
    """A registered topology: its builder `(n, **parameters) -> Topology` and what it says of itself."""

    name: str
    build: Callable[..., Topology]

    @property
    def summary(self) -> str:
        """The first line of the builder's docstring."""
        return (inspect.getdoc(self.build) or "").split("\n", 1)[0]

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The keyword parameters beside n."""
        return {k: p for k, p in inspect.signature(self.build).parameters.items() if k != "n"}


_entries: dict[str, Entry] = {}


def register(name: str) -> Callable[[Builder], Builder]:
    """Registers a builder under its public name (dashes; underscores are accepted everywhere)."""

    def add(build: Builder) -> Builder:
        if name in _entries:
            raise MixingError(f"topology {name!r} is registered twice")
        _entries[name] = Entry(name, build)
        return build

    return add


@cache
def _discover() -> None:
    package = importlib.import_module("dissensus.theory.topologies")
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"dissensus.theory.topologies.{module}")


def catalogue() -> Mapping[str, Entry]:
    """Every registered topology by name."""
    _discover()
    return dict(sorted(_entries.items()))


def entry(name: str) -> Entry:
    """The registered topology of that name, or an error with the nearest name."""
    known, wanted = catalogue(), name.replace("_", "-")
    if wanted not in known:
        raise MixingError(f"unknown topology {name!r}{nearest(wanted, known)}")
    return known[wanted]


def topology(name: str, n: int, **parameters: Any) -> Topology:
    """Builds a topology by name: `topology("ring", 16)`, `topology("aer", 32, workers_per_node=4)`."""
    found = entry(name)
    if isinstance(n, bool) or not isinstance(n, int):
        raise MixingError(f"topology {found.name!r}: n must be a whole number, got {n!r}")
    if n < 1:
        raise MixingError(f"topology {found.name!r}: n must be at least 1, got {n}")
    for key in parameters:
        if key not in found.parameters:
            raise MixingError(f"topology {found.name!r} has no parameter {key!r}{nearest(key, found.parameters)}")
    _check_kinds(found, parameters)
    if n > MOST_WORKERS:
        raise MixingError(f"topology {found.name!r}: n must be at most {MOST_WORKERS}, got {n}")
    try:
        built = found.build(n, **parameters)
    except MemoryError:
        raise MixingError(f"topology {found.name!r}: n={n} needs more memory than there is") from None
    return replace(built, name=found.name, parameters={**parameters, **built.parameters})


MOST_WORKERS = 10**8
"""More workers than this are a slip of the keyboard."""
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}


def _check_kinds(found: Entry, parameters: Mapping[str, Any]) -> None:
    """Refuses a parameter value that is not of the kind the builder's annotation names."""
    hints = get_type_hints(found.build)
    for key, value in parameters.items():
        hint = hints.get(key, object)
        kinds = [kind for kind in get_args(hint) or (hint,) if isinstance(kind, type)]
        if kinds and not any(_is_kind(value, kind) for kind in kinds):
            wanted = " or ".join(_KINDS.get(kind, kind.__name__) for kind in kinds if kind is not type(None))
            raise MixingError(f"topology {found.name!r}: {key} must be {wanted}, got {value!r}")


def _is_kind(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    return isinstance(value, kind)
