"""Every registered topology against its dense twin, or, where it is drawn at random, against the laws of its family."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import networkx as nx
import numpy as np
import pytest

from dissensus.testing import check_rounds, check_topology, dense_rounds
from dissensus.testing.dense_topologies import base_k_length, dense_matching, dense_metropolis, dense_names
from dissensus.theory import MixingError, Topology, topology
from dissensus.theory.registry import catalogue

SIZES = [*range(1, 34), 36, 40, 48, 60, 64]
SPECIFIED = """
complete ring path star grid torus hypercube exponential one-peer-exponential one-peer-hypercube one-peer-ring aer
ring-lattice erdos-renyi random-regular geometric base-k equitopo directed-ring hierarchical random-gossip matcha
"""


def power_of_two(n: int) -> bool:
    return bin(n).count("1") == 1


WORKS: dict[str, Callable[[int], bool]] = {
    "hypercube": power_of_two,
    "one-peer-hypercube": power_of_two,
    "aer": power_of_two,
    "one-peer-ring": lambda n: n == 1 or n % 2 == 0,
}


def works(name: str, n: int) -> bool:
    return WORKS.get(name, lambda n: True)(n)


CASES = [(name, n) for name in dense_names() for n in SIZES if works(name, n)]
REFUSED = [(name, n) for name in WORKS for n in SIZES if not works(name, n)]


@pytest.mark.parametrize(("name", "n"), CASES)
def test_rounds_equal_the_dense_ones(name: str, n: int):
    built = topology(name, n)
    check_rounds(built, dense_rounds(name, n))
    assert built.promise == "doubly"


def built(name: str, n: int) -> bool:
    try:
        topology(name, n)
    except MixingError:
        return False
    return True


@pytest.mark.parametrize(("name", "n"), REFUSED)
def test_a_refusal_names_the_nearest_that_work(name: str, n: int):
    with pytest.raises(
        MixingError, match=rf"{name} needs .*, got {n}; the nearest that works? (is|are) \d+"
    ) as refused:
        topology(name, n)
    named = [int(m) for m in re.findall(r"\d+", str(refused.value).split("nearest")[1])]
    assert all(built(name, m) for m in named)
    nearest = min(abs(m - n) for m in named)
    assert not any(built(name, m) for m in range(max(1, n - nearest + 1), n + nearest))


PARAMETERS: list[tuple[str, int, dict[str, Any]]] = [
    *[(name, n, {"rule": rule}) for name in ("ring", "path", "star", "grid", "torus", "ring-lattice")
      for rule in ("metropolis", "lazy", "max-degree", "best-constant") for n in (1, 2, 3, 5, 8, 12)],
    *[("hypercube", n, {"rule": rule}) for rule in ("lazy", "uniform", "best-constant") for n in (1, 2, 4, 16)],
    *[("ring", n, {"rule": "uniform"}) for n in (1, 2, 3, 7)],
    *[(name, 24, {"rows": rows}) for name in ("grid", "torus") for rows in (1, 2, 3, 4, 6, 8, 12, 24)],
    *[(name, 30, {"cols": cols}) for name in ("grid", "torus") for cols in (1, 2, 5, 15, 30)],
    *[("torus", 12, {"rows": 3, "cols": 4}), ("grid", 7, {"rows": 7, "cols": 1})],
    *[("ring-lattice", n, {"k": k}) for n in (7, 8, 13) for k in range(2, n, 2)],
    *[("aer", nodes * local, {"workers_per_node": local}) for nodes in (1, 2, 4, 8, 16) for local in (1, 2, 3, 4)],
    *[("hierarchical", 12, {"workers_per_node": local}) for local in (1, 2, 3, 4, 6, 12)],
    *[("hierarchical", 12, {"workers_per_node": 3, "across": across, "inside_steps": steps})
      for across in ("ring", "complete", "star", "one-peer-exponential", "aer") for steps in (1, 2)],
]  # fmt: skip


@pytest.mark.parametrize(("name", "n", "parameters"), PARAMETERS, ids=str)
def test_parameters_equal_the_dense_ones(name: str, n: int, parameters: dict[str, Any]):
    check_rounds(topology(name, n, **parameters), dense_rounds(name, n, **parameters))


@pytest.mark.parametrize("name", dense_names())
@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
def test_the_dense_ones_obey_the_laws(name: str, n: int):
    check_topology(topology(name, n))


def dense(built: Topology, t: int = 0) -> np.ndarray:
    return built[t].dense()


def is_metropolis(w: np.ndarray) -> bool:
    n = len(w)
    links = {(i, j) for i in range(n) for j in range(n) if i != j and w[i, j] > 0}
    return bool(np.abs(w - dense_metropolis(n, links)).max() <= 1e-14)


def connected(w: np.ndarray) -> bool:
    return nx.is_connected(nx.from_numpy_array(w))


def judge_erdos_renyi(n: int) -> None:
    some = dense(topology("erdos-renyi", n, seed=7))
    assert is_metropolis(some)
    assert connected(some)
    check_rounds(topology("erdos-renyi", n, p=1.0, seed=3), dense_rounds("complete", n))


def judge_geometric(n: int) -> None:
    some = dense(topology("geometric", n, seed=7))
    assert is_metropolis(some)
    assert connected(some)
    check_rounds(topology("geometric", n, radius=1.5, seed=3), dense_rounds("complete", n))


def judge_random_regular(n: int) -> None:
    some = topology("random-regular", n, seed=7)
    degrees = {len(some[0].neighbours(i)) for i in range(n)}
    assert degrees == {some.parameters["degree"]}
    assert is_metropolis(dense(some))
    check_rounds(topology("random-regular", n, degree=n - 1), dense_rounds("complete", n))


def judge_random_digraph(n: int) -> None:
    some = topology("random-digraph", n, seed=7)
    w, degree = dense(some), some.parameters["degree"]
    assert some.promise == "column"
    for j in range(n):
        assert w[j, j] > 0
        assert sorted(w[:, j][w[:, j] > 0]) == pytest.approx([1 / (degree + 1)] * (degree + 1), abs=1e-15)


def judge_base_k(n: int) -> None:
    for k in (1, 2, 3, 4):
        some = topology("base-k", n, k=k)
        assert some.period == max(base_k_length(n, k), 1), f"n={n}, k={k}: a schedule of other length"
        assert len(some.rounds) <= max(1, 2 * np.log(n) / np.log(k + 1) + 2)
        p = np.eye(n)
        for w in some:
            assert w.is_symmetric
            assert max(len(w.neighbours(i)) for i in range(n)) <= k
            p = w.dense() @ p
        assert np.abs(p - 1 / n).max() <= 1e-13, f"n={n}, k={k}: the product of the period is not exact"


def shift(n: int, u: int) -> np.ndarray:
    """Worker i + u hears worker i."""
    a = np.eye(n) / n
    for i in range(n):
        a[(i + u) % n, i] += (n - 1) / n
    return a


def matched_shift(n: int, u: int, first: int) -> np.ndarray:
    """From worker `first` on, whoever is still free pairs with the worker u further if that one is free too."""
    a, free = np.eye(n), set(range(n))
    for i in ((first + k) % n for k in range(n)):
        j = (i + u) % n
        if {i, j} <= free:
            a[i, i] = a[j, j] = 1 / n
            a[i, j] = a[j, i] = (n - 1) / n
            free -= {i, j}
    return a


def judge_equitopo(n: int) -> None:
    for directed in (True, False):
        static = topology("equitopo", n, directed=directed, seed=5)
        w, m = dense(static), static.parameters.get("M", 1)
        for i in range(n):
            np.testing.assert_allclose(w[i], np.roll(w[0], i), atol=1e-15)
        assert n == 1 or w[0, 0] == pytest.approx(1 / n, abs=1e-15)
        shares = w[0, 1:] * n * m * (1 if directed else 2) / max(n - 1, 1)
        np.testing.assert_allclose(shares, np.round(shares), atol=1e-12)
        judge_equitopo_dynamic(n, directed)


def judge_equitopo_dynamic(n: int, directed: bool) -> None:
    eta = 0.4
    some = topology("equitopo", n, kind="dynamic", directed=directed, eta=eta, seed=5)
    if n == 1:
        np.testing.assert_array_equal(dense(some), [[1.0]])
        return
    if n > (17 if directed else 9):
        return  # all possible rounds are enumerated below: n of them, or n² when undirected
    steps = range(1, n)
    basis = [shift(n, u) for u in steps] if directed else [matched_shift(n, u, s) for u in steps for s in range(n)]
    possible = [(1 - eta) * np.eye(n) + eta * a for a in basis]
    for t in range(12):
        assert min(np.abs(dense(some, t) - w).max() for w in possible) <= 1e-14
    assert some.moments is not None
    np.testing.assert_allclose(some.moments.mean.toarray(), np.mean(possible, axis=0), atol=1e-13)
    np.testing.assert_allclose(full(some.moments.square), np.mean([w.T @ w for w in possible], axis=0), atol=1e-13)
    if directed:
        values = np.sort(np.linalg.eigvalsh(full(some.moments.square)))
        np.testing.assert_allclose(values[:-1], (1 - eta) ** 2 + eta**2 * (1 - 2 / n), atol=1e-12)


def judge_random_gossip(n: int) -> None:
    pair = topology("random-gossip", n, seed=5)
    assert pair.moments is not None
    expected = np.eye(n) - (n * np.eye(n) - 1) / (n * (n - 1)) if n > 1 else np.eye(1)
    np.testing.assert_allclose(pair.moments.mean.toarray(), expected, atol=1e-13)
    np.testing.assert_allclose(full(pair.moments.square), expected, atol=1e-13)  # each round is a projection
    assert {pair[t].messages for t in range(20)} == ({2} if n > 1 else {0})
    links = dense(topology("ring", n)) > 0
    for mode in ("pair", "local", "maximal"):
        some = topology("random-gossip", n, graph="ring", mode=mode, seed=5)
        for t in range(20):
            w = dense(some, t)
            pairs = {(i, j) for i in range(n) for j in range(i) if w[i, j] > 0}
            np.testing.assert_array_equal(w, dense_matching(n, list(pairs)))
            assert links[w > 0].all(), "a pair that is no link"
            idle = [i for i in range(n) if w[i, i] == 1]
            if mode == "maximal":
                assert not any(links[i, j] for i in idle for j in idle if i != j), "two idle neighbours"


def judge_matcha(n: int) -> None:
    for budget in (0.3, 0.5, 1.0):
        some = topology("matcha", n, budget=budget, seed=5)
        assert some.moments is not None
        links = dense(topology("ring", n)) > 0
        weights = set()
        for t in range(20):
            w = dense(some, t)
            assert some[t].is_symmetric
            assert links[w != 0].all(), "a message that is no link"
            weights |= set(np.round(w[~np.eye(n, dtype=bool) & (w != 0)], 12))
        assert len(weights) <= 1, "every active link has one and the same weight"
        if n > 1:
            judge_matcha_weight(some, budget)


def judge_matcha_weight(some: Topology, budget: float) -> None:
    """With a step's mean Laplacian M: E[W] = I - a M and E[W'W] = I - 2 a M + a² S; a is best for these M and S."""
    n = some.size
    assert some.moments is not None
    drawn = next(w for w in (dense(some, t) for t in range(500)) if np.count_nonzero(w) > n)
    a = float(drawn[~np.eye(n, dtype=bool)].max())
    mean, square = (np.eye(n) - some.moments.mean.toarray()) / a, full(some.moments.square)
    second = (square - np.eye(n) + 2 * a * mean) / a**2
    share = {round(-x, 9) for x in mean[np.triu_indices(n, 1)] if x < 0}
    assert 0 < max(share) <= 1 + 1e-9

    def contraction(weight: float) -> float:
        return float(np.linalg.norm(np.eye(n) - 2 * weight * mean + weight**2 * second - 1 / n, 2))

    assert all(contraction(a) <= contraction(a * factor) + 1e-7 for factor in (0.9, 0.98, 1.02, 1.1))
    uniform = 2 * np.eye(n) - np.roll(np.eye(n), 1, axis=0) - np.roll(np.eye(n), -1, axis=0)
    if n > 2:  # the probabilities connect at least as well as equal ones within the same budget
        algebraic = np.linalg.eigvalsh(mean)[1]
        assert algebraic >= np.linalg.eigvalsh(budget * uniform)[1] - 1e-6


def full(m: Any) -> np.ndarray:
    return m if isinstance(m, np.ndarray) else m.toarray()


JUDGES: dict[str, Callable[[int], None]] = {
    "erdos-renyi": judge_erdos_renyi,
    "geometric": judge_geometric,
    "random-regular": judge_random_regular,
    "random-digraph": judge_random_digraph,
    "base-k": judge_base_k,
    "equitopo": judge_equitopo,
    "random-gossip": judge_random_gossip,
    "matcha": judge_matcha,
}


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.parametrize("n", [*range(1, 18), 25, 33, 64])
def test_drawn_families_are_what_they_say(name: str, n: int):
    JUDGES[name](n)
    check_topology(topology(name, n))


@cache
def seeded() -> list[str]:
    return [name for name, entry in catalogue().items() if "seed" in entry.parameters]


@pytest.mark.parametrize("name", seeded())
def test_a_seed_gives_the_same_rounds_and_another_seed_others(name: str):
    def rounds(seed: int) -> list[list[list[float]]]:
        some = topology(name, 12, seed=seed)
        return [dense(some, t).tolist() for t in range(some.period or 20)]

    assert rounds(3) == rounds(3)
    assert any(rounds(seed) != rounds(3) for seed in range(4, 10))


def test_every_registered_name_is_judged():
    judged = {*dense_names(), *JUDGES}
    assert set(catalogue()) - judged == set(), "registered, but neither dense rounds nor laws are known"
    assert judged - set(catalogue()) == set(), "judged, but not registered"


def test_every_specified_name_is_registered():
    assert set(SPECIFIED.split()) - set(catalogue()) == set()


GOLDEN_BASE_K = {1: {5: 5, 6: 4, 7: 5, 12: 5, 16: 4, 25: 9, 33: 11}, 2: {5: 3, 6: 2, 9: 2, 16: 4, 25: 6}}
GOLDEN_BASE_K |= {3: {16: 2, 25: 5}, 4: {5: 1, 25: 2}}


@pytest.mark.parametrize(("k", "n"), [(k, n) for k, of in GOLDEN_BASE_K.items() for n in of])
def test_base_k_lengths_are_those_of_the_published_construction(k: int, n: int):
    assert base_k_length(n, k) == GOLDEN_BASE_K[k][n]
    assert topology("base-k", n, k=k).period == GOLDEN_BASE_K[k][n]


@pytest.mark.parametrize(("n", "simple"), [(5, 5), (6, 5), (7, 5), (12, 7), (16, 4), (25, 9), (33, 11)])
def test_simple_base_lengths(n: int, simple: int):
    assert topology("base-k", n, k=1, simple=True).period == simple


DRAWN: list[tuple[str, int, dict[str, Any]]] = [
    *[("equitopo", n, {"kind": "dynamic", "directed": directed}) for n in (5, 6) for directed in (True, False)],
    *[("equitopo", 7, {"kind": "dynamic", "directed": directed, "M": 3}) for directed in (True, False)],
    *[
        ("random-gossip", n, {"graph": graph, "mode": mode})
        for n in (2, 5, 6)
        for graph in ("ring", "path", "star", "complete")
        for mode in ("pair", "local", "maximal")
    ],
    *[("matcha", n, {"graph": graph, "budget": 0.4}) for n in (2, 5) for graph in ("ring", "star")],
]


@pytest.mark.parametrize(("name", "n", "parameters"), DRAWN, ids=str)
def test_moments_are_those_of_the_rounds_that_are_drawn(name: str, n: int, parameters: dict[str, Any]):
    """The mean of 600 draws (fixed seed) lies within five of its own standard errors of each exact entry."""
    some = topology(name, n, seed=11, **parameters)
    assert some.moments is not None
    rounds = np.array([dense(some, t) for t in range(600)])
    for draws, exact in (
        (rounds, some.moments.mean.toarray()),
        (np.einsum("tki,tkj->tij", rounds, rounds), full(some.moments.square)),
    ):
        error = draws.std(axis=0) / np.sqrt(len(draws))
        assert (np.abs(draws.mean(axis=0) - exact) <= 5 * error + 1e-12).all()


@pytest.mark.parametrize("nodes", [2, 4, 8, 16])
@pytest.mark.parametrize("local", [1, 2, 4])
def test_aer_is_exact_from_even_slots_only(nodes: int, local: int):
    some = topology("aer", nodes * local, workers_per_node=local)
    assert some.period == 2 * int(np.log2(nodes))
    off = [np.abs(some.product(t, some.period) - 1 / some.size).max() for t in range(len(some.rounds))]
    assert max(off[0::2]) <= 1e-14
    if nodes >= 4:
        np.testing.assert_allclose(off[1::2], 1 / some.size, atol=1e-14)
