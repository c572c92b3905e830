r"""The diagonal of an operator from its products, with an error bar for every entry.

For random signs z, $\mathbb E\, z \odot Hz = \operatorname{diag} H$, with entry variances $\sum_{j\ne i} H_{ij}^2$.
Where the first samples do not suffice, a part whose diagonal is known from a short Lanczos run is taken out (see
`remainder`), if the same samples, carried over, then spread less: for outlying eigenvalues in general position they do,
for a matrix that is nearly diagonal they spread more. Sampling stops when the root mean square of the standard errors
is at most `rtol` times that of the entries:

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
from dissensus.probes.krylov import rademacher
from dissensus.probes.operator import Operator, dtype_name
from dissensus.probes.remainder import Remainder
from dissensus.probes.sampling import FIRST_LOT, STEP, check_budget, check_rtol
from dissensus.probes.untouched import undisturbed

DEFLATE = 20
"""Lanczos vectors taken out, at most."""


@dataclass(frozen=True, eq=False)
class DiagonalEstimate:
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
) -> DiagonalEstimate:
    """The diagonal to a relative root-mean-square error `rtol`, or as good as `max_matvecs` products make it.

    Where the budget reaches that far and sampling would not, one product per coordinate gives it exactly.
    """
    check_rtol(rtol)
    before, dtype = operator.products, dtype_name(operator.dtype)
    if operator.size <= min(max_matvecs, DEFLATE + FIRST_LOT):
        return _by_coordinates(operator, seed, confidence, before)
    check_budget(max_matvecs, FIRST_LOT, "diagonal")
    signs = torch.Generator().manual_seed(seed)
    z = rademacher(signs, FIRST_LOT, operator)
    image = operator.matvec(z)
    rest = Remainder(operator, signs)
    drawn = _Drawn(rest.known_diagonal(), (z * image).double())
    if drawn.relative > rtol:
        most = min(DEFLATE, max_matvecs // 3, operator.size - 1, max_matvecs - FIRST_LOT)
        deflated, rows = _deflated(operator, seed, most, signs, z, image)
        if drawn.noisier_than(rows):
            rest, drawn = deflated, _Drawn(deflated.known_diagonal(), rows)
    while drawn.relative > rtol:
        left = max_matvecs - (operator.products - before)
        ahead = drawn.count * (drawn.relative / rtol) ** 2 - drawn.count
        if left >= operator.size and ahead >= operator.size:
            return _by_coordinates(operator, seed, confidence, before)
        lot = min(max(drawn.count // STEP, STEP), left)
        if lot <= 0:
            break
        drawn.add(rest.products(lot))
    spent, met = operator.products - before, drawn.relative <= rtol
    made = _error(drawn.relative, drawn.count, spent, seed, dtype, met, confidence, rest.rank)
    return DiagonalEstimate(drawn.values, drawn.stderr, made, confidence)


class _Drawn:
    """Running sums of samples of the diagonal, on top of a part of it that is known."""

    def __init__(self, known: Tensor, rows: Tensor) -> None:
        self._known, self._shift, self.count = known, rows.mean(0), 0
        self._total, self._squares = torch.zeros_like(known), torch.zeros_like(known)
        self.add(rows)

    def add(self, rows: Tensor) -> None:
        """Takes in more samples, (m, d)."""
        rows = rows - self._shift
        self._total, self._squares = self._total + rows.sum(0), self._squares + rows.square().sum(0)
        self.count += len(rows)
        mean = self._total / self.count
        self.values = self._known + self._shift + mean
        self.stderr = ((self._squares / self.count - mean.square()).clamp_min(0) / (self.count - 1)).sqrt()
        noise = float(self.stderr.square().sum())
        signal = max(float(self.values.square().sum()) - noise, 0.0)
        self.relative = math.sqrt(noise / signal) if signal > 0 else (0.0 if noise == 0 else math.inf)

    def noisier_than(self, rows: Tensor) -> bool:
        """Whether as many other samples spread less, over all entries together."""
        return float(rows.var(0).sum()) < float((self.stderr.square() * self.count).sum())


def _deflated(
    operator: Operator, seed: int, most: int, signs: torch.Generator, z: Tensor, image: Tensor
) -> tuple[Remainder, Tensor]:
    """What is left after a Lanczos run, and the probes z with their products as samples of it: z * P(Hz - HQ'Qz)."""
    rest, grower, images = (
        Remainder(operator, signs),
        Lanczos(operator, torch.Generator().manual_seed(seed + 0x5EED)),
        [],
    )
    while rest.rank < most and not grower.closed:
        rows, through = grower.grow()
        rest.take(rows, through)
        images.append(through)
    basis = rest.basis
    if basis is None:
        return rest, (z * image).double()
    left = image - (z @ basis.T) @ torch.cat(images)
    return rest, (z * (left - (left @ basis.T) @ basis)).double()


def _error(
    relative: float, samples: int, spent: int, seed: int, dtype: str, met: bool, confidence: float, rank: int
) -> Estimate:
    how = "none: a summary of the entries' own error bars" if samples else "exact"
    after = f" after deflating {rank} Lanczos vectors" if rank else ""
    note = f"method: random signs{after}" if samples else "method: coordinates"
    name, stderr = "relative error of the diagonal", math.nan if samples else 0.0
    ends = (0.0, math.inf) if samples else (0.0, 0.0)
    return Estimate(
        name, relative, stderr, ends, how, samples, spent, seed, dtype, met, confidence=confidence, notes=(note,)
    )


def _by_coordinates(operator: Operator, seed: int, confidence: float, before: int) -> DiagonalEstimate:
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
    return DiagonalEstimate(values, torch.zeros_like(values), made, confidence)
