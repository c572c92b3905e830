"""Known values of the bounds about graphs, assumptions that fail, and the instruments of their trials."""

from itertools import combinations, product
from math import cos, inf, nan, pi, sqrt

import numpy as np
import pytest

from dissensus.theory import contraction, topology
from dissensus.theory.bounds import find
from dissensus.theory.bounds.best_constant import LaplacianEnds
from dissensus.theory.bounds.choco import ChocoRate, ChocoRun, Gossip, coupling
from dissensus.theory.bounds.compression import Kept, Levels, Signs
from dissensus.theory.bounds.consensus_floor import Convex, LocalSteps, Smooth, SmoothSteps
from dissensus.theory.bounds.consensus_noise import NoisyPeriods, NoisySize, NoisySpectrum
from dissensus.theory.bounds.consensus_step import GivenGradients, SmoothStep
from dissensus.theory.bounds.contraction import Adapted, AdaptedSpectrum, Periods, Rounds
from dissensus.theory.bounds.critical_consensus import ControlledRun, DistantStep, MeanStep
from dissensus.theory.bounds.effective_neighbours import Memory, MemorySquares
from dissensus.theory.bounds.gap_closed_forms import Cube, Sides, Sized
from dissensus.theory.bounds.laplacian_gap import EdgeCut, LeastDegree, Span, VertexCut
from dissensus.theory.bounds.metropolis_gap import Bottleneck, Connected
from dissensus.theory.bounds.yuan_ling_yin import Descent, Deviation, OwnFixedPoint
from dissensus.theory.trials import RandomDraws, choco, graphs
from dissensus.theory.trials.consensus_floor import Run


def value(name, *facts, **named):
    rule = find(name)
    answer = rule.value(rule.problem(*facts, **named))
    assert answer.applies, answer
    return answer.value


@pytest.mark.parametrize(
    ("name", "facts", "golden"),
    [
        ("gap-ring", (8,), 1 - 0.804738),
        ("gap-ring", (64,), 1 - 0.996790),
        ("gap-path", (3,), 1 / 3),
        ("gap-star", (9,), 1 / 9),
        ("gap-directed-ring", (2,), 1.0),
        ("gap-one-peer-ring", (4,), 1.0),
        ("gap-one-peer-ring", (8,), 1 - 0.707107),
        ("gap-one-peer-ring", (32,), 1 - 0.980785),
        ("gap-hypercube", (4,), 0.4),
        ("gap-torus", (4, 4), 0.4),
        ("gap-torus", (4, 8), 1 - 0.882843),
        ("gap-exponential", (32,), 1 - 0.666667),
        ("one-peer-exponential", (6,), 0.2165),
        ("one-peer-exponential", (12,), 0.2091),
        ("best-constant-contraction", (1.0, 3.0), 0.5),
        ("noise-consensus", ((0.0, 0.0, 0.0), 1.0, 1.0), 0.75),
        ("noise-consensus", ((0.5,), 1.0, 1.0, "atc"), 1 / 6),
        ("consensus-floor", (2, 0.5, 0.0, 1.0, 1.0, 0.0), 2 / 3),
        ("consensus-floor", (2, 0.5, 0.0, 1.0, 0.0, 1.0), 4.0),
        ("consensus-from-agreement", (2, 0.5, 1.0, 1.0, 0.0, 1.0, "awc", 2), 6.25),
        ("local-drift-convex", (4, 0.0, 0.5, 3, 0.0, 4.0), 9.0),
        ("local-drift-convex", (4, 0.0, 1.0, 3, 1.0, 0.0), 2.25),
        ("critical-consensus-distance", (1, 1.0, 1e-9, 2.0), 1.0),
        ("critical-consensus-distance", (1, 2.0, 0.5, 2.0), 0.5),
        ("quantized-loss", (9, 3), 0.5),
        ("scaled-sign-loss", (4,), 0.75),
        ("top-k-loss", (10, 3), 0.7),
        ("effective-neighbours-squares", (16, 16 / 3, 0.9), 3.0),
        ("yuan-ling-yin-deviation", (0.0, 2.0, 0.5, 1.0, 0.5), 2.0),
        ("yuan-ling-yin-deviation", (0.0, 2.0, 0.5, 1.0, 0.5, 1.0), 1.0),
    ],
)
def test_golden_values(name, facts, golden):
    assert value(name, *facts) == pytest.approx(golden, abs=6e-5 if "exponential" in name else 1e-6)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9, 0.99, 0.999])
