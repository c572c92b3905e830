"""When steps end, by recursion against a simulation event by event; what both must obey; cases counted by hand.

Compute times and delays of the exact comparisons are eighths, so that no sum is rounded, in whatever order it is taken.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dissensus.testing import simulated_all_reduce_times, simulated_finish_times
from dissensus.theory.runtime import Round, all_reduce_times, finish_times

Order = Literal["awc", "atc", "cta"]
ORDERS: tuple[Order, ...] = ("awc", "atc", "cta")
EPS = np.finfo(float).eps
EIGHTHS = st.integers(0, 48).map(lambda k: k / 8)
SECONDS = st.floats(0, 10)
both = pytest.mark.parametrize("times", [finish_times, simulated_finish_times])
both_all_reduce = pytest.mark.parametrize("times", [all_reduce_times, simulated_all_reduce_times])


@dataclass(frozen=True)
class Case:
    rounds: list[Round]
    computed: np.ndarray
    order: Order = "awc"
    every: int = 1

    def times(self, run: Callable[..., np.ndarray] = finish_times) -> np.ndarray:
        return run(self.rounds, self.computed, order=self.order, every=self.every)

    def with_rounds(self, change: Callable[[Round], Round]) -> "Case":
        return replace(self, rounds=[change(r) for r in self.rounds])

    @property
    def size(self) -> int:
        return self.computed.shape[1]


def at_every_step(case: Case) -> Case:
    """The same with one round per step, those without an exchange included."""
    nobody = hearing({}, case.size)
    given, every = case.rounds, case.every
    steps = range(len(case.computed))
    rounds = [given[(k // every) % len(given)] if (k + 1) % every == 0 else nobody for k in steps]
    return replace(case, rounds=rounds, every=1)


def hearing(heard: dict[int, list[int]], n: int, delay: float | list[float] = 0.0) -> Round:
    """Worker i hears heard[i]."""
    m = max([1, *map(len, heard.values())])
    rows = [list(islice([*heard.get(i, []), *[i] * m], m)) for i in range(n)]
    return Round(np.array(rows), np.broadcast_to(np.asarray(delay, dtype=float), n).copy())


@st.composite
def rounds(draw: st.DrawFn, n: int, numbers: st.SearchStrategy[float]) -> Round:
    """Directed, everybody hears up to three others, some hear nobody although they have a delay."""
    lists = st.lists(st.integers(0, n - 1), max_size=min(3, n - 1), unique=True)
    heard = {i: [j for j in draw(lists) if j != i] for i in range(n)}
    return hearing(heard, n, draw(vectors(n, numbers)))


def vectors(n: int, numbers: st.SearchStrategy[float]) -> st.SearchStrategy[list[float]]:
    return st.lists(numbers, min_size=n, max_size=n)


@st.composite
def cases(draw: st.DrawFn, numbers: st.SearchStrategy[float], orders: tuple[Order, ...] = ORDERS) -> Case:
    n, steps = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    return Case(
        draw(st.lists(rounds(n, numbers), min_size=1, max_size=3)),
        np.array([draw(vectors(n, numbers)) for _ in range(steps)]),
        draw(st.sampled_from(orders)),
        draw(st.integers(1, 3)),
    )


@st.composite
def computations(draw: st.DrawFn) -> np.ndarray:
    n = draw(st.integers(1, 6))
    return np.array(draw(st.lists(vectors(n, EIGHTHS), min_size=1, max_size=8)))


# the two together


@settings(max_examples=300)  # most small cases tell nothing apart, and one takes a millisecond
@given(cases(EIGHTHS))
def test_recursion_and_simulation_agree_exactly(case: Case) -> None:
    np.testing.assert_array_equal(case.times(), case.times(simulated_finish_times))


@given(cases(SECONDS))
def test_they_agree_on_any_numbers(case: Case) -> None:
    few = 4 * len(case.computed) * EPS  # two additions per step, in one order or in another
    np.testing.assert_allclose(case.times(), case.times(simulated_finish_times), rtol=few)


@given(EIGHTHS, computations(), st.integers(0, 8).map(lambda k: k / 8), st.sampled_from([1, 2, 4, 8]))
def test_all_reduces_agree_exactly(communication: float, computed: np.ndarray, begins: float, buckets: int) -> None:
    found = all_reduce_times(communication, computed)
    np.testing.assert_array_equal(found, simulated_all_reduce_times(communication, computed))
    found = all_reduce_times(communication, computed, begins=begins, buckets=buckets)
    again = simulated_all_reduce_times(communication, computed, begins=begins, buckets=buckets)
    np.testing.assert_array_equal(found, again)


@given(SECONDS, computations(), st.floats(0, 1), st.integers(1, 12))
def test_all_reduces_agree_on_any_numbers(
    communication: float, computed: np.ndarray, begins: float, buckets: int
) -> None:
    found = all_reduce_times(communication, computed, begins=begins, buckets=buckets)
    again = simulated_all_reduce_times(communication, computed, begins=begins, buckets=buckets)
    few = (
        4 * len(computed) * (buckets + 4) * EPS
    )  # one addition per bucket and step, four roundings of when it is ready
    np.testing.assert_allclose(found, again, rtol=few)


# counted by hand

PAIR = {0: [1], 1: [0]}
BY_HAND = [
    ("awc", [hearing(PAIR, 2, 0.5)], [[1, 2], [1, 2]], 1, [[0, 0], [1, 2], [2.5, 4]]),
    ("atc", [hearing(PAIR, 2, 0.5)], [[1, 2], [1, 2]], 1, [[0, 0], [2.5, 2.5], [5, 5]]),
    ("cta", [hearing(PAIR, 2, 0.5)], [[1, 2], [1, 2]], 1, [[0, 0], [1.5, 2.5], [4, 5]]),
    # the exchange is longer than the computing, and its length is the receiver's own
    ("awc", [hearing(PAIR, 2, [3, 5])], [[1, 2], [1, 2]], 1, [[0, 0], [3, 5], [8, 10]]),
    # one hears, the other hears nobody: it waits for nobody and pays no delay
    ("awc", [hearing({0: [1]}, 2, [0.5, 7])], [[1, 2], [1, 2]], 1, [[0, 0], [1, 2], [2.5, 4]]),
    ("atc", [hearing({0: [1]}, 2, [0.5, 7])], [[1, 2], [1, 2]], 1, [[0, 0], [2.5, 2], [4.5, 4]]),
    ("cta", [hearing({0: [1]}, 2, [0.5, 7])], [[1, 2], [1, 2]], 1, [[0, 0], [1.5, 2], [3.5, 4]]),
    # an exchange cannot begin before the receiver itself is ready, even if all it hears are
    ("awc", [hearing({0: [1]}, 2, 1.0)], [[3, 1], [0.5, 1]], 1, [[0, 0], [3, 1], [4, 2]]),
    ("atc", [hearing({0: [1]}, 2, 1.0)], [[3, 1], [0.5, 1]], 1, [[0, 0], [4, 1], [5.5, 2]]),
    ("cta", [hearing({0: [1]}, 2, 1.0)], [[3, 1], [0.5, 1]], 1, [[0, 0], [4, 1], [5.5, 2]]),
    # steps 1 and 3 exchange, by the first and the second round; there is no third
    (
        "atc",
        [hearing({0: [1]}, 2, 1.0), hearing({1: [0]}, 2, 2.0)],
        [[1, 2]] * 5,
        2,
        [[0, 0], [1, 2], [5, 4], [6, 6], [7, 10], [8, 12]],
    ),
    (
        "awc",
        [hearing({0: [1]}, 2, 1.0), hearing({1: [0]}, 2, 2.0)],
        [[1, 2]] * 5,
        2,
        [[0, 0], [1, 2], [3, 4], [4, 6], [5, 8], [6, 10]],
    ),
    # news of a hiccup of 0 travels one hop per step along a directed ring of three and goes nowhere else
    (
        "awc",
        [hearing({0: [2], 1: [0], 2: [1]}, 3)],
        [[9, 1, 1], [1, 1, 1], [1, 1, 1]],
        1,
        [[0, 0, 0], [9, 1, 1], [10, 9, 2], [11, 10, 9]],
    ),
    # who is heard does not wait for those that hear it, and may be two steps ahead
    ("awc", [hearing({1: [0]}, 2, 5.0)], [[1, 1]] * 3, 1, [[0, 0], [1, 5], [2, 10], [3, 15]]),
    # several are heard: the last of them counts; the rounds take turns and begin again
    (
        "atc",
        [hearing({0: [1, 2], 1: [2]}, 3, 1.0), hearing({2: [0]}, 3, 0.0)],
        [[1, 2, 4]] * 3,
        1,
        [[0, 0, 0], [5, 5, 4], [6, 7, 8], [13, 13, 12]],
    ),
]


@both
@pytest.mark.parametrize(("order", "by", "computed", "every", "expected"), BY_HAND)
def test_counted_by_hand(
    times: Callable[..., np.ndarray], order: Order, by: list[Round], computed: list, every: int, expected: list
) -> None:
    found = Case(by, np.array(computed, dtype=float), order, every).times(times)
    np.testing.assert_array_equal(found, np.array(expected, dtype=float))


@both_all_reduce
@pytest.mark.parametrize(
    ("communication", "begins", "buckets", "expected"),
    [
        (2, None, 1, [0, 6, 11]),  # 4 + 2, then 3 + 2
        (2, 0.5, 1, [0, 6, 11]),  # one bucket is ready when all is computed
        (2, 0.5, 2, [0, 5, 9.25]),  # ready at 3 and 4: 3-4, 4-5; then at 2.25 and 3: 2.25-3.25, 3.25-4.25
        (8, 0.0, 2, [0, 10, 19.5]),  # ready at 2 and 4: 2-6, 6-10; at 1.5 and 3: 1.5-5.5, 5.5-9.5
        (8, 1.0, 4, [0, 12, 23]),  # nothing is ready before the end
    ],
)
def test_all_reduces_counted_by_hand(
    times: Callable[..., np.ndarray], communication: float, begins: float | None, buckets: int, expected: list
) -> None:
    computed = np.array([[1.0, 4.0], [3.0, 2.0]])
    found = times(communication, computed, begins=begins, buckets=buckets)
    np.testing.assert_array_equal(found, np.array(expected, dtype=float))


# what holds for any times


@given(cases(SECONDS), st.data())
def test_slower_computing_and_longer_delays_end_no_step_sooner(case: Case, data: st.DataObject) -> None:
    more = np.array([data.draw(vectors(case.size, SECONDS)) for _ in case.computed])
    longer = np.array(data.draw(vectors(case.size, SECONDS)))
    slower = replace(case, computed=case.computed + more)
    assert (case.times() <= slower.times()).all()
    assert (case.times() <= case.with_rounds(lambda r: Round(r.senders, r.delay + longer)).times()).all()


@given(cases(SECONDS), st.data())
def test_to_hear_more_ends_no_step_sooner(case: Case, data: st.DataObject) -> None:
    someone = np.array(data.draw(st.lists(st.integers(0, case.size - 1), min_size=case.size, max_size=case.size)))
    more = case.with_rounds(lambda r: Round(np.column_stack([r.senders, someone]), r.delay))
    assert (case.times() <= more.times()).all()


@given(cases(EIGHTHS), st.integers(0, 9))
def test_another_unit_of_time(case: Case, unit: int) -> None:
    scaled = replace(case, computed=unit * case.computed).with_rounds(lambda r: Round(r.senders, unit * r.delay))
    np.testing.assert_array_equal(scaled.times(), unit * case.times())


@given(cases(SECONDS), st.data())
def test_names_of_workers_do_not_matter(case: Case, data: st.DataObject) -> None:
    new = np.array(data.draw(st.permutations(range(case.size))))  # worker i is called new[i]
    old = np.argsort(new)
    renamed = replace(case, computed=case.computed[:, old]).with_rounds(
        lambda r: Round(new[r.senders][old], r.delay[old])
    )
    np.testing.assert_array_equal(renamed.times()[:, new], case.times())


@given(cases(EIGHTHS), EIGHTHS)
def test_who_begins_later_ends_later_by_as_much(case: Case, later: float) -> None:
    case = at_every_step(case)
    first = np.full((1, case.size), later)
    waited = Case([hearing({}, case.size), *case.rounds], np.concatenate([first, case.computed]), case.order)
    np.testing.assert_array_equal(waited.times()[1:], case.times() + later)


@given(cases(EIGHTHS), EIGHTHS, st.integers(0, 7))
def test_what_everybody_loses_in_a_step_is_lost_unless_an_exchange_covers_it(
    case: Case, more: float, step: int
) -> None:
    """Atc and cta lose all of it; awc at most that, and all of it if the exchanges become longer too."""
    case = at_every_step(case)
    step %= len(case.computed)
    after = (np.arange(len(case.computed) + 1) > step)[:, None] * more
    slower = case.computed.copy()
    slower[step] += more
    found = replace(case, computed=slower).times() - case.times()
    if case.order != "awc":
        np.testing.assert_array_equal(found, after + 0 * found)
        return
    assert (found >= 0).all()
    assert (found <= after).all()
    r = case.rounds[step]
    longer = [*case.rounds[:step], Round(r.senders, r.delay + more), *case.rounds[step + 1 :]]
    found = replace(case, computed=slower, rounds=longer).times() - case.times()
    np.testing.assert_array_equal(found, after + 0 * found)


@given(cases(SECONDS))
def test_to_do_both_at_once_is_never_slower(case: Case) -> None:
    awc, atc, cta = (replace(case, order=order).times() for order in ORDERS)
    assert (awc <= atc).all()
    assert (awc <= cta).all()


@given(cases(SECONDS))
def test_combine_then_adapt_is_adapt_then_combine_half_a_step_later(case: Case) -> None:
    atc = replace(at_every_step(case), order="atc")
    nothing = np.zeros((1, case.size))
    cta = Case([hearing({}, case.size), *atc.rounds], np.concatenate([case.computed, nothing]), "cta")
    np.testing.assert_array_equal(cta.times()[1:], atc.times() + np.concatenate([case.computed, nothing]))


@given(cases(SECONDS))
def test_between_ones_own_computing_and_the_longest_of_every_step(case: Case) -> None:
    """Rounding is monotone: sums that are taken in the order of the steps bound each other without a tolerance."""
    case = at_every_step(case)
    assert (case.times()[1:] >= np.cumsum(case.computed, axis=0)).all()
    for_awc, for_others = 0.0, 0.0
    for k, (r, c) in enumerate(zip(case.rounds, case.computed, strict=True), start=1):
        exchanging = (r.senders != np.arange(case.size)[:, None]).any(axis=1)
        longest = r.delay[exchanging].max(initial=0.0)
        for_awc += max(c.max(), longest)
        for_others += c.max() + longest
        found = case.times()[k].max()
        assert found <= (for_awc if case.order == "awc" else for_others * (1 + 4 * k * EPS))


@given(cases(SECONDS), st.data())
def test_who_hears_nobody_has_no_delay_and_waits_for_nobody(case: Case, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, case.size - 1))
    other = np.arange(case.size) != i
    alone = case.with_rounds(lambda r: Round(np.where(other[:, None], r.senders, i), r.delay))
    np.testing.assert_array_equal(alone.times()[1:, i], np.cumsum(case.computed[:, i]))


@given(cases(EIGHTHS, ("atc",)), EIGHTHS)
def test_to_hear_everybody_is_an_all_reduce(case: Case, communication: float) -> None:
    n = case.size if case.size > 1 else 2
    computed = np.resize(case.computed, (len(case.computed), n))
    everybody = hearing({i: [j for j in range(n) if j != i] for i in range(n)}, n, communication)
    found = finish_times([everybody], computed, order="atc")
    np.testing.assert_array_equal(found, np.tile(all_reduce_times(communication, computed)[:, None], n))


# closed forms


@both
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("delay", [0, 0.5, 1, 2.5])
def test_without_noise_a_step_is_the_longer_part_or_both(
    times: Callable[..., np.ndarray], order: Order, every: int, delay: float
) -> None:
    k, n = np.arange(9), 5
    exchange = max(0, delay - 1) if order == "awc" else delay
    ring = hearing({i: [(i + 1) % n, (i - 1) % n] for i in range(n)}, n, delay)
    found = times([ring], np.ones((8, n)), order=order, every=every)
    np.testing.assert_array_equal(found, np.tile((k + (k // every) * exchange)[:, None], n))


@both
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("delay", [0, 0.25, 1])
@pytest.mark.parametrize("hops", [(1,), (1, -1)], ids=["directed ring", "ring"])
def test_a_straggler_sets_the_pace_of_those_that_its_news_has_reached(
    times: Callable[..., np.ndarray], order: Order, delay: float, hops: tuple[int, ...]
) -> None:
    """Worker 0 takes s, all others 1 >= delay; r hops from it one has lost the steps that the news took, no more.

    The longest path of k links to a worker: it stays at 0 for k - r steps and comes in r hops, or never was at 0. Under
    atc the first hop still costs what 0 computes before it, under awc a hop costs no more than the delay.
    """
    n, steps, s = 6, 10, 3.5
    ring = hearing({i: [(i - h) % n for h in hops] for i in range(n)}, n, delay)
    computed = np.ones((steps, n))
    computed[:, 0] = s
    found = times([ring], computed, order=order)
    r = np.arange(n) if len(hops) == 1 else np.minimum(np.arange(n), n - np.arange(n))
    k = np.arange(steps + 1)[:, None]
    if order == "awc":
        paced, own = (k - r) * s + r * delay, k
    elif order == "cta":
        paced, own = (k - r) * s + r + k * delay, k * (1 + delay)
    else:
        at_zero = np.where(r > 0, k - r + 1, k)
        paced, own = at_zero * s + (k - at_zero) + k * delay, k * (1 + delay)
    np.testing.assert_array_equal(found, np.where(k >= r, np.maximum(paced, own), own))


@given(EIGHTHS, computations(), st.integers(0, 8).map(lambda k: k / 8), st.sampled_from([1, 2, 4]))
def test_buckets_wait_for_the_first_of_them_or_for_the_last(
    communication: float, computed: np.ndarray, begins: float, buckets: int
) -> None:
    """The buckets are ready at equal intervals and take equally long: either all but the first wait, or none does."""
    slowest = computed.max(axis=1)
    first = slowest * (begins + (1 - begins) / buckets) + communication
    last = slowest + communication / buckets
    found = all_reduce_times(communication, computed, begins=begins, buckets=buckets)
    np.testing.assert_array_equal(np.diff(found), np.maximum(first, last))
    assert (found <= all_reduce_times(communication, computed)).all()
    assert (found <= all_reduce_times(communication, computed, begins=(1 + begins) / 2, buckets=buckets)).all()
    assert (all_reduce_times(communication, computed, begins=begins, buckets=2 * buckets) <= found).all()
