"""The fastest mixing weights: closed forms, an independent program, and a lower bound that is really one."""

import importlib
import re
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dissensus.theory import MixingError, MixingMatrix
from dissensus.theory.optimal_weights import (
    GAP_TOLERANCE,
    Optimum,
    Problem,
    _polished,
    contraction,
    fastest_mixing,
    fastest_under_budget,
    lower_bound,
)
from dissensus.theory.weights import weigh

pytest.importorskip("cvxpy")

IRREGULAR: nx.Graph = nx.Graph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (3, 4), (4, 5), (5, 6), (4, 6)])
COST = np.random.default_rng(3).uniform(0.1, 2.0, (7, 7))
COST = COST + COST.T


def norm(w: MixingMatrix) -> float:
    """||W - J||_2 by singular values."""
    return float(np.linalg.norm(w.dense() - 1 / w.size, 2))


def problem(graph: nx.Graph, nonnegative: bool = False) -> Problem:
    i, j = np.array(sorted(tuple(sorted(e)) for e in graph.edges)).T
    return Problem(len(graph), i, j, nonnegative)


@pytest.mark.parametrize(
    ("graph", "nonnegative", "value"),
    [
        (nx.empty_graph(1), False, 0.0),
        (nx.path_graph(2), False, 0.0),
        (nx.path_graph(3), False, 0.5),
        (nx.path_graph(3), True, 0.5),
        (nx.complete_graph(6), True, 0.0),
        (nx.cycle_graph(4), True, 1 / 3),  # edge transitive: the best constant, 2/(2+4)
        (nx.cycle_graph(9), False, (2 - 2 * np.cos(8 * np.pi / 9) - (2 - 2 * np.cos(2 * np.pi / 9))) / (
            2 - 2 * np.cos(8 * np.pi / 9) + 2 - 2 * np.cos(2 * np.pi / 9))),
        (nx.petersen_graph(), False, 3 / 7),  # Laplacian 2 and 5
        (nx.petersen_graph(), True, 3 / 7),
        (nx.hypercube_graph(3), False, 4 / 8),  # Laplacian 2 and 6
        (nx.star_graph(5), False, 5 / 7),  # Laplacian 1 and 6
        (nx.star_graph(5), True, 4 / 5),  # five weights that sum to at most one
    ],
)  # fmt: skip
def test_closed_forms(graph: nx.Graph, nonnegative: bool, value: float) -> None:
    found = fastest_mixing(graph, nonnegative=nonnegative)
    assert found.certified
    assert found.value == pytest.approx(value, abs=1e-6)
    assert found.lower_bound <= value + 1e-12
    assert norm(found.matrix) == pytest.approx(found.value, abs=1e-12)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_an_independent_program_finds_the_same(nonnegative: bool) -> None:
    """The whole matrix as the variable, and the norm left to the modelling language."""
    import cvxpy as cp

    n, a = 7, nx.to_numpy_array(IRREGULAR, nodelist=list(range(7)))
    w: Any = cp.Variable((n, n), symmetric=True)
    rules = [cp.sum(w, axis=1) == 1, cp.multiply(w, (a == 0) & ~np.eye(n, dtype=bool)) == 0]
    program: Any = cp.Problem(cp.Minimize(cp.sigma_max(w - 1 / n)), rules + ([w >= 0] if nonnegative else []))
    program.solve(solver=cp.CLARABEL)
    found = fastest_mixing(nx.Graph(a), nonnegative=nonnegative)
    assert found.certified
    assert found.value == pytest.approx(float(program.value), abs=1e-6)


