"""The trace against matrices whose trace is known, and the intervals against how often they hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dissensus.probes import Curvature, Matrix, ProbeError, hessian_trace, layer_traces
from dissensus.probes.hutchpp import Lanczos, Sketch
from dissensus.probes.krylov import rademacher
from dissensus.probes.remainder import PILOT, Remainder, probes_needed
from dissensus.probes.xtrace import XTrace

SPECTRA = {
    "outliers over a bulk": torch.cat([torch.tensor([40.0, 25, 12, 6, 3]), torch.linspace(-0.2, 0.6, 75)]),
    "power law": torch.arange(1, 81).double() ** -1.5 * 30,
    "indefinite": torch.cat([torch.linspace(2, 8, 50), torch.linspace(-5, 0, 30)]),
}


@pytest.fixture(params=sorted(SPECTRA))
def known(request, spectrum):
    values = SPECTRA[request.param]
    return Matrix(spectrum(values)), float(values.double().sum())


METHODS = ["hutchinson", "deflated", "hutch++", "xtrace"]


def coverage(op, truth, method, rtol, seeds):
    """The share of seeds whose interval holds the truth, the mean error, and the standard deviation of that mean."""
    found = [hessian_trace(op, rtol=rtol, max_matvecs=160, seed=seed, method=method) for seed in seeds]
    errors = np.array([e.value - truth for e in found])
    spread = errors.std() / len(errors) ** 0.5
    return np.mean([low <= truth <= high for low, high in (e.interval for e in found)]), errors.mean(), spread


@pytest.mark.parametrize("method", METHODS)
def test_nominal_95_percent_intervals_hold(known, method):
    """In 90 to 99 % of 200 seeds, stopped where they are narrow enough; XTrace's are conservative by design."""
    op, truth = known
    held, bias, spread = coverage(op, truth, method, 0.2 if method == "xtrace" else 0.1, range(200))
    assert 0.90 <= held <= (1.0 if method == "xtrace" else 0.99)
    assert abs(bias) <= 4 * spread + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("rtol", [0.3, 0.05, 0.02])
@pytest.mark.parametrize("method", METHODS)
def test_intervals_hold_at_other_targets(known, method, rtol):
    op, truth = known
    held, bias, spread = coverage(op, truth, method, rtol, range(400))
    assert 0.90 <= held <= (1.0 if method in ("xtrace", "hutch++") else 0.99)
    assert abs(bias) <= 4 * spread + 0.1 * rtol * truth, (
        "stopping where it looks good costs less than a tenth of the target"
    )


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


@pytest.mark.parametrize("grower", [Lanczos, Sketch])
def test_pilot_probes_are_deflated_without_new_products(spectrum, grower):
    """The shared-product identity (Pz)'H(Pz) = z'Hz - 2 a'b + a'Ta, against the projection written out."""
    dense = spectrum(SPECTRA["outliers over a bulk"])
    op = Matrix(dense)
    rem = Remainder(op, torch.Generator().manual_seed(5))
    rem.deflate(grower(op, torch.Generator().manual_seed(9)), probes_needed(0.01, 16), 60)
    spent = op.products
    assert rem.rank > 3
    basis = rem.basis
    assert basis is not None
    torch.testing.assert_close(basis @ basis.T, torch.eye(rem.rank, dtype=torch.float64), rtol=0, atol=1e-12)
    rest = torch.eye(80, dtype=torch.float64) - basis.T @ basis
    z = rademacher(torch.Generator().manual_seed(5), PILOT, op) @ rest
    np.testing.assert_allclose(rem.pilot, ((z @ dense) * z).sum(1).numpy(), rtol=1e-8)
    assert rem.known == pytest.approx(float(torch.trace(basis @ dense @ basis.T)), rel=1e-10)
    assert spent == PILOT + grower.price * rem.rank
    left = dense - rest @ dense @ rest
    torch.testing.assert_close(rem.known_diagonal(), left.diagonal(), rtol=0, atol=1e-10)
    assert float(rem.known_diagonal().sum()) == pytest.approx(rem.known, rel=1e-10)


def test_xtrace_is_the_mean_of_leaving_out(spectrum):
    """Against Q computed anew for every probe left out."""
    dense = spectrum(SPECTRA["power law"])
    run = XTrace(Matrix(dense), torch.Generator().manual_seed(2))
    run.add(5)
    run.add(4)
    omega = run._omega
    for i, found in enumerate(run.estimates()):
        others = torch.cat([omega[:i], omega[i + 1 :]])
        q = torch.linalg.qr((others @ dense).T).Q
        rest = omega[i] - q @ (q.T @ omega[i])
        assert found == pytest.approx(float(torch.trace(q.T @ dense @ q) + rest @ dense @ rest), rel=1e-9)
    assert run.samples().mean() == pytest.approx(run.estimates().mean())


@pytest.mark.parametrize("rank", [0, 1, 5])
def test_a_low_rank_is_exact_for_sketches(spectrum, rank):
    op = Matrix(spectrum([3.0, -2, 7, 1, 4][:rank] + [0.0] * (60 - rank)))
    truth = sum([3.0, -2, 7, 1, 4][:rank])
    for method in ("xtrace", "hutch++", "deflated"):
        made = hessian_trace(op, method=method, rtol=1e-6, max_matvecs=100)
        assert made.value == pytest.approx(truth, abs=1e-10)
        assert made.converged
        assert made.interval[0] <= truth + 1e-12
        assert truth - 1e-12 <= made.interval[1]


