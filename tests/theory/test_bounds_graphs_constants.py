"""Each constant of a bound by itself: a formula with one of them wrong must meet a counterexample among the trials."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from dissensus.theory.bounds import catalogue
from dissensus.theory.bounds.choco import coupling
from dissensus.theory.bounds.consensus_floor import iterated, limit
from dissensus.theory.bounds.consensus_step import damped
from dissensus.theory.trials import RandomDraws, families, slack

BOUNDS = catalogue()


def said(name, p, **changed):
    return BOUNDS[name].value(replace(p, **changed)).value


def changed(name, **factors):
    """The bound with some facts multiplied: what it would say if their constants were so much smaller."""
    return lambda p: said(name, p, **{field: factor * getattr(p, field) for field, factor in factors.items()})


def convex(p, *, persistence=None, **facts):
    c = damped(p.order, max(abs(p.lambda_2), abs(p.lambda_min)))
    noise = facts.get("noise", p.noise)
    q = p.persistence if persistence is None else persistence(p)
    return limit(q, c * p.lr * sqrt(p.heterogeneity), (c * p.lr) ** 2 * noise * (1 - 1 / p.size))


def choco(p, *, entry=None, factor=1.0, forgets=1.0):
    m = coupling(p, p.consensus_step)
    if entry is not None:
        m[entry] *= factor
    state = np.array([p.disagreement, p.unknown])
    for _ in range(p.steps):
        state = m @ state + p.push * np.array([1.0, forgets * p.forgets])
    return float(state[0])


def published(p, constant):
    return (1 - (1 - p.contraction) ** 2 * p.omega / constant) ** p.steps * p.initial


def atc_as_awc(name):
    return lambda p: said(name, p, order="atc" if p.order == "awc" else "awc")


MUTANTS = {
    "contraction-of-products": {"one round more": lambda p: said("contraction-of-products", p) * min(p.contractions)},
    "contraction-over-periods": {
        "rounded up": lambda p: p.contraction ** -(-p.steps // p.period) * p.disagreement,
    },
    "adapted-contraction": {"gap doubled": lambda p: 1 - p.gamma * (1 - p.contraction) * 1.02},
    "adapted-contraction-symmetric": {
        "one end forgotten": lambda p: abs(1 - p.gamma * (1 - p.lambda_2)),
        "other end forgotten": lambda p: abs(1 - p.gamma * (1 - p.lambda_min)),
    },
    "laplacian-diameter": {"5 for 4": lambda p: 5 / (p.size * p.diameter)},
    "laplacian-edge-connectivity": {
        "one worker less": lambda p: 2 * p.edge_connectivity * (1 - np.cos(np.pi / (p.size - 0.9))),
    },
    "laplacian-least-degree": {"without n/(n-1)": lambda p: float(p.least_degree)},
    "laplacian-vertex-connectivity": {"a little less": lambda p: 0.99 * p.vertex_connectivity},
    "cheeger-upper": {"1.99 for 2": lambda p: 1.99 * p.conductance},
    "cheeger-lower": {
        "2.2 times": lambda p: 2.2 * said("cheeger-lower", p),
    },
    "gap-exponential-any": {"without the 1": lambda p: 2 / ((p.size - 1).bit_length() + 0.99)},
    "one-peer-exponential": {"rounded down": lambda p: 0.0},
    "consensus-step-young": {
        "square of contraction": lambda p: said(
            "consensus-step-young", p, consensus_distance=0.9 * p.consensus_distance
        ),
        "gradients": lambda p: said("consensus-step-young", p, spread=0.9 * p.spread),
        "order": atc_as_awc("consensus-step-young"),
    },
    "consensus-step-minkowski": {
        "disagreement": changed("consensus-step-minkowski", consensus_distance=0.9),
        "gradients": changed("consensus-step-minkowski", spread=0.9),
        "order": atc_as_awc("consensus-step-minkowski"),
    },
    "consensus-step-smooth": {
        "curvature": changed("consensus-step-smooth", smoothness=0.9),
        "noise": changed("consensus-step-smooth", noise=0.9),
        "heterogeneity": changed("consensus-step-smooth", heterogeneity=0.9),
        "disagreement": changed("consensus-step-smooth", consensus_distance=0.9),
        "size": lambda p: said("consensus-step-smooth", p, size=max(2, p.size - 1)),
        "order": atc_as_awc("consensus-step-smooth"),
    },
    "consensus-from-agreement": {
        "curvature": changed("consensus-from-agreement", smoothness=0.9),
        "noise": changed("consensus-from-agreement", noise=0.9),
        "heterogeneity": changed("consensus-from-agreement", heterogeneity=0.9),
        "a step less": lambda p: said("consensus-from-agreement", p, steps=p.steps - 1),
        "order": atc_as_awc("consensus-from-agreement"),
    },
    "consensus-floor": {
        "curvature": changed("consensus-floor", smoothness=0.9),
        "noise": changed("consensus-floor", noise=0.9),
        "heterogeneity": changed("consensus-floor", heterogeneity=0.9),
        "contraction": changed("consensus-floor", contraction=0.95),
        "size": lambda p: said("consensus-floor", p, size=max(2, p.size - 1)),
    },
    "consensus-floor-convex": {
        "noise": changed("consensus-floor-convex", noise=0.9),
        "heterogeneity": changed("consensus-floor-convex", heterogeneity=0.9),
        "more convexity": lambda p: convex(
            p, persistence=lambda p: max(0.0, p.persistence - 0.1 * p.lr * p.smoothness)
        ),
        "least eigenvalue forgotten": lambda p: convex(
            p, persistence=lambda p: min(p.persistence, abs(p.lambda_2 - p.lr * p.convexity))
        ),
    },
    "local-drift": {
        "curvature": changed("local-drift", smoothness=0.9),
        "noise": changed("local-drift", noise=0.9),
        "heterogeneity": changed("local-drift", heterogeneity=0.9),
    },
    "local-drift-convex": {
        "noise": changed("local-drift-convex", noise=0.9),
        "heterogeneity": changed("local-drift-convex", heterogeneity=0.9),
        "linear growth of the square": lambda p: iterated(
            0.99, p.lr * sqrt(p.heterogeneity), p.lr**2 * p.noise * (1 - 1 / p.size), p.steps
        ),
    },
    "noise-consensus": {"order": atc_as_awc("noise-consensus"), "noise": changed("noise-consensus", noise=1.001)},
    "noise-consensus-least": {
        "squares": lambda p: said("noise-consensus-least", p, weight_squares=1.02 * p.weight_squares)
    },
    "noise-consensus-periods": {
        "contraction": changed("noise-consensus-periods", contraction=0.9),
        "period": lambda p: said("noise-consensus-periods", p, noise=p.noise * (p.period - 0.1) / p.period),
    },
    "effective-neighbours-least": {"contraction": changed("effective-neighbours-least", contraction=0.95)},
    "effective-neighbours-squares": {"squares": changed("effective-neighbours-squares", weight_squares=0.99)},
    "effective-neighbours-most": {"memory": lambda p: said("effective-neighbours-most", p, memory=0.95 * p.memory)},
    "yuan-ling-yin-gradients": {"2": changed("yuan-ling-yin-gradients", shortfall=0.9)},
    "yuan-ling-yin-deviation": {
        "2": changed("yuan-ling-yin-deviation", shortfall=0.9),
        "a step less": lambda p: said("yuan-ling-yin-deviation", p, steps=p.steps - 1),
        "contraction": lambda p: said("yuan-ling-yin-deviation", p, contraction=0.9 * p.contraction),
    },
    "dgd-own-fixed-point": {"convexity": lambda p: (1 - 1.05 * p.lr * p.convexity) ** p.steps * p.distance},
    "descent-at-distance": {
        "slope times distance": lambda p: (
            said("descent-at-distance", p)
            - 0.1 * p.lr * (1 - p.lr * p.smoothness) * p.slope * p.smoothness * sqrt(p.consensus_distance)
        ),
        "square of distance": lambda p: (
            said("descent-at-distance", p) - 0.1 * p.smoothness**3 * p.lr**2 * p.consensus_distance / 2
        ),
        "noise": changed("descent-at-distance", noise=0.9),
        "descent": lambda p: said("descent-at-distance", p) - 0.1 * p.lr * p.slope**2,
    },
    "critical-consensus-distance": {
        "distance": lambda p: 1.1 * said("critical-consensus-distance", p),
        "noise": lambda p: said("critical-consensus-distance", p, noise=0.8 * p.noise),
    },
    "top-k-loss": {"one number more": lambda p: (p.dimension - p.kept - 1) / p.dimension},
    "random-k-loss": {"one number more": lambda p: (p.dimension - p.kept - 1) / p.dimension},
    "scaled-sign-loss": {"1.1/d": lambda p: said("scaled-sign-loss", p) - 0.1 / p.dimension},
    "quantized-loss": {"without the 1 of tau": lambda p: 1 - 1 / (p.tau - 0.5)},
    "quantized-loss-sharp": {
        "an eighth for a quarter": lambda p: (
            ((p.tau - 1) ** 2 + min(p.dimension / (8 * p.levels**2), sqrt(p.dimension) / p.levels)) / p.tau**2
        ),
    },
    "choco-consensus": {
        "gap": lambda p: choco(p, entry=(0, 0), factor=0.99),
        "pull": lambda p: choco(p, entry=(0, 1), factor=0.9),
        "push back": lambda p: choco(p, entry=(1, 0), factor=0.0),
        "forgetting": lambda p: choco(p, entry=(1, 1), factor=0.8),
        "pushes": lambda p: said("choco-consensus", p, push=0.5 * p.push),
    },
}
SEEN_BY_NONE = {
    "cheeger-lower": {
        "twice the keeping": lambda p: (
            said("cheeger-lower", p, keep=(1 + p.keep) / 2)
            if p.conductance <= (1 - p.keep) / 2
            else said("cheeger-lower", p)
        ),
    },
    "choco-rate-published": {"41 for 82": lambda p: published(p, 41.0), "20 for 82": lambda p: published(p, 20.0)},
    "choco-stable-step": {"a tenth more": lambda p: min(1.0, 1.1 * said("choco-stable-step", p))},
    "controlled-descent": {
        "excess": changed("controlled-descent", excess=0.6),
        "noise": changed("controlled-descent", noise=0.6),
    },
}
"""Constants to which the trials are blind, so that nothing here vouches for them but their proofs, or memory."""


def smallest(name, formula, count=100):
    rule = BOUNDS[name]
    for k in reversed(range(len(families()[name]))):
        for i in range(count):
            drawn = families()[name][k].draw(RandomDraws(np.random.default_rng([i, 11])))
            found = slack(rule, formula(drawn.problem), drawn.measured)
            if found < 1.0 - 1e-6:
                return found
    return 1.0


@pytest.mark.parametrize(("name", "mutant"), [(n, m) for n, found in MUTANTS.items() for m in found])
def test_a_wrong_constant_is_caught(name, mutant):
    assert smallest(name, MUTANTS[name][mutant]) < 1.0


@pytest.mark.parametrize(("name", "mutant"), [(n, m) for n, found in SEEN_BY_NONE.items() for m in found])
def test_constants_that_no_trial_sees(name, mutant):
    """Where this fails, a family has become sharp enough: move the constant to the list above."""
    assert smallest(name, SEEN_BY_NONE[name][mutant], 40) == 1.0
