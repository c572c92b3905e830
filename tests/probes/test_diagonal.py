"""The diagonal and the Frobenius norm against known matrices."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dissensus.probes import Curvature, Matrix, ProbeError
from dissensus.probes.diagonal import _deflated, hessian_diagonal
from dissensus.probes.frobenius import frobenius_norm
from dissensus.probes.krylov import rademacher

SPECTRA = {
    "outliers": torch.cat([torch.tensor([40.0, 25, 12, 6, 3]), torch.linspace(-0.2, 0.6, 115)]),
    "power law": torch.arange(1, 121).double() ** -1.5 * 30,
    "indefinite": torch.cat([torch.linspace(2, 8, 70), torch.linspace(-5, 0, 50)]),
}


@pytest.fixture(params=sorted(SPECTRA))
def dense(request, spectrum):
    return spectrum(SPECTRA[request.param])


def test_every_entry_has_an_honest_error_bar(dense):
    held, errors, claimed = [], [], []
    for seed in range(12):
        made = hessian_diagonal(Matrix(dense), rtol=0.12, max_matvecs=110, seed=seed)
        claimed.append(made.error.value)
        low, high = made.interval()
        held.append(((low <= dense.diagonal()) & (dense.diagonal() <= high)).double().mean())
        errors.append(float((made.values - dense.diagonal()).norm() / dense.diagonal().norm()))
        assert made.error.num_matvecs <= 110
    assert 0.90 <= np.mean(held) <= 0.99
    assert np.mean(errors) == pytest.approx(np.mean(claimed), rel=0.3)


@pytest.mark.parametrize("coupling", [0.0, 1e-3, 0.03])
def test_nearly_diagonal_matrices_are_not_deflated(coupling):
    """Taking Krylov directions out of them would add noise: their eigenvectors are not the Krylov vectors."""
    noise = torch.randn(200, 200, generator=torch.Generator().manual_seed(0)).double()
    dense = torch.diag(torch.linspace(1, 10, 200).double()) + coupling * (noise + noise.T)
    made = hessian_diagonal(Matrix(dense), rtol=0.02, max_matvecs=150, seed=1)
    assert made.converged
    assert made.error.notes == ("method: random signs",)
    assert float((made.values - dense.diagonal()).norm() / dense.diagonal().norm()) <= 0.03
    assert made.error.num_matvecs <= (16 if coupling < 0.01 else 80)


def test_samples_are_carried_over_without_new_products(dense):
    """z * PHPz from z and Hz, against the projection written out."""
    op, signs = Matrix(dense), torch.Generator().manual_seed(0)
    z = rademacher(signs, 5, op)
    rest, rows = _deflated(op, 3, 7, signs, z, z @ dense)
    assert (op.products, rest.rank) == (7, 7)
    basis = rest.basis
    assert basis is not None
    outside = torch.eye(120, dtype=torch.float64) - basis.T @ basis
    torch.testing.assert_close(rows, z * (z @ outside @ dense @ outside), rtol=1e-9, atol=1e-11)


def test_outliers_are_taken_out_of_the_diagonal(spectrum):
    dense = spectrum(torch.cat([torch.tensor([400.0, 250, 120, 60]), torch.full((196,), 0.05)]))
    made = hessian_diagonal(Matrix(dense), rtol=0.02, max_matvecs=150)
    assert made.converged
    assert "after deflating" in made.error.notes[0]
    assert float((made.values - dense.diagonal()).norm() / dense.diagonal().norm()) <= 0.03


def test_a_target_beyond_sampling_takes_the_coordinates(dense):
    made = hessian_diagonal(Matrix(dense), rtol=1e-4, max_matvecs=1000)
    torch.testing.assert_close(made.values, dense.diagonal(), rtol=1e-10, atol=1e-12)
    assert made.converged
    assert made.error.notes == ("method: coordinates",)
    assert not made.stderr.any()


def test_a_short_budget_says_so(dense):
    made = hessian_diagonal(Matrix(dense), rtol=1e-4, max_matvecs=60)
    assert not made.converged
    assert made.error.num_matvecs <= 60
    summary = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert summary["max"] == float(made.values.max())


@pytest.mark.parametrize("matrix", [torch.zeros(90, 90), torch.eye(90), torch.tensor([[-2.0]])])
def test_plain_matrices(matrix):
    made = hessian_diagonal(Matrix(matrix.double()), max_matvecs=80)
    assert made.converged
    assert made.error.value <= 0.1
    error = float((made.values - matrix.diagonal()).square().mean().sqrt())
    assert error <= 0.2 * float(matrix.abs().max())


def test_a_hessian(mlp):
    op = Curvature(*mlp)
    torch.testing.assert_close(hessian_diagonal(op).values, op.dense().diagonal(), rtol=1e-9, atol=1e-12)


def test_frobenius_intervals_hold(dense):
    truth = float(dense.norm())
    found = [frobenius_norm(Matrix(dense), rtol=0.03, max_matvecs=300, seed=seed) for seed in range(100)]
    held = np.mean([low <= truth <= high for low, high in (e.interval for e in found)])
    assert 0.90 <= held <= 1.0
    assert all(e.half_width <= 0.03 * e.value for e in found if e.converged)
    assert all(e.converged for e in found)
    errors = np.array([e.value - truth for e in found])
    assert abs(errors.mean()) <= 0.01 * truth


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_frobenius_in_float32_at_its_ends(dense, scale):
    made = frobenius_norm(Matrix((dense * scale).float()), rtol=0.02, max_matvecs=500, seed=1)
    assert made.value / scale == pytest.approx(float(dense.norm()), rel=0.05)
    assert made.half_width > 0


def test_frobenius_of_plain_matrices():
    assert frobenius_norm(Matrix(torch.zeros(30, 30).double())).value == 0
    assert frobenius_norm(Matrix([[-2.5]])).value == pytest.approx(2.5)
    low_rank = torch.outer(torch.arange(40.0), torch.arange(40.0)).double()
    made = frobenius_norm(Matrix(low_rank))
    assert made.value == pytest.approx(float(low_rank.norm()))
    assert made.converged


def test_nonsense_is_refused(dense):
    op = Matrix(dense)
    with pytest.raises(ProbeError, match=r"rtol must be positive, got -1; 0.05 means a twentieth of the value"):
        hessian_diagonal(op, rtol=-1)
    with pytest.raises(ProbeError, match=r"max_matvecs=3 is too few for method 'diagonal'; allow at least 16 products"):
        hessian_diagonal(op, max_matvecs=3)
    with pytest.raises(ProbeError, match=r"max_matvecs=3 is too few for method 'frobenius'; allow at least 16 product"):
        frobenius_norm(op, max_matvecs=3)
