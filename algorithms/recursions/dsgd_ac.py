r"""DSGD with adaptive consensus: the workers are pulled together less as the learning rate falls.

$$ \gamma_t = \gamma_{\min} + (1-\gamma_{\min})\Big(\frac{\alpha_t}{\alpha_{\max}}\Big)^p \quad (t \ge \text{start}),
\qquad \gamma_t = 1 \quad (t < \text{start}), \qquad W_{\gamma_t} = (1-\gamma_t) I + \gamma_t W_t $$

in the order of the paper's code, `awc`: $x^+ = W_{\gamma_t} x - \alpha_t u(g(x))$. What $\alpha_{\max}$ is:

- `capture="window"`: the largest learning rate from `start` on, so that $\gamma_t$ never exceeds 1, also when `start`
  lies inside a warm-up: $\gamma_t$ is below 1 then as long as the rate still rises. Whoever knows the whole schedule
  says so with `planned(lr, steps)`, as every run of ours does; an engine that learns the rates one by one takes the
  largest so far;
- `capture="published"`: the learning rate of step `start`, once and for all. If the learning rate still rises then,
  $\gamma_t$ exceeds 1, as it does in the published code;
- `lr_max=...`: this number. $\gamma_t$ exceeds 1 where the learning rate exceeds it.

`gamma=` replaces the schedule from `start` on by a constant or by a function (step, learning rate).

Reference: Wang and Johansson 2026, arXiv:2602.02899 (order, capture rule, p = 3 and γ_min = 0 after their code).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import DenseProblem, Local, Step
from dissensus.algorithms.recursions.dsgd import Order, check_gamma, check_order, dense_dsgd, ordered
from dissensus.algorithms.registry import register
from dissensus.theory.errors import nearest
from dissensus.theory.mixing import Stochasticity

CAPTURES = ("window", "published")


class Peak(NamedTuple):
    """The learning rate that γ is relative to, (n, 1) in float64; zero before `start`. The same in every row."""

    lr: Tensor


@register("dsgd-ac")
@dataclass(frozen=True)
class DsgdAc:
    """DSGD-AC."""

    p: float = 3.0
    gamma_min: float = 0.0
    start: int = 0
    """The first step with adaptive consensus."""
    lr_max: float | None = None
    capture: Literal["window", "published"] = "window"
    gamma: float | Callable[[int, float], float] | None = None
    order: Order = "awc"

    name: ClassVar[str]
    reference: ClassVar[str] = "Wang and Johansson 2026, arXiv:2602.02899"
    promise: ClassVar[Stochasticity | None] = "doubly"
    static: ClassVar[bool] = False
    columnwise: ClassVar[bool] = True
    in_place: ClassVar[bool] = True
    common: ClassVar[tuple[str, ...]] = ("lr",)
    """With a γ of its own in the row of a worker that was away, mixing would not keep the mean."""

    def __post_init__(self) -> None:
        check_order(self.order)
        check_gamma(self.gamma_min, "gamma_min")
        if self.gamma is not None and not callable(self.gamma):
            check_gamma(self.gamma)
        if self.capture not in CAPTURES:
            raise AlgorithmError(
                f"capture must be 'window' or 'published', got {self.capture!r}{nearest(str(self.capture), CAPTURES)}"
            )
        if not self.p >= 0:
            raise AlgorithmError(f"p must be at least 0, got {self.p}: use gamma= for a constant factor")
        if self.start < 0:
            raise AlgorithmError(f"start is a step counted from 0, got {self.start}")
        if self.lr_max is not None and not self.lr_max > 0:
            raise AlgorithmError(f"lr_max must be positive, got {self.lr_max}")

    def planned(self, lr: Callable[[int], float], steps: int) -> DsgdAc:
        """The same with the largest rate of its window, where the rule asks for it and it is known beforehand."""
        rates = [lr(t) for t in range(self.start, steps)]
        if self.capture != "window" or self.lr_max is not None or self.gamma is not None or not any(rates):
            return self
        return replace(self, lr_max=max(rates))

    def init(self, x: Tensor) -> Peak:
        """No learning rate has been seen."""
        return Peak(torch.zeros(len(x), 1, dtype=torch.float64, device=x.device))

    def step(self, x: Tensor, state: Peak, local: Local) -> Step[Peak]:
        """One step in the chosen order, with the γ of this step's learning rate."""
        seen = [state]

        def share(now: Local) -> float | Tensor:
            gamma, seen[0] = self._gamma(now.t, now.lr, state)
            return gamma

        moved = yield from ordered(x, self.order, local, share)
        return moved, seen[0]

    def _gamma(self, t: int, lr: float, state: Peak) -> tuple[float | Tensor, Peak]:
        if t < self.start:
            return 1.0, state
        if self.gamma is not None:
            return check_gamma(self.gamma(t, lr) if callable(self.gamma) else self.gamma), state
        if self.lr_max is not None:
            return self.gamma_min + (1.0 - self.gamma_min) * (lr / self.lr_max) ** self.p, state
        if self.capture == "window":
            peak = state.lr.clamp(min=lr)
        else:
            peak = torch.where(state.lr > 0, state.lr, torch.full_like(state.lr, lr))
        # a tensor divided by a tensor: a number divided by one goes through the reciprocal, and 1 would not be met;
        # a learning rate of zero throughout is no fall: gamma stays 1
        ratio = torch.where(peak > 0, torch.full_like(peak, lr) / peak, torch.ones_like(peak))
        return self.gamma_min + (1.0 - self.gamma_min) * ratio**self.p, Peak(peak)

    def deployed(self, x: Tensor, state: Peak) -> Tensor:
        """The point itself."""
        del state
        return x

    def matrix_form(self, problem: DenseProblem, steps: int) -> np.ndarray:
        """DSGD with the dense W_γ; γ from the whole learning rate schedule at once."""
        lrs = np.array([problem.lr(t) for t in range(steps)])
        gammas = np.ones(steps)
        for t in range(self.start, steps):
            window = lrs[self.start : t + 1]
            top = self.lr_max if self.lr_max is not None else (window.max() if self.capture == "window" else window[0])
            if callable(self.gamma):
                gammas[t] = self.gamma(t, lrs[t])
            elif self.gamma is not None:
                gammas[t] = self.gamma
            elif top > 0:
                gammas[t] = self.gamma_min + (1.0 - self.gamma_min) * (lrs[t] / top) ** self.p
        return dense_dsgd(problem, steps, self.order, gammas.tolist())
