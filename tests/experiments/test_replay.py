"""The worst case in the engine: it attains the certificate, and nothing that the engine runs exceeds one."""

import numpy as np
import pytest
import torch

from dissensus.algorithms.registry import algorithm
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.problem import Problem, solve
from dissensus.experiments.replay import loss_of, replay
from dissensus.theory import topology
from dissensus.theory.certificates import certify, worst_case

ATTAINED = 5e-6

CASES = {
    "awc": {"contraction": 1 / 3, "steps": 5, "lr": 1 / 3},
    "atc": {"contraction": 0.9, "steps": 4, "lr": 0.6, "order": "atc", "criterion": "consensus"},
    "cta": {"contraction": 0.5, "steps": 3, "lr": 0.5, "order": "cta", "criterion": "last", "convexity": 0.2},
    "ring awc": {"topology": topology("ring", 4), "steps": 5, "lr": 1 / 3},
    "ring atc": {"topology": topology("ring", 4), "steps": 3, "lr": 1 / 3, "order": "atc"},
    "schedule": {"topology": topology("one-peer-exponential", 4), "steps": 3, "lr": 0.4, "criterion": "distance"},
    "tracking": {"method": "gradient-tracking", "contraction": 0.5, "steps": 4, "lr": 0.2, "criterion": "last"},
    "rate": {"method": "diging", "contraction": 0.5, "steps": 1, "lr": 0.11, "convexity": 0.1, "criterion": "rate"},
    "rate of three steps": {
        "method": "diging",
        "contraction": 0.3,
        "steps": 3,
        "lr": 0.2,
        "convexity": 0.1,
        "criterion": "rate",
    },
}


@pytest.mark.parametrize("name", list(CASES))
def test_the_engine_attains_the_certificate(name: str) -> None:
    certificate = certify(**CASES[name])
    assert certificate.certified
    played = replay(certificate)
    assert played.attained <= certificate.value * (1 + 1e-9)
    assert played.attained == pytest.approx(certificate.value, rel=ATTAINED)
    assert played.shortfall == pytest.approx(1 - played.attained / certificate.value, abs=1e-15)
    assert played.run.shape == (certificate.setting.steps + 1, played.instance.size, played.instance.dimension)


def test_the_engine_and_numpy_walk_the_same_way() -> None:
    played = replay(certify(contraction=0.5, steps=4, lr=0.4, convexity=0.1, criterion="distance"))
    # both ask the same functions; where two weightings are equally good the gradients differ by the solver's accuracy
    np.testing.assert_allclose(played.run, played.instance.run(), atol=1e-7)


def test_the_worst_case_of_one_order_is_not_that_of_another() -> None:
    # the replay runs what it is told to: with the wrong order the value is missed
    awc, atc = (certify(contraction=0.8, steps=4, lr=0.6, order=order) for order in ("awc", "atc"))
    instance = worst_case(awc)
    assert abs(awc.value - atc.value) > 1e-3
    assert instance.measured() == pytest.approx(awc.value, rel=ATTAINED)


def test_autograd_sees_the_gradient_of_the_interpolation() -> None:
    from dissensus.experiments.problem import Point

    instance = worst_case(certify(contraction=0.5, steps=3, lr=0.4, convexity=0.3, smoothness=2.0))
    loss, x = loss_of(instance), np.random.default_rng(0).normal(size=(instance.size, instance.dimension))
    expected = instance.gradient(x)
    for i in range(instance.size):
        model = Point(instance.dimension, torch.float64)
        model.x.data = torch.from_numpy(x[i])
        loss(model, {"worker": torch.tensor(i)}).backward()
        assert model.x.grad is not None
        np.testing.assert_allclose(model.x.grad.numpy(), expected[i], atol=1e-9)


@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
def test_no_quadratic_in_the_engine_exceeds_the_certificate(order: str) -> None:
    ring, steps, lr = topology("ring", 4), 4, 0.6
    by_class = certify(contraction=1 / 3, steps=steps, lr=lr, order=order, criterion="last")
    given = certify(topology=ring, steps=steps, lr=lr, order=order, criterion="last")
    assert by_class.certified
    assert given.certified
    assert given.value <= by_class.value * (1 + 1e-6)
    largest = 0.0
    for seed in range(15):
        drawn = Problem.draw(4, 3, seed=seed, heterogeneity=1.0, conditioning=4.0)
        assert drawn.optimum is not None
        start = drawn.optimum + np.array([1.0, 0.0, 0.0])  # distance 1
        problem = Problem(drawn.A, drawn.b, start)
        run = solve(problem, algorithm=algorithm("dsgd", order=order), topology=ring, lr=lr, steps=steps)
        largest = max(largest, problem.loss(run[-1].mean(axis=0)) - problem.loss(drawn.optimum))
    assert 0.0 < largest <= given.value


def test_a_method_the_engine_does_not_have_is_told() -> None:
    from dissensus.algorithms.registry import algorithms

    if "extra" in algorithms():
        pytest.skip("the engine has EXTRA")
    with pytest.raises(ConfigError, match=r"no algorithm 'extra' to replay .*measured\(\) runs it in numpy"):
        replay(certify("extra", contraction=0.5, steps=2, lr=0.3))
