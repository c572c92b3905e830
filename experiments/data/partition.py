r"""Who keeps which samples: partitioners by name. Every training sample is in exactly one shard.

A partitioner gets what each sample is labelled with, the number of workers and the seed, and returns one sorted array
of indices per worker. It draws from the stream ("data", "partition", ...) of the seed and from nothing else, so the
shards are the same in every process and in every arm of a seed.

- `shuffled`: nobody keeps anything (no shards): all samples are dealt anew to all workers every epoch.
- `iid`: one random permutation cut into shards that differ by one sample at most.
- `dirichlet`, `shards`, `quantity`, `power-law`: see `skew`.

How far shards are from IID is one number: the mean over workers of the total variation between the labels of a worker
and those of all,

$$ H = \frac1n \sum_i \tfrac12 \sum_c |p_i(c) - p(c)| \in [0, 1). $$
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dissensus.algorithms.streams import numpy_stream
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.registry import Registry

Shards = list[np.ndarray]
"""One sorted array of sample indices per worker; empty if no worker keeps samples."""


PARTITIONS = Registry[Shards]("partition", given=("labels", "workers", "seed"), folder="dissensus.experiments.data")


def shards_of(
    name: str, labels: np.ndarray, workers: int, seed: int, parameters: Mapping[str, Any] | None = None
) -> Shards:
    """Builds the shards by name: `shards_of("dirichlet", labels, 8, seed, {"alpha": 0.1})`."""
    PARTITIONS.check(name, parameters or {})
    return PARTITIONS.build(name, parameters or {}, np.asarray(labels), workers, seed)


@PARTITIONS.register("shuffled")
def shuffled(labels: np.ndarray, workers: int, seed: int) -> Shards:
    """No shards: every epoch one permutation of all samples is dealt to the workers."""
    del labels, workers, seed
    return []


@PARTITIONS.register("iid")
def iid(labels: np.ndarray, workers: int, seed: int) -> Shards:
    """Equal shards of one permutation."""
    return iid_shards(len(labels), workers, seed)


def iid_shards(size: int, workers: int, seed: int) -> Shards:
    """Splits `size` samples into one shard per worker: each sample exactly once, sizes equal up to one."""
    check_enough(size, workers)
    permutation = numpy_stream(seed, "data", "partition").permutation(size)
    return [np.sort(shard) for shard in np.array_split(permutation, workers)]


def check_enough(size: int, workers: int, each: int = 1, key: str = "") -> None:
    """Refuses shards of at least `each` samples where there are too few; `key` is the parameter that says so."""
    if workers > size:
        raise ConfigError(f"{workers} workers cannot share {size} training samples: at most {size} workers")
    if workers * each > size:
        raise ConfigError(
            f"{workers} workers with {key} = {each} need {workers * each} training samples, but there are {size}: "
            f"set data.{key} to at most {size // workers}"
        )


def label_histogram(labels: np.ndarray, shards: Sequence[np.ndarray]) -> np.ndarray:
    """How many samples of each label each worker keeps, (n, labels)."""
    labels = np.asarray(labels)
    count = int(labels.max()) + 1
    return np.stack([np.bincount(labels[shard], minlength=count) for shard in shards])


def heterogeneity(histogram: np.ndarray) -> float:
    """The mean total variation H between the labels of a worker and those of all; 0 where all are alike."""
    share = histogram / histogram.sum(axis=1, keepdims=True)
    whole = histogram.sum(axis=0) / histogram.sum()
    return float(0.5 * np.abs(share - whole).sum(axis=1).mean())
