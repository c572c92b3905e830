r"""Quasi-global momentum: the momentum follows where the worker went after mixing, which is nearly where all went.

$$ \hat m = \beta m + g, \qquad u = \hat m \;\text{ or }\; g + \beta \hat m \;\text{(Nesterov)}, \qquad
x^+ = W(x - \alpha u), \qquad m^+ = (1-\nu)\, m + \nu\,\frac{x - x^+}{\alpha} $$

with $m = 0$ before the first step. The displacement is the one that is observed, so it contains what mixing did: no
further message is needed. The order is `atc` and belongs to the method.

The move along $u$ is the local optimizer, which should be plain SGD: a momentum of its own would come on top. Its
weight decay $\lambda$ belongs to the gradient, as in the published code, $g = \nabla f(x) + \lambda x$: it enters $u$
once for heavy ball and $1+\beta$ times for Nesterov. At a learning rate of zero the memory is left as it is, since
nothing can be divided by it. Where workers have rates of their own, α is the worker's.

Reference: Lin, Karimireddy, Stich and Jaggi 2021, arXiv:2102.04761 (QG-DSGDm and QG-DSGDm-N).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import DenseProblem, Gradient, Local, Mix, Step
from dissensus.algorithms.registry import register
from dissensus.theory.mixing import Stochasticity


class QuasiGlobal(NamedTuple):
    """The momentum m."""

    momentum: Tensor


@register("qg-dsgdm")
@dataclass(frozen=True)
class QgDsgdm:
    """QG-DSGDm, and QG-DSGDm-N with `nesterov=True`."""

    beta: float = 0.9
    nu: float = 0.1
    """How much of the latest displacement the memory takes; 1 - ν is the paper's μ."""
    nesterov: bool = False

    name: ClassVar[str]
    reference: ClassVar[str] = "Lin, Karimireddy, Stich and Jaggi 2021, arXiv:2102.04761"
    promise: ClassVar[Stochasticity | None] = "doubly"
    static: ClassVar[bool] = False
    columnwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.beta < 1.0:
            raise AlgorithmError(f"beta must lie in [0, 1), got {self.beta}")
        if not 0.0 <= self.nu <= 1.0:
            raise AlgorithmError(f"nu must lie in [0, 1], got {self.nu}")

    def init(self, x: Tensor) -> QuasiGlobal:
        """No momentum."""
        return QuasiGlobal(torch.zeros_like(x))

    def step(self, x: Tensor, state: QuasiGlobal, local: Local) -> Step[QuasiGlobal]:
        """Gradient, move along the momentum, mix, and remember the displacement."""
        g = yield Gradient(x)
        m = self.beta * state.momentum + g
        half = local.move(x, g + self.beta * self._decayed(m, x, local.decay) if self.nesterov else m)
        mixed = yield Mix(half)
        return mixed, QuasiGlobal(self._followed(state.momentum, x - mixed, local.rate))

    def _decayed(self, m: Tensor, x: Tensor, decay: float | Tensor) -> Tensor:
        """The momentum with the decay that belongs to g; the move adds it once more, to whatever it goes along."""
        return m + decay * x if isinstance(decay, Tensor) or decay != 0.0 else m

    def _followed(self, momentum: Tensor, displacement: Tensor, rate: float | Tensor) -> Tensor:
        """m+; where the rate is zero, m."""
        if not isinstance(rate, Tensor):
            return momentum if rate == 0.0 else (1.0 - self.nu) * momentum + self.nu * (displacement / rate)
        moving = rate != 0.0
        followed = (1.0 - self.nu) * momentum + self.nu * (displacement / torch.where(moving, rate, 1.0))
        return torch.where(moving, followed, momentum)

    def deployed(self, x: Tensor, state: QuasiGlobal) -> Tensor:
        """The point itself."""
        del state
        return x

    def matrix_form(self, problem: DenseProblem, steps: int) -> np.ndarray:
        """The four equations of the module, one after the other; the decay of g is left to the move where it can be."""
        x, m = problem.x0, np.zeros_like(problem.x0)
        trajectory = [x]
        for t in range(steps):
            lr, g = problem.lr(t), problem.gradient(t, x)
            m_hat = self.beta * m + g
            u = g + self.beta * (m_hat + problem.decay * x) if self.nesterov else m_hat
            x_new = problem.mixing(t) @ problem.move(t, x, u, lr)
            if lr != 0.0:
                m = m + self.nu * ((x - x_new) / lr - m)
            x = x_new
            trajectory.append(x)
        return np.stack(trajectory)
