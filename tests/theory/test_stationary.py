"""The predicted disagreement against golden values and the covariance of the algorithm's own full matrix."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

from dissensus.theory import MixingError, Topology, from_function, from_matrices, topology
from dissensus.theory.registry import catalogue
from dissensus.theory.stationary import diagonal, predict, variance

ORDERS = ["awc", "atc", "cta"]


def ring_eigenvalues(n: int) -> np.ndarray:
    return 1 / 3 + 2 / 3 * np.cos(2 * np.pi * np.arange(n) / n)


def lazy_ring_eigenvalues(n: int) -> np.ndarray:
    return np.cos(np.pi * np.arange(n) / n) ** 2


def matchings(n: int) -> Topology:
    """One-peer exponential by XOR pairs."""
    eye, i = np.eye(n), np.arange(n)
    return from_matrices([(eye + eye[i ^ (1 << k)]) / 2 for k in range(n.bit_length() - 1)], name="xor")


def alternating_ring(n: int) -> Topology:
    eye, i = np.eye(n), np.arange(n)
    other = np.where(i % 2 == 1, (i + 1) % n, (i - 1) % n)
    return from_matrices([(eye + eye[i ^ 1]) / 2, (eye + eye[other]) / 2], name="pairs")


def shifted(n: int) -> Topology:
    eye = np.eye(n)
    return from_matrices([(eye + np.roll(eye, 1 << k, axis=1)) / 2 for k in range(n.bit_length() - 1)], name="shifts")


def random_rounds(n: int, seed: int, period: int, *, row: bool = False) -> Topology:
    """Dense rounds without any symmetry; doubly stochastic as mixtures of permutations, or only row stochastic."""
    rng = np.random.default_rng(seed)
    rounds = []
    for _ in range(period):
        if row:
            w = rng.random((n, n)) + 0.1
            rounds.append(w / w.sum(axis=1, keepdims=True))
        else:
            shares = rng.dirichlet(np.ones(4))
            mixture = np.sum([s * np.eye(n)[rng.permutation(n)] for s in shares], axis=0)
            rounds.append(0.8 * mixture + 0.2 / n)
    return from_matrices(rounds, promise="row" if row else "doubly")


def block_step(w, hessian, lr, momentum, order, nesterov, decay, x, v, noise):
    """One step of the algorithm in its own words, rows = workers."""

    def move(at, g):
        g = g + decay * at
        velocity = momentum * v + g
        return at - lr * (g + momentum * velocity if nesterov else velocity), velocity

    if order == "awc":
        return move(w @ x, x @ hessian + noise)
    if order == "atc":
        after, velocity = move(x, x @ hessian + noise)
        return w @ after, velocity
    return move(w @ x, w @ x @ hessian + noise)


def block_matrices(w, hessian, lr, momentum, order, nesterov=False, decay=0.0):
    """The step as matrices (A, B) of the stacked state, found by applying it to unit vectors."""
    n, d = len(w), len(hessian)
    zero = np.zeros((n, d))

    def columns(which):
        out = []
        for unit in np.eye(n * d).reshape(-1, n, d):
            inputs = [zero, zero, zero]
            inputs[which] = unit
            x, v = block_step(w, hessian, lr, momentum, order, nesterov, decay, *inputs)
            out.append(np.concatenate([x.ravel(), v.ravel()]))
        return np.array(out).T

    return np.hstack([columns(0), columns(1)]), columns(2)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_the_refused_learning_rate_is_the_limit_of_the_whole_block_matrix(order, momentum, gamma) -> None:
    eigenvalues, curvatures = ring_eigenvalues(8), np.array([1.0, 2.0])
    with pytest.raises(MixingError, match="every mode is stable for 0 < lr < ") as caught:
        predict(eigenvalues, curvatures, lr=50.0, momentum=momentum, gamma=gamma, order=order)
    limit = float(str(caught.value).rsplit("< lr < ", 1)[1])
    w = (1 - gamma) * np.eye(8) + gamma * topology("ring", 8)[0].dense()

    def radius(lr):
        a, _ = block_matrices(w, np.diag(curvatures), lr, momentum, order)
        return np.abs(np.linalg.eigvals(a)).max()

    assert radius(limit * (1 - 1e-4)) < 1.0 < radius(limit * (1 + 1e-4))
    predict(eigenvalues, curvatures, lr=limit * (1 - 1e-4), momentum=momentum, gamma=gamma, order=order)


def test_pure_noise_on_the_ring_of_eight() -> None:
    assert predict(ring_eigenvalues(8), 0.0, lr=0.1).consensus_distance == pytest.approx(1.38616071e-2, rel=1e-8)
    atc = predict(topology("ring", 8), 0.0, 3.0, lr=0.1, order="atc")
    assert atc.consensus_distance == pytest.approx(3 * 0.51116071e-2, rel=1e-8)
    assert atc.envelope == 0.0


def test_envelope_and_alignment_of_the_lazy_ring() -> None:
    h = np.array([10, 1, 0.1, 0.01])
    golden = {
        1.0: (2.67e-4, 2.78e-4, 2.09),
        0.1: (1.81e-3, 9.07e-4, 1.00),
        0.01: (1.15e-2, 1.97e-3, 0.341),
        0.001: (5.43e-2, 3.10e-3, 0.114),
    }
    for gamma, expected in golden.items():
        got = predict(lazy_ring_eigenvalues(16), h, lr=0.005, gamma=gamma)
        assert (got.consensus_distance, got.envelope, got.alignment) == pytest.approx(expected, rel=6e-3)
        assert got.alignment is not None
        assert got.normalised_alignment == pytest.approx(got.alignment / h.mean())
    for gamma, envelope, alignment in [(1.0, 2.43e-3, 8.73), (0.1, 6.95e-3, 7.66), (0.01, 1.16e-2, 5.90),
                                       (0.001, 1.30e-2, 4.21)]:  # fmt: skip
        got = predict(lazy_ring_eigenvalues(16), h, h, lr=0.005, gamma=gamma)
        assert (got.envelope, got.alignment) == pytest.approx((envelope, alignment), rel=4e-3)


def test_without_mixing_workers_are_independent_runs() -> None:
    h, s2, lr, n = np.array([2.0, 0.5]), np.array([1.0, 3.0]), 0.1, 5
    expected = (n - 1) / (2 * n) * (lr * s2 / (2 - lr * h)).sum()
    assert predict(ring_eigenvalues(n), h, s2, lr=lr, gamma=0.0).envelope == pytest.approx(expected, rel=1e-13)


def one_peer_series(d: int, gamma: float, terms: int = 20000) -> float:
    u, total = 1 - gamma, 0.0
    for a in range(terms):
        q, r = divmod(a, d)
        low = u ** (2 * q) if q else 1.0
        total += ((1 + u ** (2 * q + 2)) / 2) ** r * ((1 + low) / 2) ** (d - r) - 2.0**-d
    return total


@pytest.mark.parametrize(("d", "gamma"), [(2, 1.0), (3, 1.0), (3, 0.3), (3, 0.05), (5, 0.4)])
def test_pure_noise_on_one_peer_exponential(d: int, gamma: float) -> None:
    got = predict(matchings(2**d), 0.0, lr=0.1, gamma=gamma)
    assert got.phases == pytest.approx([one_peer_series(d, gamma) * 0.01] * d, rel=1e-11)
    if gamma == 1.0:
        assert got.consensus_distance == pytest.approx(0.01 * (2 - (d + 2) / 2**d), rel=1e-12)
    if (d, gamma) in {(3, 0.3): 0, (3, 0.05): 0}:
        assert got.consensus_distance == pytest.approx({0.3: 3.09586788e-2, 0.05: 18.1225951e-2}[gamma], rel=1e-8)


@pytest.mark.parametrize(("gamma", "expected"), [(1.0, 1.27425), (0.3, 1.94534), (0.05, 3.65885)])
def test_curvature_on_one_peer_exponential(gamma: float, expected: float) -> None:
    got = predict(matchings(8), 1.0, lr=0.1, gamma=gamma)
    assert got.consensus_distance * 100 == pytest.approx(expected, abs=6e-6)
    assert np.ptp(got.phases) < 1e-15
    directed = predict(shifted(8), 0.0, lr=0.1)
    assert directed.consensus_distance == pytest.approx(1.375e-2, rel=1e-12)


@pytest.mark.parametrize("order", ["awc", "atc"])
@pytest.mark.parametrize("gamma", [1.0, 0.3])
def test_alternating_ring_in_closed_form(order: str, gamma: float) -> None:
    n, lr, h = 10, 0.1, 0.8
    p = 1 - lr * h
    q = 1 - gamma - lr * h if order == "awc" else p * (1 - gamma)
    y = (p - q) * np.cos(2 * np.pi * np.arange(1, n // 2) / n)
    pq = p * q
    t = 2 + (1 - pq) / ((1 + pq) * ((1 - pq) ** 2 - y**2)) * (
        p**2 + q**2 + 2 * pq**2 + 2 * pq * y**2 / (1 - pq)
    )  # fmt: skip
    bracket = t.sum() + 1 / (1 - q**2)
    if order == "atc":
        bracket = (bracket - (n - 1)) / p**2
    got = predict(alternating_ring(n), h, lr=lr, gamma=gamma, order=order)
    assert got.consensus_distance == pytest.approx(lr**2 / n * bracket, rel=1e-12)


SCHEDULES = {
    "ring": lambda: topology("ring", 6),
    "xor": lambda: matchings(4),
    "shifts": lambda: shifted(8),
    "alternating": lambda: alternating_ring(6),
    "random": lambda: random_rounds(5, 1, 3),
    "static-directed": lambda: random_rounds(5, 2, 1),
    "row": lambda: random_rounds(4, 3, 2, row=True),
}


def settings():
    for name, order in itertools.product(SCHEDULES, ORDERS):
        yield name, order, 0.0, False, 0.0
        yield name, order, 0.8, False, 0.0
        yield name, order, 0.8, True, 0.3


@pytest.mark.parametrize(("name", "order", "momentum", "nesterov", "decay"), list(settings()))
def test_prediction_equals_the_full_covariance_of_all_workers(name, order, momentum, nesterov, decay) -> None:
    """Everything at once: no eigenvectors, no modes, Hessian and noise covariance that do not commute."""
    top, lr, gamma, d = SCHEDULES[name](), 0.15, 0.6, 2
    n, rng = top.size, np.random.default_rng(5)
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    hessian = basis @ np.diag([1.3, 0.4]) @ basis.T
    root = rng.normal(size=(d, d))
    covariance = root @ root.T
    steps = [
        block_matrices((1 - gamma) * np.eye(n) + gamma * w.dense(), hessian, lr, momentum, order, nesterov, decay)
        for w in top
    ]
    lifted, noise = np.eye(2 * n * d), np.zeros((2 * n * d, 2 * n * d))
    drawn = np.kron(np.eye(n), covariance)
    for a, b in steps:
        lifted, noise = a @ lifted, a @ noise @ a.T + b @ drawn @ b.T
    phase = solve_discrete_lyapunov(lifted, noise)
    centre = np.kron(np.eye(n) - 1 / n, np.eye(d))
    distances, envelopes = [], []
    for a, b in steps:
        e = centre @ phase[: n * d, : n * d] @ centre.T
        distances.append(np.trace(e) / n)
        envelopes.append(0.5 * np.trace(np.kron(np.eye(n), hessian) @ e) / n)
        phase = a @ phase @ a.T + b @ drawn @ b.T
    h, s2 = diagonal(hessian, covariance)
    got = predict(top, h, s2, lr=lr, momentum=momentum, gamma=gamma, order=order, nesterov=nesterov, weight_decay=decay)
    assert got.phases == pytest.approx(distances, rel=1e-10)
    assert got.consensus_distance == pytest.approx(np.mean(distances), rel=1e-10)
    assert got.envelope == pytest.approx(np.mean(envelopes), rel=1e-10)
    assert got.modes.variances.sum() / n == pytest.approx(got.consensus_distance, rel=1e-12)


@pytest.mark.parametrize("name", list(catalogue()))
def test_every_registered_topology_against_plain_iteration(name: str) -> None:
    top, lr, h = topology(name, 8), 0.2, 0.9
    if top.period is None:
        with pytest.raises(MixingError, match="drawn anew at every step"):
            predict(top, h, lr=lr)
        return
    if top.promise == "column":
        with pytest.raises(MixingError, match="only column stochastic"):
            predict(top, h, lr=lr)
        return
    centre, p, distances = np.eye(8) - 1 / 8, np.zeros((8, 8)), []
    steps = [w.adapted(0.7).dense() - lr * h * np.eye(8) for w in top]
    for a in steps * (1 + 120 // top.period):  # every step forgets a factor 0.82 at least: 120 reach rounding
        distances.append(np.trace(centre @ p @ centre) / 8)
        p = a @ p @ a.T + lr**2 * np.eye(8)
    assert predict(top, h, lr=lr, gamma=0.7).phases == pytest.approx(distances[-top.period :], rel=1e-11)


def test_all_three_routes_agree_on_a_symmetric_ring() -> None:
    ring, h = topology("ring", 9), np.array([0.3, 1.0, 2.0])
    arguments = {"lr": 0.1, "momentum": 0.7, "gamma": 0.5, "order": "cta"}
    closed = predict(ring, h, **arguments)
    assert closed.consensus_distance == pytest.approx(predict(ring_eigenvalues(9), h, **arguments).consensus_distance)
    twice = from_matrices([ring[0].dense()] * 2)
    joint = predict(twice, h, **arguments)
    assert joint.phases == pytest.approx(closed.phases * 2, rel=1e-12)
    np.testing.assert_allclose(np.sort(joint.modes.variances, axis=0), np.sort(closed.modes.variances, axis=0), 1e-11)


def test_the_table_of_modes() -> None:
    got = predict(ring_eigenvalues(4), [2.0, 1.0], [1.0, 4.0], lr=0.1).to_dict()
    assert len(got["modes"]) == 6
    for row in got["modes"]:
        s2 = {2.0: 1.0, 1.0: 4.0}[row["curvature"]]
        assert row["variance"] == pytest.approx(float(variance(row["lambda"], row["curvature"], 0.1, noise=s2)))
    assert sum(row["variance"] for row in got["modes"]) / 4 == pytest.approx(got["consensus_distance"])
    assert predict(shifted(4), 1.0, lr=0.1).to_dict()["modes"][0]["lambda"] is None


def test_groups_that_never_talk_are_not_damped_by_rounding() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        w = np.zeros((7, 7))
        for part, size in ((slice(0, 3), 3), (slice(3, 7), 4)):
            p = np.eye(size)[rng.permutation(size)]
            share = rng.random()
            w[part, part] = share / size + (1 - share) * (p + p.T) / 2
        with pytest.raises(MixingError, match="no learning rate is stable for the mode lambda = 1 with curvature 0"):
            predict(from_matrices(w, may_disconnect=True), [1.0, 0.0], lr=0.1)


def test_noise_along_the_eigenvectors_of_the_hessian() -> None:
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    spread = basis @ np.diag([5.0, 6.0, 7.0]) @ basis.T + 0.3 * (np.outer(basis[:, 0], basis[:, 2]) * 2)
    h, s2 = diagonal(basis @ np.diag([1.0, 2.0, 3.0]) @ basis.T, (spread + spread.T) / 2)
    assert h == pytest.approx([1.0, 2.0, 3.0])
    assert s2 == pytest.approx([5.0, 6.0, 7.0])


@pytest.mark.parametrize("n", [1, 2])
def test_one_and_two_workers(n: int) -> None:
    got = predict(topology("complete", n), [1.0, 2.0], lr=0.1, order="atc")
    assert got.consensus_distance == pytest.approx(0.0, abs=1e-25)
    assert predict(topology("directed-ring", 1), 1.0, lr=0.1).alignment is None
    assert predict(np.ones(1), 1.0, lr=0.1).alignment is None
    assert predict(from_matrices([np.eye(1)] * 2), 1.0, lr=0.1).phases == (0.0, 0.0)


def test_pure_noise_alone_makes_flat_alignment() -> None:
    got = predict(ring_eigenvalues(5), [0.0, 0.0], lr=0.1)
    assert (got.alignment, got.normalised_alignment) == (0.0, None)
    assert predict(ring_eigenvalues(5), [2.0], lr=0.1, mean_curvature=0.5).normalised_alignment == pytest.approx(4.0)


RING = ring_eigenvalues(8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: predict(RING, 3.0, lr=0.5), r"lr = 0.5 has no stationary state: the mode lambda = -0.333333 with "
         r"curvature 3 \(order awc, momentum 0, gamma 1\) needs 0 < lr < 0.222222; every mode is stable for 0 < lr"),
        (lambda: predict([1.0, 0.0], 1.0, lr=2.5, order="atc"), r"the mean of the workers \(lambda = 1\) with "
         "curvature 1 .* needs 0 < lr < 2; every mode is stable for 0 < lr < 2"),
        (lambda: predict(RING, 0.0, lr=0.5, gamma=0.0), "no learning rate is stable for the mode lambda = .*a positive "
         "gamma on a connected topology damps it"),
        (lambda: predict(RING, [1.0, -0.5], lr=0.5), "the mode lambda = 0.804738 with curvature -0.5 .* needs 0 < lr < "
         "0.390524"),
        (lambda: predict(RING, [1.0, -9.0], lr=1.0), "curvature -9"),
        (lambda: predict([1.0, -1.0, 0.9], [1.0], lr=0.1), "no learning rate is stable for the mode lambda = -1 with"),
        (lambda: predict(alternating_ring(6), 1.0, lr=1.9, momentum=0.5), r"Topology\('pairs', n=6, period 2\) with "
         r"curvature 1 \(order awc, momentum 0.5, gamma 1\) is stable for lr < 1\.5"),
        (lambda: predict(matchings(8), 0.0, lr=0.1, gamma=0.0),
         "no learning rate below 0.1 is stable for .* not damped"),
        (lambda: predict(RING, 1.0, lr=0.1, order="wac"), "unknown order 'wac'; did you mean 'awc'"),
        (lambda: predict(RING, 1.0, lr=0.1, momentum=1.0), r"momentum must lie in \[0, 1\), got 1.0"),
        (lambda: predict(RING, 1.0, lr=0.1, weight_decay=-1.0), "weight_decay must be finite and not negative, got -1"),
        (lambda: predict(RING, 1.0, lr=-0.1), "lr must be finite and not negative, got -0.1"),
        (lambda: predict(RING, 1.0, lr=0.1, gamma=float("nan")), "gamma must be finite and not negative, got nan"),
        (lambda: predict(RING, [], lr=0.1), "curvatures must be a non-empty list of finite numbers"),
        (lambda: predict(RING, [1.0, 2.0], [1.0], lr=0.1), r"noise must be one variance for each of the 2 curvatures"),
        (lambda: predict(RING, [1.0, 2.0], [1.0, -1.0], lr=0.1), "not negative: entry 1 is -1.0"),
        (lambda: predict(RING[1:], 1.0, lr=0.1), r"lack the 1 of the mean \(the nearest is 0.804737854\): pass all n"),
        (lambda: predict([1.0, 1j], 1.0, lr=0.1), "must be a list of finite real numbers; pass the topology itself"),
        (lambda: predict(from_function(lambda t: np.eye(3), 3), 1.0, lr=0.1), "drawn anew at every step and has no "
         r"stationary state of its own; predict on a long sample of it: from_matrices\("),
        (lambda: predict(from_matrices([[0.5, 0.2], [0.5, 0.8]], promise="column"), 1.0, lr=0.1),
         "round 0 of 'custom' is only column stochastic: consensus is not kept"),
    ],
)  # fmt: skip
def test_refusals(call, message: str) -> None:
    with pytest.raises(MixingError, match=message):
        call()
