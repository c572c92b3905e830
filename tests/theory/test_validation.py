"""What a mixing matrix and a topology refuse, each by its words: the property, the row or column, the value."""

import re
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given
from hypothesis import strategies as st

from dissensus.theory import MixingError, MixingMatrix, Topology, from_function, from_matrices, register, topology
from dissensus.theory.mixing import SUM_TOLERANCE
from dissensus.theory.registry import catalogue
from dissensus.theory.weights import weigh

RING = weigh(nx.cycle_graph(6)).dense()
EVEN, ODD = np.kron(np.eye(3), np.full((2, 2), 0.5)), np.roll(np.kron(np.eye(3), np.full((2, 2), 0.5)), 1, (0, 1))
THIRDS = np.array([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
"""Row stochastic; its columns sum to 1, 1.25, 0.75."""


def changed(i: int, j: int, value: float, matrix: np.ndarray = RING) -> np.ndarray:
    w = matrix.copy()
    w[i, j] = value
    return w


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (changed(2, 3, np.nan), "row 2 has the weight nan from worker 3: not a number"),
        (changed(4, 0, np.inf), "row 4 has the weight inf from worker 0: not a number"),
        (changed(1, 1, -np.inf), "row 1 has the weight -inf from worker 1: not a number"),
        (changed(5, 4, -0.25), "row 5 has the negative weight -0.25 from worker 4; pass signed=True if"),
        (changed(3, 3, RING[3, 3] + 0.001), "not row stochastic: row 3 sums to 1.001, expected 1"),
        (changed(3, 3, 0), "not row stochastic: row 3 sums to 0.666666666667, expected 1"),
        (1.001 * RING, "not row stochastic: row 0 sums to 1.001, expected 1"),
        (THIRDS, "column 1 sums to 1.25, expected 1 (it is row stochastic: say promise='row' if that is meant)"),
        (THIRDS.T, "row 1 sums to 1.25, expected 1 (it is column stochastic: say promise='column' if that is"),
        (np.ones((2, 3)), "a mixing matrix must be square with at least one worker, got shape (2, 3)"),
        (np.zeros((0, 0)), "a mixing matrix must be square with at least one worker, got shape (0, 0)"),
        ([0.5, 0.5], "a mixing matrix must be square with at least one worker, got shape (2,)"),
        ([[]], "a mixing matrix must be square with at least one worker, got shape (1, 0)"),
        ([["x"]], "a mixing matrix must be a square array of numbers: could not convert string to float"),
        ([[0.5, 0.5], [1.0]], "a mixing matrix must be a square array of numbers"),
        (np.ones((2, 2, 2)), "a mixing matrix must be a square array of numbers"),
        (None, "a mixing matrix must be a square array of numbers"),
        (RING * (1 + 0j), "a mixing matrix must be a square array of numbers: some are complex"),
    ],
)  # fmt: skip
def test_a_matrix_that_cannot_be_is_refused(weights: Any, words: str) -> None:
    with pytest.raises(MixingError, match=re.escape(words)):
        MixingMatrix.of(weights)


@pytest.mark.parametrize(
    ("promise", "weights", "words"),
    [
        ("row", THIRDS.T, "not row stochastic: row 1 sums to 1.25, expected 1"),
        ("column", THIRDS, "not column stochastic: column 1 sums to 1.25, expected 1"),
        ("rows", THIRDS, "promise must be 'doubly', 'row' or 'column', got 'rows'"),
    ],
)
def test_a_promise_that_does_not_hold_is_refused(promise: Any, weights: np.ndarray, words: str) -> None:
    with pytest.raises(MixingError, match=re.escape(words)):
        MixingMatrix.of(weights, promise)


def test_no_hint_where_nothing_holds() -> None:
    with pytest.raises(MixingError, match=r"row 0 sums to 1\.001, expected 1$"):
        MixingMatrix.of(1.001 * RING)


def test_what_is_promised_is_accepted() -> None:
    assert MixingMatrix.of(THIRDS, "row").is_row_stochastic
    assert MixingMatrix.of(THIRDS.T, "column").is_column_stochastic
    signed = MixingMatrix.of([[1.2, -0.2], [-0.2, 1.2]], signed=True)
    assert signed.is_doubly_stochastic
    for like in (RING.tolist(), sp.csr_array(RING), sp.coo_array(RING), sp.csc_matrix(RING)):
        np.testing.assert_array_equal(MixingMatrix.of(like).dense(), RING)


