r"""Local SGD: workers run by themselves and average their points every H steps.

$$ x^{t+1/2} = x^t - \alpha_t u(g(x^t)), \qquad
x^{t+1} = \begin{cases} J x^{t+1/2} & H \mid t+1 \\ x^{t+1/2} & \text{otherwise} \end{cases} $$

with $J = \mathbf{1}\mathbf{1}^\top/n$. The average is an all-reduce: the topology is not used. The optimizer's memory
is local and is not averaged, its weight decay acts at the own point. With $H = 1$ it is DSGD in the order `atc` on the
complete graph.

Reference: Stich 2019, arXiv:1805.09767.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import DenseProblem, Gradient, Local, Mean, Stateless, Step
from dissensus.algorithms.registry import register
from dissensus.theory.mixing import Stochasticity


@register("local-sgd")
@dataclass(frozen=True)
class LocalSgd:
    """Local SGD, or any local optimizer with periodic averaging."""

    period: int = 8
    """H, the number of steps from one average to the next."""

    name: ClassVar[str]
    reference: ClassVar[str] = "Stich 2019, arXiv:1805.09767"
    promise: ClassVar[Stochasticity | None] = None
    static: ClassVar[bool] = False
    columnwise: ClassVar[bool] = True
    in_place: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.period, bool) or not isinstance(self.period, int) or self.period < 1:
            raise AlgorithmError(f"period must be a whole number of steps, at least 1, got {self.period!r}")

    def init(self, x: Tensor) -> Stateless:
        """Nothing to remember."""
        del x
        return Stateless()

    def step(self, x: Tensor, state: Stateless, local: Local) -> Step[Stateless]:
        """Gradient and move; the mean at the end of a period."""
        g = yield Gradient(x)
        moved = local.move(x, g)
        if (local.t + 1) % self.period == 0:
            moved = yield Mean(moved)
        return moved, state

    def deployed(self, x: Tensor, state: Stateless) -> Tensor:
        """The point itself."""
        del state
        return x

    def matrix_form(self, problem: DenseProblem, steps: int) -> np.ndarray:
        """X+ = V_t (X - α u(G)) with V_t = J at the end of a period and the identity otherwise."""
        n = len(problem.x0)
        trajectory = [problem.x0]
        for t in range(steps):
            v = np.full((n, n), 1.0 / n) if t % self.period == self.period - 1 else np.eye(n)
            x = trajectory[-1]
            trajectory.append(v @ problem.move(t, x, problem.gradient(t, x), problem.lr(t)))
        return np.stack(trajectory)
