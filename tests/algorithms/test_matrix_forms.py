"""Every registered algorithm, found by discovery, against its dense matrix form: 100 steps in float64."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dissensus.algorithms import AlgorithmError, algorithm, algorithms

N, D, STEPS = 8, 5, 100

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "dsgd": [
        {"order": "awc"},
        {"order": "atc"},
        {"order": "cta"},
        {"order": "awc", "gamma": 0.3},
        {"order": "atc", "gamma": lambda t, lr: 1 / (1 + t / 20)},
    ],
    "dsgd-ac": [
        {},
        {"p": 2.0, "gamma_min": 0.1, "start": 20},
        {"start": 3, "capture": "published", "p": 1.0},
        {"lr_max": 0.1, "order": "atc"},
        {"order": "cta", "p": 2.0},
        {"gamma": 0.25, "start": 10},
    ],
    "gradient-tracking": [{}],
    "local-sgd": [{"period": 7}, {"period": 1}],
    "qg-dsgdm": [{}, {"nesterov": True, "beta": 0.8, "nu": 0.2}],
    "sgp": [{}],
    "choco-sgd": [
        {"ratio": 0.4},
        {"compressor": "identity", "consensus_step": 1.0},
        {"compressor": "sign", "consensus_step": 0.1},
        {"ratio": 0.4, "order": "compress-first"},
    ],
}
TOPOLOGY_NAMES = ("ring", "one-peer-exponential", "directed", "column-stochastic")
OPTIMIZER_NAMES = ("sgd", "momentum", "nesterov", "decay", "momentum-decay", "adam", "adamw")
EVERY_OPTIMIZER_ON = {"one-peer-exponential", "column-stochastic"}


def learning_rate(t: int) -> float:
    """A short warm-up, then a decay: every schedule-dependent piece is exercised."""
    return 0.05 * min(1.0, (t + 1) / 8) / (1 + t / 50)


def cases() -> Iterator[Any]:
    for name in algorithms():
        for i, parameters in enumerate(VARIANTS.get(name, [{}])):
            for topology in TOPOLOGY_NAMES:
                chosen = ("sgd", "nesterov", "adam") if topology not in EVERY_OPTIMIZER_ON else OPTIMIZER_NAMES
                for optimizer in chosen if i == 0 else ("momentum-decay",):
                    yield pytest.param(name, parameters, topology, optimizer, id=f"{name}-{i}-{topology}-{optimizer}")


@pytest.mark.parametrize(("name", "parameters", "topology_name", "optimizer_name"), list(cases()))
def test_engine_equals_matrix_form(
    name: str,
    parameters: dict[str, Any],
    topology_name: str,
    optimizer_name: str,
    quadratics: Any,
    schedules: dict[str, Callable],
    optimizers: dict[str, tuple],
) -> None:
    problem, topology = quadratics.draw(N, D, STEPS), schedules[topology_name](N)
    recursion = algorithm(name, **parameters)
    factory, move = optimizers[optimizer_name]
    refused = (recursion.promise == "doubly" and topology.promise != "doubly") or (
        recursion.static and topology.period != 1
    )
    if refused:
        with pytest.raises(AlgorithmError, match=f"algorithm '{name}' .* topology"):
            problem.engine(recursion, topology, optimizer=factory, lr=learning_rate)
        return
    engine = problem.engine(recursion, topology, optimizer=factory, lr=learning_rate)
    got = problem.run(engine, STEPS)
    expected = recursion.matrix_form(problem.dense(topology, learning_rate, move()), STEPS)
    # relative to the size of the trajectory; rounding of 100 contracting steps stays orders below
    assert np.abs(got - expected).max() <= 1e-10 * np.abs(expected).max()


def test_every_algorithm_is_swept() -> None:
    assert {"allreduce", "dsgd", "dsgd-ac", "gradient-tracking", "qg-dsgdm", "sgp", "choco-sgd"} <= set(algorithms())
    assert set(VARIANTS) <= set(algorithms())


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_every_algorithm_says_what_it_is(name: str) -> None:
    cls = algorithms()[name]
    assert cls.name == name
    assert cls.reference
    assert cls.promise in (None, "doubly", "row", "column")
    assert isinstance(cls.static, bool)
    assert isinstance(cls.columnwise, bool)
    assert "$" in (sys.modules[cls.__module__].__doc__ or ""), "the equation belongs in the docstring of the module"
