r"""How tangents pass through operations: one rule each, a linear map whose coefficients are known beforehand.

A tangent is a block: vectors first, then the shape of the tensor. Elementwise operations have one rule for all of them,
$\dot y = \sum_i (\partial f/\partial x_i)\,\dot x_i$ with coefficients by autograd. An operation without a rule is
differentiated by torch's own forward mode under `vmap`, which computes it again every time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

from dissensus.probes.errors import ProbeError
from dissensus.probes.program import Push, Recorded

aten = torch.ops.aten
Rule = Callable[[Recorded], Push]
RULES: dict[Any, Rule] = {}


_SPELT_OUT = get_decompositions(
    [aten.silu_backward, aten.mish_backward, aten.hardswish_backward, aten.hardsigmoid_backward, aten.softplus_backward]
)
"""Operations without a derivative of their own, as arithmetic that has one."""


def rule_of(operation: Recorded) -> Push:
    """The linear map of tangents that belongs to an operation."""
    rule = RULES.get(operation.call)
    elementwise = torch.Tag.pointwise in operation.call.tags or operation.call in _SPELT_OUT
    if rule is None and elementwise and isinstance(operation.made, Tensor):
        rule = _pointwise
    if rule is None:
        rule = forward_mode
    return rule(operation)


def register(*calls: Any) -> Callable[[Rule], Rule]:
    """A decorator: the rule of these operations."""

    def entered(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(calls, rule))
        return rule

    return entered


def _lifted(d: Tensor, shape: torch.Size, dims: int) -> Tensor:
    """A tangent of a tensor of this shape, ready to be broadcast with one of so many dimensions."""
    return d if len(shape) == dims else d.reshape(len(d), *[1] * (dims - len(shape)), *shape)


def past(dims: int | tuple[int, ...] | list[int], rank: int) -> Any:
    """Dimensions of a tensor of this rank as dimensions counted from the end."""
    if isinstance(dims, int):
        return dims if dims < 0 else dims - max(rank, 1)
    return [past(dim, rank) for dim in dims]


def _arguments(operation: Recorded) -> list[Any]:
    """All arguments in order, with the defaults of those that were left out."""
    names = [argument.name for argument in operation.call._schema.arguments]
    args = list(operation.args)
    values = {a.name: a.default_value for a in operation.call._schema.arguments if a.has_default_value()}
    args += [operation.kwargs.get(name, values.get(name)) for name in names[len(args) :]]
    return args


def _pointwise(operation: Recorded) -> Push:
    """Coefficients by autograd; they are zeros nowhere stored where an argument stands still."""
    made, args = operation.made, operation.args
    moving = [i for i, slot in enumerate(operation.into) if slot is not None]
    with torch.enable_grad():
        free = [
            a.detach().expand(made.shape).clone().requires_grad_() if i in moving else a for i, a in enumerate(args)
        ]
        function: Any = _SPELT_OUT.get(operation.call, operation.call)
        value = function(*free, **operation.kwargs)
        slopes = torch.autograd.grad(
            value, [free[i] for i in moving], torch.ones_like(value), allow_unused=True, materialize_grads=True
        )
    parts = [(i, slope, args[i].shape) for i, slope in zip(moving, slopes, strict=True)]
    dims, shape = made.dim(), made.shape
    over = parts[0][0] in operation.own and parts[0][2] == shape

    def push(d: Any) -> Any:
        i, slope, own = parts[0]
        total = d[i].mul_(slope) if over else _lifted(d[i], own, dims) * slope
        for i, slope, own in parts[1:]:
            total.addcmul_(_lifted(d[i], own, dims).expand(-1, *shape), slope.expand_as(total))
        return total

    return push


def forward_mode(operation: Recorded) -> Push:
    """Torch's own rule, computing the operation anew."""
    if any(isinstance(slot, list) for slot in operation.into):
        raise ProbeError(f"no rule for lists of tensors: {operation.call}")
    moving = [i for i, slot in enumerate(operation.into) if slot is not None]
    kept = [i for i, slot in enumerate(operation.out) if slot is not None]

    def run(*given: Tensor) -> Any:
        args = list(operation.args)
        for i, t in zip(moving, given, strict=True):
            args[i] = t
        made = operation.call(*args, **operation.kwargs)
        made = made if isinstance(made, (tuple, list)) else [made]
        return tuple(made[i] for i in kept)

    primals = tuple(operation.args[i] for i in moving)

    def one(*tangents: Tensor) -> Any:
        return torch.func.jvp(run, primals, tangents)[1]

    def push(d: Any) -> Any:
        with warnings.catch_warnings():  # torch warns about its own insides here
            warnings.simplefilter("ignore")
            found = iter(torch.vmap(one)(*(d[i].contiguous() for i in moving)))
        rows = [None if slot is None else next(found) for slot in operation.out]
        return rows[0] if len(rows) == 1 else rows

    return push


@register(aten.detach.default, aten.alias.default, aten.lift_fresh.default)
def _same(_: Recorded) -> Push:
    return lambda d: d[0]


@register(aten.clone.default, aten.contiguous.default)
def _copy(_: Recorded) -> Push:
    return lambda d: d[0].contiguous()


