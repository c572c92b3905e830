"""A step pays for torch's wrapper when somebody watches, and only then."""

import functools
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


def test_nobody_watches_so_no_range_is_opened(opt: Decentralized, ranges: list[str]) -> None:
    opt.step()
    assert ranges == []


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
    assert "Optimizer.step#Decentralized.step" in ranges
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


def test_a_profiler_sees_gradients_being_cleared(opt: Decentralized) -> None:
    with profile() as watched:
        opt.zero_grad()
    assert "Optimizer.zero_grad#Decentralized.zero_grad" in {event.key for event in watched.key_averages()}
    assert all(p.grad is None for group in opt.param_groups for p in group["params"])


def test_gradients_are_cleared_without_a_range_or_set_to_zero(opt: Decentralized, ranges: list[str]) -> None:
    opt.zero_grad(set_to_none=False)
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for group in opt.param_groups for p in group["params"])
    opt.zero_grad()
    assert all(p.grad is None for group in opt.param_groups for p in group["params"])
    assert ranges == ["Optimizer.zero_grad#Decentralized.zero_grad"]


def moved_by(kind: type[torch.optim.SGD], watch: Callable[[torch.optim.Optimizer], object]) -> float:
    """How far a parameter has gone after a step that was decentralized."""
    parameter = nn.Parameter(torch.zeros(1))
    model = nn.ParameterList([parameter])
    inner = kind(model.parameters(), lr=1.0)
    opt = dissensus.decentralize(inner, model)
    watch(inner)
    parameter.grad = torch.ones(1)
    opt.step()
    return -parameter.item()


def test_nobody_watches_the_inner_optimizer_either(ranges: list[str]) -> None:
    assert moved_by(torch.optim.SGD, lambda inner: None) == 1.0
    assert ranges == []


def test_a_step_of_somebodys_own_is_the_one_that_is_made() -> None:
    torch.optim.SGD([torch.zeros(1)])  # from now on its step says that it is wrapped, and so do those that imitate it

    class Doubled(torch.optim.SGD):
        @functools.wraps(torch.optim.SGD.step)
        def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
            super().step()
            return super().step(closure)

    assert moved_by(Doubled, lambda inner: None) == 2.0


def test_the_hooks_of_the_inner_optimizer_are_called() -> None:
    seen: list[str] = []
    moved_by(torch.optim.SGD, lambda inner: inner.register_step_pre_hook(lambda *_: seen.append("before")))
    moved_by(torch.optim.SGD, lambda inner: inner.register_step_post_hook(lambda *_: seen.append("after")))
    assert seen == ["before", "after"]


def test_a_step_that_was_put_on_the_inner_optimizer_is_the_one_that_is_made() -> None:
    def twice(inner: torch.optim.Optimizer) -> None:
        once = inner.step
        inner.step = lambda: (once(), once())  # type: ignore[method-assign,assignment]

    assert moved_by(torch.optim.SGD, twice) == 2.0
