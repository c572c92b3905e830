r"""Where the numbers of n stacked workers lie: blocks that belong to parameters, and strips that fit into a cache.

A **block** is an (n, c) tensor: the rows are workers, the columns one large parameter, or all the small ones together
(all of them, where they fit into a cache together).
A parameter of all workers is therefore a view (n, *shape) of its block, and a gradient can be written where it stays.

A **strip** is a run of columns of one block. Nothing couples columns between a gradient and the next but `Norm`, so the
engine runs the recursion strip by strip: what mixing leaves is still in the cache when the move reads it, and a step
moves little more through the memory than the optimizer alone would. An algorithm that couples columns
(`columnwise = False`) gets one block and one strip with all columns in the model's order.

Where the workers are spread over processes a strip is a message. Few large ones travel better than many small ones, so
the parameters then lie side by side in one block (per group of the optimizer), and strips are cut across them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from dissensus.algorithms.engines.columns import Columns

OWN_BLOCK = 1 << 14
"""From so many numbers on a parameter has a block of its own."""
STRIP = 1 << 19
"""Numbers in one of many strips over all workers: few enough for the cache of a CPU, enough to hide the calls."""
TOGETHER = 1 << 20
"""So few numbers of all workers are one block and one strip: they fit into the cache, and a move is one call. Where
workers are spread, a strip may have so many."""
MESSAGE = 1 << 17
"""A strip that travels has at least so many columns."""

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """A parameter in a block."""

    name: str
    shape: torch.Size
    lo: int
    """Its first column in the block."""
    column: int
    """Its first column among all columns of the model."""

    @property
    def count(self) -> int:
        """How many columns it has."""
        return prod(self.shape)


@dataclass(frozen=True)
class Block:
    """Parameters side by side."""

    parts: tuple[Part, ...]

    @property
    def width(self) -> int:
        """How many columns they have together."""
        return sum(part.count for part in self.parts)


@dataclass(frozen=True)
class Strip:
    """A run of columns of one block."""

    block: int
    columns: slice
    pieces: tuple[tuple[slice, int], ...]
    """Columns of the strip with the same options of the optimizer, and the group these belong to."""

    @property
    def width(self) -> int:
        """How many columns it has."""
        return self.columns.stop - self.columns.start


@dataclass(frozen=True)
class Layout:
    """Blocks and strips of a model's columns for n workers."""

    size: int
    """The number of rows: of the workers in this process."""
    columns: Columns
    blocks: tuple[Block, ...]
    strips: tuple[Strip, ...]
    options: tuple[Options, ...]
    """The options of every group of the optimizer."""

    @classmethod
    def of(
        cls, size: int, columns: Columns, options: Sequence[Options], *, columnwise: bool, travelling: bool = False
    ) -> Layout:
        """Lays out the columns; `options` are those of every parameter; `travelling` strips are messages."""
        groups: list[Options] = []
        of_part: list[int] = []
        for own in options:
            if own not in groups:
                groups.append(own)
            of_part.append(groups.index(own))
        together = travelling or size * columns.size <= TOGETHER
        own_block = columns.size + 1 if together else OWN_BLOCK
        chosen = _by_size(columns, of_part, own_block) if columnwise else [list(range(len(columns.names)))]
        starts = [sum(columns.counts[:i]) for i in range(len(columns.names))]
        blocks, strips = [], []
        for k, members in enumerate(chosen):
            parts, at = [], 0
            pieces: list[tuple[slice, int]] = []
            for i in members:
                parts.append(Part(columns.names[i], columns.shapes[i], at, starts[i]))
                end = at + columns.counts[i]
                if pieces and pieces[-1][1] == of_part[i]:
                    pieces[-1] = (slice(pieces[-1][0].start, end), of_part[i])
                else:
                    pieces.append((slice(at, end), of_part[i]))
                at = end
            blocks.append(Block(tuple(parts)))
            if columnwise:
                group = pieces[0][1]
                if travelling:
                    wide = max(MESSAGE, TOGETHER // size // 16 * 16)
                else:
                    wide = at if together else strip_width(size)
                cuts = spans(at, wide if columns.device.type == "cpu" else at, evenly=not travelling)
                strips += [Strip(k, span, ((slice(0, span.stop - span.start), group),)) for span in cuts]
            else:
                strips.append(Strip(k, slice(0, at), tuple(pieces)))
        return cls(size, columns, tuple(blocks), tuple(strips), tuple(groups))

    def empty(self) -> list[Tensor]:
        """New blocks."""
        kind = {"dtype": self.columns.dtype, "device": self.columns.device}
        return [torch.empty(self.size, block.width, **kind) for block in self.blocks]

    def views(self, blocks: Sequence[Tensor]) -> dict[str, Tensor]:
        """The parameters of all workers as views of the blocks: (n, *shape) by name, in the model's order."""
        found = {
            part.name: block[:, part.lo : part.lo + part.count].view((len(block), *part.shape))
            for block, held in zip(blocks, self.blocks, strict=True)
            for part in held.parts
        }
        return {name: found[name] for name in self.columns.names}

    def strip(self, blocks: Sequence[Tensor], k: int) -> Tensor:
        """Strip k as a view."""
        strip = self.strips[k]
        return blocks[strip.block][:, strip.columns]

    def scatter(self, value: Tensor, blocks: Sequence[Tensor]) -> None:
        """Copies an (n, d) or (d,) tensor in the model's order into the blocks."""
        for block, held in zip(blocks, self.blocks, strict=True):
            for part in held.parts:
                columns = value[..., part.column : part.column + part.count]
                block[:, part.lo : part.lo + part.count].copy_(columns)

    def gather(self, blocks: Sequence[Tensor]) -> Tensor:
        """The numbers of the blocks as a new (rows, d) tensor in the model's order."""
        rows = [v.reshape(len(v), -1) for v in self.views(blocks).values()]
        return rows[0].clone() if len(rows) == 1 else torch.cat(rows, dim=1)

    def cut(self, value: Tensor, dtype: torch.dtype | None = None) -> list[Tensor]:
        """An (n, d) tensor in the model's order, as a tensor of its own for every strip; in the parameters' dtype."""
        kind = {"dtype": dtype or self.columns.dtype, "device": self.columns.device}
        blocks = [torch.empty(self.size, block.width, **kind) for block in self.blocks]
        self.scatter(value, blocks)
        return [self.strip(blocks, k).clone() for k in range(len(self.strips))]

    def join(self, strips: Sequence[Tensor]) -> Tensor:
        """The opposite of `cut`."""
        first = strips[0]
        blocks = [torch.empty(len(first), b.width, dtype=first.dtype, device=first.device) for b in self.blocks]
        for k, value in enumerate(strips):
            self.strip(blocks, k).copy_(value)
        return self.gather(blocks)


def strip_width(size: int) -> int:
    """How many columns one of many strips has at most, where there are so many workers."""
    return max(16, STRIP // size // 16 * 16)


def spans(columns: int, wide: int, *, evenly: bool) -> list[slice]:
    """Strips of at most so many columns; equal ones if asked for, unless that would take more than twice as many.

    The rows of equal strips are the rows of one table, so that they can be mixed where they lie (`mixing`).
    """
    fewest = -(-columns // max(1, wide))
    for count in range(max(1, fewest), 2 * fewest + 1) if evenly else ():
        if columns % count == 0:
            wide = columns // count
            break
    return [slice(lo, min(lo + wide, columns)) for lo in range(0, columns, max(1, wide))]


def _by_size(columns: Columns, group: Sequence[int], own_block: int) -> list[list[int]]:
    """Large parameters alone; the small ones of a group of the optimizer together."""
    alone: list[list[int]] = []
    small: dict[int, list[int]] = {}
    for i, count in enumerate(columns.counts):
        if count >= own_block:
            alone.append([i])
        else:
            small.setdefault(group[i], []).append(i)
    return alone + list(small.values())
