"""Alignment, captured share and the two envelopes: identities on quadratics, dense matrices elsewhere."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dissensus.probes import (
    Curvature,
    Estimate,
    Matrix,
    ProbeError,
    alignment,
    captured,
    consensus_distance,
    covariance_envelope,
    envelope,
    top_eigenvalues,
)
from dissensus.probes.estimate import exact


def spread(op, n=6, scale=0.1, seed=3):
    draw = torch.Generator().manual_seed(seed)
    return op.landscape.point + scale * torch.randn(n, op.size, generator=draw, dtype=torch.float64)


def covariance(x):
    away = x.double() - x.double().mean(0)
    return away.T @ away / len(x)


def test_alignment_against_dense_matrices(mlp):
    op = Curvature(*mlp)
    x = spread(op)
    h, sigma = op.dense(), covariance(x)
    before = op.products
    found = alignment(op, x, trace=exact("trace", float(h.trace()), num_matvecs=0, dtype="float64"))
    assert op.products - before == 6
    assert found.numerator == pytest.approx(float((h * sigma).sum()), rel=1e-11)
    assert found.trace_sigma == pytest.approx(consensus_distance(x).xi, rel=1e-12)
    assert found.rayleigh == pytest.approx(found.numerator / found.trace_sigma, rel=1e-13)
    assert sum(found.shares) == pytest.approx(found.numerator, rel=1e-12)
    truth = float((h * sigma).sum()) * op.size / float(h.trace() * sigma.trace())
    assert found.normalised.value == pytest.approx(truth, rel=1e-11)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["d"] == 31


def test_even_disagreement_is_one_sharp_above_flat_below(spectrum):
    values = torch.tensor([10.0, 1, 1, 1])
    dense = spectrum(values)
    op, basis = Matrix(dense), torch.linalg.eigh(dense).eigenvectors.T
    even, sharp, flat = (
        torch.cat([basis, -basis]),
        torch.stack([basis[3], -basis[3]]),
        torch.stack([basis[0], -basis[0]]),
    )
    assert alignment(op, even).normalised.value == pytest.approx(1, rel=1e-12)
    assert alignment(op, sharp).normalised.value == pytest.approx(10 * 4 / 13, rel=1e-12)
    assert alignment(op, flat).normalised.value == pytest.approx(4 / 13, rel=1e-12)
    assert alignment(op, sharp).rayleigh == pytest.approx(10, rel=1e-12)


def test_the_error_of_the_trace_is_carried_through(spectrum):
    op = Matrix(spectrum(torch.linspace(1, 9, 40)))
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    trace = Estimate("trace", 200.0, 4.0, (190.0, 210.0), "t", 9, 9, 0, "float64", True)
    found = alignment(op, x, trace=trace)
    scale = found.numerator * 40 / found.trace_sigma
    assert found.normalised.interval == pytest.approx((scale / 210, scale / 190))
    assert found.normalised.stderr == pytest.approx(scale / 200 * 0.02)
    measured = alignment(op, x, seed=2)
    assert measured.trace_h.num_matvecs + 5 == measured.normalised.num_matvecs
    open_end = alignment(op, x, trace=Estimate("trace", 1.0, 4.0, (-9.0, 11.0), "t", 9, 9, 0, "float64", False))
    assert open_end.normalised.interval == (-math.inf, math.inf)
    assert open_end.normalised.interval_method == "none: the interval of tr H contains zero"


def test_without_disagreement_or_curvature_the_ratio_is_no_number():
    still = alignment(Matrix(torch.eye(3).double()), torch.ones(4, 3))
    assert (still.numerator, still.trace_sigma) == (0.0, 0.0)
    assert math.isnan(still.normalised.value)
    assert math.isnan(still.rayleigh)
    assert not still.normalised.converged
    json.dumps(still.to_dict(), allow_nan=False)
    level = alignment(Matrix(torch.zeros(3, 3).double()), torch.eye(3))
    assert math.isnan(level.normalised.value)
    assert level.rayleigh == 0.0


def test_captured_share(spectrum):
    basis = torch.linalg.eigh(spectrum([4.0, 3, 2, 1])).eigenvectors.T
    x = torch.stack([3 * basis[0] + 4 * basis[1], -3 * basis[0] - 4 * basis[1]])
    assert captured(x, basis[:1]) == pytest.approx(9 / 25)
    assert captured(x, [basis[0], basis[1]]) == pytest.approx(1)
    assert captured(x, basis[2]) == pytest.approx(0, abs=1e-25)
    assert math.isnan(captured(torch.ones(3, 4), basis))


def test_captured_share_of_chosen_parameters(mlp):
    op = Curvature(*mlp, parameters="2.*")
    whole = spread(Curvature(*mlp))
    (pair,) = top_eigenvalues(op, 1)
    part = whole[:, 16:] - whole[:, 16:].mean(0)
    truth = float((part @ pair.vector).square().sum() / part.square().sum())
    assert captured(whole, pair.vector, op) == pytest.approx(truth, rel=1e-10)
    assert alignment(op, whole).trace_sigma == pytest.approx(consensus_distance(whole[:, 16:]).xi, rel=1e-12)


def squared_error(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])


def regression():
    draw = torch.Generator().manual_seed(4)
    x, y = torch.randn(12, 3, generator=draw).double(), torch.randn(12, 1, generator=draw).double()
    batches = [(x[:5], y[:5]), (x[5:10], y[5:10]), (x[10:], y[10:])]
    return nn.Linear(3, 1).double(), squared_error, batches


def test_on_a_quadratic_prediction_and_measurement_are_one():
    model, loss, batches = regression()
    op = Curvature(model, loss, batches)
    x = spread(op, scale=2.0)
    x = x - x.mean(0) + op.landscape.point
    measured, predicted = envelope(model, loss, batches, x), covariance_envelope(op, x)
    assert measured.value == pytest.approx(predicted.value, rel=1e-10)
    assert (predicted.stderr, predicted.num_matvecs, predicted.name) == (0.0, 6, "tr(HΣ)/2")
    assert predicted.value == pytest.approx(0.5 * float((op.dense() * covariance(x)).sum()), rel=1e-11)


def test_the_envelope_by_hand(mlp):
    model, loss, batches = mlp
    op = Curvature(model, loss, batches)
    x = spread(op, n=3, scale=1.0)
    found = envelope(model, loss, batches, x)
    gaps = []
    for batch in batches:
        values = []
        for row in [*x, x.mean(0)]:
            nn.utils.vector_to_parameters(row, model.parameters())
            values.append(float(loss(model, batch).detach()))
        gaps.append(sum(values[:3]) / 3 - values[3])
    value = (7 * gaps[0] + 4 * gaps[1]) / 11
    assert found.value == pytest.approx(value, rel=1e-11)
    share = torch.tensor([7 / 11, 4 / 11])
    assert found.stderr == pytest.approx(
        float((2 * (share * (torch.tensor(gaps) - value)) ** 2).sum().sqrt()), rel=1e-6
    )
    assert found.samples == 2
    assert found.notes == ("mode: eval", "no buffers")


def test_one_batch_gives_a_value_without_an_interval():
    model, loss, batches = regression()
    found = envelope(model, loss, batches[:1], x=torch.randn(3, 4).double())
    assert math.isnan(found.stderr)
    assert math.isfinite(found.value)


def test_in_consensus_both_envelopes_vanish_to_the_bit(mlp):
    op = Curvature(*mlp)
    x = op.landscape.point.expand(5, -1)
    assert envelope(mlp[0], mlp[1], mlp[2], x).value == 0.0
    assert covariance_envelope(op, x).value == 0.0


def test_batch_norm_buffers_are_stated_and_used():
    norm = nn.BatchNorm1d(2)
    model = nn.Sequential(nn.Linear(2, 2), norm).double()
    mean: Any = norm.running_mean
    mean.fill_(5.0)
    batches = [torch.randn(6, 2, generator=torch.Generator().manual_seed(0)).double()]
    x = torch.randn(3, 10, generator=torch.Generator().manual_seed(1)).double()

    def loss(m, b):
        return m(b).square().mean()

    shifted = envelope(model, loss, batches, x)
    assert shifted.notes == ("mode: eval", "buffers: the model's own at every point")
    mean.zero_()
    assert envelope(model, loss, batches, x).value != shifted.value
    assert envelope(model, loss, batches, x, mode="train").notes[0] == "mode: train"


def test_nonsense_is_refused(mlp):
    op = Matrix(torch.eye(3).double())
    with pytest.raises(ProbeError, match=r"x has rows of 4 numbers, the operator takes 3"):
        alignment(op, torch.randn(2, 4))
    with pytest.raises(ProbeError, match=r"the vectors have 2 entries, the rows of x 3; choose the same ones"):
        captured(torch.randn(2, 3), torch.eye(2))
    with pytest.raises(ProbeError, match=r"the vectors are not orthonormal \(off by 3\); use torch.linalg.qr first"):
        captured(torch.randn(2, 3), 2 * torch.eye(3))
    with pytest.raises(ProbeError, match=r"x has rows of 4 numbers, the model has 31 chosen parameters"):
        envelope(mlp[0], mlp[1], mlp[2], torch.randn(2, 4))
