"""The report: every figure recomputed by plain numpy and networkx, from one worker to twenty thousand."""

import json

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp

from dissensus.theory import MixingError, MixingMatrix, Moments, Topology, from_function, from_matrices
from dissensus.theory.analysis import bytes_per_step, report
from dissensus.theory.effective import effective_neighbours
from dissensus.theory.mixing_time import exact_after, exact_phases, mixing_time
from dissensus.theory.spectrum import contraction


def shift(n, hop):
    return 0.5 * np.eye(n) + 0.5 * np.roll(np.eye(n), hop, axis=1)


def ring(n):
    return (np.eye(n) + np.roll(np.eye(n), 1, axis=1) + np.roll(np.eye(n), -1, axis=1)) / 3


def merged(labels):
    """Workers with one label average among themselves."""
    same = np.equal.outer(labels, labels).astype(float)
    return same / same.sum(axis=1, keepdims=True)


def pairs(peer):
    return (np.eye(len(peer)) + np.eye(len(peer))[np.asarray(peer)]) / 2


def metropolis(graph):
    n = graph.number_of_nodes()
    w = np.zeros((n, n))
    for i, j in graph.edges:
        w[i, j] = w[j, i] = 1 / (1 + max(graph.degree[i], graph.degree[j]))
    return w + np.diag(1 - w.sum(axis=1))


ALTERNATING = [  # 4 nodes of one worker, half of the pairs at a time: exact from even phases only
    merged([0, 1, 2, 2]),
    merged([0, 0, 2, 3]),
    merged([0, 1, 2, 1]),
    merged([0, 1, 0, 3]),
]

CASES = {
    "petersen": [metropolis(nx.petersen_graph())],
    "directed ring": [shift(5, 1)],
    "period 3 on 6": [pairs([1, 0, 3, 2, 5, 4]), pairs([5, 2, 1, 4, 3, 0]), pairs([3, 4, 5, 0, 1, 2])],
    "one-peer exponential": [shift(8, 1), shift(8, 2), shift(8, 4)],
    "one-peer exponential, n=12": [shift(12, h) for h in (1, 2, 4, 8)],
    "alternating": ALTERNATING,
    "path": [metropolis(nx.path_graph(12))],
    "complete": [np.full((5, 5), 0.2)],
    "two": [np.full((2, 2), 0.5)],
    "one": [np.ones((1, 1))],
    "star": [metropolis(nx.star_graph(6))],
}