@settings(max_examples=10)
@given(n=st.integers(2, 8), seed=st.integers(0, 99), nonnegative=st.booleans())
def test_what_is_promised_holds_on_random_graphs(n: int, seed: int, nonnegative: bool) -> None:
    graph = nx.random_labeled_tree(n, seed=seed)
    graph.add_edges_from(nx.gnp_random_graph(n, 0.4, seed=seed).edges)
    found = fastest_mixing(graph, nonnegative=nonnegative)
    w = found.matrix.dense()
    assert found.certified
    assert found.lower_bound <= found.value + 1e-12
    np.testing.assert_array_equal(w, w.T)
    np.testing.assert_allclose(w.sum(axis=1), 1, atol=1e-14)
    assert not w[(nx.to_numpy_array(graph, nodelist=range(n)) == 0) & ~np.eye(n, dtype=bool)].any()
    assert found.matrix.signed != nonnegative
    assert not nonnegative or w.min() >= 0
    slower = ["metropolis", "lazy", "max-degree"] + (["best-constant"] if not nonnegative else [])
    for rule in slower:
        assert found.value <= contraction(weigh(nx.to_numpy_array(graph, nodelist=range(n)), rule)) + 1e-7


def nearly_feasible(rng: np.random.Generator, p: Problem) -> np.ndarray:
    """A random centred symmetric Z of nuclear norm one and positive trace whose r_e are small, of both signs."""
    n, b = p.n, np.zeros((len(p.i), p.n))
    b[np.arange(len(p.i)), p.i], b[np.arange(len(p.i)), p.j] = 1, -1
    centre = np.eye(n) - 1 / n
    z = rng.standard_normal((n, n))
    z = centre @ (z + z.T) @ centre
    r = np.einsum("ei,ij,ej->e", b, z, b)
    z = z - b.T @ np.diag(np.linalg.solve((b @ b.T) ** 2, r)) @ b  # now every r_e is zero
    z = z * np.sign(np.trace(z)) / np.linalg.norm(z, "nuc")
    small = rng.normal(0, 0.02, len(p.i))
    z = z + b.T @ np.diag(np.linalg.solve((b @ b.T) ** 2, small)) @ b
    return z / np.linalg.norm(z, "nuc")


@given(seed=st.integers(0, 10**6), nonnegative=st.booleans(), priced=st.booleans())
def test_the_lower_bound_holds_for_any_dual_whatsoever(seed: int, nonnegative: bool, priced: bool) -> None:
    """Weak duality may not depend on the solver: nonsense for Z must still give a bound below every feasible W."""
    rng = np.random.default_rng(seed)
    p = problem(IRREGULAR, nonnegative)
    w = rng.uniform(0 if nonnegative else -0.2, 0.5, len(p.i))
    if nonnegative:
        w /= max(1.0, p.totals(w).max())
    if priced:
        cost = rng.uniform(0, 1, len(p.i))
        p = Problem(p.n, p.i, p.j, nonnegative, cost, float(cost @ np.abs(w)) * rng.uniform(1, 1.5))
    for z in (rng.standard_normal((7, 7)), nearly_feasible(rng, p)):
        assert lower_bound(z, p) <= min(1.0, norm(p.matrix(w))) + 1e-12


@given(seed=st.integers(0, 10**6), nonnegative=st.booleans(), priced=st.booleans())
def test_the_lower_bound_is_the_support_of_the_admissible_weights(seed: int, nonnegative: bool, priced: bool) -> None:
    """By duality it equals <Z, I - J> less the most that r.w can be: a linear program over the weights themselves."""
    from scipy.optimize import linprog

    rng = np.random.default_rng(seed)
    p = problem(IRREGULAR, nonnegative)
    m = len(p.i)
    if priced:
        p = Problem(p.n, p.i, p.j, nonnegative, rng.uniform(0, 1, m), rng.uniform(0, 2))
    z = nearly_feasible(rng, p)
    r = np.array([z[i, i] + z[j, j] - 2 * z[i, j] for i, j in zip(p.i, p.j, strict=True)])
    ends = np.array([[float(u in e) for e in zip(p.i, p.j, strict=True)] for u in range(7)])
    rows, limits = ([ends], [np.ones(7)]) if nonnegative else ([], [])
    rows, limits = [np.hstack([a, -a]) for a in rows], limits  # w = plus - minus
    if p.cost is not None:
        rows, limits = [*rows, np.hstack([p.cost, p.cost])[None]], [*limits, np.array([p.budget])]
    caps = [(0, 1)] * m + [(0, 0 if nonnegative else 1)] * m
    a_ub, b_ub = (np.vstack(rows), np.concatenate(limits)) if rows else (None, None)
    most = -linprog(-np.hstack([r, -r]), A_ub=a_ub, b_ub=b_ub, bounds=caps).fun
    assert lower_bound(z, p) == pytest.approx(max(0.0, float(np.trace(z)) - most), abs=1e-9)
    assume(float(np.trace(z)) > most)  # a bound of zero says nothing of what follows
    u, skew = rng.standard_normal(7), rng.standard_normal((7, 7))
    same = z + u + u[:, None] + skew - skew.T  # what no W can see
    assert lower_bound(5 * same, p) == pytest.approx(lower_bound(z, p), abs=1e-9)


