"""Conservation laws of single algorithms. What holds for all of them is in `dissensus.testing.check_algorithm`."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dissensus.algorithms import StackedEngine, algorithm

N, D, STEPS = 8, 4, 30
SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)


def mlp(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def cross_entropy(model: nn.Module, batch: tuple) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def images(n: int, b: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, b, 6, generator=g, dtype=torch.float64), torch.randint(0, 3, (n, b), generator=g)


def test_complete_graph_and_awc_is_not_large_batch_sgd(schedules: dict) -> None:
    engine = StackedEngine(
        mlp(), cross_entropy, algorithm="dsgd", topology=schedules["complete"](N), optimizer=SGD, gradients="vmap"
    )
    engine.step(images(N))
    assert (engine.x - engine.mean).abs().max() > 1e-3, "a step of disagreement remains"


@pytest.mark.parametrize("optimizer_name", ["sgd", "momentum", "nesterov", "momentum-decay"])
def test_mean_trajectory_on_a_common_quadratic_does_not_depend_on_mixing(
    optimizer_name: str, quadratics: Any, schedules: dict, optimizers: dict
) -> None:
    problem = quadratics.draw(N, D, STEPS, common=True)
    runs = [
        problem.run(problem.engine(recursion, topology, optimizer=optimizers[optimizer_name][0], lr=0.05), STEPS)
        for recursion, topology in [
            (algorithm("allreduce"), schedules["ring"](N)),
            (algorithm("dsgd", order="awc"), schedules["ring"](N)),
            (algorithm("dsgd", order="atc"), schedules["one-peer-exponential"](N)),
            (algorithm("dsgd", order="awc", gamma=0.2), schedules["directed"](N)),
            (algorithm("dsgd", order="atc", gamma=0.0), schedules["complete"](N)),
            (algorithm("dsgd-ac", gamma_min=0.1), schedules["one-peer-exponential"](N)),
        ]
    ]
    for run in runs[1:]:
        np.testing.assert_allclose(run.mean(axis=1), runs[0].mean(axis=1), rtol=0, atol=1e-12)


def test_tracker_has_the_mean_of_the_gradients(quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(N, D, STEPS)
    engine = problem.engine(algorithm("gradient-tracking"), schedules["one-peer-exponential"](N), lr=0.05)
    for t in range(STEPS):
        expected = problem.gradient(t, engine.x.numpy()).mean(axis=0)
        engine.step(problem.batch(t))
        np.testing.assert_allclose(engine.state.received.mean(dim=0).numpy(), expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(engine.state.gradient.mean(dim=0).numpy(), expected, rtol=0, atol=1e-12)


def test_gradient_tracking_removes_the_bias_of_heterogeneity(quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(N, D, 1)
    quiet = quadratics(problem.A, problem.b, np.zeros((600, N, D)), problem.x0)
    best = np.linalg.solve(problem.A.sum(axis=0), problem.b.sum(axis=0))
    error = {}
    for name in ("gradient-tracking", "dsgd"):
        engine = quiet.engine(algorithm(name), schedules["ring"](N), lr=0.1)
        for t in range(600):
            engine.step(quiet.batch(t))
        error[name] = np.abs(engine.x.numpy() - best).max()
    assert error["gradient-tracking"] < 1e-7
    assert error["dsgd"] > 1e-2, "DSGD with a constant learning rate stops at a biased point"


def test_push_sum_conserves_both_sums_and_finds_the_mean(quadratics: Any, schedules: dict) -> None:
    problem, topology = quadratics.draw(N, D, 200), schedules["column-stochastic"](N)
    engine = problem.engine(algorithm("sgp"), topology, lr=0.0)
    for t in range(200):
        engine.step(problem.batch(t))
    weight = engine.state.weight
    assert float(weight.min()) < 0.9, "the weights must matter in this test"
    assert float(weight.sum()) == pytest.approx(N, abs=1e-12)
    np.testing.assert_allclose(engine.x.numpy(), np.tile(problem.x0.mean(axis=0), (N, 1)), rtol=0, atol=1e-12)


def test_push_sum_moves_the_sum_by_the_sum_of_the_gradients(quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(N, D, STEPS)
    engine = problem.engine(algorithm("sgp"), schedules["column-stochastic"](N), lr=0.05)
    for t in range(STEPS):
        before = (engine.x * engine.state.weight).sum(dim=0).numpy()
        gradient = problem.gradient(t, engine.x.numpy()).sum(axis=0)
        engine.step(problem.batch(t))
        after = (engine.x * engine.state.weight).sum(dim=0).numpy()
        np.testing.assert_allclose(after, before - 0.05 * gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("compressor", ["identity", "top-k", "sign"])
@pytest.mark.parametrize("order", ["gossip-first", "compress-first"])
def test_choco_gossip_keeps_the_mean_and_reaches_consensus(
    compressor: str, order: str, quadratics: Any, schedules: dict
) -> None:
    problem = quadratics.draw(N, D, 400)
    recursion = algorithm("choco-sgd", compressor=compressor, ratio=0.25, consensus_step=0.2, order=order)
    engine = problem.engine(recursion, schedules["ring"](N), lr=0.0)
    for t in range(400):
        engine.step(problem.batch(t))
    np.testing.assert_allclose(engine.x.numpy(), np.tile(problem.x0.mean(axis=0), (N, 1)), rtol=0, atol=1e-5)
    np.testing.assert_allclose(engine.mean.numpy(), problem.x0.mean(axis=0), rtol=0, atol=1e-12)


def test_choco_with_everything_sent_is_dsgd(quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(N, D, STEPS)
    everything = algorithm("choco-sgd", compressor="identity", consensus_step=1.0, order="compress-first")
    choco = problem.run(problem.engine(everything, schedules["ring"](N), lr=0.05), STEPS)
    dsgd = problem.run(problem.engine(algorithm("dsgd", order="atc"), schedules["ring"](N), lr=0.05), STEPS)
    np.testing.assert_allclose(choco, dsgd, rtol=0, atol=1e-12)
