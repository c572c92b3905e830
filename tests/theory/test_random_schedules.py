"""Random gossip and MATCHA: the stated moments against every possible round, optimality against other routes."""

import itertools
import re
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dissensus.theory import MixingError, Topology, topology
from dissensus.theory.decomposition import matchings
from dissensus.theory.topologies.matcha import RELATIVE_GAP, activation, best_weight, plan_matchings
from dissensus.theory.topologies.random_gossip import _greedy_probabilities, base_links, first_links, random_gossip

SIZES = [1, 2, 3, 5, 7, 12, 33]
IRREGULAR: nx.Graph = nx.Graph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (3, 4), (4, 5), (5, 6), (4, 6)])


def dense(m: Any) -> np.ndarray:
    return m.toarray() if sp.issparse(m) else np.asarray(m)


def moments(schedule: Topology) -> tuple[np.ndarray, np.ndarray]:
    assert schedule.moments is not None
    return dense(schedule.moments.mean), dense(schedule.moments.square)


def averaging(n: int, links: list[tuple[int, int]]) -> np.ndarray:
    """Each of these disjoint pairs averages."""
    w = np.eye(n)
    for i, j in links:
        w[i, i] = w[j, j] = w[i, j] = w[j, i] = 0.5
    return w


def ordered_mean(n: int, links: list[tuple[int, int]], take: Any) -> np.ndarray:
    """The mean over all orders of the links of the averaging that `take` chooses from an order."""
    orders = list(itertools.permutations(links))
    return sum((averaging(n, take(o)) for o in orders), np.zeros((n, n))) / len(orders)


