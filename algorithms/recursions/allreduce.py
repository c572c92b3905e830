r"""Centralized training: every worker moves along the mean of all gradients.

$$ x_i^{t+1} = x_i^t - \alpha_t\, u\Big(\frac1n \sum_j g_j(x_j^t)\Big) $$

Workers that start equal stay equal; with batches of b samples this is one machine with batches of n·b. The topology is
not used: an all-reduce is not an exchange with neighbours. The local optimizer u sees the mean gradient, so its moments
are those of one machine; its weight decay acts at the worker's own point.

Reference: the synchronous data-parallel baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from dissensus.algorithms.protocol import DenseProblem, Gradient, Local, Mean, Stateless, Step
from dissensus.algorithms.registry import register
from dissensus.theory.mixing import Stochasticity


@register("allreduce")
@dataclass(frozen=True)
class AllReduce:
    """Centralized SGD, Adam or whatever the local optimizer is, on the mean gradient."""

    name: ClassVar[str]
    reference: ClassVar[str] = "the synchronous data-parallel baseline"
    promise: ClassVar[Stochasticity | None] = None
    static: ClassVar[bool] = False
    columnwise: ClassVar[bool] = True
    in_place: ClassVar[bool] = True
    equal: ClassVar[bool] = True

    def init(self, x: Tensor) -> Stateless:
        """Nothing to remember."""
        del x
        return Stateless()

    def step(self, x: Tensor, state: Stateless, local: Local) -> Step[Stateless]:
        """Gradient, mean, move."""
        g = yield Gradient(x)
        mean = yield Mean(g)
        return local.move(x, mean), state

    def deployed(self, x: Tensor, state: Stateless) -> Tensor:
        """The point itself."""
        del state
        return x

    def matrix_form(self, problem: DenseProblem, steps: int) -> np.ndarray:
        """X+ = X - α u(J G) with J = 11ᵀ/n."""
        n = len(problem.x0)
        average = np.full((n, n), 1.0 / n)
        trajectory = [problem.x0]
        for t in range(steps):
            x = trajectory[-1]
            trajectory.append(problem.move(t, x, average @ problem.gradient(t, x), problem.lr(t)))
        return np.stack(trajectory)
