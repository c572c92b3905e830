"""What may be changed between two steps: what is trained, groups, the weights themselves and where they lie."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from plain import Copies, decentralized, distance, held, momentum, net, train
from pool import Pool
from torch import Tensor, nn

import dissensus
from dissensus.algorithms import AlgorithmError

HERE = Path(__file__)
STEPS = range(10)


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
