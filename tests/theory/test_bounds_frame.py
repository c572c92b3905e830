"""The frame of bounds and trials: names, answers, assumptions that fail, slack, and the search for tight instances."""

import json
import math
from dataclasses import dataclass, fields, is_dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.theory.bounds import Answer, Assumption, Bound, bound, catalogue, find
from dissensus.theory.bounds import base as frame
from dissensus.theory.bounds.conditions import nonnegative, positive, share, whole
from dissensus.theory.errors import MixingError
from dissensus.theory.trials import RandomDraws, families, slack
from dissensus.theory.trials.search import UnitDraws, measure, search

ALL = catalogue()


@dataclass(frozen=True)
class Sides:
    a: float
    b: float = 1.0


class Sum(Bound[Sides]):
    name = "sum-of-sides"
    title = "a sum"
    statement = "a+b"
    reference = "ours"
    provenance = "ours"
    problem = Sides
    assumptions = (
        Assumption("first side", "a > 0", lambda p: p.a > 0),
        Assumption("second side", "b > 0", lambda p: p.b > 0),
    )

    def formula(self, p):
        return p.a + p.b


class Least(Sum):
    name = "least-sum"
    kind = "lower"


class Exact(Sum):
    name = "exact-sum"
    kind = "equal"


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(frame, "_known", dict(frame._known))
    return frame._known


def test_a_name_can_be_taken_once(registry):
    assert bound(Sum) is Sum
    assert isinstance(registry["sum-of-sides"], Sum)
    with pytest.raises(MixingError, match=r"bound 'sum-of-sides' is registered twice"):
        bound(Sum)


def test_find_takes_dashes_and_underscores():
    assert find("gap-ring") is find("gap_ring") is ALL["gap-ring"]


@pytest.mark.parametrize(("wrong", "near"), [("gap-rin", "gap-ring"), ("chegger-lower", "cheeger-lower")])
def test_an_unknown_name_points_at_the_nearest(wrong, near):
    with pytest.raises(MixingError, match=rf"unknown bound '{wrong}'; did you mean '{near}'\?"):
        find(wrong)


def test_an_answer_of_a_bound_that_applies():
    answer = Sum().value(Sides(1.0, 2.0))
    assert (answer.applies, float(answer), str(answer)) == (True, 3.0, "3")
    assert answer.to_dict() == {"bound": "sum-of-sides", "value": 3.0, "applies": True, "failing": []}


@pytest.mark.parametrize(("rule", "nothing"), [(Sum, math.inf), (Least, -math.inf), (Exact, math.inf)])
def test_a_bound_that_does_not_apply_names_all_that_fails_and_no_number(rule, nothing):
    answer = rule().value(Sides(0.0, -1.0))
    assert not answer.applies
    assert answer.failing == ("first side: a > 0", "second side: b > 0")
    assert float(answer) == nothing
    assert str(answer) == "does not apply (first side: a > 0; second side: b > 0)"
    assert answer.to_dict()["value"] is None
    assert json.loads(json.dumps(answer.to_dict()))["failing"] == list(answer.failing)


def test_a_number_that_is_none_fails_every_assumption():
    assert not Sum().value(Sides(math.nan)).applies
    p = Sides(math.nan)
    for condition in (nonnegative("a", "a"), positive("a", "a"), share("a", "a"), whole("a", "a", 1)):
        assert not condition.holds(p)


@pytest.mark.parametrize(
    ("condition", "holds", "fails"),
    [
        (nonnegative("a", "a"), (0.0, 3.0), (-1e-300, math.inf)),
        (positive("a", "a"), (1e-300, 3.0), (0.0, math.inf)),
        (share("a", "a"), (1e-300, 1.0), (0.0, 1.0 + 1e-15)),
        (whole("a", "a", 2), (2, 2.0, 10**9), (1, 2.5, math.inf)),
    ],
)
def test_conditions_at_their_edges(condition, holds, fails):
    assert all(condition.holds(Sides(v)) for v in holds)
    assert not any(condition.holds(Sides(v)) for v in fails)


