r"""Lanczos in bounded memory: when the basis is full, its best Ritz vectors stay and the space grows on from there.

Kept are the outermost Ritz vectors $y_i$ and the next Lanczos vector q. As $H y_i = \theta_i y_i + \sigma_i q$, the
projected matrix is diagonal with an arrow $\sigma$ beside it, and tridiagonal again from q on; residuals stay
$|\beta_m s_m|$. Every new vector is orthogonalised twice against all kept ones, so the projected matrix is simply what
orthogonalisation finds, and without a restart the steps are those of plain Lanczos.

Reference: Wu and Simon, Thick-restart Lanczos method for large symmetric eigenvalue problems (2000).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dissensus.probes.krylov import BREAKDOWN, Ritz, lengths
from dissensus.probes.operator import Operator


class ThickRestart:
    """An orthonormal basis of at most `room` vectors, grown by products and cut back when it is full."""

    def __init__(self, operator: Operator, start: Tensor, room: int, against: Tensor | None = None) -> None:
        """Begins at `start`; `against` (r, d), orthonormal rows, is projected out of the operator."""
        self.operator, self._against = operator, against
        self.reach = operator.size - (0 if against is None else len(against))
        """The dimension of what can be reached."""
        self.room = min(room, self.reach)
        self._rows = start.new_empty(min(self.room, 16), operator.size)
        self.count = 0
        self._t = np.zeros((0, 0))
        self._beta, self._scale = 0.0, 0.0
        self.closed = False
        """Whether the space is invariant."""
        self.restarts = 0
        self._next = self._fresh(start)

    @property
    def basis(self) -> Tensor:
        """The orthonormal rows, (count, d)."""
        return self._rows[: self.count]

    def extend(self) -> None:
        """One product: the next vector joins the basis."""
        q = self._next
        assert q is not None
        self._store(q)
        image = self._outside(self.operator.matvec(q))
        self._scale = max(self._scale, float(lengths(image)))
        rest, column = image, torch.zeros(self.count, dtype=q.dtype, device=q.device)
        for _ in range(2):
            along = self.basis @ rest
            rest = self._outside(rest - along @ self.basis)
            column = column + along
        border = column.double().cpu().numpy()
        t = np.zeros((self.count, self.count))
        t[:-1, :-1] = self._t
        t[-1, :] = t[:, -1] = border
        self._t = t
        self._beta = float(lengths(rest))
        rounding = BREAKDOWN * torch.finfo(rest.dtype).eps * self._scale
        self.closed = not (self._beta > rounding and self.count < self.reach)
        self._next = None if self.closed else rest / self._beta
        self._beta = 0.0 if self.closed else self._beta

    def ritz(self) -> Ritz:
        """The Ritz pairs, ascending."""
        values, vectors = np.linalg.eigh(self._t)
        return Ritz(values, vectors, np.abs(self._beta * vectors[-1]))

    def vectors(self, found: Ritz, chosen: np.ndarray) -> Tensor:
        """The unit vectors of some Ritz pairs, (len(chosen), d)."""
        mix = torch.as_tensor(found.vectors[:, chosen].T.copy(), dtype=self._rows.dtype, device=self._rows.device)
        rows = mix @ self.basis
        return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)

    def make_room(self, order: Callable[[np.ndarray], np.ndarray], k: int) -> None:
        """If the basis is full, keeps the k outermost Ritz vectors and half of the rest; `order` sorts values."""
        if self.count < self.room or self.count >= self.reach:
            return
        found = self.ritz()
        keep = max(min(k + (self.room - k) // 2, self.room - 2), 1)
        chosen = np.argsort(order(found.values), kind="stable")[:keep]
        mix = torch.as_tensor(found.vectors[:, chosen].T.copy(), dtype=self._rows.dtype, device=self._rows.device)
        self._rows[:keep] = mix @ self.basis
        self.count = keep
        self._t = np.diag(found.values[chosen])  # the arrow is found when the next vector is orthogonalised
        self.restarts += 1

    def go_on(self, start: Tensor) -> bool:
        """After closing: goes on from what `start` has outside the space; False if that is nothing."""
        if self.count >= self.reach:
            return False
        fresh = self._fresh(start)
        if fresh is None:
            return False
        self._next, self.closed = fresh, False
        return True

    def _fresh(self, start: Tensor) -> Tensor | None:
        rest = start
        for _ in range(3):
            rest = self._outside(rest - (self.basis @ rest) @ self.basis)
            length = float(lengths(rest))
            if length == 0:
                return None
            rest = rest / length
        return rest

    def _store(self, q: Tensor) -> None:
        if self.count == len(self._rows):
            larger = q.new_empty(min(2 * self.count, self.room), self.operator.size)
            larger[: self.count] = self._rows
            self._rows = larger
        self._rows[self.count] = q
        self.count += 1

    def _outside(self, row: Tensor) -> Tensor:
        return row if self._against is None else row - (self._against @ row) @ self._against
