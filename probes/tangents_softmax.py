"""Rules for softmax, the losses made of it, and tables that are looked up (see `tangents`)."""

from __future__ import annotations

from typing import Any

import torch

from dissensus.probes.program import Push, Recorded
from dissensus.probes.tangents import past, register

aten = torch.ops.aten


@register(aten.nll_loss_forward.default)
def _nll(operation: Recorded) -> Push:
    rest = operation.args[1:]
    return lambda d: (torch.vmap(lambda row: operation.call(row, *rest)[0])(d[0]), None)


@register(aten.nll_loss_backward.default)
def _nll_backward(operation: Recorded) -> Push:
    rest = operation.args[1:]
    return lambda d: torch.vmap(lambda row: operation.call(row, *rest))(d[0])


@register(aten._log_softmax.default)
def _log_softmax(operation: Recorded) -> Push:
    share, dim = operation.made.exp(), past(operation.args[1], operation.made.dim())
    return lambda d: d[0] - (d[0] * share).sum(dim, keepdim=True)


@register(aten._log_softmax_backward_data.default)
def _log_softmax_backward(operation: Recorded) -> Push:
    slope, out = operation.args[:2]
    dim = past(operation.args[2], out.dim())
    share = out.exp()
    weight = -share * slope.sum(dim, keepdim=True)

    def push(d: Any) -> Any:
        total = None if d[0] is None else d[0] - share * d[0].sum(dim, keepdim=True)
        if d[1] is None:
            return total
        return d[1] * weight if total is None else total.addcmul_(d[1], weight)

    return push


@register(aten._softmax.default, aten._safe_softmax.default)
def _softmax(operation: Recorded) -> Push:
    share, dim = operation.made, past(operation.args[1], operation.made.dim())

    def push(d: Any) -> Any:
        flow = d[0] * share
        return flow.addcmul_(flow.sum(dim, keepdim=True), share, value=-1)

    return push


@register(aten._softmax_backward_data.default)
def _softmax_backward(operation: Recorded) -> Push:
    slope, share = operation.args[:2]
    dim = past(operation.args[2], share.dim())
    centred = slope - (slope * share).sum(dim, keepdim=True)

    def push(d: Any) -> Any:
        inner = None if d[0] is None else (d[0] * share).sum(dim, keepdim=True)
        if d[1] is not None:
            more = (d[1] * slope).sum(dim, keepdim=True)
            inner = more if inner is None else inner + more
            total = d[1] * centred
            total.addcmul_(share, inner, value=-1)
        else:
            total = -share * inner
        return total if d[0] is None else total.addcmul_(d[0], share)

    return push


@register(aten.embedding.default)
def _embedding(operation: Recorded) -> Push:
    rows = operation.args[1]
    flat, shape = rows.flatten(), operation.made.shape
    padding = operation.args[2] if len(operation.args) > 2 else -1
    if padding < 0:
        return lambda d: d[0].index_select(1, flat).reshape(len(d[0]), *shape)
    moves = (flat != padding)[:, None].to(operation.made.dtype)  # autograd holds the row of padding still
    return lambda d: (d[0].index_select(1, flat) * moves).reshape(len(d[0]), *shape)
