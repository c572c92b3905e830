"""What changes while the workers of a process train: their points, the algorithm's memory, their models' buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dissensus.algorithms.engines.columns import Columns
from dissensus.algorithms.engines.layout import Layout
from dissensus.algorithms.engines.participation import stayed
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm
from dissensus.algorithms.registry import reformed

KEPT_BYTES = 31 << 20
"""glibc hands freed memory back to the system until it has seen a block this large freed; pages that come and go with
every strip would cost more than the arithmetic on them."""


@dataclass(frozen=True)
class Held:
    """Blocks that stay where they are, with all the views of them that a step asks for."""

    blocks: list[Tensor]
    strips: list[Tensor]
    parameters: dict[str, Tensor]
    where: frozenset[int]
    """The addresses of their memory."""

    @classmethod
    def empty(cls, layout: Layout) -> Held:
        """New blocks."""
        blocks = layout.empty()
        strips = [layout.strip(blocks, k) for k in range(len(layout.strips))]
        where = frozenset(b.untyped_storage().data_ptr() for b in blocks)
        return cls(blocks, strips, layout.views(blocks), where)


class Workers:
    """The workers of a stacked engine. Points are blocks that are written in place, everything else is replaced."""

    def __init__(self, layout: Layout, algorithm: Algorithm, start: Tensor, buffers: Mapping[str, Tensor]) -> None:
        if layout.columns.device.type == "cpu":
            torch.empty(KEPT_BYTES, dtype=torch.uint8)
        self.layout, self.algorithm, self.size = layout, algorithm, layout.size
        self.points = Held.empty(layout)
        layout.scatter(start, self.points.blocks)
        self.states: list[Any] = [algorithm.init(self.point(k)) for k in self.strips]
        self.buffers = {name: b.expand(self.size, *b.shape).clone() for name, b in buffers.items()}
        self._gradients: list[Held] = []
        self._elsewhere: Held | None = None

    @property
    def strips(self) -> range:
        """The numbers of the strips."""
        return range(len(self.layout.strips))

    def point(self, k: int) -> Tensor:
        """Strip k of the points, as a view."""
        return self.points.strips[k]

    def gradients(self, evaluation: int) -> Held:
        """Room for the gradients of the first, second, ... evaluation of a step; the same ones at every step."""
        while len(self._gradients) <= evaluation:
            self._gradients.append(Held.empty(self.layout))
        return self._gradients[evaluation]

    def gathered(self, at: Sequence[Tensor]) -> Held:
        """The points at which a gradient is asked for, by strip, as blocks."""
        if all(value is own for value, own in zip(at, self.points.strips, strict=True)):
            return self.points
        if self._elsewhere is None:
            self._elsewhere = Held.empty(self.layout)
        for value, place in zip(at, self._elsewhere.strips, strict=True):
            place.copy_(value)
        return self._elsewhere

    def is_loose(self, x: Tensor) -> bool:
        """Whether a move may overwrite this: the algorithm does not read it again, and it is nobody's point."""
        if not getattr(self.algorithm, "in_place", False) or not x.is_contiguous():
            return False
        return x.untyped_storage().data_ptr() not in self._kept()

    def _kept(self) -> set[int]:
        """Where the points and the gradients lie: memory that is written anew at every step."""
        return {where for held in (self.points, *self._gradients) for where in held.where}

    def put(self, k: int, x: Tensor, state: Any) -> None:
        """The new points and memory of strip k. A memory that lies in what will be overwritten is copied out of it."""
        if state:
            overwritten = self._kept()
            kept = (v.clone() if v.untyped_storage().data_ptr() in overwritten else v for v in state)
            self.states[k] = type(state)(*kept)
        self.point(k).copy_(x)

    def reform(self, rows: Tensor) -> None:
        """These (a mask) go on among other workers than before: what they remember of the others starts anew."""
        for k in self.strips:
            point, before = self.point(k), self.states[k]
            x, state = reformed(self.algorithm, point, before)
            if state is not before:
                self.put(k, stayed(rows, point, x), stayed(rows, before, state))

    @property
    def deployed(self) -> Tensor:
        """What the workers would deploy, (n, d), as a new tensor."""
        return self.layout.join(
            [self.algorithm.deployed(self.point(k), state) for k, state in zip(self.strips, self.states, strict=True)]
        )

    def of_one(self, i: int) -> Tensor:
        """What worker i would deploy, (d,)."""
        row = slice(i, i + 1)
        states = [type(state)(*(v[row] for v in state)) for state in self.states]
        own = [self.algorithm.deployed(self.point(k)[row], state) for k, state in zip(self.strips, states, strict=True)]
        return self.layout.join(own)[0]

    @property
    def state(self) -> Any:
        """The algorithm's memory as one NamedTuple of tensors: (n, d), or whatever all strips share."""
        widths = [strip.width for strip in self.layout.strips]
        joined = []
        for parts in zip(*self.states, strict=True):
            columnwise = all(p.shape == (self.size, w) for p, w in zip(parts, widths, strict=True))
            joined.append(self.layout.join(parts) if columnwise else parts[0].detach().clone())
        return type(self.states[0])(*joined)

    def save(self) -> dict[str, Any]:
        """Everything, as copies that do not depend on how it is laid out."""
        return {
            "x": self.layout.gather(self.points.blocks),
            "state": dict(zip(self.states[0]._fields, self.state, strict=True)),
            "buffers": {name: b.clone() for name, b in self.buffers.items()},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Takes over what was saved."""
        d = self.layout.columns.size
        if saved["x"].shape != (self.size, d):
            raise AlgorithmError(
                f"the state has (workers, parameters) = {tuple(saved['x'].shape)}, expected {(self.size, d)}"
            )
        self.layout.scatter(saved["x"], self.points.blocks)
        fields = [
            self.layout.cut(v) if v.shape == (self.size, d) else [v.detach().clone() for _ in self.strips]
            for v in saved["state"].values()
        ]
        kind = type(self.states[0])
        self.states = [kind(**dict(zip(saved["state"], own, strict=True))) for own in zip(*fields, strict=True)]
        if not fields:
            self.states = [kind() for _ in self.strips]
        self.buffers = {name: b.detach().clone() for name, b in saved["buffers"].items()}

    def row(self, i: int) -> dict[str, Any]:
        """Everything of row i, by the names of the model, as copies: what a checkpoint holds of a worker."""
        points = self.layout.gather([block[i : i + 1] for block in self.points.blocks])[0]
        found: dict[str, Any] = {
            "parameters": self.layout.columns.unflatten(points),
            "buffers": {name: b[i].clone() for name, b in self.buffers.items()},
            "algorithm": {},
        }
        deployed = self.of_one(i)
        if not torch.equal(deployed, points):
            found["deployed"] = self.layout.columns.unflatten(deployed)
        widths = [strip.width for strip in self.layout.strips]
        for name, parts in zip(self.states[0]._fields, zip(*self.states, strict=True), strict=True):
            columnwise = all(p.shape == (self.size, w) for p, w in zip(parts, widths, strict=True))
            own = self.layout.join([p[i : i + 1] for p in parts])[0] if columnwise else parts[0][i].clone()
            found["algorithm"][name] = own.detach()
        return found

    def load_rows(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Takes over what was saved of every row; a memory of the algorithm that is not in it starts anew."""
        columns = self.layout.columns
        points = torch.stack([_flat(columns, own["parameters"]) for own in saved])
        self.layout.scatter(points, self.points.blocks)
        fresh = self.algorithm.init(points)._asdict()
        for name, value in fresh.items():
            rows = [own.get("algorithm", {}).get(name) for own in saved]
            if all(isinstance(row, Tensor) and row.shape == value.shape[1:] for row in rows):
                fresh[name] = torch.stack(rows).to(value.device)
        buffers = {
            name: torch.stack([own["buffers"][name].to(b.device) for own in saved])
            for name, b in self.buffers.items()
            if all(name in own.get("buffers", {}) for own in saved)
        }
        self.load({"x": points, "state": fresh, "buffers": {**self.buffers, **buffers}})


def _flat(columns: Columns, parameters: Mapping[str, Tensor]) -> Tensor:
    """The trained ones of these parameters as a vector."""
    for name, shape in zip(columns.names, columns.shapes, strict=True):
        if name not in parameters or parameters[name].shape != shape:
            got = f"has shape {tuple(parameters[name].shape)}" if name in parameters else "is not in it"
            raise AlgorithmError(f"the state is not of this model: parameter {name!r} {got}, expected {tuple(shape)}")
    found = torch.cat([parameters[name].detach().reshape(-1) for name in columns.names])
    return found.to(columns.device, columns.dtype)
