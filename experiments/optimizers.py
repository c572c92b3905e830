r"""The local move by name (any optimizer of `torch.optim`, `accum-adam`, `accum-adamw`), and the learning rate.

With peak rate a, warm-up w from a share f, last share l and T steps, the rate of step t is

$$ a\,\bigl(f + (1-f)\,t/w\bigr) \quad (t < w), \qquad
   a\,\bigl(l + (1-l)\,\tfrac12\bigl(1+\cos\pi\tfrac{t-w}{T-w}\bigr)\bigr) \quad (t \ge w). $$
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.registry import check_values
from dissensus.experiments.sections import Rate
from dissensus.theory.errors import nearest

Factory = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


def optimizer(name: str, parameters: Mapping[str, Any], lr: float) -> Factory:
    """What makes the local optimizer from a list of tensors; the engine writes the rate of each step into it."""
    check_optimizer(name, parameters)
    return functools.partial(_class(name), lr=lr, **parameters)


def check_optimizer(name: str, parameters: Mapping[str, Any]) -> None:
    """Refuses an unknown optimizer or parameter with the nearest one."""
    cls, signature = _class(name), optimizer_parameters(name)
    for key in parameters:
        if key == "lr":
            raise ConfigError("the learning rate is not a parameter of the optimizer: set lr.peak")
        if key not in signature:
            raise ConfigError(f"optimizer {name!r} has no parameter {key!r}{nearest(key, signature)}")
    check_values(f"optimizer {name!r}", cls, parameters)
    try:
        cls([torch.nn.Parameter(torch.zeros(1, 1))], **parameters)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"optimizer {name!r} refuses {dict(parameters)}: {error}") from error


def optimizer_parameters(name: str) -> list[str]:
    """The parameters of an optimizer that a configuration may set."""
    return [key for key in inspect.signature(_class(name)).parameters if key not in ("params", "lr")]


def rate_at(rate: Rate, steps: int) -> Callable[[int], float]:
    """The learning rate of step t of `steps`."""

    def at(t: int) -> float:
        if t < rate.warmup:
            return rate.peak * (rate.warmup_from + (1.0 - rate.warmup_from) * t / rate.warmup)
        if rate.schedule == "constant":
            return rate.peak
        progress = min(1.0, (t - rate.warmup) / (steps - rate.warmup))
        return rate.peak * (rate.last + (1.0 - rate.last) * 0.5 * (1.0 + math.cos(math.pi * progress)))

    return at


def _class(name: str) -> type[torch.optim.Optimizer]:
    """The class of that name; dashes, underscores and capitals do not matter."""
    from dissensus.algorithms.optimizers import optimizer_class

    try:
        return optimizer_class(name)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def is_sgd(name: str) -> bool:
    """Whether the local move is SGD, for which the theory of the disagreement is exact on quadratics."""
    return name.lower() == "sgd"