@pytest.mark.parametrize("name", CASES)
def test_every_figure_against_plain_numpy(name):
    rounds = CASES[name]
    n, period = len(rounds[0]), len(rounds)
    t = from_matrices(rounds, name=name, workers_per_node=2)
    d = json.loads(json.dumps(report(t, memory=0.8).to_dict()))
    product = np.linalg.multi_dot(rounds[::-1]) if period > 1 else rounds[0]
    norm = np.linalg.norm(product - 1 / n, 2) if n > 1 else 0.0
    assert (d["name"], d["n"], d["period"], d["memory"]) == (name, n, period, 0.8)
    assert d["row_stochastic"]
    assert d["column_stochastic"]
    assert d["doubly_stochastic"]
    assert d["symmetric"] == all(np.allclose(w, w.T) for w in rounds)
    union = nx.from_numpy_array(np.sum(rounds, axis=0), create_using=nx.DiGraph)
    assert d["connected"]
    assert d["connected_rounds"] == [
        nx.is_strongly_connected(nx.from_numpy_array(w, create_using=nx.DiGraph)) for w in rounds
    ]
    assert d["diameter"] == nx.diameter(union)
    assert d["contraction"] == pytest.approx(norm, abs=1e-12)
    assert d["contraction_kind"] == "product"
    if period == 1 and d["symmetric"] and n > 1:
        values = np.linalg.eigvalsh(rounds[0])
        assert d["spectral_gap"] == pytest.approx(1 - np.sort(abs(values))[-2], abs=1e-12)
        assert d["second_eigenvalue"] == pytest.approx(values[-2], abs=1e-12)
        assert d["smallest_eigenvalue"] == pytest.approx(values[0], abs=1e-12)
    elif norm > 1e-12:
        assert d["spectral_gap"] == pytest.approx(1 - norm ** (1 / period), abs=1e-12)
    else:
        assert d["spectral_gap"] == 1
    assert d["effective_neighbors"] == pytest.approx(effective_neighbours(t, 0.8))
    messages = [[(i, j) for i, j in zip(*np.nonzero(w), strict=True) if i != j] for w in rounds]
    assert d["messages_per_step"] == pytest.approx(sum(map(len, messages)) / period)
    inside = sum(i // 2 == j // 2 for m in messages for i, j in m) / period
    assert d["messages_intra_node"] == pytest.approx(inside)
    assert d["messages_inter_node"] == pytest.approx(d["messages_per_step"] - inside)
    assert d["mean_degree"] == pytest.approx(d["messages_per_step"] / n)
    assert d["max_degree"] == max([sum(a == i for a, _ in m) for m in messages for i in range(n)])
    assert d["push_sum_contraction"] is None
    assert d["limit"] is None


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("level", [0.25, 1e-3])
def test_mixing_time_by_walking(name, level):
    rounds = CASES[name]
    t = from_matrices(rounds)
    found = mixing_time(t, contraction(t))
    assert found.kind == "exact"
    p, steps = np.eye(t.size), 0
    while np.linalg.norm(p - 1 / t.size, 2) > level * (1 + 1e-9):
        p, steps = rounds[steps % len(rounds)] @ p, steps + 1
    assert found.steps[level] == steps


@pytest.mark.parametrize(
    ("name", "after", "phases"),
    [
        ("one-peer exponential", 3, [0, 1, 2]),
        ("one-peer exponential, n=12", None, []),
        ("alternating", 4, [0, 2]),
        ("complete", 1, [0]),
        ("one", 0, [0]),
        ("two", 1, [0]),
        ("petersen", None, []),
    ],
)
def test_exactness_and_its_phases(name, after, phases):
    t = from_matrices(CASES[name])
    assert exact_after(t) == after
    assert exact_phases(t, after) == phases
    if after:  # by dense products: exact from these phases and no other, and not one step earlier
        for s in range(len(CASES[name])):
            assert np.allclose(t.product(s, after), 1 / t.size, atol=1e-14, rtol=0) == (s in phases)
        assert not np.allclose(t.product(0, after - 1), 1 / t.size, atol=1e-9, rtol=0)


def test_starting_one_step_late_costs_a_whole_window():
    late = from_matrices(ALTERNATING[1:] + ALTERNATING[:1])
    assert exact_after(late) == 5
    assert np.allclose(late.product(0, 5), 1 / 4)
    assert not np.allclose(late.product(0, 4), 1 / 4)


def test_fast_convergence_is_not_exactness():
    n = 6
    nearly = np.full((n, n), 1 / n) + 1e-5 * (ring(n) - 1 / n)
    assert exact_after(from_matrices(nearly)) is None
    assert exact_after(from_matrices(np.full((n, n), 1 / n) + 1e-9 * (ring(n) - 1 / n))) is None
    assert exact_after(from_matrices(np.roll(np.eye(4), 1, axis=1) * 0.5 + np.eye(4) * 0.5)) is None


def test_a_small_disagreement_may_still_end_exactly():
    n = 6
    mean = np.full((n, n), 1 / n)
    assert exact_after(from_matrices([mean + 1e-4 * (ring(n) - mean), mean])) == 2


def test_degree_counts_listeners_too():
    listens = 0.5 * np.eye(6)
    listens[:, 2] += 0.5
    d = report(from_matrices(listens, promise="row", may_disconnect=True)).to_dict()
    assert d["max_degree"] == 5
    assert d["mean_degree"] == pytest.approx(5 / 6)


def test_a_static_graph_can_be_exact_after_several_steps():
    """De Bruijn: worker i hears 2i and 2i+1 (mod n); after log2 n steps everybody has heard everybody equally."""
    n = 16
    w = np.zeros((n, n))
    for i in range(n):
        w[i, 2 * i % n] = w[i, (2 * i + 1) % n] = 0.5
    d = report(from_matrices(w)).to_dict()
    assert d["exact_after"] == 4
    assert d["exact_phases"] == [0]
    assert d["mixing_time"]["0.25"] <= 4


def test_one_worker():
    d = report(from_matrices(np.ones((1, 1)))).to_dict()
    assert d["contraction"] == 0
    assert d["spectral_gap"] == 1
    assert d["exact_after"] == 0
    assert d["diameter"] == 0
    assert d["effective_neighbors"] == 1
    assert d["messages_per_step"] == 0
    assert d["mixing_time"] == {"0.25": 0, "0.001": 0}


@pytest.mark.parametrize("steps", [1, 3])
def test_push_sum_is_measured_around_its_own_limit(steps):
    rng = np.random.default_rng(1)
    rounds = [rng.dirichlet(np.ones(6), size=6).T for _ in range(steps)]
    d = report(from_matrices(rounds, promise="column")).to_dict()
    p = np.linalg.multi_dot([*rounds[::-1], np.eye(6)])
    phi = np.linalg.matrix_power(p, 200)[:, 0]
    assert d["limit"] == pytest.approx(phi, abs=1e-12)
    assert d["push_sum_contraction"] == pytest.approx(np.linalg.norm(p - np.outer(phi, np.ones(6)), 2), abs=1e-12)
    assert d["contraction"] == pytest.approx(np.linalg.norm(p - 1 / 6, 2))
    assert not d["row_stochastic"]
    assert d["column_stochastic"]
    assert d["effective_neighbors"] is None
    assert any("effective_neighbors" in why and "column stochastic" in why for why in d["skipped"])
    assert d["exact_after"] is None
    assert d["mixing_time_kind"] is None


def test_row_stochastic_has_a_left_limit():
    w = np.random.default_rng(2).dirichlet(np.ones(5), size=5)
    d = report(from_matrices(w, promise="row")).to_dict()
    assert d["limit"] == pytest.approx(np.linalg.matrix_power(w, 300)[0], abs=1e-12)
    assert d["push_sum_contraction"] is None
    assert d["effective_neighbors"] > 1


def gossip(n, **moments):
    def draw(t):
        i = int(np.random.default_rng(t).integers(n))
        peer = np.arange(n)
        peer[i], peer[(i + 1) % n] = (i + 1) % n, i
        return MixingMatrix.of(pairs(peer))

    return Topology("gossip", n, draw=draw, **moments)


def test_drawn_schedules():
    n = 8
    mean = sp.csr_array((1 - 1.5 / n) * np.eye(n) + 1.5 / n * ring(n))
    d = report(gossip(n, moments=Moments(mean, mean))).to_dict()
    assert d["period"] is None
    assert d["contraction_kind"] == "mean square per step"
    assert d["contraction"] == pytest.approx(np.sqrt(np.linalg.eigvalsh(mean.toarray())[-2]))
    assert d["spectral_gap"] == pytest.approx(1 - d["contraction"])
    assert d["messages_per_step"] == 2
    assert d["connected"]
    assert d["connected_rounds"] is None
    assert d["diameter"] == 4
    assert d["exact_after"] is None
    assert 1 < d["effective_neighbors"] < n
    assert 0 < d["effective_neighbors_error"] < d["effective_neighbors"]
    c = d["contraction"]
    assert d["mixing_time"]["0.001"] == int(np.ceil(np.log(1e-3) / np.log(c)))
    untold = report(gossip(n)).to_dict()
    assert untold["contraction"] is None
    assert untold["diameter"] is None
    assert any(why.startswith("contraction:") and "states no moments" in why for why in untold["skipped"])
    json.dumps(untold)


def test_disconnected_and_frozen():
    blocks = sp.block_diag([ring(3), ring(4)]).toarray()
    d = report(from_matrices(blocks, may_disconnect=True)).to_dict()
    assert not d["connected"]
    assert d["diameter"] is None
    assert d["contraction"] == pytest.approx(1)
    assert d["spectral_gap"] == pytest.approx(0, abs=1e-14)
    assert d["mixing_time"] == {"0.25": None, "0.001": None}
    frozen = report(from_matrices(ring(5)).adapted(0.0)).to_dict()
    assert frozen["contraction"] == pytest.approx(1)
    assert frozen["effective_neighbors"] == pytest.approx(1)


@pytest.mark.parametrize("relabel", [False, True])
def test_a_large_ring(relabel):
    n = 20_000
    i = np.arange(n)
    w = sp.csr_array((np.full(3 * n, 1 / 3), (np.r_[i, i, i], np.r_[i, (i + 1) % n, (i - 1) % n])), shape=(n, n))
    if relabel:
        p = np.random.default_rng(0).permutation(n)
        w = sp.csr_array(w[p][:, p])
    d = report(from_matrices(w), memory=0.5).to_dict()
    assert d["spectral_gap"] == pytest.approx(4 / 3 * np.sin(np.pi / n) ** 2, rel=1e-9)
    assert d["mixing_time"]["0.25"] == pytest.approx(np.log(4) / (4 / 3 * np.sin(np.pi / n) ** 2), rel=1e-6)
    assert d["max_degree"] == 2
    assert d["connected"]
    assert d["limit"] is None
    exact = n * 2 / np.sum((lam := 1 / 3 + 2 / 3 * np.cos(2 * np.pi * i / n)) ** 2 / (1 - 0.5 * lam**2)) if n else 0
    if relabel:
        assert d["diameter"] is None
        assert any("worker 0 is 10000 hops" in why for why in d["skipped"])
        assert abs(d["effective_neighbors"] - exact) < 6 * d["effective_neighbors_error"]
    else:
        assert d["diameter"] == n // 2
        assert d["effective_neighbors"] == pytest.approx(exact)


def test_mixing_time_of_a_large_period_is_an_upper_bound():
    n = 150
    i = np.arange(n)
    t = from_matrices([pairs(i ^ 1), pairs(np.where(i % 2, i + 1, i - 1) % n)])
    found = mixing_time(t, contraction(t))
    assert found.kind == "upper bound, in whole periods"
    steps = found.steps[0.25]
    assert steps is not None
    assert np.linalg.norm(np.linalg.matrix_power(t.product(), steps // 2) - 1 / n, 2) <= 0.25


def test_bytes():
    t = from_matrices([pairs([1, 0, 3, 2]), pairs([2, 3, 0, 1])], workers_per_node=2)
    assert bytes_per_step(t, 100) == {"total": 400, "intra_node": 200, "inter_node": 200}
    with pytest.raises(MixingError, match="at least 0 bytes, got parameter_bytes=-1"):
        bytes_per_step(t, -1)


def test_memory_out_of_range_is_refused():
    assert report(from_matrices(ring(4)), memory=0).effective_neighbors == pytest.approx(3)
    with pytest.raises(MixingError, match="memory must lie in"):
        report(from_matrices(ring(4)), memory=1.5)


def test_a_function_without_moments_still_reports_traffic():
    d = report(from_function(lambda t: shift(6, 1 + t % 2), 6)).to_dict()
    assert d["messages_per_step"] == 6
    assert any("first 64 steps" in why for why in d["skipped"])
