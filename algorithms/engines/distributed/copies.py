"""Points that are copies: what becomes of parameters that the loop has changed after the copy was made.

An algorithm that is not `in_place` works on a copy of the parameters. Whoever changes them between two steps (weights
clamped, loaded, averages swapped in) means the step that comes, so a change is taken over, or refused; it is never
overwritten in silence. It is refused where the old point is still on its way to the neighbours (`settle()` waits for
it; the others then mix with the old point, this worker with the new one), and where the parameters are derived from
what else the algorithm holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dissensus.algorithms.engines.distributed.conversation import Conversation
from dissensus.algorithms.errors import AlgorithmError

if TYPE_CHECKING:
    from dissensus.algorithms.engines.distributed.worker import LoopWorker


class Copies:
    """Whether the points of a worker are still those of its parameters."""

    def __init__(self, worker: LoopWorker) -> None:
        self._worker = worker
        self._seen: dict[int, int] = {}
        """The version of a bucket that its point belongs to."""

    def made(self, k: int) -> None:
        """The point of bucket k is that of its parameters as they are now."""
        self._seen[k] = self._worker.buckets[k].version

    def forget(self) -> None:
        """The buckets are others from now on."""
        self._seen.clear()

    def begin(self, k: int, t: int) -> None:
        """Before bucket k begins step t: any change counts, if the parameters are the point."""
        worker, bucket = self._worker, self._worker.buckets[k]
        if worker.in_place or self._seen.get(k) == bucket.version:
            return
        deployed = worker.algorithm.deployed(worker.points[k], worker.states[k])
        if t == 0:
            worker.points[k] = bucket.flat.clone()
            worker.states[k] = worker.algorithm.init(worker.points[k])
        elif deployed is worker.points[k]:
            worker.points[k] = bucket.flat.clone()
        elif not torch.equal(bucket.flat, deployed):
            raise AlgorithmError(self._derived(t))
        self.made(k)

    def go_on(self, conversation: Conversation) -> None:
        """Before a step goes on that was begun: a change counts, if nothing that it touches has been used yet."""
        if self._worker.in_place or self._worker.isolated or not conversation.begun:
            return
        due = conversation.due
        for k in conversation.buckets:
            bucket = self._worker.buckets[k]
            if self._seen.get(k) == bucket.version:
                continue
            point = self._worker.points[k]
            held = due[k] if due else self._worker.algorithm.deployed(point, self._worker.states[k])
            if not torch.equal(bucket.flat, held):
                self._check(k, conversation.t, is_point=held is point)
                point.copy_(bucket.flat)
            self.made(k)

    def _check(self, k: int, t: int, *, is_point: bool) -> None:
        if not is_point:
            raise AlgorithmError(self._derived(t))
        if self._worker.is_under_way(k):
            raise AlgorithmError(changed_under_way(t))

    def _derived(self, t: int) -> str:
        return (
            f"parameters were changed before step {t}, but algorithm {self._worker.algorithm.name!r} derives them from "
            "what else it holds; load a state of the optimizer that belongs to them"
        )


def changed_under_way(t: int) -> str:
    """Why parameters must not be changed now."""
    return (
        f"parameters were changed between step {t - 1} and step {t} while they were on their way to the neighbours; "
        "call settle() on the optimizer before you change them"
    )
