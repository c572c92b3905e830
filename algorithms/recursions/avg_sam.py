r"""Average-direction SAM: the gradient of the loss averaged over random perturbations, not over the worst one.

$$ \bar g_i(x) = \frac1K \sum_{k=1}^{K} g_i(x + \epsilon_{ik}), \qquad
   x_i^+ = x_i - \alpha\, u\Big(\frac1n\sum_j \bar g_j(x_j)\Big) $$

In expectation it descends $\mathbb E_\epsilon f(x+\epsilon) = f + \tfrac12 \mathrm{Tr}(H\Sigma_\epsilon) + \dots$,
with the covariance Σ of the perturbation. Decentralized SGD does that at its mean iterate, with the covariance of the
disagreement; here it is isotropic:

- `law="sphere"`: uniform on the sphere of radius ρ over all d parameters, $\Sigma = \rho^2/d\; I$. ρ is a length as in
  `sam`; with $\rho^2 = \Xi$ the trace is that of a disagreement with consensus distance Ξ;
- `law="gaussian"`: $\mathcal N(0, \rho^2 I)$. ρ is a standard deviation per parameter, of length about $\rho\sqrt d$.

`draws` is K. With `antithetic` every draw is used in both signs, 2K gradients a step: what is odd in ε cancels, so that
on a quadratic the gradient is exact. Worker i draws at step t from the stream (seed, "avg-sam", t, i), in the dtype of
the parameters. `order` is as in `sam`: `allreduce` (the centralized baseline) or `awc`, `atc`, `cta`.

All K gradients are of the same batch. Buffers (BatchNorm statistics, counters) are updated at each of them and at the
perturbed points only; dropout draws anew for each; the loss that is recorded is that of the first perturbed point.

Reference: Zhu et al. 2023, arXiv:2306.02913, for the loss; isotropic perturbations and the two laws are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import DenseProblem, Gradient, Local, Norm, RandomGenerator, Stateless, Step
from dissensus.algorithms.recursions.dsgd import Answer
from dissensus.algorithms.recursions.sam import (
    SharpOrder,
    check_sharp,
    dense_sharp,
    promise_of,
    sharp,
    toward_length,
)
from dissensus.algorithms.registry import register
from dissensus.theory.errors import nearest
from dissensus.theory.mixing import Stochasticity

LAWS = ("sphere", "gaussian")
STREAM = "avg-sam"


@register("avg-sam")
@dataclass(frozen=True)
class AvgSam:
    """Gradients at random points around the worker's own; centralized unless told otherwise."""

    rho: float = 0.05
    """The length of a perturbation (`sphere`), or its standard deviation per parameter (`gaussian`)."""
    draws: int = 1
    """How many directions a worker draws per step."""
    antithetic: bool = False
    """Whether every direction is used in both signs."""
    law: Literal["sphere", "gaussian"] = "sphere"
    order: SharpOrder = "allreduce"

    name: ClassVar[str]
    reference: ClassVar[str] = "Zhu et al. 2023, arXiv:2306.02913"
    promise: ClassVar[Stochasticity | None] = None
    """None for `allreduce`; the orders that mix need doubly stochastic rounds."""
    static: ClassVar[bool] = False
    columnwise: ClassVar[bool] = False
    stochastic: ClassVar[bool] = True
    """It draws: equal workers with equal batches do not stay equal, and a relabelling must relabel the streams too."""

    def __post_init__(self) -> None:
        check_sharp(self.rho, self.order)
        if isinstance(self.draws, bool) or not isinstance(self.draws, int) or self.draws < 1:
            raise AlgorithmError(f"draws must be a whole number of directions, at least 1, got {self.draws!r}")
        if self.law not in LAWS:
            raise AlgorithmError(f"law must be 'sphere' or 'gaussian', got {self.law!r}{nearest(str(self.law), LAWS)}")
        object.__setattr__(self, "promise", promise_of(self.order))

    def init(self, x: Tensor) -> Stateless:
        """Nothing to remember."""
        del x
        return Stateless()

    def step(self, x: Tensor, state: Stateless, local: Local) -> Step[Stateless]:
        """One step in the chosen order, along the mean gradient of the perturbed points."""
        return (yield from sharp(x, self.order, local, partial(self._gradient, local.generators(STREAM)))), state

    def _gradient(self, generators: list[RandomGenerator], at: Tensor) -> Answer:
        total: Tensor | None = None
        signs = (1.0, -1.0) if self.antithetic else (1.0,)
        for _ in range(self.draws):
            drawn = torch.stack([_normal(at, generator) for generator in generators])
            norm = (yield Norm(drawn)) if self.law == "sphere" else torch.ones_like(at[:, :1])
            for sign in signs:
                g = yield Gradient(toward_length(at, drawn, sign * self.rho, norm))
                total = g if total is None else total + g
        assert total is not None
        count = self.draws * len(signs)
        return total if count == 1 else total / count

    def deployed(self, x: Tensor, state: Stateless) -> Tensor:
        """The point itself."""
        del state
        return x

    def matrix_form(self, problem: DenseProblem, steps: int) -> np.ndarray:
        """The mean over all perturbations, every one of them written out; needs the problem's generators."""

        def averaged(t: int, x: np.ndarray) -> np.ndarray:
            d = x.shape[1]
            streams = problem.generators(t, STREAM)
            epsilon = np.stack(
                [
                    [torch.randn(d, generator=s, dtype=torch.float64).numpy() for _ in range(self.draws)]
                    for s in streams
                ],
                axis=1,
            )
            if self.law == "sphere":
                epsilon = epsilon / np.sqrt((epsilon**2).sum(axis=2, keepdims=True))
            if self.antithetic:
                epsilon = np.concatenate([epsilon, -epsilon])
            return np.mean([problem.gradient(t, x + self.rho * e) for e in epsilon], axis=0)

        return dense_sharp(replace(problem, gradient=averaged), steps, self.order)


def _normal(like: Tensor, generator: RandomGenerator) -> Tensor:
    """A row of independent standard normal numbers, drawn where the generator lives."""
    row = torch.randn(like.shape[1], generator=generator, dtype=like.dtype, device=generator.device)
    return row.to(like.device)
