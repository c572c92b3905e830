"""The adaptive factor of DSGD-AC: the schedule, its two capture rules, and that what is recorded is what is used."""

import typing
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.algorithms import algorithm, algorithms


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


@pytest.mark.parametrize("start", [0, 7])
@pytest.mark.parametrize("p", [0.5, 1.0, 3.0])
def test_in_the_window_the_factor_never_exceeds_one(p: float, start: int, quadratics: Any, schedules: dict) -> None:
    rates = np.random.default_rng(int(10 * p) + start).lognormal(size=60)  # up and down, far beyond every warm-up
    got = gammas(
        {"p": p, "gamma_min": 0.2, "start": start}, lambda t: 0.01 * float(rates[t]), 60, quadratics, schedules
    )
    assert max(got) == 1.0
    assert min(got) >= 0.2
    for t in range(start, 60):
        ratio = rates[t] / rates[start : t + 1].max()
        assert got[t] == pytest.approx(0.2 + 0.8 * ratio**p, rel=1e-14)


def test_p_of_zero_and_a_floor_of_one_are_dsgd(quadratics: Any, schedules: dict) -> None:
    for parameters in ({"p": 0.0}, {"gamma_min": 1.0}):
        assert gammas(parameters, warmup_then_cosine, 40, quadratics, schedules) == [1.0] * 40


def test_the_peak_survives_a_resume(quadratics: Any, schedules: dict) -> None:
    problem, topology = quadratics.draw(4, 2, 30), schedules["ring"](4)
    build = partial(problem.engine, algorithm("dsgd-ac", start=3), topology, lr=warmup_then_cosine)
    whole, first, second = build(), build(), build()
    expected = [whole.step(problem.batch(t)).gamma for t in range(30)]
    for t in range(17):
        first.step(problem.batch(t))
    second.load_state_dict(first.state_dict())
    assert [second.step(problem.batch(t)).gamma for t in range(17, 30)] == expected[17:]


@pytest.mark.parametrize("name", ["dsgd", "dsgd-ac", "dadam"])
def test_a_number_named_gamma_is_the_constant_factor_everywhere(name: str, quadratics: Any, schedules: dict) -> None:
    from pydantic import TypeAdapter

    declared = typing.get_type_hints(algorithms()[name])["gamma"]
    typed = TypeAdapter(declared).validate_strings("0.3")  # as a command line hands it over
    assert typed == 0.3
    problem, topology = quadratics.draw(4, 2, 5), schedules["ring"](4)
    adam = partial(torch.optim.Adam, lr=0.1)
    engine = problem.engine(algorithm(name, gamma=typed), topology, optimizer=adam, lr=warmup_then_cosine)
    assert [engine.step(problem.batch(t)).gamma for t in range(5)] == [0.3] * 5
    other = problem.engine(algorithm("dsgd", gamma=0.3), topology, optimizer=adam, lr=warmup_then_cosine)
    problem.run(other, 5)
    assert torch.equal(engine.x, other.x)


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


PHASES = [[3, 0.5], [5, 0.0], [6, 0.2]]
"""As a configuration has them; mixing is whole before the first."""


def test_phases_hold_from_their_step_on(quadratics: Any, schedules: dict) -> None:
    problem, topology = quadratics.draw(4, 2, 8), schedules["ring"](4)
    built = algorithm("dsgd", gamma=PHASES)
    engine = problem.engine(built, topology, lr=0.1)
    assert [engine.step(problem.batch(t)).gamma for t in range(8)] == [1.0, 1.0, 1.0, 0.5, 0.5, 0.0, 0.2, 0.2]
    by_function = problem.engine(
        algorithm("dsgd", gamma=lambda t, lr: 1.0 if t < 3 else 0.5 if t < 5 else 0.0 if t < 6 else 0.2),
        topology,
        lr=0.1,
    )
    problem.run(by_function, 8)
    assert torch.equal(engine.x, by_function.x)
    assert hash(built) == hash(algorithm("dsgd", gamma=PHASES)), "a frozen value, also from a list"


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([], "got no phase"),
        ([0.5], "got 0.5 in it"),
        ([[0, 1.0, 2]], r"\[\[step, gamma\], ...\], got \[0, 1.0, 2\]"),
        ([[0.5, 1.0]], "begins at a step counted from 0, got 0.5"),
        ([[-1, 1.0]], "got -1"),
        ([[4, 1.0], [4, 0.5]], "step 4 follows step 4"),
        ([[0, 1.5]], "gamma must lie in"),
    ],
)
def test_phases_that_are_none_are_refused(phases: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        algorithm("dsgd", gamma=phases)
