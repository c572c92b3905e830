r"""Decentralized SGD, in the three orders in which gradient, mixing and move can come.

| order | recursion | gradient at |
|---|---|---|
| `awc` adapt while communicate | $x^+ = W_\gamma x - \alpha u(g(x))$ | the own point |
| `atc` adapt then combine | $x^+ = W_\gamma (x - \alpha u(g(x)))$ | the own point |
| `cta` combine then adapt | $y = W_\gamma x,\; x^+ = y - \alpha u(g(y))$ | the mixed point |

with $W_\gamma = (1-\gamma) I + \gamma W$, $\gamma$ constant, by phases, or a function of step and learning rate, and
$u$ the local optimizer, which in `awc` and `cta` starts from the mixed point (where its weight decay is taken, too) and in `atc` from
the own point. Its memory is never mixed. Many papers call `awc` "CTA": look where the gradient is taken. On the command
line and in configurations γ is a number, the constant adaptive factor, or phases: `gamma = [[0, 1.0], [300, 0.1]]`.

Reference: Lian et al. 2017 (arXiv:1705.09056) for `awc`; Koloskova et al. 2020 (arXiv:2003.10422) for `atc`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import (
    Await,
    DenseProblem,
    Gradient,
    Local,
    Mix,
    Note,
    Post,
    Request,
    Stateless,
    Step,
)
from dissensus.algorithms.registry import register
from dissensus.theory.errors import nearest
from dissensus.theory.mixing import Stochasticity

Order = Literal["awc", "atc", "cta"]
ORDERS: tuple[Order, ...] = ("awc", "atc", "cta")
Answer = Generator[Request, Any, Tensor]
"""A part of a step: yields requests, returns rows."""
Phases = tuple[tuple[int, float], ...]
"""γ from a step on, in rising order of the steps; 1 before the first."""


@register("dsgd")
@dataclass(frozen=True)
class Dsgd:
    """DSGD; with an Adam as the local optimizer it is DAdam (`dadam`)."""

    order: Order = "awc"
    gamma: float | Phases | Callable[[int, float], float] = 1.0
    """The share of the mixture that is taken: in [0, 1], constant or by phases, or a function (step, learning rate)."""

    name: ClassVar[str]
    reference: ClassVar[str] = "Lian et al. 2017, arXiv:1705.09056; Koloskova et al. 2020, arXiv:2003.10422"
    promise: ClassVar[Stochasticity | None] = "doubly"
    static: ClassVar[bool] = False
    columnwise: ClassVar[bool] = True
    in_place: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_order(self.order)
        if isinstance(self.gamma, list | tuple):
            object.__setattr__(self, "gamma", check_phases(self.gamma))
        elif not callable(self.gamma):
            check_gamma(self.gamma)

    def init(self, x: Tensor) -> Stateless:
        """Nothing to remember."""
        del x
        return Stateless()

    def step(self, x: Tensor, state: Stateless, local: Local) -> Step[Stateless]:
        """One step in the chosen order."""
        return (yield from ordered(x, self.order, local, self._share)), state

    def _share(self, local: Local) -> float:
        return self._gamma(local.t, local.lr)

    def _gamma(self, t: int, lr: float) -> float:
        if isinstance(self.gamma, tuple):
            return next((gamma for start, gamma in reversed(self.gamma) if start <= t), 1.0)
        return check_gamma(self.gamma(t, lr) if callable(self.gamma) else self.gamma)

    def deployed(self, x: Tensor, state: Stateless) -> Tensor:
        """The point itself."""
        del state
        return x

    def matrix_form(self, problem: DenseProblem, steps: int) -> np.ndarray:
        """The table of the module with the dense W_γ."""
        if isinstance(self.gamma, tuple):
            factors = np.ones(steps)
            for start, gamma in self.gamma:
                factors[start:] = gamma
            return dense_dsgd(problem, steps, self.order, factors.tolist())
        gamma = self.gamma
        factors = [gamma(t, problem.lr(t)) if callable(gamma) else gamma for t in range(steps)]
        return dense_dsgd(problem, steps, self.order, factors)


def plain(at: Tensor) -> Answer:
    """The gradients at the rows of a point."""
    return (yield Gradient(at))


def whole(local: Local) -> float:
    """The share of plain mixing: all of it."""
    del local
    return 1.0


def ordered(
    x: Tensor,
    order: Order,
    local: Local,
    share: Callable[[Local], float | Tensor],
    gradient: Callable[[Tensor], Answer] = plain,
) -> Answer:
    """Gradient, mixing and move, in one of the three orders; `gradient` says what the gradient at a point is.

    γ is a question to the step's learning rate, so `share` is asked when the mixture is taken and not before.
    """
    if order == "awc":
        ticket = yield Post(x)
        g = yield from gradient(x)
        mixed = yield Await(ticket, (yield from _noted(share, local)))
        return local.move(mixed, g)
    if order == "atc":
        g = yield from gradient(x)
        half = local.move(x, g)
        return (yield Mix(half, (yield from _noted(share, local))))
    ticket = yield Post(x)
    mixed = yield Await(ticket, (yield from _noted(share, local)))
    g = yield from gradient(mixed)
    return local.move(mixed, g)


def _noted(share: Callable[[Local], float | Tensor], local: Local) -> Generator[Request, Any, float | Tensor]:
    gamma = share(local)
    if share is not whole:
        yield Note("gamma", gamma)
    return gamma


def check_order(order: str) -> None:
    """Refuses an order that is none of the three."""
    if order not in ORDERS:
        raise AlgorithmError(f"order must be one of awc, atc, cta, got {order!r}{nearest(str(order), ORDERS)}")


def check_gamma(gamma: float, name: str = "gamma") -> float:
    """Refuses a factor outside [0, 1]."""
    if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 0.0 <= gamma <= 1.0:
        raise AlgorithmError(f"{name} must lie in [0, 1], got {gamma!r}: outside it mixing takes more than the mixture")
    return float(gamma)


def check_phases(phases: Sequence[Any]) -> Phases:
    """Refuses phases that are no pairs (step, gamma) in rising order of the steps."""
    read: list[tuple[int, float]] = []
    for pair in phases:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise AlgorithmError(f"gamma by phases is [[step, gamma], ...], got {pair!r} in it")
        start, gamma = pair
        if isinstance(start, bool) or not isinstance(start, int) or start < 0:
            raise AlgorithmError(f"a phase of gamma begins at a step counted from 0, got {start!r}")
        if read and start <= read[-1][0]:
            raise AlgorithmError(f"phases of gamma come in rising order: step {start} follows step {read[-1][0]}")
        read.append((start, check_gamma(gamma)))
    if not read:
        raise AlgorithmError("gamma by phases is [[step, gamma], ...], got no phase; a constant is a number")
    return tuple(read)


def dense_dsgd(problem: DenseProblem, steps: int, order: Order, gamma: Sequence[float]) -> np.ndarray:
    """The three recursions on dense arrays, with W_γ as a matrix."""
    x = problem.x0
    trajectory = [x]
    for t in range(steps):
        factor = gamma[t]
        w = (1.0 - factor) * np.eye(len(x)) + factor * problem.mixing(t)
        if order == "awc":
            x = problem.move(t, w @ x, problem.gradient(t, x), problem.lr(t))
        elif order == "atc":
            x = w @ problem.move(t, x, problem.gradient(t, x), problem.lr(t))
        else:
            x = problem.move(t, w @ x, problem.gradient(t, w @ x), problem.lr(t))
        trajectory.append(x)
    return np.stack(trajectory)
