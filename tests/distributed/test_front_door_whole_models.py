"""What couples all numbers of a model couples them whatever groups they are in, in whatever order, and however many."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from plain import Copies, batch, distance, flat, held, net
from pool import Pool
from swept import LR, SPECS, WITH_CLOSURE, rate, schedule_of
from torch import Tensor, nn

import dissensus
from dissensus.algorithms import StackedEngine, algorithm

HERE = Path(__file__)
N, STEPS = 4, 30


def squared(model: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
    return (model(given[0]) - given[1]).square().mean()


def options(shape: torch.Size) -> dict[str, float]:
    return {"lr": LR, "weight_decay": 0.01} if len(shape) > 1 else {"lr": 0.3 * LR}


def in_groups(model: nn.Module) -> torch.optim.Optimizer:
    """Weights come first, though the model has weight, bias, weight, bias."""
    kinds = [[p for p in model.parameters() if (p.ndim > 1) == matrix] for matrix in (True, False)]
    return torch.optim.SGD([{"params": kind, **options(kind[0].shape)} for kind in kinds], lr=LR)


def script(spec: dict[str, Any], topology: str) -> dict[str, Tensor]:
    model = net()
    opt = dissensus.decentralize(in_groups(model), model, algorithm=algorithm(**spec), topology=schedule_of(topology))
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, rate)
    for t in range(STEPS):

        def closure(t: int = t) -> Tensor:
            opt.zero_grad()
            loss = squared(model, batch(t, dist.get_rank()))
            loss.backward()
            return loss

        if spec["name"] in WITH_CLOSURE:
            opt.step(closure)
        else:
            closure()
            opt.step()
        schedule.step()
    return {"x": flat(model)}


@pytest.mark.parametrize("case", ["qg-dsgdm", "sam-awc", "avg-sam-atc", "choco-sgd", "choco-sgd-random", "dsgd-ac"])
def test_groups_with_rates_of_their_own_agree_with_the_stacked_engine(case: str, processes: Pool) -> None:
    spec, topologies = SPECS[case]
    engine = StackedEngine(
        net(),
        squared,
        algorithm=algorithm(**spec),
        topology=schedule_of(topologies[-1]),
        optimizer=partial(torch.optim.SGD, lr=LR),
        lr=lambda t: LR * rate(t),
        groups=lambda name, shape: options(shape),
        gradients="loop",
    )
    for t in range(STEPS):
        inputs, targets = zip(*(batch(t, i) for i in range(N)), strict=True)
        engine.step((torch.stack(inputs), torch.stack(targets)))
    measured = processes.run(N, f"{HERE}:script", spec=spec, topology=topologies[-1])
    assert distance(measured, [{"x": x} for x in engine.x]) <= 1e-8


def large() -> nn.Module:
    """More than a million numbers: arithmetic and messages go piece by piece."""
    torch.manual_seed(0)
    layers = nn.Linear(5, 900), nn.Tanh(), nn.Linear(900, 900), nn.Tanh(), nn.Linear(900, 500), nn.Linear(500, 3)
    return nn.Sequential(*layers).double()


def one_group(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def large_script(order: str, topology: str, **more: Any) -> dict[str, Tensor]:
    model = large()
    opt = dissensus.decentralize(
        one_group(model), model, algorithm=algorithm("dsgd", order=order), topology=topology, **more
    )
    for t in range(3):
        opt.zero_grad()
        squared(model, batch(t, dist.get_rank())).backward()
        opt.step()
    return {name: value[..., :: max(1, value.shape[-1] // 40)] for name, value in held(model).items()}


@pytest.mark.parametrize(
    ("order", "topology", "fused"),
    [("awc", "ring", False), ("atc", "one-peer-exponential", False), ("awc", "ring", True), ("atc", "ring", True)],
)
def test_large_models_go_in_many_pieces(order: str, topology: str, fused: bool, processes: Pool) -> None:
    measured = processes.run(N, f"{HERE}:large_script", order=order, topology=topology, fused=fused)
    copies = Copies(N, lambda _: large(), one_group, topology, order)
    copies.train(range(3), lambda model, t, i: squared(model, batch(t, i)))
    thinned = [{k: v[..., :: max(1, v.shape[-1] // 40)] for k, v in model.items()} for model in copies.held]
    assert distance(measured, thinned) <= 1e-10


def large_and_coupled(spec: dict[str, Any]) -> dict[str, Tensor]:
    model = large()
    opt = dissensus.decentralize(one_group(model), model, algorithm=algorithm(**spec), topology="ring")
    for t in range(2):

        def closure(t: int = t) -> Tensor:
            opt.zero_grad()
            loss = squared(model, batch(t, dist.get_rank()))
            loss.backward()
            return loss

        opt.step(closure)
    return {"x": flat(model)[::997]}


@pytest.mark.parametrize("case", ["sam-awc", "choco-sgd"])
def test_a_norm_and_a_compressor_see_a_large_model_as_a_whole(case: str, processes: Pool) -> None:
    spec = SPECS[case][0]
    engine = StackedEngine(
        large(),
        squared,
        algorithm=algorithm(**spec),
        topology=schedule_of("ring"),
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        gradients="loop",
    )
    for t in range(2):
        inputs, targets = zip(*(batch(t, i) for i in range(N)), strict=True)
        engine.step((torch.stack(inputs), torch.stack(targets)))
    measured = processes.run(N, f"{HERE}:large_and_coupled", spec=spec)
    assert distance(measured, [{"x": x[::997]} for x in engine.x]) <= 1e-8
