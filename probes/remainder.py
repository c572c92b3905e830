r"""An operator as a part whose diagonal is known exactly and a remainder that is sampled.

With Q any orthonormal rows, $P = I - Q^\top Q$, B = HQ the images and $T = Q H Q^\top$,

$$ H = \underbrace{B^\top Q + Q^\top B - Q^\top T Q}_{\text{known}} + P H P . $$

The known part's diagonal costs nothing beyond the products B, so traces of the whole, of layers, and single diagonal
entries come from the same samples $z \odot PHPz$ of the remainder; its sum is $\operatorname{tr} T$. Probes that were
multiplied by H before are carried over to the remainder without new products: with a = Qz and b = Bz,
$(Pz)^\top H (Pz) = z^\top H z - 2 a^\top b + a^\top T a$. So a handful of pilot probes tells, for every size of Q, how
many probes the target would take, and Q grows as long as that pays.

The estimate is then made of fresh probes: had the pilot a say in it, the size of Q would have been chosen where the
pilot's spread is small by accident, and nominal 95 % intervals would hold in 84 to 92 % of cases. Sharing the pilot and
the rule for the size of Q are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dissensus.probes.krylov import rademacher
from dissensus.probes.operator import Operator

PILOT = 10
"""Probes that choose the size of Q."""
PATIENCE = 10
"""Vectors without a better forecast after which Q has grown enough."""
BASIS_BYTES = 1 << 30
"""The memory that Q may take."""


Needed = Callable[[np.ndarray, float], float]
"""How many probes it takes if they are like the given samples, on top of a known part."""


class Grower(Protocol):
    """Something that brings new orthonormal directions, with their images."""

    price: int
    """Products per direction."""

    @property
    def closed(self) -> bool:
        """Whether there is nothing more to bring."""
        ...

    def grow(self) -> tuple[Tensor, Tensor]:
        """New rows of Q (b, d) and of HQ (b, d)."""
        ...


class Remainder:
    """PHP, sampled by random signs, and what is known of the rest of H."""

    def __init__(self, operator: Operator, signs: torch.Generator) -> None:
        """Begins without anything known: Q is empty; `signs` is what probes are drawn from."""
        self.operator, self._signs = operator, signs
        self._rows: list[Tensor] = []
        self._t = np.zeros((0, 0))
        self._twice = torch.zeros(operator.size, dtype=torch.float64, device=operator.device)
        self.pilot = np.empty(0)
        """The pilot's quadratic forms in the remainder."""
        self._basis: Tensor | None = None

    @property
    def rank(self) -> int:
        """The number of directions in Q."""
        return len(self._t)

    @property
    def basis(self) -> Tensor | None:
        """Q, (rank, d), or None."""
        if self._basis is None and self._rows:
            self._basis = torch.cat(self._rows)
            self._rows = [self._basis]
        return self._basis

    @property
    def known(self) -> float:
        """The trace of the known part."""
        return float(np.trace(self._t))

    def known_diagonal(self) -> Tensor:
        """The diagonal of the known part, (d,) in float64."""
        basis = self.basis
        if basis is None:
            return self._twice
        t = torch.as_tensor(self._t, dtype=basis.dtype, device=basis.device)
        return self._twice - ((t @ basis) * basis).sum(0).double()

    def products(self, count: int) -> Tensor:
        """Fresh probes z, as rows of z times PHPz elementwise (count, d): unbiased for the remainder's diagonal."""
        z = rademacher(self._signs, count, self.operator)
        inside = self._project(z)
        image = self._project(self.operator.matvec(inside))
        return (z * image).double()

    def forms(self, count: int) -> tuple[np.ndarray, float]:
        """Fresh samples of the remainder's trace, and the size of what was added up in them."""
        z = self._project(rademacher(self._signs, count, self.operator))
        image = self.operator.matvec(z)
        return _forms(z, image), _size(z, image)

    def take(self, rows: Tensor, images: Tensor) -> None:
        """Adds directions to Q."""
        block = [images @ earlier.T for earlier in [*self._rows, rows]]
        border = torch.cat(block, dim=1).double().cpu().numpy()
        r, b = self.rank, len(rows)
        t = np.zeros((r + b, r + b))
        t[:r, :r] = self._t
        t[r:, :] = border
        t[:r, r:] = border[:, :r].T
        t[r:, r:] = (border[:, r:] + border[:, r:].T) / 2
        self._t, self._basis = t, None
        self._rows.append(rows)
        self._twice += 2 * (rows.double() * images.double()).sum(0)

    def first(self, count: int) -> tuple[Tensor, np.ndarray, float]:
        """Fresh probes of the operator itself, their quadratic forms, and the size of what was added up in them."""
        z = rademacher(self._signs, count, self.operator)
        image = self.operator.matvec(z)
        return z, _forms(z, image), _size(z, image)

    def deflate(self, grower: Grower, needed: Needed, most: int) -> float:
        """`deflate_with` a pilot of its own."""
        z, plain, _ = self.first(PILOT)
        return self.deflate_with(z, plain, grower, needed, most)

    def deflate_with(self, z: Tensor, plain: np.ndarray, grower: Grower, needed: Needed, most: int) -> float:
        """Grows Q while (its products + the probes then needed) falls; at most `most` directions.

        The pilot probes are the rows of z, their quadratic forms `plain`. Returns how many probes are then needed.
        """
        self.pilot = plain
        heads, tails = np.zeros((len(z), 0)), np.zeros((len(z), 0))
        ahead = needed(plain, 0.0)
        best, best_rank = ahead, 0
        least = needed(np.ones(2), 0.0)  # without spread
        itemsize = torch.finfo(self.operator.dtype).bits // 8
        most = min(most, self.operator.size - 1, max(BASIS_BYTES // (itemsize * self.operator.size), 1))
        while self.rank < most and not grower.closed:
            if grower.price * (self.rank + 1) + least >= best or self.rank - best_rank >= PATIENCE:
                break
            rows, images = grower.grow()
            self.take(rows, images)
            heads = np.concatenate([heads, (z @ rows.T).double().cpu().numpy()], axis=1)
            tails = np.concatenate([tails, (z @ images.T).double().cpu().numpy()], axis=1)
            self.pilot = plain - 2 * (heads * tails).sum(1) + ((heads @ self._t) * heads).sum(1)
            ahead = needed(self.pilot, self.known)
            if ahead + grower.price * self.rank < best:
                best, best_rank = ahead + grower.price * self.rank, self.rank
        return ahead

    def _project(self, z: Tensor) -> Tensor:
        basis = self.basis
        return z if basis is None else z - (z @ basis.T) @ basis


def probes_needed(rtol: float, least: int) -> Needed:
    """How many probes a relative accuracy takes, forecast from a few of them."""

    def needed(pilot: np.ndarray, known: float) -> float:
        value, spread = abs(known + float(pilot.mean())), float(pilot.std(ddof=1))
        if spread == 0:
            return least
        return max((2 * spread / (rtol * value)) ** 2, least) if value > 0 else math.inf

    return needed


def _forms(z: Tensor, image: Tensor) -> np.ndarray:
    """The quadratic forms of the rows."""
    return (z.double() * image.double()).sum(1).cpu().numpy()


def _size(z: Tensor, image: Tensor) -> float:
    """The mean over the rows of the size of what their forms add up."""
    return float((z.double() * image.double()).abs().sum(1).mean())
