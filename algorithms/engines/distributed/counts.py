"""What an optimizer counts in its param groups, where it moves the parameters of a group in several parts.

An optimizer that counts its steps in the group itself would count every part. So what the first part of a step has
written there is put back before every other part, which must write the same: a count of steps does, a sum over all
parameters does not, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError

_NONE = object()


class _Entry(NamedTuple):
    """An entry of a group as it was at some time."""

    value: Any
    version: int = 0
    copy: Tensor | None = None
    """Of a tensor, which may have been written to since."""

    def is_now(self, value: Any) -> bool:
        """Whether the entry is the same now."""
        if isinstance(value, Tensor) and self.copy is not None:
            return (value is self.value and value._version == self.version) or torch.equal(value, self.copy)
        return value is self.value or (type(value) is type(self.value) and bool(value == self.value))


def _entry(value: Any) -> _Entry:
    return _Entry(value, value._version, value.clone()) if isinstance(value, Tensor) else _Entry(value)


class Counts:
    """The entries of the param groups that the parts of a step write to."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self._inner = inner
        self._moved: set[int] = set()
        """The parts that have been moved in this step."""
        self._groups: set[int] = set()
        """The groups that were among them."""
        self._written: dict[tuple[int, str], tuple[_Entry, _Entry]] = {}
        """By group and key: what stood there before the first part of the group, and after it."""

    def forget(self) -> None:
        """The next part is the first of a step."""
        self._moved.clear()
        self._groups.clear()
        self._written.clear()

    @contextmanager
    def one_of(self, k: int, parts: int) -> Iterator[None]:
        """Around the move of part k."""
        if k in self._moved:
            self.forget()
        groups = list(self._inner.param_groups)
        for group in groups:
            self._put_back(group)
        before = [{key: _entry(value) for key, value in group.items() if key != "params"} for group in groups]
        yield
        for group, entries in zip(groups, before, strict=True):
            self._compare(group, entries, parts)
        self._moved.add(k)
        self._groups |= {id(group) for group in groups}

    def _put_back(self, group: dict[str, Any]) -> None:
        for (own, key), (before, after) in self._written.items():
            if own != id(group) or not after.is_now(group.get(key, _NONE)):
                continue
            if before.value is _NONE:
                del group[key]
            else:
                group[key] = before.value if before.copy is None else before.copy.clone()

    def _compare(self, group: dict[str, Any], entries: dict[str, _Entry], parts: int) -> None:
        for key in {**entries, **group}:
            before, now = entries.get(key, _Entry(_NONE)), group.get(key, _NONE)
            written = self._written.get((id(group), key))
            if key == "params" or (before.is_now(now) if written is None else written[1].is_now(now)):
                continue
            if id(group) in self._groups:
                raise AlgorithmError(
                    f"optimizer {type(self._inner).__name__} computes {key!r} of a group from its parameters, but they "
                    f"are moved in {parts} parts (several dtypes, layers that came later, or fused=True); give "
                    "them one dtype, with fused=False, or use another optimizer"
                )
            self._written[id(group), key] = before, _entry(now)