def test_effective_neighbours_of_a_ring_lie_between(memory):
    golden = {0.0: 3.0, 0.5: 3.72, 0.9: 6.601, 0.99: 13.119, 0.999: 15.634}[memory]
    low = max(
        value("effective-neighbours-least", 16, 0.949253, memory),
        value("effective-neighbours-squares", 16, 16 / 3, memory),
    )
    assert low <= golden + 5e-4
    assert golden - 5e-4 <= value("effective-neighbours-most", 16, 16 / 3, memory) <= 16


@pytest.mark.parametrize("n", range(3, 41))
def test_closed_forms_are_those_of_the_topologies(n):
    """The house builds its topologies without these bounds."""
    names = {"ring": "gap-ring", "star": "gap-star", "directed-ring": "gap-directed-ring"}
    if n % 2 == 0:
        names["exponential"] = "gap-exponential"
    for built, name in names.items():
        w = topology(built, n)[0].dense()
        assert 1 - np.linalg.norm(w - 1 / n, 2) == pytest.approx(value(name, n), abs=1e-12)


def test_the_published_choco_rate_follows_from_ours_with_a_better_constant():
    """At half of our stable step the spectral radius of M, squared, is below what is published."""
    for lam, omega in product((0.0, 0.3, 0.9, 0.99), (0.01, 0.1, 0.5, 0.9)):
        for beta in (1 - lam, 1.0, 1 + lam):
            p = Gossip(lam, beta, omega)
            if beta < 1 - lam:
                continue
            step = find("choco-stable-step").value(p).value / 2
            radius = np.abs(np.linalg.eigvals(coupling(p, step))).max()
            assert radius**2 < 1 - (1 - lam) ** 2 * omega / 82


def test_the_stable_step_is_where_the_coupling_stops_contracting():
    for lam, omega in product((0.5, 0.9), (0.1, 0.5)):
        p = Gossip(lam, 1.2, omega)
        edge = find("choco-stable-step").value(p).value
        assert edge < 1.0
        assert np.abs(np.linalg.eigvals(coupling(p, edge))).max() == pytest.approx(1.0, abs=1e-12)
        assert np.abs(np.linalg.eigvals(coupling(p, 0.99 * edge))).max() < 1.0


