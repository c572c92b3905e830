"""Every built-in at every size up to 64: sums, connection, closed forms in dense numbers, graph facts of networkx."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from math import pi, sin, sqrt
from typing import Any

import networkx as nx
import numpy as np
import pytest

from dissensus.theory import ClosedForm, MixingError, MixingMatrix, Topology, topology
from dissensus.theory.registry import catalogue
from dissensus.theory.topologies.random_graphs import _pair
from dissensus.theory.topologies.rounds import Laplacian
from dissensus.theory.weights import weigh

SIZES = range(1, 65)
PLAIN = sorted(catalogue())
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("aer", {"workers_per_node": 2}),
    ("aer", {"workers_per_node": 3}),
    ("aer", {"workers_per_node": 8}),
    ("base-k", {"k": 2}),
    ("base-k", {"k": 3, "simple": True}),
    ("equitopo", {"directed": True}),
    ("equitopo", {"kind": "dynamic"}),
    ("equitopo", {"kind": "dynamic", "directed": True, "eta": 0.3, "M": 2}),
    ("erdos-renyi", {"p": 1.0}),
    ("geometric", {"radius": 1.5}),
    ("grid", {"rows": 3}),
    ("grid", {"rule": "max-degree"}),
    ("hierarchical", {"workers_per_node": 1}),
    ("hierarchical", {"workers_per_node": 4, "across": "one-peer-exponential", "inside_steps": 2}),
    ("hierarchical", {"across": "complete"}),
    ("random-digraph", {"degree": 1}),
    ("random-regular", {"degree": 3, "seed": 5}),
    ("random-regular", {"degree": 6}),
    ("ring-lattice", {"k": 2}),
    ("ring-lattice", {"k": 6}),
    ("torus", {"rows": 1}),
    ("torus", {"cols": 2}),
    ("torus", {"rows": 3}),
]
CASES = [(name, {}) for name in PLAIN] + VARIANTS
every_case = pytest.mark.parametrize(("name", "parameters"), CASES, ids=lambda x: x if isinstance(x, str) else str(x))


@cache
def _built(name: str, n: int, parameters: tuple[tuple[str, Any], ...]) -> Topology | str:
    try:
        return topology(name, n, **dict(parameters))
    except MixingError as error:
        return str(error)


def built(name: str, parameters: dict[str, Any]) -> Iterator[Topology]:
    """The topology at every size that it accepts."""
    for n in SIZES:
        found = _built(name, n, tuple(parameters.items()))
        if isinstance(found, Topology):
            yield found


def some_rounds(t: Topology) -> list[MixingMatrix]:
    """The rounds of a period, or the first four that are drawn."""
    return [t[s] for s in range(t.period or 4)]


@every_case
def test_rows_and_columns_sum_to_one(name: str, parameters: dict[str, Any]) -> None:
    count = 0
    for t in built(name, parameters):
        for matrix in some_rounds(t):
            w = matrix.dense()
            assert w.shape == (t.size, t.size)
            assert matrix.signed or w.min() >= 0, t
            if t.promise != "column":
                assert abs(w.sum(1) - 1).max() <= 1e-12, t
            if t.promise != "row":
                assert abs(w.sum(0) - 1).max() <= 1e-12, t
        count += 1
    assert count >= 5


@every_case
def test_everybody_hears_of_everybody(name: str, parameters: dict[str, Any]) -> None:
    for t in built(name, parameters):
        if t.period is None:
            assert t.moments is not None
            reach = t.moments.mean.toarray()
        else:
            reach = sum((abs(w.dense()) for w in t), np.zeros((t.size, t.size)))
        graph = nx.from_numpy_array(reach, create_using=nx.DiGraph)
        assert nx.is_strongly_connected(graph), t


@every_case
def test_what_is_known_in_closed_form_equals_the_dense_numbers(name: str, parameters: dict[str, Any]) -> None:
    for t in built(name, parameters):
        if t.period:
            assert_closed_form(t)


def assert_closed_form(t: Topology) -> ClosedForm:
    known, n = t.closed_form, t.size
    error = np.linalg.norm(t.product() - 1 / n, 2)
    if known.contraction is not None:
        assert error == pytest.approx(known.contraction, abs=1e-10), t
    if known.spectral_gap is not None:
        assert t.period == 1
        assert 1 - error == pytest.approx(known.spectral_gap, abs=1e-10), t
    if known.eigenvalues is not None:
        assert t.is_symmetric
        found = np.linalg.eigvalsh(t[0].dense())
        assert abs(np.sort(known.eigenvalues()) - found).max() <= 1e-10, t
    return known


@every_case
def test_a_single_worker_is_left_alone(name: str, parameters: dict[str, Any]) -> None:
    found = topology(name, 1, **{key: value for key, value in parameters.items() if key not in ("rows", "cols")})
    assert all(np.array_equal(w.dense(), [[1.0]]) for w in some_rounds(found))


@every_case
def test_a_refused_size_names_the_nearest_that_work(name: str, parameters: dict[str, Any]) -> None:
    outcome = {n: _built(name, n, tuple(parameters.items())) for n in SIZES}
    for n, message in outcome.items():
        if not isinstance(message, str):
            continue
        found = re.search(r"the nearest that works? (?:is|are) (\d+)(?: and (\d+))?$", message)
        assert found is not None, message
        named = [int(number) for number in found.groups() if number]
        for size in named:
            assert isinstance(_built(name, size, tuple(parameters.items())), Topology), message
        between = range(min(named) + 1, max(named)) if len(named) == 2 else range(min(n, named[0]), max(n, named[0]))
        assert all(isinstance(outcome.get(m), str) for m in between if m in outcome), message
        assert min(named) < n < max(named) if len(named) == 2 else named[0] != n, message


def test_two_workers_average_where_the_graph_is_one_link() -> None:
    for name in sorted(set(PLAIN) - {"aer", "hierarchical", "random-digraph", "random-gossip", "matcha"}):
        t = topology(name, 2)
        assert abs(t.product() - 0.5).max() <= 1e-15, name
        assert t.period == 1, name


@pytest.mark.parametrize("n", [3, 4, 5, 16])
def test_the_ring_weighs_all_three_alike(n: int) -> None:
    w = topology("ring", n)[0]
    for i in range(n):
        assert {j: pytest.approx(1 / 3, abs=1e-15) for j in ((i - 1) % n, i, (i + 1) % n)} == dict(w.row(i))
    lazy = np.roll(np.eye(n), 1, 1) / 4 + np.roll(np.eye(n), -1, 1) / 4 + np.eye(n) / 2
    assert topology("ring", 16).closed_form.spectral_gap != pytest.approx(1 - np.cos(pi / 16) ** 2, abs=1e-3)
    assert abs(w.dense() - lazy).max() > 0.05


GOLDEN = {
    ("ring", 8): 0.804738,
    ("ring", 16): 0.949253,
    ("ring", 32): 0.987190,
    ("ring", 64): 0.996790,
    ("one-peer-ring", 8): 0.707107,
    ("one-peer-ring", 16): 0.923880,
    ("one-peer-ring", 32): 0.980785,
    ("one-peer-ring", 64): 0.995185,
    ("exponential", 8): 0.5,
    ("exponential", 16): 0.6,
    ("exponential", 32): 0.666667,
    ("exponential", 64): 0.714286,
    ("hypercube", 8): 0.5,
    ("hypercube", 16): 0.6,
    ("hypercube", 32): 0.666667,
    ("hypercube", 64): 0.714286,
    ("torus", 9): 0.4,
    ("torus", 16): 0.6,
    ("torus", 32): 0.882843,
    ("torus", 64): 0.882843,
}


@pytest.mark.parametrize(("name", "n"), list(GOLDEN))
def test_golden_contractions(name: str, n: int) -> None:
    t = topology(name, n)
    assert t.closed_form.contraction == pytest.approx(GOLDEN[name, n], abs=6e-7)
    assert np.linalg.norm(t.product() - 1 / n, 2) == pytest.approx(GOLDEN[name, n], abs=6e-7)


@pytest.mark.parametrize(("n", "left"), [(6, 0.2165), (12, 0.2091)])
def test_one_peer_exponential_leaves_a_rest_off_the_powers_of_two(n: int, left: float) -> None:
    assert topology("one-peer-exponential", n).closed_form.contraction == pytest.approx(left, abs=5e-5)


@pytest.mark.parametrize("n", [10**5, 10**6])
def test_gaps_lose_nothing_to_cancellation(n: int) -> None:
    x = pi / n
    small = {"ring": 4 / 3 * x**2, "path": 4 / 3 * (x / 2) ** 2, "ring-lattice": 4 * x**2}
    for name, leading in small.items():
        assert topology(name, n).closed_form.spectral_gap == pytest.approx(leading, rel=1e-9)
    assert topology("directed-ring", n).closed_form.spectral_gap == pytest.approx(x**2 / 2, rel=1e-9)
    assert topology("star", n).closed_form.spectral_gap == pytest.approx(1 / n, rel=1e-15)
    side = 1000 if n == 10**6 else 400
    torus = topology("torus", n, cols=side)
    assert torus.closed_form.spectral_gap == pytest.approx(4 / 5 * sin(pi / side) ** 2, rel=1e-14)


def test_the_ring_lattice_follows_the_dirichlet_kernel() -> None:
    for n in range(5, 33):
        for k in range(2, n, 2):
            t = topology("ring-lattice", n, k=k)
            known = assert_closed_form(t)
            rho = sin(pi * (k + 1) / n) / ((k + 1) * sin(pi / n))
            assert known.contraction == pytest.approx(rho, abs=1e-13)


def test_every_shape_of_a_torus_and_a_grid() -> None:
    for rows in range(1, 9):
        for cols in range(1, 9):
            wrapped = topology("torus", rows * cols, rows=rows, cols=cols)
            assert assert_closed_form(wrapped).spectral_gap is not None
            line = nx.path_graph if rows < 3 else nx.cycle_graph
            other = nx.path_graph if cols < 3 else nx.cycle_graph
            assert_same_graph(wrapped, nx.cartesian_product(line(rows), other(cols)), sorted_nodes=True)
            degrees = {len(wrapped[0].row(i)) for i in range(rows * cols)}
            assert len(degrees) == 1
            assert abs(wrapped[0].weights.data - 1 / degrees.pop()).max() <= 2e-16
            flat = topology("grid", rows * cols, rows=rows, cols=cols, rule="max-degree")
            assert assert_closed_form(flat).spectral_gap is not None
            assert_same_graph(flat, nx.grid_2d_graph(rows, cols), sorted_nodes=True)


def test_a_grid_with_metropolis_weights_claims_nothing() -> None:
    assert topology("grid", 12).closed_form == ClosedForm()
    assert topology("grid", 7).closed_form.spectral_gap == topology("path", 7).closed_form.spectral_gap


RULES = ("metropolis", "lazy", "uniform", "max-degree", "best-constant")
GRAPHS = ("ring", "path", "star", "grid", "torus", "hypercube", "ring-lattice")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", GRAPHS)
def test_the_closed_form_follows_the_rule_of_the_weights(name: str, rule: str) -> None:
    known = 0
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 33):
        try:
            t = topology(name, n, rule=rule)
        except MixingError as error:
            assert re.search("doubly stochastic on regular graphs only|power of two", str(error))  # noqa: PT017
            continue
        assert t.parameters["rule"] == rule
        known += assert_closed_form(t).spectral_gap is not None
        expected = weigh(nx.from_scipy_sparse_array(topology(name, n)[0].weights - _diagonal(name, n)), rule)
        assert abs(expected.dense() - t[0].dense()).max() <= 1e-12
    assert known >= 2


def _diagonal(name: str, n: int) -> Any:
    import scipy.sparse as sp

    return sp.diags_array(topology(name, n)[0].weights.diagonal())


def test_the_gap_minds_the_negative_end_too() -> None:
    graph = nx.complete_bipartite_graph(3, 3)
    values = np.linalg.eigvalsh(nx.to_numpy_array(graph) * -1 + 3 * np.eye(6))
    known = Laplacian(float(values[1]), float(values[-1]), lambda: values, "dense").with_weight(1 / 4)
    assert known.spectral_gap == pytest.approx(1 / 2, abs=1e-14)  # -1/2 is farther out than the second largest, 1/4
    w = weigh(graph, "metropolis").dense()
    assert 1 - abs(np.linalg.eigvalsh(w)[:-1]).max() == pytest.approx(1 / 2, abs=1e-14)


def test_programmed_weights_claim_no_closed_form() -> None:
    pytest.importorskip("cvxpy")
    assert topology("path", 5, rule="fdla").closed_form == ClosedForm()


def assert_same_graph(t: Topology, graph: nx.Graph, *, sorted_nodes: bool = False) -> None:
    """The links of a static topology are the edges of the graph; networkx draws u -> v where v receives from u."""
    nodes = sorted(graph.nodes) if sorted_nodes else list(graph.nodes)
    senders = nx.to_numpy_array(graph, nodelist=nodes).T != 0
    heard = t[0].dense() != 0
    np.fill_diagonal(heard, val=False)
    assert np.array_equal(heard, senders), t


def power(n: int) -> int:
    return (n - 1).bit_length()


OF_NETWORKX: dict[str, Callable[[int], nx.Graph]] = {
    "complete": nx.complete_graph,
    "ring": lambda n: nx.cycle_graph(n) if n > 2 else nx.path_graph(n),
    "path": nx.path_graph,
    "star": lambda n: nx.star_graph(n - 1),
    "hypercube": lambda n: nx.hypercube_graph(power(n)) if n > 1 else nx.empty_graph(1),
    "ring-lattice": lambda n: nx.circulant_graph(n, [1, 2] if n >= 5 else [1] if n > 1 else []),
    "directed-ring": lambda n: nx.cycle_graph(n, create_using=nx.DiGraph) if n > 1 else nx.empty_graph(1),
    "exponential": lambda n: nx.DiGraph([(i, (i + 2**k) % n) for i in range(n) for k in range(power(n))]),
}


@pytest.mark.parametrize("name", OF_NETWORKX)
def test_links_degrees_and_diameters_are_those_of_networkx(name: str) -> None:
    for t in built(name, {}):
        if t.size == 1:
            continue
        graph = OF_NETWORKX[name](t.size)
        assert_same_graph(t, graph, sorted_nodes=True)
        ours = nx.from_scipy_sparse_array(t[0].weights, create_using=nx.DiGraph)
        ours.remove_edges_from(list(nx.selfloop_edges(ours)))
        assert nx.diameter(ours) == nx.diameter(graph)
        arcs = graph.number_of_edges() * (1 if graph.is_directed() else 2)
        assert t[0].messages == arcs == ours.number_of_edges()


def test_the_drawn_graphs_are_what_they_say() -> None:
    for n in (8, 9, 30, 64):
        for degree in (2, 3, 4, 6, 7):
            if n * degree % 2 == 0 and degree < n:
                t = topology("random-regular", n, degree=degree, seed=n)
                assert {len(t[0].neighbours(i)) for i in range(n)} == {degree}
        digraph = topology("random-digraph", n, degree=4, seed=n)[0].dense()
        assert set(np.count_nonzero(digraph, axis=0)) == {5}
        assert abs(digraph[digraph > 0] - 0.2).max() == 0
        assert abs(digraph.sum(1) - 1).max() > 0.1


def test_the_geometric_graph_links_who_is_near() -> None:
    draws = (np.random.default_rng([3, attempt]).random((40, 2)) for attempt in range(100))
    near = (np.linalg.norm(at[:, None] - at[None], axis=2) <= 0.3 for at in draws)
    graphs = (nx.from_numpy_array(linked & ~np.eye(40, dtype=bool)) for linked in near)
    assert_same_graph(topology("geometric", 40, radius=0.3, seed=3), next(g for g in graphs if nx.is_connected(g)))


def test_pairs_are_numbered_without_gaps() -> None:
    i, j = _pair(np.arange(50 * 49 // 2))
    assert list(zip(i.tolist(), j.tolist(), strict=True)) == [(a, b) for a in range(50) for b in range(a)]
    a = np.concatenate([np.arange(2, 10**5), np.random.default_rng(0).integers(10**6, 4 * 10**7, size=10**5)])
    first = a * (a - 1) // 2
    assert all(np.array_equal(x, y) for x, y in zip(_pair(first), (a, 0 * a), strict=True))
    assert all(np.array_equal(x, y) for x, y in zip(_pair(first - 1), (a - 1, a - 2), strict=True))


def test_erdos_renyi_links_pairs_alike() -> None:
    n, p, count = 12, 0.6, np.zeros((12, 12))
    draws = 600
    for seed in range(draws):
        w = topology("erdos-renyi", n, p=p, seed=seed)[0].dense()
        count += w != 0
    share = count[np.triu_indices(n, 1)] / draws  # connected almost surely at this p: the condition changes nothing
    assert abs(share - p).max() < 5 * sqrt(p * (1 - p) / draws)


@pytest.mark.parametrize("name", ["erdos-renyi", "random-regular", "geometric", "random-digraph", "equitopo"])
def test_a_seed_replays_and_another_seed_differs(name: str) -> None:
    first, again, other = (topology(name, 30, seed=seed)[0].dense() for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_resolved_parameters_are_told() -> None:
    assert topology("torus", 12).parameters == {"rows": 3, "cols": 4, "rule": "metropolis"}
    assert topology("ring-lattice", 12).parameters["k"] == 4
    assert topology("geometric", 12).parameters["radius"] == pytest.approx(sqrt(2 * np.log(12) / (12 * pi)))
    assert topology("random_regular", 9).parameters["degree"] == 4
    assert topology("hierarchical", 12).workers_per_node == 3