def test_noise_of_the_solver_is_scaled_away_never_over_a_limit() -> None:
    p = Problem(3, np.array([0, 1]), np.array([1, 2]), True, np.array([1.0, 2.0]), 1.2)
    w = _polished(np.array([0.6, 0.6]), p)  # worker 1 would keep -0.2, and the links would cost 1.8
    assert p.matrix(w).dense().min() >= 0
    assert p.cost is not None
    assert p.cost @ w <= 1.2
    np.testing.assert_allclose(w, 0.4)
    np.testing.assert_array_equal(_polished(np.array([0.3, -1e-9]), p), [0.3, 0.0])
    only = Problem(3, p.i, p.j, True)
    assert only.matrix(_polished(np.array([0.7, 0.5]), only)).dense()[1, 1] >= 0


def test_a_dual_of_zeros_bounds_nothing() -> None:
    assert lower_bound(np.zeros((7, 7)), problem(IRREGULAR)) == 0.0


def test_the_bound_is_not_vacuous_at_the_best_of_the_worst() -> None:
    """Path of three: Z = -vv'/2 + uu'/2 on its two modes proves 1/2 by hand."""
    u, v = np.array([1, 0, -1]) / np.sqrt(2), np.array([1, -2, 1]) / np.sqrt(6)
    z = 0.75 * np.outer(u, u) - 0.25 * np.outer(v, v)
    assert lower_bound(z, problem(nx.path_graph(3))) == pytest.approx(0.5, abs=1e-12)


def test_an_inaccurate_answer_is_never_certified() -> None:
    exact = MixingMatrix.of(np.full((2, 2), 0.5))
    assert Optimum(exact, 0.0, 0.0, "optimal").certified
    assert not Optimum(exact, 0.0, 0.0, "optimal_inaccurate").certified
    assert not Optimum(exact, 2 * GAP_TOLERANCE, 0.0, "optimal").certified


@pytest.mark.parametrize("nonnegative", [False, True])
def test_budgets_from_nothing_to_everything(nonnegative: bool) -> None:
    graph = nx.to_numpy_array(IRREGULAR, nodelist=list(range(7)))
    free = fastest_mixing(graph, nonnegative=nonnegative)
    full = float((np.triu(COST, 1) * np.abs(free.matrix.dense())).sum())
    values = []
    for budget in [0.0, 0.05 * full, 0.3 * full, 0.7 * full, 1.01 * full, 1e9, np.inf]:
        found = fastest_under_budget(graph, COST, budget, nonnegative=nonnegative)
        assert found.certified
        assert (np.triu(COST, 1) * np.abs(found.matrix.dense())).sum() <= budget
        values.append(found.value)
    assert np.all(np.diff(values) <= 1e-7)  # two solves, each certified to far less than this
    assert values[0] == 1.0
    assert values[4] == pytest.approx(free.value, abs=1e-7)
    assert values[6] == free.value
    assert np.all(np.diff(values[:4]) < -1e-3)
    nobody = fastest_under_budget(graph, COST, 0.0, nonnegative=nonnegative).matrix
    np.testing.assert_array_equal(nobody.dense(), np.eye(7))


