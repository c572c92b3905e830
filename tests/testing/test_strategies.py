"""The public strategies: what they promise holds, failures shrink to few workers, and a seed replays."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import Phase, find, given, seed, settings
from hypothesis import strategies as st

import dissensus.testing as door
from dissensus.testing import (
    check_mixing_matrix,
    digraphs,
    gammas,
    graphs,
    mixing_matrices,
    push_sum_matrices,
    schedules,
    seeds,
    topologies,
)
from dissensus.theory import MixingMatrix, Topology, from_matrices

SIZES = {"min_size": 2, "max_size": 5}
SIZED: dict[str, Callable[..., st.SearchStrategy[Any]]] = {
    "graphs": graphs,
    "digraphs": digraphs,
    "push_sum_matrices": push_sum_matrices,
    "mixing_matrices": mixing_matrices,
    "schedules": schedules,
    "topologies": topologies,
}
quick = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def size_of(value: Any) -> int:
    if isinstance(value, nx.Graph):
        return len(value)
    return value[0].size if isinstance(value, list) else value.size


def test_every_sized_strategy_is_in_the_table():
    public = {
        k
        for k in door.__all__
        if inspect.isfunction(f := getattr(door, k)) and "min_size" in inspect.signature(f).parameters
    }
    assert public == set(SIZED)


@quick
@given(st.data(), st.sampled_from(sorted(SIZED)))
def test_sizes_are_respected(data: st.DataObject, name: str):
    assert 2 <= size_of(data.draw(SIZED[name](**SIZES))) <= 5


@quick
@given(graphs())
def test_graphs_are_connected_and_numbered(g: nx.Graph):
    assert nx.is_connected(g)
    assert sorted(g) == list(range(len(g)))
    assert nx.number_of_selfloops(g) == 0


@quick
@given(digraphs())
def test_digraphs_are_strongly_connected_and_column_stochastic(g: nx.DiGraph):
    assert nx.is_strongly_connected(g)
    for j in g:
        assert sum(w for _, _, w in g.out_edges(j, data="weight")) == pytest.approx(1, abs=1e-14)
        assert g.has_edge(j, j)


@quick
@given(push_sum_matrices())
def test_push_sum_matrices_obey_the_laws(w: MixingMatrix):
    assert w.promise == "column"
    check_mixing_matrix(w)
    from_matrices(w)  # refuses what is not strongly connected


@quick
@given(mixing_matrices())
def test_mixing_matrices_obey_the_laws(w: MixingMatrix):
    assert w.promise == "doubly"
    check_mixing_matrix(w)


@quick
@given(mixing_matrices(symmetric=True), mixing_matrices(symmetric=False))
def test_symmetric_or_certainly_not(yes: MixingMatrix, no: MixingMatrix):
    assert yes.is_symmetric
    assert not no.is_symmetric


@quick
@given(mixing_matrices(sparse=False), mixing_matrices(symmetric=False, sparse=True))
def test_sparse_or_all_positive(full: MixingMatrix, thin: MixingMatrix):
    assert full.dense().min() > 0
    assert np.count_nonzero(thin.dense(), axis=1).max() <= 4


def test_asymmetry_needs_three_workers():
    with pytest.raises(ValueError, match="not symmetric needs 3 workers, but max_size is 2"):
        find(mixing_matrices(max_size=2, symmetric=False), bool)


@quick
@given(schedules(min_period=2, max_period=3))
def test_schedules_are_connected_together(rounds: list[MixingMatrix]):
    assert 2 <= len(rounds) <= 3
    from_matrices(rounds)
    for w in rounds:
        check_mixing_matrix(w)


@quick
@given(gammas(), gammas(0.25, 0.5), seeds())
def test_gammas_and_seeds_stay_in_their_ranges(gamma: float, some: float, number: int):
    assert 0 <= gamma <= 1
    assert 0.25 <= some <= 0.5
    assert 0 <= number < 2**32


def test_both_ends_of_gamma_are_drawn():
    assert find(gammas(), lambda g: True) == 1.0
    assert find(gammas(), lambda g: g == 0.0) == 0.0


FAULTS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], bool], int]] = {
    "a graph with a cycle": (graphs(), lambda g: g.number_of_edges() >= len(g), 3),
    "a digraph with a one-way link": (digraphs(), lambda g: any(not g.has_edge(i, j) for j, i in g.edges), 3),
    "a matrix that is not symmetric": (mixing_matrices(), lambda w: not w.is_symmetric, 3),
    "a matrix that is not row stochastic": (push_sum_matrices(), lambda w: not w.is_row_stochastic, 3),
    "a schedule whose first round is not all": (schedules(), lambda s: s[0].messages < sum(w.messages for w in s), 2),
    "a topology with any message": (topologies(), lambda t: any(t[k].messages for k in range(4)), 2),
    "a topology that is directed": (topologies(), lambda t: not t.is_symmetric, 3),
    "a topology that changes": (topologies(), lambda t: t.period != 1, 3),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_shrinks_to_few_workers(fault: str):
    strategy, failing, fewest = FAULTS[fault]
    assert (
        size_of(find(strategy, failing, settings=settings(max_examples=500, derandomize=True, database=None))) <= fewest
    )


def test_a_failing_property_reports_at_most_three_workers():
    seen: list[int] = []

    @settings(max_examples=300, derandomize=True, database=None, phases=[Phase.generate, Phase.shrink], deadline=None)
    @given(topologies(min_size=1, max_size=16))
    def wrongly_believed(t: Topology):
        seen.append(t.size)
        assert t[0].dense()[0, 0] == 1.0, "nobody ever mixes"

    with pytest.raises(AssertionError, match="nobody ever mixes"):
        wrongly_believed()
    assert seen[-1] <= 3


@pytest.mark.parametrize("name", sorted(SIZED))
def test_a_seed_replays(name: str):
    def run() -> list[str]:
        drawn: list[str] = []

        @seed(20260214)
        @settings(max_examples=15, database=None, phases=[Phase.generate], deadline=None)
        @given(SIZED[name]())
        def collect(value: Any):
            drawn.append(fingerprint(value))

        collect()
        return drawn

    assert run() == run()


def fingerprint(value: Any) -> str:
    if isinstance(value, nx.Graph):
        return str(sorted(value.edges(data=True)))
    if isinstance(value, Topology):
        value = [value[t] for t in range(value.period or 3)]
    rounds: list[MixingMatrix] = value if isinstance(value, list) else [value]
    return str([w.triplets() for w in rounds])


def test_names_and_kinds_restrict_what_is_drawn():
    some = find(topologies(kinds=("schedule",)), lambda t: True)
    assert some.name == "drawn-schedule"


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="unknown topology 'rign'"):
        find(topologies(names=["rign"]), bool)


def test_without_hypothesis_the_door_says_what_to_install():
    code = "import sys; sys.modules['hypothesis'] = None; import dissensus.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: dissensus.testing needs hypothesis: pip install 'dissensus[testing]'" in done.stderr


def test_the_folder_itself_is_not_a_package_of_that_name(monkeypatch: pytest.MonkeyPatch):
    import importlib.util

    found = importlib.util.spec_from_file_location("testing", door.__file__)
    assert found is not None
    assert found.loader is not None
    with pytest.raises(ImportError, match=r"import dissensus\.testing, not testing"):
        found.loader.exec_module(importlib.util.module_from_spec(found))
