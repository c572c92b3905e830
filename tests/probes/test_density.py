"""Densities against the eigenvalues of known matrices."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance

from dissensus.probes import Curvature, Matrix, ProbeError
from dissensus.probes.counting import share_below
from dissensus.probes.density import spectral_density
from dissensus.theory.stationary import predict
from dissensus.theory.topologies.ring import ring

SIZE = 300


@pytest.fixture(scope="module")
def values():
    bulk = 0.05 * torch.randn(SIZE - 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 3
    return torch.cat([torch.tensor([40.0, 25, 12, 6, 3, -3], dtype=torch.float64), bulk]).sort().values


@pytest.fixture
def op(values, spectrum):
    return Matrix(spectrum(values))


def distance(density, values):
    return wasserstein_distance(density.nodes, values.numpy(), density.weights)


def test_deflation_first_is_better_at_equal_cost(op, values):
    far = {}
    for plan in [(0, 4, 30), (60, 2, 30)]:
        deflate, probes, steps = plan
        found = [spectral_density(op, deflate=deflate, probes=probes, steps=steps, seed=s) for s in range(8)]
        assert {d.num_matvecs for d in found} == {120}
        far[deflate] = np.mean([distance(d, values) for d in found])
        assert all(d.weights.sum() == pytest.approx(1, abs=1e-12) for d in found)
    assert far[60] * 3 < far[0]


def test_the_neglected_coupling_bounds_the_distance(spectrum):
    """H against QHQ beside PHP, both dense: no count is off by more than one, nor the distance by 2 beta / d."""
    dense = spectrum(torch.linspace(-1, 3, 90).double() ** 3)
    made = spectral_density(Matrix(dense), deflate=12, probes=1, steps=78, seed=3)
    truth = np.linalg.eigvalsh(dense.numpy())
    nodes, weights = made.rules[0]
    parts = np.sort(np.concatenate([made.taken, nodes]))  # one probe, all steps: its nodes are the eigenvalues of PHP
    assert len(parts) == 90
    assert np.abs(parts - truth).sum() <= 2 * made.coupling + 1e-10
    assert made.coupling > 0.01
    for x in np.linspace(-1, 27, 50):
        assert abs((parts <= x).sum() - (truth <= x).sum()) <= 1
    assert weights.sum() == pytest.approx(1)


def test_outliers_stand_as_lines(op):
    made = spectral_density(op, deflate=60, probes=3, steps=30)
    assert made.lines[:5] == pytest.approx([40, 25, 12, 6, 3], rel=1e-3)
    assert made.lines[-1] == pytest.approx(-3, rel=1e-3)
    curve = made.curve(2000)
    mass = np.trapezoid(curve["density"], curve["x"])
    assert mass == pytest.approx(1 - len(made.lines) / SIZE, abs=1e-3)
    assert curve["x"].max() < 3
    whole = made.curve(20000, lines=True)
    assert np.trapezoid(whole["density"], whole["x"]) == pytest.approx(1, abs=1e-3)
    assert whole["x"].max() > 40
    assert (curve["stderr"] >= 0).all()


def test_moments_shares_and_quantiles_hold_the_truth(op, values):
    """Every interval is nominally 95 %; over 40 seeds at least 85 % hold each, two standard deviations below."""
    held = {"mean": 0, "second": 0, "below": 0, "negative": 0, "median": 0}
    for seed in range(40):
        made = spectral_density(op, deflate=20, probes=5, steps=20, seed=seed)
        pairs = {
            "mean": (made.moment(1), float(values.mean())),
            "second": (made.moment(2), float(values.square().mean())),
            "below": (made.cumulative(0.05), float((values <= 0.05).double().mean())),
            "negative": (made.negative_share(), float((values < -1e-5 * 40).double().mean())),
            "median": (made.quantile(0.5), float(values.quantile(0.5))),
        }
        for name, (found, truth) in pairs.items():
            held[name] += found.interval[0] - 1e-9 <= truth <= found.interval[1] + 1e-9
    assert min(held.values()) >= 34, held


def test_everything_taken_is_the_spectrum(op, values):
    made = spectral_density(op, deflate=SIZE, probes=2, steps=5)
    np.testing.assert_allclose(made.nodes, values.numpy(), atol=1e-9)
    assert made.quantile(1.0).value == pytest.approx(40)
    assert made.moment(3).value == pytest.approx(float((values**3).mean()))
    assert made.negative_share().value == pytest.approx(float((values < -4e-4).double().mean()))
    assert len(made.lines) == 0


def test_zero_eigenvalues_are_not_negative(spectrum):
    """Half of the spectrum is zero up to rounding of either sign."""
    op = Matrix(spectrum([0.0] * 60 + [1.0, 2, 5] * 10 + [-1.0] * 10 + [3.0] * 20))
    for deflate in (0, 3):
        share = spectral_density(op, deflate=deflate, probes=6, steps=10).negative_share()
        assert share.interval[0] <= 10 / 120 <= share.interval[1]
        assert share.value < 0.3


@pytest.mark.parametrize("matrix", [torch.zeros(5, 5), torch.eye(5) * 2, torch.tensor([[-3.0]])])
def test_spaces_that_close_at_once(matrix):
    for deflate in (0, 2, 10):
        made = spectral_density(Matrix(matrix.double()), deflate=deflate, probes=2, steps=4)
        assert made.weights.sum() == pytest.approx(1)
        assert made.nodes == pytest.approx(np.full(len(made.nodes), float(matrix[0, 0])), abs=1e-12)
        assert np.isfinite(made.curve(50)["density"]).all()
        assert made.negative_share().value == float(matrix[0, 0] < 0)


def test_theory_takes_it(op, values):
    """The stationary disagreement predicted from nodes and weights is that of the spectrum."""
    positive = Matrix(torch.diag(values.abs() / 40))
    truth = predict(ring(6), values.abs().numpy() / 40, 0.5, lr=0.1)
    made = spectral_density(positive, deflate=20, probes=3, steps=20)
    found = predict(ring(6), **made.curvatures(0.5), lr=0.1)
    assert found.consensus_distance == pytest.approx(truth.consensus_distance, rel=1e-3)
    assert found.envelope == pytest.approx(truth.envelope, rel=0.02)
    assert found.normalised_alignment == pytest.approx(truth.normalised_alignment, rel=0.02)


def test_a_hessian(mlp):
    hessian = Curvature(*mlp)
    values = torch.linalg.eigvalsh(hessian.dense().detach())
    made = spectral_density(hessian, deflate=16, probes=4, steps=15)
    left, spread = 1 - len(made.taken) / made.size, float(values.max() - values.min())
    assert distance(made, values) <= 2 * made.coupling / made.size + left * spread / 10
    assert json.loads(json.dumps(made.to_dict()))["probes"] == 4


def test_same_seed_same_bits(op):
    first, second = (spectral_density(op, seed=5, deflate=10, probes=2, steps=8).to_dict() for _ in range(2))
    assert first == second
    assert spectral_density(op, seed=6, deflate=10, probes=2, steps=8).to_dict() != first


def test_counting_brackets_what_the_quadrature_stands_for():
    """Chebyshev, Markov and Stieltjes, for the uniform measure and Legendre's rule."""
    nodes, weights = np.polynomial.legendre.leggauss(7)
    x = np.linspace(-1.2, 1.2, 200)
    low, value, high = share_below((nodes, weights / 2), x)
    truth = np.clip((x + 1) / 2, 0, 1)
    inside = (x >= nodes[0]) & (x <= nodes[-1])
    assert (low <= truth + 1e-12)[inside].all()
    assert (truth <= high + 1e-12)[inside].all()
    np.testing.assert_allclose(value[inside], truth[inside], atol=0.01)
    assert (np.diff(value) >= 0).all()


def test_nonsense_is_refused(op):
    with pytest.raises(ProbeError, match=r"probes must be at least 1, got 0"):
        spectral_density(op, probes=0)
    with pytest.raises(ProbeError, match=r"steps must be at least 1, got 0"):
        spectral_density(op, steps=0)
    with pytest.raises(ProbeError, match=r"deflate must be at least 0, got -1"):
        spectral_density(op, deflate=-1)
    made = spectral_density(op, deflate=5, probes=2, steps=4)
    with pytest.raises(ProbeError, match=r"share must lie between 0 and 1, got 50; 0.5 is the median eigenvalue"):
        made.quantile(50)
    with pytest.raises(ProbeError, match=r"width must be positive, got 0; leave it out for a hundredth of the range"):
        made.curve(width=0)
