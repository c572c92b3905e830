"""A conversation that is given up leaves nothing behind for the next."""

from typing import Any

import torch
from torch import Tensor

from dissensus.algorithms.engines.distributed.conversation import Conversation
from dissensus.algorithms.protocol import Await, Gradient, Mix, Post, Request, Stateless, Step


class Host:
    """Answers every exchange by its number; a step that is even sends before it asks for a gradient, others after."""

    def __init__(self) -> None:
        self.answered: list[Request] = []
        self.got: list[Any] = []

    def start(self, k: int, t: int) -> Step[Any]:
        return self.even() if t % 2 == 0 else self.odd()

    def even(self) -> Step[Any]:
        ticket = yield Post(torch.zeros(1, 1))
        yield Gradient(torch.zeros(1, 1))
        self.got += [ticket, (yield Await(ticket))]
        return torch.zeros(1, 1), Stateless()

    def odd(self) -> Step[Any]:
        yield Gradient(torch.zeros(1, 1))
        self.got.append((yield Mix(torch.zeros(1, 1))))
        return torch.zeros(1, 1), Stateless()

    def answer(self, k: int, t: int, request: Request) -> Any:
        self.answered.append(request)
        return len(self.answered)

    def place(self, k: int, at: Tensor) -> None:
        pass

    def gradient(self, k: int) -> Any:
        return torch.zeros(1, 1)

    def done(self, k: int, t: int, x: Tensor, state: Any) -> None:
        pass


def test_what_was_sent_is_answered_once() -> None:
    host = Host()
    talk = Conversation(host, [0])
    talk.begin(0)
    assert [type(request) for request in host.answered] == [Post]
    talk.ready(0)
    talk.finish(None)
    assert [type(request) for request in host.answered] == [Post, Await]
    assert host.got == [1, 2]


def test_a_ticket_of_a_step_that_was_given_up_answers_nothing() -> None:
    host = Host()
    talk = Conversation(host, [0])
    talk.begin(0)
    talk.forget()
    talk.ready(1)
    talk.finish(None)
    assert [type(request) for request in host.answered] == [Post, Mix]
    assert host.got == [2]
