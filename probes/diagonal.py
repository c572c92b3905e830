r"""The diagonal of an operator from its products, with an error bar for every entry.

For random signs z, $\mathbb E\, z \odot Hz = \operatorname{diag} H$, with entry variances $\sum_{j\ne i} H_{ij}^2$.
A part whose diagonal is known from a short Lanczos run is taken out first (see `remainder`). Sampling stops when the
root mean square of the standard errors is at most `rtol` times that of the entries:

$$ \frac{\lVert \hat s\rVert}{\lVert \hat D\rVert} \le \text{rtol}, \qquad
\lVert\hat D\rVert^2 = \max(\lVert \bar D\rVert^2 - \lVert \hat s\rVert^2, 0) , $$

the sampling error not being counted as diagonal.

Reference: Bekas, Kokiopoulou and Saad, An estimator for the diagonal of a matrix (2007).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate, t_quantile
from dissensus.probes.hutchpp import Lanczos
from dissensus.probes.operator import Operator, dtype_name
from dissensus.probes.remainder import Remainder
from dissensus.probes.sampling import FIRST_LOT, STEP, check_budget, check_rtol
from dissensus.probes.untouched import undisturbed

DEFLATE = 20
"""Lanczos vectors taken out first."""


@dataclass(frozen=True, eq=False)
class Diagonal:
    """The entries with a standard error each, and how accurate they are together."""

    values: Tensor
    """(d,), float64."""
    stderr: Tensor
    """Standard error of every entry, (d,)."""
    error: Estimate
    """The relative error: root mean square of the standard errors over that of the entries."""
    confidence: float

    @property
    def converged(self) -> bool:
        """Whether the relative error met the target."""
        return self.error.converged

    def interval(self) -> tuple[Tensor, Tensor]:
        """The ends of every entry's t-interval."""
        half = t_quantile(self.confidence, self.error.samples - 1) * self.stderr if self.error.samples else self.stderr
        return self.values - half, self.values + half

    def to_dict(self) -> dict[str, Any]:
        """The summary as a plain dictionary for JSON, without the entries."""
        values = self.values
        named = {"min": values.min(), "max": values.max(), "mean": values.mean(), "rms": values.square().mean().sqrt()}
        return {**{key: float(value) for key, value in named.items()}, "relative_error": self.error.to_dict()}


@undisturbed()
def hessian_diagonal(
    operator: Operator, *, rtol: float = 0.1, max_matvecs: int = 1000, seed: int = 0, confidence: float = 0.95
) -> Diagonal:
    """The diagonal to a relative root-mean-square error `rtol`, or as good as `max_matvecs` products make it.

    Where the budget reaches that far and sampling would not, one product per coordinate gives it exactly.
    """
    check_rtol(rtol)
    before, dtype = operator.products, dtype_name(operator.dtype)
    if operator.size <= min(max_matvecs, DEFLATE + FIRST_LOT):
        return _by_coordinates(operator, seed, confidence, before)
    check_budget(max_matvecs, FIRST_LOT, "diagonal")
    rem = Remainder(operator, torch.Generator().manual_seed(seed))
    grower = Lanczos(operator, torch.Generator().manual_seed(seed + 0x5EED))
    while rem.rank < min(DEFLATE, max_matvecs // 3, operator.size - 1, max_matvecs - FIRST_LOT) and not grower.closed:
        rem.take(*grower.grow())
    known = rem.known_diagonal()
    total, squares, shift, m = torch.zeros_like(known), torch.zeros_like(known), torch.zeros_like(known), 0
    relative, values, stderr = math.inf, known, torch.full_like(known, math.nan)
    while relative > rtol:
        left = max_matvecs - (operator.products - before)
        needed = m * (relative / rtol) ** 2 - m if math.isfinite(relative) else math.inf
        if m and left >= operator.size and needed >= operator.size:
            return _by_coordinates(operator, seed, confidence, before)
        lot = min(FIRST_LOT if m == 0 else max(m // STEP, STEP), left)
        if lot <= 0:
            break
        rows = rem.products(lot)
        if m == 0:
            shift = rows.mean(0)
        total, squares, m = total + (rows - shift).sum(0), squares + (rows - shift).square().sum(0), m + lot
        mean = total / m
        values = known + shift + mean
        stderr = ((squares / m - mean.square()).clamp_min(0) / max(m - 1, 1)).sqrt()
        noise = float(stderr.square().sum())
        signal = max(float(values.square().sum()) - noise, 0.0)
        relative = math.sqrt(noise / signal) if signal > 0 else (0.0 if noise == 0 else math.inf)
    made = _error(relative, m, operator.products - before, seed, dtype, relative <= rtol, confidence, rem.rank)
    return Diagonal(values, stderr, made, confidence)


def _error(
    relative: float, samples: int, spent: int, seed: int, dtype: str, met: bool, confidence: float, rank: int
) -> Estimate:
    how = "none: a summary of the entries' own error bars" if samples else "exact"
    note = f"method: random signs after deflating {rank} Lanczos vectors" if samples else "method: coordinates"
    name, stderr = "relative error of the diagonal", math.nan if samples else 0.0
    ends = (0.0, math.inf) if samples else (0.0, 0.0)
    return Estimate(
        name, relative, stderr, ends, how, samples, spent, seed, dtype, met, confidence=confidence, notes=(note,)
    )


def _by_coordinates(operator: Operator, seed: int, confidence: float, before: int) -> Diagonal:
    pieces = []
    for start in range(0, operator.size, 16):
        width = min(16, operator.size - start)
        units = torch.zeros(width, operator.size, dtype=operator.dtype, device=operator.device)
        units[torch.arange(width), start + torch.arange(width)] = 1
        pieces.append((units.double() * operator.matvec(units).double()).sum(1))
    values = torch.cat(pieces)
    if not torch.isfinite(values).all():
        raise ProbeError("the diagonal is not finite")
    spent, dtype = operator.products - before, dtype_name(operator.dtype)
    made = _error(0.0, 0, spent, seed, dtype, True, confidence, 0)
    return Diagonal(values, torch.zeros_like(values), made, confidence)
