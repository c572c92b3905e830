"""Graphs into matchings and matrices into permutations: proper, complete, few, and exact to rounding."""

import itertools
import re

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dissensus.theory import MixingError, MixingMatrix, Topology, from_function, from_matrices, topology
from dissensus.theory.decomposition import (
    birkhoff,
    matchings,
    one_peer_schedule,
    pairwise,
    permutation_schedule,
    union_of_links,
)
from dissensus.theory.weights import weigh


def degree(graph: nx.Graph) -> int:
    return max((d for _, d in graph.degree()), default=0)


def check_colouring(graph: nx.Graph, parts: list[np.ndarray]) -> None:
    """No worker twice in a matching, every link in exactly one, and every matching with a link."""
    for part in parts:
        assert len(part)
        assert len(np.unique(part)) == part.size
        assert (part[:, 0] < part[:, 1]).all()
    found = [tuple(e) for part in parts for e in part.tolist()]
    assert sorted(found) == sorted((min(e), max(e)) for e in graph.edges)


@st.composite
def graphs(draw: st.DrawFn, largest: int = 16) -> nx.Graph:
    n = draw(st.integers(1, largest))
    every = list(itertools.combinations(range(n), 2))
    graph = nx.empty_graph(n)
    graph.add_edges_from(draw(st.lists(st.sampled_from(every), unique=True)) if every else [])
    return graph


@given(graph=graphs())
def test_any_graph_takes_at_most_one_matching_more_than_its_degree(graph: nx.Graph) -> None:
    parts = matchings(graph)
    check_colouring(graph, parts)
    assert len(parts) <= degree(graph) + 1


