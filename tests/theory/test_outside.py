"""Topologies from graphs, lists of links and files: equal to what they were written from, or refused by their words."""

import json
import re
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.theory import MixingError, topology
from dissensus.theory.outside import from_edges, from_file, from_graph
from dissensus.theory.weights import weigh

RING = weigh(nx.cycle_graph(4)).dense()
PAIRS = [np.kron(np.eye(2), np.full((2, 2), 0.5)), np.roll(np.kron(np.eye(2), np.full((2, 2), 0.5)), 1, (0, 1))]


def test_the_petersen_graph_has_metropolis_weights() -> None:
    found = from_graph(nx.petersen_graph())
    np.testing.assert_allclose(found[0].dense(), (nx.to_numpy_array(nx.petersen_graph()) + np.eye(10)) / 4, atol=1e-15)
    assert (found.name, found.size, found.period, found.promise) == ("Petersen Graph", 10, 1, "doubly")
    assert from_graph(nx.petersen_graph(), name="mine").name == "mine"


def test_any_rule_and_its_options_go_through() -> None:
    graph = nx.barbell_graph(3, 1)
    np.testing.assert_array_equal(from_graph(graph, "max-degree")[0].dense(), weigh(graph, "max-degree").dense())
    with pytest.raises(MixingError, match="did you mean 'metropolis'"):
        from_graph(graph, "metropolitan")
    with pytest.raises(MixingError, match="have no option 'speed': it takes none"):
        from_graph(graph, "lazy", speed=3)


def test_the_order_of_the_nodes_is_kept() -> None:
    graph = nx.Graph()
    graph.add_nodes_from(["x", "a", "m"])
    graph.add_edges_from([("a", "m"), ("m", "x")])
    assert from_graph(graph)[0].neighbours(0) == [2]


@given(n=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_directed_graph_sends_along_its_edges(n: int, seed: int) -> None:
    graph = nx.gnp_random_graph(n, 0.3, seed=seed, directed=True)
    graph.add_edges_from((k, (k + 1) % n) for k in range(n) if n > 1)
    w = from_graph(graph)[0]
    expected = np.zeros((n, n))
    for u in graph:  # the sender u gives equal parts to itself and its successors
        for v in [u, *graph.successors(u)]:
            expected[v, u] = 1 / (1 + graph.out_degree(u))
    np.testing.assert_allclose(w.dense(), expected, atol=1e-15)
    assert w.promise == "column"


def test_the_directed_ring_is_received_from_behind() -> None:
    w = from_graph(nx.cycle_graph(5, create_using=nx.DiGraph))[0]
    assert w.row(0) == [(0, 0.5), (4, 0.5)]


@given(seed=st.integers(0, 99))
def test_links_and_graph_are_one(seed: int) -> None:
    graph = nx.random_labeled_tree(7, seed=seed)
    rng = np.random.default_rng(seed)
    edges = [[u, v] if rng.random() < 0.5 else [v, u] for u, v in graph.edges]
    twice = edges + [e[::-1] for e in edges[:2]]
    expected = weigh(nx.to_numpy_array(graph, nodelist=range(7))).dense()
    np.testing.assert_array_equal(from_edges(twice)[0].dense(), expected)
    np.testing.assert_array_equal(from_edges(np.array(twice))[0].dense(), expected)


def test_links_of_a_directed_graph() -> None:
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])
    found = from_edges(list(graph.edges), directed=True)
    np.testing.assert_array_equal(found[0].dense(), from_graph(graph)[0].dense())
    assert found.promise == "column"


def test_one_worker_without_links() -> None:
    assert from_edges([], 1)[0].dense() == [[1.0]]


