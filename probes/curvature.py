r"""The Hessian of a loss as an operator: products $Hv = \nabla(\nabla L \cdot v)$ without ever forming H.

Over batches it is the exact weighted sum $H = \sum_b w_b H_b$. Several exact routes lead to a product:

- `recorded` (default): the gradient is computed once and its operations are written down; a block of vectors is pushed
  through that program as one more dimension of ordinary tensor operations (see `program`). Half to two thirds of the
  time of a double backward; the setup is worth some ten to thirty gradients of a small batch, with its check.
- `double-backward`: the gradient's graph is kept; a block of vectors is one batched pass back through it. Every layer
  works that can be differentiated twice: what cannot be recorded, or gives another product when checked, goes this way.
- `linearized`: `torch.func.linearize` of the gradient. Tracing is worth hundreds of gradients and more. What torch
  traces can be wrong without an error: such programs are refused, and each is checked before it is trusted.
- `forward-over-reverse`: nothing is kept between products; for batches of which nothing fits into memory.
- `auto`: the faster one of the first two and the best width of a block, by measurement here and now. Products then
  agree between runs to rounding, and not to the bit.

On request only, and not exact: `finite-difference` takes $(\nabla L(\theta+hv) - \nabla L(\theta-hv))/2h$ for losses
that can be differentiated once only; `.error` is an estimate of its relative error from the step 2h.

`.route` says which is used and `.reason` why another one was left.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from dissensus.probes.batch_sum import CONVOLVED, MEMORY, BatchSum, Built, fastest_block
from dissensus.probes.batches import Batches
from dissensus.probes.errors import ProbeError
from dissensus.probes.landscape import Landscape, Loss, Patterns
from dissensus.probes.routes import AUTO, DEFAULT, DIFFERENCE, ROUTES, build, fastest
from dissensus.probes.untouched import Mode

__all__ = ["Curvature", "fastest_block"]

LEAST, WIDER, CACHED = 4, (8, 16), 32 << 20
"""The width of a block of a recorded program without convolutions: 4, and more where so many vectors times what was
recorded take no more than so many bytes. Matrix products are merged, and what passes between them should not leave the
cache (measured)."""


class Curvature(BatchSum):
    """The Hessian of `loss(model, batch)` over weighted batches at the model's point, as a counted operator."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Batches,
        parameters: Patterns = None,
        *,
        weights: Sequence[float] | None = None,
        mode: Mode = "eval",
        dtype: torch.dtype | None = None,
        block: int | None = None,
        route: str = DEFAULT,
        memory: int = MEMORY,
        seed: int = 0,
    ) -> None:
        known = (*ROUTES, AUTO, DIFFERENCE)
        if route not in known:
            raise ProbeError(f"unknown route {route!r}; there are {', '.join(known)}")
        landscape = Landscape(
            model, loss, batches, weights=weights, parameters=parameters, mode=mode, dtype=dtype, seed=seed
        )
        super().__init__(landscape, block, memory)
        self.route, self._given = route, block is not None
        self._open = block is None and route == DEFAULT and self.block != CONVOLVED

    def _build(self, index: int, *, lasting: bool) -> Built:
        if self.route == AUTO:
            self.route, self.block = fastest(self.landscape, index, self.block if self._given else None)
        built = build(self.landscape, index, self.route, lasting=lasting)
        if built.route == DEFAULT and self._open:  # the block stays what it was for the first batch
            self.block = max((width for width in WIDER if width * built.bytes <= CACHED), default=LEAST)
        self._open = False
        return built

    @property
    def error(self) -> float:
        """The largest relative error of a product so far, estimated; 0 for the exact routes."""
        return max((getattr(built.product, "error", 0.0) for built in self._kept.values()), default=0.0)

    def _not_finite(self) -> str:
        return "a product with the Hessian is not finite: the loss has no second derivative at this point"
