r"""How different the workers' objectives are: $\zeta^2 = \frac1n\sum_i \lVert\nabla f_i(\theta) - \bar g\rVert^2$.

$\nabla f_i$ is the full gradient on the data of worker i and $\bar g$ their mean, all at one point (the consensus). On
the given data that is a number, `plain`. But finite data of *equal* workers differ too: as an estimate of what lies
behind the data, `plain` is too large by the sampling noise. With m batches a worker and $c_{ib}$ the gradient of batch
b of worker i minus the mean over workers of batch b,

$$ \hat\zeta^2 = \frac{1}{m(m-1)}\sum_{b\ne b'} \frac1n\sum_i \langle c_{ib}, c_{ib'}\rangle $$

never multiplies a batch with itself and is unbiased (it may come out negative where there is no heterogeneity). Its
standard error is the jackknife's, over b. Ours; the quantity is that of the convergence theory of decentralized SGD.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate, t_quantile
from dissensus.probes.landscape import Landscape, Loss, Patterns
from dissensus.probes.operator import dtype_name
from dissensus.probes.untouched import Mode, undisturbed


@dataclass(frozen=True)
class Heterogeneity:
    """The spread of the workers' gradients at one point."""

    value: Estimate
    """ζ² without the sampling noise, with its error over batches."""
    plain: float
    """ζ² on the given data, exact."""
    gradient_norm2: float
    """‖ḡ‖² on the given data."""
    shares: tuple[float, ...]
    """‖∇f_i - ḡ‖² / n of every worker; they add up to `plain`."""

    @property
    def relative(self) -> float:
        """ζ² on the given data over ‖ḡ‖²: far above 1 near a minimum of the mean; infinite at one."""
        return self.plain / self.gradient_norm2 if self.gradient_norm2 > 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return {
            "value": self.value.to_dict(),
            "plain": self.plain,
            "gradient_norm2": self.gradient_norm2,
            "shares": list(self.shares),
        }


@undisturbed()
def heterogeneity(
    model: nn.Module,
    loss: Loss,
    workers: Sequence[Sequence[Any]],
    *,
    parameters: Patterns = None,
    mode: Mode = "eval",
    dtype: torch.dtype | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Heterogeneity:
    """ζ² at the model's point; `workers[i]` are the batches of worker i, as many for each (two or more for an error).

    Batches count by their samples in `plain` and alike in the estimate.
    """
    if len(workers) < 1 or len({len(batches) for batches in workers}) != 1:
        counts = [len(batches) for batches in workers]
        raise ProbeError(
            f"every worker must have as many batches, got {counts}; cut their data into as many parts each"
        )
    slots, full, kind = [], [], ""
    for batches in workers:
        landscape = Landscape(model, loss, batches, parameters=parameters, mode=mode, dtype=dtype, seed=seed)
        rows, kind = landscape.gradients().double(), dtype_name(landscape.point.dtype)
        slots.append(rows)
        full.append(torch.tensor(landscape.weights, dtype=torch.float64, device=rows.device) @ rows)
    return _measured(torch.stack(slots), torch.stack(full), seed, kind, confidence)


def _measured(slots: Tensor, full: Tensor, seed: int, dtype: str, confidence: float) -> Heterogeneity:
    """From gradients by worker and batch (n, m, d), and of all data of each worker (n, d)."""
    n, m, _ = slots.shape
    apart = (slots - slots.mean(0)).transpose(0, 1).reshape(m, -1)
    products = (apart @ apart.T / n).cpu().numpy()
    mean = full.mean(0)
    squares = (full - mean).square().sum(1)
    return Heterogeneity(
        value=_without_noise(products, n, seed, dtype, confidence),
        plain=float(squares.mean()),
        gradient_norm2=float(mean.square().sum()),
        shares=tuple(float(s) / n for s in squares),
    )


def _without_noise(products: np.ndarray, n: int, seed: int, dtype: str, confidence: float) -> Estimate:
    m = len(products)
    pairs = products.sum() - products.trace()
    value = float(pairs) / (m * (m - 1)) if m > 1 else math.nan
    stderr, half, method = math.nan, math.inf, "none: one batch a worker has no spread"
    if m > 2:
        left = (pairs - 2 * (products.sum(1) - np.diag(products))) / ((m - 1) * (m - 2))
        stderr = math.sqrt((m - 1) / m * float(((left - left.mean()) ** 2).sum()))
        half, method = t_quantile(confidence, m - 1) * stderr, f"jackknife over {m} batches of {n} workers"
    elif m == 2:
        method = "none: an error takes three batches a worker"
    return Estimate(
        name="heterogeneity",
        value=value,
        stderr=stderr,
        interval=(value - half, value + half),
        interval_method=method,
        samples=m,
        num_matvecs=0,
        seed=seed,
        dtype=dtype,
        converged=m > 2,
        confidence=confidence,
    )
