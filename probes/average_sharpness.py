r"""Average-direction sharpness: $\mathbb E_\delta\, L(\theta+\delta) - L(\theta)$ under a given random perturbation.

Every sample is a pair $\tfrac12[L(\theta+\delta)+L(\theta-\delta)]-L(\theta)$ over all data: the slope cancels, and
what is left is $\tfrac12\delta^\top H\delta$ plus the even orders. So the value tends to half the trace of H times the
covariance as the perturbation shrinks, and beyond that sees what the Hessian does not. With the covariance of the
workers' disagreement it is what decentralized training is said to average over: Zhu et al. 2023 (arXiv:2306.02913).

`adaptive` multiplies every entry of δ by the size of its weight, $\delta_j\lvert\theta_j\rvert$, which makes the value
blind to rescalings that leave the network's function alone (see `sharpness`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate, from_samples
from dissensus.probes.landscape import Landscape, Loss, Patterns
from dissensus.probes.operator import dtype_name
from dissensus.probes.perturbation import Perturbation
from dissensus.probes.untouched import Mode, undisturbed

LEAST = 12
"""The least number of pairs that an interval is made of."""


@undisturbed()
def average_sharpness(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Any],
    perturbation: Perturbation,
    *,
    adaptive: bool = False,
    rtol: float = 0.05,
    max_pairs: int = 256,
    weights: Sequence[float] | None = None,
    parameters: Patterns = None,
    mode: Mode = "eval",
    dtype: torch.dtype | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """The mean rise of the loss under the perturbation, to a relative accuracy `rtol` or to `max_pairs` pairs.

    A pair costs two evaluations of all data and no product. The error is that of the sampled directions; the data are
    taken as they are.
    """
    if not rtol > 0:
        raise ProbeError(f"rtol must be positive, got {rtol!r}; 0.05 means a twentieth of the value")
    if max_pairs < LEAST:
        raise ProbeError(f"max_pairs={max_pairs} is too few for an interval; allow at least {LEAST}")
    landscape = Landscape(
        model, loss, batches, weights=weights, parameters=parameters, mode=mode, dtype=dtype, seed=seed
    )
    draw = torch.Generator().manual_seed(seed)
    scale = landscape.point.abs() if adaptive else None
    base, rises = landscape.losses(), np.empty(0)
    common = {
        "of": "antithetic pairs",
        "num_matvecs": 0,
        "seed": seed,
        "dtype": dtype_name(landscape.point.dtype),
        "confidence": confidence,
    }
    label = f"average sharpness ({'adaptive, ' if adaptive else ''}{perturbation.name})"
    while True:
        count = min(max(len(rises) // 4, LEAST if len(rises) == 0 else 4), max_pairs - len(rises))
        rows = perturbation.draw(count, landscape, draw)
        rises = np.append(rises, [_rise(landscape, row if scale is None else row * scale, base) for row in rows])
        notes = (f"mode: {mode}", f"evaluations of all data: {2 * len(rises) + 1}")
        found = from_samples(label, rises, notes=notes, **common)
        narrow = found.half_width <= rtol * abs(found.value)
        if narrow or len(rises) >= max_pairs:
            return from_samples(label, rises, notes=notes, converged=narrow, **common)


def _rise(landscape: Landscape, delta: Tensor, base: Sequence[float]) -> float:
    above, below = landscape.losses(landscape.point + delta), landscape.losses(landscape.point - delta)
    return sum(w * ((a + b) / 2 - c) for w, a, b, c in zip(landscape.weights, above, below, base, strict=True))
