"""Certificates against closed forms, published numbers, prototypes of another hand, and one another."""

import math
import sys

import numpy as np
import pytest

from dissensus.theory import MixingError, from_matrices, topology
from dissensus.theory.certificates import Certificate, best_rate, certify, setting

SIX_DIGITS = 1e-6
"""Tables are given to six digits."""


def proven(method: str = "dsgd", **parameters) -> Certificate:
    certificate = certify(method, **parameters)
    assert certificate.certified, (certificate.checked, certificate.status, certificate.gap, certificate.violation)
    assert certificate.primal <= certificate.value * (1 + 1e-7)
    return certificate


# Numbers that come from elsewhere.

AWC = {1: 0.5, 2: 0.375, 3: 0.307841, 4: 0.264816, 5: 0.234783, 10: 0.16186}
ATC = {1: 0.5, 2: 0.375, 3: 0.301307, 4: 0.252400, 5: 0.217571}


@pytest.mark.parametrize(("order", "steps"), [("awc", k) for k in AWC] + [("atc", k) for k in ATC])
def test_dsgd_reproduces_the_table_of_the_prototype(order: str, steps: int) -> None:
    expected = (AWC if order == "awc" else ATC)[steps]
    digits = SIX_DIGITS if steps < 10 else 1e-5
    assert proven(contraction=1 / 3, steps=steps, lr=1 / 3, order=order).value == pytest.approx(expected, abs=digits)


@pytest.mark.parametrize("order", ["awc", "atc"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_the_ring_of_four_is_as_bad_as_its_class(order: str, steps: int) -> None:
    given = proven(topology=topology("ring", 4), steps=steps, lr=1 / 3, order=order)
    expected = (AWC if order == "awc" else ATC)[steps]
    assert given.value == pytest.approx(expected, abs=SIX_DIGITS)
    assert given.setting.size == 4


@pytest.mark.parametrize(
    ("contraction", "rate"),
    [(0.3, 0.957403), (0.5, 0.978200), (0.7, 0.992115), (0.8, 0.996485), (0.9, 0.999120), (0.95, 0.999780)],
)
def test_tracking_contracts_as_published_elsewhere(contraction: float, rate: float) -> None:
    # 0.9991 at contraction 0.9 is the published number of another toolbox
    lr = 0.44 * (1 - contraction) ** 2
    found = proven("diging", contraction=contraction, steps=1, lr=lr, convexity=0.1, criterion="rate")
    assert found.value == pytest.approx(rate, abs=SIX_DIGITS)


@pytest.mark.parametrize("varying", [False, True])
def test_subgradient_dsgd_reproduces_the_prototype(varying: bool) -> None:
    found = proven(
        contraction=0.5, steps=10, lr=1 / math.sqrt(10), lipschitz=1.0, criterion="average", time_varying=varying
    )
    assert found.value == pytest.approx(0.579423 if varying else 0.576322, abs=SIX_DIGITS)


# Closed forms.


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_one_worker_is_gradient_descent(steps: int) -> None:
    # f(x_K) - f* of gradient descent at 1/L: L D^2 / (4K + 2) (Drori and Teboulle 2014)
    alone = proven(
        topology=topology("complete", 1), steps=steps, lr=0.25, smoothness=4.0, distance=3.0, criterion="last"
    )
    assert alone.value == pytest.approx(4 * 9 / (4 * steps + 2), rel=1e-7)


@pytest.mark.parametrize("steps", [1, 4])
def test_equal_workers_are_gradient_descent(steps: int) -> None:
    # without disagreement mixing has nothing to do: but workers with one optimum may still differ
    alone = certify(topology=topology("complete", 1), steps=steps, lr=1.0, criterion="last").value
    together = proven(contraction=0.0, steps=steps, lr=1.0, heterogeneity=0.0, criterion="last", order="atc").value
    assert together == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("lr", [0.3, 1.9])
def test_strongly_convex_distance_contracts_by_the_larger_factor(lr: float) -> None:
    # ||x_K - x*|| <= max(|1 - lr mu|, |1 - lr L|)^K D, and quadratics reach it
    rho = max(abs(1 - lr * 0.1), abs(1 - lr))
    alone = proven(topology=topology("complete", 1), steps=3, lr=lr, convexity=0.1, criterion="distance")
    assert alone.value == pytest.approx(rho**6, rel=1e-6)


def test_one_step_of_disagreement_in_closed_form() -> None:
    # equal start, awc: x_i^1 - mean = -lr (g_i - mean g), at most L D (half of the workers flat, half steep) plus zeta
    one = proven(contraction=0.5, steps=1, lr=0.2, heterogeneity=0.0, criterion="consensus")
    assert one.value == pytest.approx(0.2**2 / 4, rel=1e-6)  # variance of gradients between 0 and L x, at best L x / 2
    mixed = proven(contraction=0.5, steps=1, lr=0.2, heterogeneity=0.0, criterion="consensus", order="atc")
    assert mixed.value == pytest.approx(0.5**2 * one.value, rel=1e-6)


def test_exact_consensus_needs_no_solver() -> None:
    nothing = certify("d2", contraction=0.0, steps=3, lr=0.3, criterion="consensus")
    assert (nothing.value, nothing.certified, nothing.status) == (0.0, True, "nothing to solve")


# One way of asking against another.


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("dsgd", {"steps": 3, "lr": 0.4, "criterion": "last"}),
        ("dsgd", {"steps": 2, "lr": 0.4, "criterion": "distance", "order": "atc", "convexity": 0.2}),
        ("dsgd", {"steps": 2, "lr": 0.4, "criterion": "consensus", "order": "cta"}),
        ("gradient-tracking", {"steps": 2, "lr": 0.2, "criterion": "rate", "convexity": 0.1}),
        ("extra", {"steps": 3, "lr": 0.3, "criterion": "last"}),
        ("d2", {"steps": 2, "lr": 0.3, "criterion": "distance"}),
        ("dsgd", {"steps": 2, "lr": 0.4, "lipschitz": 2.0, "criterion": "average"}),
    ],
)
@pytest.mark.parametrize("size", [2, 3])
def test_the_compact_form_is_the_program_of_all_workers(method: str, parameters: dict, size: int) -> None:
    compact = proven(method, contraction=0.5, **parameters)
    told_apart = proven(method, contraction=0.5, size=size, **parameters)
    assert told_apart.value == pytest.approx(compact.value, rel=SIX_DIGITS)
    assert told_apart.program.rows == size
    assert (len(told_apart.program.units) > len(compact.program.units)) == (size > 2)


