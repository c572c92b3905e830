"""A step pays for torch's wrapper when somebody watches, and only then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.profiler import profile

import dissensus
from dissensus.algorithms import Decentralized


@pytest.fixture
def opt() -> Decentralized:
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    return dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model)


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the ranges that are opened for a profiler."""
    opened: list[str] = []

    @contextmanager
    def record(name: str) -> Iterator[None]:
        opened.append(name)
        yield

    monkeypatch.setattr(torch.autograd.profiler, "record_function", record)
    return opened


def test_nobody_watches_so_only_the_inner_step_opens_a_range(opt: Decentralized, ranges: list[str]) -> None:
    opt.step()
    assert ranges == ["Optimizer.step#SGD.step"]


@pytest.mark.parametrize(
    "register",
    [
        lambda opt, hook: opt.register_step_pre_hook(hook),
        lambda opt, hook: opt.register_step_post_hook(hook),
        lambda opt, hook: register_optimizer_step_pre_hook(hook),
        lambda opt, hook: register_optimizer_step_post_hook(hook),
    ],
)
def test_every_kind_of_hook_is_called_until_it_is_removed(
    opt: Decentralized, ranges: list[str], register: Callable[..., torch.utils.hooks.RemovableHandle]
) -> None:
    seen: list[torch.optim.Optimizer] = []
    handle = register(opt, lambda o, args, kwargs: seen.append(o))
    opt.step()
    assert sum(o is opt for o in seen) == 1
    assert ranges == ["Optimizer.step#Decentralized.step", "Optimizer.step#SGD.step"]
    handle.remove()
    opt.step()
    assert sum(o is opt for o in seen) == 1


def test_a_hook_may_give_the_step_another_closure(opt: Decentralized) -> None:
    opt.register_step_pre_hook(lambda o, args, kwargs: ((o, lambda: 7.0), {}))
    assert opt.step(lambda: 1.0) == 7.0


def test_a_profiler_sees_the_step(opt: Decentralized) -> None:
    with profile() as watched:
        opt.step()
    assert "Optimizer.step#Decentralized.step" in {event.key for event in watched.key_averages()}
