r"""The Hessian of a loss as an operator: products $Hv = \nabla(\nabla L \cdot v)$ without ever forming H.

Over batches it is the exact weighted sum $H = \sum_b w_b H_b$. Three exact routes lead to a product:

- `double-backward` (default): the gradient's graph is built once per batch and kept; a vector is one more pass back
  through it, a block of vectors one batched pass. The setup is worth a few gradients, and every layer works that can
  be differentiated twice.
- `linearized`: the gradient is traced into a straight program v -> H_b v (`torch.func.linearize`), in blocks a tenth to
  a third faster (0.3 to 0.8 gradients a vector on perceptrons of 3 to 11 thousand parameters). Tracing is worth
  hundreds of gradients and more, so it is for thousands of products at one point. What torch traces can be wrong
  without an error (programs of recurrent layers write to their own constants, dropout draws anew): such programs are
  refused, and each is checked against the first route before it is trusted.
- `forward-over-reverse`: nothing is kept between products; for batches whose graph does not fit in memory.

`.route` says which is used and `.reason` why another one was left.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.probes.errors import ProbeError
from dissensus.probes.landscape import Landscape, Loss, Patterns
from dissensus.probes.operator import check_vectors
from dissensus.probes.routes import FIRST, ROUTES, Product, build
from dissensus.probes.untouched import Mode, undisturbed

BATCHED_BELOW = 3_000_000
"""Samples times parameters below which a product is ruled by dispatch, so that blocks of vectors pay (measured)."""


class Curvature:
    """The Hessian of `loss(model, batch)` over weighted batches at the model's point, as a counted operator.

    Attributes:
        landscape: the loss as a function of a flat vector, and the point.
        block: how many vectors go back together. The default depends on model and data alone (16 where dispatch rules,
            1 with convolutions or much data), so that the same seed gives the same bits; `fastest_block` measures.
        route: how products are taken (see the module).
        reason: why another route was left, or "".
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Sequence[Any],
        parameters: Patterns = None,
        *,
        weights: Sequence[float] | None = None,
        mode: Mode = "eval",
        dtype: torch.dtype | None = None,
        block: int | None = None,
        route: str = FIRST,
        cache_bytes: int = 1 << 30,
        seed: int = 0,
    ) -> None:
        if block is not None and block < 1:
            raise ProbeError(f"block must be at least 1, got {block}; leave it out for the default")
        if route not in ROUTES:
            raise ProbeError(f"unknown route {route!r}; there are {', '.join(ROUTES)}")
        self.landscape = Landscape(
            model, loss, batches, weights=weights, parameters=parameters, mode=mode, dtype=dtype, seed=seed
        )
        self.block = block or _default_block(self.landscape)
        self.route, self.reason = route, ""
        self._kept: dict[int, Product] = {}
        self._room = cache_bytes
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
        """How many vectors were multiplied by the whole Hessian so far."""
        return self._products

    def matvec(self, v: Tensor) -> Tensor:
        """The product with one vector (d,) or with every row of a block (k, d)."""
        check_vectors("Curvature", self, v)
        with undisturbed():
            rows = v.detach().clone().reshape(-1, self.size)
            total = torch.zeros_like(rows)
            for index, weight in enumerate(self.landscape.weights):
                product = self._product(index)
                for start in range(0, len(rows), self.block):
                    total[start : start + self.block] += weight * product(rows[start : start + self.block])
        if not torch.isfinite(total).all():
            raise ProbeError(
                "a product with the Hessian is not finite: the loss has no second derivative at this point"
            )
        self._products += len(rows)
        return total.reshape(v.shape)

    def __matmul__(self, v: Tensor) -> Tensor:
        return self.matvec(v)

    def gradient(self) -> Tensor:
        """The gradient at the point, (d,)."""
        return self.landscape.gradient()

    def dense(self) -> Tensor:
        """The Hessian as a (d, d) matrix, from d products: for small models and tests."""
        return self.matvec(torch.eye(self.size, dtype=self.dtype, device=self.device))

    def select(self, x: Tensor) -> Tensor:
        """Rows of chosen parameters from rows of chosen or of all parameters."""
        return self.landscape.select(x)

    def _product(self, index: int) -> Product:
        if index in self._kept:
            return self._kept[index]
        with self.landscape.scope():
            built = build(self.landscape, index, self.route, self.block)
        self.route, self.reason = built.route, built.reason or self.reason
        if built.bytes <= self._room or len(self.landscape.batches) == 1:
            self._kept[index] = built.product
            self._room -= built.bytes
        return built.product


def fastest_block(operator: Curvature, sizes: Sequence[int] = (1, 4, 16, 64), repeats: int = 3) -> int:
    """The block size with the least measured time per vector here and now; hand it to `Curvature(block=...)`.

    Products in blocks of another size differ in rounding only.
    """
    before, kept, best = operator._products, operator.block, (float("inf"), operator.block)
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


def _default_block(landscape: Landscape) -> int:
    convolves = any(p.dim() > 3 for p in landscape.model.parameters())
    return 1 if convolves or landscape.most_samples * landscape.size > BATCHED_BELOW else 16