def test_nothing_is_repaired_and_nothing_is_shared() -> None:
    source = sp.csr_array(RING)
    w = MixingMatrix(source)
    source.data[:] = 7
    np.testing.assert_array_equal(w.dense(), RING)


@given(seed=st.integers(0, 999), n=st.integers(1, 12), size=st.floats(1.01e-9, 1.0), down=st.booleans())
def test_any_change_of_one_weight_is_refused_and_found(seed: int, n: int, size: float, down: bool) -> None:
    """Whatever weight of whatever valid matrix: the refusal names its row, or its column where columns are promised."""
    rng = np.random.default_rng(seed)
    w = np.zeros((n, n))
    for c in rng.dirichlet(np.ones(4)):
        w[np.arange(n), rng.permutation(n)] += c
    i, j = rng.integers(n, size=2)
    w[i, j] += -size if down else size
    negative = w[i, j] < 0
    for promise, where in (("doubly", f"row {i} "), ("row", f"row {i} "), ("column", f"column {j} ")):
        found = f"row {i} has the negative weight" if negative else f"{where}sums to"
        with pytest.raises(MixingError, match=re.escape(found)):
            MixingMatrix.of(w, promise)  # pyright: ignore[reportArgumentType]
    if negative:
        with pytest.raises(MixingError, match=re.escape(f"row {i} sums to")):
            MixingMatrix.of(w, signed=True)


