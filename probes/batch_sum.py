r"""An operator that is an exact weighted sum over batches, $A = \sum_b w_b A_b$: what Hessian and Gauss-Newton share.

The product of a batch is built when it is first needed and kept where the memory allows; vectors go through it in
blocks. What is kept and how wide blocks are changes the time and, in the last bits, the rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dissensus.probes.errors import ProbeError
from dissensus.probes.landscape import Landscape
from dissensus.probes.operator import check_vectors
from dissensus.probes.untouched import undisturbed

Product = Callable[[Tensor], Tensor]

BATCHED_BELOW = 3_000_000
"""Samples times parameters below which a product is ruled by dispatch, so that wide blocks pay (measured)."""

CONVOLVED = 4
"""The width of a block where the model convolves: wider ones leave the cache (measured)."""

MEMORY = 1 << 30
"""Bytes for what is kept of batches, and as many again for a block of vectors on its way."""


OVERWRITTEN = (
    "the data of a batch, or a tensor that the model holds, were written over since the first product; hand over copies"
)


@dataclass(frozen=True)
class Built:
    """A product (block (k, d) -> block) for one batch, and what it took."""

    product: Product
    bytes: int
    """What keeping it holds in memory, at most."""
    route: str = ""
    reason: str = ""
    notes: tuple[str, ...] = ()


class BatchSum:
    """A weighted sum over the batches of a landscape as a counted operator; subclasses build the product of a batch.

    Attributes:
        landscape: the loss as a function of a flat vector, and the point.
        block: how many vectors go through together. The default depends on model and data alone, so that the same seed
            gives the same bits; `fastest_block` measures.
        route: how products are taken.
        reason: why another route was left, or "".
        notes: what a reader has to know of the numbers.
    """

    def __init__(self, landscape: Landscape, block: int | None, memory: int) -> None:
        if block is not None and block < 1:
            raise ProbeError(f"block must be at least 1, got {block}; leave it out for the default")
        if memory < 0:
            raise ProbeError(f"memory must be a number of bytes, got {memory}; leave it out for 2**30")
        self.landscape = landscape
        self.block = block or self._default_block()
        self.route, self.reason = "", ""
        self.notes = landscape.notes
        self._memory = self._room = memory
        self._kept: dict[int, Built] = {}
        self._products = 0

    @property
    def size(self) -> int:
        """The number d of chosen parameters."""
        return self.landscape.size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the point and of the products."""
        return self.landscape.point.dtype

    @property
    def device(self) -> torch.device:
        """Where the point is."""
        return self.landscape.point.device

    @property
    def products(self) -> int:
        """How many vectors were multiplied by the whole operator so far."""
        return self._products

    def matvec(self, v: Tensor) -> Tensor:
        """The product with one vector (d,) or with every row of a block (k, d)."""
        check_vectors(type(self).__name__, self, v)
        with undisturbed():
            rows = v.detach().reshape(-1, self.size)
            total = torch.empty_like(rows, memory_format=torch.contiguous_format)
            for index, weight in enumerate(self.landscape.weights):
                built = self._built(index)
                width = self._width(built)
                for start in range(0, len(rows), width):
                    at = 0
                    for made in _applied(built, rows[start : start + width]):
                        into = total[start : start + width, at : at + made.shape[1]]
                        into.add_(made, alpha=weight) if index else torch.mul(made, weight, out=into)
                        at += made.shape[1]
        if not finite(total):
            raise ProbeError(self._not_finite())
        self._products += len(rows)
        return total.reshape(v.shape)

    def __matmul__(self, v: Tensor) -> Tensor:
        return self.matvec(v)

    def gradient(self) -> Tensor:
        """The gradient at the point, (d,)."""
        return self.landscape.gradient()

    def dense(self) -> Tensor:
        """The whole (d, d) matrix, from d products: for small models and tests."""
        return self.matvec(torch.eye(self.size, dtype=self.dtype, device=self.device))

    def select(self, x: Tensor) -> Tensor:
        """Rows of chosen parameters from rows of chosen or of all parameters."""
        return self.landscape.select(x)

    def _build(self, index: int, *, lasting: bool) -> Built:
        """The product of a batch; one that does not last is used for one block and thrown away."""
        raise NotImplementedError

    def _default_block(self) -> int:
        convolves = any(p.dim() > 3 for p in self.landscape.model.parameters())
        if convolves:
            return CONVOLVED
        return 1 if self.landscape.most_samples * self.landscape.size > BATCHED_BELOW else 16

    def _not_finite(self) -> str:
        return "a product is not finite at this point"

    def _width(self, built: Built) -> int:
        """Vectors that go through together: each carries about as much along as the batch keeps."""
        return max(1, min(self.block, self._memory // max(built.bytes, 1) or 1))

    def _built(self, index: int) -> Built:
        if index in self._kept:
            return self._kept[index]
        single = len(self.landscape.batches) == 1
        with self.landscape.scope():
            built = self._build(index, lasting=single or self._room > 0)
        self.route, self.reason = built.route, built.reason or self.reason
        self.notes = tuple(dict.fromkeys((*self.notes, *built.notes)))
        if built.bytes <= self._room or single:
            self._kept[index] = built
            self._room -= built.bytes
        else:
            self._room = 0
        return built


def finite(rows: Tensor) -> bool:
    """Whether all numbers are finite. One pass; each is looked at only where their sum is not."""
    return math.isfinite(float(rows.sum())) or bool(torch.isfinite(rows).all())


def _applied(built: Built, rows: Tensor) -> Sequence[Tensor]:
    """A product, in pieces side by side where it comes so."""
    pieces = getattr(built.product, "pieces", None)
    try:
        return (built.product(rows),) if pieces is None else pieces(rows)
    except RuntimeError as failure:
        if "modified by an inplace operation" in str(failure):
            raise ProbeError(OVERWRITTEN) from failure
        raise


def fastest_block(operator: BatchSum, sizes: Sequence[int] = (1, 4, 16, 64), repeats: int = 3) -> int:
    """The block size with the least measured time per vector here and now; hand it to `Curvature(block=...)`.

    Products in blocks of another size differ in rounding only.
    """
    before = operator._products
    operator.matvec(torch.ones(operator.size, dtype=operator.dtype, device=operator.device))  # building sets a width
    kept, best = operator.block, (float("inf"), operator.block)
    for size in sizes:
        operator.block = size
        v = torch.ones(size, operator.size, dtype=operator.dtype, device=operator.device)
        operator.matvec(v)
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            operator.matvec(v)
            times.append((time.perf_counter() - start) / size)
        best = min(best, (min(times), size))
    operator.block, operator._products = kept, before
    return best[1]
