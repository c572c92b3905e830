"""Bounds with every constant written out: one file each, found by themselves."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from dissensus.theory.bounds.base import Answer, Assumption, Bound, bound, find
from dissensus.theory.bounds.base import _known as _bounds

__all__ = ["Answer", "Assumption", "Bound", "bound", "catalogue", "find"]


@cache
def _discover() -> None:
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")


def catalogue() -> Mapping[str, Bound[Any]]:
    """Every bound by name."""
    _discover()
    return dict(sorted(_bounds.items()))