def test_the_compact_form_does_not_grow_with_n() -> None:
    found = proven(contraction=0.9, steps=10, lr=0.1)
    assert len(found.program.units) == 45
    assert found.program.inequalities == 19 * 18


def test_values_scale_as_their_units() -> None:
    one = proven(contraction=0.6, steps=3, lr=0.5, heterogeneity=0.3, convexity=0.05)
    scaled = proven(
        contraction=0.6,
        steps=3,
        lr=0.5 / 37.0,
        smoothness=37.0,
        distance=0.2,
        heterogeneity=0.3 * (37.0 * 0.2) ** 2,
        convexity=0.05 * 37.0,
    )
    assert scaled.value == pytest.approx(one.value * 37.0 * 0.2**2, rel=1e-6)


def test_a_larger_class_is_worse_and_a_given_matrix_better() -> None:
    common = {"steps": 3, "lr": 0.5, "criterion": "last", "heterogeneity": 2.0}
    narrow = proven(eigenvalues=(0.0, 0.5), **common).value
    wide = proven(contraction=0.5, **common).value
    varying = proven(contraction=0.5, time_varying=True, **common).value
    lazy = proven(topology=from_matrices(np.array([[0.75, 0.25], [0.25, 0.75]])), **common).value
    slack = 1e-6
    assert lazy <= narrow + slack
    assert narrow <= wide + slack
    assert wide <= varying + slack


def test_a_narrow_range_is_as_bad_as_its_only_matrix() -> None:
    common = {"steps": 3, "lr": 0.5, "criterion": "consensus"}
    one, narrow = (proven(eigenvalues=(0.5, high), **common).value for high in (0.5, 0.5 + 1e-7))
    assert narrow == pytest.approx(one, rel=1e-6)
    assert narrow >= one * (1 - 1e-8)


def test_a_schedule_of_rounds_is_taken_as_it_is() -> None:
    # two matchings average four workers exactly: at step 2 the workers agree on the average of the points before
    exchange = topology("one-peer-exponential", 4)
    found = proven(topology=exchange, steps=2, lr=0.5, criterion="consensus", heterogeneity=0.5, order="atc")
    static = proven(contraction=1.0, steps=2, lr=0.5, criterion="consensus", heterogeneity=0.5, order="atc")
    assert 0.0 < found.value < static.value


def test_more_steps_of_the_mean_objective_are_better_at_a_safe_rate() -> None:
    values = [proven(contraction=0.5, steps=k, lr=0.25, heterogeneity=0.0).value for k in (1, 2, 4, 6)]
    assert values == sorted(values, reverse=True)


def test_the_best_rate_is_the_best_of_a_fine_grid() -> None:
    of = setting(contraction=0.5, steps=3, lr=1.0)
    best = best_rate(of)
    grid = [certify(contraction=0.5, steps=3, lr=lr).value for lr in np.linspace(0.2, 1.2, 21)]
    assert best.certificate.certified
    assert best.certificate.setting.lr == best.lr
    assert best.certificate.value <= min(grid) + 1e-7
    assert best.certificate.value == pytest.approx(min(grid), rel=1e-2)


