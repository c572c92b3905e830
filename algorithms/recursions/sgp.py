r"""Stochastic gradient push: DSGD on directed graphs, where only the columns of the mixing matrix sum to one.

$$ z = x / w, \qquad x^+ = A_t\,(x - \alpha\, u(g(z))), \qquad w^+ = A_t\, w, \qquad w^0 = 1 $$

Sums over workers are kept by $A$, averages are not; the weight $w$ goes through the same exchanges as $x$ and takes the
bias out. Gradients are taken at $z$, and $z$ is what a worker deploys. On a doubly stochastic schedule $w$ stays 1 and
the method is DSGD in the order `atc`.

The local optimizer sees the model the worker has, $z$, and its displacement is applied to $x$; for an optimizer
without weight decay this is the recursion above, and weight decay pulls at the model rather than at the biased $x$.

Reference: Assran, Loizou, Ballas and Rabbat 2019, arXiv:1811.10792.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.protocol import Await, DenseProblem, Gradient, Local, Note, Post, Step
from dissensus.algorithms.registry import register
from dissensus.theory.mixing import Stochasticity


class PushSum(NamedTuple):
    """The push-sum weights."""

    weight: Tensor
    """(n, 1), positive, summing to n."""


@register("sgp")
@dataclass(frozen=True)
class Sgp:
    """SGP; on a column stochastic topology every worker ends at the mean."""

    name: ClassVar[str]
    reference: ClassVar[str] = "Assran, Loizou, Ballas and Rabbat 2019, arXiv:1811.10792"
    promise: ClassVar[Stochasticity | None] = "column"
    static: ClassVar[bool] = False
    columnwise: ClassVar[bool] = True

    def init(self, x: Tensor) -> PushSum:
        """Every weight is one."""
        return PushSum(torch.ones_like(x[:, :1]))

    def step(self, x: Tensor, state: PushSum, local: Local) -> Step[PushSum]:
        """Gradient at z, move, and push both sums."""
        of_w = yield Post(state.weight)
        z = x / state.weight
        g = yield Gradient(z)
        # x - z is exactly zero where the weight is one, so that SGP then is DSGD to the bit
        of_x = yield Post((x - z) + local.move(z, g))
        weight = yield Await(of_w)
        yield Note("push-sum weight", weight)
        return (yield Await(of_x)), PushSum(weight)

    def reformed(self, x: Tensor, state: PushSum) -> tuple[Tensor, PushSum]:
        """Among other workers weights start at one, at the de-biased models: the weights of all summed to another n."""
        z = x / state.weight
        return z, self.init(z)

    def deployed(self, x: Tensor, state: PushSum) -> Tensor:
        """The de-biased model z = x / w."""
        return x / state.weight

    def matrix_form(self, problem: DenseProblem, steps: int) -> np.ndarray:
        """The recursion of the paper; the move enters as the displacement it makes at z."""
        x, w = problem.x0, np.ones(len(problem.x0))
        trajectory = [x]
        for t in range(steps):
            a = problem.mixing(t)
            z = np.diag(1.0 / w) @ x
            displacement = problem.move(t, z, problem.gradient(t, z), problem.lr(t)) - z
            x, w = a @ (x + displacement), a @ w
            trajectory.append(np.diag(1.0 / w) @ x)
        return np.stack(trajectory)
