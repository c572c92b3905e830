"""What a model does before its forward, where a gradient lies elsewhere; and which optimizer has a model."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class BeforeForward:
    """Calls a method of somebody who may be gone by then; copies of the model (averages of weights) do not."""

    def __init__(self, method: Callable[[], None] | None) -> None:
        self._method = None if method is None else weakref.WeakMethod(method)

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        """The hook."""
        del module, inputs
        method = None if self._method is None else self._method()
        if method is not None and torch.is_grad_enabled():
            method()

    def __deepcopy__(self, memo: dict[int, Any]) -> BeforeForward:
        return BeforeForward(None)

    def __reduce__(self) -> Any:
        return BeforeForward, (None,)


_holders: weakref.WeakKeyDictionary[nn.Module, weakref.WeakMethod[Callable[[], None]]] = weakref.WeakKeyDictionary()


def take_over(model: nn.Module, retire: Callable[[], None]) -> None:
    """Whoever had the model retires; `retire` is how the new one will."""
    before = _holders.get(model)
    former = None if before is None else before()
    if former is not None:
        former()
    _holders[model] = weakref.WeakMethod(retire)