@pytest.mark.parametrize(
    ("edges", "n", "words"),
    [
        ([[0, 1], [1]], None, "link 1 is [1]; a link is a pair of workers [i, j]"),
        ([[0, 1], 3], None, "link 1 is 3; a link is a pair of workers [i, j]"),
        ([[0, 1.5]], None, "link 0 names the worker 1.5; workers are whole numbers counted from 0"),
        ([[0, -1]], None, "link 0 names the worker -1; workers are whole numbers counted from 0"),
        ([[0, True]], None, "link 0 names the worker True"),
        ([[0, 1], [1, 4]], 3, "link 1 names the worker 4, but there are only the workers 0 to 2"),
        ([[0, 1], [1, 1]], None, "link 1 joins worker 1 to itself; leave it out"),
        ([], None, "a list without links says nothing of the number of workers: give n"),
        ([[0, 1]], 0, "n must be a whole number from 1 to 100000000, got 0"),
        ([[0, 1]], "3", "n must be a whole number from 1 to 100000000, got '3'"),
        ([[0, 1]], 3, "topology 'edges': worker 2 is isolated"),
        ([[0, 1], [2, 3]], None, "topology 'edges' is disconnected"),
    ],
)
def test_links_that_cannot_be_are_refused(edges: Any, n: Any, words: str) -> None:
    with pytest.raises(MixingError, match=re.escape(words)):
        from_edges(edges, n)


def test_graphs_that_cannot_be_are_refused() -> None:
    loop = nx.DiGraph([(0, 1), (1, 0), (1, 1)])
    with pytest.raises(MixingError, match="worker 1 has a link to itself"):
        from_graph(loop)
    with pytest.raises(MixingError, match="weights 'metropolis' cannot be had on a directed graph"):
        from_graph(nx.DiGraph([(0, 1), (1, 0)]), "metropolis")
    with pytest.raises(MixingError, match="the option 'cost' cannot be had on a directed graph"):
        from_graph(nx.DiGraph([(0, 1), (1, 0)]), cost=3)
    with pytest.raises(MixingError, match="'graph' is disconnected over its period of 1"):
        from_graph(nx.DiGraph([(0, 1)]))
    with pytest.raises(MixingError, match="got one without nodes"):
        from_graph(nx.Graph())


def written(folder: Path, name: str, content: Any) -> Path:
    file = folder / name
    if isinstance(content, np.ndarray):
        np.save(file, content) if file.suffix == ".npy" else np.savetxt(file, content, delimiter=",", fmt="%.17g")
    else:
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


@pytest.mark.parametrize(
    ("name", "content", "rounds"),
    [
        ("one.npy", RING, [RING]),
        ("one.npy", np.eye(1, dtype=int), [np.eye(1)]),
        ("period.npy", np.array(PAIRS), PAIRS),
        ("one.csv", RING, [RING]),
        ("spaces.csv", "\ufeff 0.5, 0.5\n\n0.5 ,0.5\n", [np.full((2, 2), 0.5)]),
        ("ONE.CSV", RING, [RING]),
        ("one.json", RING.tolist(), [RING]),
        ("list.json", [m.tolist() for m in PAIRS], PAIRS),
        ("keyed.json", {"matrix": RING.tolist()}, [RING]),
        ("keyed.json", {"matrices": [m.tolist() for m in PAIRS]}, PAIRS),
        ("edges.json", {"edges": [[0, 1], [1, 2], [2, 3], [3, 0]]}, [RING]),
        ("edges.json", {"edges": [[0, 1]], "n": 2, "directed": False}, [np.full((2, 2), 0.5)]),
    ],
)
def test_a_file_gives_back_what_was_written(tmp_path: Path, name: str, content: Any, rounds: list[np.ndarray]) -> None:
    found = from_file(written(tmp_path, name, content))
    assert found.period == len(rounds)
    for w, expected in zip(found, rounds, strict=True):
        np.testing.assert_array_equal(w.dense(), expected)
    assert found.name == Path(name).stem
    assert from_file(str(tmp_path / name)).size == found.size


def test_a_report_with_weights_can_be_read_again(tmp_path: Path) -> None:
    base = topology("one-peer-exponential", 8)
    report = {"name": "x", "n": 8, "period": 3, "rounds": [[list(e) for e in w.triplets()] for w in base]}
    found = from_file(written(tmp_path, "report.json", report))
    for w, expected in zip(found, base, strict=True):
        np.testing.assert_array_equal(w.dense(), expected.dense())


