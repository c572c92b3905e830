"""The local move of a worker in a loop: the inner optimizer, on the parameters of one bucket, where they lie."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dissensus.algorithms.engines.distributed.buckets import Bucket
from dissensus.algorithms.engines.distributed.counts import Counts
from dissensus.algorithms.engines.moves import decay_of
from dissensus.algorithms.engines.watching import move
from dissensus.algorithms.streams import stream

if TYPE_CHECKING:
    from dissensus.algorithms.engines.distributed.worker import LoopWorker


class _LoopGradient:
    """The gradient as the loop left it, in the `.grad` of the parameters: for algorithms that only hand it on."""


GRADIENT = _LoopGradient()


class Movement:
    """The inner optimizer by bucket."""

    def __init__(self, inner: torch.optim.Optimizer, buckets: Sequence[Bucket]) -> None:
        self.inner, self._buckets = inner, buckets
        self._members: list[list[list[Any]]] = []
        self._counts = Counts(inner)

    def regroup(self) -> None:
        """Reads off which parameters of which param group lie in which bucket."""
        groups, members = self.inner.param_groups, []
        for bucket in self._buckets:
            own = {id(p) for p in bucket.parameters}
            members.append([[p for p in group["params"] if id(p) in own] for group in groups])
        self._members = members
        self._counts.forget()

    def step(self, k: int) -> None:
        """One step of the inner optimizer, on the parameters of bucket k alone."""
        if len(self._buckets) == 1:
            move(self.inner)
            return
        groups = self.inner.param_groups
        whole = [group["params"] for group in groups]
        try:
            for group, own in zip(groups, self._members[k], strict=True):
                group["params"] = own
            self.inner.param_groups = [group for group in groups if group["params"]]
            with self._counts.one_of(k, len(self._buckets)) if self._counts.watches else nullcontext():
                move(self.inner)
        finally:
            self.inner.param_groups = groups
            for group, parameters in zip(groups, whole, strict=True):
                group["params"] = parameters

    def gradient_row(self, k: int, *, void: bool) -> tuple[Tensor, int]:
        """The gradients of a bucket side by side, and behind them a mark for every parameter that has one."""
        bucket = self._buckets[k]
        marks = [0.0 if p.grad is None or void else 1.0 for p in bucket.parameters]
        d = bucket.flat.shape[1]
        row = torch.empty(1, d + len(marks), dtype=bucket.flat.dtype, device=bucket.flat.device)
        bucket.gather_gradient(row, void=void)
        row[0, d:] = torch.tensor(marks, dtype=row.dtype, device=row.device)
        return row, len(marks)

    def take_gradient(self, k: int, row: Tensor, marks: int) -> None:
        """Puts such a row into `.grad`; a parameter that had no gradient anywhere is left without."""
        bucket = self._buckets[k]
        used = row[0, row.shape[1] - marks :].tolist()
        for place, mark in zip(bucket.places, used, strict=True):
            place.parameter.grad = place.view(row) if mark else None

    def lr(self) -> float:
        """The learning rate of the first param group that does not stand still, as the loop's scheduler has set it."""
        rates = [float(group.get("lr", 1.0)) for group in self.inner.param_groups]
        return next(filter(None, rates), 0.0)

    def rate(self, k: int) -> float | Tensor:
        """The learning rate that a bucket moves with: a number, or a row where its parameters differ."""
        return self._of_bucket(k, lambda group: float(group.get("lr", 1.0)))

    def decay(self, k: int) -> float | Tensor:
        """The weight decay that SGD adds to the gradient of a bucket."""
        return self._of_bucket(k, lambda group: decay_of(self.inner, group))

    def _of_bucket(self, k: int, option: Callable[[dict[str, Any]], float]) -> float | Tensor:
        groups = self.inner.param_groups
        found = [option(group) for group in groups]
        if len(set(found)) == 1:
            return found[0]
        bucket = self._buckets[k]
        of = {id(p): value for group, value in zip(groups, found, strict=True) for p in group["params"]}
        row = torch.empty_like(bucket.flat)
        for place in bucket.places:
            place.view(row).fill_(of[id(place.parameter)])
        return row


class LoopLocal:
    """What the algorithm may ask of this worker alone: the step, the learning rate, a move of the inner optimizer."""

    def __init__(self, worker: LoopWorker, k: int, t: int) -> None:
        self._worker, self._k, self.t = worker, k, t

    @property
    def lr(self) -> float:
        """The learning rate that is in force when this is asked."""
        return self._worker.movement.lr()

    @property
    def rate(self) -> float | Tensor:
        """The same for the parameters of this bucket."""
        return self._worker.movement.rate(self._k)

    @property
    def decay(self) -> float | Tensor:
        """The weight decay that a move adds to the gradient of this bucket."""
        return self._worker.movement.decay(self._k)

    def generators(self, purpose: str) -> list[torch.Generator]:
        """The stream of this worker."""
        return [stream(self._worker.seed, purpose, self.t, self._worker.wire.rank)]

    def move(self, x: Tensor, g: Any) -> Tensor:
        """One step of the inner optimizer from `x` along `g`."""
        worker, k = self._worker, self._k
        bucket = worker.buckets[k]
        if worker.stays(k):
            return x
        worker.moved.add(k)
        began = time.perf_counter()
        if x is not bucket.flat:
            bucket.flat.copy_(x)
        if g is GRADIENT:
            worker.movement.step(k)
        else:
            kept = [p.grad for p in bucket.parameters]
            for p, part in zip(bucket.parameters, bucket.split(g.clone()), strict=True):  # an optimizer may write to it
                p.grad = part
            worker.movement.step(k)
            for p, grad in zip(bucket.parameters, kept, strict=True):
                p.grad = grad
        moved = bucket.flat if worker.in_place else bucket.flat.clone()
        worker.wire.timeline.add("move", began, time.perf_counter(), step=self.t)
        return moved