def test_an_endless_value_is_not_printed_as_a_number():
    assert Answer("x", math.inf).to_dict()["value"] is None


def test_facts_tell_defaults():
    assert Sum().facts() == {"a": ..., "b": 1.0}


def test_slack_is_one_where_a_bound_is_attained_and_below_where_it_is_broken():
    upper, lower, equal = Sum(), Least(), Exact()
    assert slack(upper, 2.0, 1.0) == slack(lower, 1.0, 2.0) == 2.0
    assert slack(upper, 1.0, 2.0) == slack(lower, 2.0, 1.0) == 0.5
    assert slack(upper, 0.0, 0.0) == slack(lower, 0.0, 0.0) == slack(equal, 0.0, 0.0) == 1.0
    assert slack(upper, 0.0, 1.0) == 0.0
    assert slack(upper, 1.0, 0.0) == slack(lower, 0.0, 1.0) == math.inf
    assert slack(equal, 1.0, 1.0 + 1e-10) == 1.0
    assert slack(equal, 1.0, 1.001) == pytest.approx(0.999, abs=1e-5)
    assert slack(equal, 1.001, 1.0) == slack(equal, 1.0, 1.001)


@given(st.lists(st.floats(0, 1, exclude_max=True), max_size=6))
def test_draws_from_a_point_stay_in_range_and_come_again(point):
    def drawn(draws):
        return [
            draws.real(-2.0, 3.0),
            draws.real(1e-3, 10.0, log=True),
            draws.integer(-1, 4),
            draws.choice("abc"),
            int(draws.generator().integers(1 << 30)),
        ]

    draws = UnitDraws(point, np.random.default_rng(0))
    first = drawn(draws)
    assert -2.0 <= first[0] <= 3.0
    assert 1e-3 * (1 - 1e-12) <= first[1] <= 10.0 * (1 + 1e-12)
    assert -1 <= first[2] <= 4
    assert first[3] in "abc"
    assert drawn(UnitDraws(draws.point, np.random.default_rng(1))) == first


def test_random_draws_reach_both_ends_of_whole_numbers():
    draws = RandomDraws(np.random.default_rng(0))
    assert {draws.integer(1, 3) for _ in range(50)} == {1, 2, 3}
    assert all(1e-2 <= draws.real(1e-2, 1.0, log=True) <= 1.0 for _ in range(50))


def test_a_search_finds_what_chance_does_not():
    known, family = ALL["any-constant-contraction"], families()["any-constant-contraction"][0]
    by_chance = [measure(known, family.draw(RandomDraws(np.random.default_rng(k)))) for k in range(300)]
    found = search(known, family, tries=300, seed=1)
    assert found.tried == 300
    assert found.trial is not None
    assert 1.0 - 1e-9 <= found.slack < min(s for s in by_chance if s is not None)
    assert measure(known, found.trial) == found.slack


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_bound_says_what_it_is(name):
    known = ALL[name]
    assert known.name == name
    assert name == name.lower()
    assert "_" not in name
    assert known.title
    assert known.reference
    assert known.kind in ("upper", "lower", "equal")
    assert known.provenance in ("published", "classical", "recalled", "ours")
    assert is_dataclass(known.problem)
    assert getattr(known.problem, "__dataclass_params__").frozen  # noqa: B009
    assert fields(known.problem)
    assert type(known).__doc__


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_formula_can_be_set(name):
    convert = pytest.importorskip("latex2mathml.converter").convert
    known = ALL[name]
    for formula in (known.statement, *(a.statement for a in known.assumptions)):
        assert "$" not in formula
        assert "<math" in convert(formula)


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_bound_is_tried(name):
    assert name in families(), "a bound without trials guarantees nothing that anybody has looked at"


def test_no_trial_is_about_a_bound_that_is_not():
    assert set(families()) <= set(ALL)
