r"""What ours is measured against: one model on all samples, and a Python loop over n modules, plain and tuned.

The loops take the step $x_i^+ = \sum_j W_{ij} x_j - \alpha\,u(g_i(x_i))$ of DSGD (adapt while communicate). The big
step is no simulation: the same arithmetic in its best shape, the yardstick that none can be expected to reach.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.experiments.bench.simulate_models import Batch, Case, placed
from dissensus.theory.topology import Topology

OptimizerFactory = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, OptimizerFactory] = {
    "sgd": partial(torch.optim.SGD, lr=0.01),
    "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-3),
}
"""By name, with the implementation that torch itself chooses."""

DENSE_UP_TO = 32
"""So many workers are mixed with a dense product, which is faster there; more with a sparse one."""


@dataclass
class BigStep:
    """One gradient on the samples of all workers, then the optimizer on (n, d) numbers."""

    case: Case
    workers: int
    factory: OptimizerFactory
    batch: Batch

    def __post_init__(self) -> None:
        self.model = self.case.model().train()
        self._batch = tuple(leaf.flatten(0, 1) for leaf in self.batch)
        own = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        self.block = nn.Parameter(own.expand(self.workers, -1).clone())
        self.block.grad = torch.full_like(self.block, 1e-3)
        self._optimizer = self.factory([self.block])
        self.parts: dict[str, list[float]] = {"gradient": [], "optimizer": []}

    def step(self) -> None:
        """Both halves, and how long each took."""
        begin = time.perf_counter()
        self.model.zero_grad()
        self.case.loss(self.model, self._batch).backward()
        middle = time.perf_counter()
        self._optimizer.step()
        self.parts["gradient"].append(middle - begin)
        self.parts["optimizer"].append(time.perf_counter() - middle)

    def gradient(self) -> Tensor:
        """The gradient as a vector, after a step."""
        return torch.cat([p.grad.reshape(-1) for p in self.model.parameters() if p.grad is not None])


class PythonLoop:
    """n deep copies with an optimizer each; parameters are stacked to be mixed and handed back as views."""

    def __init__(
        self, case: Case, topology: Topology, factory: OptimizerFactory, batch: Batch, start: Tensor | None = None
    ) -> None:
        model, n = case.model(), topology.size
        own = nn.utils.parameters_to_vector(model.parameters()).detach()
        self.models = [placed(model, own if start is None else start[i]) for i in range(n)]
        self.optimizers = [factory(m.parameters()) for m in self.models]
        self._loss, self._batches = case.loss, [tuple(leaf[i] for leaf in batch) for i in range(n)]
        self._w = _weights(topology, own.dtype)

    def step(self) -> None:
        """A gradient for every worker, one exchange, a move for every worker."""
        for model, optimizer, batch in zip(self.models, self.optimizers, self._batches, strict=True):
            optimizer.zero_grad()
            self._loss(model, batch).backward()
        with torch.no_grad():
            for model, row in zip(self.models, self._w @ self.x, strict=True):
                nn.utils.vector_to_parameters(row, model.parameters())
        for optimizer in self.optimizers:
            optimizer.step()

    @property
    def x(self) -> Tensor:
        """The points of the workers, (n, d)."""
        return torch.stack([nn.utils.parameters_to_vector(m.parameters()) for m in self.models]).detach()


class TunedLoop:
    """The same loop with all parameters in one block: no stacking, one optimizer for all, gradients added in place."""

    def __init__(
        self, case: Case, topology: Topology, factory: OptimizerFactory, batch: Batch, start: Tensor | None = None
    ) -> None:
        model, n = case.model(), topology.size
        own = nn.utils.parameters_to_vector(model.parameters()).detach()
        self._block = nn.Parameter((own.expand(n, -1) if start is None else start).clone())
        self._block.grad = torch.zeros_like(self._block)
        self.models = [placed(model, own) for _ in range(n)]
        for i, m in enumerate(self.models):
            lay(list(m.parameters()), self._block.data[i], self._block.grad[i])
        self._optimizer = factory([self._block])
        self._loss, self._batches = case.loss, [tuple(leaf[i] for leaf in batch) for i in range(n)]
        self._w = _weights(topology, own.dtype)

    def step(self) -> None:
        """The same step as `PythonLoop`."""
        assert self._block.grad is not None
        self._block.grad.zero_()
        for model, batch in zip(self.models, self._batches, strict=True):
            self._loss(model, batch).backward()
        self._block.data.copy_(self._w @ self._block.data)
        self._optimizer.step()

    @property
    def x(self) -> Tensor:
        """The points of the workers, (n, d)."""
        return self._block.detach().clone()


def lay(parameters: Sequence[nn.Parameter], values: Tensor, gradients: Tensor) -> None:
    """Makes the parameters, and their gradients, views of two vectors."""
    counts = [p.numel() for p in parameters]
    for p, value, gradient in zip(parameters, values.split(counts), gradients.split(counts), strict=True):
        p.data, p.grad = value.view(p.shape), gradient.view(p.shape)


def _weights(topology: Topology, dtype: torch.dtype) -> Tensor:
    dense = torch.from_numpy(topology[0].dense()).to(dtype)
    if topology.size <= DENSE_UP_TO:
        return dense
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR|invariant)", UserWarning)
        return dense.to_sparse_csr()
