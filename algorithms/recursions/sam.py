r"""Sharpness-aware minimization: the gradient is taken where the loss is about to rise most, ρ away.

Every worker perturbs its point along its own gradient, and takes the gradient there on the same batch:

$$ \hat g_i(x) = g_i\Big(x + \rho\,\frac{g_i(x)}{\|g_i(x)\|}\Big), \qquad
   x_i^+ = x_i - \alpha\, u\Big(\frac1n\sum_j \hat g_j(x_j)\Big) $$

This is m-SAM with m = the local batch size: a perturbation is that of m samples, not of the n·m of all workers. The
norm is the 2-norm over all parameters of a worker; where a gradient is zero nothing is perturbed.

| order | recursion |
|---|---|
| `allreduce` | as above: the centralized baseline; the topology is not used |
| `awc` | $x^+ = W x - \alpha u(\hat g(x))$ |
| `atc` | $x^+ = W (x - \alpha u(\hat g(x)))$ |
| `cta` | $y = W x,\; x^+ = y - \alpha u(\hat g(y))$ |

The local optimizer starts from the unperturbed point; its weight decay and momentum see $\hat g$ only. Two gradients a
step: buffers (BatchNorm statistics, counters) are updated at both, the second time at the perturbed point; dropout
draws anew for the second. The loss that is recorded is that of the unperturbed point.

Reference: Foret, Kleiner, Mobahi and Neyshabur 2021, arXiv:2010.01412 (with m-SAM).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import DenseProblem, Gradient, Local, Mean, Norm, Stateless, Step
from dissensus.algorithms.recursions.allreduce import AllReduce
from dissensus.algorithms.recursions.dsgd import ORDERS, Answer, Order, dense_dsgd, ordered, whole
from dissensus.algorithms.registry import register
from dissensus.theory.errors import nearest
from dissensus.theory.mixing import Stochasticity

SharpOrder = Literal["allreduce"] | Order
SHARP_ORDERS: tuple[SharpOrder, ...] = ("allreduce", *ORDERS)


@register("sam")
@dataclass(frozen=True)
class Sam:
    """SAM with a perturbation of every worker's own; centralized unless told otherwise."""

    rho: float = 0.05
    """How far the perturbed point lies away, in the 2-norm."""
    order: SharpOrder = "allreduce"

    name: ClassVar[str]
    reference: ClassVar[str] = "Foret, Kleiner, Mobahi and Neyshabur 2021, arXiv:2010.01412"
    promise: ClassVar[Stochasticity | None] = None
    """None for `allreduce`; the orders that mix need doubly stochastic rounds."""
    static: ClassVar[bool] = False
    columnwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sharp(self.rho, self.order)
        object.__setattr__(self, "promise", promise_of(self.order))

    def init(self, x: Tensor) -> Stateless:
        """Nothing to remember."""
        del x
        return Stateless()

    def step(self, x: Tensor, state: Stateless, local: Local) -> Step[Stateless]:
        """One step in the chosen order, along the gradient at the perturbed point."""
        return (yield from sharp(x, self.order, local, self._gradient)), state

    def _gradient(self, at: Tensor) -> Answer:
        g = yield Gradient(at)
        return (yield Gradient(toward_length(at, g, self.rho, (yield Norm(g)))))

    def deployed(self, x: Tensor, state: Stateless) -> Tensor:
        """The point itself."""
        del state
        return x

    def matrix_form(self, problem: DenseProblem, steps: int) -> np.ndarray:
        """The table of the module, with worker after worker perturbed by itself."""

        def perturbed(t: int, x: np.ndarray) -> np.ndarray:
            at = x.copy()
            for i, g in enumerate(problem.gradient(t, x)):
                if g.any():
                    at[i] += self.rho / np.sqrt(g @ g) * g
            return problem.gradient(t, at)

        return dense_sharp(replace(problem, gradient=perturbed), steps, self.order)


def toward_length(x: Tensor, direction: Tensor, length: float, norm: Tensor) -> Tensor:
    """`x` moved by `length` along the rows of `direction`, whose norms are `norm`; a row of zeros moves nothing."""
    return torch.addcdiv(x, direction, torch.where(norm > 0, norm, torch.ones_like(norm)), value=length)


def sharp(x: Tensor, order: SharpOrder, local: Local, gradient: Callable[[Tensor], Answer]) -> Answer:
    """One step along such a gradient: on the mean over all workers, or decentralized in one of the three orders."""
    if order == "allreduce":
        g = yield from gradient(x)
        return local.move(x, (yield Mean(g)))
    return (yield from ordered(x, order, local, whole, gradient))


def dense_sharp(problem: DenseProblem, steps: int, order: SharpOrder) -> np.ndarray:
    """The same on dense arrays; the problem's gradient is already the one that is meant."""
    if order == "allreduce":
        return AllReduce().matrix_form(problem, steps)
    return dense_dsgd(problem, steps, order, [1.0] * steps)


def promise_of(order: SharpOrder) -> Stochasticity | None:
    """What an order needs of every round."""
    return None if order == "allreduce" else "doubly"


def check_sharp(rho: float, order: str) -> None:
    """Refuses a radius that is none and an order that does not exist."""
    if isinstance(rho, bool) or not isinstance(rho, int | float) or not 0.0 <= rho < float("inf"):
        raise AlgorithmError(f"rho must be a number of at least 0, got {rho!r}: it is the length of the perturbation")
    if order not in SHARP_ORDERS:
        raise AlgorithmError(
            f"order must be one of {', '.join(SHARP_ORDERS)}, got {order!r}{nearest(str(order), SHARP_ORDERS)}"
        )
