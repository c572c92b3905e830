"""Certificates lie between every run that is tried and every bound that applies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dissensus.algorithms import StackedEngine, algorithm
from dissensus.theory import bounds, topology
from dissensus.theory.bounds.base import Answer
from dissensus.theory.certificates import Certificate, Setting, certificate_of, guarantees, sampled, setting, worst_case

ROUNDING = 1e-9
TIGHT, ALMOST = 1e-7, 1e-6
"""By so much, relatively, a certified value may exceed the exact one: where a bound is attained, it is above it. The
second where the solver itself says that it stopped short of its tolerance, which depends on the machine."""

CURVED = {"convexity": 0.1, "steps": 3}
GRID: dict[str, tuple[Setting, set[str]]] = {
    "awc": (setting(contraction=0.5, steps=4, lr=0.4), {"convex-descent"}),
    "atc": (setting(contraction=0.8, steps=4, lr=0.4, order="atc", heterogeneity=3.0), {"convex-descent"}),
    "one step": (setting(contraction=0.5, steps=1, lr=1.0), {"convex-descent"}),
    "exact averaging": (setting(contraction=0.0, steps=3, lr=1.0, order="atc"), {"convex-descent"}),
    "no heterogeneity": (setting(contraction=0.9, steps=3, lr=0.4, heterogeneity=0.0), {"convex-descent"}),
    "units": (
        setting(contraction=0.6, steps=3, lr=0.004, smoothness=100.0, distance=0.1, heterogeneity=30.0),
        {"convex-descent"},
    ),
    "another W at every exchange": (
        setting(contraction=0.6, steps=3, lr=0.4, time_varying=True),
        {"convex-descent"},
    ),
    "ring": (setting(topology=topology("ring", 4), steps=3, lr=0.5), {"convex-descent", "periodic-convex-descent"}),
    "one peer": (
        setting(topology=topology("one-peer-exponential", 4), steps=3, lr=0.4),
        {"convex-descent", "periodic-convex-descent"},
    ),
    "one peer, atc": (
        setting(topology=topology("one-peer-exponential", 4), steps=3, lr=0.4, order="atc"),
        {"convex-descent", "periodic-convex-descent"},
    ),
    "deviation": (
        setting(contraction=0.5, steps=4, lr=0.5, heterogeneity=0.0, criterion="consensus"),
        {"yuan-ling-yin-deviation"},
    ),
    "deviation, curved": (
        setting(contraction=0.9, lr=0.09, **CURVED, criterion="consensus"),
        {"yuan-ling-yin-deviation"},
    ),
    "deviation, range": (
        setting(eigenvalues=(0.2, 0.7), lr=1.0, **CURVED, criterion="consensus"),
        {"yuan-ling-yin-deviation"},
    ),
    "neighbourhood": (setting(contraction=0.5, lr=0.5, **CURVED, criterion="mean"), {"strongly-convex-neighbourhood"}),
    "neighbourhood, ring": (
        setting(topology=topology("ring", 4), lr=0.6, **CURVED, criterion="mean"),
        {"strongly-convex-neighbourhood"},
    ),
    "bounded slopes": (
        setting(contraction=0.5, steps=4, lr=0.5, lipschitz=1.0, criterion="average"),
        {"subgradient-descent", "subgradient-recalled"},
    ),
    "bounded slopes, atc": (
        setting(contraction=0.9, steps=3, lr=0.5, lipschitz=2.0, criterion="average", order="atc"),
        {"subgradient-descent"},
    ),
    "bounded slopes, another W at every exchange": (
        setting(contraction=0.5, steps=3, lr=0.5, lipschitz=1.0, criterion="average", time_varying=True),
        {"subgradient-descent", "subgradient-recalled"},
    ),
    **{
        f"tracking, {criterion}": (
            setting("diging", contraction=0.5, lr=0.1, **CURVED, criterion=criterion),
            {"gradient-tracking-error"},
        )
        for criterion in ("distance", "mean", "consensus")
    },
    "tracking, one large step": (
        setting("diging", contraction=0.95, steps=1, lr=1.36, convexity=0.5, heterogeneity=0.1, criterion="consensus"),
        {"gradient-tracking-error"},
    ),
    "tracking, range": (
        setting("diging", eigenvalues=(-0.2, 0.6), lr=0.3, **CURVED, criterion="distance"),
        {"gradient-tracking-error"},
    ),
    "tracking, rate": (setting("diging", contraction=0.5, lr=0.1, **CURVED, criterion="rate"), set()),
    "extra": (setting("extra", contraction=0.5, steps=4, lr=0.4, criterion="distance"), {"extra-step"}),
    "extra, range": (setting("extra", eigenvalues=(0.0, 0.9), steps=3, lr=0.9, criterion="mean"), {"extra-step"}),
    "d2": (setting("d2", eigenvalues=(-0.3, 0.5), steps=3, lr=0.5, criterion="last"), set()),
    "cta": (setting(contraction=0.5, steps=3, lr=0.5, order="cta", criterion="average"), set()),
}


@pytest.fixture(scope="module", params=list(GRID))
def case(request: pytest.FixtureRequest) -> tuple[Certificate, set[str]]:
    of, expected = GRID[request.param]
    certificate = certificate_of(of)
    assert certificate.certified
    return certificate, expected


def test_no_bound_is_below_the_exact_worst_case(case: tuple[Certificate, set[str]]) -> None:
    certificate, expected = case
    found = guarantees(certificate.setting)
    assert {g.bound for g in found} == expected
    for guarantee in found:
        near = TIGHT if certificate.status == "Solved" else ALMOST
        assert certificate.value <= guarantee.value * (1 + near), guarantee


def test_no_sampled_run_is_above_the_certificate(case: tuple[Certificate, set[str]]) -> None:
    certificate, _ = case
    rng = np.random.default_rng(0)
    measured = [sampled(certificate.setting, rng).measured() for _ in range(150)]
    assert max(measured) <= certificate.value * (1 + ROUNDING)
    assert max(measured) >= 0.05 * certificate.value, "samples that are all far below say little"


def test_a_run_without_a_rebuilt_instance_says_no_more(case: tuple[Certificate, set[str]]) -> None:
    certificate, _ = case
    of = certificate.setting
    if of.lipschitz is None and not of.time_varying:
        assert worst_case(certificate).measured() <= certificate.value * (1 + ROUNDING)


def test_samples_are_of_the_class(case: tuple[Certificate, set[str]]) -> None:
    of, rng = case[0].setting, np.random.default_rng(1)
    for _ in range(20):
        member = sampled(of, rng)
        x, y = rng.normal(size=(2, *member.start.shape)) * of.distance
        gap, apart = member.gradient(x) - member.gradient(y), x - y
        inner, squares = (gap * apart).sum(axis=1), (apart**2).sum(axis=1)
        np.testing.assert_allclose(member.gradient(np.zeros_like(x)).mean(axis=0), 0.0, atol=1e-12 * of.smoothness)
        scale = of.smoothness * squares
        if of.lipschitz is None:
            # what it is to be L-smooth and mu-strongly convex
            mu, ell = of.convexity, of.smoothness
            assert (inner - (mu * ell * squares + (gap**2).sum(axis=1)) / (mu + ell) >= -1e-12 * scale).all()
            assert (member.slopes**2).sum(axis=1).mean() <= of.heterogeneity * (1 + 1e-12)
        else:
            assert (np.linalg.norm(member.gradient(x), axis=1) <= of.lipschitz * (1 + 1e-12)).all()
            assert (inner >= -1e-12).all()
        if isinstance(of.mixing, tuple):
            w = member.topology[0].dense()
            modes = np.linalg.eigvalsh(w - 2.0 / len(w))[1:]  # consensus becomes the lowest, at -1
            assert of.mixing[0] - 1e-12 <= modes.min()
            assert modes.max() <= of.mixing[1] + 1e-12
        if of.criterion != "rate":
            assert np.linalg.norm(member.start, axis=1) == pytest.approx(of.distance)


def test_values_and_gradients_of_samples_belong_together() -> None:
    of, rng = setting(contraction=0.5, steps=2, lr=0.5, convexity=0.1), np.random.default_rng(2)
    for _ in range(10):
        member = sampled(of, rng)
        x, towards = rng.normal(size=(2, member.start.shape[1]))
        everywhere = np.tile(x, (member.size, 1))
        slope = member.gradient(everywhere).mean(axis=0) @ towards
        numeric = (member.objective(x + 1e-6 * towards) - member.objective(x - 1e-6 * towards)) / 2e-6
        assert slope == pytest.approx(numeric, rel=1e-6, abs=1e-6)


class Point(nn.Module):
    """A vector that is trained."""

    def __init__(self, start: np.ndarray) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.from_numpy(start.copy()))


@pytest.mark.parametrize("name", ["awc", "atc", "one peer", "deviation, curved", "tracking, distance"])
def test_the_engine_stays_below_the_certificate_on_the_samples(name: str) -> None:
    of, rng = GRID[name][0], np.random.default_rng(3)
    certificate = certificate_of(of)
    for _ in range(6):
        member = sampled(of, rng)

        def loss(model: Any, batch: dict[str, Tensor], member: Any = member) -> Tensor:
            # linear in x with the worker's gradient there as its slope
            i = int(batch["worker"])
            here = np.tile(model.x.detach().numpy(), (member.size, 1))
            return torch.from_numpy(member.gradient(here)[i]) @ model.x

        engine = StackedEngine(
            Point(member.start[0]),
            loss,
            algorithm=algorithm("dsgd", order=of.order) if of.method == "dsgd" else algorithm(of.method),
            topology=member.topology,
            lr=of.lr,
            gradients="loop",
        )
        points = [engine.x.numpy()]
        for _ in range(of.steps):
            engine.step({"worker": torch.arange(member.size)})
            points.append(engine.x.numpy())
        run = np.stack(points)
        np.testing.assert_allclose(run, member.run(), atol=1e-12)
        assert member.measured(run) <= certificate.value * (1 + ROUNDING)


def test_a_bound_with_a_smaller_constant_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = certificate_of(GRID["exact averaging"][0])
    (guarantee,) = guarantees(certificate.setting)
    factor = 0.99 * certificate.value / guarantee.value
    assert factor > 0.5, "half of a constant is a visible error here"
    bound = bounds.find("convex-descent")
    honest = bound.value
    monkeypatch.setattr(
        type(bound), "value", lambda _, p: Answer("convex-descent", factor * honest(p).value, honest(p).failing)
    )
    assert certificate.value > guarantee.value * (1 + TIGHT)


def test_nothing_is_guaranteed_where_assumptions_fail() -> None:
    assert guarantees(setting(contraction=0.9, steps=50, lr=1.0)) == []
    assert guarantees(setting(contraction=0.5, steps=3, lr=0.1, criterion="consensus")) == [], "linear functions fall"
    assert guarantees(setting("diging", contraction=0.5, steps=3, lr=0.1, criterion="distance")) == []
    assert guarantees(setting("extra", contraction=1.0, steps=3, lr=0.1, criterion="distance")) == []
