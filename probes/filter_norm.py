r"""Directions in the scale of the weights: filter normalisation of Li et al. 2018 (arXiv:1712.09913).

A random direction is brought, filter by filter, to the length of the weights it is added to,
$d_{ij} \leftarrow \frac{d_{ij}}{\lVert d_{ij}\rVert}\lVert\theta_{ij}\rVert$, with a filter the weights that lead to
one output (a row of the weight matrix, whatever its kernel). Vectors (biases, the gains of normalisation layers) and
scalars stay where they are, as the authors do by default: their length says nothing about a scale that could be divided
out. What comes out moves with the weights when a layer is rescaled, and so a slice along it is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from dissensus.probes.errors import ProbeError

Normalisation = Literal["filter", "layer", "none"]
NORMALISATIONS = ("filter", "layer", "none")


def normalised(
    direction: Tensor, point: Tensor, shapes: Mapping[str, Any], normalisation: Normalisation = "filter"
) -> Tensor:
    """A direction (d,) in the scale of the point (d,): per filter, per layer, or as it is but of the point's norm.

    `shapes` are the parameters' names and shapes in the order of the row (`landscape.shapes`).
    """
    if normalisation not in NORMALISATIONS:
        raise ProbeError(f"unknown normalisation {normalisation!r}; there are {', '.join(NORMALISATIONS)}")
    sizes = [int(torch.Size(shape).numel()) for shape in shapes.values()]
    if direction.shape != point.shape or sum(sizes) != point.numel():
        raise ProbeError(
            f"direction {tuple(direction.shape)}, point {tuple(point.shape)} and shapes of {sum(sizes)} numbers differ:"
            " take all from one landscape"
        )
    if normalisation == "none":
        return direction * (
            torch.linalg.vector_norm(point) / torch.linalg.vector_norm(direction).clamp(min=_tiny(point))
        )
    parts = []
    for d, w, shape in zip(direction.split(sizes), point.split(sizes), shapes.values(), strict=True):
        if len(shape) < 2:
            parts.append(torch.zeros_like(d))
            continue
        rows = shape[0] if normalisation == "filter" else 1
        d, w = d.reshape(rows, -1), w.reshape(rows, -1)
        lengths = [torch.linalg.vector_norm(t, dim=1, keepdim=True) for t in (w, d)]
        parts.append((d * (lengths[0] / lengths[1].clamp(min=_tiny(d)))).reshape(-1))
    return torch.cat(parts)


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny
