"""Every algorithm of the registry through the front door, held against the stacked engine for a hundred steps."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from plain import batch, distance, flat, net, normed
from pool import Pool
from swept import LR, SPECS, WITH_CLOSURE, optimizer_of, rate, schedule_of
from torch import Tensor, nn

import dissensus
from dissensus.algorithms import AlgorithmError, StackedEngine, algorithm, algorithms

HERE = Path(__file__)
N, STEPS = 4, 100
CASES = [(case, topology) for case, (_, names) in SPECS.items() for topology in names]


def squared(model: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
    return (model(given[0]) - given[1]).square().mean()


def script(spec: dict[str, Any], topology: str, steps: int = STEPS, constant: bool = False) -> dict[str, Any]:
    """Where every step began: where its first gradient was taken; and what is held at the end."""
    model = normed()
    opt = dissensus.decentralize(
        optimizer_of(spec)(model.parameters()), model, algorithm=algorithm(**spec), topology=schedule_of(topology)
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, rate if not constant else lambda t: 1.0)
    path: list[Tensor] = []
    for t in range(steps):

        def closure(t: int = t) -> Tensor:
            opt.zero_grad()
            loss = squared(model, batch(t, dist.get_rank()))
            if len(path) == t:
                path.append(flat(model))
            loss.backward()
            return loss

        if spec["name"] == "avg-sam":
            path.append(flat(model))  # its first gradient is taken elsewhere already
        if spec["name"] in WITH_CLOSURE:
            opt.step(closure)
        else:
            closure()
            opt.step()
        schedule.step()
    with opt.consensus() as average:
        mean = flat(average)
    return {"path": torch.stack(path), "mean": mean} | {f"buffer.{k}": b.clone() for k, b in model.named_buffers()}


def simulated(
    spec: dict[str, Any], topology: str, steps: int = STEPS, *, constant: bool = False
) -> list[dict[str, Any]]:
    schedule = schedule_of(topology)
    engine = StackedEngine(
        normed(),
        squared,
        algorithm=algorithm(**spec),
        topology=schedule,
        optimizer=optimizer_of(spec),
        lr=lambda t: LR * (1.0 if constant else rate(t)),
        gradients="loop",
    )
    path = []
    for t in range(steps):
        x = engine.x
        if spec.get("order") == "cta":  # there the gradient is taken at the mixed point
            mixed = torch.from_numpy(schedule[t].dense()) @ x
            x = torch.lerp(x, mixed, spec.get("gamma", 1.0))
        path.append(x)
        inputs, targets = zip(*(batch(t, i) for i in range(N)), strict=True)
        engine.step((torch.stack(inputs), torch.stack(targets)))
    paths, mean = torch.stack(path, dim=1), engine.mean
    return [
        {"path": paths[i], "mean": mean} | {f"buffer.{k}": b[i] for k, b in engine.buffers.items()} for i in range(N)
    ]


def test_every_algorithm_of_the_registry_is_swept() -> None:
    assert {spec["name"] for spec, _ in SPECS.values()} == set(algorithms())


@pytest.mark.parametrize(("case", "topology"), CASES)
def test_four_processes_agree_with_the_stacked_engine(case: str, topology: str, processes: Pool) -> None:
    spec = SPECS[case][0]
    measured = processes.run(N, f"{HERE}:script", spec=spec, topology=topology)
    assert distance(measured, simulated(spec, topology)) <= 1e-8
    assert {"buffer.1.running_mean", "buffer.1.num_batches_tracked"} <= set(measured[0])
    assert all(torch.equal(measured[0]["mean"], other["mean"]) for other in measured)


BEYOND = {
    "1.6": {"lr_max": LR / 1.6 ** (1 / 3)},
    "3": {"lr_max": LR / 3 ** (1 / 3)},
    "a warm-up": {"capture": "published"},
}


@pytest.mark.parametrize("order", ["awc", "atc"])
@pytest.mark.parametrize("gamma", BEYOND)
def test_a_factor_beyond_one_takes_more_than_the_mixture(gamma: str, order: str, processes: Pool) -> None:
    """From a rate below the one in force gamma exceeds 1, in eight steps of a warm-up up to 13."""
    spec: dict[str, Any] = {"name": "dsgd-ac", "p": 3.0, "order": order, **BEYOND[gamma]}
    options: dict[str, Any] = {"spec": spec, "topology": "ring", "steps": 8, "constant": gamma != "a warm-up"}
    measured = processes.run(N, f"{HERE}:script", **options)
    assert distance(measured, simulated(**options)) <= 1e-8


GROUPS = {"weight": {"weight_decay": 0.3}, "bias": {"lr": 0.05}}


def grouped() -> Tensor:
    """Quasi-global momentum where only the weights decay, and the biases move more slowly."""
    model = net()
    groups: list[Any] = [
        {"params": [p for name, p in model.named_parameters() if name.endswith(kind)], **options}
        for kind, options in GROUPS.items()
    ]
    opt = dissensus.decentralize(
        torch.optim.SGD(groups, lr=LR), model, algorithm=algorithm("qg-dsgdm", nesterov=True), topology="ring"
    )
    for t in range(10):
        opt.zero_grad()
        squared(model, batch(t, dist.get_rank())).backward()
        opt.step()
    return flat(model)


def test_decay_belongs_to_the_gradient_of_a_quasi_global_momentum_group_by_group(processes: Pool) -> None:
    models, beta, nu, w = [net() for _ in range(2)], 0.9, 0.1, 0.5
    momenta = [[torch.zeros_like(p) for p in model.parameters()] for model in models]
    for t in range(10):
        for i, model in enumerate(models):
            model.zero_grad()
            squared(model, batch(t, i)).backward()
        with torch.no_grad():
            for k, name in enumerate(name for name, _ in models[0].named_parameters()):
                options = GROUPS[name.split(".")[1]]
                lr, own = options.get("lr", LR), [model.get_parameter(name) for model in models]
                halves = []
                for i, p in enumerate(own):
                    assert p.grad is not None
                    g = p.grad + options.get("weight_decay", 0.0) * p
                    halves.append(p - lr * (g + beta * (beta * momenta[i][k] + g)))
                mixed = w * halves[0] + (1 - w) * halves[1]
                for i, p in enumerate(own):
                    momenta[i][k] = (1 - nu) * momenta[i][k] + nu * (p - mixed) / lr
                    p.copy_(mixed)
    for measured, model in zip(processes.run(2, f"{HERE}:grouped"), models, strict=True):
        torch.testing.assert_close(measured, flat(model), rtol=1e-12, atol=1e-13)


def without_closure(spec: dict[str, Any]) -> str:
    model = normed()
    opt = dissensus.decentralize(optimizer_of(spec)(model.parameters()), model, algorithm=algorithm(**spec))
    squared(model, batch(0, dist.get_rank())).backward()
    with pytest.raises(AlgorithmError) as told:
        opt.step()
    return str(told.value)


@pytest.mark.parametrize("spec", [{"name": "sam"}, {"name": "avg-sam", "draws": 2}], ids=lambda spec: spec["name"])
def test_an_algorithm_with_several_gradients_asks_for_a_closure(spec: dict[str, Any], processes: Pool) -> None:
    assert all("closure" in told for told in processes.run(2, f"{HERE}:without_closure", spec=spec))


def without_forward(spec: dict[str, Any]) -> str:
    """The model is never called as a whole, so that nobody can move it to where the gradient belongs."""
    model = normed()
    opt = dissensus.decentralize(
        optimizer_of(spec)(model.parameters()), model, algorithm=algorithm(**spec), topology=schedule_of("push")
    )
    try:
        for t in range(2):
            opt.zero_grad()
            x = batch(t, dist.get_rank())[0]
            for part in model.children():
                x = part(x)
            x.square().mean().backward()
            opt.step()
    except AlgorithmError as error:
        return str(error)
    return ""


def test_a_gradient_at_another_point_needs_a_forward_of_the_model(processes: Pool) -> None:
    """At the first step nobody has moved, and nothing is lost; at the second the gradient would be a wrong one."""
    for told in processes.run(N, f"{HERE}:without_forward", spec={"name": "sgp"}):
        assert "forward" in told
        assert "closure" in told
