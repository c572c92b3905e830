r"""A mixing matrix: one round of exchange between workers, as a value that checks itself.

Row = receiver. After a round worker `i` holds

$$ x_i^+ = \sum_j W_{ij}\, x_j . $$

What was promised about the sums is checked on construction and refused with the row and the value when it does not
hold; nothing is repaired. Three promises exist: `doubly` (rows and columns sum to one: consensus and the mean are both
kept), `row` (consensus is kept, the mean is not) and `column` (sums are kept: the weights of push-sum).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError

Stochasticity = Literal["doubly", "row", "column"]

SUM_TOLERANCE = 1e-10
"""How far a row or column sum may lie from one. Rounding of n weights stays below n·eps, far under this."""


@dataclass(frozen=True, eq=False)
class MixingMatrix:
    """One round of exchange: a sparse n x n matrix whose row i says what worker i makes of what it receives."""

    weights: sp.csr_array
    promise: Stochasticity = "doubly"
    signed: bool = field(default=False, kw_only=True)
    """Whether negative weights are allowed (fastest-mixing weights need them)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", _canonical(self.weights))
        _check(self.weights, self.promise, signed=self.signed)

    @classmethod
    def of(cls, weights: Any, promise: Stochasticity = "doubly", *, signed: bool = False) -> MixingMatrix:
        """Builds from anything two-dimensional: nested lists, a numpy array, a scipy sparse matrix."""
        return cls(weights, promise, signed=signed)

    @classmethod
    def identity(cls, n: int) -> MixingMatrix:
        """The round in which nobody speaks."""
        return cls(sp.csr_array(sp.eye_array(n)))

    @property
    def size(self) -> int:
        """The number of workers, n."""
        return len(self.weights.indptr) - 1

    def dense(self) -> np.ndarray:
        """The n x n array."""
        return self.weights.toarray()

    def row(self, i: int) -> list[tuple[int, float]]:
        """What worker i mixes: (sender, weight) pairs, itself included."""
        lo, hi = self.weights.indptr[i], self.weights.indptr[i + 1]
        return [(int(j), float(w)) for j, w in zip(self.weights.indices[lo:hi], self.weights.data[lo:hi], strict=True)]

    def triplets(self) -> list[tuple[int, int, float]]:
        """All weights as (receiver, sender, weight)."""
        w = self.weights.tocoo()
        return [(int(i), int(j), float(v)) for i, j, v in zip(*w.coords, w.data, strict=True)]

    def neighbours(self, i: int) -> list[int]:
        """The workers that worker i hears, itself not included."""
        return [j for j, _ in self.row(i) if j != i]

    @cached_property
    def messages(self) -> int:
        """How many (sender, receiver) messages one round takes."""
        return int(self.weights.nnz - np.count_nonzero(self.weights.diagonal()))

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether W equals its transpose (to rounding)."""
        difference = abs(self.weights - self.weights.T)
        return difference.nnz == 0 or float(difference.max()) <= 1e-13

    @cached_property
    def is_row_stochastic(self) -> bool:
        """Whether every row sums to one."""
        return _worst_sum(self.weights, axis=1)[1] <= SUM_TOLERANCE

    @cached_property
    def is_column_stochastic(self) -> bool:
        """Whether every column sums to one."""
        return _worst_sum(self.weights, axis=0)[1] <= SUM_TOLERANCE

    @property
    def is_doubly_stochastic(self) -> bool:
        """Whether rows and columns sum to one."""
        return self.is_row_stochastic and self.is_column_stochastic

    def adapted(self, gamma: float) -> MixingMatrix:
        r"""Adaptive consensus: $W_\gamma = (1-\gamma) I + \gamma W$, whose eigenvalues are $1-\gamma(1-\lambda)$."""
        check_gamma(gamma)
        eye = sp.eye_array(self.size, format="csr")
        return MixingMatrix((1.0 - gamma) * eye + gamma * self.weights, self.promise, signed=self.signed)

    def __matmul__(self, x: np.ndarray) -> np.ndarray:
        return self.weights @ x

    def __repr__(self) -> str:
        return f"MixingMatrix(n={self.size}, {self.promise} stochastic, {self.messages} messages)"


def check_gamma(gamma: float) -> None:
    """Refuses an adaptive factor outside [0, 1]."""
    if not 0.0 <= gamma <= 1.0:
        raise MixingError(f"gamma must lie in [0, 1], got {gamma}: outside it a weight may become negative")


def _canonical(weights: Any) -> sp.csr_array:
    """A float64 CSR array with sorted indices and no stored zeros; NaN, infinities and odd shapes are refused."""
    try:
        if np.iscomplexobj(weights):
            raise TypeError("some are complex")
        w = sp.csr_array(weights, dtype=np.float64, copy=True)
    except (TypeError, ValueError) as error:
        raise MixingError(f"a mixing matrix must be a square array of numbers: {error}") from None
    shape: Any = w.shape
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise MixingError(f"a mixing matrix must be square with at least one worker, got shape {shape}")
    w.sum_duplicates()
    bad = ~np.isfinite(w.data)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise MixingError(f"row {_row_of(w, at)} has the weight {w.data[at]} from worker {w.indices[at]}: not a number")
    w.eliminate_zeros()
    w.sort_indices()
    for part in (w.data, w.indices, w.indptr):
        part.flags.writeable = False
    return w


def _check(w: sp.csr_array, promise: Stochasticity, *, signed: bool) -> None:
    if promise not in ("doubly", "row", "column"):
        raise MixingError(f"promise must be 'doubly', 'row' or 'column', got {promise!r}")
    if not signed and w.nnz and w.data.min() < 0:
        at = int(np.argmin(w.data))
        raise MixingError(
            f"row {_row_of(w, at)} has the negative weight {w.data[at]:.6g} from worker {w.indices[at]}; "
            "pass signed=True if negative weights are meant"
        )
    for axis, word in ((1, "row"), (0, "column")):
        if promise in ("doubly", word):
            where, off, total = _worst_sum(w, axis)
            if off > SUM_TOLERANCE:
                raise MixingError(
                    f"not {word} stochastic: {word} {where} sums to {total:.12g}, expected 1"
                    + (_hint(w, word) if promise == "doubly" else "")
                )


def _hint(w: sp.csr_array, word: str) -> str:
    other = "column" if word == "row" else "row"
    holds = _worst_sum(w, axis=0 if word == "row" else 1)[1] <= SUM_TOLERANCE
    return f" (it is {other} stochastic: say promise={other!r} if that is meant)" if holds else ""


def _worst_sum(w: sp.csr_array, axis: int) -> tuple[int, float, float]:
    """The row (axis 1) or column (axis 0) whose sum is farthest from one: index, distance, sum."""
    sums = np.asarray(w.sum(axis=axis)).ravel()
    where = int(np.argmax(np.abs(sums - 1.0)))
    return where, float(abs(sums[where] - 1.0)), float(sums[where])


def _row_of(w: sp.csr_array, at: int) -> int:
    return int(np.searchsorted(w.indptr, at, side="right") - 1)
