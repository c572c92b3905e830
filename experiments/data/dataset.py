"""A data set as a value: training and test tensors that know their own fingerprint and what is asked of a model."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dissensus.experiments.data.task import Task
from dissensus.experiments.registry import Registry


@dataclass(frozen=True, eq=False)
class DataSet:
    """Inputs and targets, split into training and test."""

    name: str
    train_x: Tensor
    train_y: Tensor
    """Labels (N,), or the next characters (N, L)."""
    test_x: Tensor
    test_y: Tensor
    classes: int
    """How many different answers there are: classes, or characters of the alphabet."""
    task: Task = field(default_factory=Task)
    """Which loss and which score it needs."""
    groups: Tensor | None = None
    """Where each training sample comes from, (N,): what partitioners tell apart instead of labels."""
    black: tuple[float, ...] = ()
    """The value of an empty pixel, per channel, after normalisation: what augmentation pads images with."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """What is known of it in closed form or by certificate, such as the least loss that can be reached."""
    optimum: Tensor | None = None
    """The certified optimum of model `linear` on all training samples as one vector, in float64."""

    @property
    def size(self) -> int:
        """The number of training samples."""
        return len(self.train_x)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_x.shape[1:])

    @property
    def labels(self) -> np.ndarray:
        """What partitioners tell apart: the groups if there are any, the labels of classes, or nothing (all alike)."""
        if self.groups is not None:
            return self.groups.numpy()
        return self.train_y.numpy() if self.train_y.ndim == 1 else np.zeros(self.size, dtype=np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every number in it."""
        digest = hashlib.sha256()
        groups = () if self.groups is None else (self.groups,)
        for part in (self.train_x, self.train_y, self.test_x, self.test_y, *groups):
            digest.update(str((part.dtype, tuple(part.shape))).encode())
            digest.update(part.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def to(self, dtype: torch.dtype) -> DataSet:
        """The same data with inputs of another floating type; characters stay whole numbers."""
        if not self.train_x.is_floating_point():
            return self
        return dataclasses.replace(self, train_x=self.train_x.to(dtype), test_x=self.test_x.to(dtype))


DATASETS = Registry[DataSet]("data set", folder="dissensus.experiments.data")


def dataset(name: str, parameters: Mapping[str, Any] | None = None) -> DataSet:
    """Builds a data set by name: `dataset("digits", {"test": 300})`."""
    return DATASETS.build(name, parameters or {})
