"""Every bound about optimisation against exactly measured runs: chance, search, and Hypothesis at the wheel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, target
from hypothesis import strategies as st

from dissensus.theory.bounds import catalogue
from dissensus.theory.bounds.base import Bound
from dissensus.theory.trials import Family, RandomDraws, families
from dissensus.theory.trials.search import measure, search

FILES = {
    "convex_descent",
    "convex_descent_noise",
    "periodic_descent",
    "nonconvex_descent",
    "lian",
    "strongly_convex",
    "strongly_convex_noise",
    "convex_step",
    "extra",
    "subgradient",
}
BOUNDS = {name: b for name, b in catalogue().items() if type(b).__module__.rsplit(".", 1)[-1] in FILES}
PAIRS = [
    pytest.param(BOUNDS[name], family, id=f"{name}-{family.name}") for name in BOUNDS for family in families()[name]
]
HOLDS = 1.0 - 1e-9
"""Runs of hundreds of steps in float64 may exceed an attained bound by rounding."""


def sweep(bound: Bound[Any], family: Family, count: int) -> list[float]:
    """Slacks of random instances, those to which the bound does not apply left out."""
    rng = np.random.default_rng(20)
    found = [measure(bound, family.draw(RandomDraws(rng))) for _ in range(count)]
    return [s for s in found if s is not None]


def test_every_bound_of_these_files_has_trials() -> None:
    assert len(BOUNDS) == 14
    assert set(BOUNDS) <= set(families())


@pytest.mark.parametrize(("bound", "family"), PAIRS)
def test_no_run_exceeds_the_bound(bound: Bound[Any], family: Family) -> None:
    count = math.ceil(60 / len(families()[bound.name]))
    slacks = sweep(bound, family, count)
    assert len(slacks) >= 0.9 * count
    assert min(slacks) >= HOLDS


@pytest.mark.slow
@pytest.mark.parametrize(("bound", "family"), PAIRS)
def test_no_run_of_a_thousand_exceeds_the_bound(bound: Bound[Any], family: Family) -> None:
    count = family.most or max(200, math.ceil(1000 / len(families()[bound.name])))
    slacks = sweep(bound, family, count)
    assert len(slacks) >= 0.9 * count
    assert min(slacks) >= HOLDS


@pytest.mark.parametrize(("bound", "family"), PAIRS)
def test_a_search_finds_no_violation(bound: Bound[Any], family: Family) -> None:
    assert search(bound, family, tries=10, seed=1).slack >= HOLDS


@pytest.mark.slow
@pytest.mark.parametrize(("bound", "family"), PAIRS)
@pytest.mark.parametrize("seed", range(2))
def test_a_long_search_finds_no_violation(bound: Bound[Any], family: Family, seed: int) -> None:
    assert search(bound, family, tries=family.most or 400, seed=seed).slack >= HOLDS


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


class HypothesisDraws:
    """Draws that Hypothesis chooses and shrinks."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def real(self, low: float, high: float, *, log: bool = False) -> float:
        if log:
            return math.exp(self._data.draw(st.floats(math.log(low), math.log(high))))
        return self._data.draw(st.floats(low, high))

    def integer(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))

    def choice(self, items: Sequence[Any]) -> Any:
        return self._data.draw(st.sampled_from(list(items)))

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(self._data.draw(st.integers(0, 1 << 32)))


@pytest.mark.parametrize("name", sorted(BOUNDS))
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=SLOW)
@given(data=st.data())
def test_hypothesis_finds_no_violation(name: str, data: st.DataObject) -> None:
    bound = BOUNDS[name]
    family = data.draw(st.sampled_from(families()[name]))
    found = measure(bound, family.draw(HypothesisDraws(data)))
    if found is not None:
        if 0.0 < found < math.inf:
            target(-math.log(found))
        assert found >= HOLDS
