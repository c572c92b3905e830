r"""Where disagreement and curvature meet: $\operatorname{tr}(H\Sigma)$ with $\Sigma = \frac1n\sum_i e_i e_i^\top$.

With $e_i = x_i-\bar x$, n products give exactly $\operatorname{tr}(H\Sigma) = \frac1n\sum_i e_i^\top H e_i$. Half of
it is the quadratic prediction of the envelope $\frac1n\sum_i L(x_i) - L(\bar x)$. Two ratios set it in relation:

- the normalised alignment $\operatorname{tr}(H\Sigma)\, d / (\operatorname{tr}H \operatorname{tr}\Sigma)$: 1 when the
  disagreement is spread evenly over all directions, above 1 when it prefers sharp ones, below 1 when flat ones (ours);
- the Rayleigh quotient $\operatorname{tr}(H\Sigma)/\operatorname{tr}\Sigma$: the mean curvature along the disagreement.

A ratio hides which of its parts moved, so numerator and denominators are kept apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dissensus.probes.disagreement import displacements
from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate, exact
from dissensus.probes.operator import Operator, dtype_name
from dissensus.probes.trace import hessian_trace
from dissensus.probes.untouched import undisturbed


@dataclass(frozen=True)
class Alignment:
    """The curvature along the disagreement, against the curvature overall."""

    numerator: float
    """tr(H Σ), exact on the given data."""
    trace_h: Estimate
    trace_sigma: float
    """tr Σ: the consensus distance Ξ of the chosen parameters."""
    d: int
    normalised: Estimate
    """tr(H Σ) d / (tr H tr Σ); its error is that of tr H."""
    rayleigh: float
    """tr(H Σ) / tr Σ."""
    shares: tuple[float, ...]
    """e_i'He_i / n of every worker; they add up to the numerator."""

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        numbers = {
            "numerator": self.numerator,
            "trace_sigma": self.trace_sigma,
            "rayleigh": self.rayleigh if math.isfinite(self.rayleigh) else None,
            "d": self.d,
            "shares": list(self.shares),
        }
        return {**numbers, "trace_h": self.trace_h.to_dict(), "normalised": self.normalised.to_dict()}


class _Selecting(Protocol):
    def select(self, x: Tensor) -> Tensor: ...


@undisturbed()
def quadratic_forms(operator: Operator, x: Tensor) -> tuple[Tensor, Tensor]:
    """e_i'He_i and ‖e_i‖² of every worker, in float64, from one product per worker."""
    away = _displacements(operator, x)
    image = operator.matvec(away.to(dtype=operator.dtype, device=operator.device)).double()
    return (away.to(image.device) * image).sum(1), away.square().sum(1)


@undisturbed()
def covariance_envelope(operator: Operator, x: Tensor) -> Estimate:
    """½ tr(H Σ): what the loss curve predicts for mean_i L(x_i) - L(x̄), from n products at the operator's point."""
    before = operator.products
    forms, _ = quadratic_forms(operator, x)
    value = 0.5 * float(forms.mean())
    spent, dtype = operator.products - before, dtype_name(operator.dtype)
    return exact("tr(HΣ)/2", value, num_matvecs=spent, dtype=dtype, notes=("exact on the operator's data",))


@undisturbed()
def alignment(
    operator: Operator,
    x: Tensor,
    *,
    trace: Estimate | None = None,
    rtol: float = 0.05,
    max_matvecs: int = 1000,
    seed: int = 0,
) -> Alignment:
    """The alignment of the workers' disagreement x (n, d) with the operator's curvature (taken at their mean).

    `trace` is tr H where it is known already; otherwise it is estimated to `rtol`. Without disagreement, or where the
    interval of tr H contains zero, the ratios are nan or unbounded, and say so.
    """
    before = operator.products
    forms, squares = quadratic_forms(operator, x)
    known = trace or hessian_trace(operator, rtol=rtol, max_matvecs=max_matvecs, seed=seed)
    n, d = len(forms), operator.size
    numerator, spread = float(forms.mean()), float(squares.mean())
    scale = numerator * d / spread if spread > 0 else math.nan
    return Alignment(
        numerator=numerator,
        trace_h=known,
        trace_sigma=spread,
        d=d,
        normalised=_ratio(scale, known, operator.products - before),
        rayleigh=numerator / spread if spread > 0 else math.nan,
        shares=tuple(float(form) / n for form in forms),
    )


@undisturbed()
def captured(x: Tensor, vectors: Tensor | Sequence[Tensor], operator: Operator | None = None) -> float:
    """The share of tr Σ that lies in the space of the given orthonormal vectors (top eigenvectors, say).

    `operator` tells which columns of x belong to the vectors where only some parameters were chosen.
    """
    rows = torch.stack(list(vectors)) if not isinstance(vectors, Tensor) else torch.atleast_2d(vectors)
    away = displacements(x) if operator is None else _displacements(operator, x)
    rows = rows.detach().to(away)
    if rows.shape[1] != away.shape[1]:
        raise ProbeError(
            f"the vectors have {rows.shape[1]} entries, the rows of x {away.shape[1]}; choose the same ones"
        )
    off = float((rows @ rows.T - torch.eye(len(rows), dtype=rows.dtype, device=rows.device)).abs().max())
    if off > 1e-3:
        raise ProbeError(f"the vectors are not orthonormal (off by {off:.2g}); use torch.linalg.qr first")
    total = float(away.square().sum())
    return float((away @ rows.T).square().sum()) / total if total > 0 else math.nan


def _displacements(operator: Operator, x: Tensor) -> Tensor:
    away = displacements(x)
    if hasattr(operator, "select"):
        return _selected(operator, away)  # type: ignore[arg-type]
    if away.shape[1] != operator.size:
        raise ProbeError(f"x has rows of {away.shape[1]} numbers, the operator takes {operator.size}")
    return away


def _selected(operator: _Selecting, away: Tensor) -> Tensor:
    return operator.select(away).double()


def _ratio(scale: float, trace: Estimate, spent: int) -> Estimate:
    """The ratio scale / trace, with the interval carried through the reciprocal."""
    low, high = trace.interval
    value = scale / trace.value if trace.value != 0 else math.nan
    if math.isnan(value):
        ends, method = (math.nan, math.nan), "none: the ratio is not defined"
    elif low <= 0 <= high:
        ends, method = (-math.inf, math.inf), "none: the interval of tr H contains zero"
    else:
        ends, method = tuple(sorted((scale / low, scale / high))), f"reciprocal of tr H ({trace.interval_method})"
    return Estimate(
        name="normalised alignment",
        value=value,
        stderr=abs(value) * trace.stderr / abs(trace.value) if trace.value != 0 else math.nan,
        interval=(ends[0], ends[1]),
        interval_method=method,
        samples=trace.samples,
        num_matvecs=spent,
        seed=trace.seed,
        dtype=trace.dtype,
        converged=trace.converged and not math.isnan(value),
        confidence=trace.confidence,
    )