def test_free_links_remain_without_a_budget() -> None:
    cost = np.ones((4, 4))
    cost[0, 1] = cost[1, 0] = cost[2, 3] = cost[3, 2] = 0
    w = fastest_under_budget(nx.cycle_graph(4), cost, 0.0, nonnegative=True)
    assert w.matrix.dense()[0, 3] == w.matrix.dense()[1, 2] == 0
    assert w.value == 1.0
    all_free = fastest_under_budget(nx.cycle_graph(4), 0 * cost, 0.0)
    assert all_free.value == pytest.approx(1 / 3, abs=1e-6)


def test_the_dearer_of_two_equal_links_is_used_less() -> None:
    cost = np.ones((3, 3))
    cost[0, 1] = cost[1, 0] = 10
    w = fastest_under_budget(nx.complete_graph(3), cost, 1.0).matrix.dense()
    assert w[0, 1] < w[0, 2]
    assert w[0, 2] == pytest.approx(w[1, 2], abs=1e-5)


def test_the_budget_on_two_workers_in_closed_form() -> None:
    """One link of weight w costs 3w and contracts to 1 - 2w."""
    found = fastest_under_budget(nx.path_graph(2), [[0, 3], [3, 0]], 0.6)
    assert found.value == pytest.approx(1 - 2 * 0.2, abs=1e-7)
    assert found.certified


def test_by_name() -> None:
    graph = nx.path_graph(4)
    np.testing.assert_array_equal(weigh(graph, "fdla").dense(), fastest_mixing(graph).matrix.dense())
    under = weigh(graph, "budget", cost=np.ones((4, 4)), budget=0.5)
    assert np.triu(under.dense(), 1).sum() == pytest.approx(0.5, abs=1e-6)


SQUARE = nx.cycle_graph(4)


def priced(i: int, j: int, value: float) -> np.ndarray:
    cost = np.ones((4, 4))
    cost[i, j] = value
    return cost


@pytest.mark.parametrize(
    ("cost", "budget", "words"),
    [
        (np.ones((4, 4)), -1, "the budget must be at least 0, got -1; 0 leaves the free links, inf is no budget"),
        (np.ones((4, 4)), np.nan, "the budget must be at least 0, got nan"),
        (np.ones((3, 3)), 1, "the costs must be a 4 x 4 matrix like the adjacency, got shape (3, 3)"),
        (priced(0, 1, -2), 1, "the link (0, 1) has the cost -2: a cost is a number of at least 0"),
        (priced(0, 1, np.nan), 1, "the link (0, 1) has the cost nan: a cost is a number of at least 0"),
        (priced(1, 2, 5), 1, "the costs are not symmetric: link (1, 2) costs 5 one way and 1 the other"),
    ],
)
def test_costs_that_cannot_be_are_refused(cost: np.ndarray, budget: float, words: str) -> None:
    with pytest.raises(MixingError, match=re.escape(words)):
        fastest_under_budget(SQUARE, cost, budget)


def test_a_disconnected_graph_is_refused() -> None:
    with pytest.raises(MixingError, match="fastest mixing matrix needs a connected graph: there is no path"):
        fastest_mixing(nx.empty_graph(2))


def test_without_cvxpy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MixingError, match=re.escape("pip install 'dissensus[theory]'; without them use weights")):
        fastest_mixing(SQUARE)


def test_a_solver_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import cvxpy as cp

    def breaks(self: Any, **_: Any) -> None:
        raise cp.SolverError("it broke")

    monkeypatch.setattr(cp.Problem, "solve", breaks)
    with pytest.raises(MixingError, match="the fastest weights was not solved: it broke"):
        fastest_mixing(SQUARE)
    monkeypatch.setattr(cp.Problem, "solve", lambda self, **_: None)
    with pytest.raises(MixingError, match="the fastest weights was not solved: None"):
        fastest_mixing(SQUARE)
