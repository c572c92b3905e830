"""DAdam against the recursion written out, in both places where epsilon may stand, and what it refuses to be."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.algorithms import AccumAdam, AccumAdamW, AlgorithmError, algorithm, algorithms
from dissensus.algorithms.registry import check_optimizer, default_optimizer

N, D, STEPS = 6, 3, 60


def written_out(problem: Any, w: Any, order: str, gamma: float, inside: bool, lr: float, eps: float) -> np.ndarray:
    """Worker by worker, number by number of the equations; moments stay where they are."""
    x = [row.copy() for row in problem.x0]
    m, v = np.zeros((N, D)), np.zeros((N, D))
    path = [np.stack(x)]

    def mixed(points: list, t: int) -> list:
        weights = w(t)
        return [(1 - gamma) * points[i] + gamma * sum(weights[i, j] * points[j] for j in range(N)) for i in range(N)]

    for t in range(STEPS):
        at = mixed(x, t) if order == "cta" else x
        steps = []
        for i in range(N):
            g = problem.A[i] @ at[i] - problem.b[i] + problem.noise[t, i]
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g**2
            m_hat, v_hat = m[i] / (1 - 0.9 ** (t + 1)), v[i] / (1 - 0.999 ** (t + 1))
            steps.append(lr * m_hat / (np.sqrt(v_hat + eps) if inside else np.sqrt(v_hat) + eps))
        if order == "atc":
            x = mixed([x[i] - steps[i] for i in range(N)], t)
        else:
            start = mixed(x, t)
            x = [start[i] - steps[i] for i in range(N)]
        path.append(np.stack(x))
    return np.stack(path)


@pytest.mark.parametrize("inside", [False, True], ids=["beside-the-root", "inside-the-root"])
@pytest.mark.parametrize("gamma", [1.0, 0.3])
@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
def test_the_recursion_written_out(order: Any, gamma: float, inside: bool, quadratics: Any, schedules: dict) -> None:
    problem, topology = quadratics.draw(N, D, STEPS), schedules["directed"](N)
    factory = partial(AccumAdam, eps=1e-3, eps_in_root=True) if inside else partial(torch.optim.Adam, eps=1e-3)
    engine = problem.engine(algorithm("dadam", order=order, gamma=gamma), topology, optimizer=factory, lr=0.05)
    expected = written_out(problem, lambda t: topology[t].dense(), order, gamma, inside, 0.05, 1e-3)
    assert np.abs(problem.run(engine, STEPS) - expected).max() <= 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
def test_it_is_dsgd_with_adam_to_the_bit(order: Any, quadratics: Any, schedules: dict) -> None:
    problem, topology = quadratics.draw(N, D, STEPS), schedules["one-peer-exponential"](N)
    runs = [
        problem.run(problem.engine(algorithm(name, order=order), topology, optimizer=factory, lr=0.05), STEPS)
        for name, factory in (("dsgd", torch.optim.Adam), ("dadam", torch.optim.Adam), ("dadam", AccumAdam))
    ]
    assert np.array_equal(runs[0], runs[1])
    assert np.array_equal(runs[0], runs[2]), "AccumAdam of one step is Adam"


def test_moments_are_local(quadratics: Any, schedules: dict) -> None:
    # worker 0 has no gradient at all: whatever it hears, its own displacement stays zero
    problem = quadratics.draw(4, D, 10)
    problem.A[0], problem.b[0], problem.noise[:, 0] = 0.0, 0.0, 0.0
    topology = schedules["ring"](4)
    engine = problem.engine(algorithm("dadam"), topology, optimizer=torch.optim.Adam, lr=0.1)
    for t in range(10):
        heard = topology[t].dense()[0] @ engine.x.numpy()
        engine.step(problem.batch(t))
        np.testing.assert_allclose(engine.x.numpy()[0], heard, rtol=0, atol=1e-15)


def test_default_optimizers() -> None:
    assert default_optimizer(algorithm("dadam")) is torch.optim.Adam
    for name in set(algorithms()) - {"dadam"}:
        assert default_optimizer(algorithm(name)) is torch.optim.SGD


def test_engines_take_adam_where_none_is_named_and_refuse_sgd(quadratics: Any, schedules: dict) -> None:
    problem, topology = quadratics.draw(4, D, 5), schedules["ring"](4)
    unnamed = problem.run(problem.engine("dadam", topology, optimizer=None, lr=0.05), 5)
    named = problem.run(problem.engine("dadam", topology, optimizer=torch.optim.Adam, lr=0.05), 5)
    assert np.array_equal(unnamed, named)
    with pytest.raises(AlgorithmError, match="the local optimizer is sgd; use dsgd"):
        problem.engine("dadam", topology, optimizer=torch.optim.SGD, lr=0.05)


def test_an_algorithm_names_an_optimizer_that_exists() -> None:
    class Odd:
        optimizer = "adm"

    with pytest.raises(AlgorithmError, match="unknown optimizer 'adm'; did you mean 'adam'"):
        default_optimizer(Odd)


def test_what_is_no_adam_is_refused() -> None:
    dadam = algorithm("dadam")
    message = "algorithm 'dadam' has an Adam at every worker .*, but the local optimizer is sgd; use dsgd"
    with pytest.raises(AlgorithmError, match=message):
        check_optimizer(dadam, torch.optim.SGD)
    with pytest.raises(AlgorithmError, match=message):
        check_optimizer(dadam, torch.optim.SGD([torch.zeros(2)], lr=0.1))
    with pytest.raises(AlgorithmError, match="the local optimizer is rprop"):
        check_optimizer(dadam, torch.optim.Rprop)
    for cls in (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, AccumAdam, AccumAdamW):
        check_optimizer(dadam, cls)
        check_optimizer(algorithm("dsgd"), cls)
    check_optimizer(algorithm("dsgd"), torch.optim.SGD)

    class Own(torch.optim.Adam):
        pass

    check_optimizer(dadam, Own)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"order": "atx"}, "order must be one of awc, atc, cta, got 'atx'; did you mean 'atc'"),
        ({"gamma": 1.1}, r"gamma must lie in \[0, 1\], got 1.1"),
        ({"beta": 0.9}, "algorithm 'dadam' has no parameter 'beta'"),
    ],
)
def test_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        algorithm("dadam", **parameters)
