r"""What the curvature of the model adds to the Hessian: $H - G = \sum_b w_b \sum_k c'_{bk} \nabla^2 z_{bk}$.

With the loss split at the model's outputs z (see `split`), the Hessian is the Gauss-Newton matrix G plus the Hessian of
the outputs weighted by the slopes c' of the loss. Here the slopes are constants, so a product is one double backward
pass, where a product with H and one with G would be two; and nothing cancels.
"""

from __future__ import annotations

import torch

from dissensus.probes.batch_sum import BatchSum, Built
from dissensus.probes.errors import ProbeError
from dissensus.probes.graphs import Pullback, saved_bytes
from dissensus.probes.split import Split, split

ROUTE = "slopes held fixed"


class ModelCurvature(BatchSum):
    """H - G of the loss of another operator, on its landscape: same data, same point, nothing copied."""

    def __init__(self, operator: BatchSum) -> None:
        super().__init__(operator.landscape, operator.block, operator._memory)
        self.route = ROUTE

    def _build(self, index: int, *, lasting: bool = True) -> Built:  # noqa: ARG002 - a graph is kept or made anew
        landscape = self.landscape
        leaf = landscape.point.clone().requires_grad_()
        parts = split(landscape, landscape.batches[index], leaf, index)
        if parts.aside:
            raise ProbeError(
                "a part of the loss reads parameters without the model, which is no curvature of the model"
            )
        (slope,) = torch.autograd.grad(
            weighted_outputs(parts), leaf, create_graph=True, allow_unused=True, materialize_grads=True
        )
        if not slope.requires_grad:  # the outputs are linear in the parameters
            return Built(torch.zeros_like, 0, ROUTE)
        return Built(Pullback(slope, leaf), saved_bytes(slope), ROUTE)

    def _not_finite(self) -> str:
        return "a product with the curvature of the model is not finite: it has no second derivative at this point"


def weighted_outputs(parts: Split) -> torch.Tensor:
    """The outputs of the model, added up with the slopes of the loss as constants."""
    slopes = torch.autograd.grad(parts.loss, parts.free, materialize_grads=True, retain_graph=True)
    total = [(slope.detach() * output).sum() for slope, output in zip(slopes, parts.outputs, strict=True)]
    return torch.stack(total).sum()
