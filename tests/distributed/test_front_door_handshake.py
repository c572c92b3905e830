"""Processes that do not fit together: every one of them ends with a sentence that names who differs, and in what."""

import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from pool import Pool
from torch import nn

import dissensus
from dissensus.algorithms import AlgorithmError, algorithm
from dissensus.algorithms.recursions.dsgd import Dsgd

HERE = Path(__file__)
IN_TIME = 10.0
"""Seconds until the last process has been told."""


def net(width: int = 7, activation: str = "act", more: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers: dict[str, nn.Module] = {"first": nn.Linear(5, width), activation: nn.PReLU(), "last": nn.Linear(width, 3)}
    if more:
        layers["more"] = nn.Linear(3, 3)
    return nn.Sequential(OrderedDict(layers))


def frozen() -> nn.Module:
    model = net()
    next(model.parameters()).requires_grad_(False)
    return model


def transposed() -> nn.Module:
    """The same numbers, which lie otherwise in memory: messages are memory as it lies."""
    model = net()
    first = model[0]
    assert isinstance(first, nn.Linear)
    first.weight = nn.Parameter(first.weight.t().contiguous().t())
    return model


DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "shape": ({"model": lambda: net(width=8)}, r"first\.weight"),
    "dtype": ({"model": lambda: net().double()}, r"float64"),
    "name": ({"model": lambda: net(activation="slope")}, r"slope\.weight.*act\.weight|act\.weight.*slope\.weight"),
    "order in memory": ({"model": transposed}, r"first\.weight"),
    "number": ({"model": lambda: net(more=True)}, r"more\.weight|parameters"),
    "what is trained": ({"model": frozen}, r"first\.weight|number of parameters"),
    "topology": ({"topology": "one-peer-exponential"}, r"one-peer-exponential"),
    "algorithm": ({"algorithm": "gradient-tracking"}, r"(?i)gradient.?tracking"),
    "parameter of the algorithm": ({"algorithm": ("dsgd", {"gamma": 0.5})}, r"0\.5"),
    "seed": ({"seed": 7}, r"seed"),
    "dtype of messages": ({"message_dtype": torch.bfloat16}, r"bfloat16|message_dtype"),
    "fused": ({"fused": True}, r"fused"),
    "start": ({"start": "own"}, r"start"),
}
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a word that is none": ({"topology": "rign"}, r"rign"),
    "an algorithm that is none": ({"algorithm": "dsdg"}, r"dsdg"),
    "another size": ({"topology": lambda: dissensus.topology("ring", 5)}, r"5 workers"),
    "another model": ({"parameters": lambda model: list(net().parameters())}, r"not the model's"),
    "a policy that is none": ({"on_nan": "halt"}, r"halt"),
}


def script(odd: int, case: str) -> tuple[str, str]:
    changed = (DIFFERENT | BROKEN)[case][0] if dist.get_rank() == odd else {}
    options: dict[str, Any] = {"topology": "ring", "algorithm": "dsgd"} | changed
    model = options.pop("model", net)()
    parameters: Callable[[nn.Module], Any] = options.pop("parameters", lambda model: list(model.parameters()))
    if isinstance(options["algorithm"], tuple):
        name, more = options["algorithm"]
        options["algorithm"] = algorithm(name, **more)
    if callable(options["topology"]):
        options["topology"] = options["topology"]()
    try:
        dissensus.decentralize(torch.optim.SGD(parameters(model), lr=0.1), model, **options)
    except Exception as error:
        dist.barrier()  # the process group has not suffered
        return type(error).__name__, str(error)
    return "nothing", ""


def named(worker: int, told: str) -> bool:
    return re.search(rf"(worker|rank|process) {worker}\b", told) is not None


@pytest.mark.parametrize(
    ("case", "n", "odd"),
    [*((case, 2, 1) for case in DIFFERENT if case != "topology"), ("shape", 4, 2), ("topology", 4, 3)],
)
def test_every_process_is_told_who_differs_and_in_what(case: str, n: int, odd: int, processes: Pool) -> None:
    for kind, told in processes.run(n, f"{HERE}:script", odd=odd, case=case, timeout=IN_TIME):
        assert kind == AlgorithmError.__name__
        assert named(odd, told), told
        assert re.search(DIFFERENT[case][1], told), told


@pytest.mark.parametrize("odd", [1, 0])
@pytest.mark.parametrize("case", BROKEN)
def test_every_process_is_told_when_one_cannot_begin(case: str, odd: int, processes: Pool) -> None:
    outcomes = processes.run(2, f"{HERE}:script", odd=odd, case=case, timeout=IN_TIME)
    assert outcomes[1 - odd][0] == AlgorithmError.__name__
    assert re.search(BROKEN[case][1], outcomes[odd][1])
    assert named(odd, outcomes[1 - odd][1]), outcomes[1 - odd][1]


class Fragile(Dsgd):
    """Cannot begin on one of the workers, for a reason that has nothing to do with us."""

    def init(self, x: torch.Tensor) -> Any:
        if dist.get_rank() == 1:
            raise RuntimeError("the disk is full")
        return super().init(x)


def breaks_in_its_own_way() -> str:
    model = net()
    with pytest.raises(Exception) as told:  # noqa: PT011  each process has its own
        dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model, algorithm=cast(Any, Fragile()))
    return str(told.value)


def test_every_process_is_told_of_an_error_that_is_not_ours(processes: Pool) -> None:
    other, broken = processes.run(2, f"{HERE}:breaks_in_its_own_way", timeout=IN_TIME)
    assert "the disk is full" in broken
    assert named(1, other), other


def with_rates_of_their_own() -> int:
    model = net()
    rate = 0.1 * (1 + dist.get_rank())
    return dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=rate), model, topology="ring").worker


def test_learning_rates_may_differ(processes: Pool) -> None:
    assert processes.run(4, f"{HERE}:with_rates_of_their_own") == [0, 1, 2, 3]


def with_a_function() -> str:
    """A function prints its address, which is another in every process."""

    class Half:
        def __call__(self, t: int, lr: float) -> float:
            return 0.5

    kept = [Half() for _ in range(1 + 1000 * dist.get_rank())]
    model = net()
    dissensus.decentralize(
        torch.optim.SGD(model.parameters(), lr=0.1), model, algorithm=algorithm("dsgd", gamma=kept[-1]), topology="ring"
    )
    return repr(kept[-1])


def test_a_function_in_an_algorithm_is_no_difference(processes: Pool) -> None:
    first, second = processes.run(2, f"{HERE}:with_a_function")
    assert first != second
