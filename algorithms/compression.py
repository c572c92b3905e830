r"""Compressors of messages: what of a row of numbers is sent, as the dense row that the receiver reconstructs.

The quality of a compressor is the ω in $\|Q(v)-v\|^2 \le (1-\omega)\|v\|^2$: 1 sends everything. Each has its
independent form on one numpy row, its oracle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError
from dissensus.theory.errors import nearest


class Compressor(Protocol):
    """A deterministic compressor."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Compresses every row of (n, d) by itself."""
        ...

    def dense(self, row: np.ndarray) -> np.ndarray:
        """Compresses one row (d,)."""
        ...


@dataclass(frozen=True)
class Identity:
    """Sends everything; ω = 1."""

    def __call__(self, rows: Tensor) -> Tensor:
        """The rows themselves."""
        return rows

    def dense(self, row: np.ndarray) -> np.ndarray:
        """The row itself."""
        return row


@dataclass(frozen=True)
class TopK:
    """Sends the ⌈ratio·d⌉ numbers of largest modulus; ω = k/d."""

    ratio: float

    def __post_init__(self) -> None:
        if not 0.0 < self.ratio <= 1.0:
            raise AlgorithmError(f"ratio must lie in (0, 1], got {self.ratio}")

    def __call__(self, rows: Tensor) -> Tensor:
        """Everything but the k largest of every row becomes zero."""
        k = self._k(rows.shape[1])
        kept = rows.abs().topk(k, dim=1, sorted=False).indices
        return torch.zeros_like(rows).scatter(1, kept, rows.gather(1, kept))

    def dense(self, row: np.ndarray) -> np.ndarray:
        """By sorting the moduli."""
        order = np.argsort(-np.abs(row), kind="stable")
        sent = np.zeros_like(row)
        sent[order[: self._k(len(row))]] = row[order[: self._k(len(row))]]
        return sent

    def _k(self, d: int) -> int:
        # without the last digits, so that a ratio of 0.1 of 30 numbers is 3 of them
        return max(1, math.ceil(round(self.ratio * d, 9)))


@dataclass(frozen=True)
class ScaledSign:
    """Sends the signs and the mean modulus, ‖v‖₁/d · sign(v); ω = ‖v‖₁²/(d‖v‖₂²)."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Every number becomes plus or minus the mean modulus of its row."""
        return rows.abs().mean(dim=1, keepdim=True) * rows.sign()

    def dense(self, row: np.ndarray) -> np.ndarray:
        """By its definition."""
        return np.linalg.norm(row, 1) / len(row) * np.sign(row)


COMPRESSORS = ("identity", "sign", "top-k")


def compressor(name: str, ratio: float) -> Compressor:
    """A compressor by name; `ratio` is what top-k sends."""
    wanted = name.replace("_", "-")
    if wanted == "identity":
        return Identity()
    if wanted == "sign":
        return ScaledSign()
    if wanted == "top-k":
        return TopK(ratio)
    raise AlgorithmError(f"unknown compressor {name!r}{nearest(wanted, COMPRESSORS)}")
