"""What an optimizer counts in its param groups, where it moves the parameters of a group in several parts.

An optimizer that counts its steps in the group itself would count every part. So what the first part of a step has
written there is put back before every other part, which must write the same: a count of steps does, a sum over all
parameters does not, and is refused. The optimizers of torch count by parameter and are not watched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

import torch
from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError

_NOTHING = object()
Entries = dict[str, Any]


class _Before:
    """The entries of a group as they were."""

    def __init__(self, group: Entries) -> None:
        self._group, self._entries = group, dict(group)
        self._tensors = {k: (v._version, v.clone()) for k, v in group.items() if isinstance(v, Tensor)}

    def written(self) -> Iterator[tuple[str, Any, Any]]:
        """What has been written since: key, value before, value now."""
        group, entries = self._group, self._entries
        untouched = len(group) == len(entries) and all(map(is_, group.values(), entries.values()))
        if untouched and all(group[key]._version == version for key, (version, _) in self._tensors.items()):
            return
        for key in {**entries, **group}:
            before = self._tensors[key][1] if key in self._tensors else entries.get(key, _NOTHING)
            now = group.get(key, _NOTHING)
            if not _same(before, now):
                yield key, before, now


class Counts:
    """The entries of the param groups that the parts of a step write to."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self._inner = inner
        self.watches = not type(inner).__module__.startswith("torch.optim.")
        self._moved: set[int] = set()
        """The parts that have been moved in this step."""
        self._groups: set[int] = set()
        """The groups that were among them."""
        self._written: dict[int, dict[str, tuple[Any, Any]]] = {}
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
        groups = self._inner.param_groups
        for group in groups if self._written else ():
            self._put_back(group)
        before = [_Before(group) for group in groups]
        yield
        for group, entries in zip(groups, before, strict=True):
            self._compare(group, {key: (old, now) for key, old, now in entries.written()}, parts)
        self._moved.add(k)

    def _put_back(self, group: Entries) -> None:
        for key, (before, after) in self._written.get(id(group), {}).items():
            if not _same(group.get(key, _NOTHING), after):
                continue  # the loop has written to it since
            if before is _NOTHING:
                del group[key]
            else:
                group[key] = _kept(before)

    def _compare(self, group: Entries, written: dict[str, tuple[Any, Any]], parts: int) -> None:
        """The first part of a group says what a step writes, every other must agree."""
        if id(group) not in self._groups:
            self._groups.add(id(group))
            if written:
                self._written[id(group)] = {key: (old, _kept(now)) for key, (old, now) in written.items()}
            return
        first = self._written.get(id(group), {})
        for key in {**first, **written}:
            if key not in first or not _same(first[key][1], group.get(key, _NOTHING)):
                raise AlgorithmError(
                    f"optimizer {type(self._inner).__name__} computes {key!r} of a group from its parameters, but they "
                    f"are moved in {parts} parts (several dtypes, layers that came later, or fused=True); give "
                    "them one dtype, with fused=False, or use another optimizer"
                )


def _kept(value: Any) -> Any:
    """The value as it is now: a tensor may be written to."""
    return value.clone() if isinstance(value, Tensor) else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a is b or (type(a) is type(b) and bool(a == b))
