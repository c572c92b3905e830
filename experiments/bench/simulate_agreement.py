"""Whether the contenders of the simulation benchmark compute the same: nobody is timed doing something else.

What is compared are the very objects that are timed afterwards, in the precision and with the threads they are timed
with: all start at the same unequal points, and after two steps (so that what an optimizer remembers is seen as well)
their workers have to stand where those of the plain Python loop stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dissensus.algorithms import StackedEngine
from dissensus.experiments.bench.simulate_models import Batch, Case
from dissensus.experiments.bench.simulate_rivals import OPTIMIZERS, BigStep, OptimizerFactory
from dissensus.theory.registry import topology

STEPS = 2
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""The largest difference of two results, relative to how far the workers have moved."""


class Contender(Protocol):
    """Something that steps all workers at once."""

    def step(self) -> object:
        """One step of every worker."""
        ...

    @property
    def x(self) -> Tensor:
        """The points of the workers, (n, d)."""
        ...


class Ours:
    """The engine as a user builds it, DSGD on a ring and routes chosen by itself, with its batch at hand."""

    def __init__(self, case: Case, workers: int, factory: OptimizerFactory, batch: Batch, **options: Any) -> None:
        given = {"algorithm": "dsgd", "optimizer": factory, "topology": topology("ring", workers)} | options
        self.engine = StackedEngine(case.model(), case.loss, **given)
        self._batch = batch

    def step(self) -> object:
        """One step of every worker."""
        return self.engine.step(self._batch)

    @property
    def x(self) -> Tensor:
        """The points of the workers, (n, d)."""
        return self.engine.x

    @property
    def d(self) -> int:
        """The number of parameters of a worker."""
        return self.engine.columns.size


def agreement(expected: Contender, contenders: Mapping[str, Contender], start: Tensor) -> dict[str, Any]:
    """Steps all of them, and says how far each is from the expected one and whether all differences are small."""
    for contender in (expected, *contenders.values()):
        for _ in range(STEPS):
            contender.step()
    found = {name: difference(c.x, expected.x, start) for name, c in contenders.items()}
    return {"difference": found, "agree": all(value < TOLERANCE[start.dtype] for value in found.values())}


@cache
def difference_to_big_step(case: Case, workers: int = 4) -> float | None:
    """From equal points, the mean of our workers' first moves is the big batch's gradient; how far it is from it.

    Not so with BatchNorm, whose statistics depend on who shares a batch. In double precision: one move is too short to
    be seen accurately in single.
    """
    if case.normalised:
        return None
    case, factory = replace(case, double=True), OPTIMIZERS["sgd"]
    batch = case.samples(workers)
    ours, big = Ours(case, workers, factory, batch), BigStep(case, workers, factory, batch)
    before = ours.engine.mean.clone()
    ours.step()
    big.step()
    lr = factory([nn.Parameter(torch.zeros(1))]).defaults["lr"]
    return difference(ours.engine.mean, before - lr * big.gradient(), before)


def difference(found: Tensor, expected: Tensor, start: Tensor) -> float:
    """How far two results are apart, relative to how far the expected one lies from the start."""
    return float((found - expected).norm() / (expected - start).norm())
