"""SAM and average-direction SAM: written out by hand, their limits, zero gradients, cut columns, and the exact moments
of the perturbation."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dissensus.algorithms import AlgorithmError, StackedEngine, algorithm, stream
from dissensus.algorithms.protocol import Await, Gradient, Mean, Mix, Norm, Post
from dissensus.theory import from_matrices, topology

N, D, STEPS = 6, 4, 25
ORDERS = ("allreduce", "awc", "atc", "cta")
SGD = partial(torch.optim.SGD, lr=0.1)


def plain(order: str) -> Any:
    return algorithm("allreduce") if order == "allreduce" else algorithm("dsgd", order=order)


def written_out(problem: Any, w: np.ndarray, order: str, rho: float, lr: float) -> np.ndarray:
    """SGD along worker i's gradient at x_i + rho g_i/|g_i|, in four orders, on its own lines each."""

    def sharp(t: int, x: np.ndarray) -> np.ndarray:
        rows = []
        for i in range(N):
            g = problem.A[i] @ x[i] - problem.b[i] + problem.noise[t, i]
            at = x[i] + rho * g / np.linalg.norm(g)
            rows.append(problem.A[i] @ at - problem.b[i] + problem.noise[t, i])
        return np.stack(rows)

    x = problem.x0
    path = [x]
    for t in range(STEPS):
        if order == "allreduce":
            x = x - lr * sharp(t, x).mean(axis=0)
        elif order == "awc":
            x = w @ x - lr * sharp(t, x)
        elif order == "atc":
            x = w @ (x - lr * sharp(t, x))
        else:
            y = w @ x
            x = y - lr * sharp(t, y)
        path.append(x)
    return np.stack(path)


@pytest.mark.parametrize("order", ORDERS)
def test_sam_written_out(order: str, quadratics: Any, schedules: dict) -> None:
    problem, topology = quadratics.draw(N, D, STEPS), schedules["directed"](N)
    engine = problem.engine(algorithm("sam", rho=0.3, order=order), topology, lr=0.1)
    expected = written_out(problem, topology[0].dense(), order, 0.3, 0.1)
    assert np.abs(problem.run(engine, STEPS) - expected).max() <= 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["sam", "avg-sam"])
def test_a_radius_of_zero_is_no_perturbation(name: str, order: str, quadratics: Any, schedules: dict) -> None:
    problem, topology = quadratics.draw(N, D, STEPS), schedules["ring"](N)
    momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
    sharp, flat = (
        problem.run(problem.engine(a, topology, optimizer=momentum, lr=0.05), STEPS)
        for a in (algorithm(name, rho=0.0, order=order), plain(order))
    )
    assert np.array_equal(sharp, flat)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("law", ["sphere", "gaussian"])
@pytest.mark.parametrize("draws", [1, 3])
def test_antithetic_pairs_are_exact_on_quadratics(
    draws: int, law: str, order: str, quadratics: Any, schedules: dict
) -> None:
    problem, topology = quadratics.draw(N, D, STEPS), schedules["ring"](N)
    pairs = algorithm("avg-sam", rho=0.5, draws=draws, antithetic=True, law=law, order=order)
    averaged, flat = (problem.run(problem.engine(a, topology, lr=0.1), STEPS) for a in (pairs, plain(order)))
    np.testing.assert_allclose(averaged, flat, rtol=0, atol=1e-12)
    single = algorithm("avg-sam", rho=0.5, draws=draws, law=law, order=order)
    assert np.abs(problem.run(problem.engine(single, topology, lr=0.1), STEPS) - flat).max() > 1e-3


