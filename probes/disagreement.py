r"""How far apart the workers are: the consensus distance $\Xi = \frac1n\sum_i \lVert x_i - \bar x\rVert^2$ and its kin.

Three numbers go by that name in the literature, and none exceeds the next: the mean of norms (published as D2C), the
root of $\Xi$, and the largest norm. All are in float64, and zero to the bit when all workers are equal.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from dissensus.probes.errors import ProbeError


@dataclass(frozen=True)
class Disagreement:
    """The distances of n workers from their mean."""

    xi: float
    """mean ‖x_i - x̄‖²: the trace of the disagreement's covariance."""
    root: float
    """√xi."""
    mean_norm: float
    """mean ‖x_i - x̄‖ (the published D2C)."""
    max_norm: float
    """max ‖x_i - x̄‖."""
    size: int
    """The number of workers."""

    def to_dict(self) -> dict[str, float]:
        """A plain dictionary for JSON."""
        return asdict(self)


def displacements(x: Tensor) -> Tensor:
    """The rows x_i - x̄ in float64; exactly zero when all rows are equal."""
    if not isinstance(x, Tensor) or x.dim() != 2 or 0 in x.shape:
        shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ProbeError(f"x must be a tensor of shape (n, d), one row per worker, got {shape}")
    away = x.detach().double() - x[:1].detach().double()
    bad = ~torch.isfinite(away).all(1)
    if bad.any():
        raise ProbeError(f"x is not finite in the row of worker {int((~torch.isfinite(x).all(1)).nonzero()[0])}: "
                         "look at the steps before, the disagreement of what has diverged is no number")  # fmt: skip
    return away - away.mean(0)


def consensus_distance(x: Tensor) -> Disagreement:
    """The disagreement of the rows of x (n, d)."""
    return _of(displacements(x).square().sum(1))


def by_parameter(x: Tensor, model: nn.Module) -> dict[str, Disagreement]:
    """The disagreement of every parameter tensor; their `xi` add up to that of the whole."""
    pieces = columns(x, model)
    away = displacements(x).square()
    return {name: _of(away[:, span].sum(1)) for name, span in pieces.items()}


def columns(x: Tensor, model: nn.Module) -> dict[str, slice]:
    """Where every parameter lies in a row that holds the trainable ones, or all, in the order of named_parameters()."""
    everything = dict(model.named_parameters())
    trainable = {name: p for name, p in everything.items() if p.requires_grad}
    for chosen in (trainable, everything):
        ends = list(accumulate((p.numel() for p in chosen.values()), initial=0))
        if x.dim() == 2 and x.shape[1] == ends[-1]:
            return {name: slice(*span) for name, span in zip(chosen, pairwise(ends), strict=True)}
    sizes = [sum(p.numel() for p in chosen.values()) for chosen in (everything, trainable)]
    held = f"{sizes[0]} parameters" + (f", {sizes[1]} trainable ones" if sizes[0] != sizes[1] else "")
    raise ProbeError(f"x has shape {tuple(x.shape)}, but rows of this model hold {held}")


def _of(squares: Tensor) -> Disagreement:
    norms = squares.sqrt()
    xi = float(squares.mean())
    return Disagreement(xi, xi**0.5, float(norms.mean()), float(norms.max()), len(squares))
