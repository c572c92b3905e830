"""What comes back is a real `torch.optim.Optimizer`: closures, hooks, schedulers, gradients, where it starts from."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from plain import Copies, by_hand, decentralized, distance, held, momentum, net, normed, same, squared, train
from pool import Pool
from torch import Tensor

import dissensus

HERE = Path(__file__)
STEPS = range(10)


def with_closure(order: str) -> tuple[dict[str, Tensor], int]:
    model, opt = decentralized(order)
    calls = 0
    for t in STEPS:

        def closure(t: int = t) -> Tensor:
            nonlocal calls
            calls += 1
            assert torch.is_grad_enabled()
            opt.zero_grad()
            loss = squared(model, t, dist.get_rank())
            loss.backward()
            return loss

        loss = opt.step(closure)
        assert isinstance(loss, Tensor)
        assert loss.item() > 0
    return held(model), calls


@pytest.mark.parametrize("order", ["awc", "atc"])
def test_a_closure_gives_the_same_training(order: str, processes: Pool) -> None:
    measured = processes.run(4, f"{HERE}:with_closure", order=order)
    assert [calls for _, calls in measured] == [len(STEPS)] * 4
    assert distance([model for model, _ in measured], by_hand(4, order)) <= 1e-10


def with_hooks() -> list[str]:
    model, opt = decentralized()
    assert isinstance(opt, torch.optim.Optimizer)
    seen: list[str] = []
    opt.register_step_pre_hook(lambda o, args, kwargs: seen.append("before" if o is opt else "before another"))
    opt.register_step_post_hook(lambda o, args, kwargs: seen.append("after" if o is opt else "after another"))
    train(model, opt, range(3), dist.get_rank())
    return seen


def test_hooks_of_a_step_are_called_once(processes: Pool) -> None:
    assert processes.run(2, f"{HERE}:with_hooks") == [["before", "after"] * 3] * 2


def test_hooks_of_a_state_are_called_once() -> None:
    model = net()
    opt = dissensus.decentralize(momentum(model), model)
    train(model, opt, range(3), 0)
    seen: list[str] = []

    def noted(what: str, answer: Any = None) -> Any:
        def hook(o: torch.optim.Optimizer, *given: Any) -> Any:
            assert o is opt
            assert all("dissensus" in one for one in given)
            seen.append(what)
            return answer(*given) if answer is not None else None

        return hook

    opt.register_state_dict_pre_hook(noted("before saving"))
    opt.register_state_dict_post_hook(noted("after saving", lambda state: {**state, "more": 1}))
    opt.register_load_state_dict_pre_hook(
        noted("before loading", lambda state: {key: value for key, value in state.items() if key != "more"})
    )
    opt.register_load_state_dict_post_hook(noted("after loading"))
    saved = opt.state_dict()
    assert saved["more"] == 1
    opt.load_state_dict(saved)
    assert "more" in saved
    assert seen == ["before saving", "after saving", "before loading", "after loading"]


def cosine(opt: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.SequentialLR(
        opt,
        [
            torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=4),
            torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=11),
        ],
        milestones=[4],
    )


def with_schedule(order: str) -> dict[str, Tensor]:
    model, opt = decentralized(order)
    train(model, opt, STEPS, dist.get_rank(), schedule=cosine(opt))
    return held(model)


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")  # torch's own, of SequentialLR
@pytest.mark.parametrize("order", ["awc", "atc"])
def test_a_scheduler_sets_the_rate_of_the_step_that_follows(order: str, processes: Pool) -> None:
    measured = processes.run(4, f"{HERE}:with_schedule", order=order)
    copies = Copies(4, lambda _: net(), momentum, "ring", order)
    schedules = [cosine(opt) for opt in copies.optimizers]
    for t in STEPS:
        copies.train(range(t, t + 1))
        for schedule in schedules:
            schedule.step()
    assert distance(measured, copies.held) <= 1e-10


def rate_set_by_hand() -> dict[str, Tensor]:
    """No scheduler: the loop writes into the groups, as many do."""
    model, opt = decentralized()
    for t in STEPS:
        opt.param_groups[0]["lr"] = 0.1 / (1 + t)
        train(model, opt, range(t, t + 1), dist.get_rank())
    return held(model)


def test_a_rate_that_the_loop_writes_into_the_group_is_used(processes: Pool) -> None:
    copies = Copies(2, lambda _: net(), momentum, "ring", "awc")
    for t in STEPS:
        for opt in copies.optimizers:
            opt.param_groups[0]["lr"] = 0.1 / (1 + t)
        copies.train(range(t, t + 1))
    assert distance(processes.run(2, f"{HERE}:rate_set_by_hand"), copies.held) <= 1e-10


def gradients_after(name: str) -> None:
    """As in torch, a gradient can be looked at after the step, and the optimizer's memory by parameter."""
    model = net()
    opt = dissensus.decentralize(momentum(model), model, algorithm=name, topology="ring")
    for t in range(4):
        opt.zero_grad()
        squared(model, t, dist.get_rank()).backward()
        before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        opt.step()
        after = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all("momentum_buffer" in opt.state[p] for p in model.parameters())
    assert [p for g in opt.param_groups for p in g["params"]] == list(model.parameters())
    assert repr(opt)


@pytest.mark.parametrize("name", ["dsgd", "gradient-tracking"])
def test_gradients_and_memory_can_be_looked_at(name: str, processes: Pool) -> None:
    processes.run(4, f"{HERE}:gradients_after", name=name)


def steps_without_gradient() -> dict[str, Tensor]:
    model = net()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(float(dist.get_rank()))
    opt = dissensus.decentralize(momentum(model), model, topology="ring", start="own")
    for _ in range(60):
        opt.zero_grad()
        opt.step()
    return held(model)


def test_a_step_without_any_gradient_only_mixes(processes: Pool) -> None:
    for model in processes.run(4, f"{HERE}:steps_without_gradient"):
        for value in model.values():
            assert (value - 1.5).abs().max() <= 1e-12, "the mean of 0, 1, 2, 3"


def started(start: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Everybody begins elsewhere, also in what is not trained."""
    model = normed(seed=dist.get_rank())
    with torch.no_grad():
        for b in model.buffers():
            b.add_(1 + dist.get_rank())
    for p in next(model.children()).parameters():
        p.requires_grad_(False)
    before = held(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    dissensus.decentralize(torch.optim.SGD(trained, lr=0.1), model, start=start)
    return before, held(model)


def test_an_equal_start_is_that_of_worker_0_in_everything(processes: Pool) -> None:
    measured = processes.run(4, f"{HERE}:started", start="equal")
    assert not same(measured[0][0], measured[1][0])
    assert all(same(after, measured[0][0]) for _, after in measured)


def test_an_own_start_is_left_alone(processes: Pool) -> None:
    assert all(same(before, after) for before, after in processes.run(4, f"{HERE}:started", start="own"))