def test_gradient_descent_has_the_best_rate_that_is_known() -> None:
    # for one step f(x_1) - f* is max(1/(2 (2 lr + 1)), (1 - lr)^2 / 2), smallest at lr = 3/2
    best = best_rate(setting(topology=topology("complete", 1), steps=1, lr=1.0, criterion="last"))
    assert best.lr == pytest.approx(1.5, rel=2e-3)
    assert best.certificate.value == pytest.approx(1 / 8, rel=1e-3)


def test_a_certificate_speaks_json() -> None:
    import json

    said = json.loads(json.dumps(certify(contraction=0.5, steps=2, lr=0.5).to_dict()))
    assert said["certified"] is True
    assert said["eigenvalues"] == [-0.5, 0.5]
    assert set(said["dual"]["limits"]) == {"distance", "heterogeneity"}


# What is refused.


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"contraction": 0.5, "eigenvalues": (0, 0.5)}, "in one way, contraction, eigenvalues or topology: got 2"),
        ({}, "got 0 of them"),
        ({"contraction": 1.5}, r"contraction must lie in \[0, 1\], got 1.5"),
        ({"contraction": math.nan}, r"contraction must lie in \[0, 1\]"),
        ({"eigenvalues": (0.5, -0.5)}, r"the low end first, got \[0.5, -0.5\]"),
        ({"eigenvalues": (0.5, 0.4, 0.3)}, "are a range .* name a topology to fix them all"),
        ({"contraction": 0.5, "steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"contraction": 0.5, "steps": 2.0}, "steps must be a whole number"),
        ({"contraction": 0.5, "lr": -1.0}, "lr must be positive and finite, got -1.0"),
        ({"contraction": 0.5, "smoothness": math.inf}, "smoothness must be positive and finite"),
        ({"contraction": 0.5, "distance": 0.0}, "distance must be positive"),
        ({"contraction": 0.5, "heterogeneity": -1.0}, "heterogeneity is a mean square"),
        ({"contraction": 0.5, "convexity": 1.0}, "below the smoothness 1, got 1.0"),
        ({"contraction": 0.5, "lipschitz": 1.0, "convexity": 0.1}, "bounded slope are not strongly convex"),
        ({"contraction": 0.5, "criterion": "lost"}, "unknown criterion 'lost' .* did you mean 'last'"),
        ({"contraction": 0.5, "order": "atx"}, "unknown order 'atx' .* did you mean 'atc'"),
        ({"contraction": 0.5, "method": "dsdg"}, "unknown method 'dsdg' .* did you mean 'dsgd'"),
        ({"contraction": 0.5, "criterion": "rate"}, "'rate' is that of gradient-tracking .* take 'distance'"),
        ({"contraction": 0.5, "size": 1}, "at least 2 workers, got size = 1"),
        ({"contraction": 0.5, "steps": 500}, "the compact form over 500 steps is too large .* fewer steps"),
        ({"topology": topology("ring", 64), "steps": 5}, "64 workers told apart .* compact form does not grow"),
        ({"topology": topology("ring", 4), "size": 5}, "has 4 workers, but size = 5"),
        ({"topology": topology("random-digraph", 8)}, "doubly stochastic rounds, but .* is"),
        ({"topology": topology("one-peer-exponential", 4), "method": "extra"}, "the same W at every step, but"),
        ({"contraction": 0.5, "time_varying": True, "method": "d2"}, "no time-varying class"),
    ],
)
def test_what_cannot_be_certified_is_refused(parameters: dict, told: str) -> None:
    with pytest.raises(MixingError, match=told):
        certify(**{"steps": 2, "lr": 0.5, **parameters})


@pytest.mark.parametrize(
    ("search", "told"),
    [({"low": 1.0, "high": 0.5}, "0 < low < high"), ({"accuracy": 0.0}, "accuracy of the learning rate is relative")],
)
def test_a_search_that_cannot_be_is_refused(search: dict, told: str) -> None:
    with pytest.raises(MixingError, match=told):
        best_rate(setting(contraction=0.5, steps=1, lr=1.0), **search)


def test_a_missing_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clarabel", None)
    with pytest.raises(MixingError, match=r'pip install "dissensus\[theory\]"'):
        certify(contraction=0.5, steps=1, lr=0.5)


def test_a_run_that_explodes_is_not_certified_by_mistake() -> None:
    wild = certify(contraction=0.99, steps=10, lr=100.0)
    assert not wild.certified or wild.value > 1e10
    if not wild.certified:
        assert wild.checked.reason or wild.gap > 1e-5
