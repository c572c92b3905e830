"""Cases that once came out wrong: unresolved eigenvalue pairs, exactness after long gossip, files read back."""

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp

from dissensus.theory import (
    MixingError,
    contraction,
    from_file,
    from_graph,
    from_matrices,
    report,
    spectral_gap,
    topology,
)
from dissensus.theory.decomposition import permutation_schedule


@pytest.mark.parametrize("seed", range(8))
def test_two_eigenvalues_that_lanczos_has_not_parted(seed: int) -> None:
    """Three expanders in a triangle: the second and third eigenvalue are close, and the fourth is far."""
    graph = nx.disjoint_union_all([nx.random_regular_graph(8, 250, seed=10 * seed + k) for k in range(3)])
    graph.add_edges_from([(0, 250), (251, 500), (501, 1)])
    built = from_graph(graph)
    gap = spectral_gap(built)
    values = np.linalg.eigvalsh(built[0].dense())
    exact = 1 - max(values[-2], -values[0])
    assert abs(gap.value - exact) <= gap.error + 1e-13
    assert gap.error <= 1e-6 * gap.value


def test_signed_weights_whose_eigenvalues_exceed_that_of_consensus() -> None:
    laplacian = nx.laplacian_matrix(nx.path_graph(5)).toarray().astype(float)
    w = np.eye(5) + 0.1 * laplacian
    built = from_matrices(w, signed=True)
    assert contraction(built).value == pytest.approx(np.linalg.norm(w - 1 / 5, 2), abs=1e-13)


@pytest.mark.parametrize("quiet", [15, 63, 99])
def test_gossip_with_an_average_now_and_then_is_exact_when_it_comes(quiet: int) -> None:
    ring, complete = topology("ring", 8)[0], topology("complete", 8)[0]
    d = report(from_matrices([ring] * quiet + [complete])).to_dict()
    assert d["exact_after"] == quiet + 1
    assert d["exact_phases"] == list(range(quiet + 1))


def test_fast_gossip_that_creeps_is_never_exact() -> None:
    d = report(from_matrices([topology("complete", 6)[0].adapted(0.999), topology("ring", 6)[0]])).to_dict()
    assert d["exact_after"] is None


def test_what_sums_are_off_by_is_part_of_the_error() -> None:
    n, off = 600, 5e-11
    i = np.arange(n)
    base = sp.csr_array(
        (np.r_[np.full(n, 0.5 + off), np.full(n, 0.5)], (np.r_[i, i], np.r_[i, (i - 1) % n])), shape=(n, n)
    )
    built = from_matrices([base, base.T])
    exact = np.linalg.norm((base.T @ base).toarray() - 1 / n, 2)
    found = contraction(built)
    assert abs(found.value - exact) <= found.error


def test_a_mean_of_permutations_that_hardly_moves() -> None:
    built = permutation_schedule(topology("ring", 12)[0].adapted(1e-7))
    assert built.moments is not None
    np.testing.assert_allclose(built.moments.mean.toarray(), topology("ring", 12)[0].adapted(1e-7).dense(), atol=1e-15)


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_rounds_read_back_keep_their_machines(tmp_path: Path) -> None:
    aer = topology("aer", 16, workers_per_node=4)
    content = report(aer).to_dict() | {"rounds": [w.triplets() for w in aer]}
    back = from_file(written(tmp_path / "aer.json", json.dumps(content)))
    assert report(back).messages_inter_node == report(aer).messages_inter_node == 32
    assert back.workers_per_node == 4


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "0,5;é".encode("latin-1"), "cannot be read"),
        ("a.csv", "1_0", "'1_0' is not a number"),
        ("a.csv", "x" * 200_000, "cannot be read|is not a number"),
        ("a.json", "[[" + "9" * 400 + "]]", "cannot be read"),
        ("a.json", "[[" + "9" * 5000 + "]]", "cannot be read|not valid JSON"),
        ("a.json", "[" * 100_000, "cannot be read|not valid JSON"),
        ("a.json", '{"edges": [[0, 99999999999]]}', "workers at most"),
        ("a.json", '{"edges": [], "n": 99999999999}', "from 1 to 100000000"),
        ("a.json", '{"rounds": [[]], "n": 99999999999}', "need the number of workers"),
        ("a.json", '{"matrix": [[1]], "matrix": [[1]]}', "'matrix' is given twice"),
        ("a.json", '{"rounds": [[[0, 0, 1.0]]], "n": 1, "period": null}', "drawn anew at every step, not a period"),
    ],
)
def test_strange_files_are_refused_in_a_sentence(name: str, content: str | bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(MixingError, match=says):
        from_file(written(tmp_path / name, content))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(MixingError, match="is a folder"):
        from_file(tmp_path / "d.csv")


def test_sizes_beyond_all_bounds_are_refused() -> None:
    with pytest.raises(MixingError, match="n must be at most 100000000, got 99999999999"):
        topology("ring", 99999999999)


@pytest.mark.parametrize("budget", [5e-324, 1e-300, 1e-11, 9e-7])
def test_a_budget_without_digits_is_refused(budget: float) -> None:
    with pytest.raises(MixingError, match="from 1e-06 to 1"):
        topology("matcha", 9, graph="grid", budget=budget)


def test_the_smallest_budget_still_has_a_plan() -> None:
    d = report(topology("matcha", 9, graph="grid", budget=1e-6)).to_dict()
    assert 0 < 1 - d["contraction"] < 1e-5
