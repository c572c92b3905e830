"""Every figure of a report equals its recomputation by plain dense numpy, for built-ins and for custom topologies."""

import json
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dissensus.testing import check_report, dense_report, topologies
from dissensus.testing.dense_topologies import dense_metropolis
from dissensus.theory import MixingError, Topology, from_matrices, topology
from dissensus.theory.analysis import report
from dissensus.theory.registry import catalogue as registered

SIZES = [1, 2, 3, 5, 7, 8, 12, 16, 33]
MEMORY = 0.9


def petersen() -> Topology:
    return from_matrices(dense_metropolis(10, set(nx.petersen_graph().edges)), name="petersen")


def directed_ring(n: int) -> Topology:
    return from_matrices((np.eye(n) + np.roll(np.eye(n), 1, axis=0)) / 2, name="directed-ring")


def three_rounds_on_six() -> Topology:
    pairs = [{(0, 1), (2, 3), (4, 5)}, {(1, 2), (3, 4)}, {(0, 5), (1, 4), (2, 3)}]
    return from_matrices([dense_metropolis(6, p) for p in pairs], name="three-rounds")


def de_bruijn(d: int) -> Topology:
    """Worker i averages workers 2i and 2i + 1 mod 2^d: static and directed, and yet exact after d steps."""
    n = 2**d
    w = np.zeros((n, n))
    for i in range(n):
        w[i, 2 * i % n] += 0.5
        w[i, (2 * i + 1) % n] += 0.5
    return from_matrices(w, name="de-bruijn")


def push_sum() -> Topology:
    w = np.array([[1 / 3, 0, 1 / 2], [1 / 3, 1 / 2, 0], [1 / 3, 1 / 2, 1 / 2]])
    return from_matrices(w, name="push-sum", promise="column")


def row_only() -> Topology:
    w = np.array([[1 / 2, 1 / 2, 0], [1 / 4, 1 / 2, 1 / 4], [0, 1 / 2, 1 / 2]])
    return from_matrices(w, name="row-only", promise="row")


def exact_late() -> Topology:
    """A round that does not help, then two that are exact together: three steps from any phase do."""
    ring = dense_metropolis(4, {(0, 1), (1, 2), (2, 3), (3, 0)})
    return from_matrices([ring, dense_metropolis(4, {(0, 1), (2, 3)}), dense_metropolis(4, {(1, 2), (0, 3)})])


CUSTOM = {
    "petersen": petersen(),
    **{f"directed ring {n}": directed_ring(n) for n in (1, 2, 3, 5, 7, 12, 33)},
    "three rounds on six": three_rounds_on_six(),
    "de Bruijn 4": de_bruijn(2),
    "de Bruijn 8": de_bruijn(3),
    "push-sum": push_sum(),
    "row stochastic": row_only(),
    "exact late": exact_late(),
    "silence for a round": from_matrices([np.eye(3), np.full((3, 3), 1 / 3)], name="silence"),
    "nobody speaks": from_matrices(np.eye(3), name="identity", may_disconnect=True),
    "two groups": from_matrices(dense_metropolis(5, {(0, 1), (2, 3), (3, 4)}), name="split", may_disconnect=True),
    "negative weights": from_matrices(
        np.array([[1.2, -0.1, -0.1], [-0.1, 1.2, -0.1], [-0.1, -0.1, 1.2]]) * 0.5 + 1 / 6, name="signed", signed=True
    ),
    "permutation": from_matrices(np.roll(np.eye(5), 2, axis=0), name="permutation"),
    "adapted aer": topology("aer", 8).adapted(0.5),
    "adapted ring": topology("ring", 9).adapted(0.1),
    "gamma zero": topology("ring", 5).adapted(0.0),
    "gamma one": topology("one-peer-hypercube", 8).adapted(1.0),
}


def buildable() -> list[Topology]:
    found = []
    for name in registered():
        for n in SIZES:
            try:
                built = topology(name, n)
            except MixingError:
                continue
            if built.period is not None:
                found.append(built)
    return found


