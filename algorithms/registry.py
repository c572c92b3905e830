"""Algorithms by name: one file under `algorithms/recursions/`, one `@register` line, and every sweep finds it."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.optimizers import optimizer_class, optimizer_name
from dissensus.algorithms.protocol import Algorithm
from dissensus.theory.errors import nearest

C = TypeVar("C", bound=type)

_classes: dict[str, type] = {}


def register(name: str) -> Callable[[C], C]:
    """Registers a frozen dataclass under its public name (dashes; underscores are accepted everywhere)."""

    def add(cls: C) -> C:
        if name in _classes:
            raise AlgorithmError(f"algorithm {name!r} is registered twice")
        if not hasattr(cls, "__dataclass_fields__"):
            raise AlgorithmError(f"algorithm {name!r} must be a frozen dataclass of its hyper-parameters")
        cls.name = name
        _classes[name] = cls
        return cls

    return add


@cache
def _discover() -> None:
    package = importlib.import_module("dissensus.algorithms.recursions")
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"dissensus.algorithms.recursions.{module}")


def algorithms() -> Mapping[str, type]:
    """Every registered algorithm by name."""
    _discover()
    return dict(sorted(_classes.items()))


def algorithm(name: str, **parameters: Any) -> Algorithm:
    """Builds an algorithm by name: `algorithm("dsgd", order="atc")`, `algorithm("dsgd-ac", p=3, start=100)`."""
    known, wanted = algorithms(), name.replace("_", "-")
    if wanted not in known:
        raise AlgorithmError(f"unknown algorithm {name!r}{nearest(wanted, known)}")
    fields = [f.name for f in dataclasses.fields(known[wanted]) if f.init]
    for key in parameters:
        if key not in fields:
            raise AlgorithmError(f"algorithm {wanted!r} has no parameter {key!r}{nearest(key, fields)}")
    return known[wanted](**parameters)


def planned(of: Algorithm, lr: float | Callable[[int], float], steps: int) -> Algorithm:
    """The algorithm as it runs when the whole schedule of the learning rate is known beforehand.

    An algorithm that cares has a method `planned(lr, steps)`: DSGD-AC knows the largest rate of its window then.
    """
    plan = getattr(of, "planned", None)
    return of if plan is None else plan(lr if callable(lr) else lambda _: lr, steps)


def reformed(of: Algorithm, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Points and state to go on from among other workers than before, after some were lost or have come.

    An algorithm that remembers what was mixed has a method `reformed(x, state)`; what others remember speaks of the
    worker alone, and stays.
    """
    again = getattr(of, "reformed", None)
    return (x, state) if again is None else again(x, state)


def default_optimizer(of: Algorithm | type) -> Callable[[Any], torch.optim.Optimizer]:
    """The local optimizer an algorithm is published with, as a function of parameters; SGD if it names none."""
    cls: Any = optimizer_class(getattr(of, "optimizer", "sgd"))
    return cls


def check_optimizer(of: Algorithm, optimizer: torch.optim.Optimizer | type[torch.optim.Optimizer]) -> None:
    """Refuses a local optimizer with which an algorithm would be another one: engines ask before the first step.

    An algorithm that cares names its `families`; a class derived from one of them is of the family.
    """
    families: tuple[str, ...] | None = getattr(of, "families", None)
    cls = optimizer if isinstance(optimizer, type) else type(optimizer)
    if families is not None and not issubclass(cls, tuple(optimizer_class(name) for name in families)):
        raise AlgorithmError(
            f"algorithm {of.name!r} has an Adam at every worker ({', '.join(families)}), but the local optimizer is "
            f"{optimizer_name(cls)}; use dsgd"
        )
