r"""What `vmap` does slowly, done well: linear layers, attention and cross-entropies of n workers at once.

Under `vmap` a linear layer whose weights differ from worker to worker becomes a batched product whose gradient is laid
out transposed: it is written with a stride, and copied once more to be of use. Here it is

$$ Y_i = X_i W_i^\top + b_i, \qquad \nabla W_i = (\nabla Y_i)^\top X_i, \qquad \nabla X_i = \nabla Y_i W_i $$

with the gradient written row by row where the engine keeps it, so that no memory is asked for. Attention, which `vmap`
takes apart into a loop over the workers with a warning, is one call with workers and samples in one dimension; so is
the cross-entropy, which it takes apart into some twenty small operations.

`Vectorised` is active while the workers' losses are computed; everything else goes through `vmap` as it is. What it
takes over it takes out of `vmap`: it unwraps the stacked tensors, computes with them as plain ones, and wraps the
result, by the very functions that `torch.vmap` is written with. An `autograd.Function` with a rule for `vmap`, the
official way, costs as much as the whole gradient of a small model. Where torch has renamed these functions, or a loss
differentiates or vectorises by itself, nothing is taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dissensus.algorithms.engines import products

inside: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
KNOWN = all(
    hasattr(inside, name)
    for name in (
        *("_vmap_increment_nesting", "_vmap_decrement_nesting", "maybe_current_level"),
        *("_add_batch_dim", "_remove_batch_dim", "_unwrap_batched"),
        *("pop_dynamic_layer_stack", "push_dynamic_layer_stack"),
    )
)
"""Whether torch has what `torch.vmap` is written with under the names that are used here."""

ONE_BY_ONE = 1 << 14
"""Gradients that do not lie side by side are computed one after the other by torch: well enough from that size on."""

IN_CACHE = 1 << 20
"""Smaller ones are computed apart and copied, unless those of all workers are more numbers: that would take memory."""

WORTH_A_LOOK = 3
"""A gradient that is so many times larger than its factors is not looked at if these tell that it is finite."""

FEW_CLASSES = 16
"""Scores of fewer classes do not fill a register of the processor: torch is faster where samples lie side by side."""


def by_rows(function: Callable[..., tuple[Tensor, ...]], *stacked: Tensor) -> tuple[Tensor, ...]:
    """`torch.vmap` of a function of tensors, workers first, without its search for tensors in whatever may be given."""
    if not (KNOWN and _loaded()):
        return torch.vmap(function, randomness="different")(*stacked)
    n = len(stacked[0])
    level = inside._vmap_increment_nesting(n, "different")
    try:
        found = function(*(inside._add_batch_dim(v, 0, level) for v in stacked))
        return tuple(inside._remove_batch_dim(v, level, n, 0) for v in found)
    finally:
        inside._vmap_decrement_nesting()


@cache
def _loaded() -> bool:
    """Lets `torch.vmap` load what it loads when it is first called."""
    return bool(torch.vmap(torch.clone)(torch.ones(1)))


class Sinks:
    """Where the gradients of parameters go: `(n, *shape)` views by the memory of the parameter's stacked values."""

    def __init__(self, values: Mapping[str, Tensor], places: Mapping[str, Tensor]) -> None:
        self._places = {_identity(values[name]): (name, place) for name, place in places.items()}
        self._uses: dict[Any, int] = {}
        self.finite: set[str] = set()
        """Parameters whose gradients are known to be finite, though nobody has looked at them."""

    def used(self, value: Tensor) -> None:
        """A layer reads this parameter."""
        key = _identity(value)
        self._uses[key] = self._uses.get(key, 0) + 1

    def place(self, value: Tensor) -> Tensor | None:
        """Where to write its gradient, if this layer is the only one that reads it: two would overwrite each other."""
        key = _identity(value)
        return self._places[key][1] if key in self._places and self._uses.get(key) == 1 else None

    def written(self, value: Tensor, g: Tensor, x: Tensor) -> None:
        """The gradient of this parameter is the product of these, and is where it stays."""
        large = value.device.type == "cpu" and value.numel() > WORTH_A_LOOK * (g.numel() + x.numel())
        if large and products.stays_finite(g, x):
            self.finite.add(self._places[_identity(value)][0])


