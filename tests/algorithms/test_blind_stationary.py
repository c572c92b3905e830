r"""Stationary disagreement on quadratics: the engine's own linear map, solved exactly, against closed forms.

On a quadratic with additive noise a linear algorithm is an affine map, and the engine is asked for it column by column:
unit starting points and unit noise impulses, all workers' at once because the coordinates of $A_i = hI$ do not speak to
each other. With momentum the points alone obey a recursion of second order,

$$x_{t+1} = P_1 x_t + P_2 x_{t-1} + B_0 \xi_t + B_1 \xi_{t-1},$$

whose matrices are read off the responses. A discrete Lyapunov equation then gives the covariance: no Monte Carlo, and
no tolerance beyond the digits in which the golden numbers are printed. The closed forms are our own derivations.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

from dissensus.algorithms import algorithm
from dissensus.experiments.problem import Problem, solve
from dissensus.theory import Topology, from_matrices, topology

Array = np.ndarray


class Law(NamedTuple):
    """An algorithm with everything but the topology fixed: name, keys, local optimizer, learning rate, curvature."""

    name: str
    keys: dict[str, Any]
    optimizer: Any
    lr: float
    h: float


def path(law: Law, schedule: Topology, steps: int, *, start: Array | None = None, noise: Array | None = None) -> Array:
    """The points of a run on f_i(x) = h |x|^2 / 2 in n coordinates: n runs at once, column by column."""
    n = schedule.size
    hessian = np.broadcast_to(law.h * np.eye(n), (n, n, n)).copy()
    problem = Problem(hessian, np.zeros((n, n)), np.zeros((n, n)) if start is None else start, noise)
    return solve(
        problem, algorithm=algorithm(law.name, **law.keys), topology=schedule, optimizer=law.optimizer,
        lr=law.lr, steps=steps, dtype="float64", gradients="vmap",
    )  # fmt: skip


def impulse(law: Law, schedule: Topology, at: int, steps: int) -> Array:
    """The response to a unit of noise in every worker's gradient of step `at`."""
    noise = np.zeros((steps, schedule.size, schedule.size))
    noise[at] = np.eye(schedule.size)
    return path(law, schedule, steps, noise=noise)


def second_order(law: Law, schedule: Topology) -> tuple[Array, Array, Array, Array]:
    """P1, P2, B0, B1 of the points of a static linear algorithm, from its responses."""
    n = schedule.size
    free, hit = path(law, schedule, 7, start=np.eye(n)), impulse(law, schedule, 0, 7)
    now = [*free[2:7], *hit[3:7]]
    past = [np.vstack([r[t - 1], r[t - 2]]) for r, ts in ((free, range(2, 7)), (hit, range(3, 7))) for t in ts]
    both = np.linalg.lstsq(np.hstack(past).T, np.hstack(now).T, rcond=1e-9)[0].T
    p1, p2 = both[:, :n], both[:, n:]
    return p1, p2, hit[1], hit[2] - p1 @ hit[1]


def covariance(law: Law, schedule: Topology, *, mean: bool = False) -> Array:
    """The stationary covariance over workers (unit noise each) of the disagreement, or with `mean` of the points."""
    n = schedule.size
    p1, p2, b0, b1 = second_order(law, schedule)
    m = np.block([[p1, np.eye(n)], [p2, np.zeros((n, n))]])  # state: x and what its past adds to the next x
    b = np.vstack([b0, b1])
    keep = np.kron(np.eye(2), np.eye(n) if mean else np.eye(n) - np.full((n, n), 1 / n))
    sigma = solve_discrete_lyapunov(keep @ m @ keep, keep @ b @ b.T @ keep)
    return sigma[:n, :n]


def pair(eigenvalue: float) -> Topology:
    """Two workers whose disagreement (1, -1) has this eigenvalue."""
    a = (1 + eigenvalue) / 2
    return from_matrices([np.array([[a, 1 - a], [1 - a, a]])])


def dsgd(order: str, gamma: float, h: float, lr: float, beta: float = 0.0, **options: Any) -> Law:
    """DSGD with torch's SGD."""
    return Law("dsgd", {"order": order, "gamma": gamma}, partial(torch.optim.SGD, momentum=beta, **options), lr, h)


def ar2(phi1: float, phi2: float, b0: float, b1: float = 0.0) -> float:
    """The variance of e+ = phi1 e + phi2 e- + b0 xi + b1 xi-, xi of variance one."""
    return ((1 - phi2) * (b0**2 + b1**2) + 2 * b0 * b1 * phi1) / ((1 + phi2) * ((1 - phi2) ** 2 - phi1**2))