FAILING = [
    ("contraction-of-products", Rounds((0.5, 1.5), 1.0), "contractions: "),
    ("contraction-over-periods", Periods(0.5, 0, 3, 1.0), "period: "),
    ("adapted-contraction", Adapted(1.5, 0.5), "gamma: "),
    ("adapted-contraction-symmetric", AdaptedSpectrum(0.5, 0.1, 0.5), "eigenvalues: "),
    ("laplacian-diameter", Span(4, 4), "diameter: "),
    ("laplacian-edge-connectivity", EdgeCut(4, 4), "edge connectivity: "),
    ("laplacian-vertex-connectivity", VertexCut(4, 3), "not complete: "),
    ("laplacian-least-degree", LeastDegree(4, 4), "least degree: "),
    ("lazy-metropolis-gap", Connected(1), "size: "),
    ("lazy-metropolis-gap-olshevsky", Connected(1), "size: "),
    ("metropolis-gap", Connected(0), "size: "),
    ("cheeger-lower", Bottleneck(0.6, 0.5), "conductance: "),
    ("cheeger-upper", Bottleneck(-0.1), "conductance: "),
    ("gap-ring", Sized(2), "size: "),
    ("gap-path", Sized(2), "size: "),
    ("gap-star", Sized(2), "size: "),
    ("gap-directed-ring", Sized(1), "size: "),
    ("gap-one-peer-ring", Sized(5), "size: "),
    ("gap-hypercube", Cube(0), "dimension: "),
    ("gap-torus", Sides(2, 5), "rows: "),
    ("gap-exponential", Sized(7), "size: "),
    ("gap-exponential-any", Sized(1), "size: "),
    ("one-peer-exponential", Sized(1), "size: "),
    ("best-constant-contraction", LaplacianEnds(0.0, 3.0), "connected: "),
    ("any-constant-contraction", LaplacianEnds(2.0, 1.0), "connected: "),
    ("consensus-step-young", GivenGradients(1.0, 0.1, 1.0, 1.0), "contraction: "),
    ("consensus-step-minkowski", GivenGradients(1.0, 0.1, 1.0, 1.0, "cta"), "order: "),  # pyright: ignore[reportArgumentType]
    ("consensus-step-smooth", SmoothStep(1, 0.5, 1.0, 0.1, 1.0), "size: "),
    ("consensus-from-agreement", SmoothSteps(4, 0.5, 1.0, -0.1), "lr: "),
    ("consensus-floor", Smooth(4, 0.5, 1.0, 0.6), "step size: "),
    ("consensus-floor-convex", Convex(4, 0.5, -0.5, 1.0, 0.6, convexity=2.0), "convexity: "),
    ("consensus-floor-convex", Convex(4, 0.5, -0.5, 1.0, 0.6), "step size: "),
    ("local-drift", LocalSteps(4, 1.0, 0.1, -1), "steps: "),
    ("local-drift-convex", LocalSteps(4, 1.0, 2.1, 3), "step size: "),
    ("noise-consensus", NoisySpectrum((0.5, -1.0), 0.1, 1.0), "eigenvalues: "),
    ("noise-consensus-least", NoisySize(4, 4.0, 0.1, 1.0), "weight squares: "),
    ("noise-consensus-periods", NoisyPeriods(4, 1.0, 2, 0.1, 1.0), "contraction: "),
    ("effective-neighbours-least", Memory(4, 0.5, 1.0), "memory: "),
    ("effective-neighbours-squares", MemorySquares(4, 0.5, 0.5), "weight squares: "),
    ("effective-neighbours-most", MemorySquares(4, 5.0, 0.5), "weight squares: "),
    ("yuan-ling-yin-gradients", Descent(-0.5, 1.0, 0.6, 1.0), "step size: "),
    ("yuan-ling-yin-deviation", Deviation(0.0, 1.0, 0.6, 1.0, 1.0), "contraction: "),
    ("yuan-ling-yin-deviation", Deviation(0.0, 1.0, 0.6, 1.0, 0.5, 1.5), "steps: "),
    ("dgd-own-fixed-point", OwnFixedPoint(0.0, 1.0, 0.5, 1.0, 3, 1.0), "step size: "),
    ("descent-at-distance", DistantStep(4, 1.0, 1.1, 1.0, excess=1.0), "step size: "),
    ("descent-at-distance", DistantStep(4, 1.0, 0.1, 1.0, excess=0.4), "excess: "),
    ("critical-consensus-distance", MeanStep(4, 1.0, 0.5, 1.0, noise=20.0), "descent: "),
    ("controlled-descent", ControlledRun(4, 1.0, 0.5, 0, 1.0), "steps: "),
    ("top-k-loss", Kept(4, 5), "kept: "),
    ("random-k-loss", Kept(4, 0), "kept: "),
    ("scaled-sign-loss", Signs(4, 0.2), "flatness: "),
    ("quantized-loss", Levels(4, 0), "levels: "),
    ("quantized-loss-sharp", Levels(0, 1), "dimension: "),
    ("choco-consensus", ChocoRun(0.5, 1.0, 0.0), "omega: "),
    ("choco-consensus", ChocoRun(0.5, 1.6, 0.5), "laplacian norm: "),
    ("choco-stable-step", Gossip(1.0, 1.0, 0.5), "contraction: "),
    ("choco-rate-published", ChocoRate(0.5, 1.0, 0.5, steps=-1), "steps: "),
]


@pytest.mark.parametrize(("name", "problem", "failing"), FAILING, ids=lambda v: v if isinstance(v, str) else "")
def test_a_problem_outside_the_assumptions_is_said_to_be(name, problem, failing):
    answer = find(name).value(problem)
    assert not answer.applies
    assert any(f.startswith(failing) for f in answer.failing), answer.failing
    assert float(answer) in (inf, -inf)


def test_not_a_number_is_never_guaranteed():
    assert not find("consensus-floor").value(Smooth(4, nan, 1.0, 0.1)).applies
    assert not find("consensus-floor").value(Smooth(4, 0.5, 1.0, nan)).applies
    assert not find("cheeger-lower").value(Bottleneck(nan)).applies


