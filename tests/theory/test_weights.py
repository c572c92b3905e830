"""Weights on a graph: each rule against its formula in dense numpy, and every refusal by its words."""

import re
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dissensus.theory import MixingError, MixingMatrix
from dissensus.theory.weights import RULES, laplacian, links, weigh

DIRECT = ["metropolis", "lazy", "max-degree", "best-constant"]


@st.composite
def connected_graphs(draw: st.DrawFn, largest: int = 12) -> nx.Graph:
    n = draw(st.integers(1, largest))
    graph = nx.random_labeled_tree(n, seed=draw(st.integers(0, 99))) if n > 1 else nx.empty_graph(1)
    graph.add_edges_from(nx.gnp_random_graph(n, draw(st.floats(0, 1)), seed=draw(st.integers(0, 99))).edges)
    return graph


def oracle(graph: nx.Graph, rule: str) -> np.ndarray:
    """The formula of the rule, entry by entry."""
    nodes = list(graph)
    n, degree = len(nodes), dict(graph.degree())
    lap = nx.laplacian_matrix(graph).toarray().astype(float)
    match rule:
        case "metropolis" | "lazy":
            w = np.zeros((n, n))
            for u, v in graph.edges:
                i, j = nodes.index(u), nodes.index(v)
                w[i, j] = w[j, i] = 1 / (1 + max(degree[u], degree[v]))
            w += np.diag(1 - w.sum(axis=1))
            return w if rule == "metropolis" else (np.eye(n) + w) / 2
        case "max-degree":
            return np.eye(n) - lap / (1 + max(degree.values()))
        case "best-constant":
            values = np.linalg.eigvalsh(lap)
            return np.eye(n) - 2 / (values[1] + values[-1]) * lap if n > 1 else np.eye(1)
    raise AssertionError(rule)


@pytest.mark.parametrize("rule", DIRECT)
@given(graph=connected_graphs())
def test_each_rule_is_its_formula(rule: str, graph: nx.Graph) -> None:
    w = weigh(graph, rule)
    np.testing.assert_allclose(w.dense(), oracle(graph, rule), atol=1e-13)
    assert w.promise == "doubly"
    assert w.is_symmetric


@given(graph=connected_graphs())
def test_graph_dense_and_sparse_adjacency_are_one(graph: nx.Graph) -> None:
    a = nx.to_numpy_array(graph)
    expected = weigh(graph).dense()
    for other in (a, 7.5 * a, sp.csr_array(a), sp.coo_array(a), sp.csr_matrix(a)):
        np.testing.assert_array_equal(weigh(other).dense(), expected)


def test_the_order_of_workers_is_the_order_of_the_nodes() -> None:
    graph = nx.Graph()
    graph.add_nodes_from("cab")
    graph.add_edges_from([("a", "b"), ("b", "c")])
    assert [weigh(graph).neighbours(i) for i in range(3)] == [[2], [2], [0, 1]]


@given(graph=connected_graphs())
def test_lazy_weights_have_no_negative_eigenvalue(graph: nx.Graph) -> None:
    assert np.linalg.eigvalsh(weigh(graph, "lazy").dense()).min() >= -1e-14


@given(graph=connected_graphs(), off=st.floats(-0.2, 0.2))
def test_no_other_constant_beats_the_best_constant(graph: nx.Graph, off: float) -> None:
    n, lap = len(graph), laplacian(links(graph)).toarray()

    def contraction(w: np.ndarray) -> float:
        return float(np.abs(np.linalg.eigvalsh(w - 1 / n)).max())

    best = weigh(graph, "best-constant")
    other = np.eye(n) - (2 / lap.max(initial=1) + off) * lap
    assert contraction(best.dense()) <= contraction(other) + 1e-12
    if n > 1:
        values = np.linalg.eigvalsh(lap)
        ratio = (values[-1] - values[1]) / (values[-1] + values[1])
        assert contraction(best.dense()) == pytest.approx(ratio, abs=1e-13)


def test_the_best_constant_of_a_star_keeps_less_than_nothing() -> None:
    w = weigh(nx.star_graph(5), "best-constant")
    assert w.signed
    assert w.dense()[0, 0] == pytest.approx(1 - 5 * 2 / 7)


@pytest.mark.parametrize(
    "graph", [nx.cycle_graph(7), nx.petersen_graph(), nx.complete_graph(6), nx.empty_graph(3), nx.hypercube_graph(3)]
)
def test_uniform_on_regular_graphs_is_one_over_degree_plus_one(graph: nx.Graph) -> None:
    a = nx.to_numpy_array(graph) + np.eye(len(graph))
    np.testing.assert_allclose(weigh(graph, "uniform").dense(), a / a.sum(axis=1, keepdims=True), atol=1e-15)


def test_uniform_on_separate_regular_parts_is_doubly_stochastic() -> None:
    parts = nx.disjoint_union(nx.cycle_graph(4), nx.complete_graph(5))
    assert weigh(parts, "uniform").is_doubly_stochastic


