"""Models and loops as they are in the wild: four processes are four copies in one, with the recursion by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from plain import Copies, distance, held
from pool import Pool
from torch import Tensor
from variants import VARIANTS, Variant

import dissensus

HERE = Path(__file__)
STEPS = range(8)
ORDERS = [("awc", "ring"), ("atc", "one-peer-exponential")]
CASES = [(name, order, topology) for name in VARIANTS for order, topology in ORDERS]
CASES += [(name, "allreduce", "ring") for name in VARIANTS if name.startswith(("unused", "frozen", "two"))]


def decentralized(variant: Variant, order: str, topology: str, **options: Any) -> tuple[Any, Any]:
    model = variant.build()
    spec = {"name": "allreduce"} if order == "allreduce" else {"name": "dsgd", "order": order}
    algorithm = dissensus.algorithms.algorithm(**spec)
    return model, dissensus.decentralize(
        variant.optimizer(model), model, algorithm=algorithm, topology=topology, **options
    )


def script(name: str, order: str, topology: str) -> dict[str, Any]:
    variant = VARIANTS[name]
    before = variant.build()
    model, opt = decentralized(variant, order, topology)
    VARIANTS[name].train(model, opt, STEPS, dist.get_rank())
    assert [p.dtype for p in model.parameters()] == [p.dtype for p in before.parameters()]
    assert [p.stride() for p in model.parameters()] == [p.stride() for p in before.parameters()]
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), before.parameters(), strict=True) if not p.requires_grad
    ), "what is frozen stays"
    return held(model)


def by_hand(name: str, order: str, topology: str) -> list[dict[str, Tensor]]:
    variant = VARIANTS[name]
    copies = Copies(4, lambda _: variant.build(), variant.optimizer, topology, order)
    for _ in STEPS:
        copies.step(variant.gradient, set_to_none=variant.set_to_none)
    return copies.held


@pytest.mark.parametrize(("name", "order", "topology"), CASES)
def test_four_processes_are_four_copies(name: str, order: str, topology: str, processes: Pool) -> None:
    measured = processes.run(4, f"{HERE}:script", name=name, order=order, topology=topology)
    assert distance(measured, by_hand(name, order, topology)) <= VARIANTS[name].tolerance


def compiled(order: str, inside: bool) -> dict[str, Tensor]:
    variant = VARIANTS["plain"]
    model = variant.build()
    trained: Any = torch.compile(model, backend="aot_eager")
    opt = dissensus.decentralize(
        variant.optimizer(trained),
        model if inside else trained,
        algorithm=dissensus.algorithms.algorithm("dsgd", order=order),
        topology="ring",
    )
    variant.train(trained, opt, STEPS, dist.get_rank())
    return held(model)


@pytest.mark.parametrize(
    ("inside", "order"),
    [(True, "awc"), (False, "awc"), (False, "cta")],
    ids=["model given", "compiled", "compiled cta"],
)
def test_a_compiled_model_trains_as_the_plain_one(inside: bool, order: str, processes: Pool) -> None:
    measured = processes.run(2, f"{HERE}:compiled", order=order, inside=inside)
    copies = Copies(2, lambda _: VARIANTS["plain"].build(), VARIANTS["plain"].optimizer, "ring", order)
    copies.train(STEPS)
    assert distance(measured, copies.held) <= 1e-10
