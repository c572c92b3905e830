"""Looking at a model that the workers hold together, or one of them holds, without leaving a trace on the training.

The module that is handed out is a copy, so parameters, buffers and train/eval flags of the workers cannot be touched
through it; the random generators that an evaluation may draw from are put back when the block is left.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dissensus.algorithms.engines.columns import Columns
from dissensus.algorithms.engines.generators import generators, restore_generators
from dissensus.algorithms.errors import AlgorithmError

BatchNormPolicy = Literal["average", "local", "frozen", "recalibrate"]
POLICIES = ("average", "local", "frozen", "recalibrate")


@contextmanager
def view(template: nn.Module, columns: Columns, vector: Tensor, buffers: dict[str, Tensor]) -> Iterator[nn.Module]:
    """A copy of the template in eval mode that holds this vector and these buffers; generators are restored."""
    model = copy.deepcopy(template)
    columns.write(vector, model)
    own = dict(model.named_buffers())
    for name, value in buffers.items():
        # not copy_: a buffer may be an expanded view, or carry a gradient flag; tied ones stay tied
        own[name].data = value.detach().clone()
    for p in model.parameters():
        p.grad = None
    with generators_restored():
        yield model.eval()


def pooled(buffers: dict[str, Tensor], policy: BatchNormPolicy, initial: dict[str, Tensor]) -> dict[str, Tensor]:
    """The buffers of the consensus model.

    `average`: real and complex buffers are averaged over the workers (variances arithmetically), what all workers agree
    on stays as it is to the bit, counters and truth values are worker 0's;
    `local`: worker 0's; `frozen`: those the model was handed in with; `recalibrate`: starts from `average`.
    """
    if policy not in POLICIES:
        raise AlgorithmError(f"bn must be one of {', '.join(POLICIES)}, got {policy!r}")
    if policy == "frozen":
        return initial
    if policy == "local":
        return {name: b[0] for name, b in buffers.items()}
    return {name: _averaged(b) if b.is_floating_point() or b.is_complex() else b[0] for name, b in buffers.items()}


def _averaged(rows: Tensor) -> Tensor:
    """The mean over the rows; where they are equal their value, which a sum would round, or overflow in a mask."""
    return torch.where((rows == rows[:1]).all(dim=0), rows[0], rows.mean(dim=0))


def recalibrate(
    model: nn.Module, forward: Callable[[nn.Module, Any], Any], batches: Iterable[Any] | None, template: nn.Module
) -> None:
    """Measures the statistics of the normalisation layers anew: reset, then the plain average over these batches.

    A layer that stands in eval mode in the template kept its statistics in training, and keeps them here.
    """
    learning = {name for name, m in template.named_modules() if m.training}
    layers = [
        m
        for name, m in model.named_modules()
        if isinstance(m, torch.nn.modules.batchnorm._NormBase) and m.track_running_stats and name in learning
    ]
    if batches is None:
        raise AlgorithmError('bn="recalibrate" needs batches to measure the statistics on: pass batches=[...]')
    momenta = [m.momentum for m in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
        layer.train()
    count = 0
    with torch.no_grad():
        for batch in batches:
            forward(model, batch)
            count += 1
    if count == 0:
        raise AlgorithmError('bn="recalibrate" got no batch to measure the statistics on')
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        layer.eval()


@contextmanager
def generators_restored() -> Iterator[None]:
    """Puts the global generators of torch (CPU and CUDA), numpy and Python back as they were found."""
    before = generators()
    try:
        yield
    finally:
        restore_generators(before)
