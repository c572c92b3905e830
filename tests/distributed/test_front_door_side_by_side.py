"""Several trainings in one script, one after the other or at once, and other things that a script does meanwhile."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from plain import by_hand, decentralized, distance, held, momentum, net, squared, train
from pool import Pool
from torch import Tensor

import dissensus

HERE = Path(__file__)
STEPS = range(10)


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
