"""Schedules that average exactly, the phases at which they do, their direction, their traffic, their moments."""

from math import ceil, log

import numpy as np
import pytest

from dissensus.theory import Topology, topology
from dissensus.theory.topologies.equitopo import matching

EXACT = 1e-13


def off(t: Topology, start: int = 0, steps: int | None = None) -> float:
    """The largest entry of the product minus averaging."""
    return float(abs(t.product(start, steps) - 1 / t.size).max())


@pytest.mark.parametrize("name", ["one-peer-exponential", "one-peer-hypercube"])
@pytest.mark.parametrize("d", range(7))
def test_one_peer_graphs_are_exact_from_every_phase(name: str, d: int) -> None:
    t = topology(name, 2**d)
    assert t.period == max(d, 1)
    for start in range(2 * max(d, 1)):
        assert off(t, start, max(d, 1)) <= EXACT
        if d > 1:
            assert off(t, start, d - 1) > 1e-3


def test_one_peer_exponential_leaves_the_telescoped_sine_elsewhere() -> None:
    for n in range(2, 200):
        t = topology("one-peer-exponential", n)
        tau = ceil(log(n, 2) - 1e-12)
        assert t.period == tau
        modes = np.prod([1 + np.exp(-2j * np.pi * np.arange(n) * 2**k / n) for k in range(tau)], axis=0) / 2**tau
        assert t.closed_form.contraction == pytest.approx(abs(modes[1:]).max(), abs=1e-12)
        assert (t.closed_form.contraction == 0) == (n & (n - 1) == 0)


def test_one_peer_exponential_receives_from_behind() -> None:
    t = topology("one-peer-exponential", 8)
    for k, hop in enumerate((1, 2, 4)):
        expected = np.eye(8) / 2
        for i in range(8):
            expected[i, (i - hop) % 8] = 0.5
        assert np.array_equal(t[k].dense(), expected)
    assert t[0].neighbours(3) == [2]


def test_directed_ring_and_static_exponential_receive_from_behind() -> None:
    assert topology("directed-ring", 5)[0].neighbours(3) == [2]
    assert topology("directed-ring", 5)[0].neighbours(0) == [4]
    assert topology("exponential", 12)[0].row(0) == [(j, 0.2) for j in (0, 4, 8, 10, 11)]


def test_equitopo_carries_values_forward() -> None:
    t = topology("equitopo", 7, kind="dynamic", directed=True, M=1, seed=4, eta=1.0)
    w = t[0].dense()
    (u,) = {int(i) for i in np.flatnonzero(w[:, 0]) if i}
    drawn = np.random.default_rng([4, 0, 1]).integers(1, 7, size=1)
    assert u == drawn[0]  # the value of worker 0 arrives at worker u
    assert w[u, 0] == pytest.approx(6 / 7, abs=1e-15)


def test_static_exponential_never_beats_its_even_sizes() -> None:
    for n in range(2, 129):
        tau = (n - 1).bit_length()
        rho = np.linalg.norm(topology("exponential", n)[0].dense() - 1 / n, 2)
        bound = 1 - 2 / (1 + tau)
        assert rho == pytest.approx(bound, abs=1e-12) if n % 2 == 0 else rho < bound - 1e-6


@pytest.mark.parametrize("n", range(6, 65, 2))
def test_one_peer_ring_norm_and_radius_differ(n: int) -> None:
    t = topology("one-peer-ring", n)
    left = t.product() - 1 / n
    assert np.linalg.norm(left, 2) == pytest.approx(abs(np.cos(2 * np.pi / n)), abs=1e-12)
    assert abs(np.linalg.eigvals(left)).max() == pytest.approx(np.cos(2 * np.pi / n) ** 2, abs=1e-6)
    assert t[0].neighbours(0) == [1]
    assert t[1].neighbours(0) == [n - 1]
    assert off(topology("one-peer-ring", 4)) <= EXACT


def paired_nodes(nodes: int) -> list[set[tuple[int, int]]]:
    """The pairs of nodes that average together at each step, by counting as the schedule is told."""
    steps, count = [], 0
    for k in range(nodes.bit_length() - 1):
        even, odd = set(), set()
        for a in range(nodes):
            if a < a ^ 2**k:
                (odd if count % 2 else even).add((a, a ^ 2**k))
                count += 1
        steps += [odd, even]  # the even-numbered pairs stay inside their nodes first
    return steps


