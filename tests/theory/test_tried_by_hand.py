"""What one would try first: famous graphs, odd sizes, and everything a hand can get wrong."""

import dataclasses
import math
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from dissensus.testing import check_report, check_topology, gammas, mixing_matrices, topologies
from dissensus.testing.dense_topologies import dense_metropolis, most_square
from dissensus.theory import MixingError, MixingMatrix, Topology, from_function, from_matrices, topology
from dissensus.theory.analysis import report
from dissensus.theory.outside import from_graph
from dissensus.theory.registry import catalogue as registered

SIZES = [1, 2, 3, 5, 7, 12, 33]


def figures(built: Topology) -> dict[str, Any]:
    return report(built).to_dict()


# Famous graphs


def test_the_petersen_graph():
    built = from_graph(nx.petersen_graph())
    check_topology(built, report=True)
    np.testing.assert_allclose(np.linalg.eigvalsh(built[0].dense()), [-1 / 4] * 4 + [1 / 2] * 5 + [1], atol=1e-12)
    known = figures(built)
    assert known["spectral_gap"] == pytest.approx(1 / 2, abs=1e-12)
    assert known["diameter"] == nx.diameter(nx.petersen_graph())
    assert known["messages_per_step"] == 30
    assert report(built, memory=0.0).to_dict()["effective_neighbors"] == pytest.approx(4, abs=1e-12)


@pytest.mark.parametrize("n", SIZES)
def test_a_directed_ring_from_networkx(n: int):
    g = nx.empty_graph(n, create_using=nx.DiGraph)
    g.add_edges_from((i, (i + 1) % n) for i in range(n) if n > 1)
    built = from_graph(g)
    check_topology(built)
    np.testing.assert_allclose(built[0].dense(), topology("directed-ring", n)[0].dense(), atol=1e-15)
    assert figures(topology("directed-ring", n))["diameter"] == n - 1


def test_news_travels_along_the_arrows_of_a_digraph():
    built = from_graph(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]))
    expected = np.array([[1 / 3, 0, 1 / 2], [1 / 3, 1 / 2, 0], [1 / 3, 1 / 2, 1 / 2]])
    np.testing.assert_allclose(built[0].dense(), expected, atol=1e-15)
    check_topology(built, report=True)


def test_three_rounds_on_six_workers():
    pairs = [{(0, 1), (2, 3), (4, 5)}, {(1, 2), (3, 4)}, {(0, 5), (1, 4), (2, 3)}]
    built = from_matrices([dense_metropolis(6, p) for p in pairs])
    check_topology(built, report=True)
    known = figures(built)
    assert known["period"] == 3
    assert known["messages_per_step"] == pytest.approx(16 / 3)
    assert not any(known["connected_rounds"])
    assert known["connected"]
    assert built[7] is built[1]


def test_a_disconnected_graph_is_refused():
    g = nx.disjoint_union(nx.cycle_graph(3), nx.path_graph(2))
    with pytest.raises(MixingError, match=r"disconnected|no path|2 (groups|parts)"):
        from_graph(g)
    with pytest.raises(MixingError, match=r"disconnected over its period of 1: .* 2 groups .*worker 0 and worker 3"):
        from_matrices(dense_metropolis(5, set(g.edges)))


def test_an_isolated_worker_is_named():
    with pytest.raises(MixingError, match=r"worker 4 is isolated: it has no neighbour in any round"):
        from_matrices(dense_metropolis(5, {(0, 1), (1, 2), (2, 3)}))


def test_a_one_way_street_is_not_a_connection():
    w = np.array([[1.0, 0, 0], [0.5, 0.5, 0], [0, 0.5, 0.5]])
    with pytest.raises(MixingError, match=r"without a path both ways"):
        from_matrices(w, promise="row")


# Sizes


def built_or_none(name: str, n: int) -> Topology | None:
    try:
        return topology(name, n)
    except MixingError as error:
        assert "nearest that work" in str(error), error  # noqa: PT017
        return None


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", sorted(registered()))
def test_every_built_in_at_the_sizes_of_a_first_try(name: str, n: int):
    built = built_or_none(name, n)
    if built is None:
        assert n > 2, "one or two workers always work"
        return
    check_topology(built, report=built.period is not None)
    check_topology(built.adapted(0.3))


