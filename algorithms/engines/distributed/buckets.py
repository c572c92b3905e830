"""The parameters of a model as a few flat tensors: the parameters are views of them, so a message needs no packing.

A bucket is one row of numbers, (1, d), of one dtype on one device. Each parameter keeps its shape, its strides
(channels_last, transposed) and its place in the optimizer; only where its numbers lie changes. Parameters of different
dtypes lie in different buckets and are never cast.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from operator import attrgetter

import torch
from torch import Tensor, nn

from dissensus.algorithms.errors import AlgorithmError

_VERSION = attrgetter("_version")


@dataclass(frozen=True)
class Place:
    """Where a parameter lies in its bucket."""

    name: str
    parameter: nn.Parameter
    lo: int
    stride: tuple[int, ...]

    def view(self, row: Tensor) -> Tensor:
        """The part of a row (1, d) that belongs to the parameter, in its shape and strides."""
        return row.as_strided(self.parameter.shape, self.stride, row.storage_offset() + self.lo)


@dataclass(frozen=True, eq=False)
class Bucket:
    """Parameters that lie side by side."""

    flat: Tensor
    """(1, d): their numbers."""
    places: tuple[Place, ...]

    @classmethod
    def of(cls, named: Sequence[tuple[str, nn.Parameter]]) -> Bucket:
        """Moves the parameters, all of one dtype and device, into a new bucket."""
        first = named[0][1]
        flat = torch.empty(1, sum(p.numel() for _, p in named), dtype=first.dtype, device=first.device)
        places, lo = [], 0
        for name, p in named:
            places.append(Place(name, p, lo, _dense_stride(p)))
            lo += p.numel()
        with torch.no_grad():
            for place in places:
                here = place.view(flat)
                here.copy_(place.parameter)
                place.parameter.data = here
        return cls(flat, tuple(places))

    def only(self, members: Collection[int]) -> Bucket | None:
        """A bucket of those parameters alone, by identity; the others get memory of their own."""
        staying = [place for place in self.places if id(place.parameter) in members]
        if len(staying) == len(self.places):
            return self
        for place in self.places:
            if id(place.parameter) not in members:
                place.parameter.data = place.parameter.detach().clone()
        return Bucket.of([(place.name, place.parameter) for place in staying]) if staying else None

    def carried(self, row: Tensor, to: Bucket) -> Tensor:
        """The part of a row that belongs to the parameters of another bucket; what has no columns of theirs, as it is.

        All of them must be in this bucket.
        """
        if row.shape != self.flat.shape:
            return row
        here = {id(place.parameter): place for place in self.places}
        found = row.new_empty(to.flat.shape)
        for place in to.places:
            place.view(found).copy_(here[id(place.parameter)].view(row))
        return found

    @cached_property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The parameters in their order."""
        return tuple(place.parameter for place in self.places)

    @cached_property
    def _addresses(self) -> list[int]:
        """Where the parameters lie."""
        at, item = self.flat.data_ptr(), self.flat.element_size()
        return [at + place.lo * item if place.parameter.numel() else 0 for place in self.places]

    def check(self) -> None:
        """Refuses to go on when a parameter lies elsewhere by now."""
        found = [p.data_ptr() for p in self.parameters]
        if found == self._addresses:
            return
        for place, at, due in zip(self.places, found, self._addresses, strict=True):
            if at != due and place.parameter.numel():
                raise AlgorithmError(
                    f"parameter {place.name!r} was moved or replaced after decentralize() had laid out the model "
                    "(model.to(), model.half(), p.data = ...); do that first"
                )

    def split(self, row: Tensor) -> list[Tensor]:
        """A row (1, d) as views in the shapes of the parameters."""
        return [place.view(row) for place in self.places]

    @property
    def version(self) -> int:
        """Grows with every change of a parameter that autograd can see."""
        return sum(map(_VERSION, self.parameters))

    def gradient(self) -> Tensor:
        """The gradients of the parameters as a new row; zero where there is none."""
        row = torch.empty_like(self.flat)
        self.gather_gradient(row)
        return row

    def gather_gradient(self, row: Tensor, *, void: bool = False) -> None:
        """Copies the gradients into the first columns of a row, zeros where there are none or they are void."""
        for place in self.places:
            into, grad = place.view(row), place.parameter.grad
            if grad is None or void:
                into.zero_()
            else:
                into.copy_(grad)


SHORT = 16
"""A part of this size of a bucket is too short to be one."""


def buckets_of(named: Sequence[tuple[str, nn.Parameter]], limit_bytes: int | None = None) -> list[Bucket]:
    """Lays parameters out: one bucket per dtype and device, or more, in this order, of about `limit_bytes` each.

    What is very short has no bucket of its own: a bias goes with the weights that come next, however large these are.
    """
    gathered: dict[tuple[torch.dtype, torch.device], list[list[tuple[str, nn.Parameter]]]] = {}
    for name, p in named:
        if p.layout != torch.strided:
            raise AlgorithmError(f"parameter {name!r} is {p.layout}: only dense parameters can be exchanged")
        lists = gathered.setdefault((p.dtype, p.device), [[]])
        filled = sum(q.numel() * q.element_size() for _, q in lists[-1])
        large = filled + p.numel() * p.element_size()
        if limit_bytes is not None and large > limit_bytes and filled > limit_bytes // SHORT:
            lists.append([])
        lists[-1].append((name, p))
    order = {id(p): i for i, (_, p) in enumerate(named)}
    chosen = [members for lists in gathered.values() for members in lists]
    chosen.sort(key=lambda members: order[id(members[-1][1])])
    return [Bucket.of(members) for members in chosen]


def _dense_stride(p: Tensor) -> tuple[int, ...]:
    """The strides of the parameter where it fills its memory without gaps, otherwise contiguous ones."""
    expected = 1
    for size, stride in sorted(zip(p.shape, p.stride(), strict=True), key=lambda pair: (pair[1], pair[0])):
        if size == 1:
            continue
        if stride != expected:
            return tuple(prod(p.shape[i + 1 :]) for i in range(p.ndim))
        expected *= size
    return tuple(p.stride())