def s_awc(mu: float, h: float, lr: float, beta: float) -> float:
    """Heavy ball, gradient at the own point."""
    below = (1 - beta * mu) * ((1 - beta) * (1 - mu) + lr * h) * ((1 + beta) * (1 + mu) - lr * h)
    return lr**2 * (1 + beta * mu) / below


def s_atc(mu: float, h: float, lr: float, beta: float) -> float:
    """ATC is AWC with the learning rate times mu."""
    return s_awc(mu, h, lr * mu, beta)


def s_cta(mu: float, h: float, lr: float, beta: float) -> float:
    """Gradient at the mixed point."""
    return ar2(mu + beta - lr * h * mu, -beta * mu, -lr)


def s_nesterov(mu: float, h: float, lr: float, beta: float) -> float:
    """Torch's Nesterov, AWC."""
    return ar2(mu + beta - lr * h * (1 + beta), -beta * (mu - lr * h), -lr * (1 + beta), lr * beta)


CLOSED: dict[str, Callable[..., float]] = {"awc": s_awc, "atc": s_atc, "cta": s_cta}
GOLDEN = [
    ("awc", 0.5, 1, 1, 0.1, 0.0, 0.0119047619),
    ("awc", 0.5, 1, 1, 0.1, 0.9, 0.06391184573),
    ("awc", 0.5, 0.1, 1, 0.1, 0.0, 0.03603603604),
    ("awc", 0.5, 0.1, 1, 0.1, 0.9, 0.3379724839),
    ("awc", 0.9, 0.01, 0.2, 0.05, 0.9, 1.229854876),
    ("awc", 0.0, 1, 1, 0.1, 0.0, 0.0101010101),
    ("awc", 0.0, 1, 1, 0.1, 0.9, 0.02777777778),
    ("awc", -0.5, 1, 2, 0.1, 0.5, 0.01148325359),
    ("atc", 0.5, 1, 1, 0.1, 0.0, 0.003134796238),
    ("atc", 0.5, 1, 1, 0.1, 0.9, 0.02353896104),
    ("atc", 0.5, 0.1, 1, 0.1, 0.0, 0.03355330421),
    ("atc", 0.5, 0.1, 1, 0.1, 0.9, 0.3198275862),
    ("atc", 0.9, 0.01, 0.2, 0.05, 0.9, 1.228609601),
    ("atc", 0.0, 1, 1, 0.1, 0.0, 0.0),
    ("atc", 0.0, 1, 1, 0.1, 0.9, 0.0),
    ("atc", -0.5, 1, 2, 0.1, 0.5, 0.002714932127),
]
PRINTED = 6e-10  # the golden numbers carry ten digits, the shortest nine


@pytest.mark.parametrize(("order", "eigenvalue", "gamma", "h", "lr", "beta", "golden"), GOLDEN)
def test_golden_stationary_variances(
    order: str, eigenvalue: float, gamma: float, h: float, lr: float, beta: float, golden: float
) -> None:
    sigma = covariance(dsgd(order, gamma, h, lr, beta), pair(eigenvalue))
    mode = np.array([1, -1]) / np.sqrt(2)
    assert mode @ sigma @ mode == pytest.approx(golden, rel=PRINTED, abs=1e-14)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("gamma", [1.0, 0.2])
