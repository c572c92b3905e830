"""Topologies among those that are left, against dense linear algebra, a chain that is watched, and interlacing."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.testing import mixing_matrices, push_sum_matrices
from dissensus.theory import MixingError, MixingMatrix, catalogue, from_function, from_matrices, topology
from dissensus.theory.survivors import among, complement

EPS = np.finfo(float).eps
RING = np.array([[2, 1, 0, 1], [1, 2, 1, 0], [0, 1, 2, 1], [1, 0, 1, 2]]) / 4
PAIRS = [np.kron(np.eye(2), np.full((2, 2), 0.5)), np.kron(np.full((2, 2), 0.5), np.eye(2))]


def mask(n: int, gone: set[int]) -> np.ndarray:
    return np.array([i not in gone for i in range(n)])


def watched(w: np.ndarray, there: np.ndarray) -> np.ndarray:
    """The complement as what it means: a chain that steps by W, looked at only while it is in S."""
    inside, outside = w * there, w * ~there
    total = inside
    for _ in range(5000):
        total = total + outside @ inside
        outside = outside @ (w * ~there)
    return total[there][:, there]


@pytest.mark.parametrize("gone", [{2}, {0, 1}, {1, 3}, {1, 2, 3}])
def test_the_complement_is_the_chain_that_is_looked_at_only_among_those_that_are_left(gone: set[int]) -> None:
    there = mask(4, gone)
    w = complement(MixingMatrix.of(RING), there).dense()
    np.testing.assert_allclose(w[there][:, there], watched(RING, there), atol=1e-13)
    np.testing.assert_array_equal(w[~there], np.eye(4)[~there])


def test_a_ring_without_one_is_a_ring() -> None:
    w = among(topology("ring", 5), [0, 1, 3, 4])[0]
    # links of 1/3 in a row, 1/3 · (1 - 1/3)^-1 · 1/3, are one of 1/6
    assert w.dense()[1, 3] == pytest.approx(1 / 6, abs=4 * EPS)
    assert [w.neighbours(i) for i in (0, 1, 3, 4)] == [[1, 4], [0, 3], [1, 4], [0, 3]]
    assert w.neighbours(2) == []


@given(mixing_matrices(), st.data())
def test_a_doubly_stochastic_round_stays_one_and_contracts_no_slower(w: MixingMatrix, data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, w.size - 1), max_size=w.size - 1))
    there = mask(w.size, gone)
    left = complement(w, there)
    assert left.is_doubly_stochastic
    if w.is_symmetric:
        assert left.is_symmetric
        before = np.linalg.eigvalsh(np.eye(w.size) - w.dense())
        after = np.linalg.eigvalsh(np.eye(there.sum()) - left.dense()[there][:, there])
        room = 1e-12
        assert (before[: len(after)] <= after + room).all()
        assert (after <= before[len(gone) :] + room).all()


@given(push_sum_matrices(), st.data())
def test_a_column_stochastic_round_keeps_sums_among_those_that_are_left(w: MixingMatrix, data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, w.size - 1), max_size=w.size - 1))
    try:
        left = complement(w, mask(w.size, gone))
    except MixingError:
        return
    np.testing.assert_allclose(left.dense().sum(axis=0), 1.0, atol=1e-10)


@pytest.mark.parametrize("name", sorted(catalogue()))
@pytest.mark.parametrize("gone", [{1}, {0, 3}])
def test_every_topology_lives_on_among_those_that_are_left(name: str, gone: set[int]) -> None:
    n = 8
    try:
        whole = topology(name, n)
    except MixingError:
        pytest.skip(f"{name} needs something to be built")
    left = among(whole, sorted(set(range(n)) - gone))
    there = mask(n, gone)
    steps = n * (left.period or 16)
    product = left.product(0, steps)
    if whole.promise == "doubly":
        assert all(left[t].is_doubly_stochastic for t in range(steps))
        assert (product[there][:, there] > 0).all(), "the news of everybody reaches everybody"
    np.testing.assert_array_equal(product[~there], np.eye(n)[~there])
    assert left.promise == whole.promise
    assert left.is_static or not whole.is_static, "an algorithm that needs one round keeps one"


def test_rounds_of_pairs_that_fall_apart_become_one() -> None:
    left = among(from_matrices(PAIRS), [1, 2])  # 1 and 2 hear of each other by way of 0 or 3 only
    assert left.period == 1
    w = left[0].dense()
    assert w[1, 2] > 0
    np.testing.assert_allclose(w[1:3, 1:3], watched((PAIRS[0] + PAIRS[1]) / 2, mask(4, {0, 3})), atol=1e-13)


def test_drawn_rounds_that_fall_apart_become_one() -> None:
    left = among(from_function(lambda t: PAIRS[t % 2], 4), [1, 2])
    assert left.is_static
    assert left[0].dense()[1, 2] > 0


def test_drawn_rounds_stay_drawn() -> None:
    whole = topology("random-gossip", 6)
    left = among(whole, [0, 1, 2, 4, 5])
    assert left.period is None
    np.testing.assert_array_equal(left[7].dense(), complement(whole[7], mask(6, {3})).dense())


def test_nobody_gone_is_the_same_topology() -> None:
    whole = topology("one-peer-exponential", 4)
    assert among(whole, range(4)) is whole


def test_one_that_is_left_alone_keeps_itself() -> None:
    left = among(topology("one-peer-exponential", 4), [3])
    for t in range(2):
        np.testing.assert_allclose(left[t].dense(), np.eye(4), atol=2 * EPS)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (partial(among, topology("ring", 4), [0, 4]), "'ring': there is no worker 4, workers are 0 to 3"),
        (partial(among, topology("ring", 4), []), "'ring': nobody is left of its 4 workers"),
        (
            partial(complement, MixingMatrix.of([[1, 0], [0.5, 0.5]], "row"), mask(2, {0})),
            "workers 0 are gone, and some of them heard nobody but each other",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: partial, said: str) -> None:
    with pytest.raises(MixingError, match=said):
        make()
