"""Bias and noise of workers with quadratics of their own, against the recursion run out and Lyapunov equations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.linalg import block_diag, solve_discrete_lyapunov
from scipy.optimize import minimize

from dissensus.theory import MixingError, Topology, from_function, from_matrices, stationary, topology
from dissensus.theory.coupled import Quadratics
from dissensus.theory.fixed_point import fixed_point
from dissensus.theory.heterogeneous import predict
from dissensus.theory.variance import bias

ORDERS = ["awc", "atc", "cta"]
N, D = 5, 2


def doubly(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(4))
    return 0.8 * np.sum([s * np.eye(N)[rng.permutation(N)] for s in shares], axis=0) + 0.2 / N


def rows(w: np.ndarray) -> np.ndarray:
    return w / w.sum(axis=1, keepdims=True)


SCHEDULES = {
    "ring": lambda: topology("ring", N),
    "directed": lambda: from_matrices([doubly(1)]),
    "two rounds": lambda: from_matrices([doubly(2), doubly(3)]),
    "row": lambda: from_matrices([rows(doubly(4) + 0.3 * np.eye(N) + 0.1 * np.tri(N))], promise="row"),
}


def drawn(*, common: bool, seed: int = 0) -> Quadratics:
    rng = np.random.default_rng(seed)

    def positive(scale: float) -> np.ndarray:
        root = rng.normal(size=(D, D))
        return scale * (root @ root.T + np.eye(D))

    hessians = np.array([positive(0.3) for _ in range(N)])
    hessian = hessians[0] if common else hessians
    return Quadratics.of(N, hessian, linear=rng.normal(size=(N, D)), noise=np.array([positive(1.0) for _ in range(N)]))


def one_step(w, problem, lr, move, x, v, noise):
    """The algorithm in its own words: rows are workers."""
    order, momentum, nesterov, decay = move

    def local(at, g):
        g = g + decay * at
        velocity = momentum * v + g
        return at - lr * (g + momentum * velocity if nesterov else velocity), velocity

    def gradient(at):
        return np.einsum("nij,nj->ni", problem.hessians, at) - problem.linear + noise

    if order == "awc":
        return local(w @ x, gradient(x))
    if order == "atc":
        after, velocity = local(x, gradient(x))
        return w @ after, velocity
    return local(w @ x, gradient(w @ x))


def run_out(top: Topology, problem: Quadratics, lr: float, gamma: float, move, steps: int) -> list[np.ndarray]:
    x, v, points = np.ones((N, D)), np.zeros((N, D)), []
    for t in range(steps):
        points.append(x)
        w = (1 - gamma) * np.eye(N) + gamma * top[t].dense()
        x, v = one_step(w, problem, lr, move, x, v, 0.0)
    return points


MOVES = [(0.0, False, 0.0), (0.7, False, 0.0), (0.7, True, 0.3)]
CASES = [(n, o, *m, c) for n, o, m, c in itertools.product(SCHEDULES, ORDERS, MOVES, [False, True])]


@pytest.mark.parametrize(("name", "order", "momentum", "nesterov", "decay", "common"), CASES)
def test_the_fixed_point_is_where_the_noiseless_algorithm_ends(name, order, momentum, nesterov, decay, common) -> None:
    top, problem, lr, gamma = SCHEDULES[name](), drawn(common=common), 0.1, 0.6
    ends = run_out(top, problem, lr, gamma, (order, momentum, nesterov, decay), 1202)
    got = fixed_point(
        top, problem, lr=lr, momentum=momentum, gamma=gamma, order=order, nesterov=nesterov, weight_decay=decay
    )
    for t in range(top.period or 1):
        end = ends[1200 + t]
        mean = end.mean(axis=0)
        np.testing.assert_allclose(got.deviations[t], end - mean, atol=1e-11)
        if got.mean is not None:
            np.testing.assert_allclose(got.mean[t], mean, atol=1e-11)
    assert (got.mean is None) == (name == "row" and common)


@pytest.mark.parametrize(("name", "order", "momentum", "nesterov", "decay", "common"), CASES)
def test_bias_plus_noise_against_the_plain_covariance(name, order, momentum, nesterov, decay, common) -> None:
    """Matrices by applying the algorithm to unit vectors; the mean stays in the state, whatever the Hessians."""
    top, problem, lr, gamma = SCHEDULES[name](), drawn(common=common, seed=3), 0.1, 0.6
    size, zero = N * D, np.zeros((N, D))
    still = Quadratics(problem.hessians, zero, problem.noise)
    maps = []
    for t in range(top.period or 1):
        w = (1 - gamma) * np.eye(N) + gamma * top[t].dense()
        columns = []
        for unit in np.eye(3 * size):
            x, v, xi = unit.reshape(3, N, D)
            columns.append(np.ravel(one_step(w, still, lr, (order, momentum, nesterov, decay), x, v, xi)))
        maps.append((np.array(columns).T[:, : 2 * size], np.array(columns).T[:, 2 * size :]))
    drawn_noise = block_diag(*problem.noise)
    lifted, gathered = np.eye(2 * size), np.zeros((2 * size, 2 * size))
    for a, b in maps:
        lifted, gathered = a @ lifted, a @ gathered @ a.T + b @ drawn_noise @ b.T
    state = solve_discrete_lyapunov(lifted, gathered)
    apart = np.kron(np.eye(N) - 1 / N, np.eye(D))
    sigma = np.zeros((D, D))
    ends = run_out(top, problem, lr, gamma, (order, momentum, nesterov, decay), 1202)
    mean_variance = 0.0
    for t, (a, b) in enumerate(maps):
        spread = (apart @ state[:size, :size] @ apart.T).reshape(N, D, N, D)
        e = ends[1200 + t] - ends[1200 + t].mean(axis=0)
        sigma += (np.einsum("iaib->ab", spread) + e.T @ e) / N / top.period
        mean_variance += np.einsum("iaja->", state[:size, :size].reshape(N, D, N, D)) / N**2 / top.period
        state = a @ state @ a.T + b @ drawn_noise @ b.T
    got = predict(
        top, problem, lr=lr, momentum=momentum, gamma=gamma, order=order, nesterov=nesterov, weight_decay=decay
    )
    np.testing.assert_allclose(got.covariance, sigma, rtol=1e-9, atol=1e-12)
    assert got.consensus_distance == pytest.approx(np.trace(sigma), rel=1e-10)
    assert got.envelope == pytest.approx(0.5 * np.trace(problem.hessians.mean(axis=0) @ sigma), rel=1e-10)
    assert got.bias > 0 < got.noise
    if not common:
        assert got.mean_variance == pytest.approx(mean_variance, rel=1e-10)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.8, 0.2)])
def test_the_bias_of_a_mode_in_closed_form(order: str, momentum: float, decay: float) -> None:
    ring, h, lr, gamma = topology("ring", N), np.array([0.9, 0.2]), 0.15, 0.4
    pulls = np.random.default_rng(0).normal(size=(N, 2))
    values, vectors = np.linalg.eigh(ring[0].dense())
    force = vectors[:, :-1].T @ pulls
    e = bias(values[:-1, None], h, lr, momentum, gamma, order, force, decay)
    got = fixed_point(
        ring, Quadratics.of(N, h, linear=pulls), lr=lr, momentum=momentum, gamma=gamma, order=order, weight_decay=decay
    )
    np.testing.assert_allclose(vectors[:, :-1].T @ got.deviations[0], e, rtol=1e-12, atol=1e-14)
    assert got.consensus_distance == pytest.approx((e**2).sum() / N, rel=1e-12)
    with_nesterov = fixed_point(
        ring, Quadratics.of(N, h, linear=pulls), lr=lr, momentum=momentum or 0.5, nesterov=True, gamma=gamma,
        order=order, weight_decay=decay,
    )  # fmt: skip
    other = bias(values[:-1, None], h, lr, momentum or 0.5, gamma, order, force, decay)
    assert with_nesterov.consensus_distance == pytest.approx((other**2).sum() / N, rel=1e-12)


def test_the_fixed_point_of_awc_minimises_the_penalised_loss() -> None:
    problem, ring, lr, beta = drawn(common=False, seed=8), topology("ring", N), 0.2, 0.5
    w = ring[0].dense()
    a = lr / (1 - beta)

    def loss(flat):
        x = flat.reshape(N, D)
        own = 0.5 * np.einsum("ni,nij,nj->", x, problem.hessians, x) - (problem.linear * x).sum()
        return own + 0.5 / a * np.trace(x.T @ (x - w @ x))

    found = minimize(loss, np.zeros(N * D), method="BFGS", options={"gtol": 1e-9}).x.reshape(N, D)
    got = fixed_point(ring, problem, lr=lr, momentum=beta)
    assert got.mean is not None
    np.testing.assert_allclose(got.deviations[0] + got.mean[0], found, atol=1e-6)


def test_with_one_hessian_and_one_noise_it_is_the_prediction_by_modes() -> None:
    h, s2 = np.array([1.3, 0.0, 0.4]), np.array([1.0, 2.0, 0.5])
    for name, momentum in itertools.product(["ring", "one-peer-ring", "directed-ring"], [0.0, 0.8]):
        expected = stationary.predict(topology(name, 6), h, s2, lr=0.2, gamma=0.5, momentum=momentum)
        got = predict(topology(name, 6), Quadratics.of(6, h, noise=s2), lr=0.2, gamma=0.5, momentum=momentum)
        assert got.noise == pytest.approx(expected.consensus_distance, rel=1e-11)
        assert got.envelope == pytest.approx(expected.envelope, rel=1e-11)
        assert got.bias == pytest.approx(0.0, abs=1e-28)
        np.testing.assert_allclose(np.diag(got.covariance), expected.directions, rtol=1e-11)


def test_without_heterogeneity_the_mean_rests_at_the_optimum_and_with_different_hessians_it_does_not() -> None:
    common = fixed_point(topology("ring", N), drawn(common=True), lr=0.1)
    assert common.error == pytest.approx(0.0, abs=1e-12)
    apart = fixed_point(topology("ring", N), drawn(common=False), lr=0.1)
    assert apart.error is not None
    assert apart.error > 1e-3
    near, nearer = (fixed_point(topology("ring", N), drawn(common=False), lr=lr) for lr in (1e-4, 1e-5))
    assert near.error is not None
    assert nearer.error == pytest.approx(near.error * 0.1, rel=1e-3)  # first order in the learning rate
    assert nearer.consensus_distance == pytest.approx(near.consensus_distance * 0.01, rel=1e-3)
    flat = fixed_point(topology("ring", N), Quadratics.of(N, [1.0, 0.0], linear=np.ones((N, D))), lr=0.1)
    assert (flat.mean, flat.optimum, flat.error) == (None, None, None)


def test_optima_and_plain_numbers() -> None:
    optima = np.arange(2.0 * N).reshape(N, 2)
    problem = Quadratics.of(N, [2.0, 0.5], optima=optima, noise=0.3)
    np.testing.assert_allclose(problem.linear, optima * [2.0, 0.5])
    np.testing.assert_allclose(problem.noise[3], 0.3 * np.eye(2))
    optimum = problem.optimum()
    assert optimum is not None
    np.testing.assert_allclose(optimum, optima.mean(axis=0))
    got = predict(topology("complete", N), problem, lr=0.1, order="atc").to_dict()
    assert got["bias"] == pytest.approx(0.0, abs=1e-25)
    assert got["mean_error"] == pytest.approx(0.0, abs=1e-12)
    alone = predict(topology("complete", 1), Quadratics.of(1, 1.0, noise=1.0), lr=0.1)
    assert alone.consensus_distance == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Quadratics.of(3, np.eye(2), optima=np.zeros((3, 2)), linear=np.zeros((3, 2))), "optima or linear"),
        (lambda: Quadratics.of(3, np.eye(2), optima=np.zeros((2, 2))), "optima must be 3 finite points of 2"),
        (lambda: Quadratics.of(3, np.ones((2, 3))), r"hessian must be a finite diagonal, .* got shape \(2, 3\)"),
        (lambda: Quadratics.of(3, [[1.0, 1.0], [0.0, 1.0]]), "hessian must be symmetric"),
        (lambda: Quadratics.of(3, [1.0, 2.0], noise=[1.0, -1.0]), "a covariance: its smallest eigenvalue is -1"),
        (lambda: Quadratics.of(3, [1.0, np.nan]), "hessian must be a finite diagonal"),
        (lambda: predict(topology("ring", 4), drawn(common=True), lr=0.1), "4 workers, but .* quadratics for 5"),
        (lambda: predict(from_function(lambda t: np.eye(N), N), drawn(common=True), lr=0.1), "drawn anew at every"),
        (lambda: predict(topology("ring", N), drawn(common=True), lr=-1.0), "lr must be finite and not"),
        (lambda: predict(topology("ring", N), drawn(common=False), lr=9.0), r"lr = 9 has no stationary state: Topology"
         r"\(.*with 5 quadratics \(order awc, momentum 0, gamma 1\) is stable for lr < 0\.\d+"),
        (lambda: predict(topology("ring", N), Quadratics.of(N, [1.0, 0.0], noise=1.0), lr=0.1, gamma=0.0),
         "no learning rate below 0.1 is stable for .* some direction is not damped"),
        (lambda: predict(topology("ring", 200), Quadratics.of(200, np.eye(30)), lr=0.1), "make 5970 states, more than"),
        (lambda: predict(topology("ring", 100), Quadratics.of(100, np.ones(3)), lr=9.0), "has spectral radius 9.33"),
    ],
)  # fmt: skip
def test_refusals(call, message: str) -> None:
    with pytest.raises(MixingError, match=message):
        call()
