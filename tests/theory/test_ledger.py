"""The ledger and its search: they must see a bound that is wrong, and a bound that is tight."""

import importlib.util
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dissensus.theory import bounds, trials
from dissensus.theory.bounds.base import Assumption, Bound
from dissensus.theory.errors import MixingError
from dissensus.theory.ledger import ledger, shares
from dissensus.theory.trials.base import Family, RandomDraws, Trial, slack
from dissensus.theory.trials.search import UnitDraws, search


@dataclass(frozen=True)
class Ball:
    """Two coordinates."""

    x: float
    y: float


class Norm(Bound[Ball]):
    """‖(x, y)‖ <= factor (|x| + |y|), for x >= 0.1."""

    name, title, statement = "toy-norm", "norm", "\\lVert x\\rVert_2 \\le \\lVert x\\rVert_1"
    reference, provenance, problem = "textbook", "classical", Ball
    assumptions = (Assumption("reach", "x \\ge 0.1", lambda p: p.x >= 0.1),)
    factor = 1.0

    def formula(self, p: Ball) -> float:
        return self.factor * (abs(p.x) + abs(p.y))


def drawn(draws: Any) -> Trial:
    p = Ball(draws.real(0, 1), draws.real(0.05, 1, log=True))
    return Trial(p, math.hypot(p.x, p.y), certified=math.hypot(p.x, p.y))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Norm:
    bound = Norm()
    monkeypatch.setattr(bounds, "catalogue", lambda: {"toy-norm": bound})
    monkeypatch.setattr(trials, "families", lambda: {"toy-norm": (Family("toy-norm", "general", drawn),)})
    return bound


def test_a_true_bound_has_no_violations_and_the_search_is_tighter_than_chance(toy: Norm) -> None:
    (row,) = ledger(instances=100, searches=300)
    assert row.violations == 0
    assert (row.instances + row.elsewhere, row.family, row.provenance) == (100, "general", "classical")
    assert row.elsewhere > 0, "about a tenth of the instances break the assumption"
    assert 1.0 <= row.searched < row.smallest < row.median
    assert row.searched < 1.052, "the corner x = 1, y = 0.05 has slack 1.0488"
    assert row.certificate == pytest.approx(row.searched), "the search's instance has its worst case, too"
    (random,) = ledger(instances=100, searches=0)
    assert random.certificate == pytest.approx(random.smallest)


def test_a_wrong_constant_is_a_violation(toy: Norm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Norm, "factor", 0.9)
    (row,) = ledger(["toy-norm"], instances=200, searches=0)
    assert 0 < row.violations < 200


def test_the_search_finds_what_chance_misses(toy: Norm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Norm, "factor", 0.9532)
    (row,) = ledger(instances=30, searches=400)
    assert row.smallest > 1.0
    assert row.searched < 1.0
    assert row.violations == 1


def test_the_same_seed_gives_the_same_rows(toy: Norm) -> None:
    first, again, other = (ledger(instances=50, searches=40, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_bound_without_trials_is_named(toy: Norm) -> None:
    with pytest.raises(MixingError, match=r"no trials for a bound 'toy-nrm'; did you mean 'toy-norm'"):
        ledger(["toy-nrm"])


@pytest.mark.parametrize(
    ("most", "instances", "searches", "expected"),
    [
        ([None], 1000, 200, [(1000, 200)]),
        ([None, None, None], 1000, 200, [(334, 200)] * 3),
        ([None, 60, None], 1000, 200, [(470, 200), (60, 60), (470, 200)]),
        ([None, 60], 20, 10, [(10, 10), (10, 10)]),
        ([60], 1000, 200, [(60, 60)]),
        ([None, 60], 1, 0, [(1, 0), (1, 0)]),
    ],
)
def test_what_is_dear_is_drawn_less_often(
    most: list[int | None], instances: int, searches: int, expected: list[tuple[int, int]]
) -> None:
    assert shares([Family("toy-norm", "any", drawn, most=m) for m in most], instances, searches) == expected


def test_families_without_their_package_are_left_out_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    needing = {f.bound for found in trials.families().values() for f in found if f.needs == "clarabel"}
    assert {"convex-descent", "yuan-ling-yin-deviation", "subgradient-descent"} <= needing
    assert trials.left_out() == ()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert {f.bound for f in trials.left_out()} == needing
    assert all(not f.needs for found in trials.families().values() for f in found)
    assert set(trials.families()) >= needing, "every bound keeps the trials that need nothing"
    (row, *_) = ledger(["convex-descent"], instances=10, searches=0)
    assert row.certificate is None


def test_the_worst_case_stands_between_the_run_and_the_bound() -> None:
    rows = ledger(["strongly-convex-neighbourhood", "yuan-ling-yin-deviation"], instances=24, searches=0)
    worst = [row for row in rows if row.family == "certificate"]
    assert len(worst) == 2
    for row in worst:
        assert row.certificate is not None
        assert row.violations == 0
        # the run attains the certificate, so the two ratios are the same
        assert row.certificate == pytest.approx(row.smallest, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "value", "measured", "expected"),
    [
        ("upper", 3.0, 2.0, 1.5),
        ("lower", 2.0, 3.0, 1.5),
        ("upper", 1.0, 0.0, math.inf),
        ("upper", 0.0, 0.0, 1.0),
        ("upper", 0.0, 1.0, 0.0),
        ("lower", -1.0, 2.0, math.inf),
        ("equal", 1.0, 1.0 + 1e-12, 1.0),
        ("equal", 1.0, 2.0, 0.5),
    ],
)
def test_slack(kind: Any, value: float, measured: float, expected: float) -> None:
    bound = Norm()
    bound.__class__ = type("Toy", (Norm,), {"kind": kind})
    assert slack(bound, value, measured) == expected


def test_draws_from_a_point_are_draws_from_a_generator_in_all_but_name() -> None:
    for draws in (RandomDraws(np.random.default_rng(0)), UnitDraws([], np.random.default_rng(0))):
        reals = [draws.real(2, 8, log=True) for _ in range(4000)]
        whole = [draws.integer(1, 3) for _ in range(3000)]
        assert 2 <= min(reals) <= max(reals) <= 8
        assert np.median(reals) == pytest.approx(4, abs=0.15)
        assert {whole.count(k) // 100 for k in (1, 2, 3)} <= {9, 10}
        assert {draws.choice("ab") for _ in range(50)} == {"a", "b"}
        assert draws.generator().normal() != draws.generator().normal()


def test_a_point_that_was_drawn_from_gives_the_same_numbers_again() -> None:
    first = UnitDraws([], np.random.default_rng(0))
    numbers = [first.real(0, 1), first.integer(0, 9), first.generator().normal()]
    again = UnitDraws(first.point, np.random.default_rng(1))
    assert numbers == [again.real(0, 1), again.integer(0, 9), again.generator().normal()]


def test_a_search_over_a_bound_that_never_applies_says_so(toy: Norm) -> None:
    family = Family("toy-norm", "outside", lambda draws: Trial(Ball(0.0, draws.real(0, 1)), 1.0))
    found = search(toy, family, tries=20)
    assert (found.slack, found.trial, found.tried) == (math.inf, None, 20)