@pytest.mark.parametrize("per_node", [1, 2, 3, 4])
@pytest.mark.parametrize("nodes", [2, 4, 8, 16])
def test_aer_is_its_schedule_and_exact_at_even_phases_only(nodes: int, per_node: int) -> None:
    n = nodes * per_node
    t = topology("aer", n, workers_per_node=per_node)
    assert t.workers_per_node == per_node
    assert t.period == 2 * (nodes.bit_length() - 1)
    for step, merged in enumerate(paired_nodes(nodes)):
        group = np.arange(nodes)
        for a, b in merged:
            group[b] = a
        label = group[np.arange(n) // per_node]
        same = label[:, None] == label[None]
        assert abs(t[step].dense() - same / same.sum(1, keepdims=True)).max() <= 1e-15
        across = {(i // per_node, j // per_node) for i, j, _ in t[step].triplets() if i // per_node < j // per_node}
        assert across == merged
        if nodes >= 4:
            assert len(across) == nodes // 4  # half of the nodes/2 pairs of a round
    for start in range(len(t.rounds)):
        error = off(t, start, len(t.rounds))
        if start % 2 == 0 or nodes == 2:
            assert error <= EXACT
        else:
            assert error == pytest.approx(1 / n, abs=1e-12)


def test_aer_on_a_single_node_averages_at_every_step() -> None:
    for n in (2, 3, 8):
        t = topology("aer", n, workers_per_node=n)
        assert t.period == 1
        assert t.workers_per_node == n
        assert off(t) <= EXACT


LENGTHS = {  # (n, k): (simple, base)
    (5, 1): (5, 5),
    (6, 1): (5, 4),
    (7, 1): (5, 5),
    (12, 1): (7, 5),
    (16, 1): (4, 4),
    (25, 1): (9, 9),
    (33, 1): (11, 11),
    (5, 2): (3, 3),
    (6, 2): (2, 2),
    (9, 2): (2, 2),
    (16, 2): (4, 4),
    (25, 2): (6, 6),
    (16, 3): (2, 2),
    (25, 3): (5, 5),
    (5, 4): (1, 1),
    (25, 4): (2, 2),
}


@pytest.mark.parametrize(("n", "k"), list(LENGTHS))
def test_base_k_lengths(n: int, k: int) -> None:
    assert (topology("base-k", n, k=k, simple=True).period, topology("base-k", n, k=k).period) == LENGTHS[n, k]


@pytest.mark.parametrize("simple", [False, True], ids=["base", "simple"])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_base_k_is_exact_for_every_n(k: int, simple: bool) -> None:
    for n in range(2, 81):
        t = topology("base-k", n, k=k, simple=simple)
        assert off(t) <= EXACT, n
        assert t.period is not None
        assert t.period <= 2 * log(n, k + 1) + 2, n
        for w in t:
            assert w.is_symmetric
            assert max(len(w.neighbours(i)) for i in range(n)) <= k, n
            assert abs(w.weights.sum(0) - 1).max() <= 1e-15 * n


def test_base_k_wants_its_order() -> None:
    t = topology("base-k", 5)
    assert off(t) <= EXACT
    assert off(t, start=1) > 1e-3


def test_base_k_with_enough_neighbours_averages_at_once() -> None:
    for n in (2, 7, 12):
        t = topology("base-k", n, k=n + 3)
        assert t.period == 1
        assert off(t) <= EXACT


@pytest.mark.parametrize("across", ["ring", "complete", "one-peer-exponential", "one-peer-ring", "exponential"])
@pytest.mark.parametrize(("nodes", "per_node"), [(6, 4), (4, 3), (6, 1), (1, 5)])
def test_hierarchical_is_two_kronecker_factors(across: str, nodes: int, per_node: int) -> None:
    t = topology("hierarchical", nodes * per_node, workers_per_node=per_node, across=across, inside_steps=3)
    assert t.workers_per_node == per_node
    slow = topology(across, nodes)
    assert len(t.rounds) == len(slow.rounds) * (3 * (per_node > 1) + (nodes > 1))
    expected = np.kron(slow.product(), np.full((per_node, per_node), 1 / per_node))
    assert abs(t.product() - expected).max() <= EXACT
    for w in t:
        far = [(i, j) for i, j, _ in w.triplets() if i // per_node != j // per_node]
        near = [(i, j) for i, j, _ in w.triplets() if i // per_node == j // per_node and i != j]
        assert not (far and near)  # a round is either fast or slow
        assert all(i % per_node == j % per_node for i, j in far)


def greedy(n: int, u: int, start: int) -> np.ndarray:
    """The matching of undirected dynamic EquiTopo, worker after worker."""
    partner = np.arange(n)
    free = np.ones(n, dtype=bool)
    for i in [*range(start, n), *range(start)]:
        j = (i + u) % n
        if free[i] and free[j]:
            free[[i, j]] = False
            partner[i], partner[j] = j, i
    return partner


def test_the_matching_of_equitopo_is_the_greedy_one() -> None:
    for n in range(2, 41):
        for u in range(1, n):
            for start in {0, 1, n // 2, n - 1}:
                assert np.array_equal(matching(n, u, start), greedy(n, u, start)), (n, u, start)


def rounds_of_equitopo(n: int, directed: bool, shifts: list[int], eta: float) -> list[np.ndarray]:
    """All equally likely rounds of the dynamic graph."""
    every = []
    for u in shifts:
        for start in range(n):
            to = (np.arange(n) - u) % n if directed else greedy(n, u, start)
            a = np.eye(n) / n + (n - 1) / n * np.eye(n)[to]
            every.append((1 - eta) * np.eye(n) + eta * a)
    return every


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("n", [2, 3, 6, 9, 12])
@pytest.mark.parametrize("count", [None, 3])
def test_equitopo_moments_are_exact(n: int, directed: bool, count: int | None) -> None:
    t = topology("equitopo", n, kind="dynamic", directed=directed, eta=0.7, M=count, seed=2)
    drawn: list[int] = list(range(1, n))
    if count:
        attempts = (np.random.default_rng([2, a, 1]).integers(1, n, size=count) for a in range(100))
        drawn = next(s.tolist() for s in attempts if np.gcd.reduce([n, *s]) == 1)
    every = rounds_of_equitopo(n, directed, drawn, 0.7)
    assert t.moments is not None
    assert abs(t.moments.mean.toarray() - np.mean(every, axis=0)).max() <= EXACT
    second = t.moments.square
    dense = second if isinstance(second, np.ndarray) else second.toarray()
    assert abs(dense - np.mean([w.T @ w for w in every], axis=0)).max() <= EXACT
    distinct = np.unique(np.round(every, 12), axis=0)
    seen = {int(np.argmin(abs(distinct - t[s].dense()).max(axis=(1, 2)))) for s in range(40 * len(distinct))}
    assert all(abs(distinct - t[s].dense()).max(axis=(1, 2)).min() <= 1e-11 for s in range(40))
    assert len(seen) == len(distinct)  # and every one of them comes up


def test_equitopo_default_step_is_the_best() -> None:
    n = 17
    rates = {}
    for eta in (None, 0.4, 0.53, 0.7):
        t = topology("equitopo", n, kind="dynamic", directed=True, eta=eta)
        assert t.moments is not None
        rates[eta] = np.sort(np.linalg.eigvalsh(t.moments.square.toarray()))[-2]  # pyright: ignore
    assert rates[None] == pytest.approx((n - 2) / (2 * n - 2), abs=1e-12)
    assert min(rates, key=lambda e: rates[e]) is None


def test_a_drawn_round_is_a_pure_function_of_its_step() -> None:
    forward, backward = (topology("equitopo", 11, kind="dynamic", seed=9) for _ in range(2))
    later = [backward[t].dense() for t in reversed(range(6))]
    assert all(np.array_equal(forward[t].dense(), w) for t, w in enumerate(reversed(later)))


def test_base_k_with_more_neighbours_than_workers_is_one_average() -> None:
    t = topology("base-k", 7, k=10**15)
    assert t.period == 1
    np.testing.assert_allclose(t.product(), np.full((7, 7), 1 / 7), atol=1e-15)