@pytest.mark.parametrize(
    "graph",
    [nx.cycle_graph(1501), nx.path_graph(1600), nx.star_graph(1600), nx.random_regular_graph(4, 1600, seed=1)],
    ids=["odd ring", "path", "star", "expander"],
)
def test_the_sparse_route_to_the_best_constant_equals_the_dense_one(
    graph: nx.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse = weigh(graph, "best-constant").weights
    monkeypatch.setattr("dissensus.theory.weights.DENSE_LIMIT", 10**4)
    assert abs(sparse - weigh(graph, "best-constant").weights).max() < 1e-10


@pytest.mark.scale
def test_a_million_workers() -> None:
    n = 10**6
    i = np.arange(n)
    ends = (np.concatenate([i, i]), np.concatenate([(i + 1) % n, (i - 1) % n]))
    ring = sp.csr_array((np.ones(2 * n), ends), shape=(n, n))
    for rule in ("metropolis", "lazy", "uniform", "max-degree"):
        assert weigh(ring, rule).weights.nnz == 3 * n


def test_underscores_are_accepted() -> None:
    np.testing.assert_array_equal(
        weigh(nx.path_graph(4), "max_degree").dense(), weigh(nx.path_graph(4), "max-degree").dense()
    )


def test_every_rule_is_doubly_stochastic_on_an_irregular_graph() -> None:
    graph = nx.barbell_graph(3, 1)
    options: dict[str, dict[str, Any]] = {"budget": {"cost": np.ones((7, 7)), "budget": 1.0}}
    for rule in set(RULES) - {"uniform"}:
        w = weigh(graph, rule, **options.get(rule, {}))
        assert isinstance(w, MixingMatrix)
        assert w.is_doubly_stochastic
        assert w.is_symmetric


A = np.ones((3, 3)) - np.eye(3)


def changed(i: int, j: int, value: float) -> np.ndarray:
    a = A.copy()
    a[i, j] = value
    return a


@pytest.mark.parametrize(
    ("adjacency", "words"),
    [
        (changed(0, 1, 0), "the graph is not undirected: entry (1, 0) is a link but (0, 1) is not; these weights need"),
        (
            changed(1, 1, 1),
            "worker 1 has a link to itself; what a worker keeps follows from the other weights, so remove",
        ),
        (changed(1, 2, np.nan), "the link (1, 2) has the entry nan; an adjacency holds 1"),
        (changed(2, 0, -1), "the link (2, 0) has the entry -1; an adjacency holds 1"),
        (changed(2, 0, np.inf), "the link (2, 0) has the entry inf"),
        (np.ones((2, 3)), "an adjacency must be square with at least one worker, got shape (2, 3)"),
        (np.ones((0, 0)), "an adjacency must be square with at least one worker, got shape (0, 0)"),
        (np.array([["a"]]), "an adjacency must be a networkx graph or a square array of numbers"),
        (nx.empty_graph(0), "a graph needs at least one worker, got one without nodes"),
        (nx.Graph([(0, 1), (1, 1)]), "worker 1 has a link to itself"),
        (nx.DiGraph([(0, 1), (1, 2)]), "the graph is not undirected: entry (0, 1) is a link but (1, 0) is not"),
    ],
)
def test_an_adjacency_that_cannot_be_is_refused(adjacency: Any, words: str) -> None:
    with pytest.raises(MixingError, match=re.escape(words)):
        weigh(adjacency)


@pytest.mark.parametrize(
    ("rule", "options", "words"),
    [
        ("metropols", {}, "unknown weights 'metropols'; did you mean 'metropolis'?"),
        ("zzz", {}, "unknown weights 'zzz'; known: best-constant, budget, fdla, lazy"),
        ("fdla", {"nonegative": True}, "weights 'fdla' have no option 'nonegative'; did you mean 'nonnegative'?"),
        ("lazy", {"gamma": 1}, "weights 'lazy' have no option 'gamma': it takes none"),
        ("budget", {"cost": A}, "weights 'budget' need the option 'budget'"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(rule: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(MixingError, match=re.escape(words)):
        weigh(A, rule, **options)


def test_uniform_names_two_linked_workers_of_different_degree() -> None:
    with pytest.raises(MixingError, match=r"linked workers 0 and 1 have degrees 1 and 2; use weights 'metropolis'"):
        weigh(nx.path_graph(4), "uniform")


def test_the_best_constant_needs_a_connected_graph() -> None:
    with pytest.raises(MixingError, match="connected graph: there is no path from worker 0 to worker 3"):
        weigh(nx.disjoint_union(nx.path_graph(3), nx.path_graph(2)), "best-constant")


def test_the_adjacency_is_not_written_to() -> None:
    a = sp.csr_array(5.0 * A)
    weigh(a)
    np.testing.assert_array_equal(a.toarray(), 5.0 * A)