class Vectorised(TorchFunctionMode):
    """While active under `vmap`, what the module names goes the way it describes."""

    def __init__(self, sinks: Sinks | None = None) -> None:
        super().__init__()
        self._sinks = sinks

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Takes these functions over, lets the others pass."""
        del types
        kwargs = kwargs or {}
        stacked = TAKEN.get(func)
        if stacked is not None and KNOWN and inside.maybe_current_level() == 1:
            found = stacked(self._sinks, *args, **kwargs)
            if found is not None:
                return found
        return func(*args, **kwargs)


def _outside(function: Callable[..., Tensor], *values: Tensor | None) -> Tensor | None:
    """A function of stacked values, workers in front; `None` where none is stacked, or where torch would cast them."""
    unwrapped: list[tuple[Any, Any]] = [(None, None) if v is None else inside._unwrap_batched(v, 1) for v in values]
    stacked = [(v, dim) for v, dim in unwrapped if dim is not None]
    if not stacked or torch.is_autocast_enabled(stacked[0][0].device.type):
        return None
    n = stacked[0][0].shape[stacked[0][1]]
    below = inside.pop_dynamic_layer_stack()
    try:
        found = function(*(_in_front(v, dim, n) for v, dim in unwrapped))
    finally:
        inside.push_dynamic_layer_stack(below)
    return inside._add_batch_dim(found, 0, 1)


def _in_front(value: Any, dim: int | None, n: int) -> Any:
    """The same with the workers in front, also where one value serves all of them."""
    if value is None or dim == 0:
        return value
    return value.movedim(dim, 0) if dim is not None else value.expand(n, *value.shape)


def _linear(sinks: Sinks | None, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:  # noqa: A002
    if inside._unwrap_batched(weight, 1)[1] is None and (bias is None or inside._unwrap_batched(bias, 1)[1] is None):
        return None  # one weight for all workers: a frozen layer
    return _outside(lambda x, w, b: _StackedLinear.apply(x, w, b, sinks), input, weight, bias)


class _StackedLinear(torch.autograd.Function):
    """n linear layers: (n, ..., i), (n, o, i), (n, o) -> (n, ..., o)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sinks: Sinks | None) -> Tensor:
        flat = x.reshape(len(x), -1, x.shape[-1])
        if sinks is not None:
            sinks.used(weight)
            if bias is not None:
                sinks.used(bias)
        ctx.save_for_backward(flat, weight, bias)
        ctx.sinks, ctx.shape = sinks, x.shape
        return products.forward(flat, weight, bias).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        flat, weight, bias = ctx.saved_tensors
        g = grads[0].reshape(len(weight), flat.shape[1], weight.shape[1])
        of_x = products.backward(g, weight).view(ctx.shape) if ctx.needs_input_grad[0] else None
        of_weight = of_bias = None
        if ctx.needs_input_grad[1]:
            sinks: Sinks | None = ctx.sinks
            place = None if sinks is None else sinks.place(weight)
            if place is not None and not place.is_contiguous():
                place = None if place[0].numel() < ONE_BY_ONE and place.numel() <= IN_CACHE else place
            of_weight = products.gradient(g, flat, out=place)
            if sinks is not None and place is not None:
                sinks.written(weight, g, flat)
        if ctx.needs_input_grad[2]:
            of_bias = torch.sum(g, dim=1, out=ctx.sinks.place(bias) if ctx.sinks is not None else None)
        return of_x, of_weight, of_bias, None


def _attention(
    sinks: Sinks | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """The attention of all workers in one call; `None` where workers draw numbers or have masks of their own."""
    del sinks
    if attn_mask is not None or dropout_p or query.ndim < 3 or len({query.ndim, key.ndim, value.ndim}) > 1:
        return None

    def stacked(*given: Tensor) -> Tensor:
        q, k, v = (each.flatten(0, -4) for each in given)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
        return found.unflatten(0, given[0].shape[:-3])

    return _outside(stacked, query, key, value)


def _cross_entropy(
    sinks: Sinks | None,
    input: Tensor,  # noqa: A002
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    """The losses of all workers in one call; `None` where classes have weights or targets are probabilities."""
    del sinks
    rare = weight is not None or size_average is not None or reduce is not None or target.is_floating_point()
    if rare or reduction not in ("mean", "sum", "none"):
        return None

    def stacked(scores: Tensor, labels: Tensor) -> Tensor:
        n, shape = len(labels), labels.shape
        if scores.ndim > 2:
            scores, labels = scores.flatten(0, 1), labels.flatten(0, 1)
        if scores.ndim == 2 and scores.shape[1] < FEW_CLASSES:
            scores, labels = scores.t()[None], labels[None]  # one sample with many positions
        options = {"ignore_index": ignore_index, "reduction": "none", "label_smoothing": label_smoothing}
        found = F.cross_entropy(scores, labels, **options)
        if reduction == "none":
            return found.view(shape)
        total = found.view(n, -1).sum(dim=1)
        return total if reduction == "sum" else total / (labels.view(n, -1) != ignore_index).sum(dim=1)

    return _outside(stacked, input, target)


TAKEN: dict[Any, Callable[..., Tensor | None]] = {
    F.linear: _linear,
    F.scaled_dot_product_attention: _attention,
    F.cross_entropy: _cross_entropy,
}
"""What is taken over, and by what."""


def _identity(value: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return value.data_ptr(), value.shape, value.stride()
