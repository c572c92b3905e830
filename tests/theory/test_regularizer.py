"""The drift of the mean: exact on cubics, held against engines; average-direction SAM; what does not depend on W."""

from functools import partial
from itertools import product as pairs
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dissensus.algorithms import StackedEngine, algorithm
from dissensus.algorithms.optimizers.accum_adam import AccumAdam
from dissensus.theory import MixingError, Topology, from_matrices, topology
from dissensus.theory.regularizer import (
    Cubic,
    Expansion,
    covariance,
    drift,
    expand,
    penalty,
    smoothed_gradient,
    symmetrised,
)

N, D = 6, 3
EPS = np.finfo(float).eps


class Point(nn.Module):
    """A vector that is trained."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dimension, dtype=torch.float64))


def cubic_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The cubic, term by term, in torch's own words."""
    x = model.x
    bent = torch.einsum("ijk,i,j,k->", batch["T"], x, x, x) / 6
    return bent + torch.einsum("ij,i,j->", batch["A"], x, x) / 2 + batch["b"] @ x


def draw(seed: int, dimension: int = D, bend: float = 1.0) -> Cubic:
    rng = np.random.default_rng(seed)
    third = symmetrised(rng.normal(size=(dimension,) * 3)) * bend
    return Cubic(rng.normal(size=dimension), symmetrised(rng.normal(size=(dimension, dimension))), third)


def batch_of(losses: list[Cubic], noise: np.ndarray | float = 0.0) -> dict[str, Tensor]:
    stacked = {
        "b": np.stack([c.slope for c in losses]) + noise,
        "A": np.stack([c.curvature for c in losses]),
        "T": np.stack([c.third for c in losses]),
    }
    return {name: torch.from_numpy(value) for name, value in stacked.items()}


def engine(start: np.ndarray, name: str, mixes: Topology, optimizer: Any = None, **parameters: Any) -> StackedEngine:
    return StackedEngine(
        Point(start.shape[1]),
        cubic_loss,
        algorithm=algorithm(name, **parameters),
        topology=mixes,
        optimizer=optimizer or partial(torch.optim.SGD, lr=0.1),
        gradients="vmap",
        start=torch.from_numpy(start),
    )


