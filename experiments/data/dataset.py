"""A data set as a value: training and test tensors that know their own fingerprint."""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from dissensus.experiments.registry import Registry


class _DataSets(Registry["DataSet"]):
    """Data sets by name; a file in this folder with a registered builder is found by itself."""

    def builder(self, name: str) -> Any:
        _discover()
        return super().builder(name)

    def names(self) -> list[str]:
        _discover()
        return super().names()


DATASETS = _DataSets("data set")


@cache
def _discover() -> None:
    package = importlib.import_module("dissensus.experiments.data")
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"dissensus.experiments.data.{module}")


@dataclass(frozen=True, eq=False)
class DataSet:
    """Inputs and integer labels, split into training and test."""

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int

    @property
    def size(self) -> int:
        """The number of training samples."""
        return len(self.train_x)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_x.shape[1:])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every number in it."""
        digest = hashlib.sha256()
        for part in (self.train_x, self.train_y, self.test_x, self.test_y):
            digest.update(str((part.dtype, tuple(part.shape))).encode())
            digest.update(part.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def to(self, dtype: torch.dtype) -> DataSet:
        """The same data with inputs of another floating type."""
        return DataSet(
            self.name, self.train_x.to(dtype), self.train_y, self.test_x.to(dtype), self.test_y, self.classes
        )


def dataset(name: str, parameters: Mapping[str, Any] | None = None) -> DataSet:
    """Builds a data set by name: `dataset("digits", {"test": 300})`."""
    return DATASETS.build(name, parameters or {})
