"""A step of an algorithm, driven from a training loop that is not ours.

The recursion of a step is a generator that asks for what it needs. In a loop of the user's its questions come due at
three times:

- *begin*, right after the step before: only what the recursion sends before anything else (its first `Post`) goes out,
  so that it is under way while the loop runs forward and backward. It depends on no learning rate: the loop's scheduler
  may not have spoken yet;
- *ready*, before the forward: everything up to the gradient, which may be taken elsewhere than at the own point;
- *finish*, in `step()`: the gradient is there, everything else follows.

The recursions of several buckets of parameters run in lockstep: they meet at the gradient and at norms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from dissensus.algorithms.engines.lockstep import Meeting, lockstep
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm, Await, Gradient, Mean, Mix, Norm, Note, Post, Request, Step


class Host(Protocol):
    """Who a conversation is led for: what a bucket of this worker can be asked."""

    def start(self, k: int, t: int) -> Step[Any]:
        """The recursion of bucket k for step t."""
        ...

    def answer(self, k: int, t: int, request: Request) -> Any:
        """What the bucket asks for by itself."""
        ...

    def place(self, k: int, at: Tensor) -> None:
        """The parameters are to hold this point when the gradient is taken."""
        ...

    def gradient(self, k: int) -> Any:
        """The gradient that the loop has left."""
        ...

    def done(self, k: int, t: int, x: Tensor, state: Any) -> None:
        """The step is done."""
        ...


class Conversation:
    """The steps of some buckets, one after the other."""

    def __init__(self, host: Host, buckets: Sequence[int]) -> None:
        self._host, self.buckets = host, tuple(buckets)
        self._meeting: Meeting | None = None
        self._asked: Sequence[Any] | None = None
        self._sent: dict[int, Any] = {}
        """The tickets of what was sent before anything else, by bucket, until the recursion gets them."""
        self.t = 0

    @property
    def begun(self) -> bool:
        """Whether its step has been begun and is not over."""
        return self._meeting is not None

    @property
    def due(self) -> dict[int, Tensor]:
        """Where the gradient is taken that it waits for, by bucket."""
        return {} if self._asked is None else {k: a.at for k, a in zip(self.buckets, self._asked, strict=True)}

    @property
    def is_ready(self) -> bool:
        """Whether the gradient is what it waits for."""
        return self._asked is not None

    def begin(self, t: int) -> None:
        """Starts step t: the first message goes out."""
        self.t, self._asked = t, None
        self._sent.clear()
        recursions, asked = [], []
        for k in self.buckets:
            recursions.append(self._host.start(k, t))
            asked.append(next(recursions[-1]))
            if isinstance(asked[-1], Post):
                self._sent[k] = self._host.answer(k, t, asked[-1])
        self._meeting = lockstep(recursions, self._answer, self._done, asked)

    def ready(self, t: int) -> None:
        """Goes on until the gradient is due, and puts the parameters where it is to be taken."""
        if self._meeting is None:
            self.begin(t)
        if self._asked is None:
            self._go_on(None)
            if self._asked is None:
                raise AlgorithmError("the algorithm ended its step without asking for a gradient")

    def finish(self, again: Callable[[], Any] | None) -> None:
        """The gradient is there: the rest of the step. `again` takes another one, for algorithms that want several."""
        first = True
        while self._asked is not None:
            if not first:
                if again is None:
                    raise AlgorithmError(
                        "this algorithm takes several gradients a step: give step() a closure that clears the "
                        "gradients, computes the loss, calls backward and returns the loss"
                    )
                with torch.enable_grad():
                    again()
            first = False
            self._go_on([self._host.gradient(k) for k in self.buckets])
        self._meeting = None

    def forget(self) -> None:
        """Gives up the step that was begun."""
        self._meeting = self._asked = None

    def _go_on(self, answers: Any) -> None:
        assert self._meeting is not None
        self._asked = None
        while True:
            try:
                asked: Any = self._meeting.send(answers)
            except StopIteration:
                return
            if isinstance(asked[0], Norm):
                answers = _norms(asked)
                continue
            for k, request in zip(self.buckets, asked, strict=True):
                self._host.place(k, request.at)
            self._asked = asked
            return

    def _answer(self, i: int, request: Request) -> Any:
        k = self.buckets[i]
        return self._sent.pop(k) if k in self._sent else self._host.answer(k, self.t, request)

    def _done(self, i: int, x: Tensor, state: Any) -> None:
        self._host.done(self.buckets[i], self.t, x, state)


def _norms(asked: Sequence[Norm]) -> list[Tensor]:
    """The norm over all buckets, in the dtype of each."""
    squares = [request.value.double().square().sum(dim=1) for request in asked]
    norm = torch.stack([s.to(squares[0].device) for s in squares]).sum(dim=0).sqrt()[:, None]
    return [norm.to(request.value.device, request.value.dtype) for request in asked]


class _Rates:
    """What a recursion is told when it is only tried out."""

    t, lr, rate, decay = 0, 1.0, 1.0, 0.0

    def generators(self, purpose: str) -> list[torch.Generator]:
        """Any will do."""
        del purpose
        return [torch.Generator()]

    def move(self, x: Tensor, g: Tensor) -> Tensor:
        """Anything new."""
        return x - g


def first_gradient_elsewhere(algorithm: Algorithm) -> bool:
    """Whether the first gradient of a step is taken elsewhere than at the own point, found out on two numbers."""
    x = torch.ones(1, 2, dtype=torch.float64)
    recursion = algorithm.step(x, algorithm.init(x), _Rates())
    answer: Any = None
    while True:
        request = recursion.send(answer)
        match request:
            case Gradient(at):
                return at is not x
            case Mix(value) | Mean(value):
                answer = value.clone()
            case Post(value):
                answer = value
            case Await(ticket):
                answer = ticket.clone()
            case Norm(value):
                answer = value.norm(dim=1, keepdim=True)
            case Note():
                answer = None
