"""How a broken engine is made without touching a right one: it answers an algorithm's requests through a go-between."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dissensus.algorithms.protocol import Await, Gradient, Local, Mix, Post, toward
from dissensus.algorithms.registry import algorithm as algorithm_named

Answer = Generator[Any, Any, Any]


@dataclass(frozen=True)
class Held:
    """The ticket of an exchange that has been made already."""

    own: Tensor
    value: Tensor


class Relayed:
    """An algorithm whose exchanges and gradients pass through the hands of a broken engine."""

    def __init__(
        self,
        inner: Any,
        *,
        mixed: Callable[[int, Tensor], Answer] | None = None,
        gradient: Callable[[int, Tensor, Tensor], Tensor] | None = None,
        local: Callable[[Local, Tensor], Any] | None = None,
    ) -> None:
        self.inner = algorithm_named(inner) if isinstance(inner, str) else inner
        self._mixed, self._gradient, self._local = mixed, gradient, local

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def step(self, x: Tensor, state: Any, local: Local) -> Answer:
        """The step of the algorithm; every answer may be another one than the engine's."""
        recursion = self.inner.step(x, state, self._local(local, x) if self._local else local)
        answer: Any = None
        while True:
            try:
                request = recursion.send(answer)
            except StopIteration as end:
                return end.value
            if self._mixed and isinstance(request, Mix | Post):
                found = yield from self._mixed(local.t, request.value)
                own = request.value
                answer = toward(own, found, request.share) if isinstance(request, Mix) else Held(own, found)
            elif isinstance(request, Await) and isinstance(request.ticket, Held):
                answer = toward(request.ticket.own, request.ticket.value, request.share)
            elif self._gradient and isinstance(request, Gradient):
                answer = self._gradient(local.t, request.at, (yield request))
            else:
                answer = yield request
