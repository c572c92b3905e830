"""All workers of a run at one step, to be looked at: points and buffers as they were, and the models made of them.

What is handed out are copies: the training does not notice what is done to them, and goes on without changing them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dissensus.algorithms.engines import views
from dissensus.algorithms.engines.columns import Columns
from dissensus.algorithms.engines.gradients import Loss
from dissensus.algorithms.errors import AlgorithmError


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All n workers after t steps."""

    t: int
    x: Tensor
    """The points the workers would deploy, (n, d)."""
    buffers: Mapping[str, Tensor]
    """The buffers of all workers by name, (n, ...) each."""
    isolated: Mapping[int, int]
    """Workers that were cut off, and at which step: they are left out of averages."""
    columns: Columns
    template: nn.Module
    loss: Loss
    initial: Mapping[str, Tensor]
    """The buffers the model came with."""

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self.x)

    @property
    def mean(self) -> Tensor:
        """The average of the points of all workers that are not isolated, (d,)."""
        return self._there(self.x).mean(dim=0)

    @contextmanager
    def consensus(
        self, bn: views.BatchNormPolicy = "average", batches: Iterable[Any] | None = None
    ) -> Iterator[nn.Module]:
        """The average of the workers as a plain module in eval mode: see `StackedEngine.consensus`."""
        buffers = views.pooled({k: self._there(b) for k, b in self.buffers.items()}, bn, dict(self.initial))
        with views.view(self.template, self.columns, self.mean, buffers) as model:
            if bn == "recalibrate":
                views.recalibrate(model, self.loss, batches, self.template)
            yield model

    @contextmanager
    def worker(self, i: int) -> Iterator[nn.Module]:
        """The model of one worker, with its own buffers, as a plain module in eval mode."""
        if not 0 <= i < self.size:
            raise AlgorithmError(f"there is no worker {i}: workers are counted from 0 to {self.size - 1}")
        own = {name: b[i] for name, b in self.buffers.items()}
        with views.view(self.template, self.columns, self.x[i], own) as model:
            yield model

    def snapshot(self) -> Snapshot:
        """Itself: whoever takes an engine takes this in its place."""
        return self

    def _there(self, rows: Tensor) -> Tensor:
        return rows[[i for i in range(self.size) if i not in self.isolated]] if self.isolated else rows
