"""Kept autograd graphs: passing vectors and blocks back through them, and what they hold in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Pullback:
    """Rows v -> rows v^T dy/dx through a kept graph; x may be several tensors, whose rows are then joined flat."""

    def __init__(self, y: Tensor, x: Tensor | Sequence[Tensor]) -> None:
        self._y, self._x = y, [x] if isinstance(x, Tensor) else list(x)
        self._together = True

    def __call__(self, block: Tensor) -> Tensor:
        """The block (k, len y) pulled back to (k, len x): in one batched pass where the graph allows it."""
        rows = [piece.reshape(len(block), -1) for piece in self.apart(block)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)

    def apart(self, block: Tensor) -> list[Tensor]:
        """The same for every x on its own, each (k, ...) in its shape."""
        if self._together and len(block) > 1:
            try:
                return [piece.detach() for piece in self._back(block, batched=True)]
            except RuntimeError:  # a backward that cannot be batched
                self._together = False
        single = [self._back(v, batched=False) for v in block]
        return [torch.stack([piece.detach() for piece in pieces]) for pieces in zip(*single, strict=True)]

    def _back(self, v: Tensor, *, batched: bool) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            self._y, self._x, v, retain_graph=True, is_grads_batched=batched, allow_unused=True, materialize_grads=True
        )


def nodes_behind(*ends: Tensor) -> list[Any]:
    """All nodes of the graphs behind some tensors."""
    seen, open_ends = set(), [end.grad_fn for end in ends]
    while open_ends:
        node = open_ends.pop()
        if node is not None and node not in seen:
            seen.add(node)
            open_ends += [parent for parent, _ in node.next_functions]
    return list(seen)


def saved_bytes(*ends: Tensor) -> int:
    """The bytes of the tensors that the graphs behind some tensors keep, every storage once."""
    storages = {}
    for node in nodes_behind(*ends):
        for name in dir(node):
            kept = getattr(node, name) if name.startswith("_saved_") or name == "saved_tensors" else None
            for t in kept if isinstance(kept, (list, tuple)) else [kept]:
                if isinstance(t, Tensor) and t.layout is torch.strided:
                    storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
    return sum(storages.values())
