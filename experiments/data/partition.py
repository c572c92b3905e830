"""How training samples come to the workers: a pure function of (seed, epoch), so every arm of a seed sees the same.

- `iid`: n fixed shards of one random permutation, each sample in exactly one, sizes equal up to one; every worker walks
  through its own shard in an order that is new each epoch.
- `shuffled`: every epoch one permutation of all samples is dealt to the workers. No sample is seen twice in an epoch,
  and no worker keeps a shard, so the gradient noise of a worker has no persistent part.

An epoch is as many whole batches as every worker can fill; what is left over comes in a later epoch's permutation.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from dissensus.algorithms.streams import numpy_stream
from dissensus.experiments.errors import ConfigError


def iid_shards(size: int, workers: int, seed: int) -> list[np.ndarray]:
    """Splits `size` samples into one shard per worker: each sample exactly once, sizes equal up to one."""
    if workers > size:
        raise ConfigError(f"{workers} workers cannot share {size} training samples: at most {size} workers")
    permutation = numpy_stream(seed, "data", "partition").permutation(size)
    return [np.sort(shard) for shard in np.array_split(permutation, workers)]


@dataclass(frozen=True)
class Order:
    """Which samples each worker sees at each step."""

    size: int
    workers: int
    batch: int
    seed: int
    partition: Literal["shuffled", "iid"] = "shuffled"

    def __post_init__(self) -> None:
        if self.batch * self.workers > self.size:
            raise ConfigError(
                f"{self.workers} workers with batches of {self.batch} need {self.workers * self.batch} training "
                f"samples a step, but there are {self.size}: use a batch of at most {self.size // self.workers}"
            )

    @cached_property
    def shards(self) -> list[np.ndarray]:
        """The fixed shards of `iid`."""
        return iid_shards(self.size, self.workers, self.seed)

    @cached_property
    def steps_per_epoch(self) -> int:
        """The steps for which every worker has a whole batch."""
        return (self.size // self.workers) // self.batch

    def epoch(self, epoch: int) -> np.ndarray:
        """The sample indices of an epoch, of shape (steps, workers, batch)."""
        generator = numpy_stream(self.seed, "data", "order", epoch)
        steps, taken = self.steps_per_epoch, self.steps_per_epoch * self.batch
        if self.partition == "shuffled":
            dealt = generator.permutation(self.size)[: taken * self.workers].reshape(self.workers, taken)
        else:
            dealt = np.stack([generator.permutation(shard)[:taken] for shard in self.shards])
        return dealt.reshape(self.workers, steps, self.batch).transpose(1, 0, 2)

    def at(self, t: int) -> np.ndarray:
        """The sample indices of step t, of shape (workers, batch)."""
        epoch, step = divmod(t, self.steps_per_epoch)
        if self._held[0] != epoch:
            self._held[:] = [epoch, self.epoch(epoch)]
        return self._held[1][step]

    @cached_property
    def _held(self) -> list:
        return [-1, None]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the first epoch: two runs with the same one see the same samples in the same order."""
        return hashlib.sha256(np.ascontiguousarray(self.epoch(0)).tobytes()).hexdigest()[:16]
