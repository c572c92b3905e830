r"""Worst-case sharpness: $\frac1G\sum_g \max_{\lVert T^{-1}\delta\rVert\le\rho} L_g(\theta+\delta)-L_g(\theta)$.

Each group g holds m samples and has a perturbation of its own: the value grows as m falls, so m is part of the name.
`m=None` is one perturbation for all data.

- plain: T = I, the ball of SAM (Foret et al. 2021, arXiv:2010.01412);
- adaptive: $T = \operatorname{diag}\lvert\theta\rvert$, elementwise (ASAM, Kwon et al. 2021, arXiv:2102.11600, without
  the constant added to |θ|: with it the invariance to rescaling is lost; weights at zero do not move).

In u = T⁻¹δ both are the ball of radius ρ. One step goes to $u = \rho\, Tg/\lVert Tg\rVert$, which is where SAM takes
its gradient: the value *there*, exact. More steps look for the maximum itself: u jumps to where the linearised loss is
largest on the ball, $\rho\,Tg(u)/\lVert Tg(u)\rVert$, which never falls where the loss is convex; where it would fall,
it takes shorter projected steps instead. What comes back is the largest value met: a lower bound of the maximum, never
less than the one-step value. (The rule of the steps is ours.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate, from_samples
from dissensus.probes.landscape import Landscape, Loss, Patterns
from dissensus.probes.operator import dtype_name
from dissensus.probes.perturbation import check_radius
from dissensus.probes.untouched import Mode, undisturbed

SHORTEST = 2.0**-10
"""Where a step of this share of the radius does not climb either, the ascent has arrived."""


@undisturbed()
def worst_case_sharpness(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Any],
    radius: float = 0.05,
    *,
    m: int | None = None,
    steps: int = 1,
    adaptive: bool = False,
    starts: int = 1,
    weights: Sequence[float] | None = None,
    parameters: Patterns = None,
    mode: Mode = "eval",
    dtype: torch.dtype | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """The rise of the loss in the worst direction of a ball, a perturbation for every m samples (all: `m=None`).

    `steps=1` is the one-step value, more steps search for the maximum, from `starts` places (the first along the
    gradient, others random). `m` cuts every batch into groups of m samples (the last of a batch may be shorter). With
    several groups the interval is that of their mean over such groups; with one there is nothing to sample.
    """
    check_radius(radius)
    if steps < 1 or starts < 1:
        raise ProbeError(f"steps and starts must be at least 1, got steps={steps}, starts={starts}")
    if m is not None:
        if weights is not None:
            raise ProbeError(
                "m cuts batches and weights them by samples; leave weights out, or cut the batches yourself"
            )
        batches = in_groups(batches, m)
    landscape = Landscape(
        model, loss, batches, weights=weights, parameters=parameters, mode=mode, dtype=dtype, seed=seed
    )
    every = range(len(landscape.batches))
    groups = [_Group(landscape, (b,), (1.0,)) for b in every] if m is not None else []
    groups = groups or [_Group(landscape, tuple(every), tuple(landscape.weights))]
    scale = landscape.point.abs() if adaptive else torch.ones_like(landscape.point)
    draw = torch.Generator().manual_seed(seed)
    rises = [_climb(group, radius, scale, steps, starts, draw) for group in groups]
    size = "all" if m is None else str(m)
    how = "one step" if steps == 1 else f"ascent of {steps} steps"
    found = from_samples(
        f"{'adaptive ' if adaptive else ''}worst-case sharpness (radius {radius:g}, m = {size}, {how})",
        rises,
        weights=landscape.weights if m is not None else None,
        of="groups",
        num_matvecs=0,
        seed=seed,
        dtype=dtype_name(landscape.point.dtype),
        confidence=confidence,
        notes=(f"mode: {mode}", f"gradients of all data: {steps * starts} at most"),
    )
    return _interval(found, searched=steps > 1)


def in_groups(batches: Sequence[Any], m: int) -> list[Any]:
    """The batches cut into groups of m samples each, along the first dimension of their tensors."""
    if m < 1:
        raise ProbeError(f"m must be at least 1 sample, got {m}")
    groups = []
    for index, batch in enumerate(batches):
        sizes = {leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0}
        if len(sizes) != 1:
            raise ProbeError(
                f"batch {index} cannot be cut into groups of m={m}: its tensors begin with {sorted(sizes)}"
            )
        (size,) = sizes
        if m > size:
            raise ProbeError(f"m={m} is more than the {size} samples of batch {index}; give larger batches")
        for start in range(0, size, m):
            groups.append(tree_map(lambda leaf, at=start: _cut(leaf, at, m), batch))
    return groups


@dataclass(frozen=True)
class _Group:
    """The samples that share one perturbation."""

    landscape: Landscape
    batches: tuple[int, ...]
    weights: tuple[float, ...]

    def value(self, flat: Tensor) -> float:
        with self.landscape.scope():
            parts = zip(self.batches, self.weights, strict=True)
            return sum(w * float(self.landscape.valued(b, flat)) for b, w in parts)

    def gradient(self, flat: Tensor) -> Tensor:
        total = torch.zeros_like(flat)
        with self.landscape.scope():
            for b, w in zip(self.batches, self.weights, strict=True):
                leaf = flat.detach().clone().requires_grad_()
                (part,) = torch.autograd.grad(
                    self.landscape.at(b, leaf), leaf, allow_unused=True, materialize_grads=True
                )
                total += w * part
        return total


def _climb(group: _Group, radius: float, scale: Tensor, steps: int, starts: int, draw: torch.Generator) -> float:
    point = group.landscape.point
    base, best = group.value(point), 0.0
    for start in range(starts):
        uphill = scale * group.gradient(point) if start == 0 else torch.zeros_like(point)
        if not bool(uphill.any()):  # at a stationary point every direction is as good
            uphill = torch.randn(len(point), generator=draw, dtype=torch.float64).to(point)
        u = _onto(uphill, radius)
        here = group.value(point + scale * u) - base
        if steps == 1:
            return here
        best = max(best, _ascend(group, base, u, here, radius, scale, steps))
    return best


def _ascend(group: _Group, base: float, u: Tensor, here: float, radius: float, scale: Tensor, steps: int) -> float:
    """The largest rise met from u on, by jumps where they climb and by shorter projected steps where not."""
    point, share = group.landscape.point, math.inf
    for _ in range(steps - 1):
        uphill = scale * group.gradient(point + scale * u)
        if not bool(uphill.any()):
            break
        ahead, climbed = _onto(uphill, radius), False
        while not climbed and share >= SHORTEST:
            trial = ahead if math.isinf(share) else _within(u + share * ahead, radius)
            there = group.value(point + scale * trial) - base
            if there > here:
                u, here, climbed = trial, there, True
            else:
                share = 1.0 if math.isinf(share) else share / 2
        if not climbed:
            break
    return here


def _onto(v: Tensor, radius: float) -> Tensor:
    return v * (radius / torch.linalg.vector_norm(v))


def _within(v: Tensor, radius: float) -> Tensor:
    return _onto(v, radius) if float(torch.linalg.vector_norm(v)) > radius else v


def _cut(leaf: Any, start: int, m: int) -> Any:
    return leaf[start : start + m] if isinstance(leaf, Tensor) and leaf.dim() > 0 else leaf


def _interval(found: Estimate, *, searched: bool) -> Estimate:
    """One group is not sampled; and what a search finds is a lower bound, so its interval is open above."""
    if found.samples == 1:
        found = replace(found, stderr=0.0, interval=(found.value, found.value), interval_method="exact", samples=0)
    if not searched:
        return found
    method = "lower bound of a maximum" + (f", {found.interval_method}" if found.samples else "")
    return replace(found, interval=(found.interval[0], math.inf), interval_method=method)
