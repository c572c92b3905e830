"""Every registered algorithm, found by discovery, against its dense matrix form: 100 steps in float64."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.algorithms import AccumAdam, AccumAdamW, AlgorithmError, algorithm, algorithms, stream

N, D, STEPS, SEED = 8, 5, 100, 7

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
        {"compressor": "random-k", "ratio": 0.4, "consensus_step": 0.2},
        {"compressor": "random-k", "ratio": 0.4, "consensus_step": 0.2, "order": "compress-first"},
        {"compressor": "quantized", "bits": 4, "consensus_step": 0.2},
        {"compressor": "quantized", "bits": 2, "consensus_step": 0.1, "order": "compress-first"},
    ],
    "dadam": [{}, {"order": "atc"}, {"order": "cta", "gamma": 0.3}],
    "sam": [{"rho": 0.2}, {"order": "awc"}, {"order": "atc", "rho": 0.5}, {"order": "cta"}],
    "avg-sam": [
        {"rho": 0.2},
        {"order": "awc", "draws": 3, "law": "gaussian"},
        {"order": "atc", "draws": 2, "antithetic": True},
        {"order": "cta"},
    ],
}
TOPOLOGY_NAMES = ("ring", "one-peer-exponential", "directed", "column-stochastic")
OPTIMIZER_NAMES = ("sgd", "momentum", "nesterov", "decay", "momentum-decay", "adam", "adamw")
EVERY_OPTIMIZER_ON = {"one-peer-exponential", "column-stochastic"}


class AccumulatedMove:
    """AccumAdam(W) on arrays, from the gradients of the window so far: what is committed is their mean."""

    def __init__(self, s: int, coupled: float = 0.0, decoupled: float = 0.0, inside: bool = False) -> None:
        self.s, self.coupled, self.decoupled, self.inside = s, coupled, decoupled, inside
        self.window: list[np.ndarray] = []
        self.m, self.v, self.k = 0.0, 0.0, 1

    def __call__(self, t: int, x: np.ndarray, g: np.ndarray, lr: float) -> np.ndarray:
        g = g + self.coupled * x
        m, v = ((0.9 * self.m + 0.1 * g) / (1 - 0.9**self.k), (0.999 * self.v + 0.001 * g**2) / (1 - 0.999**self.k))
        moved = x * (1 - lr * self.decoupled) - lr * m / (np.sqrt(v + 1e-3) if self.inside else np.sqrt(v) + 1e-3)
        self.window.append(g)
        if len(self.window) == self.s:
            mean = np.mean(self.window, axis=0)
            self.m, self.v = 0.9 * self.m + 0.1 * mean, 0.999 * self.v + 0.001 * mean**2
            self.window, self.k = [], self.k + 1
        return moved


OURS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "accum-adam": (
        partial(AccumAdam, lr=0.1, eps=1e-3, accum_steps=4, weight_decay=0.1),
        partial(AccumulatedMove, 4, coupled=0.1),
    ),
    "accum-adamw": (
        partial(AccumAdamW, lr=0.1, eps=1e-3, accum_steps=3, weight_decay=0.2),
        partial(AccumulatedMove, 3, decoupled=0.2),
    ),
    "adam-in-root": (
        partial(AccumAdam, lr=0.1, eps=1e-3, eps_in_root=True),
        partial(AccumulatedMove, 1, inside=True),
    ),
}
ADAMS = ("adam", "adamw", *OURS)


def learning_rate(t: int) -> float:
    """A short warm-up, then a decay: every schedule-dependent piece is exercised."""
    return 0.05 * min(1.0, (t + 1) / 8) / (1 + t / 50)


def generators(t: int, purpose: str) -> list[torch.Generator]:
    """The same numbers for the matrix form as for the engine: a stream per step and worker."""
    return [stream(SEED, purpose, t, i) for i in range(N)]


def cases() -> Iterator[Any]:
    for name in algorithms():
        for i, parameters in enumerate(VARIANTS.get(name, [{}])):
            for topology in TOPOLOGY_NAMES:
                every = topology in EVERY_OPTIMIZER_ON and i == 0
                if algorithm(name, **parameters).promise is None and topology != "one-peer-exponential":
                    chosen = ("sgd",)  # it never mixes: that the topology is not used is seen once each
                elif hasattr(algorithms()[name], "families"):
                    chosen = ADAMS if every else ("adam", "accum-adamw")
                elif i == 0:
                    chosen = (*OPTIMIZER_NAMES, *OURS) if every else ("sgd", "nesterov", "adam")
                else:
                    chosen = ("momentum-decay",)
                for optimizer in chosen:
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
    factory, move = (optimizers | OURS)[optimizer_name]
    refused = (recursion.promise == "doubly" and topology.promise != "doubly") or (
        recursion.static and topology.period != 1
    )
    if refused:
        with pytest.raises(AlgorithmError, match=f"algorithm '{name}' .* topology"):
            problem.engine(recursion, topology, optimizer=factory, lr=learning_rate)
        return
    engine = problem.engine(recursion, topology, optimizer=factory, lr=learning_rate, seed=SEED)
    got = problem.run(engine, STEPS)
    dense = replace(problem.dense(topology, learning_rate, move()), generators=generators)
    expected = recursion.matrix_form(dense, STEPS)
    # relative to the size of the trajectory; rounding of 100 contracting steps stays orders below
    assert np.abs(got - expected).max() <= 1e-10 * np.abs(expected).max()


def test_quasi_global_momentum_divides_by_the_rate_of_each_worker(quadratics: Any, schedules: dict) -> None:
    problem, topology = quadratics.draw(4, D, 30), schedules["directed"](4)
    rates = np.array([0.05, 0.0, 0.1, 0.05])[:, None]
    engine = problem.engine("qg-dsgdm", topology, lr=0.05, per_worker=[{"lr": float(r)} for r in 2 * rates[:, 0]])
    x, m = problem.x0, np.zeros((4, D))
    for t in range(30):
        half = x - rates * (0.9 * m + problem.gradient(t, x))
        mixed = topology[t].dense() @ half
        followed = [0.9 * m[i] + 0.1 * (x[i] - mixed[i]) / rates[i] if rates[i] > 0 else m[i] for i in range(4)]
        x, m = mixed, np.stack(followed)
        engine.step(problem.batch(t))
        np.testing.assert_allclose(engine.x.numpy(), x, rtol=0, atol=1e-12 * np.abs(x).max())


def test_every_algorithm_is_swept() -> None:
    named = "allreduce dsgd dsgd-ac dadam local-sgd gradient-tracking qg-dsgdm sgp choco-sgd sam avg-sam"
    assert set(named.split()) <= set(algorithms())
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