@pytest.mark.parametrize("seed", range(150))
def test_dense_random_graphs_need_the_fans(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(int(rng.integers(5, 28)), rng.uniform(0.3, 1), seed=seed)
    parts = matchings(graph)
    check_colouring(graph, parts)
    assert len(parts) <= degree(graph) + 1


@pytest.mark.parametrize("seed", range(60))
def test_bipartite_graphs_take_as_many_matchings_as_their_degree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = nx.bipartite.random_graph(int(rng.integers(1, 12)), int(rng.integers(1, 12)), rng.uniform(0.2, 1), seed)
    order = rng.permutation(len(graph))
    graph = nx.relabel_nodes(graph, dict(enumerate(order.tolist())))
    graph = nx.Graph(nx.to_numpy_array(graph, nodelist=range(len(graph))))
    parts = matchings(graph)
    check_colouring(graph, parts)
    assert len(parts) == degree(graph)


@pytest.mark.parametrize("n", [*range(1, 13), 33])
def test_the_complete_graph_is_a_round_robin(n: int) -> None:
    parts = matchings(nx.complete_graph(n))
    check_colouring(nx.complete_graph(n), parts)
    assert len(parts) == (0 if n == 1 else n - 1 if n % 2 == 0 else n)


def test_the_petersen_graph_needs_four() -> None:
    assert len(matchings(nx.petersen_graph())) == 4  # it is the classical graph that three do not colour


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_the_hypercube_becomes_exact_averaging_in_d_steps(d: int) -> None:
    cube = nx.convert_node_labels_to_integers(nx.hypercube_graph(d))
    schedule = one_peer_schedule(cube)
    assert schedule.period == d
    np.testing.assert_allclose(schedule.product(), np.full((2**d, 2**d), 2.0**-d), atol=1e-15)


@pytest.mark.parametrize("n", [4, 6, 10, 32])
def test_the_even_ring_alternates_and_contracts_as_known(n: int) -> None:
    """The two rounds of the one-peer ring: the norm of their product minus averaging is cos(2 pi/n)."""
    schedule = one_peer_schedule(topology("ring", n))
    assert schedule.name == "one-peer(ring)"
    assert schedule.period == 2
    assert np.linalg.norm(schedule.product() - 1 / n, 2) == pytest.approx(abs(np.cos(2 * np.pi / n)), abs=1e-12)


@given(graph=graphs(10))
def test_a_one_peer_schedule_averages_pairs_along_every_link_once(graph: nx.Graph) -> None:
    graph = nx.compose(graph, nx.path_graph(len(graph)))
    schedule = one_peer_schedule(graph)
    n, heard = len(graph), np.zeros((len(graph), len(graph)))
    for w in schedule:
        dense = w.dense()
        assert set(np.unique(dense)) <= {0.0, 0.5, 1.0}
        np.testing.assert_array_equal(dense, dense.T)
        np.testing.assert_array_equal(dense @ dense, dense)  # an average of pairs is a projection
        heard += dense - np.diag(np.diag(dense))
    np.testing.assert_array_equal(2 * heard, nx.to_numpy_array(graph, nodelist=range(n)))


def test_links_from_a_topology_a_matrix_and_a_graph_are_one() -> None:
    ring = topology("ring", 6)
    for source in (ring, ring[0], nx.cycle_graph(6), one_peer_schedule(ring)):
        np.testing.assert_array_equal(union_of_links(source).toarray(), nx.to_numpy_array(nx.cycle_graph(6)))


def test_one_worker_rests() -> None:
    np.testing.assert_array_equal(one_peer_schedule(nx.empty_graph(1))[0].dense(), [[1.0]])
    np.testing.assert_array_equal(pairwise(2, np.zeros((0, 2), dtype=np.int64)).dense(), np.eye(2))


def test_a_schedule_that_cannot_be_is_refused() -> None:
    with pytest.raises(MixingError, match="the graph is not undirected"):
        one_peer_schedule(topology("directed-ring", 5))
    with pytest.raises(MixingError, match="drawn anew at every step"):
        one_peer_schedule(from_function(lambda t: np.eye(2), 2))
    with pytest.raises(MixingError, match="worker 2 is isolated"):
        one_peer_schedule(nx.Graph(np.diag([1, 0], 1) + np.diag([1, 0], -1)))


@st.composite
def doubly_stochastic(draw: st.DrawFn) -> np.ndarray:
    n, terms, seed = draw(st.integers(1, 9)), draw(st.integers(1, 30)), draw(st.integers(0, 999))
    rng = np.random.default_rng(seed)
    c = rng.dirichlet(np.full(terms, draw(st.sampled_from([0.05, 1.0]))))
    w = np.zeros((n, n))
    for k in range(terms):
        w[np.arange(n), rng.permutation(n)] += c[k]
    return w


def rebuilt(terms: list[tuple[float, np.ndarray]]) -> np.ndarray:
    return sum((c * np.eye(len(sender))[sender] for c, sender in terms), np.zeros(()))


@given(w=doubly_stochastic())
def test_birkhoff_gives_the_matrix_back(w: np.ndarray) -> None:
    terms, n = birkhoff(w), len(w)
    np.testing.assert_allclose(rebuilt(terms), w, atol=1e-12, rtol=0)
    assert len(terms) <= n * n - 2 * n + 2
    c = [c for c, _ in terms]
    assert min(c) > 0
    assert sum(c) == pytest.approx(1, abs=1e-14)
    assert np.all(np.diff(c) <= 1e-15)
    for _, sender in terms:
        assert sorted(sender.tolist()) == list(range(n))


@pytest.mark.parametrize("n", [6, 16])
def test_birkhoff_of_a_full_matrix(n: int) -> None:
    w = np.random.default_rng(n).uniform(0.1, 1, (n, n))
    for _ in range(2000):  # Sinkhorn
        w /= w.sum(axis=1, keepdims=True)
        w /= w.sum(axis=0)
    terms = birkhoff(w)
    np.testing.assert_allclose(rebuilt(terms), w, atol=1e-12, rtol=0)
    assert len(terms) <= n * n - 2 * n + 2


@pytest.mark.parametrize("name", ["ring", "exponential", "star", "torus", "directed-ring", "equitopo"])
def test_birkhoff_of_the_built_ins(name: str) -> None:
    w = topology(name, 12)[0]
    np.testing.assert_allclose(rebuilt(birkhoff(w)), w.dense(), atol=1e-12, rtol=0)


def test_birkhoff_finds_the_few_terms_there_are() -> None:
    """A circulant with three weights is three shifts; the widest permutation first."""
    w = 0.5 * np.eye(7) + 0.3 * np.roll(np.eye(7), 1, axis=1) + 0.2 * np.roll(np.eye(7), 3, axis=1)
    terms = birkhoff(w)
    assert [c for c, _ in terms] == pytest.approx([0.5, 0.3, 0.2])
    assert terms[1][1].tolist() == [(i + 1) % 7 for i in range(7)]


def test_birkhoff_leaves_its_argument_alone() -> None:
    w = MixingMatrix(sp.csr_array(np.full((4, 4), 0.25)))
    birkhoff(w)
    np.testing.assert_array_equal(w.dense(), np.full((4, 4), 0.25))


def test_matrices_that_are_no_mixture_are_refused() -> None:
    row = MixingMatrix.of([[0.9, 0.1], [0.5, 0.5]], "row")
    with pytest.raises(
        MixingError, match="only a doubly stochastic matrix is a mixture of permutations, this one is row"
    ):
        birkhoff(row)
    signed = MixingMatrix.of([[1.5, -0.5], [-0.5, 1.5]], signed=True)
    with pytest.raises(MixingError, match="negative weights is no mixture of permutations"):
        birkhoff(signed)
    with pytest.raises(MixingError, match=r"column \d sums to"):
        birkhoff(np.array([[0.9, 0.1], [0.5, 0.5]]))


def enumerated(schedule: Topology, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and second moment from the terms themselves: every round with its probability."""
    kappa, n = float(np.diag(w).min()), len(w)
    mean, square = np.zeros((n, n)), np.zeros((n, n))
    for c, sender in birkhoff((w - kappa * np.eye(n)) / (1 - kappa)):
        one = kappa * np.eye(n) + (1 - kappa) * np.eye(n)[sender]
        mean += c * one
        square += c * one.T @ one
    return mean, square


@pytest.mark.parametrize(
    "w",
    [
        weigh(nx.petersen_graph()).dense(),
        weigh(nx.barbell_graph(3, 1)).dense(),
        topology("exponential", 10)[0].dense(),
        topology("equitopo", 7)[0].adapted(0.7).dense(),
    ],
)
def test_a_drawn_permutation_schedule_has_the_moments_it_states(w: np.ndarray) -> None:
    schedule = permutation_schedule(w, seed=4)
    mean, square = enumerated(schedule, w)
    assert schedule.moments is not None
    np.testing.assert_allclose(schedule.moments.mean.toarray(), w, atol=1e-13)
    np.testing.assert_allclose(mean, w, atol=1e-12)
    np.testing.assert_allclose(sp.csr_array(schedule.moments.square).toarray(), square, atol=1e-12)
    n, kappa = len(w), float(np.diag(w).min())
    terms = birkhoff((w - kappa * np.eye(n)) / (1 - kappa))
    possible = [kappa * np.eye(n) + (1 - kappa) * np.eye(n)[sender] for _, sender in terms]
    for t in range(20):
        assert any(np.allclose(schedule[t].dense(), one, atol=1e-14) for one in possible)
        assert all(len(schedule[t].neighbours(i)) <= 1 for i in range(n))


def test_the_rounds_of_a_permutation_schedule_come_as_often_as_their_coefficient() -> None:
    """Three shifts at .5, .3, .2, of which the first keeps: 2000 draws lie within five standard errors."""
    w = 0.5 * np.eye(7) + 0.3 * np.roll(np.eye(7), 1, axis=1) + 0.2 * np.roll(np.eye(7), 3, axis=1)
    schedule = permutation_schedule(w, seed=1)
    near = sum(schedule[t].neighbours(0) == [1] for t in range(2000)) / 2000
    assert abs(near - 0.6) < 5 * np.sqrt(0.6 * 0.4 / 2000)


def test_a_permutation_schedule_depends_on_seed_and_step_alone() -> None:
    w = weigh(nx.barbell_graph(4, 2))
    one, same, other = (permutation_schedule(w, seed=s) for s in (0, 0, 1))
    forwards = [one[t].triplets() for t in range(10)]
    assert forwards == [same[t].triplets() for t in reversed(range(10))][::-1]
    assert forwards != [other[t].triplets() for t in range(10)]
    assert forwards[::2] != forwards[1::2]


def test_the_identity_is_a_permutation_schedule() -> None:
    schedule = permutation_schedule(np.eye(3))
    np.testing.assert_array_equal(schedule[5].dense(), np.eye(3))


def test_permutations_that_would_never_mix_are_refused() -> None:
    w = from_matrices(np.roll(np.eye(4), 1, axis=1))[0]
    words = "worker 0 keeps nothing of itself: drawn permutations with this mean only move the workers about"
    with pytest.raises(MixingError, match=re.escape(words)):
        permutation_schedule(w)
    assert permutation_schedule(w.adapted(0.5)).moments is not None
