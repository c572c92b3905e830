"""Everything one cell (arm, seed) is made of, built from its configuration and nothing else.

What the arms of one seed share is a function of the seed alone, through named random streams: the start
(`init`), the partition and order of the data (`data`), dropout. So arms differ in what their configuration says and in
nothing besides: they are pairs.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dissensus.algorithms.engines.stacked import StackedEngine
from dissensus.algorithms.registry import algorithm, planned
from dissensus.experiments.config import Study
from dissensus.experiments.data import DataSet, Order, augmentation, dataset
from dissensus.experiments.data.augmentation import Augmentation
from dissensus.experiments.faults import participation, with_faults
from dissensus.experiments.models import model, parameters_hash, starts
from dissensus.experiments.optimizers import optimizer, rate_at
from dissensus.theory import Topology, topology

Batch = tuple[Tensor, Tensor]
_PACKAGES = ("dissensus", "torch", "numpy", "scipy", "scikit-learn", "matplotlib")


@dataclass(frozen=True)
class Setup:
    """One cell, ready to train."""

    cell: Study
    data: DataSet
    topology: Topology
    order: Order
    engine: StackedEngine
    lr: Callable[[int], float]

    @classmethod
    def build(cls, cell: Study) -> Setup:
        """Builds data, model, topology, algorithm and engine of a single cell."""
        _, arm, seed = cell.only
        train = cell.train
        dtype = {"float32": torch.float32, "float64": torch.float64}[train.dtype]
        data = dataset(cell.data.name, cell.data.parameters).to(dtype)
        graph = topology(cell.topology.name, train.workers, **cell.topology.parameters)
        graph = with_faults(graph, cell.faults, seed)
        order = Order(
            data.size,
            train.workers,
            train.batch,
            seed,
            cell.data.partition,
            labels=data.labels,
            parameters=cell.data.partition_parameters,
        )
        lr = rate_at(cell.lr, train.steps)
        about = (cell.model.name, data.shape, data.classes, seed, cell.model.parameters)
        template = model(*about).to(dtype)
        what = f"model {cell.model.name!r} on data set {data.name!r}"
        data.task.check(what, template, (data.train_x[:2], data.train_y[:2]), data.classes)
        engine = StackedEngine(
            template,
            data.task.loss,
            algorithm=planned(algorithm(arm.algorithm, **arm.parameters), lr, train.steps),
            topology=graph,
            optimizer=optimizer(cell.optimizer.name, cell.optimizer.parameters, cell.lr.peak),
            lr=lr,
            seed=seed,
            gradients=train.gradients,
            clip=train.clip,
            accumulate=train.accumulate or 1,
            autocast=torch.bfloat16 if train.autocast else None,
            participation=participation(train.workers, cell.faults, seed),
            on_nan=train.on_nan or "stop",
            start=starts(*about, train.workers) if train.start == "independent" else None,
        )
        return cls(cell, data, graph, order, engine, lr)

    @property
    def seed(self) -> int:
        """The seed of the cell."""
        return self.cell.seeds[0]

    def batch(self, t: int) -> Batch:
        """The batches of step t, with the worker dimension first."""
        at = torch.from_numpy(self.order.at(t).copy())
        x = self.data.train_x[at]
        return (x if self.augmentation is None else self.augmentation(x, self.seed, t)), self.data.train_y[at]

    @cached_property
    def augmentation(self) -> Augmentation | None:
        """What changes the training inputs at random, if anything does."""
        chosen = self.cell.data
        if chosen.augment is None:
            return None
        return augmentation(chosen.augment, self.data.shape, self.data.black, chosen.augment_parameters)

    @cached_property
    def train_batches(self) -> list[Batch]:
        """All training samples, in batches of one model."""
        return _chunks(self.data.train_x, self.data.train_y)

    @cached_property
    def probe_batches(self) -> list[Batch]:
        """The training samples under Hessian and envelope."""
        count = self.cell.probes.samples
        return _chunks(self.data.train_x[:count], self.data.train_y[:count])

    @cached_property
    def envelope_batches(self) -> list[Batch]:
        """The same in at least eight portions, whose spread is the envelope's error."""
        x, y = (torch.cat(parts) for parts in zip(*self.probe_batches, strict=True))
        return _chunks(x, y, max(1, min(2048, len(x) // 8)))

    @cached_property
    def test_batches(self) -> list[Batch]:
        """The test samples, in batches of one model."""
        return _chunks(self.data.test_x, self.data.test_y)

    def facts(self) -> dict[str, Any]:
        """What the run knows of itself before the first step."""
        rounds = [self.topology[t].triplets() for t in range(self.topology.period or 1)]
        return {
            "arm": self.cell.only[0],
            "seed": self.seed,
            "digest": self.cell.digest,
            "parameters": self.engine.columns.size,
            "workers": self.engine.size,
            "train_samples": self.data.size,
            "test_samples": len(self.data.test_y),
            "steps_per_epoch": self.order.steps_per_epoch,
            "start_hash": parameters_hash(self.engine.x),
            "data_hash": self.data.fingerprint,
            "order_hash": self.order.fingerprint,
            **self.order.facts(),
            "data_facts": dict(self.data.facts),
            "topology_hash": hashlib.sha256(repr(rounds).encode()).hexdigest()[:16],
            **environment(),
        }


def environment() -> dict[str, Any]:
    """Versions, host and command."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "argv": list(sys.argv),
    }


def _chunks(x: Tensor, y: Tensor, size: int = 2048) -> list[Batch]:
    return list(zip(x.split(size), y.split(size), strict=True))


def draw_batches(setup: Setup, t: int, count: int) -> list[Batch]:
    """Fresh batches of one worker's size, drawn like the training's but from a stream of their own."""
    from dissensus.algorithms.streams import numpy_stream

    generator = numpy_stream(setup.seed, "probe", "noise", t)
    size, batch = setup.data.size, setup.cell.train.batch
    picks = [np.sort(generator.permutation(size)[:batch]) for _ in range(count)]
    drawn = [(setup.data.train_x[torch.from_numpy(p)], setup.data.train_y[torch.from_numpy(p)]) for p in picks]
    if setup.augmentation is None:
        return drawn
    changed = setup.augmentation(torch.stack([x for x, _ in drawn]), setup.seed, "probe", t)
    return list(zip(changed, (y for _, y in drawn), strict=True))
