r"""The envelope measured directly: $\frac1n\sum_i L(x_i) - L(\bar x)$, with n + 1 evaluations of every batch.

On a quadratic it equals ½ tr(H Σ) exactly (`alignment.covariance_envelope`); the difference between the two is what
the loss does beyond second order. Each batch gives one paired difference: the same samples at all points. The value is
exact on the given data; the standard error speaks of what other batches from the same source would have given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.probes.disagreement import displacements
from dissensus.probes.estimate import Estimate, from_samples
from dissensus.probes.landscape import Landscape, Loss, Patterns
from dissensus.probes.operator import dtype_name
from dissensus.probes.untouched import Mode, undisturbed


@undisturbed()
def envelope(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Any],
    x: Tensor,
    *,
    weights: Sequence[float] | None = None,
    parameters: Patterns = None,
    mode: Mode = "eval",
    dtype: torch.dtype | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """mean_i L(x_i) - L(x̄) for the rows of x (n, d); parameters that are not chosen stay at the model's.

    Buffers are the model's at every point (put the consensus' recalibrated ones in before, where there is BatchNorm);
    in mode "train" BatchNorm uses the statistics of each batch at each point.
    """
    landscape = Landscape(
        model, loss, batches, weights=weights, parameters=parameters, mode=mode, dtype=dtype, seed=seed
    )
    chosen = landscape.select(x)
    away = displacements(chosen)
    mean = (chosen[:1].double() + (away[:1].neg())).to(chosen)
    differences = [0.0] * len(landscape.batches)
    with landscape.scope():
        for index in range(len(differences)):
            base = landscape.valued(index, mean[0]).double()
            gaps = [float(landscape.valued(index, row).double() - base) for row in chosen]
            differences[index] = sum(gaps) / len(gaps)
    buffers = "no buffers" if not any(True for _ in model.buffers()) else "buffers: the model's own at every point"
    return from_samples(
        "envelope",
        differences,
        weights=landscape.weights,
        of="batches (paired)",
        num_matvecs=0,
        seed=seed,
        dtype=dtype_name(landscape.point.dtype),
        confidence=confidence,
        notes=(f"mode: {mode}", buffers),
    )
