"""What a study is made of, without running it: how many runs, how large a model, how many samples, and what is missing.

The model is built without memory (torch's `meta` device), so that a plan for a cluster can be checked on a laptop.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from dissensus.experiments.config import Study
from dissensus.experiments.data import dataset
from dissensus.experiments.errors import ConfigError, DataMissingError
from dissensus.experiments.models import MODELS

PUBLISHED: dict[str, tuple[tuple[int, ...], int, int]] = {
    "cifar-10": ((3, 32, 32), 10, 50_000),
    "cifar-100": ((3, 32, 32), 100, 50_000),
    "fashion-mnist": ((1, 28, 28), 10, 60_000),
    "digits": ((64,), 10, 1437),
}
"""Shape of an input, number of classes and of training samples of data that may not be on this machine."""
LETTERS = 128
"""Assumed size of the alphabet of a text that is not on this machine."""


@dataclass(frozen=True)
class Outline:
    """A study in numbers."""

    name: str
    runs: int
    model: str
    parameters: int
    """Of one worker's model."""
    data: str
    workers: int
    steps: int
    samples: int
    """That one run trains on, all workers and all steps together."""
    epochs: float | None
    """How often it sees each training sample; `None` where their number is not known here."""
    missing: str | None
    """What is missing on this machine, if anything is."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def outline(study: Study) -> Outline:
    """The first cell of a study in numbers; arms that change model or data differ in what they say themselves."""
    cell = study.cells()[0]
    shape, classes, size, missing = _about(cell)
    with torch.device("meta"):
        module = MODELS.build(cell.model.name, cell.model.parameters, shape, classes)
    train = cell.train
    a_step = train.workers * train.batch
    if size is not None and a_step > size:
        raise ConfigError(f"study {study.name!r}: a step takes {a_step} samples, but there are {size}")
    words = ", ".join(f"{key} {value}" for key, value in cell.model.parameters.items())
    return Outline(
        study.name,
        len(study.seeds) * len(study.arms),
        f"{cell.model.name} ({words})" if words else cell.model.name,
        sum(p.numel() for p in module.parameters() if p.requires_grad),
        cell.data.name,
        train.workers,
        train.steps,
        train.steps * a_step,
        None if size is None else train.steps * a_step / size,
        missing,
    )


def _about(cell: Study) -> tuple[tuple[int, ...], int, int | None, str | None]:
    """Shape of an input, number of classes, number of training samples, and what is missing."""
    name, parameters = cell.data.name, cell.data.parameters
    try:
        found = dataset(name, parameters)
    except DataMissingError as missing:
        if name in PUBLISHED:
            shape, classes, size = PUBLISHED[name]
            return shape, classes, parameters.get("train", size), str(missing)
        if name == "characters":
            return (parameters.get("context", 32),), LETTERS, None, str(missing)
        raise
    return found.shape, found.classes, found.size, None
