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
from torch import Tensor, nn

from dissensus.algorithms.engines.distributed.handshake import agree, together
from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.algorithms.engines.snapshot import Snapshot
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
    def build(cls, cell: Study, wire: Wire | None = None, device: torch.device | None = None) -> Setup:
        """Builds data, model, topology, algorithm and engine of a single cell.

        With a `wire` the engine has this process's part of the workers; everything else is the same everywhere.
        """
        (_, arm, seed), train = cell.only, cell.train
        data, graph, order, template = _parts(cell) if wire is None else together(wire, lambda: _parts(cell))
        if wire is not None:
            agree(wire, {"the configuration": cell.digest, "the data set": data.fingerprint})
        lr = rate_at(cell.lr, train.steps)
        start = starts(*_about(cell, data), train.workers) if train.start == "independent" else None
        engine = StackedEngine(
            template.to(device=device),
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
            start=start,
            wire=wire,
        )
        return cls(cell, data, graph, order, engine, lr)

    @property
    def seed(self) -> int:
        """The seed of the cell."""
        return self.cell.seeds[0]

    def batch(self, t: int) -> Batch:
        """The batches of step t for the workers of this process, with the worker dimension first."""
        here, device = self.engine.workers, self.engine.columns.device
        at = torch.from_numpy(self.order.at(t)[here.start : here.stop].copy())
        x = self.data.train_x[at]
        if self.augmentation is not None:
            x = self.augmentation(x, self.seed, t, workers=here)
        return x.to(device), self.data.train_y[at].to(device)

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
        return self._chunks(self.data.train_x, self.data.train_y)

    @cached_property
    def probe_batches(self) -> list[Batch]:
        """The training samples under Hessian and envelope."""
        count = self.cell.probes.samples
        return self._chunks(self.data.train_x[:count], self.data.train_y[:count])

    @cached_property
    def envelope_batches(self) -> list[Batch]:
        """The same in at least eight portions, whose spread is the envelope's error."""
        x, y = (torch.cat(parts) for parts in zip(*self.probe_batches, strict=True))
        return self._chunks(x, y, max(1, min(2048, len(x) // 8)))

    @cached_property
    def test_batches(self) -> list[Batch]:
        """The test samples, in batches of one model."""
        return self._chunks(self.data.test_x, self.data.test_y)

    def _chunks(self, x: Tensor, y: Tensor, size: int = 2048) -> list[Batch]:
        device = self.engine.columns.device
        return list(zip(x.to(device).split(size), y.to(device).split(size), strict=True))

    def facts(self, seen: Snapshot | None = None) -> dict[str, Any]:
        """What the run knows of itself before the first step; `seen` are the workers where they start."""
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
            "start_hash": parameters_hash((seen or self.engine.snapshot()).x),
            "data_hash": self.data.fingerprint,
            "order_hash": self.order.fingerprint,
            **self.order.facts(),
            "data_facts": dict(self.data.facts),
            "topology_hash": hashlib.sha256(repr(rounds).encode()).hexdigest()[:16],
            **environment(),
        }


def check_parts(cell: Study, wire: Wire | None) -> None:
    """Builds what is the same in every process and lets go of it; where one of them cannot, all of them are told."""
    if wire is None:
        _parts(cell)
    else:
        together(wire, lambda: _parts(cell))


def _parts(cell: Study) -> tuple[DataSet, Topology, Order, nn.Module]:
    """What is the same in every process: data, who mixes with whom, who sees what when, and the model."""
    train, seed = cell.train, cell.seeds[0]
    dtype = {"float32": torch.float32, "float64": torch.float64}[train.dtype]
    data = dataset(cell.data.name, cell.data.parameters).to(dtype)
    graph = with_faults(topology(cell.topology.name, train.workers, **cell.topology.parameters), cell.faults, seed)
    order = Order(
        data.size,
        train.workers,
        train.batch,
        seed,
        cell.data.partition,
        labels=data.labels,
        parameters=cell.data.partition_parameters,
    )
    template = model(*_about(cell, data)).to(dtype)
    what = f"model {cell.model.name!r} on data set {data.name!r}"
    data.task.check(what, template, (data.train_x[:2], data.train_y[:2]), data.classes)
    return data, graph, order, template


def _about(cell: Study, data: DataSet) -> tuple[str, tuple[int, ...], int, int, dict[str, Any]]:
    """What a model is built from."""
    return cell.model.name, data.shape, data.classes, cell.seeds[0], cell.model.parameters


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


def draw_batches(setup: Setup, t: int, count: int) -> list[Batch]:
    """Fresh batches of one worker's size, drawn like the training's but from a stream of their own."""
    from dissensus.algorithms.streams import numpy_stream

    generator = numpy_stream(setup.seed, "probe", "noise", t)
    size, batch = setup.data.size, setup.cell.train.batch
    picks = [np.sort(generator.permutation(size)[:batch]) for _ in range(count)]
    drawn = [(setup.data.train_x[torch.from_numpy(p)], setup.data.train_y[torch.from_numpy(p)]) for p in picks]
    if setup.augmentation is not None:
        changed = setup.augmentation(torch.stack([x for x, _ in drawn]), setup.seed, "probe", t)
        drawn = list(zip(changed, (y for _, y in drawn), strict=True))
    device = setup.engine.columns.device
    return [(x.to(device), y.to(device)) for x, y in drawn]
