"""Rules for what layers are made of: matrix products, convolutions, pooling, normalisation (see `tangents`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dissensus.probes.program import Push, Recorded
from dissensus.probes.tangents import forward_mode, register

aten = torch.ops.aten


def _left(d: Tensor, b: Tensor) -> Tensor:
    """A block (k, n, m) times one matrix (m, p): a single product where the block lies in one piece."""
    if d.is_contiguous():
        return (d.reshape(-1, d.shape[2]) @ b).view(len(d), d.shape[1], b.shape[1])
    return torch.bmm(d, b.expand(len(d), *b.shape))


def _right(a: Tensor, d: Tensor) -> Tensor:
    """One matrix (n, m) times a block (k, m, p)."""
    return torch.bmm(a.expand(len(d), *a.shape), d)


def _product(a: Tensor, b: Tensor, da: Tensor | None, db: Tensor | None) -> Tensor | None:
    if da is None:
        return None if db is None else _right(a, db)
    if db is None:
        return _left(da, b)
    return _left(da, b).baddbmm_(a.expand(len(db), *a.shape), db)


@register(aten.mm.default)
def _mm(operation: Recorded) -> Push:
    a, b = operation.args
    return lambda d: _product(a, b, d[0], d[1])


@register(aten.addmm.default)
def _addmm(operation: Recorded) -> Push:
    bias, a, b = operation.args
    if operation.kwargs:
        return forward_mode(operation)
    dims = bias.dim()

    def push(d: Any) -> Any:
        offset = None if d[0] is None else (d[0][:, None, :] if dims == 1 else d[0])
        if d[1] is None and d[2] is not None and offset is not None:
            return torch.baddbmm(offset, a.expand(len(d[2]), *a.shape), d[2])
        total = _product(a, b, d[1], d[2])
        if offset is None:
            return total
        return offset.expand(-1, *operation.made.shape) if total is None else total.add_(offset)

    return push


@register(aten.bmm.default)
def _bmm(operation: Recorded) -> Push:
    a, b = operation.args
    n, p = operation.made.shape[1:]

    def push(d: Any) -> Any:
        k = len(d[0] if d[0] is not None else d[1])
        total = None
        if d[0] is not None:
            total = torch.bmm(d[0].reshape(-1, *a.shape[1:]), _repeated(b, k))
        if d[1] is not None:
            other = d[1].reshape(-1, *b.shape[1:])
            total = torch.bmm(_repeated(a, k), other) if total is None else total.baddbmm_(_repeated(a, k), other)
        return total.view(k, -1, n, p)  # type: ignore[union-attr]

    return push


def _repeated(a: Tensor, k: int) -> Tensor:
    return a.expand(k, *a.shape).reshape(-1, *a.shape[1:])


def _folded(d: Tensor) -> Tensor:
    """Vectors and samples as one dimension."""
    return d.reshape(-1, *d.shape[2:])


@register(aten.convolution.default)
def _convolution(operation: Recorded) -> Push:
    x, w, _, stride, padding, dilation, transposed, _, groups = operation.args
    if transposed or groups != 1:
        return forward_mode(operation)
    options = (stride, padding, dilation, False, [0] * len(stride), 1)
    shape = operation.made.shape

    def push(d: Any) -> Any:
        total = None
        if d[0] is not None:
            total = aten.convolution(_folded(d[0]), w, None, *options).view(-1, *shape)
        if d[1] is not None:  # all filters side by side
            k = len(d[1])
            made = aten.convolution(x, _folded(d[1]), None, *options)
            made = made.view(shape[0], k, *shape[1:]).transpose(0, 1)
            total = made if total is None else total.add_(made)
        if d[2] is not None:
            bias = d[2].reshape(len(d[2]), 1, -1, *[1] * (len(shape) - 2))
            total = bias.expand(-1, *shape) if total is None else total + bias
        return total

    return push


@register(aten.convolution_backward.default)
def _convolution_backward(operation: Recorded) -> Push:
    g, x, w, sizes, stride, padding, dilation, transposed, _, groups, mask = operation.args
    if transposed or groups != 1:
        return forward_mode(operation)
    options = (stride, padding, dilation, False, [0] * len(stride), 1)

    def to_input(slope: Tensor, read: Tensor, weight: Tensor) -> Tensor:
        return aten.convolution_backward(slope, read, weight, None, *options, [True, False, False])[0]

    def to_weight(slope: Tensor, read: Tensor, weight: Tensor) -> Tensor:
        return aten.convolution_backward(slope, read, weight, None, *options, [False, True, False])[1]

    def push(d: Any) -> Any:
        dg, dx, dw = d[:3]
        k = len(next(t for t in (dg, dx, dw) if t is not None))
        by_input = by_weight = by_bias = None
        if mask[0] and dg is not None:
            by_input = to_input(_folded(dg), x.new_empty(()).expand(k * len(x), *x.shape[1:]), w).view(k, *x.shape)
        if mask[0] and dw is not None:  # all filters side by side, as channels that were read
            wide = dw.transpose(0, 1).reshape(w.shape[0], -1, *w.shape[2:])
            seen = x.new_empty(()).expand(len(x), k * x.shape[1], *x.shape[2:])
            made = to_input(g, seen, wide).view(len(x), k, *x.shape[1:]).transpose(0, 1)
            by_input = made if by_input is None else by_input.add_(made)
        if mask[1] and dg is not None:  # slopes side by side, as channels that were made
            side = dg.transpose(0, 1).reshape(len(x), -1, *g.shape[2:])
            by_weight = to_weight(side, x, w.new_empty(()).expand(k * w.shape[0], *w.shape[1:])).view(k, *w.shape)
        if mask[1] and dx is not None:
            side = dx.transpose(0, 1).reshape(len(x), -1, *x.shape[2:])
            wide = w.new_empty(()).expand(w.shape[0], k * w.shape[1], *w.shape[2:])
            made = to_weight(g, side, wide).view(w.shape[0], k, *w.shape[1:]).transpose(0, 1)
            by_weight = made if by_weight is None else by_weight + made
        if mask[2] and dg is not None:
            by_bias = dg.sum([1, *range(3, dg.dim())])
        return [
            g.new_zeros(()).expand(k, *made.shape) if part is None and slot is not None else part
            for part, slot, made in zip((by_input, by_weight, by_bias), operation.out, operation.made, strict=True)
        ]

    del sizes
    return push


@register(aten.max_pool2d_with_indices.default)
def _pooled(operation: Recorded) -> Push:
    x, (out, places) = operation.args[0], operation.made
    if x.dim() != 4:
        return forward_mode(operation)
    index = places.flatten(2)

    def push(d: Any) -> Any:
        k = len(d[0])
        return d[0].flatten(3).gather(3, index.expand(k, *index.shape)).view(k, *out.shape), None

    return push


@register(aten.max_pool2d_with_indices_backward.default)
def _pooled_backward(operation: Recorded) -> Push:
    g, x, places = operation.args[0], operation.args[1], operation.args[-1]
    if x.dim() != 4:
        return forward_mode(operation)
    index = places.flatten(2)

    def push(d: Any) -> Any:
        if d[0] is None:
            return d[1].new_zeros(()).expand(len(d[1]), *x.shape)
        k = len(d[0])
        made = g.new_zeros(k, *x.shape[:2], x[0, 0].numel())
        return made.scatter_add_(3, index.expand(k, *index.shape), d[0].flatten(3)).view(k, *x.shape)

    return push


@register(aten.native_layer_norm.default)
def _layer_norm(operation: Recorded) -> Push:
    x, shape, weight, _, _ = operation.args
    _, mean, scale = operation.made
    dims = list(range(-len(shape), 0))
    normal = (x - mean) * scale

    def push(d: Any) -> Any:
        moved = at = spread = None
        if d[0] is not None:
            at = d[0].mean(dims, keepdim=True)
            along = (d[0] * normal).mean(dims, keepdim=True)
            moved = ((d[0] - at) - normal * along).mul_(scale)
            spread = -along * scale.square()
            moved = moved if weight is None else moved.mul_(weight)
        for part, factor in ((d[2], normal), (d[3], None)):
            if part is not None:
                part = part.reshape(len(part), *[1] * (x.dim() - len(shape)), *shape)
                part = part if factor is None else part * factor
                moved = part.expand(-1, *x.shape).clone() if moved is None else moved.add_(part)
        zero = moved.new_zeros(()).expand(len(moved), *mean.shape)  # type: ignore[union-attr]
        return moved, zero if at is None else at, zero if spread is None else spread

    return push


@register(aten.native_layer_norm_backward.default)
def _layer_norm_backward(operation: Recorded) -> Push:
    g, x, shape, mean, scale, weight, _, mask = operation.args
    dims = list(range(-len(shape), 0))
    normal = (x - mean) * scale
    carried = g if weight is None else g * weight
    level, slant = carried.mean(dims, keepdim=True), (carried * normal).mean(dims, keepdim=True)
    core = carried - level - normal * slant
    lead = list(range(1, 1 + x.dim() - len(shape)))

    def push(d: Any) -> Any:
        dg, dx, dmean, dscale, dw = d[0], d[1], d[3], d[4], d[5]
        k = len(next(t for t in (dg, dx, dw) if t is not None))
        moved: Any = None
        rate: Any = None
        if dx is not None:  # how the normalised x moves
            rate = dscale / scale
            moved = ((dx - dmean) * scale).addcmul_(normal, rate)
        by_input = by_weight = by_bias = None
        if mask[0]:
            slope = None if dg is None else (dg if weight is None else dg * weight)
            if dw is not None:
                part = dw.reshape(len(dw), *[1] * (x.dim() - len(shape)), *shape) * g
                slope = part if slope is None else slope + part
            along = 0.0
            by_input = torch.zeros_like(moved) if slope is None else slope - slope.mean(dims, keepdim=True)
            if slope is not None:
                along = (slope * normal).mean(dims, keepdim=True)
            if moved is not None:
                along = along + (moved * carried).mean(dims, keepdim=True)
                by_input = by_input.addcmul(moved, slant, value=-1).addcmul_(core, rate)
            by_input = (by_input - normal * along) * scale
        if mask[1]:
            parts = [
                part
                for part in (None if dg is None else dg * normal, None if moved is None else moved * g)
                if part is not None
            ]
            by_weight = sum(parts).sum(lead) if lead else sum(parts)  # type: ignore[union-attr]
        if mask[2]:
            by_bias = None if dg is None else (dg.sum(lead) if lead else dg)
        return [
            x.new_zeros(()).expand(k, *made.shape) if part is None and slot is not None else part
            for part, slot, made in zip((by_input, by_weight, by_bias), operation.out, operation.made, strict=True)
        ]

    return push
