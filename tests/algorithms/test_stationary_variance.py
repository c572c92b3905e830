"""Stationary disagreement on quadratics, measured exactly: the sum of squared impulse responses of the engine itself.

The recursion is linear, so the stationary covariance is the sum over k of R_k R_k' where R_k is what one unit of
gradient noise at step 0 has become k steps later. Column j of the model carries the noise of worker j, the columns do
not interact, and the sum is geometric: no sampling, no tolerance beyond rounding and the tail.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.algorithms import StackedEngine, algorithm
from dissensus.theory import Topology, from_matrices


def impulse_covariance(
    quadratics: Any, topology: Topology, recursion: Any, h: float, lr: float, optimizer: Any, steps: int
) -> np.ndarray:
    """The n x n stationary covariance of the workers' points, unit noise."""
    n = topology.size
    noise = np.zeros((steps, n, n))
    noise[0] = np.eye(n)
    problem = quadratics(np.repeat(h * np.eye(n)[None], n, 0), np.zeros((n, n)), noise, np.zeros((n, n)))
    points = problem.run(problem.engine(recursion, topology, optimizer=optimizer, lr=lr), steps)
    # squared, what is left out is below 1e-12
    assert np.abs(points[-1] - points[-1].mean(axis=0)).max() < 1e-6, "the tail of the sum must be over"
    return np.einsum("kij,klj->il", points[1:], points[1:])


def two_workers(eigenvalue: float) -> Topology:
    """W on two workers whose disagreement mode has this eigenvalue."""
    a, b = (1 + eigenvalue) / 2, (1 - eigenvalue) / 2
    return from_matrices(np.array([[a, b], [b, a]]))


GOLDEN = [
    ("awc", 0.5, 1.0, 1.0, 0.1, 0.0, 0.0119047619),
    ("awc", 0.5, 1.0, 1.0, 0.1, 0.9, 0.06391184573),
    ("awc", 0.5, 0.1, 1.0, 0.1, 0.0, 0.03603603604),
    ("awc", 0.5, 0.1, 1.0, 0.1, 0.9, 0.3379724839),
    ("awc", 0.9, 0.01, 0.2, 0.05, 0.9, 1.229854876),
    ("awc", 0.0, 1.0, 1.0, 0.1, 0.0, 0.0101010101),
    ("awc", 0.0, 1.0, 1.0, 0.1, 0.9, 0.02777777778),
    ("awc", -0.5, 1.0, 2.0, 0.1, 0.5, 0.01148325359),
    ("atc", 0.5, 1.0, 1.0, 0.1, 0.0, 0.003134796238),
    ("atc", 0.5, 1.0, 1.0, 0.1, 0.9, 0.02353896104),
    ("atc", 0.5, 0.1, 1.0, 0.1, 0.0, 0.03355330421),
    ("atc", 0.5, 0.1, 1.0, 0.1, 0.9, 0.3198275862),
    ("atc", 0.9, 0.01, 0.2, 0.05, 0.9, 1.228609601),
    ("atc", 0.0, 1.0, 1.0, 0.1, 0.9, 0.0),
    ("atc", -0.5, 1.0, 2.0, 0.1, 0.5, 0.002714932127),
]


@pytest.mark.parametrize(("order", "eigenvalue", "gamma", "h", "lr", "beta", "expected"), GOLDEN)
def test_golden_variances_of_a_mode(
    order: str, eigenvalue: float, gamma: float, h: float, lr: float, beta: float, expected: float, quadratics: Any
) -> None:
    covariance = impulse_covariance(
        quadratics, two_workers(eigenvalue), algorithm("dsgd", order=order, gamma=gamma), h, lr,
        partial(torch.optim.SGD, lr=lr, momentum=beta), 300,
    )  # fmt: skip
    mode = np.array([1.0, -1.0]) / np.sqrt(2)
    assert mode @ covariance @ mode == pytest.approx(expected, rel=2e-9, abs=1e-15)  # the goldens have 10 digits


