"""What the bounds about optimisation answer: failing assumptions by name, attained cases, simple corollaries."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.theory.bounds import find
from dissensus.theory.bounds.convex_descent import ConvexProblem
from dissensus.theory.bounds.convex_descent_noise import NoisyConvexProblem
from dissensus.theory.bounds.convex_step import StepProblem
from dissensus.theory.bounds.extra import ExtraRun, ExtraStep
from dissensus.theory.bounds.memory import Order
from dissensus.theory.bounds.nonconvex_descent import NonconvexProblem
from dissensus.theory.bounds.periodic_descent import PeriodicConvexProblem, PeriodicNonconvexProblem
from dissensus.theory.bounds.strongly_convex import StronglyConvexProblem
from dissensus.theory.bounds.strongly_convex_noise import NoisyStronglyConvexProblem
from dissensus.theory.bounds.subgradient import SubgradientProblem, worst_split
from dissensus.theory.trials.convex_descent import measured as convex_measured
from dissensus.theory.trials.dsgd_setup import Setup
from dissensus.theory.trials.functions import Quadratics
from dissensus.theory.trials.ramps import Ramps, huber

GOOD: dict[str, Any] = {
    "convex-descent": ConvexProblem(0.5, 1.0, 0.2, 10, 1.0, 1.0),
    "convex-descent-noise": NoisyConvexProblem(4, 0.5, 1.0, 0.2, 10, 1.0, 1.0, 1.0),
    "periodic-convex-descent": PeriodicConvexProblem(4, 1.0, 0.2, 10, 1.0, 2.0, 1.5, 1.0, 1.0, 1.0),
    "periodic-nonconvex-descent": PeriodicNonconvexProblem(4, 1.0, 0.2, 10, 1.0, 2.0, 1.5, 1.0, 1.0, 1.0),
    "nonconvex-descent": NonconvexProblem(4, 0.5, 1.0, 0.2, 10, 1.0, 1.0, 1.0),
    "lian-descent": NonconvexProblem(4, 0.5, 1.0, 0.02, 10, 1.0, 1.0, 1.0),
    "strongly-convex-neighbourhood": StronglyConvexProblem(0.5, -0.2, 1.0, 0.1, 0.2, 10, 1.0, 1.0),
    "strongly-convex-noise": NoisyStronglyConvexProblem(4, 0.5, 1.0, 0.1, 0.2, 10, 1.0, 1.0, 1.0),
    "koloskova-step": StepProblem(4, 1.0, 0.05, 1.0, 0.1, 1.0, 1.0, 0.1),
    "convex-step": StepProblem(4, 1.0, 0.05, 1.0, 0.1, 1.0, 1.0, 0.1),
    "extra-step": ExtraStep(1.0, 0.2, -0.2, 1.0, 0.1),
    "extra-rate": ExtraRun(1.0, 0.2, -0.2, 10, 1.0),
    "subgradient-recalled": SubgradientProblem(0.5, 1.0, 0.2, 10, 1.0),
    "subgradient-descent": SubgradientProblem(0.5, 1.0, 0.2, 10, 1.0),
}

BROKEN = [
    ("convex-descent", {"lr": 1.5}, "step size: "),
    ("convex-descent", {"lr": 0.6}, "step size against memory"),
    ("convex-descent", {"contraction": 1.2}, "contraction"),
    ("convex-descent", {"contraction": math.nan}, "contraction"),
    ("convex-descent", {"steps": 0}, "steps"),
    ("convex-descent", {"order": "cta"}, "order"),
    ("convex-descent", {"distance": -1.0}, "distance"),
    ("convex-descent", {"smoothness": 0.0}, "smoothness"),
    ("convex-descent-noise", {"size": 0}, "size"),
    ("convex-descent-noise", {"noise": -1.0}, "noise"),
    ("convex-descent-noise", {"lr": 0.6}, "step size against memory"),
    ("periodic-convex-descent", {"gain": 6.0}, "step size against memory"),
    ("periodic-convex-descent", {"diffusion": -1.0}, "diffusion"),
    ("periodic-convex-descent", {"response": math.inf}, "response"),
    ("periodic-nonconvex-descent", {"gain": 6.0}, "step size against memory"),
    ("periodic-nonconvex-descent", {"swing": -1.0}, "swing"),
    ("nonconvex-descent", {"lr": 2.5}, "step size: "),
    ("nonconvex-descent", {"lr": 0.6}, "step size against memory"),
    ("nonconvex-descent", {"excess": -1.0}, "excess"),
    ("lian-descent", {"lr": 0.2}, "constants"),
    ("lian-descent", {"order": "atc"}, "order"),
    ("strongly-convex-neighbourhood", {"lr": 0.9}, "step size against W"),
    ("strongly-convex-neighbourhood", {"convexity": 0.0}, "convexity"),
    ("strongly-convex-neighbourhood", {"least_curvature": -2.0}, "least curvature"),
    ("strongly-convex-neighbourhood", {"lambda_min": -0.9}, "step size against W"),
    ("strongly-convex-neighbourhood", {"contraction": 1.0}, "contraction"),
    ("strongly-convex-noise", {"lr": 1.9}, "step size"),
    ("strongly-convex-noise", {"convexity": 2.0}, "convexity"),
    ("koloskova-step", {"lr": 0.1}, "step size"),
    ("convex-step", {"lr": 1.1}, "step size"),
    ("convex-step", {"disagreement": -1.0}, "disagreement"),
    ("extra-step", {"lr": 0.8}, "step size"),
    ("extra-step", {"moved": -1.0}, "moved"),
    ("extra-rate", {"lambda_min": -1.0}, "eigenvalues"),
    ("subgradient-recalled", {"contraction": 1.0}, "contraction"),
    ("subgradient-recalled", {"order": "atc"}, "order"),
    ("subgradient-descent", {"order": "cta"}, "order"),
    ("subgradient-descent", {"lipschitz": 0.0}, "lipschitz"),
]


@pytest.mark.parametrize("name", sorted(GOOD))
def test_facts_within_the_assumptions_are_answered(name: str) -> None:
    answer = find(name).value(GOOD[name])
    assert answer.applies, answer
    assert 0.0 < answer.value < 1e3


@pytest.mark.parametrize(("name", "facts", "said"), BROKEN, ids=lambda v: str(v))
def test_a_broken_assumption_is_named(name: str, facts: dict[str, Any], said: str) -> None:
    answer = find(name).value(dataclasses.replace(GOOD[name], **facts))
    assert not answer.applies
    assert answer.value == math.inf
    assert any(f.startswith(said) for f in answer.failing), answer.failing


@pytest.mark.parametrize("steps", [1, 2, 7, 50])
def test_the_first_term_is_attained_by_a_huber_function(steps: int) -> None:
    functions = huber(3, slope=2.0 / steps, smoothness=1.0)
    run = Setup(functions, [np.full((3, 3), 1.0 / 3.0)], 1.0 / functions.smoothness, steps, np.array([2.0]), "atc")
    drawn = convex_measured(run)
    assert find("convex-descent").value(drawn.problem).value == pytest.approx(drawn.measured, rel=1e-12)


def test_the_heterogeneity_term_is_attained_in_the_limit() -> None:
    n, bends, push = 40, np.zeros((40, 1, 1)), np.full((40, 1), -1.0 / 39.0)
    bends[0], push[0] = 1.0, 1.0
    w = 0.5 * np.eye(n) + 0.5 / n
    drawn = convex_measured(Setup(Quadratics(bends, push), [w], 0.04, 20_000, np.zeros(1), "awc"))
    assert 1.0 <= find("convex-descent").value(drawn.problem).value / drawn.measured < 1.15


def test_disagreement_of_opposite_curvatures_is_attained_in_the_limit() -> None:
    from dissensus.theory.trials.nonconvex_descent import measured

    lr = slope = 0.02
    knots = np.array([-3.0 * slope, -2.0 * slope, 2.0 * slope, 3.0 * slope])
    tent = 2.0 * slope * np.array([-1.0, -1.0, 1.0, 1.0])
    fade = np.array([0.0, -slope, -slope, 0.0])
    functions = Ramps(knots, np.array([tent - 1.0 + fade, -tent + 1.0 + fade]))
    drawn = measured(Setup(functions, [np.full((2, 2), 0.5)], lr, 5000, np.array([-lr * slope]), "awc"))
    assert 1.0 <= find("nonconvex-descent").value(drawn.problem).value / drawn.measured < 1.2


RUNS = st.fixed_dictionaries(
    {
        "contraction": st.floats(0.0, 0.999),
        "smoothness": st.floats(0.1, 10.0),
        "steps": st.integers(1, 500),
        "noise": st.floats(0.0, 10.0),
        "heterogeneity": st.floats(0.0, 10.0),
        "size": st.integers(1, 64),
        "order": st.sampled_from(["awc", "atc"]),
    }
)


@given(facts=RUNS, share=st.floats(1e-3, 1.0), distance=st.floats(0.0, 10.0))
def test_convex_bounds_lie_below_their_simple_corollaries(facts: dict[str, Any], share: float, distance: float) -> None:
    gap, smoothness, steps = 1.0 - facts["contraction"], facts["smoothness"], facts["steps"]
    noise, square = facts.pop("noise"), facts["heterogeneity"]
    lr = 0.5 * share * gap / smoothness
    start = distance**2 / (2.0 * lr * steps)
    quiet = start + 2.0 / 3.0 * smoothness * (lr / gap) ** 2 * square
    found = find("convex-descent").value(ConvexProblem(lr=lr, distance=distance, **facts))
    assert found.value <= quiet * (1.0 + 1e-12)
    lr *= 0.5
    spread = square / gap**2 + noise / (1.0 - facts["contraction"] ** 2)
    loud = 2.0 * start + lr * noise / (2.0 * facts["size"]) + 8.0 / 15.0 * smoothness * lr**2 * spread
    found = find("convex-descent-noise").value(NoisyConvexProblem(lr=lr, distance=distance, noise=noise, **facts))
    assert found.value <= loud * (1.0 + 1e-12)


@given(facts=RUNS, share=st.floats(1e-3, 1.0), excess=st.floats(0.0, 10.0))
def test_the_nonconvex_bound_lies_below_its_simple_corollary(
    facts: dict[str, Any], share: float, excess: float
) -> None:
    gap = 1.0 - facts["contraction"]
    step = 0.25 * share * gap
    lr = step / facts["smoothness"]
    spread = (
        facts["heterogeneity"] / gap**2 * 16.0 / 3.0 + facts["noise"] / (1.0 - facts["contraction"] ** 2) * 8.0 / 3.0
    )
    simple = 2.0 * excess / (lr * facts["steps"]) + step * facts["noise"] / facts["size"] + step**2 * spread
    found = find("nonconvex-descent").value(NonconvexProblem(lr=lr, excess=excess, **facts))
    assert found.value <= simple * (1.0 + 1e-12)


@given(facts=RUNS, share=st.floats(0.01, 0.95), excess=st.floats(0.0, 10.0))
def test_the_nonconvex_bound_lies_below_that_of_lian(facts: dict[str, Any], share: float, excess: float) -> None:
    facts |= {"order": "awc", "size": max(2, facts["size"])}
    lr = share * (1.0 - facts["contraction"]) / (6.0 * facts["size"] ** 0.5 * facts["smoothness"])
    problem = NonconvexProblem(lr=lr, excess=excess, **facts)
    theirs = find("lian-descent").value(problem)
    assert theirs.applies
    assert find("nonconvex-descent").value(problem).value <= theirs.value * (1.0 + 1e-12)


@given(memory=st.floats(0.0, 100.0))
def test_the_worst_split_is_the_maximum(memory: float) -> None:
    u = np.linspace(0.0, 1.0, 2001)
    brute = float(np.max(0.5 * (1.0 - u**2) + memory * (u + u**2)))
    assert worst_split(memory) == pytest.approx(brute, rel=1e-6)
    assert worst_split(memory) >= brute * (1.0 - 1e-12)


@given(
    contraction=st.floats(0.0, 0.95),
    convexity=st.floats(0.05, 1.0),
    share=st.floats(0.05, 0.9),
    order=st.sampled_from(["awc", "atc"]),
)
def test_the_strongly_convex_recursion_settles_below_its_linear_fixed_point(
    contraction: float, convexity: float, share: float, order: Order
) -> None:
    first, half = (contraction if order == "atc" else 1.0), 0.5
    lr = share * min(1.0, convexity * (1.0 - contraction) / (max(first, 1e-3) * (convexity + half)))
    apart = first * lr / (1.0 - contraction - first * lr * (1.0 + half / convexity))
    problem = NoisyStronglyConvexProblem(4, contraction, 1.0, convexity, lr, 3000, 0.0, 0.0, 1.0, order)
    assert find("strongly-convex-noise").value(problem).value <= (half * apart / convexity) ** 2 * (1.0 + 1e-9)


def test_the_strongly_convex_recursion_comes_to_rest_or_says_infinity() -> None:
    bound = find("strongly-convex-noise")
    settled = [bound.value(dataclasses.replace(GOOD[bound.name], lr=0.02, steps=k)).value for k in (10**5, 10**7)]
    assert settled[0] == pytest.approx(settled[1])
    assert bound.value(dataclasses.replace(GOOD[bound.name], lr=1.5, steps=10**5)).value == math.inf
