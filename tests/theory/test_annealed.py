"""The exact recursion of annealed runs against the full covariance of all workers, and a table simulated elsewhere."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dissensus.theory import MixingError, Topology, from_function, from_matrices, topology
from dissensus.theory.annealed import freezing_time, trajectory
from dissensus.theory.stationary import diagonal, predict

ORDERS = ["awc", "atc", "cta"]


def doubly(n: int, rng: np.random.Generator) -> np.ndarray:
    """A doubly stochastic matrix with no symmetry: a mixture of permutations."""
    shares = rng.dirichlet(np.ones(4))
    return 0.8 * np.sum([s * np.eye(n)[rng.permutation(n)] for s in shares], axis=0) + 0.2 / n


def drawn(n: int) -> Topology:
    return from_function(lambda t: doubly(n, np.random.default_rng([7, t])), n, name="drawn")


def matchings(n: int) -> Topology:
    eye, i = np.eye(n), np.arange(n)
    return from_matrices([(eye + eye[i ^ (1 << k)]) / 2 for k in range(n.bit_length() - 1)])


def shifted(n: int) -> Topology:
    eye = np.eye(n)
    return from_matrices([(eye + np.roll(eye, 1 << k, axis=1)) / 2 for k in range(n.bit_length() - 1)])


TOPOLOGIES = {
    "ring": lambda: topology("ring", 5),
    "star": lambda: from_matrices(np.eye(4) - (np.diag([3, 1, 1, 1]) - star_links(4)) / 4),
    "xor": lambda: matchings(4),
    "shifts": lambda: shifted(4),
    "two rounds": lambda: from_matrices([doubly(4, np.random.default_rng(s)) for s in (1, 2)]),
    "drawn": lambda: drawn(4),
}


def star_links(n: int) -> np.ndarray:
    links = np.zeros((n, n))
    links[0, 1:] = links[1:, 0] = 1.0
    return links


def simulate_covariance(
    top: Topology, hessian, covariance, lrs, gammas, scales, momentum, order, nesterov, decay
) -> tuple[np.ndarray, np.ndarray]:
    """Consensus distance and envelope from the covariance of all n d coordinates, step by step, nothing reduced."""
    n, d = top.size, len(hessian)
    eye, big_h = np.eye(n * d), np.kron(np.eye(n), hessian)
    centre = np.kron(np.eye(n) - 1 / n, np.eye(d))
    p = np.zeros((2 * n * d, 2 * n * d))
    xi, envelope = [0.0], [0.0]
    for t, (lr, gamma, scale) in enumerate(zip(lrs, gammas, scales, strict=True)):
        w = np.kron((1 - gamma) * np.eye(n) + gamma * top[t].dense(), np.eye(d))
        # g = big_h y + decay z + noise, written as rows acting on (x, v, noise)
        y, z = {"awc": (eye, w), "atc": (eye, eye), "cta": (w, w)}[order]
        zero = np.zeros_like(eye)
        g = np.hstack([big_h @ y + decay * z, zero, eye])
        velocity = np.hstack([zero, momentum * eye, zero]) + g
        d_t = g + momentum * velocity if nesterov else velocity
        own = np.hstack([eye, zero, zero])
        x = w @ (own - lr * d_t) if order == "atc" else w @ own - lr * d_t
        step = np.vstack([x, velocity])
        noise = np.kron(np.eye(n), scale * covariance)
        p = step[:, : 2 * n * d] @ p @ step[:, : 2 * n * d].T + step[:, 2 * n * d :] @ noise @ step[:, 2 * n * d :].T
        e = centre @ p[: n * d, : n * d] @ centre
        xi.append(np.trace(e) / n)
        envelope.append(0.5 * np.trace(big_h @ e) / n)
    return np.array(xi), np.array(envelope)


@pytest.mark.parametrize(
    ("name", "order", "momentum", "nesterov", "decay"),
    [
        (*case, *local)
        for case in itertools.product(TOPOLOGIES, ORDERS)
        for local in [(0.0, False, 0.0), (0.8, False, 0.0), (0.8, True, 0.2)]
    ],
)
def test_recursion_equals_the_full_covariance(name, order, momentum, nesterov, decay) -> None:
    top, steps, d = TOPOLOGIES[name](), 40, 2
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    hessian = basis @ np.diag([1.5, 0.0]) @ basis.T
    root = rng.normal(size=(d, d))
    covariance = root @ root.T
    lrs = 0.1 * (1 + np.cos(np.pi * np.arange(steps) / steps))
    gammas, scales = 0.1 + 0.9 * rng.random(steps), 0.5 + rng.random(steps)
    expected = simulate_covariance(
        top, hessian, covariance, lrs, gammas, scales, momentum, order, nesterov, decay
    )  # fmt: skip
    nodes, weights = diagonal(hessian, covariance)
    got = trajectory(
        top, nodes, weights, lrs, gammas, momentum, order, scales, nesterov=nesterov, weight_decay=decay
    )  # fmt: skip
    assert got.xi[0] == got.envelope[0] == 0.0
    # the oracle subtracts the mean of all workers, whose own variance is up to a few hundred times the largest Xi
    np.testing.assert_allclose(got.xi, expected[0], rtol=1e-12, atol=1e-13 * expected[0].max())
    np.testing.assert_allclose(got.envelope, expected[1], rtol=1e-12, atol=1e-13 * expected[0].max())


ANNEALED = """
0 0 .0834 .0041 0
0 1 .115 .0259 .0126
0 2 .160 .158 .158
0 3 .225 .459 .461
0 5 .440 1.21 1.21
.1 2 .153 .108 .097
.1 3 .206 .161 .143
.1 5 .333 .171 .152
3 2 .083 .0207 .0090
3 3 .088 .0209 .0090
3 5 .093 .0209 .0090
"""


@pytest.mark.parametrize("line", ANNEALED.strip().splitlines())
def test_cosine_with_adaptive_consensus_gives_the_known_table(line: str) -> None:
    h, p, *printed = line.split()
    steps, top = 20000, 0.1
    lrs = 0.5 * top * (1 + np.cos(np.pi * np.arange(steps) / steps))
    gammas = np.where(np.arange(steps) < 1000, 1.0, (lrs / top) ** float(p))
    # two workers: the one disagreement mode counts half in the mean over workers
    xi = trajectory([1.0, 0.8], [float(h)], [1.0], lrs, gammas).xi
    for at, text in zip((10000, 18000, 20000), printed, strict=True):
        half_a_digit = 0.5 * 10.0 ** -len(text.split(".")[1]) if "." in text else 1e-6
        assert np.sqrt(2 * xi[at]) == pytest.approx(float(text), abs=half_a_digit * 1.01)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("make", [lambda: topology("ring", 6), lambda: shifted(8), TOPOLOGIES["two rounds"]])
def test_constant_settings_end_in_the_stationary_state(order: str, make) -> None:
    top, settings = make(), {"momentum": 0.5, "order": order}
    h, s2 = [0.5, 2.0], [1.0, 0.3]
    lrs = np.full(top.period * 150, 0.2)
    end = trajectory(top, h, s2, lrs, 0.7, **settings).xi
    expected = predict(top, h, s2, lr=0.2, gamma=0.7, **settings)
    # entry t of the trajectory is the state before round t, as are the phases of the prediction
    assert end[-top.period - 1 : -1] == pytest.approx(expected.phases, rel=1e-11)


def test_step_t_uses_its_own_learning_rate_gamma_and_noise() -> None:
    """Three steps of one mode by hand."""
    lrs, gammas, scales, h, s2 = [0.1, 0.2, 0.4], [1.0, 0.5, 0.25], [1.0, 3.0, 5.0], 2.0, 7.0
    variance, expected = 0.0, [0.0]
    for lr, gamma, scale in zip(lrs, gammas, scales, strict=True):
        mu = 1 - gamma * (1 - 0.6)
        variance = (mu - lr * h) ** 2 * variance + lr**2 * scale * s2
        expected.append(variance / 2)
    got = trajectory([0.6, 1.0], h, s2, lrs, gammas, noise_scale=scales)
    assert got.xi == pytest.approx(expected, rel=1e-14)
    assert got.envelope == pytest.approx(np.array(expected) * h / 2, rel=1e-14)


def test_missing_gammas_mean_full_mixing_and_numbers_hold_for_all_steps() -> None:
    plain = trajectory(topology("ring", 4), 1.0, 1.0, [0.1, 0.2]).xi
    assert plain == pytest.approx(trajectory(topology("ring", 4), 1.0, 1.0, [0.1, 0.2], [None, 1.0]).xi)
    assert plain == pytest.approx(trajectory(topology("ring", 4), 1.0, 0.5, [0.1, 0.2], 1.0, noise_scale=2.0).xi)
    assert trajectory(topology("complete", 1), 1.0, 1.0, [0.1]).xi == pytest.approx([0.0, 0.0])
    assert trajectory(from_matrices([np.eye(1)] * 2), 1.0, 1.0, [0.1], momentum=0.5).xi == pytest.approx([0.0, 0.0])
    assert trajectory(topology("ring", 4), 1.0, 1.0, []).xi == pytest.approx([0.0])


def test_a_transient_instability_is_followed_not_refused() -> None:
    xi = trajectory(topology("ring", 4), 1.0, 1.0, [3.0] * 5 + [0.1] * 200).xi
    assert xi[5] > 100 * xi[-1]
    assert xi[-1] == pytest.approx(predict(topology("ring", 4), 1.0, lr=0.1).consensus_distance, rel=1e-6)


def test_freezing_time() -> None:
    assert freezing_time(3, 0.2, 78200) == pytest.approx(0.20, abs=5e-3)
    p, delta, steps = 2.0, 0.3, 5000
    tau = freezing_time(p, delta, steps)
    left = steps * delta * (np.pi**2 / 4) ** p * tau ** (2 * p + 1) / (2 * p + 1)
    assert left == pytest.approx(0.5, rel=1e-12)
    # and against the cosine itself: the damping summed over the last part of the run
    t = np.arange(steps)
    damping = delta * (0.5 * (1 + np.cos(np.pi * t / steps))) ** p
    assert damping[t >= (1 - tau) * steps].sum() == pytest.approx(0.5, rel=0.05)
    assert freezing_time(1, 0.01, 10) == 1.0


def run(*args, **kwargs):
    return lambda: trajectory([1.0, 0.5], 1.0, 1.0, *args, **kwargs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (run([[0.1]]), r"lrs must hold one learning rate per step, got .* \(1, 1\)"),
        (run([0.1, 0.1], [1.0]), r"gammas must be one number or one per step \(2\), got shape \(1,\)"),
        (run([0.1], noise_scale=[1.0, 1.0]), "noise_scale must be one number or"),
        (run([0.1, float("nan")]), "lrs must be finite and not negative: step 1 has nan"),
        (run([0.1], -1.0), "gammas must be finite and not negative: step 0 has -1.0"),
        (run([10.0] * 400), r"overflows at step \d+ \(lr 10, gamma 1\); stationary.stable_learning_rates"),
        (run([0.1], order="awcc"), "unknown order 'awcc'; did you mean 'awc'"),
        (lambda: freezing_time(-1, 0.2, 10), "the exponent p must be finite and not negative, got -1"),
        (lambda: freezing_time(2, 0.0, 10), r"delta = 1 - lambda must lie in \(0, 2\], got 0.0"),
        (lambda: freezing_time(2, 0.1, 0), "a run needs a positive number of steps, got 0"),
    ],
)
def test_refusals(call, message: str) -> None:
    with pytest.raises(MixingError, match=message):
        call()
