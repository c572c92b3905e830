"""A gradient scaler skips a step on one worker: it does not move, but it mixes, and nobody waits in vain."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from plain import Copies, distance, held, net, same, squared
from pool import Pool
from torch import nn
from variants import Mixed, in_their_dtype

import dissensus

HERE = Path(__file__)
N, STEPS, WHEN, WHO = 4, 12, 5, 1
INNER = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.05),
    "adam": partial(torch.optim.Adam, lr=0.02),
    "adam with a scale of its own": partial(torch.optim.Adam, lr=0.02, fused=True),
}


def script(inner: str, spec: dict[str, Any], topology: str, clip: bool = False) -> dict[str, Any]:
    """`WHO` has an overflow at step `WHEN`. Scales are powers of two, so that they leave no trace in the numbers."""
    model, worker = net(), dist.get_rank()
    opt = dissensus.decentralize(
        INNER[inner](model.parameters()),
        model,
        algorithm=dissensus.algorithms.algorithm(**spec),
        topology=topology,
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    scales = []
    for t in range(STEPS):
        opt.zero_grad()
        loss = squared(model, t, worker) * (float("inf") if (t, worker) == (WHEN, WHO) else 1.0)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(opt)
        scaler.update()
        scales.append(scaler.get_scale())
    assert not hasattr(opt, "found_inf")
    return {"model": held(model), "backed off": scales[WHEN] < scales[WHEN - 1], "steps": opt.t}


def by_hand(inner: str, order: str, topology: str, clip: bool) -> list[dict[str, torch.Tensor]]:
    copies = Copies(N, lambda _: net(), lambda model: INNER[inner](model.parameters()), topology, order)

    def gradient(model: nn.Module, t: int, worker: int) -> None:
        squared(model, t, worker).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    for t in range(STEPS):
        copies.step(gradient, absent=[WHO] if t == WHEN else [])
    return copies.held


@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
@pytest.mark.parametrize(("order", "topology"), [("awc", "ring"), ("atc", "one-peer-exponential")])
@pytest.mark.parametrize("inner", INNER)
def test_a_worker_with_an_overflow_mixes_but_does_not_move(
    inner: str, order: str, topology: str, clip: bool, processes: Pool
) -> None:
    spec = {"name": "dsgd", "order": order}
    measured = processes.run(N, f"{HERE}:script", inner=inner, spec=spec, topology=topology, clip=clip)
    assert [m["backed off"] for m in measured] == [i == WHO for i in range(N)]
    assert [m["steps"] for m in measured] == [STEPS] * N
    assert distance([m["model"] for m in measured], by_hand(inner, order, topology, clip)) <= 1e-10


@pytest.mark.parametrize("name", ["allreduce", "local-sgd", "gradient-tracking", "qg-dsgdm", "sgp", "dsgd-ac"])
def test_an_overflow_poisons_nobody(name: str, processes: Pool) -> None:
    """Whatever an algorithm sends: what is not finite stays where it arose, and the scaler goes on."""
    measured = processes.run(N, f"{HERE}:script", inner="sgd", spec={"name": name}, topology="ring")
    assert all(value.isfinite().all() for m in measured for value in m["model"].values())
    assert distance([measured[0]["model"]], [held(net())]) > 1e-3, "something has been learned"


def in_two_dtypes(name: str) -> dict[str, Any]:
    """Two buckets; an overflow on one worker reaches both of them."""
    model = Mixed((torch.float32, torch.float64, torch.float32))
    before = held(model)
    opt = dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model, algorithm=name, timeout=30)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=100)
    for t in range(STEPS):
        opt.zero_grad()
        infinite = (t, dist.get_rank()) == (WHEN, WHO)
        scaler.scale(in_their_dtype(model, t, dist.get_rank()) * (float("inf") if infinite else 1.0)).backward()
        scaler.step(opt)
        scaler.update()
    assert distance([held(model)], [before]) > 1e-3, "something has been learned"
    return {"model": held(model), "scale": scaler.get_scale()}


@pytest.mark.parametrize("name", ["allreduce", "local-sgd", "gradient-tracking", "dsgd"])
def test_an_overflow_poisons_no_bucket(name: str, processes: Pool) -> None:
    measured = processes.run(N, f"{HERE}:in_two_dtypes", name=name)
    assert all(value.isfinite().all() for m in measured for value in m["model"].values())
    assert [m["scale"] for m in measured] == [2.0**9 if i == WHO else 2.0**10 for i in range(N)]
    if name == "allreduce":
        assert all(same(m["model"], measured[0]["model"]) for m in measured)


def all_at_once() -> dict[str, Any]:
    model = net()
    opt = dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model, algorithm="allreduce")
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = held(model)
    scaler.scale(squared(model, 0, dist.get_rank()) * float("inf")).backward()
    scaler.step(opt)
    scaler.update()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return {"scale": scaler.get_scale()}


def test_an_overflow_everywhere_moves_nobody(processes: Pool) -> None:
    assert [m["scale"] for m in processes.run(2, f"{HERE}:all_at_once")] == [4.0, 4.0]
