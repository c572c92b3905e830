"""Which samples each worker sees at each step: a pure function of (seed, step), so every arm of a seed sees the same.

An epoch is as many steps as fit whole: floor(N / (n b)) for N samples, n workers and batches of b.

- `shuffled`: every epoch one permutation of all samples is dealt to the workers. No sample is seen twice in an epoch,
  and no worker keeps a shard, so the gradient noise of a worker has no persistent part.
- `iid`: every worker deals its own shard in an order that is new each epoch. In both, the few samples that fill no
  whole batch come in a later epoch's permutation.
- every other partition has shards of unequal sizes, and every worker *walks*: its batches are cut one after another
  from an endless line of passes through its own shard, each pass in a new order. Nothing is dropped: after k passes it
  has seen each of its samples k times. In one epoch a worker with a small shard makes several passes and one with a
  large shard a part of one; a shard smaller than a batch is passed more than once within a batch. All workers take
  batches of the same size and count alike, so what is minimised is the mean over workers of their own mean losses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dissensus.algorithms.streams import numpy_stream
from dissensus.experiments.data.partition import Shards, heterogeneity, label_histogram, shards_of
from dissensus.experiments.errors import ConfigError


@dataclass(frozen=True)
class Order:
    """Which samples each worker sees at each step."""

    size: int
    workers: int
    batch: int
    seed: int
    partition: str = "shuffled"
    labels: np.ndarray | None = field(default=None, compare=False)
    """What each sample is labelled with, (size,); all alike unless given."""
    parameters: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The parameters of the partition."""

    def __post_init__(self) -> None:
        if self.batch * self.workers > self.size:
            raise ConfigError(
                f"{self.workers} workers with batches of {self.batch} need {self.workers * self.batch} training "
                f"samples a step, but there are {self.size}: use a batch of at most {self.size // self.workers}"
            )
        if self.labels is not None and len(self.labels) != self.size:
            raise ConfigError(f"there are {self.size} training samples, but {len(self.labels)} labels")

    @cached_property
    def shards(self) -> Shards:
        """The samples of every worker; empty for `shuffled`."""
        return shards_of(self.partition, self._labels, self.workers, self.seed, self.parameters)

    @cached_property
    def steps_per_epoch(self) -> int:
        """The steps in which all workers together see as many samples as there are."""
        return (self.size // self.workers) // self.batch

    def epoch(self, epoch: int) -> np.ndarray:
        """The sample indices of an epoch, of shape (steps, workers, batch)."""
        steps, taken = self.steps_per_epoch, self.steps_per_epoch * self.batch
        if self.partition not in ("shuffled", "iid"):
            lines = [self._walked(i, epoch * taken, taken) for i in range(self.workers)]
            return np.stack(lines).reshape(self.workers, steps, self.batch).transpose(1, 0, 2)
        generator = numpy_stream(self.seed, "data", "order", epoch)
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
    def histogram(self) -> np.ndarray:
        """How many samples of each label each worker keeps, (n, labels); without shards, the n-th part of all."""
        if self.shards:
            return label_histogram(self._labels, self.shards)
        return np.tile(np.bincount(self._labels) / self.workers, (self.workers, 1))

    def facts(self) -> dict[str, Any]:
        """How unlike the workers' data are: what a run says of itself."""
        sizes = self.histogram.sum(axis=1)
        return {
            "label_heterogeneity": heterogeneity(self.histogram) if self.shards else 0.0,
            "shard_sizes": [int(sizes.min()), int(sizes.max())],
        }

    def _walked(self, worker: int, start: int, count: int) -> np.ndarray:
        """So many samples of a worker's endless line from a position on."""
        shard = self.shards[worker]
        first, last = start // len(shard), (start + count - 1) // len(shard)
        passes = [
            numpy_stream(self.seed, "data", "order", "walk", worker, k).permutation(shard)
            for k in range(first, last + 1)
        ]
        return np.concatenate(passes)[start - first * len(shard) :][:count]

    @cached_property
    def _labels(self) -> np.ndarray:
        return np.zeros(self.size, dtype=np.int64) if self.labels is None else np.asarray(self.labels)

    @cached_property
    def _held(self) -> list:
        return [-1, None]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the first epoch: two runs with the same one see the same samples in the same order."""
        return hashlib.sha256(np.ascontiguousarray(self.epoch(0)).tobytes()).hexdigest()[:16]