def worker_wise(losses: list[Cubic]) -> tuple[Any, Any]:
    """Row i of the points goes to loss i."""

    def gradient(x: np.ndarray) -> np.ndarray:
        return np.stack([c.gradient(row) for c, row in zip(losses, x, strict=True)])

    def product(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.stack([c.product(row, u) for c, row, u in zip(losses, x, v, strict=True)])

    return gradient, product


def directed(size: int) -> Topology:
    eye = np.eye(size)
    return from_matrices(0.5 * eye + 0.35 * np.roll(eye, 1, 0) + 0.15 * np.roll(eye, -2, 0), name="directed")


def test_the_cubic_is_what_torch_differentiates() -> None:
    c, rng = draw(0), np.random.default_rng(1)
    one = {name: value[0] for name, value in batch_of([c]).items()}

    def value(x: Tensor) -> Tensor:
        holder = type("Holder", (), {"x": x})
        return cubic_loss(holder, one)

    for _ in range(5):
        x, v = rng.normal(size=D), rng.normal(size=D)
        at = torch.from_numpy(x).requires_grad_()
        hessian = torch.autograd.functional.hessian(value, at).numpy()
        np.testing.assert_allclose(c.value(x), value(at).item(), rtol=1e-13)
        np.testing.assert_allclose(c.gradient(x), torch.autograd.grad(value(at), at)[0].numpy(), rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(c.hessian(x), hessian, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(c.product(x, v), hessian @ v, rtol=1e-12, atol=1e-12)


def test_stacked_rows_are_single_rows() -> None:
    c, x = draw(2), np.random.default_rng(3).normal(size=(4, 5, D))
    for ours in (c.value, c.gradient, c.hessian):
        alone = np.array([[ours(row) for row in block] for block in x])
        np.testing.assert_allclose(ours(x), alone, rtol=1e-12, atol=1e-13)


def test_one_number() -> None:
    # f = x^3/6 and two workers at m - e, m + e: the mean gradient exceeds the gradient at m by e^2/2
    c, e = Cubic(np.zeros(1), np.zeros((1, 1)), np.ones((1, 1, 1))), 0.25
    points = np.array([[2.0 - e], [2.0 + e]])
    assert drift(c.third, covariance(points)).tolist() == [e * e / 2]
    assert penalty(c.product, points) == 2.0 * e * e / 2


@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
@pytest.mark.parametrize("name", ["ring", "complete", "directed"])
def test_one_step_of_the_engine_is_gradient_and_drift(order: str, name: str) -> None:
    c, lr = draw(4), 0.1
    mixes = directed(N) if name == "directed" else topology(name, N)
    start = np.random.default_rng(5).normal(size=(N, D))
    running = engine(start, "dsgd", mixes, order=order)
    running.step(batch_of([c] * N))
    mean_gradient = (start.mean(0) - running.x.numpy().mean(0)) / lr
    at = mixes[0].dense() @ start if order == "cta" else start
    expected = c.gradient(start.mean(0)) + drift(c.third, covariance(at))
    np.testing.assert_allclose(mean_gradient, expected, rtol=0, atol=200 * EPS * np.abs(start).max() / lr)
    assert np.linalg.norm(drift(c.third, covariance(at))) > (0.0 if name == "complete" and order == "cta" else 1e-2)


def test_the_path_of_the_mean_is_that_of_gradient_and_drift() -> None:
    c, lr, rng = draw(6, bend=0.3), 0.02, np.random.default_rng(7)
    start = 0.3 * rng.normal(size=(N, D))
    running = engine(start, "dsgd", topology("ring", N), partial(torch.optim.SGD, lr=lr))
    mean = start.mean(0)
    for _ in range(30):
        x, noise = running.x.numpy(), 0.3 * rng.normal(size=(N, D))
        mean = mean - lr * (c.gradient(mean) + drift(c.third, covariance(x)) + noise.mean(0))
        running.step(batch_of([c] * N, noise))
        np.testing.assert_allclose(running.x.numpy().mean(0), mean, rtol=0, atol=1e-13)


def test_losses_of_their_own_add_a_coupling() -> None:
    losses, start, lr = [draw(k) for k in range(N)], np.random.default_rng(8).normal(size=(N, D)), 0.1
    running = engine(start, "dsgd", topology("ring", N))
    running.step(batch_of(losses))
    found = expand(*worker_wise(losses), start, step=1.0)
    mean, e = start.mean(0), start - start.mean(0)
    coupling = np.mean([c.hessian(mean) @ row for c, row in zip(losses, e, strict=True)], 0)
    bent = np.mean([0.5 * c.bend(row, row) for c, row in zip(losses, e, strict=True)], 0)
    moved = (mean - running.x.numpy().mean(0)) / lr
    np.testing.assert_allclose(found.at_mean + coupling + bent, moved, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.coupling, coupling, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.drift, bent, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.mean_gradient, moved, rtol=0, atol=1e-12)
    assert np.abs(found.rest).max() < 1e-12
    assert np.linalg.norm(coupling) > 0.1


@pytest.mark.parametrize("step", [1.0, 0.1, 1e-2])
def test_a_common_cubic_has_neither_coupling_nor_rest(step: float) -> None:
    c, x = draw(9), np.random.default_rng(10).normal(size=(N, D))
    found = expand(c.gradient, c.product, x, step=step)
    np.testing.assert_allclose(found.drift, drift(c.third, covariance(x)), rtol=0, atol=1e-13 / step)
    assert np.abs(found.coupling).max() < 1e-13
    assert np.abs(found.rest).max() < 1e-13 / step
    assert isinstance(found, Expansion)


def test_differences_are_exact_on_a_quartic_and_second_order_beyond() -> None:
    x = np.random.default_rng(11).normal(size=(N, 1))
    mean, e = x.mean(), x[:, 0] - x.mean()
    for s in (1.0, 1e-2):
        quartic = expand(lambda at: at**3 / 6, lambda at, v: at**2 * v / 2, x, step=s)
        np.testing.assert_allclose(quartic.drift, 0.5 * mean * np.mean(e**2), rtol=1e-11)
        np.testing.assert_allclose(quartic.rest, np.mean(e**3) / 6, rtol=1e-10)
    errors = []
    for s in (0.2, 0.1, 0.05):
        wave = expand(np.sin, lambda at, v: np.cos(at) * v, x, step=s)
        errors.append(abs(float(wave.drift[0]) + 0.5 * np.sin(mean) * np.mean(e**2)))
    assert 3.9 < errors[0] / errors[1] < 4.1
    assert 3.9 < errors[1] / errors[2] < 4.1


def test_on_a_cubic_any_perturbation_of_the_same_covariance_has_the_same_gradient() -> None:
    c, rng = draw(12), np.random.default_rng(13)
    x = rng.normal(size=(N, D)) ** 3  # a skewed cloud
    mean, sigma = x.mean(0), covariance(x)
    of_the_workers = c.gradient(x).mean(0)
    np.testing.assert_allclose(smoothed_gradient(c.gradient, mean, sigma), of_the_workers, rtol=1e-12)
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    root, total = np.linalg.cholesky(sigma), np.zeros(D)
    for chosen in pairs(range(5), repeat=D):
        share = np.prod(weights[list(chosen)]) / np.sqrt(2 * np.pi) ** D
        total += share * c.gradient(mean + root @ nodes[list(chosen)])
    np.testing.assert_allclose(total, of_the_workers, rtol=1e-11)


def test_on_a_quartic_they_differ_by_the_third_moment_of_the_workers() -> None:
    rng = np.random.default_rng(14)
    fourth, x = symmetrised(rng.normal(size=(2,) * 4)), rng.normal(size=(5, 2)) ** 3
    mean, e = x.mean(0), x - x.mean(0)

    def gradient(at: np.ndarray) -> np.ndarray:
        return np.einsum("ijkl,nj,nk,nl->ni", fourth, at, at, at) / 6

    gap = gradient(x).mean(0) - smoothed_gradient(gradient, mean, covariance(x))
    np.testing.assert_allclose(gap, np.einsum("ijkl,nj,nk,nl->i", fourth, e, e, e) / 30, rtol=1e-10)
    third = np.einsum("ijkl,l->ijk", fourth, mean)
    expected = gradient(mean[None])[0] + drift(third, covariance(x))
    np.testing.assert_allclose(smoothed_gradient(gradient, mean, covariance(x)), expected, rtol=1e-11)


@pytest.mark.parametrize("rho", [0.1, 1.0])
def test_two_workers_apart_move_the_mean_as_average_direction_sam_does(rho: float) -> None:
    # along one number the sphere has two points, and with both signs SAM draws both
    c, at, lr = draw(15, 1), 0.7, 0.1
    apart = engine(np.array([[at - rho], [at + rho]]), "dsgd", topology("complete", 2))
    apart.step(batch_of([c] * 2))
    sharp = engine(np.full((2, 1), at), "avg-sam", topology("complete", 2), rho=rho, antithetic=True)
    sharp.step(batch_of([c] * 2))
    expected = at - lr * (c.gradient(np.array([at])) + drift(c.third, np.array([[rho**2]])))
    np.testing.assert_allclose(apart.x.numpy().mean(0), expected, rtol=1e-13)
    np.testing.assert_allclose(sharp.x.numpy(), np.tile(expected, (2, 1)), rtol=1e-13)


def test_the_penalty_is_the_loss_of_the_workers_over_that_of_their_mean() -> None:
    c, x = draw(16, bend=0.0), np.random.default_rng(17).normal(size=(N, D))
    np.testing.assert_allclose(penalty(c.product, x), c.value(x).mean() - c.value(x.mean(0)), rtol=1e-12)
    bent, h = draw(16), draw(16).hessian(x.mean(0))
    np.testing.assert_allclose(penalty(bent.product, x), 0.5 * np.trace(h @ covariance(x)), rtol=1e-12)
    e = x - x.mean(0)
    skew = np.mean(np.sum(e * bent.bend(e, e), 1)) / 6
    over = bent.value(x).mean() - bent.value(x.mean(0))
    np.testing.assert_allclose(over, penalty(bent.product, x) + skew, rtol=1e-12)


def test_the_drift_is_the_gradient_of_the_penalty_with_the_disagreement_held() -> None:
    c, x, h = draw(18), np.random.default_rng(19).normal(size=(N, D)), 1e-3
    slopes = [(penalty(c.product, x + h * unit) - penalty(c.product, x - h * unit)) / (2 * h) for unit in np.eye(D)]
    np.testing.assert_allclose(slopes, drift(c.third, covariance(x)), rtol=1e-10)


SGD = {
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.02, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, lr=0.02, momentum=0.9, nesterov=True),
    "decay": partial(torch.optim.SGD, lr=0.05, momentum=0.5, weight_decay=0.1),
}
ADAM = {"adam": partial(torch.optim.Adam, lr=0.05), "inside": partial(AccumAdam, lr=0.05, eps=1e-2, eps_in_root=True)}
RUNS: list[tuple[str, dict[str, Any], str]] = [
    ("allreduce", {}, "complete"),
    *[("dsgd", {"order": order}, "ring") for order in ("awc", "atc", "cta")],
    ("dsgd", {"gamma": 0.3}, "ring"),
    ("dsgd", {"gamma": 0.0}, "complete"),
    ("dsgd", {"order": "atc"}, "one-peer-exponential"),
    ("dsgd", {}, "directed"),
    ("dsgd-ac", {}, "ring"),
    ("local-sgd", {"period": 3}, "complete"),
]
"""Algorithms whose mean moves by the mean of what the local optimizers do."""


def mean_paths(c: Cubic, optimizer: Any, runs: list[tuple[str, dict[str, Any], str]]) -> list[np.ndarray]:
    rng, found = np.random.default_rng(20), []
    start, noise = 0.3 * rng.normal(size=(N, D)), 0.3 * rng.normal(size=(25, N, D))
    for name, parameters, mixes in runs:
        graph = directed(N) if mixes == "directed" else topology(mixes, N)
        running = engine(start, name, graph, optimizer, **parameters)
        path = []
        for now in noise:
            running.step(batch_of([c] * N, now))
            path.append(running.x.numpy().mean(0))
        found.append(np.stack(path))
    return found


def positive(seed: int, bend: float) -> Cubic:
    c = draw(seed, bend=bend)
    return Cubic(c.slope, c.curvature @ c.curvature / 3 + 0.1 * np.eye(D), c.third)


@pytest.mark.parametrize("name", sorted(SGD))
def test_on_a_common_quadratic_the_mean_knows_nothing_of_the_mixing(name: str) -> None:
    extra = [("gradient-tracking", {}, "ring"), ("choco-sgd", {"ratio": 0.4}, "ring")] if name == "sgd" else []
    paths = mean_paths(positive(21, 0.0), SGD[name], RUNS + extra)
    for path, run in zip(paths[1:], (RUNS + extra)[1:], strict=True):
        np.testing.assert_allclose(path, paths[0], rtol=0, atol=1e-13, err_msg=str(run))


@pytest.mark.parametrize(("name", "bend"), [("sgd", 0.5), ("adam", 0.0), ("inside", 0.0)])
def test_curvature_that_changes_and_adam_end_that(name: str, bend: float) -> None:
    paths = mean_paths(positive(21, bend), (SGD | ADAM)[name], RUNS[1:5])
    for one, other in ((0, 1), (0, 3)):
        assert np.abs(paths[one] - paths[other]).max() > 1e-6, (
            "seven orders above rounding, which is all there is above"
        )


def test_different_curvatures_end_that_too() -> None:
    start, found = np.random.default_rng(22).normal(size=(N, D)), []
    losses = [positive(k, 0.0) for k in range(N)]
    for graph in ("ring", "complete"):
        running = engine(start, "dsgd", topology(graph, N))
        for _ in range(5):
            running.step(batch_of(losses))
        found.append(running.x.numpy().mean(0))
    assert np.abs(found[0] - found[1]).max() > 1e-4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Cubic(np.zeros(2), np.eye(3), np.zeros((2, 2, 2))), r"a cubic in 2 numbers needs A \(2, 2\)"),
        (lambda: Cubic(np.zeros(2), np.array([[0.0, 1.0], [0.0, 0.0]]), np.zeros((2,) * 3)), "A of a cubic is not"),
        (lambda: Cubic(np.zeros(2), np.eye(2), np.arange(8.0).reshape(2, 2, 2)), r"take symmetrised\(T\)"),
        (lambda: Cubic(np.zeros(1), np.full((1, 1), np.nan), np.zeros((1,) * 3)), "A of a cubic is not symmetric"),
        (lambda: drift(np.zeros((2, 2, 2)), np.eye(3)), r"third derivatives \(2, 2, 2\) do not fit a covariance"),
        (lambda: covariance(np.zeros(3)), r"one row per worker, got an array of shape \(3,\)"),
        (lambda: penalty(lambda x, v: v, np.zeros((0, 3))), "one row per worker"),
        (lambda: expand(lambda x: x, lambda x, v: v, np.zeros((2, 2)), step=0.0), r"must lie in \(0, 1\], got 0.0"),
        (lambda: smoothed_gradient(lambda x: x, np.zeros(1), -np.eye(1)), "no negative eigenvalue, got -1"),
    ],
)
def test_what_cannot_be_is_refused(call: Any, message: str) -> None:
    with pytest.raises(MixingError, match=message):
        call()


def test_a_flat_covariance_is_no_perturbation() -> None:
    c = draw(23)
    np.testing.assert_allclose(
        smoothed_gradient(c.gradient, np.ones(D), np.zeros((D, D))), c.gradient(np.ones(D)), rtol=1e-13
    )
