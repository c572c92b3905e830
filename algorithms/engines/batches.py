"""Batches of n workers: tensors in tuples, lists and dicts, each with the worker dimension first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError


def of_leaves(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same batch with a function applied to its tensors."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {k: of_leaves(v, function) for k, v in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(of_leaves(v, function) for v in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(of_leaves(v, function) for v in batch)
    raise AlgorithmError(f"a batch is made of tensors in tuples, lists and dicts, got {type(batch).__name__}")


def rows_of(batch: Any, rows: int | slice) -> Any:
    """The batch of one worker, or of some."""
    return of_leaves(batch, lambda leaf: leaf[rows])


def check_batch(batch: Any, size: int) -> None:
    """Refuses a batch without a leading worker dimension of that size."""

    def look(leaf: Tensor) -> Tensor:
        if leaf.ndim == 0 or leaf.shape[0] != size:
            raise AlgorithmError(
                f"every tensor of a batch needs the worker dimension first, ({size}, ...), got {tuple(leaf.shape)}"
            )
        return leaf

    of_leaves(batch, look)


def micro_batches(batch: Any, count: int) -> Iterator[Any]:
    """Cuts the samples of every worker, the second dimension, into equal parts."""

    def part(leaf: Tensor, k: int) -> Tensor:
        samples = leaf.shape[1] if leaf.ndim > 1 else 0
        if samples == 0 or samples % count:
            raise AlgorithmError(
                f"a batch of {samples} samples per worker cannot be cut into {count} equal micro-batches: "
                "choose accumulate= so that it divides the batch"
            )
        each = samples // count
        return leaf[:, k * each : (k + 1) * each]

    for k in range(count):
        yield of_leaves(batch, lambda leaf, k=k: part(leaf, k))
