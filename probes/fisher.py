r"""The empirical Fisher matrix: $F = \sum_b w_b \frac{1}{B_b}\sum_{n\in b} g_n g_n^\top$ with the gradients of samples.

$g_n$ is the gradient of `loss(model, sample)` on a batch that holds sample n alone, with the labels of the data: the
uncentred second moment of the gradient noise. It is not the Fisher information, whose labels are drawn from the model
(for cross-entropy that one is the Gauss-Newton matrix), and it does not approach the Hessian away from a good fit.

The gradients of the samples must average to the gradient of the batch; where they do not (BatchNorm in training, losses
that are no mean over samples) F is not defined by the batch, and refused. Rows $g_n$ are kept where the memory allows,
and otherwise computed again in pieces for each block of vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from dissensus.probes.batch_sum import MEMORY, BatchSum, Built
from dissensus.probes.batches import Batches, samples
from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate, exact
from dissensus.probes.landscape import Landscape, Loss, Patterns
from dissensus.probes.operator import dtype_name
from dissensus.probes.untouched import Mode, reseed, undisturbed

ROUTE = "per-sample gradients"


class Fisher(BatchSum):
    """The empirical Fisher matrix of `loss(model, batch)` at the model's point; to be used like `Curvature`."""

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
        super().__init__(landscape, block or 64, memory)
        self.route = ROUTE

    @undisturbed()
    def trace(self) -> Estimate:
        """The mean squared norm of the samples' gradients, which is the trace exactly."""
        total = 0.0
        for index, weight in enumerate(self.landscape.weights):
            count = samples(index, self.landscape.batches[index])
            mean, square = torch.zeros_like(self.landscape.point), 0.0
            with self.landscape.scope():
                for rows in self._rows(index):
                    mean += rows.sum(0) / count
                    square += float(rows.double().square().sum()) / count
                self._averages(index, mean)
            total += weight * square
        return exact("trace", total, num_matvecs=0, dtype=dtype_name(self.dtype), notes=("one gradient per sample",))

    def _build(self, index: int, *, lasting: bool) -> Built:
        count = samples(index, self.landscape.batches[index])
        size = count * self.size * self.landscape.point.element_size()
        mean = torch.zeros_like(self.landscape.point)
        kept = []
        for rows in self._rows(index):
            mean += rows.sum(0) / count
            if lasting and size <= self._memory:
                kept.append(rows)
        self._averages(index, mean)

        def product(block: Tensor) -> Tensor:
            if kept:
                return _through(kept, block, count)
            with self.landscape.scope():
                return _through(self._rows(index), block, count)

        return Built(product, size if kept else 0, ROUTE)

    def _averages(self, index: int, mean: Tensor) -> None:
        leaf = self.landscape.point.clone().requires_grad_()
        (truth,) = torch.autograd.grad(self.landscape.at(index, leaf), leaf, allow_unused=True, materialize_grads=True)
        distance, scale = float((mean - truth).norm()), float(truth.norm() + mean.norm())
        if distance > torch.finfo(mean.dtype).eps ** 0.5 * scale:
            raise ProbeError(
                f"the gradients of the samples of batch {index} do not average to that of the batch: the loss is no "
                "mean over samples, or samples meet in the model (BatchNorm or dropout in training); use mode='eval' "
                "and a mean"
            )

    def _rows(self, index: int) -> Iterator[Tensor]:
        """The gradients of the samples in pieces (n, d). Call it inside `scope()`."""
        batch = self.landscape.batches[index]
        count = samples(index, batch)
        leaves, spec = tree_flatten(batch)
        inside = [isinstance(leaf, Tensor) and leaf.dim() > 0 for leaf in leaves]
        at_once = max(1, self._memory // (4 * self.size * self.landscape.point.element_size()))

        def gradient(rows: list[Tensor]) -> Tensor:
            own = iter(rows)
            filled: list[Any] = [next(own)[None] if at else leaf for leaf, at in zip(leaves, inside, strict=True)]
            sample = tree_unflatten(filled, spec)
            return torch.func.grad(lambda flat: self.landscape.on(sample, flat, seed=index).squeeze())(
                self.landscape.point
            )

        for lo in range(0, count, at_once):
            rows = [leaf[lo : lo + at_once] for leaf, at in zip(leaves, inside, strict=True) if at]
            reseed(self.landscape.seed + index)
            try:
                yield torch.vmap(gradient, randomness="same")(rows).detach()
            except RuntimeError:  # an operation that cannot be batched
                yield torch.stack([gradient([t[n] for t in rows]) for n in range(len(rows[0]))]).detach()
            except ValueError as failure:
                raise ProbeError(
                    f"the loss cannot be taken on a sample of batch {index} alone ({str(failure).splitlines()[0]}); "
                    "where samples meet in the model (BatchNorm in training) use mode='eval'"
                ) from failure

    def _not_finite(self) -> str:
        return "a product with the empirical Fisher matrix is not finite: a sample's gradient overflows"


def _through(pieces: Any, block: Tensor, count: int) -> Tensor:
    total = torch.zeros_like(block)
    for rows in pieces:
        total.addmm_(block @ rows.T, rows, alpha=1 / count)
    return total
