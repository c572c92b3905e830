r"""The sharpness family: every measure under a name that says what it is, and what it is blind to.

A network can be rescaled without changing what it computes, and a measure that changes all the same compares scales,
not solutions. Three such rescalings, and which measures do not see them (every entry is tested):

- `layers`: a layer times a, the next times 1/a, where a ReLU (or anything with f(az) = a f(z)) lies between;
- `neurons`: the same with a factor of its own for every neuron;
- `normalised`: weights before a BatchNorm times a factor per channel, in mode "train", or in "eval" where the stored
  statistics are scaled along (up to BatchNorm's eps).

| measure | layers | neurons | normalised |
|---|---|---|---|
| `largest-eigenvalue`, `trace` | sees | sees | sees |
| `sam`, `worst-case` | sees | sees | sees |
| `average`, `average-sphere` | sees | sees | sees |
| `adaptive-sam`, `adaptive-worst-case`, `adaptive-average` | blind | blind | blind |
| `workers` (with all workers rescaled alike) | blind | blind | blind |
| filter-normalised slices (`slices`) | blind | sees | blind |

Blind is not better: an adaptive measure is also blind to a growth of the weights that matters where nothing is
normalised, and none of them has been shown to predict generalization by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.probes.average_sharpness import average_sharpness
from dissensus.probes.curvature import Curvature
from dissensus.probes.eigen import Eigenpair, top_eigenvalues
from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate
from dissensus.probes.landscape import Loss, Patterns
from dissensus.probes.operator import Operator
from dissensus.probes.perturbation import Gaussian, Sphere, Workers
from dissensus.probes.trace import hessian_trace
from dissensus.probes.untouched import Mode
from dissensus.probes.worst_case import worst_case_sharpness
from dissensus.theory.errors import nearest


@dataclass(frozen=True)
class Kind:
    """One measure of sharpness: what it is, and which rescalings leave it as it is."""

    summary: str
    layers: bool
    neurons: bool
    normalised: bool


_SEES, _BLIND = (False, False, False), (True, True, True)
KINDS: dict[str, Kind] = {
    "largest-eigenvalue": Kind("the largest eigenvalue of the Hessian", *_SEES),
    "trace": Kind("the trace of the Hessian", *_SEES),
    "sam": Kind("the rise of the loss one SAM step away", *_SEES),
    "worst-case": Kind("the largest rise found in the ball, by projected ascent", *_SEES),
    "average": Kind("the mean rise under Gaussian perturbations of that length", *_SEES),
    "average-sphere": Kind("the mean rise on the sphere", *_SEES),
    "adaptive-sam": Kind("one step in the ball measured in sizes of the weights", *_BLIND),
    "adaptive-worst-case": Kind("the largest rise found in that ball", *_BLIND),
    "adaptive-average": Kind("the mean rise under perturbations in proportion to the weights", *_BLIND),
    "workers": Kind("the mean rise under the covariance of the workers' disagreement", *_BLIND),
}
"""Every measure by its name; `layers`, `neurons`, `normalised` tell to which rescalings it is blind."""
ADAPTIVE_RADIUS = 10.0
"""An adaptive radius is relative to the weights: times the plain one unless given (SAM 0.05, ASAM 0.5 as published)."""


def sharpness(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Any],
    kinds: Sequence[str] = (),
    *,
    radius: float = 0.05,
    adaptive_radius: float | None = None,
    m: int | None = None,
    steps: int = 20,
    x: Tensor | None = None,
    operator: Operator | None = None,
    rtol: float = 0.05,
    max_samples: int = 256,
    weights: Sequence[float] | None = None,
    parameters: Patterns = None,
    mode: Mode = "eval",
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> dict[str, Estimate | Eigenpair]:
    """The measures of the given names (all that can be taken, unless named) at the model's point.

    `radius` is the length of perturbations, `m` the samples that share a worst case, `steps` those of the ascent, `x`
    (n, d) the workers, which `workers` needs. `operator` is the Hessian where it exists already, at the same point.
    """
    chosen = list(kinds) or [kind for kind in KINDS if kind != "workers" or x is not None]
    for kind in chosen:
        if kind not in KINDS:
            raise ProbeError(f"unknown sharpness {kind!r}{nearest(kind, KINDS)}")
    if "workers" in chosen and x is None:
        raise ProbeError("sharpness 'workers' perturbs as the workers disagree; give their parameters x (n, d)")
    common: dict[str, Any] = {"weights": weights, "parameters": parameters, "mode": mode, "dtype": dtype, "seed": seed}
    wide = ADAPTIVE_RADIUS * radius if adaptive_radius is None else adaptive_radius
    hessian = operator
    if hessian is None and {"largest-eigenvalue", "trace"} & set(chosen):
        hessian = Curvature(model, loss, batches, **common)
    climb = partial(worst_case_sharpness, model, loss, batches, m=m, **common)
    spread = partial(average_sharpness, model, loss, batches, rtol=rtol, max_pairs=max_samples, **common)
    take = {
        "largest-eigenvalue": lambda: top_eigenvalues(hessian, 1, seed=seed)[0],  # type: ignore[arg-type]
        "trace": lambda: hessian_trace(hessian, rtol=rtol, seed=seed),  # type: ignore[arg-type]
        "sam": lambda: climb(radius),
        "worst-case": lambda: climb(radius, steps=steps),
        "average": lambda: spread(Gaussian(radius)),
        "average-sphere": lambda: spread(Sphere(radius)),
        "adaptive-sam": lambda: climb(wide, adaptive=True),
        "adaptive-worst-case": lambda: climb(wide, steps=steps, adaptive=True),
        "adaptive-average": lambda: spread(Gaussian(wide), adaptive=True),
        "workers": lambda: spread(Workers(x)),  # type: ignore[arg-type]
    }
    return {kind: take[kind]() for kind in chosen}
