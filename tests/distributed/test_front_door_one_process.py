"""With one worker the front door is the inner optimizer, to the bit, with or without a process group."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from plain import held, normed, same, train
from pool import Pool
from torch import nn
from variants import Mixed, in_their_dtype

import dissensus
from dissensus.algorithms import AlgorithmError, algorithm

HERE = Path(__file__)
SINGLE = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "plain sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "adamw in one kernel": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "sgd in one kernel": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
}
SPECS: list[dict[str, Any]] = [
    {"name": "dsgd", "order": "awc"},
    {"name": "dsgd", "order": "atc", "gamma": 0.5},
    {"name": "dsgd", "order": "cta"},
    {"name": "dsgd-ac"},
    {"name": "allreduce"},
    {"name": "local-sgd", "period": 2},
    {"name": "sgp"},
]


def trained(inner: str, spec: dict[str, Any] | None, dtype: torch.dtype, **options: Any) -> dict[str, Any]:
    model: nn.Module = normed().to(dtype)
    opt: torch.optim.Optimizer = SINGLE[inner](model.parameters())
    if spec is not None:
        opt = dissensus.decentralize(opt, model, algorithm=algorithm(**spec), **options)

    def loss(model: nn.Module, t: int, worker: int) -> torch.Tensor:
        drawn = torch.Generator().manual_seed(t)
        return (model(torch.randn(8, 5, generator=drawn).to(dtype)) - 1.0).square().mean()

    train(model, opt, range(12), 0, loss, torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=12))
    memory = [v for state in opt.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return held(model) | {f"memory {i}": v.clone() for i, v in enumerate(memory)}


@pytest.mark.parametrize("fused", [False, True], ids=["", "fused"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: "-".join(map(str, spec.values())))
@pytest.mark.parametrize("inner", SINGLE)
def test_one_worker_is_the_inner_optimizer_to_the_bit(inner: str, spec: dict[str, Any], fused: bool) -> None:
    if fused and spec["name"] == "sgp":
        pytest.skip("refused: it computes with points, see test_front_door_fused.py")
    ours, plain = (
        trained(inner, s, torch.float32, **o) for s, o in ((spec, {"fused": True} if fused else {}), (None, {}))
    )
    assert same(ours, plain)


def in_a_group() -> list[str]:
    wrong = []
    for inner in SINGLE:
        for options in ({}, {"message_dtype": torch.bfloat16}, {"on_nan": None}):
            if not same(trained(inner, SPECS[0], torch.float64, **options), trained(inner, None, torch.float64)):
                wrong.append(f"{inner} {options}")
    return wrong


def test_a_process_group_of_one_is_no_different(processes: Pool) -> None:
    assert processes.run(1, f"{HERE}:in_a_group") == [[]]


def test_one_worker_resumes_to_the_bit() -> None:
    model, other = normed(), normed(seed=5)
    opt, fresh = (dissensus.decentralize(SINGLE["adam"](m.parameters()), m) for m in (model, other))
    train(model, opt, range(4), 0)
    other.load_state_dict(model.state_dict())
    fresh.load_state_dict(copy.deepcopy(opt.state_dict()))  # torch's own hands over its memory, not a copy of it
    train(model, opt, range(4, 9), 0)
    train(other, fresh, range(4, 9), 0)
    assert same(held(model), held(other))


class Counting(torch.optim.SGD):
    """It counts its steps in the param group, and moves less from step to step."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            one = torch.ones(()) if self.defaults["tensor"] else 1
            group["count"] = group.get("count", 0) + one
            group["lr"] = 0.1 / float(group["count"])
        return super().step(closure)


class Summing(torch.optim.SGD):
    """What it keeps in the param group depends on all gradients."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["total"] = group.get("total", 0.0) + sum(float(p.grad.abs().sum()) for p in group["params"])
        return super().step(closure)


def counted(decentralized: bool, tensor: bool) -> tuple[dict[str, torch.Tensor], list[int]]:
    model = Mixed((torch.float32, torch.float64, torch.float32))
    first, second, third = (list(layer.parameters()) for layer in model.layers)
    groups: Any = [{"params": first + second}, {"params": third}]  # the first has both dtypes
    opt: torch.optim.Optimizer = Counting(groups, lr=0.1, momentum=0.9)
    opt.defaults["tensor"] = tensor
    if decentralized:
        opt = dissensus.decentralize(opt, model)
    train(model, opt, range(6), 0, in_their_dtype)
    return held(model), [int(group["count"]) for group in opt.param_groups]


@pytest.mark.parametrize("tensor", [False, True], ids=["number", "tensor"])
def test_what_an_optimizer_counts_in_its_groups_is_counted_once(tensor: bool) -> None:
    (ours, count), (plain, expected) = counted(decentralized=True, tensor=tensor), counted(False, tensor)
    assert count == expected == [6, 6]
    assert same(ours, plain)


def test_what_an_optimizer_sums_over_all_parameters_is_refused() -> None:
    model = Mixed((torch.float32, torch.float64, torch.float32))
    opt = dissensus.decentralize(Summing(model.parameters(), lr=0.1), model)
    with pytest.raises(AlgorithmError, match=r"Summing.*'total'.*2 parts"):
        train(model, opt, range(6), 0, in_their_dtype)


def test_such_an_optimizer_may_have_one_part() -> None:
    ends = []
    for wrap in (False, True):
        model = normed()
        opt: torch.optim.Optimizer = Summing(model.parameters(), lr=0.1)
        if wrap:
            opt = dissensus.decentralize(opt, model)
        train(model, opt, range(6), 0)
        ends.append(held(model))
    assert same(*ends)


def test_a_group_that_stands_still_does_not_say_how_the_rate_falls() -> None:
    """The factor of adaptive consensus follows the rate of the step, also where the first group has none."""
    model = normed()
    first, *rest = model.parameters()
    opt = torch.optim.SGD([{"params": [first], "lr": 0.0}, {"params": rest, "lr": 0.1}])
    opt = dissensus.decentralize(opt, model, algorithm=algorithm("dsgd-ac", lr_max=0.1, p=1.0))
    gammas = []
    for rate in (0.1, 0.05):
        opt.param_groups[1]["lr"] = rate
        opt.zero_grad()
        model(torch.ones(4, 5, dtype=torch.float64)).square().mean().backward()
        opt.settle()
        opt.step()
        gammas.append(float(opt.notes["gamma"]))
    assert gammas == [1.0, 0.5]