def test_a_norm_rounded_above_one_still_counts_as_one():
    assert value("contraction-over-periods", 1.0 + 1e-15, 1, 3, 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize("order", ["awc", "atc"])
def test_moments_of_runs_are_those_of_all_coin_tosses(order):
    """Two workers, three steps: the mean over all 2^6 outcomes of noise that is a coin toss."""
    rng = np.random.default_rng(0)
    w, h = np.array([[0.7, 0.3], [0.3, 0.7]]), np.array([[[1.5]], [[-0.4]]])
    push, start, lr, noise = rng.normal(size=(2, 1)), np.array([0.7]), 0.3, 2.0
    outcomes = []
    for coins in product((-1.0, 1.0), repeat=6):
        x = np.tile(start, (2, 1))
        for toss in np.reshape(coins, (3, 2, 1)):
            g = h[:, 0] * x - push + sqrt(noise) * toss
            x = w @ (x - lr * g) if order == "atc" else w @ x - lr * g
        outcomes.append(x)
    x = np.array(outcomes)
    run = Run(w, h, push, start, lr, noise, order)
    moments = run.moments(3)
    distance, unlike = run.distances(*moments)[3], run.heterogeneity(*moments)[3]
    centre = x.mean(axis=1, keepdims=True)
    slopes = h[:, 0] * centre - push
    assert moments[0][3] == pytest.approx(x.mean(axis=0).ravel())
    assert distance == pytest.approx(((x - centre) ** 2).sum(axis=(1, 2)).mean() / 2, rel=1e-9)
    assert unlike == pytest.approx(((slopes - slopes.mean(axis=1, keepdims=True)) ** 2).sum(axis=(1, 2)).mean() / 2)


def test_moments_of_compressed_gossip_are_those_of_all_coin_tosses():
    w, gamma, omega = np.array([[0.6, 0.4], [0.4, 0.6]]), 0.7, 0.3
    z, expected = np.array([1.0, -0.5, 0.2, 0.8]), np.zeros((4, 4))
    for coins in product((0, 1), repeat=6):
        x, known, chance = z[:2], z[2:], 1.0
        for kept in np.reshape(coins, (3, 2)):
            x = x + gamma * (w @ known - known)
            known = known + kept * (x - known)
            chance *= float(np.prod(np.where(kept == 1, omega, 1 - omega)))
        state = np.concatenate([x, known])
        expected += chance * np.outer(state, state)
    moments = np.outer(z, z)
    for _ in range(3):
        moments = choco.step(moments, w, gamma, omega)
    assert moments == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_the_radius_of_compressed_gossip_tells_growth():
    """Iterating the recursion itself grows or vanishes as its spectral radius says."""
    w = graphs.even(3, 0.2)
    for gamma in (0.05, 0.9):
        radius = choco.radius(w, gamma, 0.2)
        x = np.array([[1.0], [-1.0], [0.0]])
        moments = np.block([[x @ x.T, np.zeros((3, 3))], [np.zeros((3, 3)), np.zeros((3, 3))]])
        sizes = []
        for _ in range(120):
            moments = choco.step(moments, w, gamma, 0.2)
            sizes.append(np.trace(moments))
        assert (sizes[-1] / sizes[-21]) ** 0.05 == pytest.approx(radius, rel=1e-4)


def test_conductances_are_the_narrowest_of_all_cuts():
    from dissensus.theory.trials.metropolis_gap import _conductance

    w = graphs.symmetric(RandomDraws(np.random.default_rng(5)), 6, 6)
    cuts = [
        sum(w[i, j] for i in s for j in range(6) if j not in s) / len(s)
        for size in (1, 2, 3)
        for s in combinations(range(6), size)
    ]
    assert _conductance(w) == pytest.approx(min(cuts))


def test_drawn_matrices_are_what_they_are_said_to_be():
    for seed in range(60):
        draws = RandomDraws(np.random.default_rng(seed))
        w, s, c = graphs.mixing(draws), graphs.symmetric(draws), graphs.connected(draws)
        for m in (w, s, c):
            assert m.min() >= -1e-12
            assert m.sum(axis=0) == pytest.approx(np.ones(len(m)))
            assert m.sum(axis=1) == pytest.approx(np.ones(len(m)))
        assert np.allclose(s, s.T)
        assert np.allclose(c, c.T)
        assert graphs.contraction(c) < 1.0
        a = graphs.adjacency(draws)
        assert np.allclose(a, a.T)
        assert not np.diag(a).any()
        assert np.linalg.eigvalsh(graphs.laplacian(a))[1] > 1e-9


def test_slowest_modes_of_a_ring():
    from dissensus.theory.trials.gap_closed_forms import circle

    w = graphs.weighted(circle(12))
    assert graphs.contraction(w) == pytest.approx(1 / 3 + 2 / 3 * cos(pi / 6))
    assert np.linalg.norm(w @ graphs.slowest(w)) == pytest.approx(graphs.contraction(w))
    assert contraction(topology("ring", 12)).value == pytest.approx(graphs.contraction(w))
