"""Mixing and moving inside backward: a bucket is done as soon as its gradients are there, and they are freed.

Parameters are laid out in several buckets, in the reverse order of the model, which is about the order in which
backward comes by. When the last gradient of a bucket has arrived, the bucket waits for its message, mixes, moves, frees
its gradients, and posts the message of the next step, all under the rest of backward. Buckets are done in one order on
every process (a transport may match messages by their order alone), whatever order their gradients come in.

The numbers are those of the plain way, to the bit: nothing but `Norm` couples parameters, and who asks for it is
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.algorithms.engines.distributed.conversation import Conversation
from dissensus.algorithms.engines.distributed.worker import LoopWorker
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm

SHARE, LEAST_BYTES, MOST_BYTES = 24, 1 << 19, 32 << 20
"""A bucket has a 24th of the model, but not less and not more than so many bytes (if no parameter is larger)."""


def bucket_bytes(named: Sequence[tuple[str, nn.Parameter]]) -> int:
    """How large the buckets of a model are."""
    total = sum(p.numel() * p.element_size() for _, p in named)
    return min(max(total // SHARE, LEAST_BYTES), MOST_BYTES)


def check_fused(algorithm: Algorithm, accumulate: int) -> None:
    """Refuses algorithms whose steps need more of the model than a bucket."""
    if not getattr(algorithm, "in_place", False) or not algorithm.columnwise:
        raise AlgorithmError(
            f"fused=True needs an algorithm that only hands on points and gradients (dsgd, dsgd-ac, dadam, allreduce, "
            f"local-sgd), but {algorithm.name!r} computes with them; use fused=False"
        )
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise AlgorithmError(f"accumulate is how many backwards make a step: at least 1, got {accumulate!r}")


class Fused:
    """Watches the gradients of a worker's parameters arrive."""

    def __init__(self, worker: LoopWorker, accumulate: int) -> None:
        self._worker, self._accumulate = worker, accumulate
        self._arrived: dict[int, int] = {}
        self._missing: list[int] = []
        self._next = 0
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Watches the parameters of the buckets as they are now, and starts to count from zero."""
        self.detach()
        for k, bucket in enumerate(self._worker.buckets):
            for p in bucket.parameters:
                handle = p.register_post_accumulate_grad_hook(lambda p, k=k: self._on_gradient(p, k))
                self._handles.append(handle)
        self.reset()

    def detach(self) -> None:
        """Watches nothing any more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def reset(self) -> None:
        """The next step begins."""
        self._arrived = {}
        self._missing = [len(bucket.parameters) for bucket in self._worker.buckets]
        self._next = 0

    def release(self) -> None:
        """Frees the gradients that are left after a step."""
        for bucket in self._worker.buckets:
            _free(bucket.parameters)

    def _on_gradient(self, p: Tensor, k: int) -> None:
        count = self._arrived[id(p)] = self._arrived.get(id(p), 0) + 1
        if count > self._accumulate or self._next > k:
            raise AlgorithmError(
                f"step {self._worker.t} had its {self._accumulate} backward(s) already when another one came: say "
                f"accumulate={count} if so many make a step, or use fused=False"
            )
        if count < self._accumulate:
            return
        self._missing[k] -= 1
        with torch.no_grad():
            while self._next < len(self._missing) and not self._missing[self._next]:
                self._finish(self._worker.conversations[self._next])
                self._next += 1

    def _finish(self, conversation: Conversation) -> None:
        worker = self._worker
        worker.finish_one(conversation, None)
        for k in conversation.buckets:
            _free(worker.buckets[k].parameters)
        conversation.begin(worker.t + 1)


def _free(parameters: Iterable[nn.Parameter]) -> None:
    for p in parameters:
        p.grad = None
