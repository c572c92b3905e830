"""Blocks of workers: however n workers are spread over processes, every algorithm has the same numbers."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pool import Pool
from torch import Tensor, nn

from dissensus.algorithms import AlgorithmError, StackedEngine, algorithm, algorithms
from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.algorithms.engines.fit import check_fit
from dissensus.theory import Topology, topology
from dissensus.theory.faults import dropped

HERE, STEPS = Path(__file__), 100
WITHIN = 1e-10
"""Sums in another order leave about 1e-15 after a hundred steps; what is wrong by a weight or a stream leaves 1e-3."""
LAYOUTS = [(4, 2), (4, 4), (8, 2), (8, 4)]
"""Workers, processes."""
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "dsgd": [{"order": "awc"}, {"order": "atc", "gamma": 0.6}, {"order": "cta"}],
    "dsgd-ac": [{"p": 2.0}, {"order": "atc", "start": 10, "gamma_min": 0.1}],
    "local-sgd": [{"period": 7}],
    "qg-dsgdm": [{"nesterov": True}],
    "choco-sgd": [{"ratio": 0.3}, {"compressor": "random-k", "order": "compress-first"}],
    "sam": [{"rho": 0.1}, {"rho": 0.1, "order": "awc"}],
    "avg-sam": [{"draws": 2}, {"antithetic": True, "law": "gaussian", "order": "atc"}],
}
"""The parameters that are tried beside the defaults of every other registered algorithm."""


def schedule(name: str, n: int) -> Topology:
    return dropped(topology("ring", n), 0.3, seed=5) if name == "dropped-ring" else topology(name, n)


SCHEDULES = ("ring", "one-peer-exponential", "exponential", "dropped-ring", "random-digraph")


def fits(name: str, parameters: dict[str, Any], graph: str) -> bool:
    try:
        check_fit(algorithm(name, **parameters), schedule(graph, 4))
    except AlgorithmError:
        return False
    return True


def cases() -> list[Any]:
    """Every algorithm on every schedule it may run on, the layouts taking turns, and some in every layout."""
    found: list[tuple[str, dict[str, Any], str, int, int]] = []
    for name in algorithms():
        for k, parameters in enumerate(VARIANTS.get(name, [{}])):
            able = [graph for graph in SCHEDULES if fits(name, parameters, graph)]
            for graph in able if k == 0 else able[:2]:
                found.append((name, parameters, graph, *LAYOUTS[len(found) % len(LAYOUTS)]))
    for name in ("dsgd", "gradient-tracking", "choco-sgd"):
        parameters = VARIANTS.get(name, [{}])[0]
        found += [case for n, p in LAYOUTS if (case := (name, parameters, "ring", n, p)) not in found]
    return [pytest.param(*case, id=f"{case[0]}-{case[2]}-{case[3]}on{case[4]}-{i}") for i, case in enumerate(found)]


def network() -> nn.Module:
    """BatchNorm keeps statistics of every worker, dropout draws from its stream."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Dropout(0.3), nn.Linear(7, 3)]
    return nn.Sequential(*layers).double()


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def batch(t: int, workers: range) -> tuple[Tensor, Tensor]:
    """The batches of these workers, a function of step and worker."""
    drawn = [torch.Generator().manual_seed(1000 * i + t) for i in workers]
    inputs = [
        torch.randn(6, 6, generator=g, dtype=torch.float64) + 0.1 * i for g, i in zip(drawn, workers, strict=True)
    ]
    return torch.stack(inputs), torch.stack([torch.randint(0, 3, (6,), generator=g) for g in drawn])


def engine_of(n: int, name: str, parameters: dict[str, Any], graph: str, **options: Any) -> StackedEngine:
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.0 if name == "qg-dsgdm" else 0.9, weight_decay=0.01)
    usual = {
        # without that eps what is zero but for rounding, the bias before BatchNorm, would be divided by its own size
        "optimizer": partial(torch.optim.Adam, lr=0.01, eps=1e-3) if name == "dadam" else sgd,
        "lr": lambda t: (0.01 if name == "dadam" else 0.1) * (1.0 - 0.9 * t / STEPS),
        "gradients": "vmap",
    }
    return StackedEngine(
        network(),
        cross_entropy,
        algorithm=algorithm(name, **parameters),
        topology=schedule(graph, n),
        **(usual | options),
    )


def held(engine: StackedEngine, losses: list[Tensor]) -> dict[str, Tensor]:
    """Everything that has a row per worker."""
    state = {f"state {k}": v for k, v in engine.state._asdict().items()}
    buffers = {f"buffer {k}": v.double() for k, v in engine.buffers.items()}
    return {"x": engine.x, "losses": torch.stack(losses, dim=1), **state, **buffers}


def script(count: int, name: str, parameters: dict[str, Any], graph: str, wired: bool = True) -> dict[str, Tensor]:
    engine = engine_of(count, name, parameters, graph, wire=Wire(timeout=60) if wired else None)
    losses = [engine.step(batch(t, engine.workers)).losses for t in range(STEPS)]
    return held(engine, losses)


def together(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference, relative to the largest number of each tensor."""
    assert found.keys() == expected.keys()
    assert all(torch.isfinite(v).all() for v in (*found.values(), *expected.values()))
    assert all(found[k].shape == v.shape for k, v in expected.items())
    return {k: ((found[k] - v).abs().max() / v.abs().max().clamp(min=1e-3)).item() for k, v in expected.items()}


@pytest.mark.parametrize(("name", "parameters", "graph", "n", "count"), cases())
def test_every_layout_has_the_same_numbers(
    name: str, parameters: dict[str, Any], graph: str, n: int, count: int, processes: Pool
) -> None:
    what: dict[str, Any] = {"count": n, "name": name, "parameters": parameters, "graph": graph}
    found = together(processes.run(count, f"{HERE}:script", **what))
    for which, error in distance(found, script(**what, wired=False)).items():
        assert error < WITHIN, f"{which} differs by {error}"


@pytest.mark.parametrize("graph", ["ring", "one-peer-exponential"])
def test_one_process_is_the_engine_without_a_wire_to_the_bit(graph: str) -> None:
    for name in ("dsgd", "gradient-tracking"):
        found, expected = script(4, name, {}, graph), script(4, name, {}, graph, wired=False)
        assert all(torch.equal(found[k], v) for k, v in expected.items())
