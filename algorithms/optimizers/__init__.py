"""Local optimizers: torch's, and the few that torch does not have, by name."""

from __future__ import annotations

import inspect
from functools import cache

import torch

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.optimizers.accum_adam import AccumAdam, AccumAdamW
from dissensus.theory.errors import nearest

OURS: dict[str, type[torch.optim.Optimizer]] = {"accum-adam": AccumAdam, "accum-adamw": AccumAdamW}


@cache
def optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """Every local optimizer by its public name: torch's classes in lower case, and ours."""
    base = torch.optim.Optimizer
    torchs = {
        name.lower(): value
        for name, value in vars(torch.optim).items()
        if inspect.isclass(value) and issubclass(value, base) and value is not base
    }
    return torchs | OURS


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """The class of that name; dashes, underscores and capitals do not matter."""
    found = {_plain(known): cls for known, cls in optimizers().items()}.get(_plain(name))
    if found is None:
        raise AlgorithmError(f"unknown optimizer {name!r}{nearest(name.lower().replace('_', '-'), optimizers())}")
    return found


def optimizer_name(cls: type[torch.optim.Optimizer]) -> str:
    """The public name of a class, or of the nearest class that it is derived from."""
    names = {known: name for name, known in optimizers().items()}
    return next((names[base] for base in cls.__mro__ if base in names), cls.__name__)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


__all__ = ["AccumAdam", "AccumAdamW", "optimizer_class", "optimizer_name", "optimizers"]
