"""The data of a probe: a list of batches, or a loader that gives the same ones in every pass, stored or streamed.

A probe looks at the same samples many times. So a loader is read twice when it is handed over, and every batch of the
second pass must have the bits of the first: one that shuffles or augments is named, with the batch that differs.
Loaders whose batches fit into the memory that is allowed are stored, others are read anew in every pass.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from dissensus.probes.errors import ProbeError

Batches = Iterable[Any]
"""A sequence of batches, or anything that can be iterated over again and again, such as a DataLoader."""

STORED_BELOW = 1 << 30
"""Bytes of data up to which a loader's batches are stored."""


class Stream(Sequence[Any]):
    """The batches of a loader by their number, read anew in every pass; cheap in ascending order."""

    def __init__(self, loader: Batches, length: int, convert: Callable[[Any], Any]) -> None:
        self._loader, self._length, self._convert = loader, length, convert
        self._next, self._held, self._at = iter(()), None, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._length:
            raise IndexError(index)
        if index < self._at:
            with _SameGenerators(self._loader):
                self._next, self._at = iter(self._loader), -1
        elif index == self._at and self._held is not None:
            return self._held
        while self._at < index:
            self._held = next(self._next, None)
            self._at += 1
            if self._held is None:
                raise ProbeError(f"batches had {self._length} batches when first read, and now ends before {index}")
        self._held = self._convert(self._held)
        return self._held


def admitted(batches: Batches, dtype: torch.dtype | None, stored_below: int = STORED_BELOW) -> Sequence[Any]:
    """The batches by their number, floating-point tensors in `dtype`. Call it where random states are put back."""
    if isinstance(batches, (Tensor, dict, str)) or (
        isinstance(batches, tuple) and all(isinstance(b, Tensor) for b in batches)
    ):
        raise ProbeError(f"batches must be a list of batches, got one {type(batches).__name__}; write [batch]")
    if not isinstance(batches, Iterable):
        raise ProbeError(f"batches must be a list of batches or a loader, got {type(batches).__name__}")
    if isinstance(batches, Iterator):
        raise ProbeError(
            f"batches is a {type(batches).__name__}, which can be read only once; give list(batches), or what it reads"
        )
    if isinstance(batches, (list, tuple)):
        found: Sequence[Any] = [_cast(batch, dtype) for batch in batches]
    else:
        with _SameGenerators(batches):
            found = _read(batches, dtype, stored_below)
    if not len(found):
        raise ProbeError("batches is empty; give at least one batch")
    return found


def samples(index: int, batch: Any) -> int:
    """The number of samples of a batch: the first dimension of all its tensors."""
    sizes = {leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0}
    if len(sizes) != 1:
        found = f"its tensors begin with {sorted(sizes)}" if sizes else "it holds no tensor with a first dimension"
        raise ProbeError(f"the number of samples of batch {index} is unclear: {found}; give weights=[...] per batch")
    return sizes.pop()


def leading(batch: Any) -> int:
    """The longest first dimension in a batch."""
    return max((t.shape[0] for t in tree_leaves(batch) if isinstance(t, Tensor) and t.dim() > 0), default=1)


def shares(batches: Sequence[Any], weights: Sequence[float] | None) -> list[float]:
    """The weight of every batch: its number of samples, or what is given; they sum to one."""
    given = [float(samples(i, batches[i])) for i in range(len(batches))] if weights is None else [*map(float, weights)]
    if len(given) != len(batches):
        raise ProbeError(f"weights has {len(given)} entries for {len(batches)} batches; give one per batch")
    for index, weight in enumerate(given):
        if not 0 < weight < float("inf"):
            raise ProbeError(f"the weight of batch {index} is {weight}; weights are positive numbers (of samples)")
    return [weight / sum(given) for weight in given]


def cast(leaf: Any, dtype: torch.dtype | None) -> Any:
    """A floating-point tensor in the dtype; anything else as it is."""
    return leaf.to(dtype) if dtype is not None and isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _cast(batch: Any, dtype: torch.dtype | None) -> Any:
    return batch if dtype is None else tree_map(lambda leaf: cast(leaf, dtype), batch)


def _read(loader: Batches, dtype: torch.dtype | None, stored_below: int) -> Sequence[Any]:
    """Both passes."""
    prints: list[int] = []
    kept: list[Any] | None = []
    held = 0
    for batch in loader:
        prints.append(_fingerprint(batch))
        held += sum(t.numel() * t.element_size() for t in tree_leaves(batch) if isinstance(t, Tensor))
        kept = [*kept, batch] if kept is not None and held <= stored_below else None
    again = 0
    for index, batch in enumerate(loader):
        again += 1
        if index >= len(prints) or _fingerprint(batch) != prints[index]:
            what = "it shuffles or augments" if index < len(prints) else "it is longer the second time"
            raise ProbeError(
                f"batches gave another batch {index} in a second pass: {what}; use shuffle=False and no random "
                "augmentation, or list(loader) to look at one drawing of it"
            )
    if again < len(prints):
        raise ProbeError(
            f"batches gave {len(prints)} batches and then {again}: it can be read only once; give list(loader)"
        )
    if kept is not None:
        return [_cast(batch, dtype) for batch in kept]
    return Stream(loader, len(prints), lambda batch: _cast(batch, dtype))


def _fingerprint(batch: Any) -> int:
    """A checksum of shapes and bits of the tensors of a batch, and of what else can be printed."""
    code = 0
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor):
            code = zlib.crc32(f"{tuple(leaf.shape)} {leaf.dtype}".encode(), code)
            raw = leaf.detach().cpu().contiguous().reshape(-1)
            code = zlib.crc32(raw.view(torch.uint8).numpy().data, code) if raw.numel() else code
        elif isinstance(leaf, (int, float, str, bytes, bool)):
            code = zlib.crc32(repr(leaf).encode(), code)
    return code


class _SameGenerators:
    """Puts back the random generators a loader carries: reading it draws from them even where it does not shuffle."""

    def __init__(self, loader: Any) -> None:
        owners = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
        owners.append(getattr(owners[2], "sampler", None))
        found = [getattr(owner, "generator", None) for owner in owners]
        self._states = [(g, g.get_state()) for g in found if isinstance(g, torch.Generator)]

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        for generator, state in self._states:
            generator.set_state(state)
