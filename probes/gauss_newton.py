r"""The generalised Gauss-Newton matrix of a loss split at the model's output: $G = \sum_b w_b\, J_b^\top H_b\, J_b$.

J is the derivative of what the model returns, and H the Hessian of the rest of the loss with respect to it (see
`split`). G is the Hessian of the loss around a linearised model: it is positive semi-definite where the rest of the
loss is convex (squared error, cross-entropy), and the Hessian is G plus what the curvature of the model adds,
`Difference(Curvature(...), GaussNewton(...))`. A penalty on parameters is left out of G, and `notes` says so.

A product goes through three kept graphs: J v as the derivative of $J^\top u$ by u, H by a double backward through the
rest of the loss, and J^T by an ordinary backward; a block of vectors is one batched pass through each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dissensus.probes.batch_sum import MEMORY, BatchSum, Built
from dissensus.probes.batches import Batches
from dissensus.probes.errors import ProbeError
from dissensus.probes.graphs import Pullback, saved_bytes
from dissensus.probes.landscape import Landscape, Loss, Patterns
from dissensus.probes.split import split
from dissensus.probes.untouched import Mode

ROUTE = "three graphs"


class GaussNewton(BatchSum):
    """The generalised Gauss-Newton matrix of `loss(model, batch)` at the model's point; to be used like `Curvature`."""

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
        memory: int = MEMORY,
        seed: int = 0,
    ) -> None:
        landscape = Landscape(
            model, loss, batches, weights=weights, parameters=parameters, mode=mode, dtype=dtype, seed=seed
        )
        super().__init__(landscape, block, memory)
        self.route = ROUTE

    @classmethod
    def of(cls, operator: BatchSum) -> GaussNewton:
        """The Gauss-Newton matrix on the landscape of another operator: same data, same point, nothing copied."""
        made = cls.__new__(cls)
        BatchSum.__init__(made, operator.landscape, operator.block, operator._memory)
        made.route = ROUTE
        return made

    def _build(self, index: int, *, lasting: bool) -> Built:  # noqa: ARG002 - one route for both
        landscape = self.landscape
        leaf = landscape.point.clone().requires_grad_()
        parts = split(landscape, landscape.batches[index], leaf, index)
        outputs = torch.cat([z.reshape(-1) for z in parts.outputs])
        slopes = torch.autograd.grad(parts.loss, parts.free, create_graph=True, materialize_grads=True)
        slope = torch.cat([s.reshape(-1) for s in slopes])
        dummy = torch.zeros_like(outputs).requires_grad_()
        (transposed,) = torch.autograd.grad(outputs, leaf, dummy, create_graph=True)
        forward, curve, back = Pullback(transposed, dummy), Pullback(slope, parts.free), Pullback(outputs, leaf)

        def product(block: Tensor) -> Tensor:
            if not slope.requires_grad:  # the loss is linear in the outputs
                return torch.zeros_like(block)
            return back(curve(forward(block)))

        left = ("a part of the loss that reads parameters without the model is left out",) if parts.aside else ()
        try:
            product(torch.zeros_like(leaf)[None])
        except RuntimeError as failure:
            raise ProbeError(
                f"the model's output cannot be differentiated both ways on batch {index} "
                f"({(str(failure).splitlines() or [''])[0]}); look for a custom autograd.Function without a second "
                "derivative, or for a fused kernel"
            ) from failure
        return Built(product, saved_bytes(transposed, slope, outputs), ROUTE, notes=left)

    def _not_finite(self) -> str:
        return "a product with the Gauss-Newton matrix is not finite: outputs or their loss overflow at this point"
