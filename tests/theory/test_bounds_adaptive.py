"""Bounds on DAdam, local SGD, gradient tracking and the drift's rest: no instance exceeds them, and what is in them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st

from dissensus.theory import bounds, trials
from dissensus.theory.bounds.dadam import Adaptive
from dissensus.theory.bounds.gradient_tracking import (
    Diging,
    Tracking,
    TrackingProblem,
    TrackingRun,
)
from dissensus.theory.bounds.local_sgd import LocalConvex, LocalNonconvex
from dissensus.theory.bounds.mean_drift import Apart
from dissensus.theory.trials.base import RandomDraws, slack
from dissensus.theory.trials.search import UnitDraws, measure, search

OURS = (
    "dadam-nonconvex",
    "dadam-small-step",
    "local-sgd-nonconvex",
    "local-sgd-convex",
    "gradient-tracking-rate",
    "gradient-tracking-error",
    "gradient-tracking-step",
    "diging-rate",
    "mean-drift-rest",
)
FAMILIES = [pytest.param(name, k, id=f"{name}-{k}") for name in OURS for k in range(len(trials.families()[name]))]
ROUNDING = 1e-9


def sweep(name: str, at: int, count: int, seed: int) -> list[float]:
    family, found = trials.families()[name][at], []
    for k in range(count):
        drawn = family.draw(RandomDraws(np.random.default_rng([seed, at, k])))
        value = measure(bounds.find(name), drawn)
        if value is not None:
            assert value >= 1.0 - ROUNDING, f"{name}, {family.name}: {drawn}"
            found.append(value)
    return found


@pytest.mark.parametrize(("name", "at"), FAMILIES)
def test_nothing_exceeds_a_bound(name: str, at: int) -> None:
    found = sweep(name, at, 60, 1)
    assert len(found) > 45, "most instances must satisfy the assumptions"
    assert np.isfinite(found).any()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at"), FAMILIES)
def test_nothing_exceeds_a_bound_a_thousand_times(name: str, at: int) -> None:
    family = trials.families()[name][at]
    count = family.most or 1000
    assert len(sweep(name, at, count, 2)) > 0.8 * count
    assert search(bounds.find(name), family, tries=count, seed=3).slack >= 1.0 - ROUNDING


@pytest.mark.parametrize("name", OURS)
def test_half_of_a_bound_would_be_caught(name: str) -> None:
    bound = bounds.find(name)
    found = np.inf
    for family in trials.families()[name]:
        found = min(found, search(bound, family, tries=80, seed=4).slack)
        if found < 2.0:
            break
    assert 1.0 - ROUNDING <= found < 2.0


@pytest.mark.parametrize("name", OURS)
@settings(max_examples=15)
@given(point=st.lists(st.floats(0.0, 0.999), min_size=12, max_size=12), seed=st.integers(0, 5))
def test_a_searching_adversary_exceeds_none(name: str, point: list[float], seed: int) -> None:
    families = trials.families()[name]
    drawn = families[seed % len(families)].draw(UnitDraws(point, np.random.default_rng(seed)))
    value = measure(bounds.find(name), drawn)
    if value is not None and np.isfinite(value):
        target(-float(np.log(max(value, 1e-12))))
        assert value >= 1.0 - ROUNDING


# What does not apply says so


RUN = Adaptive(0.6, 2.0, 3, 1.5, 0.05, 25, 4.0, 0.9, 0.999, 0.1, 0.2, 0.3)
APPLYING: dict[str, Any] = {
    "dadam-nonconvex": RUN,
    "dadam-small-step": replace(RUN, noise=0.0, lr=1e-3),
    "local-sgd-nonconvex": LocalNonconvex(4, 3, 1.0, 0.5, 10, 1.0, 0.1, 0.1),
    "local-sgd-convex": LocalConvex(4, 3, 1.0, 0.1, 10, 1.0, 0.1, 0.1),
    "gradient-tracking-rate": Tracking(0.5, 1.0, 0.1, 0.1),
    "gradient-tracking-error": TrackingRun(0.5, 1.0, 0.1, 0.1, -0.2, 5, 1.0, 0.3),
    "gradient-tracking-step": TrackingProblem(0.5, 1.0, 0.1),
    "diging-rate": Diging(4, 0.5, 1.0, 0.1, 1e-4),
    "mean-drift-rest": Apart(1.0, 2.0),
}
FAILING: list[tuple[str, dict[str, Any], str]] = [
    ("dadam-nonconvex", {"contraction": 1.0}, "contraction"),
    ("dadam-nonconvex", {"order": "abc"}, "order"),
    ("dadam-nonconvex", {"beta1": 1.0}, "moments"),
    ("dadam-nonconvex", {"beta2": float("nan")}, "moments"),
    ("dadam-nonconvex", {"eps": 0.0}, "eps"),
    ("dadam-nonconvex", {"largest_gradient": 0.0}, "largest gradient"),
    ("dadam-nonconvex", {"steps": 0}, "steps"),
    ("dadam-nonconvex", {"noise": -1.0}, "noise"),
    ("dadam-nonconvex", {"lr": float("inf")}, "lr"),
    ("dadam-small-step", {"noise": 0.1}, "noise"),
    ("dadam-small-step", {"lr": 0.1}, "step size"),
    ("dadam-small-step", {"beta1": 1.0}, "moments"),
    ("dadam-small-step", {"contraction": 1.0}, "contraction"),
    ("dadam-small-step", {"eps": -1.0}, "eps"),
    ("local-sgd-nonconvex", {"lr": 1.1}, "step size"),
    ("local-sgd-nonconvex", {"period": 0}, "period"),
    ("local-sgd-nonconvex", {"excess": -1.0}, "excess"),
    ("local-sgd-convex", {"lr": 0.8}, "step size"),
    ("local-sgd-convex", {"period": 0}, "period"),
    ("local-sgd-convex", {"steps": 0}, "steps"),
    ("local-sgd-convex", {"distance": float("nan")}, "distance"),
    ("gradient-tracking-rate", {"convexity": 2.0}, "convexity"),
    ("gradient-tracking-rate", {"contraction": 1.0}, "contraction"),
    ("gradient-tracking-rate", {"lambda_min": 0.9}, "lambda min"),
    ("gradient-tracking-error", {"steps": -1}, "steps"),
    ("gradient-tracking-error", {"heterogeneity": -0.1}, "heterogeneity"),
    ("gradient-tracking-step", {"convexity": 0.0}, "convexity"),
    ("diging-rate", {"lr": 0.1}, "rate"),
    ("diging-rate", {"lr": -0.1}, "rate"),
    ("diging-rate", {"size": 0}, "size"),
    ("mean-drift-rest", {"fourth": -1.0}, "fourth"),
    ("mean-drift-rest", {"cubed_disagreement": float("nan")}, "cubed disagreement"),
]


@pytest.mark.parametrize("name", OURS)
def test_what_applies(name: str) -> None:
    answer = bounds.find(name).value(APPLYING[name])
    assert answer.applies, answer.failing
    assert np.isfinite(answer.value)
    assert slack(bounds.find(name), answer.value, answer.value) == 1.0


@pytest.mark.parametrize(("name", "changed", "said"), FAILING)
def test_what_does_not_apply_says_which_assumption_fails(name: str, changed: dict[str, Any], said: str) -> None:
    bound = bounds.find(name)
    answer = bound.value(replace(APPLYING[name], **changed))
    assert not answer.applies
    assert said in [failing.split(":")[0] for failing in answer.failing]
    assert answer.value == (-np.inf if bound.kind == "lower" else np.inf)


def test_a_rate_that_overflows_is_infinite_and_not_a_number() -> None:
    value = bounds.find("gradient-tracking-error").value(
        replace(APPLYING["gradient-tracking-error"], lr=50.0, steps=10**6)
    )
    assert value.applies
    assert value.value == np.inf
