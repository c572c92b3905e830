r"""Gradient tracking (DIGing): every worker moves along its estimate of the mean gradient. Two messages a step.

$$ x^{t+1} = W_t x^t - \alpha_t\, u(y^t), \qquad y^{t+1} = W_t y^t + g(x^{t+1}) - g(x^t), \qquad y^0 = g(x^0) $$

The mean of $y$ is the mean of the latest gradients, always. The recursion is cut at the gradient: a step starts with
what the previous one received of $y$, adds the change of the gradient, and sends $x$ and $y$ in the same round; $x$ is
on its way while the gradient is computed. The local optimizer $u$ moves the mixed point along $y$; its memory is local
and sees $y$ only, and its weight decay is no part of what is tracked.

Reference: Nedić, Olshevsky and Shi 2017, arXiv:1607.03218 (DIGing); with stochastic gradients, Pu and Nedić 2021,
arXiv:1805.11454.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.protocol import Await, DenseProblem, Gradient, Local, Post, Step
from dissensus.algorithms.registry import register
from dissensus.theory.mixing import Stochasticity


class Tracker(NamedTuple):
    """What is carried to the next step. Both are zero before the first, which makes y^0 = g(x^0)."""

    received: Tensor
    """W_t y^t."""
    gradient: Tensor
    """g(x^t)."""


@register("gradient-tracking")
@dataclass(frozen=True)
class GradientTracking:
    """DIGing, with any local optimizer along the tracked gradient."""

    name: ClassVar[str]
    reference: ClassVar[str] = "Nedić, Olshevsky and Shi 2017, arXiv:1607.03218"
    promise: ClassVar[Stochasticity | None] = "doubly"
    static: ClassVar[bool] = False
    columnwise: ClassVar[bool] = True

    def init(self, x: Tensor) -> Tracker:
        """Nothing has been tracked."""
        return Tracker(torch.zeros_like(x), torch.zeros_like(x))

    def step(self, x: Tensor, state: Tracker, local: Local) -> Step[Tracker]:
        """Sends x, takes the gradient, updates y, sends y, moves."""
        of_x = yield Post(x)
        g = yield Gradient(x)
        y = state.received + g - state.gradient
        of_y = yield Post(y)
        mixed = yield Await(of_x)
        received = yield Await(of_y)
        return local.move(mixed, y), Tracker(received, g)

    def reformed(self, x: Tensor, state: Tracker) -> tuple[Tensor, Tracker]:
        """Among other workers tracking starts anew: y summed to the gradients of those there were."""
        del state
        return x, self.init(x)

    def deployed(self, x: Tensor, state: Tracker) -> Tensor:
        """The point itself."""
        del state
        return x

    def matrix_form(self, problem: DenseProblem, steps: int) -> np.ndarray:
        """The two recursions as the paper writes them."""
        x = problem.x0
        g = problem.gradient(0, x)
        y = g
        trajectory = [x]
        for t in range(steps):
            w = problem.mixing(t)
            x = problem.move(t, w @ x, y, problem.lr(t))
            trajectory.append(x)
            if t + 1 < steps:
                latest = problem.gradient(t + 1, x)
                y = w @ y + latest - g
                g = latest
        return np.stack(trajectory)