def test_promises_and_options_of_a_file(tmp_path: Path) -> None:
    lazy = from_file(written(tmp_path, "e.json", {"edges": [[0, 1], [1, 2]]}), rule="lazy")
    np.testing.assert_array_equal(lazy[0].dense(), weigh(nx.path_graph(3), "lazy").dense())
    directed = from_file(written(tmp_path, "d.json", {"edges": [[0, 1], [1, 0]], "directed": True}))
    assert directed.promise == "column"
    column = np.array([[0.5, 0.5, 0.5], [0.5, 0.0, 0.25], [0.0, 0.5, 0.25]])
    assert from_file(written(tmp_path, "c.csv", column), promise="column").promise == "column"
    assert from_file(written(tmp_path, "r.csv", column.T), promise="row").promise == "row"
    signed = np.array([[1.2, -0.2], [-0.2, 1.2]])
    assert from_file(written(tmp_path, "s.npy", signed), signed=True)[0].signed
    assert from_file(written(tmp_path, "w.npy", RING), workers_per_node=2).workers_per_node == 2


REFUSED: list[tuple[str, Any, str]] = [
    ("a.txt", "1", "cannot read 'a.txt' by its suffix '.txt'; known: .csv, .json, .npy"),
    ("a.jsn", "1", "cannot read 'a.jsn' by its suffix '.jsn'; did you mean '.json'?"),
    ("a.csv", "0.5,0.5\n0.5,0.5,0\n", "a.csv: line 2 has 3 numbers, but line 1 has 2"),
    ("a.csv", "0.5,0.5\n\n0.5,half\n", "a.csv: line 3, column 2: 'half' is not a number"),
    ("a.csv", "a,b\n0.5,0.5\n", "a.csv: line 1, column 1: 'a' is not a number"),
    ("a.csv", "0.5,\n0.5,0.5\n", "a.csv: line 1, column 2: '' is not a number"),
    ("a.csv", "\n", "a.csv: the file is empty; expected one row of n numbers per worker"),
    ("a.csv", "0.5,0.5\n", "a.csv: round 0: a mixing matrix must be square with at least one worker, got shape (1, 2)"),
    ("a.csv", "nan,1\n1,0\n", "a.csv: round 0: row 0 has the weight nan from worker 0: not a number"),
    ("a.csv", "0.5,0.501\n0.5,0.5\n", "a.csv: round 0: not row stochastic: row 0 sums to 1.001, expected 1"),
    ("a.npy", "not an array", "a.npy: not a readable array of numbers"),
    ("a.npy", np.array([["a"]]), "a.npy: expected an array of real numbers, got dtype <U1"),
    ("a.npy", np.eye(2) * (1 + 0j), "a.npy: expected an array of real numbers, got dtype complex128"),
    ("a.npy", np.array([{}], dtype=object), "a.npy: not a readable array of numbers"),
    ("a.npy", np.ones(3), "a.npy: expected one n x n matrix or a list of them, got an array of shape (3,)"),
    ("a.npy", np.stack([PAIRS[0], 1.001 * PAIRS[1]]), "a.npy: round 1: not row stochastic: row 0 sums to 1.001"),
    ("a.npy", np.stack([PAIRS[0], PAIRS[0]]), "a.npy: topology 'a' is disconnected over its period of 2"),
    ("a.json", "{", "a.json: not valid JSON: Expecting property name enclosed in double quotes: line 1 column 2"),
    ("a.json", [[0.5, 0.5], [0.5]], "a.json: row 1 has 1 numbers, but row 0 has 2"),
    ("a.json", [[0.5, 0.5], [0.5, "half"]], "a.json: row 1, column 1: 'half' is not a number"),
    ("a.json", [[0.5, True], [0.5, 0.5]], "a.json: row 0, column 1: True is not a number"),
    ("a.json", [[0.5, None], [0.5, 0.5]], "a.json: row 0, column 1: None is not a number"),
    ("a.json", [[0.5, 0.5], 3], "a.json: row 1: expected a list of numbers, got 3"),
    ("a.json", [[[1.0]], [[1.0, 2.0], [1.0]]], "a.json: matrix 1, row 1 has 1 numbers, but row 0 has 2"),
    ("a.json", [[[1.0]], 7], "a.json: matrix 1, expected a list of rows, got 7"),
    ("a.json", [[[1.0]], [[0.5, 0.5], [0.5, 0.5]]], "topology 'a': round 1 has 2 workers, but the topology has 1"),
    ("a.json", [1, 2], "a.json: expected a matrix (a list of rows), a list of matrices, or an object"),
    ("a.json", 5, "a.json: expected a matrix (a list of rows)"),
    ("a.json", {"matrx": []}, "edges, rounds; this one has the key 'matrx'; did you mean"),
    ("a.json", {}, "exactly one of matrix, matrices, edges, rounds; this one is empty"),
    ("a.json", {"matrix": [], "edges": []}, "edges, rounds; this one has matrix and edges"),
    ("a.json", {"matrix": 3}, "a.json: 'matrix' must be a list, got 3"),
    ("a.json", {"matrices": []}, "a.json: a topology needs at least one matrix, got an empty list"),
    ("a.json", {"edges": [[0, 1]], "direted": True}, "'direted' does not go with 'edges'; did you mean 'directed'?"),
    ("a.json", {"matrix": [[1]], "n": 1}, "a.json: the key 'n' does not go with 'matrix'"),
    ("a.json", {"edges": [[0, 1]], "directed": "yes"}, "a.json: 'directed' must be true or false, got 'yes'"),
    ("a.json", {"edges": [[0, 0]]}, "a.json: link 0 joins worker 0 to itself"),
    ("a.json", {"rounds": [[[0, 0, 1]]]}, "a.json: 'rounds' need the number of workers 'n', got None"),
    ("a.json", {"n": 1, "rounds": [5]}, "a.json: round 0 is 5; expected a list of [receiver, sender, weight]"),
    ("a.json", {"n": 1, "rounds": [[[0, 0]]]}, "round 0, entry 0 is [0, 0]; expected [receiver, sender, weight]"),
    ("a.json", {"n": 1, "rounds": [[[0, 0.5, 1]]]}, "entry 0 is [0, 0.5, 1]; expected [receiver, sender, weight]"),
    ("a.json", {"n": 1, "rounds": [[[0, 1, 1]]]}, "entry 0 is [0, 1, 1], but there are only the workers 0 to 0"),
    ("a.json", {"n": 1, "rounds": [[[0, 0, "1"]]]}, "entry 0 is [0, 0, '1']: '1' is not a number"),
    ("a.json", {"n": 2, "rounds": [[[0, 0, 1]]]}, "a.json: round 0: not row stochastic: row 1 sums to 0, expected 1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "words"), REFUSED)
def test_a_file_that_cannot_be_is_refused(tmp_path: Path, name: str, content: Any, words: str) -> None:
    with pytest.raises(MixingError, match=re.escape(words)):
        from_file(written(tmp_path, name, content))


def test_a_missing_file_points_at_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(MixingError, match=r"there is no file '.*matrix.csv'$"):
        from_file(tmp_path / "matrix.csv")
    written(tmp_path, "matrices.csv", RING)
    with pytest.raises(MixingError, match=r"there is no file '.*matrix.csv'; did you mean 'matrices.csv'\?"):
        from_file(tmp_path / "matrix.csv")
    with pytest.raises(MixingError, match="there is no file"):
        from_file(tmp_path / "nowhere" / "matrix.csv")


def test_weights_are_for_links_only(tmp_path: Path) -> None:
    with pytest.raises(MixingError, match="weights 'lazy' are for a file of edges"):
        from_file(written(tmp_path, "a.npy", RING), rule="lazy")
