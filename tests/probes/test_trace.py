"""The trace against matrices whose trace is known, and the intervals against how often they hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dissensus.probes import Curvature, Matrix, ProbeError, hessian_trace, layer_traces

SPECTRA = {
    "outliers over a bulk": torch.cat([torch.tensor([40.0, 25, 12, 6, 3]), torch.linspace(-0.2, 0.6, 75)]),
    "power law": torch.arange(1, 81).double() ** -1.5 * 30,
    "indefinite": torch.cat([torch.linspace(2, 8, 50), torch.linspace(-5, 0, 30)]),
}


@pytest.fixture(params=sorted(SPECTRA))
def known(request, spectrum):
    values = SPECTRA[request.param]
    return Matrix(spectrum(values)), float(values.double().sum())


@pytest.mark.parametrize("method", ["deflated", "hutchinson"])
def test_nominal_95_percent_intervals_hold(known, method):
    """Over 100 seeds between 90 and 99 % hold the truth, give or take three standard deviations of a binomial."""
    op, truth = known
    found = [hessian_trace(op, rtol=0.1, max_matvecs=60, seed=seed, method=method) for seed in range(100)]
    held = np.mean([low <= truth <= high for low, high in (e.interval for e in found)])
    assert 0.90 - 3 * 0.03 <= held <= 1.0
    errors = np.array([e.value - truth for e in found])
    assert abs(errors.mean()) <= 4 * errors.std() / 10 + 1e-9


def test_convergence_means_the_target_was_met(known):
    op, _ = known
    for rtol in (0.2, 0.05):
        made = hessian_trace(op, rtol=rtol, max_matvecs=5000, seed=3, method="deflated")
        assert made.converged
        assert made.half_width <= rtol * abs(made.value)
    short = hessian_trace(op, rtol=1e-6, max_matvecs=30, seed=3, method="deflated")
    assert not short.converged
    assert short.num_matvecs <= 30


def test_outliers_are_paid_for_once(spectrum):
    op = Matrix(spectrum(torch.cat([torch.tensor([40.0, 25, 12]), torch.full((197,), 0.05)])))
    plain = hessian_trace(op, rtol=0.02, max_matvecs=4000, method="hutchinson")
    deflated = hessian_trace(op, rtol=0.02, max_matvecs=4000, method="deflated")
    assert deflated.notes[0].startswith("method: Hutchinson after deflating")
    assert deflated.num_matvecs * 4 < plain.num_matvecs
    assert abs(deflated.value - (77 + 197 * 0.05)) <= 3 * deflated.stderr


def test_pilot_probes_are_deflated_without_new_products(spectrum):
    """The shared-product identity (Pz)'H(Pz) = z'Hz - 2 a'b + a'Ta, against the projection written out."""
    from dissensus.probes.krylov import rademacher
    from dissensus.probes.trace import PILOT, _Run

    dense = spectrum(SPECTRA["outliers over a bulk"])
    op = Matrix(dense)
    run = _Run(op, 0.01, 300, 5, 0.95, 0)
    run.deflate()
    assert run.rank > 3
    assert run._space is not None
    basis = run._space.basis[0]
    rest = torch.eye(80, dtype=torch.float64) - basis.T @ basis
    z = rademacher(torch.Generator().manual_seed(5), PILOT, op) @ rest
    np.testing.assert_allclose(run.pilot, ((z @ dense) * z).sum(1).numpy(), rtol=1e-8)
    assert run.known == pytest.approx(float(torch.trace(basis @ dense @ basis.T)), rel=1e-10)
    assert op.products == PILOT + run.rank


def test_small_operators_are_summed_coordinate_by_coordinate(mlp):
    made = hessian_trace(Matrix(torch.diag(torch.tensor([3.0, -1.0]).double())))
    assert (made.value, made.stderr, made.num_matvecs, made.interval_method) == (2.0, 0.0, 2, "exact")
    op = Curvature(*mlp)
    truth = float(op.dense().trace())
    exact = hessian_trace(op, method="exact")
    assert exact.value == pytest.approx(truth, rel=1e-12)
    assert exact.num_matvecs == op.size


def test_auto_takes_the_coordinates_where_that_is_cheaper(spectrum):
    values = SPECTRA["indefinite"]
    made = hessian_trace(Matrix(spectrum(values)), rtol=0.001)
    assert made.notes == ("method: one product per coordinate",)
    assert made.value == pytest.approx(float(values.double().sum()), rel=1e-10)


@pytest.mark.parametrize("method", ["auto", "hutchinson", "deflated", "exact"])
def test_an_all_zero_operator_has_trace_zero(method):
    made = hessian_trace(Matrix(torch.zeros(40, 40).double()), method=method)
    assert (made.value, made.stderr, made.converged) == (0.0, 0.0, True)


@pytest.mark.parametrize("method", ["hutchinson", "deflated"])
def test_sampling_a_small_operator_works_too(spectrum, method):
    op = Matrix(spectrum([5.0, 2, 1]))
    made = hessian_trace(op, method=method, rtol=1e-9, max_matvecs=24)
    assert made.num_matvecs <= 24
    assert abs(made.value - 8) <= 4 * made.stderr + 1e-9


def test_one_parameter():
    assert hessian_trace(Matrix([[-2.5]])).value == -2.5


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scale_does_not_matter(spectrum, scale):
    values = SPECTRA["power law"]
    plain = hessian_trace(Matrix(spectrum(values)), method="deflated", seed=1)
    scaled = hessian_trace(Matrix(spectrum(values * scale)), method="deflated", seed=1)
    assert scaled.value == pytest.approx(scale * plain.value, rel=1e-9)
    assert scaled.num_matvecs == plain.num_matvecs


def test_same_seed_same_bits(known):
    op, _ = known
    assert hessian_trace(op, seed=4).to_dict() == hessian_trace(op, seed=4).to_dict()
    assert hessian_trace(op, seed=4, rtol=0.2).value != hessian_trace(op, seed=5, rtol=0.2).value


def test_layer_traces_come_from_one_set_of_products(mlp):
    op = Curvature(*mlp)
    pieces = {name: shape.numel() for name, shape in op.landscape.shapes.items()}
    dense = op.dense().diagonal().split(list(pieces.values()))
    before = op.products
    found = layer_traces(op, pieces, probes=400)
    assert op.products - before == 400
    for truth, made in zip(dense, found.values(), strict=True):
        assert abs(made.value - float(truth.sum())) <= 4 * made.stderr


def test_nonsense_is_refused(mlp):
    op = Matrix(torch.eye(50).double())
    with pytest.raises(
        ProbeError, match=r"unknown method 'hutch'; there are 'auto', 'hutchinson', 'deflated', 'exact'"
    ):
        hessian_trace(op, method="hutch")  # type: ignore[arg-type]
    with pytest.raises(ProbeError, match=r"rtol must be positive, got 0; 0.05 means a twentieth of the trace"):
        hessian_trace(op, rtol=0)
    with pytest.raises(ProbeError, match=r"max_matvecs=3 is too few for method 'auto'; allow at least 22 products"):
        hessian_trace(op, max_matvecs=3)
    with pytest.raises(ProbeError, match=r"max_matvecs=30 is too few for method 'exact'; allow at least 50 products"):
        hessian_trace(op, max_matvecs=30, method="exact")
    with pytest.raises(ProbeError, match=r"pieces cover 3 of 50 parameters; name all of them in order"):
        layer_traces(op, {"a": 3})
    with pytest.raises(ProbeError, match=r"probes must be at least 2 to have a spread, got 1"):
        layer_traces(op, {"a": 50}, probes=1)
    with pytest.raises(ProbeError, match=r"Matrix: needs a square matrix, got shape \(2, 3\)"):
        Matrix(torch.ones(2, 3))
    with pytest.raises(ProbeError, match=r"Matrix: not symmetric, an entry differs from its mirror by 1; use"):
        Matrix([[1.0, 1.0], [0.0, 1.0]])
