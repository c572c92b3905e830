"""The instance behind a certificate: in the class, and as bad as the certificate says."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.theory import MixingError, topology
from dissensus.theory.certificates import Certificate, WorstCase, certify, worst_case
from dissensus.theory.certificates.interpolation import Interpolant, simplex_quadratic
from dissensus.theory.certificates.worst_case import operator

ATTAINED = 5e-6
"""Relative shortfall: values of the functions are known to about 1e-10, their gradients only to its root."""

CASES = {
    "dsgd awc": {"contraction": 1 / 3, "steps": 5, "lr": 1 / 3},
    "dsgd atc": {"contraction": 0.8, "steps": 4, "lr": 0.6, "order": "atc", "criterion": "consensus"},
    "dsgd cta": {"contraction": 0.5, "steps": 4, "lr": 0.5, "order": "cta", "criterion": "last", "convexity": 0.2},
    "far from one": {
        "contraction": 0.5,
        "steps": 3,
        "lr": 0.004,
        "smoothness": 100.0,
        "distance": 0.1,
        "heterogeneity": 30.0,
        "criterion": "distance",
    },
    "average of the points": {"contraction": 0.5, "steps": 3, "lr": 0.3, "criterion": "average"},
    "the mean": {"contraction": 0.5, "steps": 3, "lr": 0.3, "criterion": "mean", "convexity": 0.1},
    "ring": {"topology": topology("ring", 4), "steps": 4, "lr": 1 / 3},
    "schedule": {"topology": topology("one-peer-exponential", 4), "steps": 3, "lr": 0.5, "criterion": "last"},
    "narrow range": {"eigenvalues": (0.5, 0.5000001), "steps": 3, "lr": 0.5, "criterion": "consensus"},
    "range": {"eigenvalues": (0.2, 0.7), "steps": 4, "lr": 0.5, "criterion": "consensus"},
    "tracking": {"method": "diging", "contraction": 0.3, "steps": 3, "lr": 0.2, "convexity": 0.1, "criterion": "rate"},
    "tracking from one point": {"method": "diging", "contraction": 0.5, "steps": 4, "lr": 0.2, "criterion": "last"},
    "extra": {"method": "extra", "contraction": 0.5, "steps": 5, "lr": 0.3, "criterion": "objective"},
    "d2": {"method": "d2", "eigenvalues": (0.0, 0.5), "steps": 4, "lr": 0.3, "criterion": "distance"},
    "one worker": {"topology": topology("complete", 1), "steps": 4, "lr": 1.0, "criterion": "last"},
    "no disagreement": {"contraction": 0.0, "steps": 3, "lr": 0.5, "criterion": "last"},
}


@pytest.fixture(scope="module", params=list(CASES))
def found(request: pytest.FixtureRequest) -> tuple[Certificate, WorstCase]:
    certificate = certify(**CASES[request.param])
    assert certificate.certified
    return certificate, worst_case(certificate)


def test_the_instance_attains_the_value_and_does_not_exceed_it(found: tuple[Certificate, WorstCase]) -> None:
    certificate, instance = found
    attained = instance.measured()
    assert attained <= certificate.value * (1 + 1e-9)
    assert attained == pytest.approx(certificate.value, rel=ATTAINED)


def test_the_matrix_is_of_the_class(found: tuple[Certificate, WorstCase]) -> None:
    certificate, instance = found
    mixing = certificate.setting.mixing
    if not isinstance(mixing, tuple):
        assert instance.topology is mixing
        return
    w = instance.topology[0].dense()
    np.testing.assert_allclose(w, w.T, atol=1e-15)
    np.testing.assert_allclose(w.sum(axis=1), 1.0, atol=1e-14)
    eigenvalues = np.linalg.eigvalsh(w - 1.0 / len(w))  # the eigenvalue of consensus becomes a zero
    zero = int(np.argmin(abs(eigenvalues)))
    others = np.delete(eigenvalues, zero)
    assert others.min() >= mixing[0] - 1e-12
    assert others.max() <= mixing[1] + 1e-12


def test_start_and_slopes_are_of_the_class(found: tuple[Certificate, WorstCase]) -> None:
    certificate, instance = found
    of = certificate.setting
    np.testing.assert_allclose(instance.slopes.mean(axis=0), 0.0, atol=1e-7 * (1 + abs(instance.slopes).max()))
    if of.criterion == "rate":
        return
    np.testing.assert_array_equal(instance.start, np.broadcast_to(instance.start[:1], instance.start.shape))
    assert np.linalg.norm(instance.start[0]) <= of.distance * (1 + 1e-14)
    assert (instance.slopes**2).sum(axis=1).mean() <= of.heterogeneity * (1 + 1e-14)


def test_functions_are_smooth_convex_and_smallest_together_at_zero(found: tuple[Certificate, WorstCase]) -> None:
    certificate, instance = found
    ell = certificate.setting.smoothness - certificate.setting.convexity
    rng, scale = np.random.default_rng(0), abs(instance.points).max()
    for f in instance.functions[:3]:
        points = rng.normal(size=(8, instance.dimension)) * scale
        values, gradients = zip(*(f.value_and_gradient(x) for x in points), strict=True)
        v, g = np.array(values), np.array(gradients)
        for i in range(8):
            for j in range(8):
                # the interpolation inequality is what it is to be convex and smooth
                slack = v[i] - v[j] - g[j] @ (points[i] - points[j]) - ((g[i] - g[j]) ** 2).sum() / (2 * ell)
                assert slack >= -1e-8 * ell * scale**2
    assert instance.objective(np.zeros(instance.dimension)) == pytest.approx(0.0, abs=1e-7 * ell * scale**2)
    nearby = [instance.objective(rng.normal(size=instance.dimension) * scale) for _ in range(20)]
    assert min(nearby) >= -1e-7 * ell * scale**2


def test_the_class_is_reached_by_a_power_of_two_of_workers(found: tuple[Certificate, WorstCase]) -> None:
    certificate, instance = found
    if isinstance(certificate.setting.mixing, tuple):
        assert instance.size & (instance.size - 1) == 0
        assert instance.size >= 2


# Interpolation.


@given(st.integers(0, 10_000))
def test_a_function_through_samples_of_a_quadratic(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d, count = int(rng.integers(1, 4)), int(rng.integers(1, 7))
    turn, _ = np.linalg.qr(rng.normal(size=(d, d)))
    hessian = (turn * rng.uniform(0, 0.9, d)) @ turn.T  # strictly less smooth than allowed
    points = rng.normal(size=(count, d))
    f = Interpolant(points, points @ hessian, np.einsum("si,ij,sj->s", points, hessian, points) / 2, 1.0)
    for k in range(count):
        value, gradient = f.value_and_gradient(points[k])
        assert value == pytest.approx(f.values[k], abs=1e-9)
        np.testing.assert_allclose(gradient, f.gradients[k], atol=1e-5)
    x, y = rng.normal(size=(2, d))
    (at, slope), (there, other) = f.value_and_gradient(x), f.value_and_gradient(y)
    assert there >= at + slope @ (y - x) + ((slope - other) ** 2).sum() / 2 - 1e-8
    step = 1e-5 * rng.normal(size=d)
    ahead, behind = f.value_and_gradient(x + step)[0], f.value_and_gradient(x - step)[0]
    assert (ahead - behind) / 2 == pytest.approx(slope @ step, abs=1e-9)


def test_one_sample_is_a_parabola() -> None:
    f = Interpolant(np.array([[1.0, 2.0]]), np.array([[0.5, -1.0]]), np.array([3.0]), 2.0)
    x = np.array([0.3, -0.7])
    off = x - f.points[0]
    value, gradient = f.value_and_gradient(x)
    assert value == pytest.approx(3.0 + f.gradients[0] @ off + off @ off, rel=1e-14)
    np.testing.assert_allclose(gradient, f.gradients[0] + 2.0 * off, rtol=1e-14)


def test_weights_are_the_best_of_the_simplex() -> None:
    rng = np.random.default_rng(0)
    root, q = rng.normal(size=(2, 5)), rng.normal(size=5)
    p = root.T @ root
    w = simplex_quadratic(p, q)
    best = w @ p @ w / 2 + q @ w
    assert w.min() >= 0
    assert w.sum() == pytest.approx(1.0, rel=1e-14)
    for other in rng.dirichlet(np.ones(5), size=500):
        assert other @ p @ other / 2 + q @ other >= best - 1e-10


@pytest.mark.parametrize("rank", [1, 3])
def test_an_operator_of_the_class_takes_columns_to_columns(rank: int) -> None:
    rng = np.random.default_rng(rank)
    turn, _ = np.linalg.qr(rng.normal(size=(rank, rank)))
    values = rng.uniform(-1, 1, rank)
    sent = rng.normal(size=(rank, rank))
    turned = (turn * values) @ turn.T @ sent
    found, basis = operator(sent, turned)
    np.testing.assert_allclose((basis * (2 * found - 1)) @ basis.T @ sent, turned, atol=1e-7)
    assert found.min() >= 0.0
    assert found.max() <= 1.0


# What is refused.


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"lipschitz": 1.0, "criterion": "average"}, "bounded slope are not rebuilt"),
        ({"time_varying": True}, "time-varying exchanges is not rebuilt"),
        ({"size": 2}, "size = 2 is not rebuilt; leave size out"),
    ],
)
def test_instances_that_are_not_rebuilt_are_told(parameters: dict, told: str) -> None:
    with pytest.raises(MixingError, match=told):
        worst_case(certify(contraction=0.5, steps=2, lr=0.4, **parameters))


def test_a_missing_solver_is_named_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = worst_case(certify(contraction=0.5, steps=1, lr=0.5))
    monkeypatch.setitem(sys.modules, "clarabel", None)
    with pytest.raises(MixingError, match="certificates need a conic solver"):
        instance.measured()
