"""n workers in a few lines: `simulate(model, loss, data, algorithm="dsgd", topology="ring", workers=8, ...)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.algorithms.engines.gradients import Loss, Route
from dissensus.algorithms.engines.moves import OptimizerFactory, own_rate
from dissensus.algorithms.engines.stacked import StackedEngine, StepRecord
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm
from dissensus.algorithms.registry import algorithm as algorithm_named
from dissensus.algorithms.registry import planned
from dissensus.algorithms.streams import stream
from dissensus.theory.registry import topology as topology_named
from dissensus.theory.topology import Topology

Samples = tuple[Tensor, ...]
"""Tensors with the samples first: (inputs, targets)."""

USUAL_RATE = 0.1
"""The learning rate where neither it nor an optimizer is given."""


@dataclass(frozen=True)
class Simulation:
    """What a simulation leaves: the engine, ready to go on, and one number per step."""

    engine: StackedEngine
    loss: np.ndarray
    """The mean over workers of the loss on the batch of a step, (steps,)."""
    consensus_distance: np.ndarray
    r"""$\Xi = \frac1n \sum_i \|x_i - \bar x\|^2$ after every step, (steps,)."""


def simulate(
    model: nn.Module,
    loss: Loss,
    data: Samples | Sequence[Samples],
    *,
    algorithm: Algorithm | str = "dsgd",
    topology: Topology | str = "ring",
    workers: int | None = None,
    steps: int = 100,
    lr: float | Callable[[int], float] | None = None,
    optimizer: OptimizerFactory | None = None,
    batch_size: int = 32,
    seed: int = 0,
    gradients: Route = "vmap",
    on_step: Callable[[StackedEngine, StepRecord], None] | None = None,
) -> Simulation:
    """Trains n workers on one machine.

    Args:
        model: the template every worker starts from.
        loss: `(model, batch) -> scalar`; a batch is a tuple like `data`, with `batch_size` samples.
        data: (inputs, targets), split at random into equal parts; or one such tuple for every worker.
        algorithm: an algorithm or its name.
        topology: a topology, or its name (then `workers` says how many).
        workers: n.
        steps: how many steps.
        lr: the learning rate, or a function of the step; unless given the optimizer's own, or 0.1 where no optimizer
            is given either.
        optimizer: the local move as a function of parameters, `partial(torch.optim.SGD, lr=0.1, momentum=0.9)`; the
            one the algorithm is published with unless given.
        batch_size: samples per worker and step.
        seed: decides split, order and every other random number.
        gradients: `vmap` or `loop`.
        on_step: called after every step.
    """
    schedule = _schedule(topology, workers)
    parts = _parts(data, schedule.size, seed)
    if lr is None:
        lr = USUAL_RATE if optimizer is None else own_rate(optimizer)
    recursion = planned(algorithm_named(algorithm) if isinstance(algorithm, str) else algorithm, lr, steps)
    engine = StackedEngine(
        model, loss, algorithm=recursion, topology=schedule, optimizer=optimizer, lr=lr, seed=seed, gradients=gradients
    )
    batches = [worker_batches(part, batch_size, seed, i) for i, part in enumerate(parts)]
    losses, distances = np.empty(steps), np.empty(steps)
    for t in range(steps):
        chosen = [next(b) for b in batches]
        record = engine.step(tuple(torch.stack(field) for field in zip(*chosen, strict=True)))
        points = engine.x
        losses[t] = record.losses.mean()
        distances[t] = (points - points.mean(dim=0)).square().sum(dim=1).mean()
        if on_step is not None:
            on_step(engine, record)
    return Simulation(engine, losses, distances)


def worker_batches(part: Samples, batch_size: int, seed: int, worker: int) -> Iterator[Samples]:
    """The batches of one worker, without end: its samples in a new order every epoch, what fills no batch left out."""
    count = len(part[0])
    if not 1 <= batch_size <= count:
        raise AlgorithmError(
            f"worker {worker} has {count} samples: batch_size must lie between 1 and {count}, got {batch_size}"
        )
    epoch = 0
    while True:
        order = torch.randperm(count, generator=stream(seed, "order", worker, epoch))
        for lo in range(0, count - batch_size + 1, batch_size):
            yield tuple(field[order[lo : lo + batch_size]] for field in part)
        epoch += 1


def _schedule(topology: Topology | str, workers: int | None) -> Topology:
    if isinstance(topology, str):
        if workers is None:
            raise AlgorithmError(f"say how many workers topology {topology!r} is for: workers=8")
        return topology_named(topology, workers)
    if workers is not None and workers != topology.size:
        raise AlgorithmError(f"workers={workers}, but topology {topology.name!r} has {topology.size} workers")
    return topology


def _parts(data: Samples | Sequence[Samples], n: int, seed: int) -> list[Samples]:
    """One tuple of tensors per worker, as given or split at random into parts that differ by one sample at most."""
    given: Any = data
    whole: Samples | None = given if _are_samples(given) else None
    if whole is None and not (isinstance(given, list | tuple) and given and all(_are_samples(part) for part in given)):
        raise AlgorithmError(
            "the data is a tuple of tensors with the samples first, (inputs, targets), or a list of one such tuple for "
            f"every worker, got a {_kind(given)}"
        )
    parts: list[Samples] = list(given) if whole is None else [whole]
    for i, part in enumerate(parts):
        lengths = sorted({len(field) for field in part})
        if len(lengths) != 1:
            raise AlgorithmError(f"part {i} of the data has tensors of different lengths {lengths}")
    if whole is None:
        if len(parts) != n:
            raise AlgorithmError(f"the data has {len(parts)} parts for {n} workers")
        return parts
    count = len(whole[0])
    if count < n:
        raise AlgorithmError(f"{count} samples cannot be split among {n} workers")
    order = torch.randperm(count, generator=stream(seed, "split"))
    return [tuple(field[share] for field in whole) for share in order.tensor_split(n)]


def _are_samples(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(v, Tensor) and v.ndim > 0 for v in value)


def _kind(value: Any) -> str:
    """What somebody gave: its type, and the types of what is in it."""
    if isinstance(value, Tensor) and value.ndim == 0:
        return "Tensor without samples"
    if not isinstance(value, list | tuple):
        return type(value).__name__
    return f"{type(value).__name__} of {', '.join(sorted({_kind(part) for part in value})) or 'nothing'}"