def test_underscores_are_accepted():
    for name in registered():
        assert topology(name.replace("-", "_"), 4).name == name


def test_a_wrong_name_is_answered_with_the_nearest():
    with pytest.raises(
        MixingError, match=r"unknown topology 'one-peer-exponental'; did you mean 'one-peer-exponential'"
    ):
        topology("one-peer-exponental", 8)


def test_a_wrong_parameter_is_answered_with_the_nearest():
    with pytest.raises(MixingError, match=r"'aer' has no parameter 'worker_per_node'; did you mean 'workers_per_node'"):
        topology("aer", 8, worker_per_node=2)


@pytest.mark.parametrize("n", [0, -1, -(10**12)])
def test_less_than_one_worker_is_refused(n: int):
    with pytest.raises(MixingError, match=rf"n must be at least 1, got {n}"):
        topology("ring", n)


@pytest.mark.parametrize("n", [2.0, "4", None, True, math.nan, [4]])
def test_a_size_that_is_no_whole_number_is_refused(n: Any):
    with pytest.raises(MixingError, match="n must be a whole number, got"):
        topology("ring", n)


@pytest.mark.parametrize("n", [8, 9])
@pytest.mark.parametrize("graph", ["complete", "star", "ring", "path", "torus"])
def test_matcha_on_graphs_with_many_equal_eigenvalues(graph: str, n: int):
    check_topology(topology("matcha", n, graph=graph, budget=0.5))


WRONG = ["x", "", 1.5, -1, 0, math.nan, math.inf, True, [], {}, np.float64(2.5), b"k", (2, 3)]


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, e in registered().items() for key in e.parameters])
def test_a_wrong_parameter_value_is_refused_with_a_mixing_error(name: str, key: str):
    """A value of the wrong type or sign builds a lawful topology or raises MixingError; nothing else comes out."""
    other: list[str] = []
    for value in WRONG:
        try:
            check_topology(topology(name, 8, **{key: value}))
        except MixingError:
            continue
        except Exception as error:
            other.append(f"{key}={value!r}: {type(error).__name__}: {error}")
    assert other == []


# Agreement with networkx


def support(w: MixingMatrix) -> nx.Graph:
    g = nx.empty_graph(w.size)
    g.add_edges_from((i, j) for i, j, _ in w.triplets() if i != j)
    return g


NETWORKX = {
    "complete": nx.complete_graph,
    "ring": lambda n: nx.cycle_graph(n) if n > 2 else nx.path_graph(n),
    "path": nx.path_graph,
    "star": lambda n: nx.star_graph(n - 1),
    "grid": lambda n: nx.convert_node_labels_to_integers(nx.grid_2d_graph(*most_square(n)), ordering="sorted"),
    "ring-lattice": lambda n: nx.circulant_graph(n, [1, 2] if n >= 5 else [1]),
    "hypercube": lambda n: nx.convert_node_labels_to_integers(
        nx.hypercube_graph(n.bit_length() - 1), ordering="sorted"
    ),
}


@pytest.mark.parametrize("name", NETWORKX)
@pytest.mark.parametrize("n", [*SIZES, 8, 16, 64])
def test_links_and_graph_facts_are_those_of_networkx(name: str, n: int):
    built = built_or_none(name, n)
    if built is None:
        return
    ours, theirs = support(built[0]), nx.Graph(NETWORKX[name](n))
    theirs.remove_edges_from(list(nx.selfloop_edges(theirs)))
    assert set(map(frozenset, ours.edges)) == set(map(frozenset, theirs.edges))
    known = figures(built)
    assert known["diameter"] == nx.diameter(ours)
    assert known["messages_per_step"] == 2 * ours.number_of_edges()
    assert known["max_degree"] == max(d for _, d in ours.degree)
    if name == "path" and n > 2:  # W = I - L/3
        assert known["spectral_gap"] == pytest.approx(
            nx.algebraic_connectivity(ours, method="tracemin_lu") / 3, rel=1e-6
        )