@given(seed=st.integers(0, 999), n=st.integers(2, 12), size=st.floats(1.01e-9, 0.5))
def test_weight_moved_within_a_row_is_found_by_its_columns(seed: int, n: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    w = np.full((n, n), 1 / n)
    i, j, k = rng.integers(n), *rng.choice(n, 2, replace=False)
    assume(size < 1 / n)
    w[i, j] += size
    w[i, k] -= size
    with pytest.raises(MixingError, match=rf"not column stochastic: column ({j}|{k}) sums to"):
        MixingMatrix.of(w)
    assert MixingMatrix.of(w, "row").is_row_stochastic


@given(seed=st.integers(0, 999), n=st.integers(1, 12))
def test_rounding_is_not_refused(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    w = np.full((n, n), 1 / n) + rng.uniform(-1, 1, (n, n)) * SUM_TOLERANCE / (2 * n * n)
    assert MixingMatrix.of(w).is_doubly_stochastic


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_a_transposed_or_scaled_built_in_does_not_pass_for_itself(name: str) -> None:
    w = topology(name, 8)[0]
    with pytest.raises(MixingError, match=r"sums to 1\.00[01]"):
        MixingMatrix.of(w.dense() * 1.001, w.promise, signed=w.signed)
    if not (w.is_row_stochastic and w.is_column_stochastic):
        with pytest.raises(MixingError, match=r"not (row|column) stochastic"):
            MixingMatrix.of(w.dense().T, w.promise)


@pytest.mark.parametrize("gamma", [-0.1, 1.5, np.nan])
def test_a_gamma_outside_is_refused(gamma: float) -> None:
    with pytest.raises(MixingError, match=r"gamma must lie in \[0, 1\], got"):
        MixingMatrix.of(RING).adapted(gamma)
    with pytest.raises(MixingError, match=r"gamma must lie in \[0, 1\], got"):
        from_matrices(RING).adapted(gamma)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: from_matrices([]), "a topology needs at least one matrix, got an empty list"),
    (lambda: from_matrices(np.zeros((0, 2, 2))), "a topology needs at least one matrix, got an empty list"),
    (lambda: from_matrices(np.ones(3)), "expected one n x n matrix or a list of them, got an array of shape (3,)"),
    (lambda: from_matrices([[0.5, 0.5], [1.0]]), "round 0: a mixing matrix must be a square array of numbers"),
    (lambda: from_matrices([np.eye(2), np.eye(3)]), "topology 'custom': round 1 has 3 workers, but the topology has 2"),
    (lambda: from_function(lambda t: RING, 6).adapted(2.0), "gamma must lie in [0, 1], got 2.0"),
    (lambda: from_matrices([RING, RING, 1.001 * RING]), "round 2: not row stochastic: row 0 sums to 1.001, expected 1"),
    (lambda: from_matrices([RING, changed(1, 2, np.nan)]), "round 1: row 1 has the weight nan from worker 2"),
    (lambda: from_matrices([EVEN, changed(3, 2, -0.5)]), "round 1: row 3 has the negative weight -0.5 from worker 2"),
    (
        lambda: from_matrices([MixingMatrix.identity(2), MixingMatrix.identity(3)]),
        "topology 'custom': round 1 has 3 workers, but the topology has 2",
    ),
    (lambda: from_matrices([EVEN, EVEN]), "topology 'custom' is disconnected over its period of 2: the workers"),
    (lambda: from_matrices(EVEN), "3 groups without a path both ways (worker 0 and worker 2 are in different ones)"),
    (lambda: from_matrices(np.eye(2)), "topology 'custom': worker 0 is isolated: it has no neighbour in any round"),
    (
        lambda: from_matrices(np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])),
        "topology 'custom': worker 2 is isolated: it has no neighbour in any round",
    ),
    (
        lambda: from_matrices([[1.0, 0.0], [0.5, 0.5]], promise="row", name="deaf"),
        "topology 'deaf' is disconnected over its period of 1",  # worker 0 never hears worker 1
    ),
    (lambda: from_matrices(RING)[-1], "a step is counted from 0, got -1"),
    (lambda: from_function(lambda t: RING, 6)[-3], "a step is counted from 0, got -3"),
    (lambda: from_function(lambda t: RING * (1 + 0.001 * t), 6)[1], "step 1: not row stochastic: row 0 sums to 1.001"),
    (lambda: from_function(lambda t: RING, 5)[4], "topology 'custom': step 4 has 6 workers, expected 5"),
    (lambda: from_function(lambda t: None, 5)[0], "step 0: a mixing matrix must be a square array of numbers"),
    (lambda: iter(from_function(lambda t: RING, 6)), "is drawn anew at every step: it has no period to walk through"),
    (lambda: Topology("x", 2), "topology 'x' needs either the rounds of a period or a function of the step"),
    (
        lambda: Topology("x", 1, (MixingMatrix.identity(1),), draw=lambda t: MixingMatrix.identity(1)),
        "topology 'x' needs either the rounds of a period or a function of the step",
    ),
    (lambda: topology("rign", 4), "unknown topology 'rign'; did you mean 'ring'?"),
    (lambda: topology("zzzzzz", 4), "unknown topology 'zzzzzz'; known: "),
    (lambda: topology("ring", 0), "topology 'ring': n must be at least 1, got 0"),
    (lambda: topology("ring", 2.0), "'ring': n must be a whole number, got 2.0"),  # pyright: ignore[reportArgumentType]
    (lambda: topology("ring", True), "topology 'ring': n must be a whole number, got True"),
    (lambda: topology("random_gossip", 4, sed=1), "'random-gossip' has no parameter 'sed'; did you mean 'seed'?"),
    (lambda: register("ring")(lambda n: from_matrices(RING)), "topology 'ring' is registered twice"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "words"), REFUSED)
def test_a_topology_that_cannot_be_is_refused(build: Callable[[], Any], words: str) -> None:
    catalogue()
    with pytest.raises(MixingError, match=re.escape(words)):
        build()


def test_connection_counts_over_the_period_not_per_round() -> None:
    schedule = from_matrices([EVEN, ODD])
    assert schedule.period == 2
    partition = from_matrices([EVEN, EVEN], may_disconnect=True)
    assert partition.period == 2


def test_a_schedule_of_three_rounds_on_six_workers_is_indexed_by_its_phase() -> None:
    schedule = from_matrices([EVEN, ODD, RING])
    for t in range(9):
        np.testing.assert_array_equal(schedule[t].dense(), [EVEN, ODD, RING][t % 3])
    np.testing.assert_allclose(schedule.product(1, 3), EVEN @ RING @ ODD, atol=1e-15)