@pytest.mark.parametrize("form", ["awc", "atc", "cta", "nesterov", "decayed"])
def test_every_mode_of_a_ring_has_the_variance_of_its_closed_form(form: str, gamma: float, beta: float) -> None:
    """The covariance is diagonal in the Fourier modes of the ring, and on the diagonal stand the closed forms."""
    if form == "nesterov" and beta == 0:
        pytest.skip("torch refuses Nesterov without momentum")
    schedule, h, lr, decay = topology("ring", 6), 0.7, 0.08, 0.5
    law = {
        "nesterov": partial(dsgd, "awc", gamma, h, lr, beta, nesterov=True),
        "decayed": partial(dsgd, "awc", gamma, h, lr, beta, weight_decay=decay),
    }.get(form, partial(dsgd, form, gamma, h, lr, beta))()
    values, modes = np.linalg.eigh(schedule[0].dense())
    sigma = modes.T @ covariance(law, schedule) @ modes
    expected = []
    for value in values[:-1]:
        mu = 1 - gamma * (1 - value)
        if form == "nesterov":
            expected.append(s_nesterov(mu, h, lr, beta))
        elif form == "decayed":  # coupled decay acts at the mixed point: h becomes h + mu wd
            expected.append(s_awc(mu, h + mu * decay, lr, beta))
        else:
            expected.append(CLOSED[form](mu, h, lr, beta))
    np.testing.assert_allclose(sigma, np.diag([*expected, 0.0]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
@pytest.mark.parametrize("gamma", [1.0, 0.1])
@pytest.mark.parametrize("name", ["ring", "exponential", "star"])
def test_the_variance_of_the_mean_knows_nothing_of_the_graph(name: str, gamma: float, order: str) -> None:
    n, h, lr, beta = 6, 0.7, 0.08, 0.9
    sigma = covariance(dsgd(order, gamma, h, lr, beta), topology(name, n), mean=True)
    closed = lr / (n * h) * (1 + beta) / ((1 - beta) * (2 * (1 + beta) - lr * h))
    assert sigma.mean() == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize("name", ["dsgd", "dsgd-ac"])
@pytest.mark.parametrize(("order", "golden"), [("awc", 1.38616071), ("atc", 0.51116071)])
def test_golden_consensus_distance_of_pure_noise_on_a_ring(name: str, order: str, golden: float) -> None:
    """Also through adaptive consensus with a constant gamma of one."""
    law = dsgd(order, 1.0, 0.0, 0.3)._replace(name=name)
    found = np.trace(covariance(law, topology("ring", 8))) / 8 / 0.3**2
    assert found == pytest.approx(golden, abs=5.1e-9)  # eight decimals are printed


def test_extracted_map_foretells_a_run_it_has_not_seen() -> None:
    """Four matrices from unit responses reproduce two hundred steps under noise from a random start."""
    schedule, n, steps = topology("exponential", 6), 6, 200
    law = dsgd("awc", 0.4, 0.7, 0.08, 0.9, nesterov=True)
    p1, p2, b0, b1 = second_order(law, schedule)
    rng = np.random.default_rng(0)
    noise, start = rng.standard_normal((steps, n, n)), rng.standard_normal((n, n))
    seen = path(law, schedule, steps, start=start, noise=noise)
    before, x = start, seen[1]
    for t in range(1, steps):
        before, x = x, p1 @ x + p2 @ before + b0 @ noise[t] + b1 @ noise[t - 1]
        np.testing.assert_allclose(x, seen[t + 1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("nesterov", [False, True])
def test_quasi_global_momentum_mode_by_mode(nesterov: bool) -> None:
    """In the state (x, lr m): x+ = lambda (x - lr u), then m moves towards the displacement of x."""
    schedule, h, lr, beta, nu = topology("ring", 6), 0.7, 0.08, 0.8, 0.15
    law = Law("qg-dsgdm", {"beta": beta, "nu": nu, "nesterov": nesterov}, torch.optim.SGD, lr, h)
    values, modes = np.linalg.eigh(schedule[0].dense())
    sigma = modes.T @ covariance(law, schedule) @ modes
    past, fresh = (beta**2, 1 + beta) if nesterov else (beta, 1.0)  # u = past m + fresh g
    for k, value in enumerate(values[:-1]):
        row = np.array([value * (1 - lr * fresh * h), -value * past])
        m = np.vstack([row, nu * (np.array([1.0, 0.0]) - row) + np.array([0.0, 1 - nu])])
        b = np.array([[1.0], [-nu]]) * -value * lr * fresh
        assert sigma[k, k] == pytest.approx(solve_discrete_lyapunov(m, b @ b.T)[0, 0], rel=1e-9)


def test_quasi_global_momentum_without_gradients_has_the_published_modes() -> None:
    """[[lambda, -beta lambda], [nu (1 - lambda), 1 - nu + nu beta lambda]] on (x, lr m): its trace and determinant."""
    schedule, beta, nu = topology("ring", 5), 0.8, 0.15
    law = Law("qg-dsgdm", {"beta": beta, "nu": nu}, torch.optim.SGD, 0.1, 0.0)
    p1, p2, _, _ = second_order(law, schedule)
    w, one = schedule[0].dense(), np.eye(5)
    np.testing.assert_allclose(p1, w + (1 - nu) * one + nu * beta * w, rtol=0, atol=1e-11)
    np.testing.assert_allclose(p2, -(w @ (one - nu * one + nu * beta * w) + beta * nu * w @ (one - w)), atol=1e-11)


def test_gradient_tracking_mode_by_mode() -> None:
    """Eliminating the tracker: phi1 = 2 lambda - lr h, phi2 = lr h - lambda^2, noise -lr (xi - xi-)."""
    schedule, h, lr = topology("ring", 6), 0.7, 0.08
    values, modes = np.linalg.eigh(schedule[0].dense())
    sigma = modes.T @ covariance(Law("gradient-tracking", {}, torch.optim.SGD, lr, h), schedule) @ modes
    expected = [ar2(2 * value - lr * h, lr * h - value**2, -lr, lr) for value in values[:-1]]
    np.testing.assert_allclose(np.diag(sigma)[:-1], expected, rtol=1e-9)


def maps_of(law: Law, schedule: Topology) -> list[tuple[Array, Array]]:
    """The maps (M_t, N_t) of the steps of one period, for an algorithm without memory: the schedule begun at step t."""
    n, p, found = schedule.size, schedule.period or 1, []
    for t in range(p):
        begun = from_matrices([schedule[t + s].dense() for s in range(p)])
        found.append((path(law, begun, 1, start=np.eye(n))[1], impulse(law, begun, 0, 1)[1]))
    whole = path(law, schedule, p, start=np.eye(n))
    for t, (m, _) in enumerate(found):
        np.testing.assert_allclose(m @ whole[t], whole[t + 1], rtol=0, atol=1e-13)
    return found


def distances(law: Law, schedule: Topology) -> list[float]:
    """Xi at every phase of the period, in units of lr^2: the periodic Lyapunov equation of the extracted maps."""
    n = schedule.size
    keep = np.eye(n) - np.full((n, n), 1 / n)
    maps = [(keep @ m @ keep, keep @ b @ b.T @ keep) for m, b in maps_of(law, schedule)]
    whole, added = np.eye(n), np.zeros((n, n))
    for m, q in maps:
        whole, added = m @ whole, m @ added @ m.T + q
    sigma = solve_discrete_lyapunov(whole, added)
    found = []
    for m, q in maps:
        sigma = m @ sigma @ m.T + q
        found.append(np.trace(sigma) / n / law.lr**2)
    return found


def one_peer_series(d: int, gamma: float, shrink: float = 1.0, first: int = 0, terms: int = 6000) -> float:
    """Sum over a = q d + r of {[(1 + u^(2q+2))/2]^r [(1 + u^2q)/2]^(d-r) - 2^-d} shrink^2(a-first), u = 1 - gamma."""
    u, total = 1 - gamma, 0.0
    for a in range(first, terms):
        q, r = divmod(a, d)
        flat = ((1 + u ** (2 * q + 2)) / 2) ** r * ((1 + u ** (2 * q)) / 2) ** (d - r) - 2.0**-d
        total += flat * shrink ** (2 * (a - first))
    return total


@pytest.mark.parametrize(("gamma", "golden"), [(1.0, 1.375), (0.3, 3.09586788), (0.05, 18.1225951)])
def test_golden_distance_on_the_one_peer_hypercube(gamma: float, golden: float) -> None:
    """Without curvature every phase has the same distance, below 2 lr^2 sigma^2 for every n at gamma = 1."""
    for found in distances(dsgd("awc", gamma, 0.0, 0.2), topology("one-peer-hypercube", 8)):
        assert found == pytest.approx(golden, rel=3e-9)
        assert found == pytest.approx(one_peer_series(3, gamma), rel=1e-9)


@pytest.mark.parametrize("d", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["one-peer-hypercube", "one-peer-exponential"])
def test_exact_averaging_keeps_the_distance_below_two(name: str, d: int) -> None:
    """2 - (d + 2) / 2^d, for pairs and directed shifts alike: a product of a < d rounds averages over 2^a workers."""
    for found in distances(dsgd("awc", 1.0, 0.0, 0.2), topology(name, 2**d)):
        assert found == pytest.approx(2 - (d + 2) / 2**d, rel=1e-11)


@pytest.mark.parametrize(("gamma", "golden"), [(1.0, 1.27425), (0.3, 1.94534), (0.05, 3.65885)])
def test_golden_distance_on_the_one_peer_hypercube_with_curvature(gamma: float, golden: float) -> None:
    for found in distances(dsgd("awc", gamma, 1.0, 0.1), topology("one-peer-hypercube", 8)):
        assert found == pytest.approx(golden, abs=5.1e-6)


@pytest.mark.parametrize("gamma", [0.9, 0.3, 0.05])
@pytest.mark.parametrize(("order", "first"), [("cta", 0), ("atc", 1)])
def test_distance_on_the_one_peer_hypercube_in_the_other_orders(order: str, first: int, gamma: float) -> None:
    """Where the shrinking by curvature commutes with the rounds, term a of the series shrinks a times."""
    h, lr = 0.7, 0.1
    for found in distances(dsgd(order, gamma, h, lr), topology("one-peer-hypercube", 8)):
        assert found == pytest.approx(one_peer_series(3, gamma, 1 - lr * h, first), rel=1e-9)
