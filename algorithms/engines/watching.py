"""What torch puts around the methods of an optimizer costs something only when somebody watches.

`torch.optim.Optimizer` wraps the `step` of every subclass: it opens a range for the profiler and calls hooks;
`zero_grad` opens a range as well. An optimizer around another one pays twice, and for a model of some thousand
parameters that is a tenth of its step. So what torch does is left to torch while there are hooks or a profiler, and
otherwise left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

_profiled: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled")  # noqa: B009  (private to type checkers)
_WRAPPER = Optimizer.profile_hook_step(lambda: None).__code__
"""What torch wraps a step in."""


class Unwatched(Optimizer):
    """An optimizer whose gradients are cleared without a range that nobody looks at."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients, as torch does."""
        if not set_to_none or _profiled():
            super().zero_grad(set_to_none)
            return
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None


def unless_watched(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step as it is, or as torch wraps it while there are hooks or a profiler."""
    watched = Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def either(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        return watched(self, closure) if _is_watched(self) else step(self, closure)

    setattr(either, "hooked", True)  # noqa: B010  (torch looks for it, before it wraps once more)
    return either


def move(opt: Optimizer) -> None:
    """One step of somebody's optimizer, without what torch wraps it in where that would do nothing."""
    step: Any = type(opt).step
    if getattr(step, "__code__", None) is not _WRAPPER or "step" in vars(opt) or _is_watched(opt):
        opt.step()
    else:
        step.__wrapped__(opt)


def _is_watched(opt: Optimizer) -> bool:
    own = opt._optimizer_step_pre_hooks or opt._optimizer_step_post_hooks
    return bool(own or _global_optimizer_pre_hooks or _global_optimizer_post_hooks or _profiled())
