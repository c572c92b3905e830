"""A step of an optimizer that costs what torch's own wrapper costs only when somebody watches.

`torch.optim.Optimizer` wraps the `step` of every subclass: it opens a range for the profiler and calls hooks. A wrapped
optimizer is inside another one, so that both are paid in every step, and for models of some thousand parameters that is
a twentieth of the step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

_profiled: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled")  # noqa: B009  (private to type checkers)


def unless_watched(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step as it is, or as torch wraps it while there are hooks or a profiler."""
    watched = Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def either(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        return watched(self, closure) if _is_watched(self) else step(self, closure)

    setattr(either, "hooked", True)  # noqa: B010  (torch looks for it, before it wraps once more)
    return either


def _is_watched(opt: Optimizer) -> bool:
    own = opt._optimizer_step_pre_hooks or opt._optimizer_step_post_hooks
    return bool(own or _global_optimizer_pre_hooks or _global_optimizer_post_hooks or _profiled())
