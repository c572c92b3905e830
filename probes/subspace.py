r"""Two subspaces against each other: the disagreement's principal space and the sharpest directions of the loss.

The principal angles $\theta_1\le\dots\le\theta_k$ between spaces with orthonormal bases U, V have cosines equal to the
singular values of $U^\top V$ (Björck and Golub 1973). Two k-dimensional spaces drawn at random in d dimensions share
$\mathbb E\sum_j\cos^2\theta_j = k^2/d$: that, not zero, is what no preference looks like. Small angles are taken from
the sine, which the cosine cannot resolve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dissensus.probes.errors import ProbeError
from dissensus.probes.slices import principal_directions


@dataclass(frozen=True)
class Angles:
    """The principal angles between two subspaces."""

    degrees: tuple[float, ...]
    """Ascending, from 0 (a shared direction) to 90 (orthogonal)."""
    overlap: float
    """Σ cos²θ over the smaller dimension: 1 when one space contains the other."""
    by_chance: float
    """The overlap of random spaces of these dimensions: the larger dimension over d."""
    dimensions: tuple[int, int]

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return {
            "degrees": list(self.degrees),
            "overlap": self.overlap,
            "by_chance": self.by_chance,
            "dimensions": list(self.dimensions),
        }


def principal_angles(a: Tensor | Sequence[Tensor], b: Tensor | Sequence[Tensor]) -> Angles:
    """The angles between the spans of two sets of orthonormal rows (k, d)."""
    left, right = _rows(a, "first"), _rows(b, "second")
    if left.shape[1] != right.shape[1]:
        raise ProbeError(
            f"the spaces lie in {left.shape[1]} and {right.shape[1]} dimensions; choose the same parameters"
        )
    small, large = sorted((left, right.to(left.device)), key=len)
    cosines = torch.linalg.svdvals(small @ large.T).clamp(max=1)
    sines = torch.linalg.svdvals(small - (small @ large.T) @ large).clamp(max=1).flip(0)
    angles = torch.where(cosines.square() > 0.5, torch.asin(sines), torch.acos(cosines))
    return Angles(
        degrees=tuple(math.degrees(float(angle)) for angle in angles),
        overlap=float(cosines.square().mean()),
        by_chance=len(large) / large.shape[1],
        dimensions=(len(left), len(right)),
    )


def disagreement_angles(x: Tensor, vectors: Tensor | Sequence[Tensor], count: int | None = None) -> Angles:
    """The angles between the `count` principal directions of the disagreement (as many as vectors) and the vectors.

    Rows of x must hold the parameters that the vectors speak of (`landscape.select(x)` where some were chosen).
    """
    rows = _rows(vectors, "second")
    if x.dim() == 2 and x.shape[1] != rows.shape[1]:
        raise ProbeError(f"the vectors have {rows.shape[1]} entries, the rows of x {x.shape[1]}; choose the same ones")
    principal, _ = principal_directions(x, min(len(rows), len(x) - 1) if count is None else count)
    return principal_angles(principal, rows)


def _rows(given: Tensor | Sequence[Tensor], which: str) -> Tensor:
    rows = torch.atleast_2d(given) if isinstance(given, Tensor) else torch.stack(list(given))
    rows = rows.detach().double()
    off = float((rows @ rows.T - torch.eye(len(rows), dtype=rows.dtype, device=rows.device)).abs().max())
    if off > 1e-3:
        raise ProbeError(f"the {which} rows are not orthonormal (off by {off:.2g}); use torch.linalg.qr first")
    return torch.linalg.qr(rows.T).Q.T
