"""Moves inside backward: the same numbers to the bit, and a sentence where that cannot be."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from plain import distance, held, net, same, squared, train
from pool import Pool
from swept import SPECS, optimizer_of, rate, schedule_of
from torch import Tensor, nn
from variants import VARIANTS

import dissensus
from dissensus.algorithms import AlgorithmError, algorithm

HERE = Path(__file__)
STEPS = range(8)
FITTING = [name for name, variant in VARIANTS.items() if not variant.leaves_gradients]
CASES = [(name, "awc", "ring") for name in FITTING]
CASES += [(name, "atc", "one-peer-exponential") for name in FITTING if name in ("plain", "adam", "unused by some")]


def both_ways(name: str, order: str, topology: str) -> None:
    variant, ends = VARIANTS[name], []
    for options in ({}, {"fused": True, "accumulate": variant.backwards}):
        model = variant.build()
        inner = variant.optimizer(model)
        opt = dissensus.decentralize(
            inner, model, algorithm=algorithm("dsgd", order=order), topology=topology, **options
        )
        variant.train(model, opt, STEPS, dist.get_rank())
        assert opt.t == len(STEPS)
        ends.append(held(model))
    assert same(*ends)
    assert not same(ends[0], held(variant.build())), "something has been learned"


@pytest.mark.parametrize(("name", "order", "topology"), CASES)
def test_moves_inside_backward_are_the_same_to_the_bit(name: str, order: str, topology: str, processes: Pool) -> None:
    processes.run(4, f"{HERE}:both_ways", name=name, order=order, topology=topology)


def both_ways_with(spec: dict[str, Any], topology: str) -> list[dict[str, Tensor]]:
    ends = []
    for fused in (False, True):
        model = net()
        inner = optimizer_of(spec)(model.parameters())
        opt = dissensus.decentralize(
            inner, model, algorithm=algorithm(**spec), topology=schedule_of(topology), fused=fused
        )
        train(model, opt, STEPS, dist.get_rank(), schedule=torch.optim.lr_scheduler.LambdaLR(opt, rate))
        ends.append(held(model))
    return ends


@pytest.mark.parametrize("case", ["awc-less", "cta", "dsgd-ac", "dadam"])
def test_every_exchange_with_neighbours_is_the_same_to_the_bit(case: str, processes: Pool) -> None:
    spec, topologies = SPECS[case]
    ends = processes.run(4, f"{HERE}:both_ways_with", spec=spec, topology=topologies[-1])
    assert all(same(apart, fused) for apart, fused in ends)


@pytest.mark.parametrize("case", ["allreduce", "local-sgd"])
def test_a_mean_over_all_workers_is_the_same_to_rounding(case: str, processes: Pool) -> None:
    """An all-reduce adds in an order that depends on how much it is given at once."""
    ends = processes.run(4, f"{HERE}:both_ways_with", spec=SPECS[case][0], topology="ring")
    assert distance([apart for apart, _ in ends], [fused for _, fused in ends]) <= 1e-13


def refused(spec: dict[str, Any]) -> str:
    model = net()
    inner = optimizer_of(spec)(model.parameters())
    with pytest.raises(AlgorithmError) as told:
        dissensus.decentralize(inner, model, algorithm=algorithm(**spec), topology="ring", fused=True)
    return str(told.value)


@pytest.mark.parametrize("name", ["sam", "avg-sam", "choco-sgd", "gradient-tracking", "qg-dsgdm", "sgp"])
def test_an_algorithm_that_does_more_than_hand_on_points_and_gradients_is_refused(name: str, processes: Pool) -> None:
    for told in processes.run(2, f"{HERE}:refused", spec={"name": name}):
        assert "fused" in told
        assert name in told


def twice() -> str:
    model = net()
    opt = dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model, fused=True)
    squared(model, 0, dist.get_rank()).backward()
    with pytest.raises(AlgorithmError) as told:
        squared(model, 1, dist.get_rank()).backward()
    del opt
    return str(told.value)


def test_a_second_backward_in_one_step_is_refused(processes: Pool) -> None:
    assert all("accumulate" in told for told in processes.run(2, f"{HERE}:twice"))


def fewer_than_announced() -> bool:
    """The last step of an epoch often has fewer batches: all that must not happen is that a gradient is lost."""
    ends = []
    for fused in (False, True):
        model = net()
        options: dict[str, Any] = {"fused": True, "accumulate": 3} if fused else {}
        opt = dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model, topology="ring", **options)
        for t in range(4):
            opt.zero_grad()
            for k in range(3 if t != 2 else 1):
                squared(model, 3 * t + k, dist.get_rank()).backward()
            try:
                opt.step()
            except AlgorithmError:
                return True
        ends.append(held(model))
    return same(*ends)


def test_fewer_backwards_than_announced_lose_no_gradient(processes: Pool) -> None:
    assert processes.run(2, f"{HERE}:fewer_than_announced") == [True, True]


def closed() -> None:
    ends = []
    for fused in (False, True):
        model = net()
        opt = dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, fused=fused)
        for t in STEPS:

            def closure(t: int = t, model: nn.Module = model, opt: torch.optim.Optimizer = opt) -> Tensor:
                opt.zero_grad()
                loss = squared(model, t, dist.get_rank())
                loss.backward()
                return loss

            opt.step(closure)
        ends.append(held(model))
    assert same(*ends)


def test_a_closure_moves_inside_backward(processes: Pool) -> None:
    processes.run(2, f"{HERE}:closed")


def scaled() -> str:
    model = net()
    opt = dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(squared(model, 0, dist.get_rank())).backward()
    with pytest.raises((AlgorithmError, AssertionError)) as told:
        scaler.step(opt)
    return type(told.value).__name__


def test_a_scaler_that_comes_too_late_does_not_pass_unnoticed(processes: Pool) -> None:
    assert all(processes.run(2, f"{HERE}:scaled"))


def consumed() -> None:
    model = net()
    opt = dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model, fused=True)
    squared(model, 0, dist.get_rank()).backward()
    assert all(p.grad is None for p in model.parameters()), "gradients are consumed as they come"
    opt.step()


def test_no_gradient_is_left_after_backward(processes: Pool) -> None:
    processes.run(2, f"{HERE}:consumed")
