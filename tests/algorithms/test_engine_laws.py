"""Laws that hold for an algorithm whatever its formula: symmetry, conservation, limits, purity."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dissensus.algorithms import StackedEngine, algorithm, algorithms
from dissensus.algorithms.protocol import Await, Gradient, Mean, Mix, Norm, Note, Post

N, D, STEPS = 8, 4, 30
EVERY = sorted(algorithms())
SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)


def topology_for(name: str, schedules: dict[str, Callable], n: int = N) -> Any:
    """Something hard that the algorithm accepts."""
    cls = algorithms()[name]
    if cls.static:
        return schedules["directed"](n)
    return schedules["column-stochastic" if cls.promise == "column" else "one-peer-exponential"](n)


def mlp(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def cross_entropy(model: nn.Module, batch: tuple) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def images(n: int, b: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, b, 6, generator=g, dtype=torch.float64), torch.randint(0, 3, (n, b), generator=g)


def plain_run(batches: list[tuple], optimizer: Callable, steps: int) -> torch.Tensor:
    """The loop everybody writes."""
    model = mlp()
    opt = optimizer(model.parameters())
    for t in range(steps):
        opt.zero_grad()
        cross_entropy(model, batches[t]).backward()
        opt.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("name", EVERY)
def test_mean_is_kept_when_nobody_moves(name: str, quadratics: Any, schedules: dict) -> None:
    problem, topology = quadratics.draw(N, D, STEPS), topology_for(name, schedules)
    engine = problem.engine(algorithm(name), topology, lr=0.0)
    problem.run(engine, STEPS)
    weight = getattr(engine.state, "weight", torch.ones(N, 1))
    total = (engine.x * weight).sum(dim=0).numpy()
    np.testing.assert_allclose(total, problem.x0.sum(axis=0), rtol=0, atol=1e-12)
    assert float(weight.sum()) == pytest.approx(N, abs=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_relabelling_by_an_automorphism_permutes_the_trajectory(name: str, quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(N, D, STEPS)
    topology = schedules["directed" if algorithms()[name].static else "one-peer-exponential"](N)
    turn = np.roll(np.arange(N), 3)
    turned = quadratics(problem.A[turn], problem.b[turn], problem.noise[:, turn], problem.x0[turn])
    first = problem.run(problem.engine(algorithm(name), topology, optimizer=MOMENTUM, lr=0.05), STEPS)
    second = turned.run(turned.engine(algorithm(name), topology, optimizer=MOMENTUM, lr=0.05), STEPS)
    np.testing.assert_allclose(second, first[:, turn], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_identical_workers_stay_identical(name: str, quadratics: Any, schedules: dict) -> None:
    # doubly stochastic for push-sum too: with unequal row sums its workers take steps of unequal length
    topology = schedules["directed" if algorithms()[name].static else "one-peer-exponential"](N)
    problem = quadratics.draw(N, D, STEPS, common=True)
    same = quadratics(
        problem.A, problem.b, np.repeat(problem.noise[:, :1], N, 1), np.repeat(problem.x0[:1], N, 0)
    )  # fmt: skip
    points = same.run(same.engine(algorithm(name), topology, optimizer=MOMENTUM, lr=0.05), STEPS)
    assert np.abs(points - points[:, :1]).max() <= 1e-12
    if topology.name == "one-peer-exponential":  # weights 1/2: not even rounding may tell them apart
        assert (points == points[:, :1]).all()


@pytest.mark.parametrize("name", ["allreduce", "dsgd", "dsgd-ac", "local-sgd", "sgp", "choco-sgd"])
@pytest.mark.parametrize(
    "optimizer",
    [SGD, MOMENTUM, partial(torch.optim.Adam, lr=0.01), partial(torch.optim.AdamW, lr=0.01)],
    ids=["sgd", "momentum", "adam", "adamw"],
)
def test_one_worker_is_the_plain_optimizer_to_the_bit(name: str, optimizer: Any, schedules: dict) -> None:
    batches = [images(1, seed=t) for t in range(STEPS)]
    engine = StackedEngine(
        mlp(), cross_entropy, algorithm=name, topology=schedules["complete"](1), optimizer=optimizer, gradients="loop"
    )
    for t in range(STEPS):
        engine.step(batches[t])
    assert torch.equal(engine.x[0], plain_run([(b[0][0], b[1][0]) for b in batches], optimizer, STEPS))


def test_gradient_tracking_with_one_worker_is_the_plain_optimizer(schedules: dict) -> None:
    batches = [images(1, seed=t) for t in range(STEPS)]
    engine = StackedEngine(
        mlp(), cross_entropy, algorithm="gradient-tracking", topology=schedules["complete"](1), optimizer=MOMENTUM,
        gradients="loop",
    )  # fmt: skip
    for batch in batches:
        engine.step(batch)
    # y accumulates g - g_previous: equal up to the rounding of that sum
    torch.testing.assert_close(
        engine.x[0], plain_run([(b[0][0], b[1][0]) for b in batches], MOMENTUM, STEPS), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
def test_gamma_zero_means_independent_runs(order: str, schedules: dict) -> None:
    batches = [images(3, seed=t) for t in range(STEPS)]
    engine = StackedEngine(
        mlp(), cross_entropy, algorithm=algorithm("dsgd", order=order, gamma=0.0), topology=schedules["ring"](3),
        optimizer=MOMENTUM, gradients="loop",
    )  # fmt: skip
    for batch in batches:
        engine.step(batch)
    for i in range(3):
        alone = plain_run([(b[0][i], b[1][i]) for b in batches], MOMENTUM, STEPS)
        assert torch.equal(engine.x[i], alone)


@pytest.mark.parametrize(
    ("name", "parameters"), [("dsgd", {"order": "atc"}), ("allreduce", {}), ("local-sgd", {"period": 1})]
)
def test_complete_graph_and_atc_is_large_batch_sgd(name: str, parameters: dict, schedules: dict) -> None:
    batches = [images(N, seed=t) for t in range(STEPS)]
    engine = StackedEngine(
        mlp(), cross_entropy, algorithm=algorithm(name, **parameters), topology=schedules["complete"](N),
        optimizer=MOMENTUM, gradients="vmap",
    )  # fmt: skip
    for batch in batches:
        engine.step(batch)
    large = plain_run([(b[0].reshape(-1, 6), b[1].reshape(-1)) for b in batches], MOMENTUM, STEPS)
    torch.testing.assert_close(engine.x, large.expand(N, -1), rtol=1e-10, atol=1e-12)


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


@pytest.mark.parametrize("name", EVERY)
def test_no_argument_is_written_to(name: str, schedules: dict) -> None:
    torch.manual_seed(0)
    recursion, rows = algorithm(name), torch.randn(N, D, dtype=torch.float64)

    class Alone:
        t, lr, rate = 3, 0.1, 0.1

        def generators(self, purpose: str) -> list[torch.Generator]:
            return [torch.Generator().manual_seed(len(purpose) + i) for i in range(len(rows))]

        def move(self, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
            seen.append((x, x.clone()))
            seen.append((g, g.clone()))
            return x - 0.1 * g

    state = type(recursion.init(rows))(*(torch.rand_like(s) + 0.5 for s in recursion.init(rows)))
    seen = [(rows, rows.clone()), *((s, s.clone()) for s in state)]
    w = torch.from_numpy(topology_for(name, schedules)[0].dense())

    def answer_to(request: Any) -> Any:
        if isinstance(request, Await):
            return request.ticket
        if isinstance(request, Note):
            return None
        value = request.at if isinstance(request, Gradient) else request.value
        seen.append((value, value.clone()))
        if isinstance(request, Gradient):
            answer = torch.randn_like(value)
        elif isinstance(request, Mix | Post):
            answer = w @ value
        else:
            assert isinstance(request, Mean | Norm)
            answer = value.mean(0, keepdim=True).expand_as(value)
        seen.append((answer, answer.clone()))
        return answer

    running = recursion.step(rows, state, Alone())
    request = next(running)
    while request is not None:
        try:
            request = running.send(answer_to(request))
        except StopIteration:
            request = None
    assert len(seen) > 3
    assert all(torch.equal(now, then) for now, then in seen)
