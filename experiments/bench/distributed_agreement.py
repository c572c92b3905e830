r"""Whether the contenders compute what they are said to: nobody is timed doing something else.

Before anything is timed, the very same processes train a tiny model in double precision with every contender, and where
they end is held against a plain loop over n modules with a dense matrix: $x^+ = W_t x - u(g(x))$ for ours, the same
with the mean of all gradients and no matrix for DDP, and no matrix at all for a worker alone. decent-dp follows the
recursion of ours on a schedule of its own: its first step is local, and then come its rounds 1, 3, 4, 5, ...

With messages in bfloat16 ours is $x^+ = x + (W_t - I)\,q(x) - u(g(x))$, where q rounds to 8 significant bits.
That is off the recursion without rounding by at most $\lVert W_t - I\rVert\, 2^{-8} \lVert x\rVert$ a step, beside
what the gradient makes of earlier ones; the row says by how much it is, and what the workers disagree with and without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from dissensus.experiments.bench.distributed_contenders import SCHEDULES
from dissensus.experiments.bench.distributed_group import Group
from dissensus.experiments.bench.distributed_models import OPTIMIZERS, TINY, Perceptron
from dissensus.theory.registry import topology

STEPS = 6
TOLERANCE = 1e-9
"""The largest difference, relative to how far the workers have moved."""

Matrices = Sequence[np.ndarray | None]


def agreement(group: Group, names: Sequence[str], optimizer: str, schedule: str) -> dict[str, Any]:
    """Trains a tiny model with these contenders; how far each is from its recursion, and if that is near enough."""
    train = [name for name in names if not name.startswith(("exchange", "all-reduce"))]
    group.build(TINY, train, {"optimizer": optimizer, "schedule": schedule})
    found = group.take(train, STEPS)
    difference, rounded = {}, {}
    for name in train:
        matrices, pooled = _said(name, schedule, group.size)
        short = "bfloat16" in name
        expected = recursion(TINY, optimizer, group.size, matrices, pooled=pooled, rounded=short)
        start = nn.utils.parameters_to_vector(TINY.model().parameters()).detach().numpy()
        difference[name] = _norm(found[name] - expected) / _norm(expected - start)
        if short:
            exact = recursion(TINY, optimizer, group.size, matrices)
            rounded[name] = {
                "off": _norm(found[name] - exact) / _norm(exact),
                "bound": sum(2.0**-8 * float(np.linalg.norm(w - np.eye(len(w)), 2)) for w in matrices if w is not None),
                "disagreement": _disagreement(found[name]),
                "disagreement_without": _disagreement(exact),
            }
    return {
        "difference": difference,
        "agree": {name: value < TOLERANCE for name, value in difference.items()},
        "rounded": rounded,
    }


def rounds_of_decent_dp(steps: int) -> list[int | None]:
    """Which round of its schedule each of the first updates is mixed by; the first by none."""
    return [None, 1, *range(3, steps + 1)][:steps]


def recursion(
    case: Perceptron, optimizer: str, size: int, rounds: Matrices, *, pooled: bool = False, rounded: bool = False
) -> np.ndarray:
    """Where n workers stand after one step for each of these matrices (none: nobody mixes), (n, d)."""
    models = [case.model() for _ in range(size)]
    optimizers = [OPTIMIZERS[optimizer](m.parameters()) for m in models]
    batches = [case.samples(i) for i in range(size)]
    for w in rounds:
        for model, opt, batch in zip(models, optimizers, batches, strict=True):
            opt.zero_grad()
            case.loss(model, batch).backward()
        with torch.no_grad():
            if pooled:
                _pool(models)
            if w is not None:
                for model, row in zip(models, _mixed(torch.from_numpy(w), _points(models), rounded), strict=True):
                    nn.utils.vector_to_parameters(row, model.parameters())
        for opt in optimizers:
            opt.step()
    return _points(models).numpy()


def _mixed(w: torch.Tensor, x: torch.Tensor, rounded: bool) -> torch.Tensor:
    return x + (w - torch.eye(len(w))) @ x.bfloat16().to(x.dtype) if rounded else w @ x


def _said(name: str, schedule: str, size: int) -> tuple[Matrices, bool]:
    """The matrices of a contender, and whether it averages gradients."""
    who = name.split(",")[0]
    if who in ("local", "ddp"):
        return [None] * STEPS, who == "ddp"
    weights: Callable[[int], np.ndarray] = lambda t: topology(SCHEDULES[schedule], size)[t].dense()  # noqa: E731
    which: Iterable[int | None] = rounds_of_decent_dp(STEPS) if who == "decent-dp" else range(STEPS)
    return [None if t is None else weights(t) for t in which], False


def _pool(models: Sequence[nn.Module]) -> None:
    for same in zip(*(m.parameters() for m in models), strict=True):
        mean = torch.stack([p.grad for p in same if p.grad is not None]).mean(0)
        for p in same:
            p.grad = mean.clone()


def _points(models: Sequence[nn.Module]) -> torch.Tensor:
    return torch.stack([nn.utils.parameters_to_vector(m.parameters()) for m in models]).detach()


def _disagreement(x: np.ndarray) -> float:
    """The root of the mean squared distance from the mean, relative to the mean's size."""
    return _norm(x - x.mean(axis=0)) / _norm(np.broadcast_to(x.mean(axis=0), x.shape))


def _norm(x: np.ndarray) -> float:
    return float(np.linalg.norm(x))