@pytest.mark.parametrize("name", ["sam", "avg-sam"])
def test_a_gradient_of_zero_is_no_division_by_zero(name: str, quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(4, 2, 2)
    still = quadratics(problem.A, problem.b * 0, problem.noise * 0, problem.x0 * 0)
    still.b[3] = 1.0
    engine = still.engine(algorithm(name, order="awc"), schedules["ring"](4), lr=0.1)
    engine.step(still.batch(0))
    assert torch.isfinite(engine.x).all()
    if name == "sam":
        assert torch.equal(engine.x[:3], torch.zeros(3, 2, dtype=torch.float64))
        assert float(engine.x[3].abs().max()) > 0


@pytest.mark.parametrize("size", [1e-150, 1e-200, 1e-308, 1e150])
def test_gradients_of_any_size_stay_finite(size: float, quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(4, 2, 1)
    tiny = quadratics(problem.A, problem.b * 0, problem.noise * size, problem.x0 * 0)
    engine = tiny.engine(algorithm("sam", rho=0.5), schedules["ring"](4), lr=0.1)
    engine.step(tiny.batch(0))
    assert torch.isfinite(engine.x).all()


def drive(running: Any, answer: Callable[[Any], Any]) -> Any:
    """Runs a step's generator to its end."""
    request = next(running)
    while True:
        try:
            request = running.send(answer(request))
        except StopIteration as done:
            return done.value


class Alone:
    t, lr, rate, decay = 3, 0.1, 0.1, 0.0

    def generators(self, purpose: str) -> list[torch.Generator]:
        return [stream(0, purpose, self.t, i) for i in range(N)]

    def move(self, x: Tensor, g: Tensor) -> Tensor:
        return x - 0.1 * g


@pytest.mark.parametrize("order", ORDERS)
def test_columns_may_be_cut_because_the_norm_is_asked_for(order: str) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(N, D, dtype=torch.float64), torch.rand(N, N, dtype=torch.float64)
    sam = algorithm("sam", rho=0.4, order=order)
    asked: list[Any] = []

    def gradient(at: Tensor) -> Tensor:
        return at.sin() + at.sum(dim=1, keepdim=True)

    def answer(request: Any) -> Any:
        asked.append(type(request))
        match request:
            case Gradient(at):
                return gradient(at)
            case Mix(value) | Post(value):
                return w @ value
            case Await(ticket):
                return ticket
            case Mean(value):
                return value.mean(dim=0, keepdim=True).expand_as(value)
            case Norm(value):
                return value.norm(dim=1, keepdim=True)

    whole, _ = drive(sam.step(x, sam.init(x), Alone()), answer)
    assert asked.count(Gradient) == 2
    assert asked.count(Norm) == 1
    # two buckets in lockstep: gradients and norms are answered over both
    halves = [sam.step(part, sam.init(part), Alone()) for part in (x[:, :1], x[:, 1:])]
    requests = [next(h) for h in halves]
    done: list[Tensor] = []
    while not done:
        parts: list[Any] = [
            r.at if isinstance(r, Gradient) else r.ticket if isinstance(r, Await) else r.value for r in requests
        ]
        kind: Any = type(requests[0])
        joined = answer(kind(torch.cat(parts, dim=1)))
        answers = [joined, joined] if isinstance(requests[0], Norm) else [joined[:, :1], joined[:, 1:]]
        following = []
        for half, value in zip(halves, answers, strict=True):
            try:
                following.append(half.send(value))
            except StopIteration as end:
                done.append(end.value[0])
        requests = following
    torch.testing.assert_close(torch.cat(done, dim=1), whole, rtol=1e-15, atol=0)


def perturbations(parameters: dict[str, Any], d: int, times: int) -> np.ndarray:
    """What is added to the point, (draws, n, d), for so many steps."""
    avg, found = algorithm("avg-sam", order="awc", **parameters), []
    x = torch.zeros(N, d, dtype=torch.float64)

    def answer(request: Any) -> Any:
        match request:
            case Gradient(at):
                found.append(at.numpy())
                return at
            case Norm(value):
                return value.norm(dim=1, keepdim=True)
            case Post(value):
                return value
            case Await(ticket):
                return ticket

    for t in range(times):
        local = Alone()
        local.t = t
        drive(avg.step(x, avg.init(x), local), answer)
    return np.stack(found)


def test_perturbations_lie_on_the_sphere_and_are_isotropic() -> None:
    found = perturbations({"rho": 0.3, "draws": 2}, 5, 300)
    assert len(found) == 600
    np.testing.assert_allclose(np.linalg.norm(found, axis=2), 0.3, rtol=1e-14)
    flat = found.reshape(-1, 5)
    covariance = flat.T @ flat / len(flat)
    # an entry of e e' has a standard deviation of at most rho^2 / d * sqrt(2)
    assert np.abs(covariance - 0.09 / 5 * np.eye(5)).max() < 5 * 0.09 / 5 * np.sqrt(2 / len(flat))
    assert np.abs(flat.mean(axis=0)).max() < 5 * 0.3 / np.sqrt(5 * len(flat))


def test_gaussian_perturbations_have_the_standard_deviation_rho_per_parameter() -> None:
    flat = perturbations({"rho": 0.3, "law": "gaussian"}, 5, 600).reshape(-1, 5)
    covariance = flat.T @ flat / len(flat)
    assert np.abs(covariance - 0.09 * np.eye(5)).max() < 5 * 0.09 * np.sqrt(2 / len(flat))


def test_antithetic_pairs_are_opposite_and_workers_and_steps_are_not() -> None:
    found = perturbations({"antithetic": True, "draws": 2}, 5, 3)
    assert len(found) == 12
    assert np.array_equal(found[0::2], -found[1::2])
    rows = found[0::2].reshape(-1, 5)
    assert len(np.unique(rows.round(12), axis=0)) == len(rows)


def test_it_descends_the_averaged_loss() -> None:
    # f = x^3/6 in one dimension: (f'(x+e) + f'(x-e))/2 = f'(x) + e^2/2, and on the sphere in one dimension e = rho
    def loss(model: Any, batch: Tensor) -> Tensor:
        return (model.weight.reshape(()) ** 3) / 6 + 0 * batch.sum()

    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 2.0)
    engine = StackedEngine(
        model, loss, algorithm=algorithm("avg-sam", rho=0.4, antithetic=True), topology=topology("ring", 3),
        optimizer=SGD, lr=0.1, gradients="loop",
    )  # fmt: skip
    engine.step(torch.zeros(3, 1, dtype=torch.float64))
    np.testing.assert_allclose(engine.x.numpy(), 2.0 - 0.1 * (2.0**2 / 2 + 0.4**2 / 2), rtol=1e-14)


@pytest.mark.parametrize("name", ["sam", "avg-sam"])
def test_buffers_are_updated_at_every_evaluation(name: str, schedules: dict) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    options = {} if name == "sam" else {"draws": 1, "antithetic": True}
    engine = StackedEngine(
        model, lambda m, b: m(b).square().mean(), algorithm=algorithm(name, **options), topology=schedules["ring"](3),
        optimizer=SGD, gradients="vmap",
    )  # fmt: skip
    for t in range(4):
        engine.step(torch.randn(3, 8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(t)))
    counted = [b for key, b in engine.buffers.items() if key.endswith("num_batches_tracked")]
    assert counted[0].tolist() == [8, 8, 8], "two evaluations a step"


@pytest.mark.parametrize("name", ["sam", "avg-sam"])
def test_the_orders_that_mix_need_a_topology_that_keeps_the_mean(name: str, quadratics: Any, schedules: dict) -> None:
    problem, push = quadratics.draw(4, 2, 1), schedules["column-stochastic"](4)
    problem.engine(algorithm(name), push).step(problem.batch(0))
    with pytest.raises(AlgorithmError, match=f"algorithm '{name}' needs doubly stochastic mixing, but topology 'push'"):
        problem.engine(algorithm(name, order="awc"), push)


def test_one_draw_does_not_depend_on_the_number_of_workers(quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(6, D, 3)
    few = quadratics(problem.A[:4], problem.b[:4], problem.noise[:, :4], problem.x0[:4])
    alone = partial(algorithm, "avg-sam", order="awc")
    still = [from_matrices(np.eye(n), name="nobody", may_disconnect=True) for n in (6, 4)]
    runs = [p.run(p.engine(alone(), w, lr=0.1), 3) for p, w in zip((problem, few), still, strict=True)]
    np.testing.assert_allclose(runs[0][:, :4], runs[1], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("sam", {"rho": -0.1}, "rho must be a number of at least 0, got -0.1"),
        ("sam", {"rho": "wide"}, "rho must be a number of at least 0, got 'wide'"),
        ("sam", {"rho": float("nan")}, "rho must be a number of at least 0, got nan"),
        ("sam", {"order": "all-reduce"}, "order must be one of allreduce, awc, atc, cta, got 'all-reduce'; did you"),
        ("sam", {"roh": 0.1}, "algorithm 'sam' has no parameter 'roh'; did you mean 'rho'"),
        ("avg-sam", {"rho": float("inf")}, "rho must be a number of at least 0, got inf"),
        ("avg-sam", {"draws": 0}, "draws must be a whole number of directions, at least 1, got 0"),
        ("avg-sam", {"draws": 1.0}, "draws must be a whole number of directions, at least 1, got 1.0"),
        ("avg-sam", {"law": "gauss"}, "law must be 'sphere' or 'gaussian', got 'gauss'; did you mean 'gaussian'"),
        ("avg-sam", {"order": "ATC"}, "order must be one of allreduce, awc, atc, cta, got 'ATC'"),
    ],
)
def test_parameters_are_refused(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        algorithm(name, **parameters)
