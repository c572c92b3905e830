r"""Directions from a random sketch: the range of H applied to random signs, as Hutch++ takes it.

With S random signs and Q an orthonormal basis of HS, two products a direction (HS and HQ), the remainder PHP has a
squared Frobenius norm of about $\lVert H\rVert_*^2/k$, which brings the products for a relative accuracy $\epsilon$ of
a positive semidefinite trace from $1/\epsilon^2$ down to $1/\epsilon$. The size of the sketch is not fixed at a third
of the budget as in the original; it grows in small blocks for as long as pilot probes say that it pays.

Reference: Meyer, Musco, Musco and Woodruff, Hutch++ (2021, arXiv:2010.09649); choosing the size on the way: Persson,
Cortinovis and Kressner (2022, arXiv:2109.10659), by another rule.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dissensus.probes.krylov import Krylov, fresh_directions, gaussian, rademacher
from dissensus.probes.operator import Operator

BLOCK = 2
"""Directions of a sketch that are taken together."""


class Sketch:
    """Grows Q by the images of random signs."""

    price = 2

    def __init__(self, operator: Operator, generator: torch.Generator) -> None:
        self.operator, self._generator = operator, generator
        self._basis = torch.zeros((0, operator.size), dtype=operator.dtype, device=operator.device)
        self.closed = False
        """Whether the last images brought nothing new."""

    def grow(self) -> tuple[Tensor, Tensor]:
        """New rows of Q and of HQ; none where the images lie in Q already."""
        image = self.operator.matvec(rademacher(self._generator, BLOCK, self.operator))
        rows = fresh_directions(image, self._basis)
        self.closed = len(rows) < BLOCK
        self._basis = torch.cat([self._basis, rows])
        return rows, self.operator.matvec(rows) if len(rows) else rows


class Lanczos:
    """Grows Q by Lanczos steps from one random start, one product a direction."""

    price = 1

    def __init__(self, operator: Operator, generator: torch.Generator) -> None:
        self._space = Krylov(operator, gaussian(generator, operator))

    @property
    def closed(self) -> bool:
        """Whether the Krylov space has become invariant."""
        return self._space.closed

    def grow(self) -> tuple[Tensor, Tensor]:
        """The next Lanczos vector and its image."""
        image = self._space.extend()
        return self._space.newest, image
