"""The trials can tell a wrong constant: a term halved is caught, case by case; what is too blunt is listed.

A term of a bound is proportional to a fact, so that halving the fact halves the term's constant.

Too blunt for a factor of two, and so not here: the noise and heterogeneity terms of Lian et al. (their constants carry
a factor n that no run attains), the excess and disagreement of Koloskova et al.'s step (the step of ours has half to a
third of the constants), the recalled subgradient bound and the disagreement C in ours, and
in the convex bounds the constant of the diffusion N (its value is checked against exact moments) and the factor
1/(1 - (lr L gain)^2), both by proof alone.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dissensus.theory.bounds import find
from dissensus.theory.trials import RandomDraws, families

HALF = 0.5
ROOT = 0.5**0.5

SHARP = [
    ("convex-descent", "distance", ROOT, "huber"),
    ("convex-descent", "heterogeneity", HALF, "one curved worker"),
    ("convex-descent-noise", "distance", ROOT, "general"),
    ("convex-descent-noise", "noise", HALF, "full steps on the complete graph"),
    ("convex-descent-noise", "heterogeneity", HALF, "one curved worker"),
    ("periodic-convex-descent", "distance", ROOT, "changing gamma"),
    ("periodic-convex-descent", "heterogeneity", HALF, "one curved worker"),
    ("periodic-convex-descent", "response", ROOT, "one curved worker"),
    ("nonconvex-descent", "excess", HALF, "one step on a parabola"),
    ("nonconvex-descent", "noise", HALF, "full steps on the complete graph"),
    ("nonconvex-descent", "heterogeneity", HALF, "opposite curvatures"),
    ("periodic-nonconvex-descent", "excess", HALF, "no heterogeneity"),
    ("periodic-nonconvex-descent", "noise", HALF, "full steps on the complete graph"),
    ("periodic-nonconvex-descent", "swing", ROOT, "opposite curvatures"),
    ("lian-descent", "excess", HALF, "one step on a parabola"),
    ("strongly-convex-neighbourhood", "distance", HALF, "a common parabola"),
    ("strongly-convex-neighbourhood", "local_excess", HALF**2, "start at the optimum"),
    ("strongly-convex-neighbourhood", "convexity", 1.1, "general"),
    ("strongly-convex-noise", "distance", ROOT, "start alone"),
    ("strongly-convex-noise", "noise", HALF, "a common parabola"),
    ("strongly-convex-noise", "heterogeneity", HALF, "heterogeneity alone"),
    ("koloskova-step", "distance", ROOT, "general"),
    ("koloskova-step", "noise", HALF, "mean at the optimum"),
    ("convex-step", "distance", ROOT, "linear part"),
    ("convex-step", "excess", 2.0, "linear part"),
    ("convex-step", "disagreement", HALF, "curved up to the mean"),
    ("convex-step", "noise", HALF, "mean at the optimum"),
    ("extra-step", "moved", 2.0, "general"),
    ("extra-rate", "potential", HALF, "a common parabola"),
    ("subgradient-descent", "distance", ROOT, "lattice"),
    ("subgradient-descent", "lipschitz", ROOT, "lattice"),
]


@pytest.mark.parametrize(("name", "fact", "factor", "family"), SHARP, ids=lambda v: str(v))
def test_a_term_with_half_its_constant_is_caught(name: str, fact: str, factor: float, family: str) -> None:
    bound, rng = find(name), np.random.default_rng(7)
    draw = next(f.draw for f in families()[name] if f.name == family)
    caught = 0
    for _ in range(120):
        drawn = draw(RandomDraws(rng))
        weaker = dataclasses.replace(drawn.problem, **{fact: factor * getattr(drawn.problem, fact)})
        answer = bound.value(weaker)
        caught += answer.applies and answer.value < drawn.measured * (1.0 - 1e-9)
        if caught:
            break
    assert caught, f"no instance of {family!r} notices {fact} times {factor}"