@pytest.mark.parametrize(("order", "beta", "nesterov"), [("cta", 0.9, False), ("cta", 0.0, False), ("awc", 0.9, True)])
@pytest.mark.parametrize(("eigenvalue", "gamma"), [(0.5, 1.0), (0.5, 0.1), (-0.5, 0.7)])
def test_closed_forms_of_cta_and_nesterov(
    order: str, beta: float, nesterov: bool, eigenvalue: float, gamma: float, quadratics: Any
) -> None:
    h, lr = 1.0, 0.1
    mu = 1 - gamma * (1 - eigenvalue)
    if nesterov:
        phi1, phi2, b0, b1 = mu + beta - lr * h * (1 + beta), -beta * (mu - lr * h), -lr * (1 + beta), lr * beta
    else:
        phi1, phi2, b0, b1 = mu + beta - lr * h * mu, -beta * mu, -lr, 0.0
    arma = (1 - phi2) * (b0**2 + b1**2) + 2 * b0 * b1 * phi1
    expected = arma / ((1 + phi2) * ((1 - phi2) ** 2 - phi1**2))
    covariance = impulse_covariance(
        quadratics, two_workers(eigenvalue), algorithm("dsgd", order=order, gamma=gamma), h, lr,
        partial(torch.optim.SGD, lr=lr, momentum=beta, nesterov=nesterov), 300,
    )  # fmt: skip
    mode = np.array([1.0, -1.0]) / np.sqrt(2)
    assert mode @ covariance @ mode == pytest.approx(expected, rel=1e-10)


def test_variance_of_the_mean(quadratics: Any, schedules: dict) -> None:
    lr, h, beta, n = 0.1, 1.0, 0.9, 8
    covariance = impulse_covariance(
        quadratics, schedules["ring"](n), algorithm("dsgd", gamma=0.3), h, lr,
        partial(torch.optim.SGD, lr=lr, momentum=beta), 400,
    )  # fmt: skip
    expected = (lr / (n * h)) * (1 + beta) / ((1 - beta) * (2 * (1 + beta) - lr * h))
    assert covariance.mean() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("order", "expected"), [("awc", 1.38616071), ("atc", 0.51116071)])
def test_consensus_distance_of_pure_noise_on_the_ring(
    order: str, expected: float, quadratics: Any, schedules: dict
) -> None:
    covariance = impulse_covariance(
        quadratics,
        schedules["ring"](8),
        algorithm("dsgd", order=order),
        0.0,
        0.1,
        partial(torch.optim.SGD, lr=0.1),
        200,
    )
    disagreement = np.eye(8) - 1 / 8
    assert np.trace(disagreement @ covariance) / 8 / 0.1**2 == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("gamma", "h", "expected"),
    [(1.0, 0.0, 1.375), (0.3, 0.0, 3.09586788), (1.0, 1.0, 1.27425), (0.3, 1.0, 1.94534), (0.05, 1.0, 3.65885)],
)
def test_consensus_distance_on_the_one_peer_hypercube(gamma: float, h: float, expected: float, quadratics: Any) -> None:
    n, lr, steps = 8, 0.1, 150
    rounds = [(np.eye(n) + np.eye(n)[np.arange(n) ^ (1 << k)]) / 2 for k in range(3)]
    topology = from_matrices(rounds)
    # one column for every (step, worker) the noise may come from: the sum of squares at the end is the variance
    noise = np.zeros((steps, n, steps * n))
    for t in range(steps):
        noise[t, :, t * n : (t + 1) * n] = np.eye(n)
    batch = [{"h": torch.full((n,), h, dtype=torch.float64), "noise": torch.from_numpy(e)} for e in noise]

    def quadratic(m: Any, b: dict[str, torch.Tensor]) -> torch.Tensor:
        return (0.5 * b["h"] * m.weight**2 + b["noise"] * m.weight).sum()

    model = torch.nn.Linear(steps * n, 1, bias=False, dtype=torch.float64)
    engine = StackedEngine(
        model, quadratic,
        algorithm=algorithm("dsgd", gamma=gamma), topology=topology, optimizer=partial(torch.optim.SGD, lr=lr),
        gradients="vmap", start=torch.zeros(steps * n),
    )  # fmt: skip
    for b in batch:
        engine.step(b)
    end = engine.x.numpy()
    got = ((end - end.mean(axis=0)) ** 2).sum() / n / lr**2
    assert got == pytest.approx(expected, abs=5e-6 if h else 1e-8)  # half a unit of the golden numbers' last digit
