r"""Shards that are not alike: in their labels (`dirichlet`, `shards`) or in their sizes (`quantity`, `power-law`).

`dirichlet`: the samples of every label c are shared out in proportions $q_c \sim \mathrm{Dir}(\alpha, \dots, \alpha)$.
As alpha grows the proportions become 1/n, each worker's share of each label within one sample of it; as alpha falls a
label tends to belong to one worker.
Reference: Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution", arXiv:1909.06335, with the roles
of labels and workers exchanged (there every worker draws its own proportions of the labels), as is now usual.

`shards`: all samples sorted by label, cut into s n pieces, s of them to every worker at random.
Reference: McMahan et al., "Communication-efficient learning of deep networks", arXiv:1602.05629.

`quantity` and `power-law`: labels as in `iid`, sizes in proportion to Dir(alpha, ..., alpha), or to (1, 2, ..., n)^-p
in random order.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from dissensus.algorithms.streams import numpy_stream
from dissensus.experiments.data.partition import PARTITIONS, Shards, check_enough
from dissensus.experiments.errors import ConfigError

TRIES = 50
"""How many draws are made for one alpha before it is refused."""
Alpha = Annotated[float, Field(ge=1e-4, le=1e9)]
Count = Annotated[int, Field(ge=1)]


@PARTITIONS.register("dirichlet")
def dirichlet(labels: np.ndarray, workers: int, seed: int, alpha: Alpha, min_samples: Count = 1) -> Shards:
    """Shares the samples of every label in Dirichlet proportions; drawn again until all have `min_samples`."""
    check_enough(len(labels), workers, min_samples, "min_samples")
    shards, best = _attempts(labels, workers, seed, alpha, min_samples)
    if shards is None:
        raise ConfigError(
            f"partition 'dirichlet': in {TRIES} draws with alpha = {alpha:g} some of the {workers} workers always had "
            f"fewer than min_samples = {min_samples} of {len(labels)} samples (at best {best}); "
            f"{_remedy(labels, workers, seed, alpha, min_samples, best)}"
        )
    return shards


@PARTITIONS.register("shards")
def shards(labels: np.ndarray, workers: int, seed: int, shards_per_worker: Count = 2) -> Shards:
    """Sorts by label, cuts into equal pieces and deals `shards_per_worker` of them to every worker."""
    check_enough(len(labels), workers, shards_per_worker, "shards_per_worker")
    generator = numpy_stream(seed, "data", "partition", "shards")
    order = generator.permutation(len(labels))
    pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], workers * shards_per_worker)
    dealt = generator.permutation(len(pieces)).reshape(workers, shards_per_worker)
    return [np.sort(np.concatenate([pieces[k] for k in row])) for row in dealt]


@PARTITIONS.register("quantity")
def quantity(labels: np.ndarray, workers: int, seed: int, alpha: Alpha, min_samples: Count = 1) -> Shards:
    """Sizes in Dirichlet proportions beyond `min_samples` for everybody; labels as they come."""
    check_enough(len(labels), workers, min_samples, "min_samples")
    generator = numpy_stream(seed, "data", "partition", "quantity")
    return _of_sizes(len(labels), _proportions(generator, alpha, workers), min_samples, generator)


@PARTITIONS.register("power-law")
def power_law(
    labels: np.ndarray,
    workers: int,
    seed: int,
    power: Annotated[float, Field(ge=0, le=20)] = 1.0,
    min_samples: Count = 1,
) -> Shards:
    """Sizes that fall like rank^-power beyond `min_samples` for everybody, ranks at random; labels as they come."""
    check_enough(len(labels), workers, min_samples, "min_samples")
    generator = numpy_stream(seed, "data", "partition", "power-law")
    weights = (1.0 + generator.permutation(workers)) ** -power
    return _of_sizes(len(labels), weights / weights.sum(), min_samples, generator)


def _attempts(labels: np.ndarray, workers: int, seed: int, alpha: float, least: int) -> tuple[Shards | None, int]:
    """The first draw in which every worker has `least` samples, or none; and the best smallest shard seen."""
    by_label = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    best = 0
    for attempt in range(TRIES):
        generator = numpy_stream(seed, "data", "partition", "dirichlet", attempt)
        parts: list[list[np.ndarray]] = [[] for _ in range(workers)]
        for members in by_label:
            cuts = _cuts(len(members), _proportions(generator, alpha, workers))
            for part, piece in zip(parts, np.split(generator.permutation(members), cuts), strict=True):
                part.append(piece)
        found = [np.sort(np.concatenate(part)) for part in parts]
        smallest = min(map(len, found))
        if smallest >= least:
            return found, smallest
        best = max(best, smallest)
    return None, best


def _remedy(labels: np.ndarray, workers: int, seed: int, alpha: float, least: int, best: int) -> str:
    """What would work: the next larger alpha that was tried and does, and the least size that was reached."""
    ways = [f"set data.min_samples = {best}"] if best else []
    larger = alpha
    while larger < 1e6:
        larger = float(f"{2 * larger:.2g}")
        if _attempts(labels, workers, seed, larger, least)[0] is not None:
            ways.append(f"data.alpha = {larger:g}")
            break
    return " or ".join(ways) or f"set data.partition = 'iid' or use fewer than {workers} workers"


def _proportions(generator: np.random.Generator, alpha: float, workers: int) -> np.ndarray:
    return generator.dirichlet(np.full(workers, alpha))


def _cuts(count: int, proportions: np.ndarray) -> np.ndarray:
    """Where to cut `count` things into these proportions, each piece within one of its exact size."""
    return np.minimum(np.floor(np.cumsum(proportions)[:-1] * count + 0.5).astype(int), count)


def _of_sizes(size: int, proportions: np.ndarray, least: int, generator: np.random.Generator) -> Shards:
    """One permutation cut into shards of `least` samples and their proportion of the others."""
    workers = len(proportions)
    cuts = _cuts(size - workers * least, proportions) + least * np.arange(1, workers)
    return [np.sort(shard) for shard in np.split(generator.permutation(size), cuts)]
