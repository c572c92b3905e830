"""Effective neighbours against the discrete Lyapunov equation, golden values and identities."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import solve_discrete_lyapunov

from dissensus.theory import ClosedForm, MixingError, MixingMatrix, Topology, from_function, from_matrices
from dissensus.theory.effective import effective_neighbours, estimate_neighbours


def shift(n, hop, keep=0.5):
    return keep * np.eye(n) + (1 - keep) * np.roll(np.eye(n), hop, axis=1)


def ring(n):
    return (np.eye(n) + np.roll(np.eye(n), 1, axis=1) + np.roll(np.eye(n), -1, axis=1)) / 3


def path(n):
    off = np.diag(np.full(n - 1, 1 / 3), 1)
    return np.eye(n) + off + off.T - np.diag((off + off.T).sum(axis=1))


def random_doubly(n, seed):
    rng = np.random.default_rng(seed)
    return sum(share * np.eye(n)[rng.permutation(n)] for share in (0.5, 0.3, 0.2))


def by_lyapunov(rounds, g):
    """C before the first round solves one discrete Lyapunov equation; then walk through the period."""
    n = len(rounds[0])
    a, q = np.eye(n), np.zeros((n, n))
    for w in rounds:
        a, q = np.sqrt(g) * w @ a, w @ (g * q + np.eye(n)) @ w.T
    c = solve_discrete_lyapunov(a, q)
    traces = []
    for w in rounds:
        c = w @ (g * c + np.eye(n)) @ w.T
        traces.append(np.trace(c) / n)
    return 1 / (1 - g) / np.mean(traces)


@pytest.mark.parametrize(("memory", "golden"), [(0, 3), (0.5, 3.72), (0.9, 6.601), (0.99, 13.119), (0.999, 15.634)])
def test_golden_ring_of_16(memory, golden):
    assert effective_neighbours(from_matrices(ring(16)), memory) == pytest.approx(golden, abs=5e-4)


@pytest.mark.parametrize("memory", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize(
    "rounds",
    [
        [ring(9)],
        [path(8)],
        [shift(7, 1)],
        [random_doubly(10, 0)],
        [shift(6, 1), shift(6, 2), shift(6, 4)],
        [random_doubly(9, 1), path(9), random_doubly(9, 2)],
        [np.random.default_rng(3).dirichlet(np.ones(6), size=6)],
    ],
    ids=["ring", "path", "directed ring", "directed", "one-peer", "mixed period", "row stochastic"],
)
def test_equals_the_lyapunov_solution(rounds, memory):
    t = from_matrices(rounds, promise="row")
    assert effective_neighbours(t, memory) == pytest.approx(by_lyapunov(rounds, memory), rel=1e-9)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.99, 0.99999])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_complete_averaging_counts_everybody(n, memory):
    assert effective_neighbours(from_matrices(np.full((n, n), 1 / n)), memory) == pytest.approx(n)


def test_limits():
    assert effective_neighbours(from_matrices(path(8)), 1 - 1e-9) == pytest.approx(8, rel=1e-6)
    assert effective_neighbours(from_matrices(path(8)), 0) == pytest.approx(8 / np.sum(path(8) ** 2))
    nobody = from_matrices(np.eye(5), may_disconnect=True)
    assert effective_neighbours(nobody, 0.7) == pytest.approx(1)
    values = [effective_neighbours(from_matrices(path(8)), g) for g in (0, 0.2, 0.5, 0.8, 0.95, 0.999)]
    assert values == sorted(values)


def test_large_sizes_by_closed_form_and_fft():
    n = 10**5
    i = np.arange(n)
    w = sp.csr_array((np.full(3 * n, 1 / 3), (np.r_[i, i, i], np.r_[i, (i + 1) % n, (i - 1) % n])), shape=(n, n))
    eigenvalues = 1 / 3 + 2 / 3 * np.cos(2 * np.pi * i / n)
    by_fft = effective_neighbours(from_matrices(w), 0.9)
    assert by_fft == pytest.approx(10 / np.mean(eigenvalues**2 / (1 - 0.9 * eigenvalues**2)), rel=1e-12)
    p = np.random.default_rng(0).permutation(n)
    mixed = MixingMatrix.of(sp.csr_array(w[p][:, p]))
    told = Topology("told", n, (mixed,), closed_form=ClosedForm(eigenvalues=lambda: eigenvalues))
    assert effective_neighbours(told, 0.9) == pytest.approx(by_fft, rel=1e-12)
    assert effective_neighbours(told.adapted(0.5), 0.9) == pytest.approx(
        effective_neighbours(from_matrices(w).adapted(0.5), 0.9), rel=1e-12
    )
    untold = from_matrices(mixed, name="untold")
    with pytest.raises(MixingError, match="of 'untold' is exact up to n=5000, got n=100000; use estimate_neighbours"):
        effective_neighbours(untold, 0.9)
    estimate = estimate_neighbours(untold, 0.5, probes=4)
    exact = effective_neighbours(told, 0.5)
    assert abs(estimate.value - exact) < 6 * estimate.standard_error + estimate.truncation
    assert estimate.standard_error < 0.02 * exact


@pytest.mark.parametrize("memory", [0.0, 0.6, 0.95])
def test_estimate_covers_the_exact_value_of_a_period(memory):
    t = from_matrices([random_doubly(60, 1), ring(60), random_doubly(60, 2)])
    estimate, exact = estimate_neighbours(t, memory, probes=400), effective_neighbours(t, memory)
    assert abs(estimate.value - exact) < 4 * estimate.standard_error + estimate.truncation
    assert estimate.standard_error < 0.03 * exact


def test_estimate_of_a_drawn_schedule():
    """Uniformly drawn permutations: the covariance stays exchangeable, so that its trace has a closed form."""
    n, g = 20, 0.8

    def draw(t):
        return MixingMatrix.of(0.5 * np.eye(n) + 0.5 * np.eye(n)[np.random.default_rng(t).permutation(n)])

    # per step W = (I + P)/2 shrinks centred noise: E|Wz|² = |z|²/2 + z'E[P]z/2, and E[P] is J up to fixed points
    kept = 0.5
    exact = n * (1 / (1 - g)) / (1 / (1 - g) + (n - 1) * kept / (1 - g * kept))
    estimate = estimate_neighbours(from_function(draw, n), g, probes=8, phases=300)
    assert abs(estimate.value - exact) < 5 * estimate.standard_error
    assert estimate.standard_error < 0.05 * exact


@pytest.mark.parametrize("memory", [-0.1, 1.0, 2.0, float("nan")])
def test_memory_is_checked(memory):
    with pytest.raises(MixingError, match=r"memory must lie in \[0, 1\), got"):
        effective_neighbours(from_matrices(ring(4)), memory)


def test_refusals():
    with pytest.raises(MixingError, match="drawn at every step: its covariance has no closed form; use estimate_neigh"):
        effective_neighbours(from_function(lambda t: ring(5), 5), 0.9)
    column = np.random.default_rng(3).dirichlet(np.ones(6), size=6).T
    with pytest.raises(MixingError, match="round 0 is column stochastic, its rows do not average"):
        effective_neighbours(from_matrices(column, promise="column"), 0.9)
    with pytest.raises(MixingError, match="at least 2 probes, got 1"):
        estimate_neighbours(from_matrices(ring(5)), 0.9, probes=1)
