r"""What `vmap` does slowly, done well: linear layers and attention of n workers at once.

Under `vmap` a linear layer whose weights differ from worker to worker becomes a batched product whose gradient is laid
out transposed: it is written with a stride, and copied once more to be of use. Here it is

$$ Y_i = X_i W_i^\top + b_i, \qquad \nabla W_i = (\nabla Y_i)^\top X_i, \qquad \nabla X_i = \nabla Y_i W_i $$

with the gradient written row by row where the engine keeps it, so that no memory is asked for. And attention, which
`vmap` takes apart into a loop over the workers with a warning, is one call with workers and samples in one dimension.

`Vectorised` is active while the workers' losses are computed; everything else goes through `vmap` as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

LARGE = 1 << 18
"""Weights of all workers with fewer numbers go through `vmap` as they are: the detour would cost more than it saves."""


class Sinks:
    """Where the gradients of parameters go: `(n, *shape)` views by the memory of the parameter's stacked values."""

    def __init__(self, values: Mapping[str, Tensor], places: Mapping[str, Tensor]) -> None:
        self._places = {_identity(values[name]): place for name, place in places.items()}
        self._uses: dict[Any, int] = {}

    def used(self, value: Tensor) -> None:
        """A layer reads this parameter."""
        key = _identity(value)
        self._uses[key] = self._uses.get(key, 0) + 1

    def place(self, value: Tensor) -> Tensor | None:
        """Where to write its gradient, if this layer is the only one that reads it: two would overwrite each other."""
        key = _identity(value)
        return self._places.get(key) if self._uses.get(key) == 1 else None


class Vectorised(TorchFunctionMode):
    """While active under `vmap`, linear layers and attention go the way the module describes."""

    def __init__(self, sinks: Sinks | None = None, size: int = LARGE) -> None:
        """`size` is the number of workers."""
        super().__init__()
        self._sinks, self._size = sinks, size

    def _is_large(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:  # noqa: A002
        del input, bias
        return weight.numel() * self._size >= LARGE

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Takes the two functions over, lets the others pass."""
        del types
        kwargs = kwargs or {}
        if func is F.linear and _plain(*args, *kwargs.values()) and self._is_large(*args, **kwargs):
            return _linear(self._sinks, *args, **kwargs)
        if func is F.scaled_dot_product_attention and _plain(*args, *kwargs.values()):
            taken = _attention(*args, **kwargs)
            if taken is not None:
                return taken
        return func(*args, **kwargs)


def _linear(sinks: Sinks | None, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    return _Linear.apply(input, weight, bias, sinks)  # type: ignore[no-any-return]


class _Linear(torch.autograd.Function):
    """The layer of one worker; `vmap` is told how n of them are computed."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, sinks: Sinks | None) -> Tensor:
        del sinks
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        raise NotImplementedError

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        x, weight, bias, sinks = args
        stacked = zip((x, weight, bias), in_dims[:3], strict=True)
        x, w, b = (_in_front(v, dim, info.batch_size) for v, dim in stacked)
        if in_dims[1] is None and in_dims[2] is None:
            return F.linear(x, weight, bias), 0  # one weight for all workers: a frozen layer
        return _StackedLinear.apply(x, w, b, sinks), 0


class _StackedLinear(torch.autograd.Function):
    """n linear layers: (n, ..., i), (n, o, i), (n, o) -> (n, ..., o)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sinks: Sinks | None) -> Tensor:
        flat = x.reshape(len(x), -1, x.shape[-1])
        if sinks is not None:
            sinks.used(weight)
        ctx.save_for_backward(flat, weight)
        ctx.sinks, ctx.shape, ctx.has_bias = sinks, x.shape, bias is not None
        across = weight.transpose(1, 2)
        out = torch.bmm(flat, across) if bias is None else torch.baddbmm(bias[:, None], flat, across)
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        flat, weight = ctx.saved_tensors
        g = grads[0].reshape(len(weight), flat.shape[1], weight.shape[1])
        of_x = torch.bmm(g, weight).view(ctx.shape) if ctx.needs_input_grad[0] else None
        of_weight = None
        if ctx.needs_input_grad[1]:
            place = ctx.sinks.place(weight) if ctx.sinks is not None else None
            of_weight = torch.bmm(g.transpose(1, 2), flat, out=place)
        of_bias = g.sum(dim=1) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias, None


def _attention(
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
    if attn_mask is not None or dropout_p or query.ndim < 3 or len({query.ndim, key.ndim, value.ndim}) > 1:
        return None
    options = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    return _Attention.apply(query, key, value, options)  # type: ignore[no-any-return]


class _Attention(torch.autograd.Function):
    """The attention of one worker; `vmap` is told to put workers beside samples."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        raise NotImplementedError

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        *given, options = args
        stacked: list[Any] = [_in_front(v, d, info.batch_size) for v, d in zip(given, in_dims[:3], strict=True)]
        lead = stacked[0].shape[:-3]
        query, key, value = (v.flatten(0, -4) for v in stacked)
        out = F.scaled_dot_product_attention(query, key, value, **options)
        return out.unflatten(0, lead), 0


for _function in (_Linear, _Attention):  # torch asks for the signature at every call, and inspect takes its time
    _function.forward.__signature__ = inspect.signature(_function.forward)  # type: ignore[attr-defined]


def _in_front(value: Any, dim: int | None, n: int) -> Any:
    """The same with the workers in front, also where one value serves all of them."""
    if value is None:
        return None
    return value.movedim(dim, 0) if dim is not None else value.expand(n, *value.shape)


def _plain(*arguments: Any) -> bool:
    """Whether a function may be taken over: nothing is cast behind its back."""
    first = next((a for a in arguments if isinstance(a, Tensor)), None)
    return first is not None and not torch.is_autocast_enabled(first.device.type)


def _identity(value: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return value.data_ptr(), value.shape, value.stride()
