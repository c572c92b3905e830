"""What comes back is a real `torch.optim.Optimizer`: closures, hooks, schedulers, groups of processes, other loops."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from plain import Copies, distance, held, net, normed, same, squared, train
from pool import Pool
from torch import Tensor, nn

import dissensus
from dissensus.algorithms import AlgorithmError, Decentralized

HERE = Path(__file__)
STEPS = range(15)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def decentralized(order: str = "awc", topology: str = "ring", **options: Any) -> tuple[nn.Module, Decentralized]:
    model = net()
    algorithm = dissensus.algorithms.algorithm("dsgd", order=order)
    return model, dissensus.decentralize(momentum(model), model, algorithm=algorithm, topology=topology, **options)


def by_hand(n: int, order: str = "awc", topology: str = "ring", steps: range = STEPS) -> list[dict[str, Tensor]]:
    copies = Copies(n, lambda _: net(), momentum, topology, order)
    copies.train(steps)
    return copies.held


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


def parts(model: nn.Module) -> list[list[nn.Parameter]]:
    children = [list(child.parameters()) for child in model.children()]
    return [children[0], [p for child in children[1:] for p in child]]


def thaw(model: nn.Module, t: int) -> None:
    """The first layer is trained from step 3 on."""
    for p in parts(model)[0]:
        p.requires_grad_(t >= 3)


def thawed(order: str) -> dict[str, Tensor]:
    model = net()
    thaw(model, 0)
    algorithm = dissensus.algorithms.algorithm("dsgd", order=order)
    opt = dissensus.decentralize(momentum(model), model, algorithm=algorithm, topology="ring")
    for t in range(12):
        thaw(model, t)
        train(model, opt, range(t, t + 1), dist.get_rank())
    return held(model)


@pytest.mark.parametrize("order", ["awc", "atc"])
def test_a_layer_may_be_thawed_on_the_way(order: str, processes: Pool) -> None:
    copies = Copies(4, lambda _: net(), momentum, "ring", order)
    for t in range(12):
        for model in copies.models:
            thaw(model, t)
        copies.train(range(t, t + 1))
    assert distance(processes.run(4, f"{HERE}:thawed", order=order), copies.held) <= 1e-10


def with_a_group_more() -> dict[str, Tensor]:
    model = net()
    first, rest = parts(model)
    opt = dissensus.decentralize(torch.optim.SGD(rest, lr=0.1, momentum=0.9), model, topology="ring")
    train(model, opt, range(5), dist.get_rank())
    opt.add_param_group({"params": first, "lr": 0.05})
    train(model, opt, range(5, 10), dist.get_rank())
    return held(model)


def test_a_group_may_be_added_on_the_way(processes: Pool) -> None:
    copies = Copies(4, lambda _: net(), lambda m: torch.optim.SGD(parts(m)[1], lr=0.1, momentum=0.9), "ring", "awc")
    copies.train(range(5))
    for model, opt in zip(copies.models, copies.optimizers, strict=True):
        opt.add_param_group({"params": parts(model)[0], "lr": 0.05})
    copies.train(range(5, 10))
    assert distance(processes.run(4, f"{HERE}:with_a_group_more"), copies.held) <= 1e-10


def changed_under_way(settle: bool) -> tuple[str, dict[str, Tensor], dict[str, Tensor]]:
    """Weights are clamped after a step, while they are on their way to the neighbours."""
    model, opt = decentralized()
    train(model, opt, range(5), dist.get_rank())
    before = held(model)
    if settle:
        opt.settle()
    with torch.no_grad():
        for p in model.parameters():
            p.clamp_(-0.1, 0.1)
    opt.zero_grad()
    try:
        opt.step()
    except AlgorithmError as error:
        return str(error), before, held(model)
    return "", before, held(model)


def test_parameters_that_are_under_way_must_not_be_changed(processes: Pool) -> None:
    assert all("settle()" in told for told, _, _ in processes.run(4, f"{HERE}:changed_under_way", settle=False))


def test_once_settled_they_may_be_and_the_neighbours_have_the_old_ones(processes: Pool) -> None:
    outcomes = processes.run(4, f"{HERE}:changed_under_way", settle=True)
    for i, (told, own, after) in enumerate(outcomes):
        assert told == ""
        for name in own:
            others = outcomes[i - 1][1][name] + outcomes[(i + 1) % 4][1][name]
            assert (after[name] - (own[name].clamp(-0.1, 0.1) + others) / 3).abs().max() <= 1e-14


def with_memory_replaced(how: str) -> dict[str, Tensor] | str:
    """Some functions of torch do not write into parameters but give them other memory."""
    model, opt = decentralized()
    try:
        for t in STEPS:
            train(model, opt, range(t, t + 1), dist.get_rank())
            if t == 7 and how == "vector":
                vector = nn.utils.parameters_to_vector(model.parameters()).detach()
                nn.utils.vector_to_parameters(vector, model.parameters())
            if t == 7 and how == "moved":
                model.float().double()
    except AlgorithmError as error:
        return str(error)
    return held(model)


def by_hand_replaced(how: str) -> list[dict[str, Tensor]]:
    copies = Copies(4, lambda _: net(), momentum, "ring", "awc")
    for t in STEPS:
        copies.train(range(t, t + 1))
        for model in copies.models:
            if t == 7 and how == "moved":
                model.float().double()
    return copies.held


@pytest.mark.parametrize("how", ["vector", "moved"])
def test_memory_that_is_replaced_does_not_pass_unnoticed(how: str, processes: Pool) -> None:
    measured = processes.run(4, f"{HERE}:with_memory_replaced", how=how)
    if all(isinstance(m, str) for m in measured):
        return  # it is refused, everywhere
    assert distance(measured, by_hand_replaced(how)) <= 1e-10


def in_another_order() -> dict[str, Tensor]:
    """One of them gives its optimizer the parameters the other way round, in two groups."""
    model = net()
    parameters = list(model.parameters())
    groups: Any = parameters if dist.get_rank() else [{"params": [p]} for p in parameters[::-1]]
    inner = torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01)
    train(model, dissensus.decentralize(inner, model, topology="ring"), STEPS, dist.get_rank())
    return held(model)


def test_the_order_of_an_optimizer_is_its_own_affair(processes: Pool) -> None:
    assert distance(processes.run(4, f"{HERE}:in_another_order"), by_hand(4)) <= 1e-10


def in_groups() -> tuple[int, dict[str, Tensor]]:
    """Processes 0 and 2 are one training, 1 and 3 another."""
    me = dist.get_rank()
    both = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    model, opt = decentralized(group=both[me % 2])
    train(model, opt, STEPS, opt.worker)
    return opt.worker, held(model)


def test_a_group_of_processes_is_a_training_of_its_own(processes: Pool) -> None:
    measured = processes.run(4, f"{HERE}:in_groups")
    assert [worker for worker, _ in measured] == [0, 0, 1, 1]
    expected = by_hand(2)
    assert distance([model for _, model in measured], [expected[0], expected[0], expected[1], expected[1]]) <= 1e-10


def two_at_once() -> list[dict[str, Tensor]]:
    """As in adversarial training: two models, two optimizers, steps in turn."""
    pairs = [decentralized("awc"), decentralized("atc", "one-peer-exponential"), decentralized("awc")]
    for t in STEPS:
        for model, opt in pairs:
            train(model, opt, range(t, t + 1), dist.get_rank())
    return [held(model) for model, _ in pairs]


def test_two_optimizers_at_once_do_not_hear_each_other(processes: Pool) -> None:
    measured = processes.run(4, f"{HERE}:two_at_once")
    ring, exponential = by_hand(4), by_hand(4, "atc", "one-peer-exponential")
    assert (
        distance([m for models in measured for m in (models[0], models[2])], [m for m in ring for _ in "ab"]) <= 1e-10
    )
    assert distance([models[1] for models in measured], exponential) <= 1e-10


def mean_of(models: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Of the workers; for each of them."""
    return [{name: torch.stack([m[name] for m in models]).mean(0) for name in models[0]}] * len(models)


