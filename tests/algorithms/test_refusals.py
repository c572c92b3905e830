"""Bad input and bad numbers end in one sentence that says what, where, and what works."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dissensus.algorithms import AlgorithmError, StackedEngine, algorithm, numpy_stream, register, stream
from dissensus.algorithms.compression import TopK
from dissensus.algorithms.recursions.allreduce import AllReduce

SGD = partial(torch.optim.SGD, lr=0.1)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("dsdg", {}, "unknown algorithm 'dsdg'; did you mean 'dsgd'"),
        ("zzzzzz", {}, "unknown algorithm 'zzzzzz'; known: allreduce, avg-sam, choco-sgd, dadam, dsgd"),
        ("dsgd", {"ordre": "awc"}, "algorithm 'dsgd' has no parameter 'ordre'; did you mean 'order'"),
        ("choco_sgd", {"_compress": 1}, "algorithm 'choco-sgd' has no parameter '_compress'"),
        ("dsgd", {"order": "atx"}, "order must be one of awc, atc, cta, got 'atx'; did you mean 'atc'"),
        ("dsgd", {"gamma": 1.5}, r"gamma must lie in \[0, 1\], got 1.5"),
        ("dsgd", {"gamma": float("nan")}, r"gamma must lie in \[0, 1\], got nan"),
        ("dsgd", {"gamma": "half"}, r"gamma must lie in \[0, 1\], got 'half'"),
        ("dsgd-ac", {"gamma_min": -0.1}, r"gamma_min must lie in \[0, 1\], got -0.1"),
        ("dsgd-ac", {"gamma": 2.0}, r"gamma must lie in \[0, 1\], got 2.0"),
        ("dsgd-ac", {"order": "x"}, "order must be one of awc, atc, cta, got 'x'"),
        ("dsgd-ac", {"capture": "publish"}, "capture must be 'window' or 'published', got 'publish'; did you mean"),
        ("dsgd-ac", {"p": -1.0}, "p must be at least 0, got -1.0: use gamma= for a constant factor"),
        ("dsgd-ac", {"start": -1}, "start is a step counted from 0, got -1"),
        ("dsgd-ac", {"lr_max": 0.0}, "lr_max must be positive, got 0.0"),
        ("local-sgd", {"period": 0}, "period must be a whole number of steps, at least 1, got 0"),
        ("qg-dsgdm", {"beta": 1.0}, r"beta must lie in \[0, 1\), got 1.0"),
        ("qg-dsgdm", {"nu": 2.0}, r"nu must lie in \[0, 1\], got 2.0"),
        ("choco-sgd", {"compressor": "topk"}, "unknown compressor 'topk'; did you mean 'top-k'"),
        ("choco-sgd", {"ratio": 0.0}, r"ratio must lie in \(0, 1\], got 0.0"),
        ("choco-sgd", {"consensus_step": 0.0}, r"consensus_step must lie in \(0, 1\], got 0.0"),
        ("choco-sgd", {"order": "gossip"}, "order must be gossip-first or compress-first, got 'gossip'; did you mean"),
    ],
)
def test_parameters_are_refused(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        algorithm(name, **parameters)


def test_underscores_are_accepted() -> None:
    assert algorithm("dsgd_ac") == algorithm("dsgd-ac")


def test_a_name_is_registered_once_and_for_a_dataclass() -> None:
    cls = type(algorithm("dsgd"))
    with pytest.raises(AlgorithmError, match="algorithm 'dsgd' is registered twice"):
        register("dsgd")(cls)
    with pytest.raises(AlgorithmError, match="algorithm 'plain' must be a frozen dataclass"):
        register("plain")(type("Plain", (), {}))


def test_a_gamma_function_is_checked_when_it_is_called(quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(4, 2, 3)
    engine = problem.engine(algorithm("dsgd", gamma=lambda t, lr: 1.0 + t), schedules["ring"](4), lr=0.1)
    engine.step(problem.batch(0))
    with pytest.raises(AlgorithmError, match=r"gamma must lie in \[0, 1\], got 2.0"):
        engine.step(problem.batch(1))


def test_topologies_that_break_an_algorithm_are_refused(quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(4, 2, 1)
    with pytest.raises(
        AlgorithmError,
        match="algorithm 'dsgd' needs doubly stochastic mixing, but topology 'push' is only column stochastic; use sgp",
    ):
        problem.engine(algorithm("dsgd"), schedules["column-stochastic"](4))
    with pytest.raises(AlgorithmError, match=r"'choco-sgd' remembers W times .* 'one-peer-exponential' has 2 rounds"):
        problem.engine(algorithm("choco-sgd"), schedules["one-peer-exponential"](4))
    problem.engine(algorithm("allreduce"), schedules["column-stochastic"](4))


def test_shapes_are_refused(quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(4, 2, 1)
    engine = problem.engine(algorithm("dsgd"), schedules["ring"](4))
    with pytest.raises(AlgorithmError, match=r"needs the worker dimension first, \(4, ...\), got \(3, 2, 2\)"):
        engine.step({k: v[:3] for k, v in problem.batch(0).items()})
    with pytest.raises(AlgorithmError, match="a batch is made of tensors in tuples, lists and dicts, got ndarray"):
        engine.step(problem.A)
    with pytest.raises(AlgorithmError, match=r"start must have shape \(2,\) or \(4, 2\), got \(3, 2\)"):
        problem.engine(algorithm("dsgd"), schedules["ring"](4), start=torch.zeros(3, 2))
    with pytest.raises(AlgorithmError, match="gradients must be 'auto', 'vmap' or 'loop', got 'map'"):
        problem.engine(algorithm("dsgd"), schedules["ring"](4), gradients="map")
    with pytest.raises(AlgorithmError, match="chunk must be at least 1 worker, got 0"):
        problem.engine(algorithm("dsgd"), schedules["ring"](4), chunk=0)


@pytest.mark.parametrize("route", ["vmap", "loop", "auto"])
def test_a_loss_that_is_no_scalar_is_refused(route: Any, schedules: dict) -> None:
    def build(loss: Any) -> StackedEngine:
        return StackedEngine(
            nn.Linear(3, 2), loss, algorithm="dsgd", topology=schedules["ring"](4), optimizer=SGD, gradients=route
        )

    batch = torch.ones(4, 5, 3)
    with pytest.raises(AlgorithmError, match=r"must return a scalar tensor, got shape \(5,\); take the mean"):
        build(lambda m, b: m(b).sum(dim=1)).step(batch)
    with pytest.raises(AlgorithmError, match="must return a scalar tensor, got float"):
        build(lambda m, b: 1.0).step(batch)


@pytest.mark.parametrize("route", ["vmap", "loop"])
@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
def test_a_loss_that_is_not_a_number_names_worker_and_step(
    order: str, route: str, quadratics: Any, schedules: dict
) -> None:
    problem = quadratics.draw(4, 2, 5)
    problem.noise[3, 2] = np.nan
    engine = problem.engine(algorithm("dsgd", order=order), schedules["ring"](4), gradients=route, lr=0.1)
    for t in range(3):
        engine.step(problem.batch(t))
    before = engine.x
    with pytest.raises(AlgorithmError, match="worker 2 has the loss nan at step 3; no other worker has received"):
        engine.step(problem.batch(3))
    assert torch.equal(engine.x, before)
    assert engine.t == 3


@pytest.mark.parametrize(("order", "what"), [("awc", "parameters"), ("atc", "message"), ("cta", "parameters")])
def test_numbers_that_overflow_name_worker_and_step(order: str, what: str, quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(4, 2, 1)
    still = quadratics(problem.A, problem.b, np.zeros((1, 4, 2)), np.zeros((4, 2)))
    still.noise[0, 1, 0] = 1e308  # the loss at zero is zero, the gradient is finite, ten times it is not
    engine = still.engine(algorithm("dsgd", order=order), schedules["ring"](4), lr=10.0)
    with pytest.raises(AlgorithmError, match=f"worker 1 has .*{what}.* not finite at step 0; no other worker"):
        engine.step(still.batch(0))


def test_large_numbers_whose_sum_overflows_are_no_error(quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(4, 2, 1)
    large = quadratics(np.zeros_like(problem.A), problem.b * 0, problem.noise * 0, np.full((4, 2), 1e308))
    engine = large.engine(algorithm("dsgd", order="atc"), schedules["ring"](4), lr=0.1)
    engine.step(large.batch(0))
    assert torch.isfinite(engine.x).all()


def test_a_request_that_is_none_is_named(quadratics: Any, schedules: dict) -> None:
    class Odd(AllReduce):
        def step(self, x: Any, state: Any, local: Any) -> Any:
            yield "please"

    problem = quadratics.draw(4, 2, 1)
    with pytest.raises(AlgorithmError, match="algorithm 'allreduce' asked for str: no request of the protocol"):
        problem.engine(Odd(), schedules["ring"](4)).step(problem.batch(0))


def test_keys_of_streams_are_words_and_whole_numbers() -> None:
    for bad in (1.5, True, None, (1,)):
        with pytest.raises(AlgorithmError, match="made of words and whole numbers, got"):
            stream(0, bad)  # type: ignore[arg-type]
        with pytest.raises(AlgorithmError, match="made of words and whole numbers, got"):
            numpy_stream(0, "a", bad)  # type: ignore[arg-type]


def test_top_k_sends_at_least_one_number() -> None:
    assert int((TopK(0.01)(torch.ones(2, 5)) != 0).sum()) == 2
    assert int((TopK(0.1)(torch.rand(1, 30) + 1) != 0).sum()) == 3
