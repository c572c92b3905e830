"""Placements against brute force in plain Python, the properties of both costs, and what the search finds."""

from collections.abc import Callable
from itertools import combinations, pairwise, permutations
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.theory import MixingError, Topology, from_matrices, topology
from dissensus.theory.runtime.placement import (
    ACTIVATION_BYTES,
    GRADIENT_BYTES,
    GROUPS,
    STAGES,
    Links,
    PipelinePlacement,
    Problem,
    TopologyPlacement,
    bottleneck,
    clusters,
    data_centre,
    eight_regions,
    four_regions,
    place,
    random_placements,
    spot_instances,
    two_universities,
)
from dissensus.theory.runtime.placement import cost as costs
from dissensus.theory.runtime.placement.search import Guide

EPS = np.finfo(float).eps
ROUND = 64 * EPS
"""Sums of fewer than 64 terms, in whatever order."""
NAMES = ("ring", "one-peer-exponential", "star", "directed-ring", "complete")


def rounds_oracle(schedule: Topology, links: Links, size: float, placement: list[int]) -> float:
    """Seconds a round: row i of W receives from column j."""
    total = 0.0
    for w in schedule:
        slowest = 0.0
        for receiver, row in enumerate(w.dense().tolist()):
            for sender, weight in enumerate(row):
                if weight != 0 and sender != receiver:
                    a, b = placement[sender], placement[receiver]
                    slowest = max(slowest, float(links.latency[a, b]) + size / float(links.bandwidth[a, b]))
        total += slowest
    return total / len(list(schedule))


def pipeline_oracle(problem: PipelinePlacement, placement: list[int]) -> float:
    """Data parallel + 2 pipeline over all orders of the stages and all matchings."""
    s, d = problem.stages, problem.groups
    latency, bandwidth = problem.links.latency.tolist(), problem.links.bandwidth.tolist()
    stages = [placement[j * d : (j + 1) * d] for j in range(s)]
    slowest = 0.0
    for stage in stages:
        for a in stage:
            peers = [2 * (latency[a][b] + problem.gradient_bytes / (bandwidth[a][b] * d)) for b in stage if b != a]
            slowest = max(slowest, sum(peers))

    def link(a: int, b: int) -> float:
        return latency[a][b] + problem.activation_bytes / bandwidth[a][b]

    def between(j: int, k: int) -> float:
        return min(max(link(a, b) for a, b in zip(stages[j], q, strict=True)) for q in permutations(stages[k]))

    w = {(j, k): between(j, k) for j in range(s) for k in range(s) if j != k}
    shortest = min(sum(w[step] for step in pairwise(o)) for o in permutations(range(s)))
    return slowest + 2 * shortest