def greedy(order: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    used: set[int] = set()
    return [e for e in order if not used & set(e) and not used.update(e)]


def locally_first(order: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    return [e for k, e in enumerate(order) if not any(set(e) & set(f) for f in order[:k])]


SMALL = [("path", 5), ("star", 5), ("ring", 6), ("complete", 4), ("ring", 7), ("grid", 6)]


@pytest.mark.parametrize(("graph", "n"), SMALL)
@pytest.mark.parametrize("mode", ["pair", "local", "maximal"])
def test_gossip_moments_equal_the_mean_over_all_orders(graph: str, n: int, mode: str) -> None:
    i, j = base_links("random-gossip", graph, n)
    links = list(zip(i.tolist(), j.tolist(), strict=True))
    take = {"pair": lambda order: order[:1], "local": locally_first, "maximal": greedy}[mode]
    mean, square = moments(topology("random-gossip", n, graph=graph, mode=mode))
    np.testing.assert_allclose(mean, ordered_mean(n, links, take), atol=1e-13)
    np.testing.assert_array_equal(mean, square)


@pytest.mark.parametrize("mode", ["pair", "local", "maximal"])
@pytest.mark.parametrize("n", SIZES)
def test_every_gossip_round_is_a_projection_that_averages(n: int, mode: str) -> None:
    schedule = topology("random_gossip", n, mode=mode)
    for t in range(12):
        w = schedule[t].dense()
        np.testing.assert_array_equal(w, w.T)
        np.testing.assert_array_equal(w @ w, w)
        idle = int((np.diag(w) == 1).sum())
        assert {"pair": idle == max(n - 2, 1 if n == 1 else 0), "local": idle < n or n == 1, "maximal": idle == n % 2}[
            mode
        ]


def test_the_recursion_equals_the_closed_form_of_the_complete_graph() -> None:
    for n in range(2, 8):
        i, j = np.triu_indices(n, 1)
        mean, _ = moments(topology("random-gossip", n, mode="maximal"))
        np.testing.assert_allclose(mean[i, j], _greedy_probabilities(i, j, n) / 2, atol=1e-14)
        expected = np.full(len(i), 1 / (n - 1 if n % 2 == 0 else n))
        np.testing.assert_allclose(_greedy_probabilities(i, j, n), expected, atol=1e-14)


@given(n=st.integers(2, 30), seed=st.integers(0, 999))
def test_rounds_of_first_links_are_the_greedy_order(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(n, 0.4, seed=seed)
    i, j = np.array(list(graph.edges), dtype=np.int64).reshape(-1, 2).T
    number = rng.random(len(i))
    order = tuple((int(i[e]), int(j[e])) for e in np.argsort(number))
    for rounds, take in ((None, greedy), (1, locally_first)):
        found = first_links(i, j, number, n, rounds)
        assert sorted(zip(i[found].tolist(), j[found].tolist(), strict=True)) == sorted(take(order))


def test_gossip_draws_follow_their_law() -> None:
    """3000 rounds on the star: each link of the centre in a fifth of them, within five standard errors."""
    schedule = topology("random-gossip", 6, graph="star", seed=2)
    partners = [schedule[t].neighbours(0)[0] for t in range(3000)]
    counts = np.bincount(partners, minlength=6)[1:] / 3000
    assert np.abs(counts - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 3000)


@pytest.mark.parametrize("name", ["random-gossip", "matcha"])
def test_rounds_depend_on_seed_and_step_alone(name: str) -> None:
    one, same, other = (topology(name, 10, graph="grid", seed=s) for s in (5, 5, 6))
    forwards = [one[t].triplets() for t in range(12)]
    assert forwards == [same[t].triplets() for t in reversed(range(12))][::-1]
    assert forwards != [other[t].triplets() for t in range(12)]
    assert forwards[::2] != forwards[1::2]


def test_beyond_the_recursion_there_are_no_exact_moments() -> None:
    assert topology("random-gossip", 12, graph="ring", mode="maximal").moments is not None
    assert topology("random-gossip", 13, graph="ring", mode="maximal").moments is None


def test_parameters_are_remembered() -> None:
    assert dict(random_gossip(4).parameters) == {"graph": "complete", "mode": "pair", "seed": 0}
    assert dict(topology("matcha", 4, budget=0.25).parameters) == {"graph": "ring", "budget": 0.25, "seed": 0}


@pytest.mark.parametrize("graph", ["ring", "path", "star", "grid", "complete"])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("budget", [0.3, 0.8, 1.0])
def test_matcha_moments_equal_the_sum_over_all_subsets_of_matchings(graph: str, n: int, budget: float) -> None:
    i, j = base_links("matcha", graph, n)
    a = np.zeros((n, n))
    a[i, j] = a[j, i] = 1
    plan = plan_matchings(n, matchings(a), budget)
    mean, square = np.zeros((n, n)), np.zeros((n, n))
    for active in itertools.product([False, True], repeat=len(plan.matchings)):
        chance = np.prod(np.where(active, plan.probabilities, 1 - plan.probabilities))
        w = plan.round(np.array(active, dtype=bool)).dense()
        mean += chance * w
        square += chance * w.T @ w
    found = moments(topology("matcha", n, graph=graph, budget=budget))
    np.testing.assert_allclose(found[0], mean, atol=1e-13)
    np.testing.assert_allclose(found[1], square, atol=1e-13)


@pytest.mark.parametrize("n", SIZES)
def test_matcha_keeps_within_its_budget_and_contracts(n: int) -> None:
    schedule = topology("matcha", n, graph="ring", budget=0.4)
    parts = matchings(topology("ring", n))
    plan = plan_matchings(n, parts, 0.4)
    assert plan.probabilities.sum() <= 0.4 * len(parts) * (1 + 1e-12)
    assert all(0 <= p <= 1 for p in plan.probabilities)
    assert np.linalg.norm(moments(schedule)[1] - 1 / n, 2) < 1 or n == 1
    assert all(schedule[t].is_doubly_stochastic for t in range(10))


def test_matcha_on_two_workers_in_closed_form() -> None:
    """One link with probability c: lambda_2 = 2c, a = 1/2, and the disagreement survives with probability 1 - c."""
    plan = plan_matchings(2, [np.array([[0, 1]])], 0.3)
    assert plan.connectivity == pytest.approx(0.6, abs=1e-12)
    assert plan.weight == pytest.approx(0.5, abs=1e-7)
    assert np.linalg.norm(plan.square.toarray() - 0.5, 2) == pytest.approx(0.7, abs=1e-12)


@pytest.mark.parametrize("n", [4, 5, 8, 9])
def test_matcha_on_the_complete_graph_uses_all_matchings_alike(n: int) -> None:
    parts = matchings(nx.complete_graph(n))
    p, value, bound = activation(n, parts, 0.35)
    np.testing.assert_allclose(p, 0.35, atol=1e-9)
    assert value == pytest.approx(0.35 * n, rel=1e-12)  # the Laplacian of the complete graph, times the budget
    assert bound == pytest.approx(value, rel=1e-12)


def test_with_the_whole_budget_matcha_is_the_fixed_graph() -> None:
    plan = plan_matchings(7, matchings(IRREGULAR), 1.0)
    values = np.linalg.eigvalsh(nx.laplacian_matrix(IRREGULAR, nodelist=list(range(7))).toarray())
    np.testing.assert_allclose(plan.probabilities, 1.0, atol=1e-9)
    assert plan.connectivity == pytest.approx(values[1], rel=1e-9)
    assert plan.weight == pytest.approx(2 / (values[1] + values[-1]), abs=1e-7)


def laplacians(n: int, parts: list[np.ndarray]) -> list[np.ndarray]:
    """L = 2(I - W) of each matching."""
    return [2.0 * (np.eye(n) - averaging(n, [(int(i), int(j)) for i, j in part])) for part in parts]


@pytest.mark.parametrize(
    "graph",
    [
        IRREGULAR,
        nx.cycle_graph(9),
        nx.petersen_graph(),
        nx.barbell_graph(4, 1),
        nx.random_geometric_graph(16, 0.4, seed=3),
    ],
    ids=["irregular", "odd ring", "petersen", "barbell", "geometric"],
)
@pytest.mark.parametrize("budget", [0.15, 0.5, 0.9])
def test_the_activation_probabilities_are_optimal(graph: nx.Graph, budget: float) -> None:
    """The barrier's own duality gap, and a semidefinite program that knows nothing of it."""
    cp = pytest.importorskip("cvxpy")
    n, parts = len(graph), matchings(nx.to_numpy_array(graph, nodelist=range(len(graph))))
    p, value, bound = activation(n, parts, budget)
    laps = laplacians(n, parts)
    assert value == pytest.approx(np.linalg.eigvalsh(sum(c * m for c, m in zip(p, laps, strict=True)))[1], rel=1e-9)
    assert p.sum() <= budget * len(parts) * (1 + 1e-12)
    assert value <= bound * (1 + 1e-12)
    # rounding stops the bound at 3e-8 on the Petersen graph, whose lambda_2 is fivefold; elsewhere it reaches its goal
    assert bound - value <= (RELATIVE_GAP if n != 10 else 1e-7) * value
    q, t = cp.Variable(len(parts)), cp.Variable()  # in units of the budget
    mean = sum(q[k] * laps[k] for k in range(len(parts)))
    strictly = mean - t * (np.eye(n) - 1 / n) + 1 / n  # the constant vector is given room, or there is no interior
    program = cp.Problem(cp.Maximize(t), [strictly >> 0, q >= 0, q <= 1 / budget, cp.sum(q) <= len(parts)])
    # on the Petersen graph the program cannot be solved to its usual 1e-8: it is asked for what it can do everywhere
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-7, tol_gap_rel=1e-7, tol_feas=1e-7)
    assert program.status == "optimal"
    assert value == pytest.approx(budget * float(t.value), abs=1e-6)


@pytest.mark.parametrize("budget", [0.2, 0.6])
def test_no_activation_nearby_is_better(budget: float) -> None:
    parts = matchings(IRREGULAR)
    p, value, _ = activation(7, parts, budget)
    laps, rng = laplacians(7, parts), np.random.default_rng(0)
    for _ in range(200):
        q = np.clip(p + rng.normal(0, rng.choice([1e-3, 0.1]), len(p)), 0, 1)
        q *= min(1.0, budget * len(parts) / q.sum())
        assert np.linalg.eigvalsh(sum(c * m for c, m in zip(q, laps, strict=True)))[1] <= value * (1 + 1e-9)


@pytest.mark.parametrize("budget", [0.2, 0.6, 1.0])
def test_the_weight_of_matcha_is_optimal(budget: float) -> None:
    """Against the semidefinite program min s: (1-s)I - 2a Lbar - J + b(Lbar² + 2 Ltilde) <= 0, a² <= b."""
    cp = pytest.importorskip("cvxpy")
    parts = matchings(IRREGULAR)
    p, _, _ = activation(7, parts, budget)
    laps = laplacians(7, parts)
    first = sum((c * m for c, m in zip(p, laps, strict=True)), np.zeros((7, 7)))
    second = first @ first + 2 * sum((c * (1 - c) * m for c, m in zip(p, laps, strict=True)), np.zeros((7, 7)))
    s, a, b = cp.Variable(), cp.Variable(), cp.Variable()
    rules = [(s - 1) * np.eye(7) + 2 * a * first + 1 / 7 - b * second >> 0, cp.square(a) <= b]
    cp.Problem(cp.Minimize(s), rules).solve(solver=cp.CLARABEL)
    ours = best_weight(7, parts, p)
    contraction = np.linalg.norm(np.eye(7) - 2 * ours * first + ours**2 * second - 1 / 7, 2)
    assert contraction == pytest.approx(float(s.value), abs=1e-6)
    assert ours == pytest.approx(float(a.value), abs=1e-3)


def test_more_budget_never_mixes_slower() -> None:
    parts = matchings(IRREGULAR)
    values = [activation(7, parts, b)[1] for b in (0.1, 0.3, 0.5, 0.7, 1.0)]
    assert np.all(np.diff(values) > 0)


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("random-gossip", {"mode": "pairs"}, "'random-gossip': unknown mode 'pairs'; did you mean 'pair'?"),
        ("random-gossip", {"seed": -1}, "topology 'random-gossip': the seed must be at least 0, got -1"),
        ("random-gossip", {"graph": "rong"}, "on the graph 'rong': unknown topology 'rong'; did you mean"),
        ("random-gossip", {"graph": "matcha"}, "'matcha' is itself drawn at every step; name a topology"),
        ("matcha", {"graph": "directed-ring"}, "'matcha' on the graph 'directed-ring': the graph is not undirected"),
        ("matcha", {"budget": 0.0}, "'matcha': the budget is the fraction of matchings used, from 1e-06 to 1, got 0.0"),
        ("matcha", {"budget": 1.5}, "'matcha': the budget is the fraction of matchings used, from 1e-06 to 1, got 1.5"),
        ("matcha", {"seed": -3}, "topology 'matcha': the seed must be at least 0, got -3"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(name: str, parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(MixingError, match=re.escape(words)):
        topology(name, 6, **parameters)


def test_too_many_workers_for_a_plan_are_refused_with_the_nearest() -> None:
    with pytest.raises(MixingError, match="'matcha' is planned for at most 1024 workers, got n=1025; nearest: n=1024"):
        topology("matcha", 1025)
