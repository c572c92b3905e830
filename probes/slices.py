r"""The loss on a line or a plane through a point: $f(a, b) = L(\theta + a\,u + b\,v)$, as data for figures.

Directions are random and filter-normalised (`random_directions`), eigenvectors, the principal directions of the
workers' disagreement (`principal_directions`), or whatever is given. A slice says how its directions were made: two
slices compare only where the directions do. In many dimensions a random slice shows the mean curvature and little else;
what eigenvectors show it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.probes.disagreement import displacements
from dissensus.probes.errors import ProbeError
from dissensus.probes.filter_norm import Normalisation, normalised
from dissensus.probes.landscape import Landscape, Loss, Patterns
from dissensus.probes.untouched import Mode, undisturbed


@dataclass(frozen=True, eq=False)
class Slice:
    """Losses over a grid of one or two axes."""

    axes: tuple[np.ndarray, ...]
    """Offsets along every direction, in units of that direction."""
    values: np.ndarray
    """The loss over all data, one dimension per axis."""
    directions: tuple[Tensor, ...]
    labels: tuple[str, ...]
    """What each direction is."""
    marks: np.ndarray
    """Points to show with it, (k, axes): the workers, seen from the centre."""
    evaluations: int
    """How often all data were gone through."""

    @property
    def lowest(self) -> tuple[float, ...]:
        """The offsets at which the loss on the grid is least."""
        at = np.unravel_index(int(np.argmin(self.values)), self.values.shape)
        return tuple(float(axis[i]) for axis, i in zip(self.axes, at, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON, without the directions."""
        return {
            "axes": [axis.tolist() for axis in self.axes],
            "values": self.values.tolist(),
            "labels": list(self.labels),
            "marks": self.marks.tolist(),
            "evaluations": self.evaluations,
        }


@undisturbed()
def loss_slice(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Any],
    directions: Sequence[Tensor] | int = 1,
    *,
    reach: float | Sequence[float] = 1.0,
    points: int = 21,
    labels: Sequence[str] = (),
    workers: Tensor | None = None,
    normalisation: Normalisation = "filter",
    weights: Sequence[float] | None = None,
    parameters: Patterns = None,
    mode: Mode = "eval",
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Slice:
    """The loss along one direction or over the plane of two; a number of directions asks for random ones.

    `reach` is how far to go, in lengths of each direction: with filter normalisation 1 goes as far as the weights are
    long. `workers` (n, d) are marked where they stand from the centre, projected on the directions.
    """
    landscape = Landscape(
        model, loss, batches, weights=weights, parameters=parameters, mode=mode, dtype=dtype, seed=seed
    )
    if isinstance(directions, int):
        rows = random_directions(landscape, directions, normalisation=normalisation, seed=seed)
        labels = labels or [f"random direction {i + 1} ({normalisation} normalisation)" for i in range(len(rows))]
    else:
        rows = landscape.select(torch.stack([torch.as_tensor(d) for d in directions]))
        labels = labels or [f"direction {i + 1}" for i in range(len(rows))]
    if len(rows) not in (1, 2):
        raise ProbeError(f"a slice has one or two directions, got {len(rows)}")
    if points < 3:
        raise ProbeError(f"a slice needs at least 3 points along an axis, got {points}")
    far = [reach] * len(rows) if isinstance(reach, (int, float)) else list(reach)
    if len(far) != len(rows) or len(labels) != len(rows) or not all(0 < r < float("inf") for r in far):
        raise ProbeError(f"reach and labels go with the {len(rows)} directions, got reach={reach!r}, labels={labels!r}")
    axes = tuple(np.linspace(-r, r, points) for r in far)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(rows))
    steps = torch.as_tensor(grid, dtype=rows.dtype, device=rows.device)
    values = np.array([landscape.value(landscape.point + step @ rows) for step in steps])
    marks = np.zeros((0, len(rows))) if workers is None else coordinates(landscape, workers, rows)
    shape = tuple(len(axis) for axis in axes)
    return Slice(axes, values.reshape(shape), tuple(rows), tuple(labels), marks, len(values))


def random_directions(
    landscape: Landscape, count: int, *, normalisation: Normalisation = "filter", seed: int = 0
) -> Tensor:
    """Independent normal directions (count, d), brought to the scale of the weights."""
    if count < 1:
        raise ProbeError(f"a slice has one or two directions, got {count}")
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, landscape.size, generator=draw, dtype=torch.float64).to(landscape.point)
    return torch.stack([normalised(row, landscape.point, landscape.shapes, normalisation) for row in rows])


def principal_directions(x: Tensor, count: int = 2) -> tuple[Tensor, np.ndarray]:
    """The directions (count, d) in which the workers differ most, orthonormal, and the root of their share of Xi."""
    away = displacements(x)
    _, sizes, rows = torch.linalg.svd(away, full_matrices=False)
    rank = int((sizes > 1e-12 * max(float(sizes[0]), 1e-300)).sum())
    if not 1 <= count <= rank:
        raise ProbeError(f"the disagreement of {len(x)} workers has {rank} principal directions, asked for {count}")
    return rows[:count], (sizes[:count] / len(x) ** 0.5).cpu().numpy()


def coordinates(landscape: Landscape, x: Tensor, directions: Tensor) -> np.ndarray:
    """Where rows x (n, d) stand from the landscape's point, by least squares in the given directions, (n, k)."""
    away, rows = landscape.select(x).double() - landscape.point.double(), directions.double()
    sums = torch.stack([(away * row).sum(1) for row in rows])  # not by a matrix product: the same bits every time
    gram = torch.stack([torch.stack([(one * other).sum() for other in rows]) for one in rows])
    return torch.linalg.solve(gram, sums).T.cpu().numpy()
