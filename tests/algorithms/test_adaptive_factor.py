"""The adaptive factor of DSGD-AC: the schedule, its two capture rules, and that what is recorded is what is used."""

from typing import Any

import numpy as np
import pytest

from dissensus.algorithms import algorithm


def gammas(parameters: dict[str, Any], lr: Any, steps: int, quadratics: Any, schedules: dict) -> list[float]:
    problem = quadratics.draw(4, 2, steps)
    engine = problem.engine(algorithm("dsgd-ac", **parameters), schedules["ring"](4), lr=lr)
    return [engine.step(problem.batch(t)).gamma for t in range(steps)]


def warmup_then_cosine(t: int) -> float:
    return 0.1 * (t + 1) / 10 if t < 10 else 0.05 * (1 + np.cos(np.pi * (t - 10) / 30))


def test_schedule_is_the_published_formula(quadratics: Any, schedules: dict) -> None:
    got = gammas({"p": 2.0, "gamma_min": 0.1, "start": 12}, warmup_then_cosine, 40, quadratics, schedules)
    top = warmup_then_cosine(12)
    expected = [1.0] * 12 + [0.1 + 0.9 * (warmup_then_cosine(t) / top) ** 2 for t in range(12, 40)]
    np.testing.assert_allclose(got, expected, rtol=1e-14)
    assert got[12] == 1.0, "gamma starts at 1 at the step that captures the learning rate"


def test_a_start_inside_the_warmup_never_exceeds_one(quadratics: Any, schedules: dict) -> None:
    got = gammas({"start": 3}, warmup_then_cosine, 40, quadratics, schedules)
    assert max(got) == 1.0
    assert got[3:11] == [1.0] * 8, "while the learning rate rises it is its own maximum"
    assert got[-1] < 0.01


def test_the_published_capture_exceeds_one_inside_the_warmup(quadratics: Any, schedules: dict) -> None:
    got = gammas({"start": 3, "capture": "published", "p": 1.0}, warmup_then_cosine, 40, quadratics, schedules)
    assert max(got) == pytest.approx(0.1 / warmup_then_cosine(3), rel=1e-14)


def test_a_fixed_lr_max_is_used_as_given(quadratics: Any, schedules: dict) -> None:
    got = gammas({"lr_max": 0.2, "p": 1.0}, lambda t: 0.1, 3, quadratics, schedules)
    np.testing.assert_allclose(got, 0.5)


def test_constant_and_function_factors(quadratics: Any, schedules: dict) -> None:
    assert gammas({"gamma": 0.25, "start": 2}, 0.1, 4, quadratics, schedules) == [1.0, 1.0, 0.25, 0.25]
    assert gammas({"gamma": lambda t, lr: lr * t}, 0.1, 3, quadratics, schedules) == pytest.approx([0.0, 0.1, 0.2])


def test_a_learning_rate_of_zero_is_no_division_by_zero(quadratics: Any, schedules: dict) -> None:
    assert gammas({}, 0.0, 2, quadratics, schedules) == [1.0, 1.0]
    assert gammas({}, lambda t: 0.1 if t == 0 else 0.0, 2, quadratics, schedules) == [1.0, 0.0]


def test_the_recorded_factor_is_the_one_that_was_used(quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(4, 2, 6)
    engine = problem.engine(algorithm("dsgd-ac", p=1.0), schedules["ring"](4), lr=lambda t: 0.1 / (1 + t))
    w = schedules["ring"](4)[0].dense()
    for t in range(6):
        x = engine.x.numpy()
        record = engine.step(problem.batch(t))
        mixed = engine.x.numpy() + record.lr * problem.gradient(t, x)
        np.testing.assert_allclose(mixed, (1 - record.gamma) * x + record.gamma * w @ x, rtol=0, atol=1e-14)


def test_algorithms_without_a_factor_record_none(quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(4, 2, 1)
    assert problem.engine(algorithm("allreduce"), schedules["ring"](4), lr=0.1).step(problem.batch(0)).gamma is None
    assert problem.engine(algorithm("dsgd"), schedules["ring"](4), lr=0.1).step(problem.batch(0)).gamma == 1.0