def test_rounding_stops_what_sampling_cannot_mend():
    """A float32 diagonal has forms without spread; no interval is narrower than rounding, and no budget is burnt."""
    op = Matrix(torch.diag(torch.linspace(1, 2, 500)))
    made = hessian_trace(op, rtol=1e-9, max_matvecs=5000, method="hutchinson")
    assert not made.converged
    assert made.num_matvecs < 100
    assert made.half_width >= 1e-7 * made.value
    assert abs(made.value - 750) <= made.half_width
    assert made.notes[-1] == "rounding of float32 does not allow the target; more probes would not help"
    assert made.interval_method.startswith("rounding of float32")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_float32_at_its_ends(spectrum, method, scale):
    values = SPECTRA["power law"]
    op = Matrix((spectrum(values) * scale).float())
    made = hessian_trace(op, rtol=0.05, max_matvecs=400, method=method, seed=1)
    assert abs(made.value / scale - float(values.sum())) <= 3 * made.stderr / scale


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


@pytest.mark.parametrize("method", ["auto", "exact", *METHODS])
def test_an_all_zero_operator_has_trace_zero(method):
    made = hessian_trace(Matrix(torch.zeros(40, 40).double()), method=method)
    assert (made.value, made.stderr, made.converged) == (0.0, 0.0, True)


@pytest.mark.parametrize("method", METHODS)
def test_sampling_a_small_operator_works_too(spectrum, method):
    op = Matrix(spectrum([5.0, 2, 1]))
    made = hessian_trace(op, method=method, rtol=1e-9, max_matvecs=30)
    assert made.num_matvecs <= 30
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


@pytest.mark.parametrize("method", ["hutchinson", "deflated", "hutch++"])
def test_layers_keep_their_part_of_what_is_taken_out(spectrum, method):
    dense = spectrum(SPECTRA["outliers over a bulk"])
    found = layer_traces(Matrix(dense), {"a": 30, "b": 50}, rtol=0.05, method=method, max_matvecs=2000)
    truths = [float(part.sum()) for part in dense.diagonal().split([30, 50])]
    for truth, made in zip(truths, found.values(), strict=True):
        assert abs(made.value - truth) <= 4 * made.stderr
        assert made.converged
    assert sum(e.value for e in found.values()) == pytest.approx(sum(truths), rel=0.06)


def test_nonsense_is_refused(mlp):
    op = Matrix(torch.eye(50).double())
    with pytest.raises(
        ProbeError, match=r"unknown method 'hutch'; there are 'auto', 'hutchinson', 'deflated', 'hutch\+\+', 'xtrace'"
    ):
        hessian_trace(op, method="hutch")  # type: ignore[arg-type]
    with pytest.raises(ProbeError, match=r"rtol must be positive, got 0; 0.05 means a twentieth of the value"):
        hessian_trace(op, rtol=0)
    with pytest.raises(ProbeError, match=r"max_matvecs=3 is too few for method 'auto'; allow at least 26 products"):
        hessian_trace(op, max_matvecs=3)
    with pytest.raises(ProbeError, match=r"max_matvecs=30 is too few for method 'exact'; allow at least 50 products"):
        hessian_trace(op, max_matvecs=30, method="exact")
    with pytest.raises(ProbeError, match=r"max_matvecs=20 is too few for method 'xtrace'; allow at least 24 products"):
        hessian_trace(op, max_matvecs=20, method="xtrace")
    with pytest.raises(
        ProbeError, match=r"method 'split' needs the Hessian of a loss \(a Curvature\), got Matrix; use"
    ):
        hessian_trace(op, method="split")
    with pytest.raises(ProbeError, match=r"method 'deflated' decides by a target how much to take out; give rtol"):
        layer_traces(op, {"a": 50}, method="deflated")
    with pytest.raises(
        ProbeError, match=r"unknown method 'xtrace'; there are 'hutchinson', 'deflated', 'hutch\+\+', 's"
    ):
        layer_traces(op, {"a": 50}, method="xtrace")
    with pytest.raises(
        ProbeError, match=r"max_matvecs=20 is too few for method 'deflated'; allow at least 26 products"
    ):
        layer_traces(op, {"a": 50}, method="deflated", rtol=0.1, max_matvecs=20)
    with pytest.raises(ProbeError, match=r"pieces cover 3 of 50 parameters; name all of them in order"):
        layer_traces(op, {"a": 3})
    with pytest.raises(ProbeError, match=r"probes must be at least 2 to have a spread, got 1"):
        layer_traces(op, {"a": 50}, probes=1)
    with pytest.raises(ProbeError, match=r"Matrix: needs a square matrix, got shape \(2, 3\)"):
        Matrix(torch.ones(2, 3))
    with pytest.raises(ProbeError, match=r"Matrix: not symmetric, an entry differs from its mirror by 1; use"):
        Matrix([[1.0, 1.0], [0.0, 1.0]])
