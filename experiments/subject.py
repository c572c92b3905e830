"""What is looked at: a model at a point, with the data under the loss and, where there are several, the workers.

A subject comes from a run directory (model, data, partition and topology are rebuilt from its resolved configuration),
or from a registered model on a registered data set, at its start or
with the weights of a file (see `weights`). Several workers are looked at around their average; `bn` says what becomes
of the buffers there, as everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.algorithms.engines import views
from dissensus.algorithms.engines.columns import Columns
from dissensus.algorithms.streams import numpy_stream
from dissensus.experiments.cell import Batch
from dissensus.experiments.data import DataSet, dataset
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.models import model as built
from dissensus.experiments.records import Run
from dissensus.experiments.sections import BatchNorm
from dissensus.experiments.state import finished
from dissensus.experiments.weights import fill, read_weights, stacked
from dissensus.theory import Topology

PORTIONS = 8
"""Into how many batches the data of every worker are cut, whose spread is an error."""
CHUNK = 2048


@dataclass(frozen=True, eq=False)
class Subject:
    """A model at a point, what it is measured on, and the workers around it if there are any."""

    name: str
    model: nn.Module
    data: DataSet
    samples: int | None = None
    """The training samples under the loss, from the first on; all of them if not said."""
    x: Tensor | None = None
    """The workers' trainable parameters, (n, d)."""
    topology: Topology | None = None
    shards: tuple[np.ndarray, ...] = ()
    """The samples of every worker where each has its own."""
    batch: int = 16
    """Samples per worker and step: what gradient noise is measured with."""
    bn: str = "none"
    """Where the buffers come from."""
    run: Run | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def batches(self) -> list[Batch]:
        """The data under the loss."""
        return self._cut(CHUNK)

    @property
    def portions(self) -> list[Batch]:
        """The same in eight batches, whose spread tells what other data might have said."""
        return self._cut(max(1, min(CHUNK, -(-self._count // PORTIONS))))

    def drawn(self, count: int, seed: int) -> list[Batch]:
        """Random batches of the size that one worker sees."""
        draw = numpy_stream(seed, "probe", "noise")
        picks = [torch.from_numpy(np.sort(draw.permutation(self._count)[: self.batch])) for _ in range(count)]
        return [(self.data.train_x[pick], self.data.train_y[pick]) for pick in picks]

    def of_workers(self) -> list[list[Batch]]:
        """The data of every worker, each in as many portions."""
        parts = min([PORTIONS, *(len(shard) for shard in self.shards)])
        mixed = [numpy_stream(0, "probe", "portions", i).permutation(shard) for i, shard in enumerate(self.shards)]
        cuts = [[torch.from_numpy(part) for part in np.array_split(shard, parts)] for shard in mixed]
        return [[(self.data.train_x[part], self.data.train_y[part]) for part in own] for own in cuts]

    def facts(self) -> dict[str, Any]:
        """What a result says of what it was measured on."""
        trainable = [p.numel() for p in self.model.parameters() if p.requires_grad]
        return {
            "subject": self.name,
            "data": self.data.name,
            "samples": self._count,
            "parameters": sum(trainable),
            "workers": None if self.x is None else len(self.x),
            "topology": None if self.topology is None else self.topology.name,
            "bn": self.bn,
            "notes": list(self.notes),
        }

    @property
    def _count(self) -> int:
        return min(self.samples or self.data.size, self.data.size)

    def _cut(self, size: int) -> list[Batch]:
        x, y = self.data.train_x[: self._count], self.data.train_y[: self._count]
        return list(zip(x.split(size), y.split(size), strict=True))


def of_run(
    folder: Path, *, again: bool = False, worker: int | None = None, samples: int | None = None, watch: Any = None
) -> Subject:
    """The end of a run: the consensus model, or one worker, with all workers around it."""
    run = Run.read(folder)
    setup = finished(run, again=again, watch=watch)
    engine, probes = setup.engine, run.study.probes
    notes: tuple[str, ...] = ()
    if worker is None:
        policy: dict[str, Any] = {"bn": probes.bn}
        if probes.bn == "recalibrate":
            policy["batches"] = setup.train_batches
        with engine.consensus(**policy) as model:
            chosen, bn = model, probes.bn
    else:
        if not 0 <= worker < engine.size:
            raise ConfigError(f"there is no worker {worker}: {run.path} has workers 0 to {engine.size - 1}")
        with engine.worker(worker) as model:
            chosen, bn = model, f"worker {worker}'s own"
    there = [i for i in range(engine.size) if i not in engine.isolated]
    if len(there) < engine.size:
        notes = (f"isolated workers left out: {sorted(engine.isolated)}",)
    shards = tuple(np.asarray(shard) for shard in setup.order.shards)
    return Subject(
        name=f"{run.path.name}, {'consensus' if worker is None else f'worker {worker}'} after {engine.t} steps",
        model=chosen,
        data=setup.data,
        samples=samples or probes.samples,
        x=engine.x[there],
        topology=setup.topology if len(there) == engine.size else None,
        shards=shards if len(there) == engine.size else (),
        batch=run.study.train.batch,
        bn=bn if engine.buffers else "none",
        run=run,
        notes=notes,
    )


def of_model(
    name: str,
    data: str,
    *,
    model_parameters: Mapping[str, Any] | None = None,
    data_parameters: Mapping[str, Any] | None = None,
    weights: Path | None = None,
    bn: BatchNorm = "average",
    worker: int | None = None,
    samples: int | None = None,
    batch: int = 16,
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Subject:
    """A registered model on a registered data set, at the start that the seed gives or with the weights of a file."""
    values = dataset(data, data_parameters or {}).to(dtype or torch.float32)
    start = built(name, values.shape, values.classes, seed, model_parameters or {}).to(dtype or torch.float32)
    values.task.check(
        f"model {name!r} on data set {data!r}", start, (values.train_x[:2], values.train_y[:2]), values.classes
    )
    common: dict[str, Any] = {"data": values, "samples": samples, "batch": batch}
    has_buffers = any(True for _ in start.buffers())
    if weights is None:
        _only_one(worker, f"model {name!r} at its start")
        return Subject(
            f"{name} at the start of seed {seed}", start.eval(), bn="fresh" if has_buffers else "none", **common
        )
    found = read_weights(weights)
    if isinstance(found, Mapping):
        _only_one(worker, str(weights))
        fill(start, found, weights)
        return Subject(f"{weights.name} in {name}", start.eval(), bn="the file's" if has_buffers else "none", **common)
    initial = {key: b.detach().clone() for key, b in start.named_buffers()}
    x, buffers = stacked(start, found, weights)
    if worker is not None and not 0 <= worker < len(x):
        raise ConfigError(f"there is no worker {worker}: {weights} has workers 0 to {len(x) - 1}")
    chosen = views.pooled(buffers, bn, initial) if worker is None else {key: b[worker] for key, b in buffers.items()}
    point = x.mean(0) if worker is None else x[worker]
    with views.view(start, Columns.of(start), point, chosen) as model:
        if worker is None and bn == "recalibrate":
            whole = list(zip(values.train_x.split(CHUNK), values.train_y.split(CHUNK), strict=True))
            views.recalibrate(model, values.task.loss, whole, start)
    whose = "consensus" if worker is None else f"worker {worker}"
    source = (bn if worker is None else f"worker {worker}'s own") if buffers else "none"
    return Subject(f"{weights.name} in {name}, {whose}", model, x=x, bn=source, **common)


def _only_one(worker: int | None, what: str) -> None:
    if worker is not None:
        raise ConfigError(f"{what} is one model, there is no worker {worker}: leave --worker out")