# Properties over everything


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(topologies(max_size=64, kinds=("named",)))
def test_built_ins_of_any_size_obey_the_laws(built: Topology):
    check_topology(built)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(topologies(max_size=10), gammas())
def test_adaptive_consensus_moves_every_eigenvalue(built: Topology, gamma: float):
    for t in range(built.period or 2):
        before, after = np.linalg.eigvals(built[t].dense()), np.linalg.eigvals(built.adapted(gamma)[t].dense())
        moved = 1 - gamma * (1 - before)
        for value in after:  # defective eigenvalues are good to the square root of rounding only
            assert np.abs(moved - value).min() <= 1e-5


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(mixing_matrices(max_size=8), mixing_matrices(max_size=8))
def test_products_of_rounds_contract_no_worse_than_one_by_one(a: MixingMatrix, b: MixingMatrix):
    if a.size == b.size:
        check_report(from_matrices([a, b], may_disconnect=True))


@pytest.mark.parametrize("gamma", [-0.1, 1.1, math.nan])
@pytest.mark.parametrize("name", ["ring", "random-gossip"])
def test_gamma_outside_its_range_is_refused_at_once(name: str, gamma: float):
    with pytest.raises(MixingError, match=rf"gamma must lie in \[0, 1\], got {gamma}"):
        topology(name, 5).adapted(gamma)


# What a hand can get wrong


REFUSED: dict[str, tuple[Any, str]] = {
    "an empty list": ([], "at least one matrix, got an empty list"),
    "a vector": (np.ones(3), r"expected one n x n matrix or a list of them, got an array of shape \(3,\)"),
    "not square": (np.ones((2, 3)) / 3, r"round 0: .*square.*\(2, 3\)"),
    "no worker": (np.ones((0, 0)), r"round 0: .*at least one worker, got shape \(0, 0\)"),
    "two sizes": ([np.eye(2), np.full((3, 3), 1 / 3)], "round 1 has 3 workers, but the topology has 2"),
    "words": ([["a", "b"], ["c", "d"]], "square array of numbers"),
    "the second round": (
        [np.full((2, 2), 0.5), np.full((2, 2), 0.6)],
        "round 1: not row stochastic: row 0 sums to 1.2",
    ),
    "infinite": (np.array([[np.inf, 0], [0, 1.0]]), "row 0 has the weight inf from worker 0: not a number"),
    "complex": (np.array([[0.5 + 0j, 0.5], [0.5, 0.5 + 1j]]), "numbers|complex"),
    "a number": (3.0, "matri"),
    "nothing": (None, "matri"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_matrices_are_refused(case: str):
    matrices, words = REFUSED[case]
    with pytest.raises(MixingError, match=words):
        from_matrices(matrices)


def test_a_function_of_the_step_is_checked_when_asked():
    built = from_function(lambda t: np.full((2, 2), 0.5 if t < 3 else 0.6), 2)
    assert built[2].messages == 2
    with pytest.raises(MixingError, match=r"step 3: not row stochastic: row 0 sums to 1\.2, expected 1"):
        built[3]
    with pytest.raises(MixingError, match=r"step 0 has 3 workers, expected 2"):
        from_function(lambda t: np.full((3, 3), 1 / 3), 2)[0]
    with pytest.raises(MixingError, match=r"a step is counted from 0, got -1"):
        built[-1]


def test_nothing_can_be_changed_afterwards():
    built = topology("ring", 5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        built.size = 6  # pyright: ignore[reportAttributeAccessIssue]
    before = built[0].dense()
    built[0].dense()[0, 0] = 9
    np.testing.assert_array_equal(built[0].dense(), before)
    with pytest.raises(ValueError, match="read-only"):
        built[0].weights.data[0] = 9


def test_the_matrix_that_was_given_may_change_without_harm():
    given = np.full((3, 3), 1 / 3)
    built = from_matrices(given)
    given[0, 0] = 7
    assert built[0].dense()[0, 0] == 1 / 3