@st.composite
def link_matrices(draw: st.DrawFn, n: int, *, symmetric: bool) -> Links:
    """Links of a few different values, with ties, or of many."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):
        latency, bandwidth = rng.integers(0, 4, (n, n)) / 1.0, rng.integers(1, 4, (n, n)) / 1.0
    else:
        latency, bandwidth = rng.uniform(0, 3, (n, n)), np.exp(rng.normal(size=(n, n)))
    links = Links(latency, bandwidth)
    return links.symmetrised() if symmetric else links


@st.composite
def topology_problems(draw: st.DrawFn, most: int = 7) -> TopologyPlacement:
    n = draw(st.integers(3, most))
    size = draw(st.sampled_from([0.0, 1.0, 3.5]))
    return TopologyPlacement(topology(draw(st.sampled_from(NAMES)), n), draw(link_matrices(n, symmetric=False)), size)


@st.composite
def pipeline_problems(draw: st.DrawFn, most: int = 12) -> PipelinePlacement:
    shapes = [(s, d) for s in range(1, 5) for d in range(1, 5) if 2 <= s * d <= most]
    s, d = draw(st.sampled_from(shapes))
    sizes = (draw(st.sampled_from([0.0, 1.0, 6.0])), draw(st.sampled_from([0.0, 1.0, 6.0])))
    return PipelinePlacement(draw(link_matrices(s * d, symmetric=True)), s, d, *sizes)


problems = st.one_of(topology_problems(), pipeline_problems())


def with_links(problem: TopologyPlacement | PipelinePlacement, links: Links, times: float = 1.0) -> Problem:
    if isinstance(problem, TopologyPlacement):
        return TopologyPlacement(problem.topology, links, times * problem.message_bytes)
    sizes = (times * problem.gradient_bytes, times * problem.activation_bytes)
    return PipelinePlacement(links, problem.stages, problem.groups, *sizes)


def some(problem: Problem, count: int = 5) -> np.ndarray:
    return np.array([np.random.default_rng(k).permutation(problem.size) for k in range(count)])


def every(n: int) -> np.ndarray:
    return np.array(list(permutations(range(n))))


@given(topology_problems())
def test_a_round_takes_as_long_as_its_slowest_message(problem: TopologyPlacement) -> None:
    expected = [
        rounds_oracle(problem.topology, problem.links, problem.message_bytes, p.tolist()) for p in some(problem)
    ]
    np.testing.assert_allclose(problem.cost(some(problem)), expected, rtol=ROUND)


@given(pipeline_problems())
def test_the_pipeline_costs_what_all_orders_and_matchings_say(problem: PipelinePlacement) -> None:
    expected = [pipeline_oracle(problem, p.tolist()) for p in some(problem)]
    np.testing.assert_allclose(problem.cost(some(problem)), expected, rtol=ROUND)


def test_more_placements_than_are_looked_at_together() -> None:
    links = Links(np.random.default_rng(0).uniform(size=(6, 6)), np.ones((6, 6))).symmetrised()
    many = every(6)[:200]
    for problem in (PipelinePlacement(links, 3, 2, 1.0, 2.0), TopologyPlacement(topology("ring", 6), links, 1.0)):
        np.testing.assert_array_equal(problem.cost(many), [problem.cost(p)[0] for p in many])


@pytest.mark.parametrize("d", [1, 2, 5])
def test_bottleneck_matchings_are_those_of_all_permutations(d: int) -> None:
    links = np.random.default_rng(d).integers(0, 9, (20, d, d)) / 1.0
    expected = [min(max(m[range(d), q]) for q in permutations(range(d))) for m in links]
    np.testing.assert_array_equal(bottleneck(links), expected)


def test_bottlenecks_of_many_devices_agree_with_those_over_subsets(monkeypatch: pytest.MonkeyPatch) -> None:
    links = np.random.default_rng(3).uniform(size=(3, 2, 9, 9))
    over_subsets = bottleneck(links)
    monkeypatch.setattr(costs, "SUBSETS", 8)
    np.testing.assert_array_equal(bottleneck(links), over_subsets)


@given(pipeline_problems())
def test_an_arranged_pipeline_shows_its_cost_in_its_own_links(problem: PipelinePlacement) -> None:
    for p in some(problem, 2):
        q = problem.arranged(p)
        grid = q.reshape(problem.stages, problem.groups)
        before = {frozenset(row) for row in p.reshape(grid.shape).tolist()}
        assert {frozenset(row) for row in grid.tolist()} == before
        steps = sum(float(problem.seconds[1][a, b].max()) for a, b in pairwise(grid))
        assert problem.data_parallel(q)[0] + 2 * steps == pytest.approx(problem.cost(p)[0], rel=ROUND)


@given(pipeline_problems(), st.integers(0, 99))
def test_order_within_stages_and_order_of_stages_do_not_matter(problem: PipelinePlacement, seed: int) -> None:
    rng = np.random.default_rng(seed)
    grid = rng.permutation(problem.size).reshape(problem.stages, problem.groups)
    same = [grid, grid[::-1], rng.permuted(grid, axis=1), rng.permutation(grid)]
    same = np.array([g.ravel() for g in same])
    np.testing.assert_allclose(problem.cost(same), problem.cost(grid.ravel())[0], rtol=ROUND)


@given(problems, st.integers(0, 99))
def test_other_labels_for_the_devices_cost_the_same(problem: TopologyPlacement | PipelinePlacement, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(problem.size)
    other = with_links(problem, problem.links.relabelled(order))
    same = np.argsort(order)[some(problem)]  # the devices of before by their new names
    np.testing.assert_allclose(other.cost(same), problem.cost(some(problem)), rtol=ROUND)


@given(st.one_of(topology_problems(5), pipeline_problems(5)), st.integers(0, 99))
def test_other_labels_leave_the_optimum(problem: TopologyPlacement | PipelinePlacement, seed: int) -> None:
    other = with_links(problem, problem.links.relabelled(np.random.default_rng(seed).permutation(problem.size)))
    best = [one.cost(every(problem.size)).min() for one in (problem, other)]
    assert best[0] == pytest.approx(best[1], rel=ROUND)


@given(problems, st.sampled_from([0.25, 8.0, 1e6]))
def test_more_bytes_over_as_much_more_bandwidth_cost_the_same(
    problem: TopologyPlacement | PipelinePlacement, times: float
) -> None:
    links = Links(problem.links.latency, problem.links.bandwidth * times)
    np.testing.assert_allclose(
        with_links(problem, links, times).cost(some(problem)), problem.cost(some(problem)), ROUND
    )


@given(problems, st.data())
def test_a_slower_link_never_helps(problem: TopologyPlacement | PipelinePlacement, data: st.DataObject) -> None:
    a, b = data.draw(st.lists(st.integers(0, problem.size - 1), min_size=2, max_size=2, unique=True))
    latency, bandwidth = problem.links.latency.copy(), problem.links.bandwidth.copy()
    for i, j in ((a, b), (b, a)) if isinstance(problem, PipelinePlacement) else ((a, b),):
        latency[i, j] += 0.5
        bandwidth[i, j] /= 2
    before = problem.cost(some(problem))
    for links in (Links(latency, problem.links.bandwidth), Links(problem.links.latency, bandwidth)):
        assert (with_links(problem, links).cost(some(problem)) >= before * (1 - ROUND)).all()


@pytest.mark.parametrize(("s", "d"), [(1, 4), (4, 1), (3, 2), (2, 3), (8, 8)])
def test_alike_links_make_all_placements_alike_with_the_known_value(s: int, d: int) -> None:
    n, a, b, dp, pp = s * d, 0.25, 2.0, 3.0, 5.0
    links = Links(np.full((n, n), a), np.full((n, n), b))
    pipeline = PipelinePlacement(links, s, d, dp, pp)
    np.testing.assert_allclose(pipeline.data_parallel(some(pipeline)), 2 * (d - 1) * (a + dp / (b * d)), rtol=ROUND)
    np.testing.assert_allclose(pipeline.pipeline(some(pipeline)), (s - 1) * (a + pp / b), rtol=ROUND)
    ring = TopologyPlacement(topology("ring", n), links, 3.0)
    np.testing.assert_allclose(ring.cost(some(ring)), a + 3.0 / b, rtol=ROUND)
    for problem in (pipeline, ring):
        for roots in range(4):  # no message is slower than another: power means and maxima agree
            assert Guide(problem, np.arange(n), roots).value() == pytest.approx(
                problem.cost(np.arange(n))[0], rel=1e-12
            )
        found = place(problem, descents=2)
        assert found.cost == found.identity
        assert found.random.best == pytest.approx(found.random.mean, rel=ROUND)


def test_the_direction_of_a_link_counts_for_a_topology() -> None:
    # everybody hears the one before: 0 -> 1 -> 2 -> 0; the other way round costs 7
    latency = np.array([[0, 1, 7], [7, 0, 1], [1, 7, 0]])
    problem = TopologyPlacement(topology("directed-ring", 3), Links(latency, np.full((3, 3), np.inf)), 1e9)
    shift = problem.topology[0].dense()
    expected = 1.0 if shift[1, 0] > 0 else 7.0
    assert problem.cost(np.array([[0, 1, 2], [0, 2, 1]])).tolist() == [expected, 8.0 - expected]
    assert place(problem, descents=2).cost == 1.0


def test_rounds_in_which_nobody_speaks_take_no_time() -> None:
    pair = from_matrices([np.eye(2), np.full((2, 2), 0.5)])
    links = Links(np.full((2, 2), 3.0), np.ones((2, 2)))
    assert TopologyPlacement(pair, links, 1.0).cost(np.arange(2)).tolist() == [2.0]
    alone = place(TopologyPlacement(topology("ring", 1), Links(np.zeros((1, 1)), np.ones((1, 1))), 1.0))
    assert (alone.cost, alone.assignment.tolist()) == (0.0, [0])


@pytest.mark.parametrize("roots", [0, 1, 2, 3])
@given(problem=problems)
def test_the_table_of_swaps_is_the_guide_after_each(problem: Problem, roots: int) -> None:
    start = some(problem, 1)[0]
    table = Guide(problem, start, roots).swapped()
    top = float(np.abs(table).max())
    for u in range(problem.size):
        for v in range(problem.size):
            other = Guide(problem, start, roots)
            other.swap(u, v)
            again = Guide(problem, other.placement, roots)
            assert other.value() == pytest.approx(again.value(), rel=ROUND)
            # an error of eps in a sum of powers is one of eps^(1/q) in its root where the sum is zero
            assert table[u, v] == pytest.approx(again.value(), abs=8 * top * (1e2 * EPS) ** (1 / 2**roots), rel=1e-9)


@given(problems)
def test_the_guide_of_the_mean_lies_below_the_maximum_and_rises_towards_it(problem: Problem) -> None:
    start = some(problem, 1)[0]
    values = [Guide(problem, start, roots).value() for roots in range(4)]
    most = sum(
        g.weight * float(problem.seconds[g.seconds][np.ix_(start, start)][g.pattern.toarray() > 0].max())
        for g in problem.messages
    )
    assert all(a <= b * (1 + ROUND) for a, b in zip(values, [*values[1:], most], strict=True))


@given(problems, st.integers(0, 5))
def test_what_is_found_is_what_it_says_and_never_dearer_than_the_identity(problem: Problem, seed: int) -> None:
    found = place(problem, descents=3, seed=seed)
    assert sorted(found.assignment.tolist()) == list(range(problem.size))
    assert found.cost == pytest.approx(problem.cost(found.assignment)[0], rel=ROUND)
    assert found.identity == problem.cost(np.arange(problem.size))[0]
    assert found.cost <= found.identity
    assert found.random.draws == found.evaluations
    assert found.random.best <= found.random.mean * (1 + ROUND)


def test_a_seed_finds_the_same_again_and_leaves_the_generator_of_numpy_alone() -> None:
    links = Links(np.random.default_rng(1).uniform(size=(16, 16)), np.ones((16, 16))).symmetrised()
    problem = PipelinePlacement(links, 4, 4, 1.0, 1.0)
    before = repr(np.random.get_state())  # noqa: NPY002
    one, two, other = (place(problem, descents=4, seed=s) for s in (7, 7, 8))
    np.testing.assert_array_equal(one.assignment, two.assignment)
    assert (one.cost, one.random, one.evaluations, one.swaps) == (two.cost, two.random, two.evaluations, two.swaps)
    assert one.random != other.random
    assert repr(np.random.get_state()) == before  # noqa: NPY002


def test_more_descents_never_find_less_and_often_more() -> None:
    # from 16 descents on the founders are the same: what comes after is the work of the children
    improved = 0
    for seed in range(4):
        links = Links(np.random.default_rng(seed).uniform(size=(14, 14)), np.ones((14, 14)))
        problem = TopologyPlacement(topology("one-peer-exponential", 14), links, 0.0)
        found = [place(problem, descents=d, draws=1, seed=seed).cost for d in (16, 24, 48)]
        assert found == sorted(found, reverse=True)
        improved += found[-1] < found[0]
    assert improved >= 2


def test_random_placements_are_uniform_over_all() -> None:
    # one slow link among four workers of a path: it is used in half of all placements
    latency = np.zeros((4, 4))
    latency[0, 1] = latency[1, 0] = 1.0
    problem = TopologyPlacement(topology("path", 4), Links(latency, np.full((4, 4), np.inf)), 1.0)
    assert problem.cost(every(4)).mean() == 0.5
    seen = random_placements(problem, 4000)
    # five standard errors of a fair coin
    assert seen.mean == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(4000))
    assert seen.standard_deviation == pytest.approx(np.sqrt(seen.mean * (1 - seen.mean)), rel=1e-9)
    assert seen.best == 0.0


@given(st.one_of(topology_problems(6), pipeline_problems(6)))
def test_the_search_finds_the_optimum_of_all_placements_when_tiny(problem: Problem) -> None:
    assert place(problem, descents=16).cost == pytest.approx(problem.cost(every(problem.size)).min(), rel=ROUND)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [8, 16, 32])
def test_two_planted_clusters_meet_in_one_round_of_an_exponential_schedule(n: int, seed: int) -> None:
    # a shift by one is a cycle through all: it must cross. With every second worker in one cluster nothing else does.
    planted = clusters([n // 2, n // 2], [[1.0, 50.0], [50.0, 1.0]], [[10.0, 1.0], [1.0, 10.0]])
    problem = TopologyPlacement(
        topology("one-peer-exponential", n), planted.relabelled(np.random.default_rng(seed).permutation(n)), 1e6
    )
    slow, fast, rounds = 0.05 + 0.008, 0.001 + 0.0008, int(np.log2(n))
    known = (slow + (rounds - 1) * fast) / rounds
    if n == 8:
        assert problem.cost(every(8)).min() == pytest.approx(known, rel=ROUND)
    assert place(problem, seed=seed).cost == pytest.approx(known, rel=ROUND)


@pytest.mark.parametrize("heavy", ["gradients", "activations"])
def test_two_planted_clusters_of_pipelines_as_brute_force_has_them(heavy: str) -> None:
    planted = clusters([4, 4], [[1.0, 50.0], [50.0, 1.0]], [[10.0, 1.0], [1.0, 10.0]])
    sizes = (1e9, 1e6) if heavy == "gradients" else (1e6, 1e9)
    problem = PipelinePlacement(planted.relabelled(np.random.default_rng(2).permutation(8)), 2, 4, *sizes)
    found = place(problem, descents=8)
    assert found.cost == pytest.approx(min(pipeline_oracle(problem, p) for p in splits(8)), rel=ROUND)
    assert found.cost < found.random.mean


def splits(n: int) -> list[list[int]]:
    """Every way to halve n devices, the first stage holding device 0."""
    halves = [(0, *rest) for rest in combinations(range(1, n), n // 2 - 1)]
    return [[*half, *(i for i in range(n) if i not in half)] for half in halves]


def test_the_scenarios_hold_the_published_numbers() -> None:
    centre, places = data_centre(), two_universities()
    spot, four, eight = spot_instances(), four_regions(), eight_regions()
    for links in (spot, four, eight):
        assert links.size == 64
        assert links.is_symmetric
    assert np.bincount((spot.bandwidth[~np.eye(64, dtype=bool)] > 1e10).astype(int)).tolist() == [64 * 63 - 96, 96]
    assert (four.latency[0, 16], four.bandwidth[0, 16]) == (0.067, 1.15e9 / 8)  # Virginia to Oregon
    assert (four.latency[16, 32], four.bandwidth[16, 32]) == (0.012, 1.25e9 / 8)  # Oregon to California
    assert (four.latency[0, 1], four.bandwidth[0, 1]) == (0.005, 2e9 / 8)
    assert (eight.latency[0, 24], eight.bandwidth[0, 24]) == (0.096, 0.523e9 / 8)  # Oregon to Tokyo
    assert (eight.latency[24, 48], eight.bandwidth[24, 48]) == (0.223, 0.36e9 / 8)  # Tokyo to Frankfurt
    assert len(np.unique(eight.latency[::8, ::8])) > 20
    assert centre.size == places.size == STAGES * GROUPS == 64
    assert (centre.bandwidth[0, 7], centre.bandwidth[0, 8]) == (100e9 / 8, 3.125e9 / 8)
    assert not centre.latency.any()
    assert (places.bandwidth[0, 31], places.bandwidth[0, 32]) == (5e9 / 8, 1.12e9 / 8)
    assert (places.latency[0, 31], places.latency[0, 32]) == (0.001, 0.011)
    np.testing.assert_allclose([GRADIENT_BYTES, ACTIVATION_BYTES], [0.65e9, 0.4712e9], rtol=1e-3)
    # a stage on each instance: gradients at 100 Gbps, activations across at 3.125
    identity = PipelinePlacement(centre, STAGES, GROUPS, GRADIENT_BYTES, ACTIVATION_BYTES).cost(np.arange(64))[0]
    assert identity == pytest.approx(14 * 0.65e9 / (12.5e9 * 8) + 14 * ACTIVATION_BYTES / (3.125e9 / 8), rel=ROUND)


@pytest.mark.parametrize(("links", "share"), [(data_centre(), 0.18), (two_universities(), 0.46)], ids=["0", "2"])
def test_the_search_beats_random_placement_of_pipelines_by_a_wide_margin(links: Links, share: float) -> None:
    hidden = links.relabelled(np.random.default_rng(5).permutation(64))
    found = place(PipelinePlacement(hidden, STAGES, GROUPS, GRADIENT_BYTES, ACTIVATION_BYTES))
    assert found.cost <= share * found.random.mean
    assert found.cost < found.random.best


@pytest.mark.parametrize(("links", "share"), [(data_centre(), 0.52), (two_universities(), 0.36)], ids=["0", "2"])
def test_the_search_beats_random_placement_of_a_schedule_by_a_wide_margin(links: Links, share: float) -> None:
    hidden = links.relabelled(np.random.default_rng(5).permutation(64))
    found = place(TopologyPlacement(topology("one-peer-exponential", 64), hidden, 1e8))
    assert found.cost <= share * found.random.mean
    assert found.cost < found.random.best


ONE, TWO = np.ones((4, 4)), np.ones((2, 2))
LINKS = Links(ONE, ONE)
ODD = Links(np.arange(16).reshape(4, 4), ONE)
RING = topology("ring", 4)


def changed(value: float) -> np.ndarray:
    values = np.ones((4, 4))
    values[1, 2] = value
    return values


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Links(np.ones((2, 3)), TWO), r"latency must be square.*\(2, 3\)"),
        (lambda: Links(ONE, np.ones(4)), r"bandwidth must be square.*\(4,\)"),
        (lambda: Links(np.ones((0, 0)), ONE), "latency must be square"),
        (lambda: Links(cast(Any, [[1, 2], [3]]), TWO), "latency must be a square array of numbers"),
        (lambda: Links(ONE, TWO), "latency is between 4 devices, bandwidth between 2"),
        (lambda: Links(changed(-1.0), ONE), "latency from device 1 to device 2 is -1.0, expected seconds"),
        (lambda: Links(changed(np.nan), ONE), "latency from device 1 to device 2 is nan"),
        (lambda: Links(changed(np.inf), ONE), "latency from device 1 to device 2 is inf"),
        (lambda: Links(ONE, changed(0.0)), "bandwidth from device 1 to device 2 is 0.0, expected bytes per second"),
        (lambda: Links(ONE, changed(np.nan)), "bandwidth from device 1 to device 2 is nan"),
        (lambda: LINKS.relabelled(np.array([0, 1, 2, 2])), "an order names each of the devices 0 to 3 once"),
        (lambda: TopologyPlacement(topology("ring", 5), LINKS, 1.0), "'ring' has 5 workers, .* between 4 devices"),
        (
            lambda: TopologyPlacement(topology("random-gossip", 4), LINKS, 1.0),
            r"no period to average over; place from_",
        ),
        (lambda: TopologyPlacement(RING, LINKS, -1.0), "message_bytes must be finite and not negative, got -1.0"),
        (lambda: TopologyPlacement(RING, LINKS, np.nan), "message_bytes must be finite"),
        (lambda: PipelinePlacement(LINKS, 2, 3, 1.0, 1.0), "2 stages x 3 groups need 6 devices, .* between 4"),
        (lambda: PipelinePlacement(LINKS, 0, 4, 1.0, 1.0), "stages must be a whole number of at least 1, got 0"),
        (lambda: PipelinePlacement(LINKS, 2, True, 1.0, 1.0), "groups must be a whole number"),
        (lambda: PipelinePlacement(LINKS, 2, 2, np.inf, 1.0), "gradient_bytes must be finite"),
        (lambda: PipelinePlacement(LINKS, 2, 2, 1.0, -2.0), "activation_bytes must be finite and not negative"),
        (lambda: PipelinePlacement(LINKS, 13, 1, 1.0, 1.0), "exact up to 12 of them, got 13: join"),
        (
            lambda: PipelinePlacement(ODD, 2, 2, 1.0, 1.0),
            r"devices 0 and 1 differs by direction.*links.symmetrised\(\)",
        ),
        (
            lambda: TopologyPlacement(RING, LINKS, 1.0).cost(np.arange(3)),
            r"a placement names 4 devices .* shape \(1, 3\)",
        ),
        (lambda: TopologyPlacement(RING, LINKS, 1.0).cost(np.ones(4)), "by whole numbers, got float64"),
        (lambda: TopologyPlacement(RING, LINKS, 1.0).cost(np.array([0, 1, 1, 2])), r"once, got \[0, 1, 1, 2\]"),
        (lambda: place(TopologyPlacement(RING, LINKS, 1.0), descents=0), "descents must be .* at least 1, got 0"),
        (lambda: place(TopologyPlacement(RING, LINKS, 1.0), seed=-1), "seed must be .* at least 0, got -1"),
        (lambda: random_placements(TopologyPlacement(RING, LINKS, 1.0), 0), "draws must be .* at least 1, got 0"),
        (lambda: clusters([2, 2], [[1.0]], [[1.0]]), r"2 clusters need tables of 2 x 2, got latency of shape \(1, 1\)"),
        (lambda: clusters([4, 0], TWO, TWO), r"at least one device, got sizes \[4, 0\]"),
    ],
)
def test_what_cannot_be_placed_is_refused_in_a_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(MixingError, match=message):
        call()


def test_links_are_a_value_and_their_diagonal_is_not_looked_at() -> None:
    latency = np.ones((2, 2))
    np.fill_diagonal(latency, np.nan)
    links = Links(latency, np.zeros((2, 2)) + 1 - np.eye(2))
    assert np.isnan(latency[0, 0])
    assert links.seconds(3.0).tolist() == [[0.0, 4.0], [4.0, 0.0]]
    with pytest.raises(ValueError, match="read-only"):
        links.latency[0, 1] = 2.0


def test_symmetrised_links_are_as_slow_as_the_slower_direction() -> None:
    links = Links(ODD.latency, 1.0 + ODD.latency).symmetrised()
    assert links.is_symmetric
    assert (links.latency >= ODD.latency).all()
    assert links.latency[0, 3] == 12.0
    assert links.bandwidth[0, 3] == links.bandwidth[3, 0] == 4.0
