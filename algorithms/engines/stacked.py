r"""n stacked workers: every worker is a row, and an exchange is a product with $W_t$.

The engine drives the generators of the algorithm and answers what they ask for. It owns what changes: the points of
shape (n, d), the algorithm's state, the optimizer's memory, the buffers of the n models. The model it is given is a
template and is never written to.

    engine = StackedEngine(model, loss, algorithm="dsgd", topology=topology("ring", 8),
                           optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    record = engine.step(batch)              # tensors of shape (8, b, ...)
    with engine.consensus() as average:      # a plain nn.Module
        ...

All n rows are in this process; or, with `wire=Wire(group)`, a block of k = n/P of them in each of P processes
(`distributed/blocks.py`), with the same results up to rounding. Every process builds the engine with the same arguments
and the template of the same numbers. Then

- `x`, `state`, `buffers`, `state_dict()`, `save_rows()` and what is in a record have the k rows of *this* process,
  those of `engine.workers`, and `step` takes k rows of a batch; `size`, `t`, `isolated` are those of the whole run;
- `snapshot()`, `mean`, `consensus()` and `evaluate(engine, ...)` speak of all n workers: all processes call them
  together, and all get the same.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dissensus.algorithms.engines import views
from dissensus.algorithms.engines.batches import check_batch
from dissensus.algorithms.engines.columns import Columns
from dissensus.algorithms.engines.distributed.blocks import check_equal, gathered
from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.algorithms.engines.fit import check_fit
from dissensus.algorithms.engines.gradients import GradientRoute, Loss, Route
from dissensus.algorithms.engines.layout import Layout, Options
from dissensus.algorithms.engines.moves import Groups, Move, OptimizerFactory, options_of
from dissensus.algorithms.engines.presence import OnNan, Presence
from dissensus.algorithms.engines.rows import load_rows, save_rows
from dissensus.algorithms.engines.snapshot import Snapshot
from dissensus.algorithms.engines.stepping import Stepping, StepRecord
from dissensus.algorithms.engines.workers import Workers
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm
from dissensus.algorithms.registry import algorithm as algorithm_named
from dissensus.algorithms.registry import check_optimizer, default_optimizer
from dissensus.theory.faults import WhoIsThere
from dissensus.theory.topology import Topology


class StackedEngine:
    """Runs an algorithm on n workers, all in this process or a block of them in each of several."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        algorithm: Algorithm | str,
        topology: Topology,
        optimizer: OptimizerFactory | None = None,
        lr: float | Callable[[int], float] | None = None,
        seed: int = 0,
        gradients: Route | Literal["auto"] = "auto",
        chunk: int | None = None,
        groups: Groups | None = None,
        per_worker: Sequence[Options] | None = None,
        start: Tensor | None = None,
        clip: float | None = None,
        accumulate: int = 1,
        autocast: torch.dtype | None = None,
        participation: WhoIsThere | None = None,
        on_nan: OnNan = "stop",
        wire: Wire | None = None,
    ) -> None:
        """Builds the engine.

        Args:
            model: a template; trained are its parameters that require a gradient.
            loss: `(model, batch) -> scalar`, where batch is one worker's.
            algorithm: an algorithm, or the name of one.
            topology: who mixes with whom; its size is the number of workers.
            optimizer: the local move, as a function of parameters: `partial(torch.optim.SGD, lr=0.1)`; the one the
                algorithm is published with unless given.
            lr: the learning rate, or a function of the step; unless given what `engine.optimizer` says, so that a
                scheduler of torch can set it.
            seed: decides every random number of the run.
            gradients: `vmap`, `loop`, or `auto`, which measures both on the first batch.
            chunk: how many workers go through one vmap.
            groups: (name, shape) of a parameter -> options of its param group, `{"weight_decay": 0.0}`.
            per_worker: options of the optimizer that differ from worker to worker: `[{"lr": 0.1}, {"lr": 0.2}, ...]`.
            start: where the workers start, (d,) or (n, d); all at the model's parameters unless given.
            clip: the largest 2-norm of a worker's whole gradient; each worker is clipped by itself.
            accumulate: into how many micro-batches a worker's batch is cut; the gradient is their mean.
            autocast: `torch.bfloat16` computes losses in mixed precision; points and moves stay as they are.
            participation: step -> bool array (n,): who computes, moves and exchanges at that step.
            on_nan: what becomes of a worker whose numbers are not finite, before anybody hears of it: `stop` the run,
                or `isolate` the worker at its last finite point.
            wire: the processes that share the workers, each a block of them; all workers are here unless given.
        """
        self.algorithm = algorithm_named(algorithm) if isinstance(algorithm, str) else algorithm
        self.topology, self.size, self.seed, self.t = topology, topology.size, seed, 0
        check_fit(self.algorithm, topology)
        if clip is not None and not clip > 0:
            raise AlgorithmError(f"clip is the largest norm of a gradient and must be positive, got {clip}")
        self._template = copy.deepcopy(model)
        self.columns = Columns.of(self._template)
        self._timeline = None if wire is None else wire.timeline
        self._wire = None if wire is None or wire.alone else wire
        if self._wire is not None:
            check_equal(self._wire, self._template, self.algorithm, topology, seed)
        self._presence = Presence(topology, self.algorithm, self.columns, participation, on_nan, self._wire)
        self.workers = here = self._presence.here
        """The workers of this process: all of them, unless there is a wire."""
        layout = Layout.of(
            len(here),
            self.columns,
            options_of(self.columns, groups),
            columnwise=self.algorithm.columnwise,
            travelling=self._wire is not None,
        )
        if per_worker is not None and len(per_worker) != self.size:
            raise AlgorithmError(f"per_worker has options for {len(per_worker)} workers, but there are {self.size}")
        own = None if per_worker is None else per_worker[here.start : here.stop]
        self._move = Move(optimizer or default_optimizer(self.algorithm), layout, own, apart=participation is not None)
        check_optimizer(self.algorithm, self._move.optimizer)
        self._lr, self._clip, self._broken = lr, clip, ""
        self._gradients = GradientRoute(
            copy.deepcopy(model), loss, seed, gradients, chunk, accumulate, autocast, first=here.start
        )
        self._initial = {name: b.detach().clone() for name, b in model.named_buffers()}
        self._workers = Workers(layout, self.algorithm, self._starting(start), self._initial)

    def step(self, batch: Any) -> StepRecord:
        """One step of every worker on its part of the batch: tensors with the worker dimension first."""
        check_batch(batch, len(self.workers))
        if self._broken:
            raise AlgorithmError(
                f"the engine stopped halfway through step {self.t} and cannot go on; load a state_dict ({self._broken})"
            )
        lr = self._move.begin(float(self._lr(self.t)) if callable(self._lr) else self._lr)
        stepping = Stepping(
            self._workers,
            self._move,
            self._gradients,
            self._presence,
            t=self.t,
            lr=lr,
            seed=self.seed,
            clip=self._clip,
            batch=batch,
            timeline=self._timeline,
        )
        began = time.perf_counter()
        try:
            record = stepping.run()
        except BaseException as error:
            if stepping.written:
                self._broken = str(error) or type(error).__name__
            raise
        if self._timeline is not None:
            self._timeline.add("step", began, time.perf_counter(), step=self.t)
        self.t += 1
        return record

    @property
    def x(self) -> Tensor:
        """The points the workers would deploy, (n, d), as a copy."""
        return self._workers.deployed

    @property
    def mean(self) -> Tensor:
        """The average of the deployed points of all workers that are not isolated, (d,)."""
        return self.snapshot().mean

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The buffers of all workers by name, (n, ...) each, as copies."""
        return {name: b.detach().clone() for name, b in self._workers.buffers.items()}

    @property
    def state(self) -> Any:
        """The algorithm's state: a NamedTuple of tensors with one row per worker, as copies."""
        return self._workers.state

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The local optimizer of all workers: for schedulers of torch, where `lr` was not given."""
        return self._move.optimizer

    @property
    def isolated(self) -> dict[int, int]:
        """Workers that were cut off because their numbers were not finite, and at which step."""
        return dict(self._presence.isolated)

    @property
    def route(self) -> str:
        """How gradients are taken: `vmap` or `loop`; `auto` until the first step has decided."""
        return self._gradients.route

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """A vector (d,) as views by parameter name."""
        return self.columns.unflatten(vector)

    @contextmanager
    def consensus(
        self, bn: views.BatchNormPolicy = "average", batches: Iterable[Any] | None = None
    ) -> Iterator[nn.Module]:
        """The average of the workers as a plain module in eval mode; the training does not notice.

        `bn` says what becomes of buffers: `average` over the workers, `local` (worker 0's), `frozen` (those the model
        came with), or `recalibrate`: measured anew on `batches` (one model's batches, without worker dimension).
        """
        with self.snapshot().consensus(bn, batches) as model:
            yield model

    @contextmanager
    def worker(self, i: int) -> Iterator[nn.Module]:
        """The model of one worker of this process, with its own buffers, as a plain module in eval mode."""
        if not 0 <= i < self.size:
            raise AlgorithmError(f"there is no worker {i}: workers are counted from 0 to {self.size - 1}")
        if i not in self.workers:
            raise AlgorithmError(
                f"worker {i} is in another process: this one has the workers {self.workers.start} to "
                f"{self.workers.stop - 1}; call snapshot() in all processes, which has all of them"
            )
        row = i - self.workers.start
        own = {name: b[row] for name, b in self._workers.buffers.items()}
        with views.view(self._template, self.columns, self._workers.of_one(row), own) as model:
            yield model

    def snapshot(self, process: int | None = None) -> Snapshot:
        """All workers as they are now. Where a process is named only that one gets them, the others get no rows."""
        x, buffers = self._workers.deployed, self._workers.buffers
        if self._wire is not None:
            found = gathered(self._wire, [x, *buffers.values()], to=process, what="snapshot", step=self.t)
            x, *rows = found or (x[:0], *(b[:0] for b in buffers.values()))
            buffers = dict(zip(buffers, rows, strict=True))
        else:
            buffers = self.buffers
        return Snapshot(
            self.t, x, buffers, self.isolated, self.columns, self._template, self._gradients.loss, self._initial
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run needs to go on as if it had not been interrupted, as copies."""
        return {**self._about(), "optimizer": self._move.state_dict(), **self._workers.save()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Goes on from a `state_dict()`: the steps that follow equal those of the uninterrupted run, to the bit."""
        if saved["algorithm"] != self.algorithm.name:
            raise AlgorithmError(f"the state is of algorithm {saved['algorithm']!r}, not {self.algorithm.name!r}")
        self._workers.load(saved)
        self._go_on(saved)
        self._move.load_state_dict(saved["optimizer"])

    def save_rows(self) -> dict[int, dict[str, Any]]:
        """The state of every worker of this process by itself, in terms of the model's names: for checkpoints.

        It fits into any layout: `load_rows` takes the states of the workers that a process has then.
        """
        return save_rows(self._template, self._workers, self._move, self.workers, self._about())

    def load_rows(self, saved: Mapping[int, Mapping[str, Any]]) -> None:
        """Goes on from the states of the workers of this process; to the bit, where as many share a process as then."""
        self._go_on(load_rows(self._workers, self._move, self.workers, saved))

    def _about(self) -> dict[str, Any]:
        return {
            "algorithm": self.algorithm.name,
            "t": self.t,
            "seed": self.seed,
            "route": self.route,
            "chunk": self._gradients.chunk,
            "isolated": self.isolated,
        }

    def _go_on(self, saved: Mapping[str, Any]) -> None:
        self.t, self.seed, self._broken = int(saved["t"]), int(saved["seed"]), ""
        self._gradients.seed, self._gradients.route = self.seed, saved["route"]
        self._gradients.chunk = saved["chunk"]
        self._presence.load(saved["isolated"])

    def _starting(self, start: Tensor | None) -> Tensor:
        n, d = self.size, self.columns.size
        if start is None:
            return self.columns.flatten(self._template)
        value = start.detach().to(self.columns.device, self.columns.dtype)
        if tuple(value.shape) not in ((d,), (n, d)):
            raise AlgorithmError(f"start must have shape ({d},) or ({n}, {d}), got {tuple(value.shape)}")
        return value if value.ndim == 1 else value[self.workers.start : self.workers.stop]

    def __repr__(self) -> str:
        return f"StackedEngine({self.algorithm!r}, {self.topology!r}, d={self.columns.size}, t={self.t})"