@register(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _reshaped(operation: Recorded) -> Push:
    shape = operation.made.shape
    return lambda d: d[0].reshape(len(d[0]), *shape)


@register(aten.t.default)
def _t(operation: Recorded) -> Push:
    return (lambda d: d[0].transpose(1, 2)) if operation.made.dim() == 2 else (lambda d: d[0])


@register(aten.transpose.int)
def _transposed(operation: Recorded) -> Push:
    a, b = past(operation.args[1:3], operation.made.dim())
    return lambda d: d[0].transpose(a, b)


@register(aten.permute.default)
def _permuted(operation: Recorded) -> Push:
    order = [0, *(dim % operation.made.dim() + 1 for dim in operation.args[1])]
    return lambda d: d[0].permute(order)


@register(aten.expand.default)
def _expanded(operation: Recorded) -> Push:
    before, shape = operation.args[0].shape, operation.made.shape
    return lambda d: _lifted(d[0], before, len(shape)).expand(-1, *shape)


@register(aten.unsqueeze.default)
def _unsqueezed(operation: Recorded) -> Push:
    dim = past(operation.args[1], operation.made.dim())
    return lambda d: d[0].unsqueeze(dim)


@register(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
def _squeezed(operation: Recorded) -> Push:
    return _reshaped(operation)


@register(aten.select.int)
def _selected(operation: Recorded) -> Push:
    dim, index = past(operation.args[1], operation.args[0].dim()), operation.args[2]
    return lambda d: d[0].select(dim, index)


@register(aten.slice.Tensor)
def _sliced(operation: Recorded) -> Push:
    _, dim, start, end, step = _arguments(operation)
    dim = past(dim, operation.args[0].dim())
    return lambda d: aten.slice.Tensor(d[0], dim, start, end, step)


@register(aten.split.Tensor, aten.split_with_sizes.default)
def _split(operation: Recorded) -> Push:
    _, sizes, dim = _arguments(operation)
    dim = past(dim, operation.args[0].dim())
    several = len(operation.out) > 1
    return lambda d: torch.split(d[0], sizes, dim) if several else torch.split(d[0], sizes, dim)[0]


@register(aten.cat.default, aten.stack.default)
def _cat(operation: Recorded) -> Push:
    parts, dim = _arguments(operation)
    stacked = operation.call is aten.stack.default
    dim = past(dim, operation.made.dim())
    join = torch.stack if stacked else torch.cat

    def push(d: Any) -> Any:
        k = next(len(t) for t in d[0] if t is not None)
        return join(
            [part.new_zeros(k, *part.shape) if t is None else t for t, part in zip(d[0], parts, strict=True)], dim
        )

    return push


@register(
    aten.slice_backward.default, aten.select_backward.default, aten.embedding_dense_backward.default, aten.index.Tensor
)
def _linear_by_rows(operation: Recorded) -> Push:
    """Linear in the first argument, applied to all vectors by `vmap`."""
    if any(slot is not None for slot in operation.into[1:]):
        return forward_mode(operation)
    rest, kwargs = operation.args[1:], operation.kwargs
    return lambda d: torch.vmap(lambda row: operation.call(row, *rest, **kwargs))(d[0])


@register(aten.add.Tensor, aten.sub.Tensor)
def _added(operation: Recorded) -> Push:
    factor = operation.kwargs.get("alpha", 1) * (-1 if operation.call is aten.sub.Tensor else 1)
    a, b = operation.args
    shape, dims = operation.made.shape, operation.made.dim()
    if operation.into[1] is None:
        return lambda d: _lifted(d[0], a.shape, dims).expand(-1, *shape)
    if operation.into[0] is None:
        return lambda d: factor * _lifted(d[1], b.shape, dims).expand(-1, *shape)
    return lambda d: torch.add(_lifted(d[0], a.shape, dims), _lifted(d[1], b.shape, dims), alpha=factor)


@register(aten.mul.Tensor)
def _multiplied(operation: Recorded) -> Push:
    a, b = operation.args
    shape, dims = operation.made.shape, operation.made.dim()

    def push(d: Any) -> Any:
        total = None if d[0] is None else _lifted(d[0], a.shape, dims) * b
        if d[1] is None:
            return total
        other = _lifted(d[1], b.shape, dims)
        return other * a if total is None else torch.addcmul(total, other, torch.as_tensor(a).expand(shape))

    return push


@register(aten.mul.Scalar)
def _scaled(operation: Recorded) -> Push:
    factor = operation.args[1]
    return lambda d: d[0] * factor


@register(aten.div.Scalar)
def _divided(operation: Recorded) -> Push:
    factor = operation.args[1]
    return lambda d: d[0] / factor


@register(aten.neg.default)
def _negative(_: Recorded) -> Push:
    return lambda d: -d[0]


@register(aten.sum.dim_IntList, aten.mean.dim, aten.sum.default, aten.mean.default)
def _summed(operation: Recorded) -> Push:
    args = _arguments(operation)
    x = args[0]
    dims, keep = (args[1], args[2]) if "dim" in operation.call._overloadname else (None, False)
    dims = dims or list(range(x.dim()))
    away = past(dims, x.dim()) if x.dim() else []
    scale = 1 if operation.call._schema.name == "aten::sum" else 1 / math.prod(x.shape[dim] for dim in dims)

    def push(d: Any) -> Any:
        total = d[0].sum(away, keepdim=keep) if away else d[0]
        return total if scale == 1 else total * scale

    return push
