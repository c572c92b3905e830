r"""n workers in one process: every worker is a row of one block, and an exchange is a product with $W_t$.

The engine drives the generator of the algorithm and answers what it asks for. It owns what changes: the block `x` of
shape (n, d), the algorithm's state, the optimizer's memory, the buffers of the n models. The model it is given is a
template and is never written to.

    engine = StackedEngine(model, loss, algorithm="dsgd", topology=topology("ring", 8),
                           optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    record = engine.step(batch)              # tensors of shape (8, b, ...)
    with engine.consensus() as average:      # a plain nn.Module
        ...
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dissensus.algorithms.engines import views
from dissensus.algorithms.engines.columns import Columns
from dissensus.algorithms.engines.fit import check_fit
from dissensus.algorithms.engines.gradients import GradientRoute, Loss, Route, check_batch
from dissensus.algorithms.engines.mixing import Mixing
from dissensus.algorithms.engines.moves import Groups, Move, OptimizerFactory
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm, Await, Gradient, Mean, Mix, Norm, Note, Post, Request
from dissensus.algorithms.registry import algorithm as algorithm_named
from dissensus.algorithms.streams import stream
from dissensus.theory.topology import Topology


@dataclass(frozen=True)
class StepRecord:
    """What happened in one step."""

    t: int
    lr: float
    losses: Tensor
    """The loss of every worker on its batch, at the first point it took a gradient at: (n,)."""
    notes: Mapping[str, Tensor | float]
    """What the algorithm noted."""

    @property
    def gamma(self) -> float | None:
        """The adaptive factor used in this step, if the algorithm has one."""
        value = self.notes.get("gamma")
        return float(value.reshape(-1)[0]) if isinstance(value, Tensor) else value


@dataclass(frozen=True)
class _Worker:
    """What the workers know and can do by themselves at this step."""

    t: int
    lr: float
    _move: Move
    _seed: int
    _size: int

    @property
    def rate(self) -> float | Tensor:
        return self.lr

    def generators(self, purpose: str) -> list[torch.Generator]:
        return [stream(self._seed, purpose, self.t, i) for i in range(self._size)]

    def move(self, x: Tensor, g: Tensor) -> Tensor:
        return self._move(x, g, self.lr)


class StackedEngine:
    """Runs an algorithm on n workers in one process."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        algorithm: Algorithm | str,
        topology: Topology,
        optimizer: OptimizerFactory,
        lr: float | Callable[[int], float] | None = None,
        seed: int = 0,
        gradients: Route | Literal["auto"] = "auto",
        chunk: int | None = None,
        groups: Groups | None = None,
        start: Tensor | None = None,
    ) -> None:
        """Builds the engine.

        Args:
            model: a template; trained are its parameters that require a gradient.
            loss: `(model, batch) -> scalar`, where batch is one worker's.
            algorithm: an algorithm, or the name of one.
            topology: who mixes with whom; its size is the number of workers.
            optimizer: the local move, as a function of parameters: `partial(torch.optim.SGD, lr=0.1)`.
            lr: the learning rate, or a function of the step; the optimizer's own unless given.
            seed: decides every random number of the run.
            gradients: `vmap`, `loop`, or `auto`, which measures both on the first batch.
            chunk: how many workers go through one vmap.
            groups: (name, shape) of a parameter -> options of its param group, `{"weight_decay": 0.0}`.
            start: where the workers start, (d,) or (n, d); all at the model's parameters unless given.
        """
        self.algorithm = algorithm_named(algorithm) if isinstance(algorithm, str) else algorithm
        self.topology, self.size, self.seed, self.t = topology, topology.size, seed, 0
        check_fit(self.algorithm, topology)
        self._template = copy.deepcopy(model)
        self.columns = Columns.of(self._template)
        self._move = Move(optimizer, self.size, self.columns, groups)
        self._lr = lr if lr is not None else self._move.base_lr
        self._mixing = Mixing(topology, self.columns.dtype, self.columns.device)
        self._gradients = GradientRoute(copy.deepcopy(model), loss, self.columns, seed, gradients, chunk)
        self._initial = {name: b.detach().clone() for name, b in model.named_buffers()}
        self._buffers = {name: _rows(b, self.size) for name, b in self._initial.items()}
        self._x = self._starting(start)
        self._state = self.algorithm.init(self._x)

    def step(self, batch: Any) -> StepRecord:
        """One step of every worker on its part of the batch: tensors with the worker dimension first."""
        check_batch(batch, self.size)
        lr = float(self._lr(self.t) if callable(self._lr) else self._lr)
        notes: dict[str, Tensor | float] = {}
        losses: list[Tensor] = []
        recursion = self.algorithm.step(self._x, self._state, _Worker(self.t, lr, self._move, self.seed, self.size))
        answer: Any = None
        while True:
            try:
                request = recursion.send(answer)
            except StopIteration as end:
                x, state = end.value
                break
            if isinstance(request, Gradient):
                answer = self._gradient(request.at, batch, losses)
            elif isinstance(request, Note):
                notes[request.name] = request.value
                answer = None
            else:
                answer = self._exchange(request)
        self._check_finite(x, "parameters")
        self._x, self._state = x, state
        record = StepRecord(self.t, lr, losses[0] if losses else torch.empty(0), notes)
        self.t += 1
        return record

    def _gradient(self, at: Tensor, batch: Any, losses: list[Tensor]) -> Tensor:
        found = self._gradients(at, self._buffers, batch, (self.t, len(losses)))
        if not bool(torch.isfinite(found.losses).all()):
            i = int((~torch.isfinite(found.losses)).nonzero()[0])
            raise AlgorithmError(
                f"worker {i} has the loss {found.losses[i].item()} at step {self.t}; no other worker has received "
                "anything of it; lower the learning rate or look at its data"
            )
        self._buffers = found.buffers
        losses.append(found.losses)
        return found.rows

    def _exchange(self, request: Request) -> Any:
        if isinstance(request, Await):
            return request.ticket
        if isinstance(request, Norm):
            return torch.linalg.vector_norm(request.value, dim=1, keepdim=True)
        if isinstance(request, Mix | Post):
            if request.value is not self._x:
                self._check_finite(request.value, "message")
            return self._mixing(self.t, request.value)
        if isinstance(request, Mean):
            self._check_finite(request.value, "message")
            return request.value.mean(dim=0, keepdim=True).expand_as(request.value)
        raise AlgorithmError(
            f"algorithm {self.algorithm.name!r} asked for {type(request).__name__}, which is no request of the protocol"
        )

    def _check_finite(self, value: Tensor, what: str) -> None:
        """One pass over memory; which worker it is is looked up only when something is wrong."""
        if bool(torch.isfinite(value.sum())):
            return
        bad = ~torch.isfinite(value).all(dim=1)
        if bool(bad.any()):
            i = int(bad.nonzero()[0])
            raise AlgorithmError(
                f"worker {i} has a {what} that is not finite at step {self.t}; no other worker has received anything "
                "of it; lower the learning rate or look at its data"
            )

    @property
    def x(self) -> Tensor:
        """The points the workers would deploy, (n, d), as a copy."""
        return self.algorithm.deployed(self._x, self._state).detach().clone()

    @property
    def mean(self) -> Tensor:
        """The average of the deployed points, (d,)."""
        return self.algorithm.deployed(self._x, self._state).mean(dim=0)

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The buffers of all workers by name, (n, ...) each, as copies."""
        return {name: b.detach().clone() for name, b in self._buffers.items()}

    @property
    def state(self) -> Any:
        """The algorithm's state: a NamedTuple of tensors with one row per worker."""
        return self._state

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
        buffers = views.pooled(self._buffers, bn, self._initial)
        with views.view(self._template, self.columns, self.mean, buffers) as model:
            if bn == "recalibrate":
                views.recalibrate(model, self._gradients.loss, batches)
            yield model

    @contextmanager
    def worker(self, i: int) -> Iterator[nn.Module]:
        """The model of one worker, with its own buffers, as a plain module in eval mode."""
        if not 0 <= i < self.size:
            raise AlgorithmError(f"there is no worker {i}: workers are counted from 0 to {self.size - 1}")
        own = {name: b[i] for name, b in self._buffers.items()}
        with views.view(self._template, self.columns, self.x[i], own) as model:
            yield model

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run needs to go on as if it had not been interrupted, as copies."""
        return {
            "algorithm": self.algorithm.name,
            "t": self.t,
            "seed": self.seed,
            "route": self.route,
            "x": self._x.detach().clone(),
            "state": {k: v.detach().clone() for k, v in zip(self._state._fields, self._state, strict=True)},
            "buffers": self.buffers,
            "optimizer": self._move.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Goes on from a `state_dict()`: the steps that follow equal those of the uninterrupted run, to the bit."""
        if saved["algorithm"] != self.algorithm.name:
            raise AlgorithmError(f"the state is of algorithm {saved['algorithm']!r}, not {self.algorithm.name!r}")
        if saved["x"].shape != self._x.shape:
            raise AlgorithmError(
                f"the state has (workers, parameters) = {tuple(saved['x'].shape)}, expected {tuple(self._x.shape)}"
            )
        self.t, self.seed = int(saved["t"]), int(saved["seed"])
        self._gradients.seed, self._gradients.route = self.seed, saved["route"]
        self._x = saved["x"].detach().clone()
        self._state = type(self._state)(**{k: v.detach().clone() for k, v in saved["state"].items()})
        self._buffers = {k: v.detach().clone() for k, v in saved["buffers"].items()}
        self._move.load_state_dict(saved["optimizer"])

    def _starting(self, start: Tensor | None) -> Tensor:
        n, d = self.size, self.columns.size
        if start is None:
            return _rows(self.columns.flatten(self._template), n)
        value = start.detach().to(self.columns.device, self.columns.dtype)
        if tuple(value.shape) not in ((d,), (n, d)):
            raise AlgorithmError(f"start must have shape ({d},) or ({n}, {d}), got {tuple(value.shape)}")
        return value.clone() if value.ndim == 2 else _rows(value, n)

    def __repr__(self) -> str:
        return f"StackedEngine({self.algorithm!r}, {self.topology!r}, d={self.columns.size}, t={self.t})"


def _rows(value: Tensor, n: int) -> Tensor:
    """The same value for every worker, each in memory of its own."""
    return value.expand(n, *value.shape).clone()
