"""The claims by name: every module of this package that carries a `@claim` is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping

from dissensus.experiments.claims.base import Check, Claim, Scale
from dissensus.experiments.errors import ConfigError
from dissensus.theory.errors import nearest

_CLAIMS: dict[str, Claim] = {}
_PLACE = "dissensus.experiments.claims.checks"


def claim(
    name: str,
    *,
    title: str,
    statement: str,
    source: str,
    measured: str,
    rule: str,
    budget: Mapping[Scale, str],
    studies: tuple[str, ...] = (),
) -> Callable[[Check], Check]:
    """Registers the check below it under a name in lower case with dashes."""

    def add(check: Check) -> Check:
        if name in _CLAIMS:
            raise ConfigError(f"claim {name!r} is registered twice")
        _CLAIMS[name] = Claim(name, title, statement, source, measured, rule, check, dict(budget), studies)
        return check

    return add


def claims() -> dict[str, Claim]:
    """All claims, in the order of their names."""
    package = importlib.import_module(_PLACE)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{_PLACE}.{module.name}")
    return dict(sorted(_CLAIMS.items()))


def find(name: str) -> Claim:
    """The claim of that name, or an error with the nearest."""
    known = claims()
    if name not in known:
        raise ConfigError(f"unknown claim {name!r}{nearest(name, known)}")
    return known[name]
