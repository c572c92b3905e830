"""The runtime model: distributions, simulated pace, closed forms and bounds against each other and against sampling."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dissensus.theory import MixingError, topology
from dissensus.theory.runtime import (
    Cluster,
    Compute,
    Constant,
    Empirical,
    Gamma,
    Link,
    LogNormal,
    Rivals,
    Round,
    ShiftedExponential,
    Stragglers,
    all_reduce_pace,
    all_reduce_times,
    even_rounds,
    expected_longest,
    explicit_bound,
    finish_times,
    noiseless_regime,
    pace,
    pace_bounds,
    path_bound,
    rounds_on,
    subgaussian_regime,
)
from dissensus.theory.runtime.compute import deviation, mean
from dissensus.theory.runtime.recursion import ORDERS, Order

COMPUTES: list[Compute] = [
    LogNormal(0.1),
    LogNormal(0.6),
    Gamma(0.3),
    ShiftedExponential(0.5),
    Empirical(np.random.default_rng(0).gamma(9.0, size=400)),
    Stragglers(LogNormal(0.1), 0.05, 3.0),
]
NAMES = [one.name for one in COMPUTES]


def drawn(compute: Compute, *shape: int, seed: int = 1) -> np.ndarray:
    return compute.at(np.random.default_rng(seed).standard_normal(shape))


# ---- distributions


@pytest.mark.parametrize("compute", COMPUTES, ids=NAMES)
def test_a_distribution_has_the_mean_and_the_longest_that_samples_have(compute: Compute) -> None:
    found = drawn(compute, 200_000, 5)
    assert mean(compute) == pytest.approx(found.mean(), abs=5 * found.std() / 1e3)
    assert deviation(compute) == pytest.approx(found.std(), rel=0.03)
    longest = found.max(axis=1)
    assert expected_longest(compute, 5) == pytest.approx(longest.mean(), abs=5 * longest.std() / 447)
    score = np.linspace(-6, 6, 1001)
    assert (np.diff(compute.at(score)) >= 0).all()
    assert (compute.at(score) >= 0).all()


@pytest.mark.parametrize(
    ("compute", "sigma"), [(LogNormal(0.4), 0.4), (Gamma(0.4), 0.4), (ShiftedExponential(0.4), 0.4), (Constant(), 0.0)]
)
def test_a_distribution_is_what_it_says(compute: Compute, sigma: float) -> None:
    assert mean(compute) == pytest.approx(1, abs=1e-9)
    assert deviation(compute) == pytest.approx(sigma, abs=1e-7)


def test_the_longest_of_n_exponentials_is_harmonic() -> None:
    for n in (1, 2, 7, 1000, 10**6):
        harmonic = float(np.sum(1 / np.arange(1, n + 1)))
        assert expected_longest(ShiftedExponential(1.0), n) == pytest.approx(harmonic, rel=1e-7)


def test_logs_have_the_deviation_of_the_logarithm() -> None:
    assert np.log(LogNormal.of_log(0.3).at(np.array([2.0, 1.0]))) @ [1, -1] == pytest.approx(0.3, rel=1e-12)


def test_stragglers_are_so_many_and_so_slow() -> None:
    found = drawn(Stragglers(Constant(), 0.1, 4.0), 100_000)
    assert set(np.round(found, 6)) >= {1.0, 4.0}
    assert (found > 3).mean() == pytest.approx(0.1, abs=0.005)
    assert mean(Stragglers(Constant(), 0.1, 4.0)) == pytest.approx(1.3, abs=2e-3)


# ---- pace


def by_recursion(rounds: list[Round], compute: Compute, order: Order, every: int, steps: int, seed: int) -> float:
    """From one long run of the exact recursion."""
    ended = finish_times(rounds, drawn(compute, steps, rounds[0].size, seed=seed), order=order, every=every)
    return float((ended[-1] - ended[steps // 5]).mean() / (steps - steps // 5))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("name", "every"), [("one-peer-ring", 1), ("exponential", 1), ("one-peer-exponential", 3)])
def test_pace_is_that_of_the_recursion(order: Order, name: str, every: int) -> None:
    rounds = even_rounds(topology(name, 8), 0.8)
    compute = Gamma(0.4)
    alone = np.array([by_recursion(rounds, compute, order, every, 4000, seed) for seed in range(6)])
    found = pace(rounds, compute, order=order, every=every, iterations=2000)
    error = np.hypot(alone.std(ddof=1) / np.sqrt(6), found.standard_error[0, 0])
    assert found.standard_error[0, 0] < 2e-3
    assert abs(found.value[0, 0] - alone.mean()) < 4.5 * error


def test_a_grid_is_its_points_and_a_seed_is_a_number() -> None:
    rounds, computes = even_rounds(topology("one-peer-ring", 6), 1.0), [LogNormal(0.1), LogNormal(0.3)]
    grid = pace(rounds, computes, factors=[0.0, 0.7, 1.3], iterations=200, replicas=32, seed=5)
    for (i, one), (j, factor) in itertools.product(enumerate(computes), enumerate([0.0, 0.7, 1.3])):
        point = pace(rounds, one, factors=[factor], iterations=200, replicas=32, seed=5)
        assert grid.value[i, j] == pytest.approx(point.value[0, 0], rel=1e-6)
    other = pace(rounds, computes, factors=[0.0, 0.7, 1.3], iterations=200, replicas=32, seed=6)
    assert (other.value != grid.value).any()
    assert (np.abs(other.value - grid.value) < 6 * np.hypot(other.standard_error, grid.standard_error)).all()


@pytest.mark.parametrize("delay", [0.0, 0.5, 1.0, 2.5])
def test_without_noise_the_pace_is_known(delay: float) -> None:
    rounds = even_rounds(topology("one-peer-exponential", 8), delay)
    assert pace(rounds, Constant(), iterations=64).value[0, 0] == pytest.approx(max(1, delay), abs=1e-6)
    for order in ("atc", "cta"):
        assert pace(rounds, Constant(), order=order, iterations=64).value[0, 0] == pytest.approx(1 + delay, abs=1e-6)
    bounds = pace_bounds(rounds, Constant())
    assert bounds.lower == pytest.approx(max(1, delay))
    assert bounds.lower <= bounds.upper + 1e-12


def test_whole_cycles_are_counted() -> None:
    """Three cheap rounds and a dear one, no noise: the mean is exact whatever the number of iterations."""
    dear, cheap = (even_rounds(topology("ring", 4), d)[0] for d in (5.0, 0.0))
    for iterations in (64, 70, 1001):
        found = pace([cheap, cheap, dear, cheap], Constant(), every=3, iterations=iterations)
        assert found.value[0, 0] == pytest.approx((11 + 5) / 12, abs=1e-6)
        assert found.standard_error[0, 0] < 1e-6


def test_a_worker_that_is_always_slower_sets_the_pace() -> None:
    rounds = even_rounds(topology("one-peer-ring", 8), 0.2)
    found = pace(rounds, LogNormal(0.02), speeds=np.array([1, 1, 1, 1.5, 1, 1, 1, 1.0]), iterations=2000)
    assert found.value[0, 0] == pytest.approx(1.5, abs=0.005)


def test_the_anchors_of_the_log_normal() -> None:
    """Figures that an independent trial of the same recursion had found, to its three decimals."""
    rounds = even_rounds(topology("one-peer-ring", 16), 1.0)
    found = pace(rounds, [LogNormal.of_log(0.1), LogNormal.of_log(0.3)], factors=[0, 0.5, 0.9, 1, 1.25, 2])
    known = [[1.010, 1.019, 1.050, 1.081, 1.256, 2.0], [1.083, 1.129, 1.226, 1.269, 1.411, 2.019]]
    np.testing.assert_allclose(found.value, known, atol=2.5e-3)
    longest = [expected_longest(LogNormal.of_log(s), 16) for s in (0.02, 0.05, 0.1, 0.2, 0.3)]
    np.testing.assert_allclose(longest, [1.036, 1.091, 1.189, 1.404, 1.646], atol=6e-4)


def test_many_workers_do_not_lose_the_clock() -> None:
    rounds = even_rounds(topology("one-peer-ring", 20_000), 0.5)
    long = pace(rounds, LogNormal(0.2), iterations=400, replicas=1)
    short = pace(even_rounds(topology("one-peer-ring", 64), 0.5), LogNormal(0.2), iterations=4000)
    assert long.value[0, 0] == pytest.approx(short.value[0, 0], abs=0.004)


# ---- closed forms and bounds


@pytest.mark.parametrize(("begins", "buckets"), [(None, 1), (0.4, 10), (0.0, 1), (1.0, 5)])
def test_all_reduce_is_exact(begins: float | None, buckets: int) -> None:
    compute = Gamma(0.5)
    steps = all_reduce_times(0.7, drawn(compute, 40_000, 6), begins=begins, buckets=buckets)
    exact = all_reduce_pace(compute, 6, 0.7, begins=begins, buckets=buckets)
    assert exact == pytest.approx(steps[-1] / 40_000, abs=0.012)


def test_unequal_buckets_are_sent_one_after_another() -> None:
    computed = drawn(Gamma(0.5), 50, 4)
    equal = [(0.4 + 0.6 * b / 5, 0.2) for b in range(1, 6)]
    np.testing.assert_allclose(
        all_reduce_times(0.9, computed, buckets=equal), all_reduce_times(0.9, computed, begins=0.4, buckets=5)
    )
    late = all_reduce_times(1.0, np.ones((1, 2)), buckets=[(0.25, 0.5), (1.0, 0.5)])
    assert late[-1] == 1.5
    assert all_reduce_times(2.0, np.ones((1, 2)), buckets=[(0.25, 0.5), (1.0, 0.5)])[-1] == 2.25
    with pytest.raises(MixingError, match="shares that sum to 1"):
        all_reduce_times(1.0, computed, buckets=[(0.5, 0.5)])


CASES = [(c, n, d, o, t) for c in COMPUTES for n, t in ((2, "ring"), (8, "one-peer-exponential"), (9, "star"))
         for d in (0.3, 1.1) for o in ORDERS]  # fmt: skip


@pytest.mark.parametrize(("compute", "n", "delay", "order", "name"), CASES)
def test_the_pace_lies_between_its_bounds(compute: Compute, n: int, delay: float, order: Order, name: str) -> None:
    rounds = even_rounds(topology(name, n), delay)
    bounds = pace_bounds(rounds, compute, order=order)
    found = pace(rounds, compute, order=order, iterations=600)
    margin = 4 * found.standard_error[0, 0]
    assert bounds.lower - margin <= found.value[0, 0] <= bounds.upper + margin
    assert bounds.upper <= expected_longest(compute, n, lambda c: np.maximum(c, delay) if order == "awc" else c + delay)


def test_rare_long_steps_are_in_the_bound() -> None:
    """Cut away, they must be paid for."""
    rare = Stragglers(Constant(), 0.002, 60.0)
    rounds = even_rounds(topology("one-peer-exponential", 16), 0.5)
    found = pace(rounds, rare, iterations=8000)
    assert found.value[0, 0] - 4 * found.standard_error[0, 0] > mean(rare)
    assert path_bound([(0.5, 2)], rare, 16) > found.value[0, 0] - 4 * found.standard_error[0, 0]


def test_the_paths_do_not_know_how_many_workers_there_are() -> None:
    few, many = (path_bound([(0.5, 2)], LogNormal(0.1), n) for n in (16, 10**5))
    assert many == pytest.approx(few, abs=2e-4)
    assert few < 1.05
    assert expected_longest(LogNormal(0.1), 10**5) > 1.5


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 0.45), st.floats(0, 3), st.integers(1, 6))
def test_the_explicit_bound_is_weaker_than_the_paths(half: float, delay: float, heard: int) -> None:
    """Times spread evenly over an interval of that half length are sub-Gaussian with it."""
    even = Empirical(np.linspace(1 - half, 1 + half, 2))
    for order in ORDERS:
        paths = path_bound([(delay, heard)], even, 8, order=order)
        assert paths <= explicit_bound(half, delay, heard, order=order) + 1e-4


# ---- the regime


def test_without_noise_the_regime_is_exact() -> None:
    assert noiseless_regime(0.3, 1.0) == pytest.approx((0.3, 10 / 3))
    assert noiseless_regime(0.3, 0.5) == (pytest.approx(0.3), np.inf)
    assert noiseless_regime(0.5, 2.0) == pytest.approx((0.5, 0.5))
    assert noiseless_regime(0.5, 2.1) is None
    (found,) = Rivals(1.0, 16).guaranteed_regime(0.3, Constant())
    assert found == pytest.approx((0.3, 10 / 3), rel=1e-4)


def test_the_regime_ends_where_it_ends_however_far_out() -> None:
    """Speed-up (1 + gamma) / max(1, omega gamma)."""
    (found,) = Rivals(0.9, 8).guaranteed_regime(0.1115, Constant())
    high = 1 / (1.1115 * 0.9 - 1)
    assert high > 2000
    assert found == pytest.approx((0.1115, high), rel=1e-6)
    ((low, _),) = Rivals(0.9, 8).guaranteed_regime(0.0005, Constant())
    assert low == pytest.approx(0.0005, rel=1e-4)
    assert Rivals(0.0, 8).guaranteed_regime(0.2, Constant()) == [(pytest.approx(0.2), np.inf)]


@pytest.mark.parametrize(("sigma", "omega"), [(0.1, 16 / 30), (0.2, 1.0), (0.3, 0.33)])
def test_inside_the_regime_it_is_that_much_faster(sigma: float, omega: float) -> None:
    rivals, compute = Rivals(omega, 16), LogNormal(sigma)
    gammas = np.array([0.05, 0.3, 1.0, 3.0])
    found = pace(even_rounds(topology("one-peer-ring", 16), 1.0), compute, factors=list(omega * gammas))
    for gamma, time in zip(gammas, found.value[0], strict=True):
        speedup = all_reduce_pace(compute, 16, gamma) / time
        assert rivals.guaranteed_speedup(gamma, compute) <= speedup + 0.005
        assert rivals.possible_speedup(gamma, compute) >= speedup - 0.005
        inside = any(low <= gamma <= high for low, high in rivals.guaranteed_regime(0.3, compute))
        assert inside == (rivals.guaranteed_speedup(gamma, compute) >= 1.3)


def test_the_regime_for_any_noise_is_inside_that_for_this_one() -> None:
    half = 0.05
    compute = Empirical(np.linspace(1 - half, 1 + half, 2))
    low, high = subgaussian_regime(0.3, 0.9, half, 2) or (0.0, 0.0)
    (own,) = Rivals(0.9, 64).guaranteed_regime(0.3, compute)
    assert own[0] < low < high < own[1]


# ---- clusters

GB = 1e9 / 8
FOUR = Cluster(4, 4, Link(1e-5, 100 * GB), Link(5e-5, 25 * GB))


def test_a_pair_between_nodes_costs_half_of_all_reduce() -> None:
    flat = Cluster(8, 1, Link(0, 1), Link(0, GB))
    (one, other) = (r.delay for r in rounds_on(topology("one-peer-ring", 8), flat, 1e8))
    np.testing.assert_allclose(np.concatenate([one, other]), 0.8)
    assert one[0] / flat.all_reduce(1e8) == pytest.approx(8 / 14)


def test_who_shares_a_card_shares_its_bandwidth() -> None:
    alternating, jumping = topology("aer", 16, workers_per_node=4), topology("one-peer-exponential", 16)
    aer = np.mean([r.delay.max() for r in rounds_on(alternating, FOUR, 1e8, groups=True)])
    exponential = np.mean([r.delay.max() for r in rounds_on(jumping, FOUR, 1e8)])
    assert rounds_on(jumping, FOUR, 1e8)[2].delay.max() == pytest.approx(5e-5 + 4 * 1e8 / (25 * GB))
    assert aer < exponential
    twice = Cluster(4, 4, FOUR.inside, FOUR.between, cards=4)
    assert rounds_on(jumping, twice, 1e8)[2].delay.max() == pytest.approx(5e-5 + 1e8 / (25 * GB))


@pytest.mark.parametrize("cards", [1, 2, 4])
def test_groups_share_cards_as_messages_do(cards: int) -> None:
    many = Cluster(4, 4, FOUR.inside, FOUR.between, cards)
    across = rounds_on(topology("one-peer-hypercube", 16), many, 1e8, groups=True)[2]
    np.testing.assert_allclose(across.delay, 2 * (5e-5 + 0.5e8 * (4 / cards) / (25 * GB)))


def test_a_round_inside_the_nodes_does_not_touch_the_network() -> None:
    inside = rounds_on(topology("aer", 16, workers_per_node=4), FOUR, 1e8, groups=True)[0]
    quick = 2 * 3 * (1e-5 + 1e8 / 4 / (100 * GB))
    assert sorted(set(np.round(inside.delay, 9)))[0] == pytest.approx(quick)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["ring", "one-peer-exponential", "complete", "star"]), st.floats(1.0, 4.0), st.booleans())
def test_faster_links_are_never_slower(name: str, times: float, groups: bool) -> None:
    quicker = Cluster(4, 4, FOUR.inside, Link(FOUR.between.latency / times, FOUR.between.bandwidth * times))
    for slow, fast in zip(
        *(rounds_on(topology(name, 16), one, 1e7, groups=groups) for one in (FOUR, quicker)), strict=True
    ):
        assert (fast.delay <= slow.delay * (1 + 1e-12)).all()
        assert np.array_equal(fast.senders, slow.senders)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: LogNormal(-1), "deviation must be a finite number >= 0"),
        (lambda: ShiftedExponential(2), "deviation must be at most 1"),
        (lambda: Empirical(np.array([1.0])), "at least two measured times"),
        (lambda: Stragglers(Constant(), 2, 2), "a probability in"),
        (lambda: Link(-1, 1), "a latency >= 0"),
        (lambda: Cluster(0, 1, FOUR.inside, FOUR.between), "at least one node"),
        (lambda: rounds_on(topology("ring", 8), FOUR, 1.0), "has 16 workers and the topology 8"),
        (lambda: Round(np.array([[3], [0]]), np.zeros(2)), "hears workers 0 to 1"),
        (lambda: Round(np.array([[1], [0]]), np.array([-1.0, 0])), "not negative"),
        (lambda: pace([], Constant()), "at least one round"),
        (lambda: pace(even_rounds(topology("ring", 3), 1), Constant(), iterations=3), "iterations must be at least"),
        (lambda: Rivals(1.0, 4, heard=5), "waits for 1 to n = 4"),
        (lambda: all_reduce_pace(Constant(), 4, -1.0), "not negative"),
    ],
)
def test_what_cannot_be_is_refused(call, said) -> None:
    with pytest.raises(MixingError, match=said):
        call()
