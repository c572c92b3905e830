"""Jacobians of the model's outputs, sample by sample: by `vmap`, or one after another where the model refuses that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from dissensus.probes.errors import ProbeError
from dissensus.probes.landscape import Landscape
from dissensus.probes.split import Call
from dissensus.probes.untouched import reseed

APART = (
    "the samples of batch {index} cannot be taken apart for the exact trace ({why}): BatchNorm or dropout in training, "
    "or a model that looks at its whole batch; use mode='eval', or hessian_trace on the operator"
)

Rows = list[list[Tensor]]


class SampleJacobians:
    """The recorded calls of a model, made anew with one sample at a time; only some parameters vary."""

    def __init__(self, landscape: Landscape, calls: Sequence[Call], names: list[str], count: int, index: int) -> None:
        self._landscape, self._calls, self._names = landscape, calls, names
        self._count, self._index = count, index
        self._whole = landscape.split(landscape.point)
        self._bound = _Calls(landscape.model)
        self._leaves: list[list[Any]] = []
        self._inside: list[list[bool]] = []
        self._specs: list[Any] = []
        for call in calls:
            leaves, spec = tree_flatten((call.args, call.kwargs))
            leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            self._leaves.append(leaves)
            self._inside.append([isinstance(t, Tensor) and t.dim() > 0 and t.shape[0] == count for t in leaves])
            self._specs.append(spec)

    def pulled(self, vectors: Tensor, memory: int) -> Iterator[tuple[int, Tensor, list[Tensor]]]:
        """First sample of a chunk, its outputs (n, outputs), and vectors (k, samples, outputs) by J^T: (n, k, ...).

        Call it inside `scope()`. A chunk is as large as `memory` bytes of rows allow.
        """
        size = sum(self._landscape.shapes[name].numel() for name in self._names) * vectors.element_size()
        at_once = max(1, memory // max(1, len(vectors) * size))
        q = vectors.transpose(0, 1)
        for lo in range(0, self._count, at_once):
            hi = min(lo + at_once, self._count)
            rows = [
                [t[lo:hi] for t, inside in zip(leaves, at, strict=True) if inside]
                for leaves, at in zip(self._leaves, self._inside, strict=True)
            ]
            try:
                outputs, jacobians = self._chunk(q[lo:hi], rows)
            except Exception as failure:
                why = f"{type(failure).__name__}: {(str(failure).splitlines() or [''])[0]}"
                raise ProbeError(APART.format(index=self._index, why=why)) from failure
            yield lo, outputs.detach(), [jacobian.detach() for jacobian in jacobians]

    def _chunk(self, q: Tensor, rows: Rows) -> tuple[Tensor, list[Tensor]]:
        reseed(self._landscape.seed + self._index)
        try:
            return torch.vmap(self._sample, randomness="same")(q, rows)
        except RuntimeError:  # an operation that cannot be batched
            singles = [self._sample(q[n], [[t[n] for t in own] for own in rows]) for n in range(len(q))]
            jacobians = [torch.stack(list(parts)) for parts in zip(*(made for _, made in singles), strict=True)]
            return torch.stack([z for z, _ in singles]), jacobians

    def _sample(self, q: Tensor, rows: Rows) -> tuple[Tensor, list[Tensor]]:
        """The outputs of one sample, and (k, ...) rows through its transposed Jacobian."""
        chosen = [self._whole[name] for name in self._names]
        pulled: Any = torch.func.vjp(lambda pieces: self._alone(pieces, rows), chosen)
        outputs, back = pulled
        try:
            return outputs, torch.vmap(back)(q)[0]
        except RuntimeError:
            each = [back(v)[0] for v in q]
            return outputs, [torch.stack(list(parts)) for parts in zip(*each, strict=True)]

    def _alone(self, chosen: list[Tensor], rows: Rows) -> Tensor:
        pieces = {**self._whole, **dict(zip(self._names, chosen, strict=True))}
        flat = torch.cat([piece.reshape(-1) for piece in pieces.values()])
        made = []
        for leaves, inside, spec, own, call in zip(
            self._leaves, self._inside, self._specs, rows, self._calls, strict=True
        ):
            left = iter(own)
            filled = [next(left)[None] if mapped else leaf for leaf, mapped in zip(leaves, inside, strict=True)]
            found = tree_flatten(self._landscape.called(self._bound, flat, *tree_unflatten(filled, spec)))[0]
            made += [found[i].reshape(-1) for i in call.moving]
        return torch.cat(made)


class _Calls(nn.Module):
    """A module around the model that calls it, so that all tensors can be swapped at once."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.model(*args, **kwargs)
