r"""Random perturbations of the weights: what an average-direction sharpness averages over.

| perturbation | δ | covariance |
|---|---|---|
| `Sphere(r)` | uniform on the sphere of radius r | $\frac{r^2}{d} I$ |
| `Ball(r)` | uniform in the ball of radius r | $\frac{r^2}{d+2} I$ |
| `Gaussian(r)` | normal with $\mathbb E\lVert\delta\rVert^2 = r^2$ | $\frac{r^2}{d} I$ |
| `Diagonal(v)` | normal, independent entries of variance $v_j$ | $\operatorname{diag}(v)$ |
| `LowRank(F)` | normal, $F^\top\xi$ with $\xi$ standard normal | $F^\top F$ |
| `Workers(x)` | normal with the covariance of the workers' disagreement | $\Sigma=\frac1n\sum_i e_ie_i^\top$ |

To second order the mean rise of the loss is half the trace of H times the covariance, whatever the shape of δ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dissensus.probes.disagreement import displacements
from dissensus.probes.errors import ProbeError


class Chosen(Protocol):
    """What a perturbation asks of the landscape it perturbs."""

    @property
    def point(self) -> Tensor:
        """The point looked at, (d,)."""
        ...

    def select(self, x: Tensor) -> Tensor:
        """Rows of chosen parameters from rows of chosen or of all parameters."""
        ...


class Perturbation(Protocol):
    """A centred random vector, symmetric about zero."""

    @property
    def name(self) -> str:
        """How results call it."""
        ...

    def draw(self, count: int, landscape: Chosen, generator: torch.Generator) -> Tensor:
        """`count` independent vectors as rows (count, d), in the dtype of the point."""
        ...


@dataclass(frozen=True)
class Sphere:
    """Uniform directions of one length."""

    radius: float

    def __post_init__(self) -> None:
        check_radius(self.radius)

    @property
    def name(self) -> str:
        """How results call it."""
        return f"uniform on the sphere of radius {self.radius:g}"

    def draw(self, count: int, landscape: Chosen, generator: torch.Generator) -> Tensor:
        """Normal vectors brought to the radius."""
        z = _normal(count, landscape, generator)
        return self.radius * z / torch.linalg.vector_norm(z, dim=1, keepdim=True)


@dataclass(frozen=True)
class Ball:
    """Uniform in the ball: in many dimensions nearly the sphere."""

    radius: float

    def __post_init__(self) -> None:
        check_radius(self.radius)

    @property
    def name(self) -> str:
        """How results call it."""
        return f"uniform in the ball of radius {self.radius:g}"

    def draw(self, count: int, landscape: Chosen, generator: torch.Generator) -> Tensor:
        """Points of the sphere drawn in by the d-th root of a uniform number."""
        rows = Sphere(self.radius).draw(count, landscape, generator)
        share = torch.rand(count, 1, generator=generator, dtype=torch.float64) ** (1 / rows.shape[1])
        return rows * share.to(rows)


@dataclass(frozen=True)
class Gaussian:
    """Normal in all directions alike; `radius` is the root of the mean squared length."""

    radius: float

    def __post_init__(self) -> None:
        check_radius(self.radius)

    @property
    def name(self) -> str:
        """How results call it."""
        return f"Gaussian of root mean square length {self.radius:g}"

    def draw(self, count: int, landscape: Chosen, generator: torch.Generator) -> Tensor:
        """Standard normal vectors times radius / sqrt(d)."""
        return _normal(count, landscape, generator) * (self.radius / math.sqrt(landscape.point.numel()))


@dataclass(frozen=True, eq=False)
class Diagonal:
    """Normal with independent entries, each with a variance of its own: a posterior, or a preconditioner's."""

    variances: Tensor
    """(d,), of the chosen parameters or of all."""

    @property
    def name(self) -> str:
        """How results call it."""
        return "Gaussian of diagonal covariance"

    def draw(self, count: int, landscape: Chosen, generator: torch.Generator) -> Tensor:
        """Standard normal vectors times the standard deviations."""
        values = landscape.select(self.variances.reshape(1, -1))[0]
        if not bool((values >= 0).all()):
            raise ProbeError(f"variances must not be negative, got {float(values.min()):.3g}; take squares, not roots")
        return _normal(count, landscape, generator) * values.sqrt()


@dataclass(frozen=True, eq=False)
class LowRank:
    """Normal within the span of some rows: the covariance is their Gram matrix over parameters."""

    factors: Tensor
    """(k, d), of the chosen parameters or of all."""

    @property
    def name(self) -> str:
        """How results call it."""
        return f"Gaussian of rank {len(self.factors)}"

    def draw(self, count: int, landscape: Chosen, generator: torch.Generator) -> Tensor:
        """Standard normal combinations of the rows."""
        rows = landscape.select(self.factors)
        return torch.randn(count, len(rows), generator=generator, dtype=torch.float64).to(rows) @ rows


@dataclass(frozen=True, eq=False)
class Workers:
    """Normal with the covariance of the workers' disagreement (n, d): what a random mixture of workers does."""

    x: Tensor

    @property
    def name(self) -> str:
        """How results call it."""
        return f"Gaussian with the disagreement's covariance (n = {len(self.x)})"

    def draw(self, count: int, landscape: Chosen, generator: torch.Generator) -> Tensor:
        """Standard normal combinations of the displacements over sqrt(n)."""
        away = displacements(self.x) / math.sqrt(len(self.x))
        return LowRank(away).draw(count, landscape, generator)


def check_radius(radius: Any) -> None:
    """Refuses what is no length."""
    if not (isinstance(radius, (int, float)) and 0 < radius < math.inf):
        raise ProbeError(f"radius must be a positive number (a length in parameter units), got {radius!r}")


def _normal(count: int, landscape: Chosen, generator: torch.Generator) -> Tensor:
    size = landscape.point.numel()
    return torch.randn(count, size, generator=generator, dtype=torch.float64).to(landscape.point)