def with_other_things_between(order: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Evaluation, forwards without backward, collectives of the user's own, a copy of the model, and a pause."""
    model, opt = decentralized(order)
    for t in STEPS:
        model.eval()
        with torch.no_grad():
            total = squared(model, 1000 + t, dist.get_rank())
        dist.all_reduce(total)
        copied = copy.deepcopy(model)
        squared(copied, t, dist.get_rank()).backward()
        for p in copied.parameters():
            p.data.zero_()
        model.train()
        squared(model, 2000 + t, dist.get_rank())
        train(model, opt, range(t, t + 1), dist.get_rank())
        if (t, dist.get_rank()) == (7, 1):
            torch.randn(200, 200).matmul(torch.randn(200, 200)).sum()
        dist.barrier()
    with opt.consensus() as mean:
        return held(model), held(mean)


@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
def test_other_things_may_happen_between_steps(order: str, processes: Pool) -> None:
    measured = processes.run(4, f"{HERE}:with_other_things_between", order=order)
    assert distance([mean for _, mean in measured], mean_of(by_hand(4, order))) <= 1e-10
    assert order == "cta" or distance([model for model, _ in measured], by_hand(4, order)) <= 1e-10


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


def discarded() -> int:
    """A message is under way when its optimizer is dropped, and another training begins in the same group."""
    for _ in range(3):
        model, opt = decentralized()
        train(model, opt, range(2), dist.get_rank())
        del opt
    model, opt = decentralized()
    train(model, opt, STEPS, dist.get_rank())
    assert distance([held(model)], [by_hand(4)[dist.get_rank()]]) <= 1e-10
    return opt.t


def test_an_optimizer_may_be_dropped_with_a_message_under_way(processes: Pool) -> None:
    assert processes.run(4, f"{HERE}:discarded") == [len(STEPS)] * 4


def handed_over(first: dict[str, Any]) -> dict[str, Tensor]:
    """The same model, trained with one optimizer after the other: what the first did to it must be gone."""
    spec = dict(first)
    algorithm = dissensus.algorithms.algorithm("dsgd", order=spec.pop("order"))
    model = net()
    opt = dissensus.decentralize(momentum(model), model, algorithm=algorithm, topology="ring", **spec)
    train(model, opt, range(3), dist.get_rank())
    del opt
    model.load_state_dict(net().state_dict())
    opt = dissensus.decentralize(momentum(model), model, topology="one-peer-exponential")
    train(model, opt, STEPS, dist.get_rank())
    return held(model)


@pytest.mark.parametrize("first", [{"order": "awc"}, {"order": "cta"}, {"order": "awc", "fused": True}], ids=str)
def test_a_model_may_be_handed_over_to_another_optimizer(first: dict[str, Any], processes: Pool) -> None:
    measured = processes.run(4, f"{HERE}:handed_over", first=first)
    assert distance(measured, by_hand(4, "awc", "one-peer-exponential")) <= 1e-10
