r"""Compressors of messages: what of a row of numbers is sent, as the dense row that the receiver reconstructs.

The quality of a compressor is the ω in $\mathbb E\|Q(v)-v\|^2 \le (1-\omega)\|v\|^2$ for every v of d numbers: 1 sends
everything.

| name | sends | ω |
|---|---|---|
| `identity` | everything | 1 |
| `top-k` | the k numbers of largest modulus | k/d |
| `random-k` | k numbers chosen at random, as they are | k/d, with equality |
| `sign` | the signs and the mean modulus | 1/d at worst, $\|v\|_1^2 / (d\|v\|_2^2)$ for v |
| `quantized` | the norm, and b bits per number | 1/τ, $\tau = 1 + \min(d/s^2, \sqrt d/s)$, $s = 2^{b-1}-1$ |

Each has its independent form on one numpy row, its oracle; one that draws takes its numbers from one generator per row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import RandomGenerator
from dissensus.theory.errors import nearest

Generators = Sequence[RandomGenerator]


class Compressor(Protocol):
    """What becomes of a message."""

    draws: ClassVar[bool]
    """Whether it needs a generator per row."""

    def __call__(self, rows: Tensor, generators: Generators = ()) -> Tensor:
        """Compresses every row of (n, d) by itself."""
        ...

    def dense(self, row: np.ndarray, generator: RandomGenerator | None = None) -> np.ndarray:
        """Compresses one row (d,), with the same random numbers if it draws."""
        ...

    def omega(self, d: int) -> float:
        """The ω that holds for every row of d numbers."""
        ...


@dataclass(frozen=True)
class Identity:
    """Sends everything."""

    draws: ClassVar[bool] = False

    def __call__(self, rows: Tensor, generators: Generators = ()) -> Tensor:
        """The rows themselves."""
        del generators
        return rows

    def dense(self, row: np.ndarray, generator: RandomGenerator | None = None) -> np.ndarray:
        """The row itself."""
        del generator
        return row

    def omega(self, d: int) -> float:
        """Nothing is lost."""
        del d
        return 1.0


@dataclass(frozen=True)
class TopK:
    """Sends the ⌈ratio·d⌉ numbers of largest modulus."""

    ratio: float
    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_ratio(self.ratio)

    def __call__(self, rows: Tensor, generators: Generators = ()) -> Tensor:
        """Everything but the k largest of every row becomes zero."""
        del generators
        kept = rows.abs().topk(_share(self.ratio, rows.shape[1]), dim=1, sorted=False).indices
        return torch.zeros_like(rows).scatter(1, kept, rows.gather(1, kept))

    def dense(self, row: np.ndarray, generator: RandomGenerator | None = None) -> np.ndarray:
        """By sorting the moduli."""
        del generator
        kept = np.argsort(-np.abs(row), kind="stable")[: _share(self.ratio, len(row))]
        sent = np.zeros_like(row)
        sent[kept] = row[kept]
        return sent

    def omega(self, d: int) -> float:
        """k/d: the numbers left out are the smallest."""
        return _share(self.ratio, d) / d


@dataclass(frozen=True)
class RandomK:
    """Sends ⌈ratio·d⌉ numbers chosen at random without replacement, not scaled up; every worker chooses its own."""

    ratio: float
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_ratio(self.ratio)

    def __call__(self, rows: Tensor, generators: Generators = ()) -> Tensor:
        """Everything but the chosen numbers of every row becomes zero."""
        _check_generators(self, len(rows), generators)
        d = rows.shape[1]
        chosen = [torch.randperm(d, generator=g, device=g.device)[: _share(self.ratio, d)] for g in generators]
        kept = torch.stack(chosen).to(rows.device)
        return torch.zeros_like(rows).scatter(1, kept, rows.gather(1, kept))

    def dense(self, row: np.ndarray, generator: RandomGenerator | None = None) -> np.ndarray:
        """With a mask of zeros and ones."""
        order = torch.randperm(len(row), generator=generator).numpy()
        mask = np.zeros_like(row)
        for position in range(_share(self.ratio, len(row))):
            mask[order[position]] = 1.0
        return mask * row

    def omega(self, d: int) -> float:
        """k/d: what is left out is (1 - k/d)‖v‖² in expectation, exactly."""
        return _share(self.ratio, d) / d


@dataclass(frozen=True)
class ScaledSign:
    """Sends the signs and the mean modulus, ‖v‖₁/d · sign(v)."""

    draws: ClassVar[bool] = False

    def __call__(self, rows: Tensor, generators: Generators = ()) -> Tensor:
        """Every number becomes plus or minus the mean modulus of its row."""
        del generators
        return rows.abs().mean(dim=1, keepdim=True) * rows.sign()

    def dense(self, row: np.ndarray, generator: RandomGenerator | None = None) -> np.ndarray:
        """By its definition."""
        del generator
        return np.linalg.norm(row, 1) / len(row) * np.sign(row)

    def omega(self, d: int) -> float:
        """1/d, which a row comes near in which one number outweighs all others; a row of equal moduli has 1."""
        return 1.0 / d


@dataclass(frozen=True)
class Quantized:
    r"""Sends the norm, and of every number its sign and one of s + 1 levels, b bits in all.

    With $s = 2^{b-1} - 1$ and u uniform in [0, 1), level $\ell_k = \lfloor s|v_k|/\|v\| + u_k \rfloor$, received is
    $Q(v)_k = \operatorname{sign}(v_k)\,\|v\|\,\ell_k / (s\tau)$. Without τ this is QSGD: unbiased, with the error
    $\mathbb E\|\tau Q(v)-v\|^2 \le (\tau-1)\|v\|^2$; divided by τ it contracts, with ω = 1/τ.
    """

    bits: int
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 2 <= self.bits <= 16:
            raise AlgorithmError(f"bits must be a whole number from 2 (sign and one level) to 16, got {self.bits!r}")

    def __call__(self, rows: Tensor, generators: Generators = ()) -> Tensor:
        """Rounds every number of every row up or down at random."""
        _check_generators(self, len(rows), generators)
        s, d = self._levels, rows.shape[1]
        uniform = [torch.rand(d, generator=g, dtype=rows.dtype, device=g.device) for g in generators]
        norm = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        shares = rows.abs() / torch.where(norm > 0, norm, torch.ones_like(norm))
        # s + u may round to s + 1
        levels = shares.mul_(s).add_(torch.stack(uniform).to(rows.device)).floor_().clamp_(max=s)
        return levels.mul_(norm / (s * self._tau(d))).copysign_(rows)

    def dense(self, row: np.ndarray, generator: RandomGenerator | None = None) -> np.ndarray:
        """By its definition, number by number."""
        s, d = self._levels, len(row)
        norm = math.sqrt(float(row @ row))
        sent = np.zeros_like(row)
        for k, u in enumerate(torch.rand(d, generator=generator, dtype=torch.float64).tolist()):
            if norm > 0:
                sent[k] = np.sign(row[k]) * norm * min(s, math.floor(s * abs(row[k]) / norm + u)) / (s * self._tau(d))
        return sent

    def omega(self, d: int) -> float:
        """1/τ."""
        return 1.0 / self._tau(d)

    @property
    def _levels(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def _tau(self, d: int) -> float:
        return 1.0 + min(d / self._levels**2, math.sqrt(d) / self._levels)


COMPRESSORS = ("identity", "quantized", "random-k", "sign", "top-k")


def compressor(name: str, ratio: float = 0.1, bits: int = 4) -> Compressor:
    """A compressor by name; `ratio` is the share that top-k and random-k send, `bits` those of a quantized number."""
    wanted = name.replace("_", "-")
    if wanted == "identity":
        return Identity()
    if wanted == "sign":
        return ScaledSign()
    if wanted == "top-k":
        return TopK(ratio)
    if wanted == "random-k":
        return RandomK(ratio)
    if wanted == "quantized":
        return Quantized(bits)
    raise AlgorithmError(f"unknown compressor {name!r}{nearest(wanted, COMPRESSORS)}")


def _share(ratio: float, d: int) -> int:
    """How many of d numbers are sent; without the last digits, so that a ratio of 0.1 of 30 numbers is 3 of them."""
    return max(1, math.ceil(round(ratio * d, 9)))


def _check_ratio(ratio: float) -> None:
    if not 0.0 < ratio <= 1.0:
        raise AlgorithmError(f"ratio must lie in (0, 1], got {ratio}")


def _check_generators(of: Compressor, rows: int, generators: Generators) -> None:
    if len(generators) != rows:
        raise AlgorithmError(
            f"compressor {type(of).__name__} draws: it needs one generator per row, {rows} of them, "
            f"got {len(generators)}"
        )
