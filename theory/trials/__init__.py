"""Random problems on which each bound is held against what it bounds, computed from first principles."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from dissensus.theory.trials.base import Draws, Family, RandomDraws, Trial, _families, slack, trial

__all__ = ["Draws", "Family", "RandomDraws", "Trial", "families", "left_out", "slack", "trial"]


@cache
def _discover() -> None:
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")


def families() -> Mapping[str, tuple[Family, ...]]:
    """The families of trials of every bound, by the bound's name; those whose package is missing are left out."""
    _discover()
    return {name: tuple(f for f in found if f.available) for name, found in sorted(_families.items())}


def left_out() -> tuple[Family, ...]:
    """The families whose package is missing."""
    _discover()
    return tuple(f for _, found in sorted(_families.items()) for f in found if not f.available)