def named(t: Topology) -> str:
    return f"{t.name}-{t.size}"


@pytest.mark.parametrize("built", buildable(), ids=named)
def test_built_ins(built: Topology):
    check_report(built, memory=MEMORY)


@pytest.mark.parametrize("name", CUSTOM)
@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9, 0.99])
def test_custom(name: str, memory: float):
    check_report(CUSTOM[name], memory=memory)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(topologies(max_size=10), st.sampled_from([0.0, 0.3, 0.9]))
def test_any(drawn: Topology, memory: float):
    if drawn.period is not None:
        check_report(drawn, memory=memory)


@pytest.mark.parametrize("name", CUSTOM)
def test_figures_survive_json(name: str):
    figures = report(CUSTOM[name]).to_dict()
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures


KNOWN: dict[str, dict[str, Any]] = {
    "petersen": {
        "contraction": 1 / 2,
        "spectral_gap": 1 / 2,
        "diameter": 2,
        "messages_per_step": 30,
        "symmetric": True,
    },
    "de Bruijn 8": {"exact_after": 3, "exact_phases": [0], "symmetric": False, "doubly_stochastic": True},
    "directed ring 7": {"contraction": np.cos(np.pi / 7), "diameter": 6, "messages_per_step": 7},
    "directed ring 1": {
        "contraction": 0.0,
        "spectral_gap": 1.0,
        "exact_after": 0,
        "messages_per_step": 0,
        "diameter": 0,
    },
    "nobody speaks": {"connected": False, "contraction": 1.0, "spectral_gap": 0.0, "exact_after": None},
    "two groups": {"connected": False, "contraction": 1.0, "spectral_gap": 0.0, "diameter": None},
    "push-sum": {"row_stochastic": False, "column_stochastic": True, "doubly_stochastic": False},
    "exact late": {"exact_after": 3, "exact_phases": [0, 1, 2]},
    "silence for a round": {"exact_after": 2, "exact_phases": [0, 1], "messages_per_step": 3},
}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, of in KNOWN.items() for key in of])
def test_figures_known_by_hand(name: str, key: str):
    for figures in (report(CUSTOM[name]).to_dict(), dense_report(CUSTOM[name])):
        assert figures[key] == pytest.approx(KNOWN[name][key], abs=1e-12), figures[key]


GOLDEN = {0.0: 3.0, 0.5: 3.72, 0.9: 6.601, 0.99: 13.119, 0.999: 15.634}


@pytest.mark.parametrize("memory", GOLDEN)
def test_effective_neighbors_of_the_ring_of_sixteen(memory: float):
    ring = topology("ring", 16)
    assert report(ring, memory=memory).to_dict()["effective_neighbors"] == pytest.approx(GOLDEN[memory], abs=6e-4)
    assert dense_report(ring, memory)["effective_neighbors"] == pytest.approx(GOLDEN[memory], abs=6e-4)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("memory", [0.0, 0.5, 0.99])
def test_everybody_is_a_neighbour_in_the_complete_graph(n: int, memory: float):
    figures = report(topology("complete", n), memory=memory).to_dict()
    assert figures["effective_neighbors"] == pytest.approx(n, rel=1e-12)


@pytest.mark.parametrize("memory", [-0.1, 1.0, 1.5, float("nan")])
def test_memory_outside_its_range_is_refused(memory: float):
    with pytest.raises(MixingError, match=r"memory"):
        report(topology("ring", 5), memory=memory)


@pytest.mark.parametrize(("n", "residual"), [(6, 0.2165), (12, 0.2091)])
def test_one_peer_exponential_is_not_exact_off_powers_of_two(n: int, residual: float):
    figures = report(topology("one-peer-exponential", n)).to_dict()
    assert figures["contraction"] == pytest.approx(residual, abs=5e-5)
    assert figures["exact_after"] is None
