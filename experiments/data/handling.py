"""The section [data] of a study holds the parameters of three things: data set, partition, augmentation.

This checks what a partition and an augmentation are given, and tells whom a key belongs to that nobody here takes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Protocol

from dissensus.experiments.data.augmentation import AUGMENTATIONS
from dissensus.experiments.data.dataset import DATASETS
from dissensus.experiments.data.partition import PARTITIONS
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.registry import Registry


class Handling(Protocol):
    """What is asked of the section."""

    name: str
    partition: str
    augment: str | None

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the data set."""
        ...

    @property
    def partition_parameters(self) -> dict[str, Any]:
        """The parameters of the partition."""
        ...

    @property
    def augment_parameters(self) -> dict[str, Any]:
        """The parameters of the augmentation."""
        ...


def check_handling(data: Handling) -> None:
    """Refuses an unknown partition or augmentation, a wrong parameter of theirs, and a key that is nobody's."""
    PARTITIONS.builder(data.partition)
    if data.augment is not None:
        AUGMENTATIONS.builder(data.augment)
    taken = list(PARTITIONS.parameters(data.partition))
    taken += AUGMENTATIONS.parameters(data.augment) if data.augment is not None else []
    if data.name.replace("_", "-") in DATASETS.names():
        own = list(DATASETS.parameters(data.name))
        for key in data.parameters:
            if key not in own:
                _explain(key, [*taken, *own], data)
    PARTITIONS.check(data.partition, data.partition_parameters)
    if data.augment is not None:
        AUGMENTATIONS.check(data.augment, data.augment_parameters)


def _explain(key: str, known: Iterable[str], data: Handling) -> None:
    """Says whose key it is, or which it is near to; what is near to a key of the data set, the data set says itself."""
    for registry, chosen, setting in (
        (PARTITIONS, data.partition, "partition"),
        (AUGMENTATIONS, data.augment, "augment"),
    ):
        homes = _homes(registry, key)
        if homes:
            now = f"data.{setting} is {chosen!r}" if chosen is not None else f"there is no data.{setting}"
            raise ConfigError(f"parameter {key!r} belongs to {registry.kind} {' or '.join(homes)}, but {now}")
    close = difflib.get_close_matches(key, known, n=1)
    if close and close[0] not in DATASETS.parameters(data.name):
        raise ConfigError(f"there is no parameter {key!r}; did you mean {close[0]!r}?")


def _homes(registry: Registry[Any], key: str) -> list[str]:
    return [repr(name) for name in registry.names() if key in registry.parameters(name)]
