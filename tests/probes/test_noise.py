"""The noise measure on quadratics whose Hessian and noise are known exactly."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from dissensus.probes import Curvature, Matrix, ProbeError, noise_measure
from dissensus.probes.noise import measure_of


@pytest.fixture
def known(spectrum):
    """H, 30 batch gradients around a centre that is known, and S = mean of their squares around it."""
    dense = spectrum(torch.cat([torch.tensor([20.0, 8, 3]), torch.linspace(-0.5, 1, 17)]))
    draw = torch.Generator().manual_seed(5)
    center = torch.randn(20, generator=draw).double()
    mix = torch.randn(20, 20, generator=draw).double() * torch.logspace(0, -3, 20).double()[:, None]
    gradients = center + torch.randn(30, 20, generator=draw).double() @ mix
    noise = gradients - center
    return Matrix(dense), dense, gradients, center, noise.T @ noise / 30


def trace_with_power(s, h, degree):
    return float((s * torch.linalg.matrix_power(h, degree)).sum())


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_with_all_directions_polynomials_are_exact_up_to_degree_two_m_minus_one(known, steps):
    op, h, gradients, center, s = known
    found = measure_of(op, gradients, center, shared=False, batch_size=4, steps=steps, vectors=20)
    assert op.products == found.variance.num_matvecs == 20 * steps
    assert found.total == pytest.approx(float(s.trace()), rel=1e-12)
    assert found.weights.sum() == pytest.approx(found.total, rel=1e-12)
    assert (found.weights >= 0).all()
    for degree in range(2 * steps):
        value = found.integral(lambda nodes, degree=degree: nodes**degree).value
        assert value == pytest.approx(trace_with_power(s, h, degree), rel=1e-9)
    beyond = found.integral(lambda nodes: nodes ** (2 * steps)).value
    assert abs(beyond / trace_with_power(s, h, 2 * steps) - 1) > 1e-7


def test_few_starts_come_close_and_their_random_rest_is_unbiased(known):
    op, h, gradients, center, s = known
    truth = trace_with_power(s, h, 1)
    values = np.array([
        measure_of(op, gradients, center, shared=False, batch_size=1, steps=3, vectors=6, seed=seed)
        .integral(lambda nodes: nodes).value
        for seed in range(60)
    ])  # fmt: skip
    assert np.abs(values / truth - 1).max() < 0.1
    assert abs(values.mean() - truth) <= 4 * values.std() / math.sqrt(60) + 0.01 * abs(truth)


@pytest.mark.parametrize("vectors", [1, 2, 3, 5, 8])
def test_the_total_is_kept_for_any_number_of_starts(known, vectors):
    op, _, gradients, center, s = known
    found = measure_of(op, gradients, center, shared=False, batch_size=1, steps=4, vectors=vectors)
    assert found.vectors == vectors
    assert found.weights.sum() == pytest.approx(float(s.trace()), rel=1e-12)
    assert len(found.nodes) == 4 * vectors


def test_a_mean_of_the_same_batches_is_corrected_for(known):
    op, _, gradients, _, _ = known
    own = measure_of(op, gradients, gradients.mean(0), shared=True, batch_size=4)
    assert own.total == pytest.approx(float(gradients.var(0).sum()), rel=1e-12)
    assert own.gradient_norm2 == pytest.approx(float(gradients.mean(0).square().sum()) - own.total / 30, rel=1e-12)
    assert own.noise_scale == pytest.approx(4 * own.total / own.gradient_norm2)


def test_compression_keeps_the_moments(known):
    op, _, gradients, center, _ = known
    found = measure_of(op, gradients, center, shared=False, batch_size=1, steps=5, vectors=8)
    small = found.compressed(4)
    assert len(small.nodes) == 4
    for degree in range(8):
        assert small.weights @ small.nodes**degree == pytest.approx(found.weights @ found.nodes**degree, rel=1e-9)
    assert found.compressed(400) is found


def test_the_integral_carries_both_errors(known):
    op, _, gradients, center, _ = known
    found = measure_of(op, gradients, center, shared=False, batch_size=1, steps=5, vectors=8)
    made = found.integral(lambda nodes: np.ones_like(nodes))
    assert made.value == pytest.approx(found.total)
    assert made.stderr >= found.variance.stderr
    assert made.interval_method == "t over 30 batches and 2 random sums"
    assert found.principal == 6


class Centre(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64))


def bowl(model, targets):
    """Curvature diag(1, 2, 3); a batch's gradient is that times (x - mean of its targets)."""
    return 0.5 * ((model.x - targets).square() * torch.tensor([1.0, 2, 3]).double()).sum(1).mean()


def test_a_model_whose_noise_is_known_in_closed_form():
    targets = torch.randn(24, 3, generator=torch.Generator().manual_seed(0)).double()
    batches = list(targets.split(4))
    found = noise_measure(Centre(), bowl, batches, 0, batches=[targets], steps=3)
    curvature = torch.tensor([1.0, 2, 3]).double()
    noise = torch.stack([curvature * (targets.mean(0) - batch.mean(0)) for batch in batches])
    energy = noise.square().mean(0)
    assert found.total == pytest.approx(float(energy.sum()), rel=1e-12)
    assert found.batch_size == 4
    for degree in range(6):
        assert found.weights @ found.nodes**degree == pytest.approx(float(energy @ curvature**degree), rel=1e-10)
    gradient = curvature * (Centre().x.detach() - targets.mean(0))
    assert found.gradient_norm2 == pytest.approx(float(gradient.square().sum()), rel=1e-12)
    alone = noise_measure(Centre(), bowl, batches, 0)
    assert alone.total == pytest.approx(float(energy.sum()) * 6 / 5, rel=1e-12)


def test_an_operator_at_hand_is_used(mlp):
    model, loss, batches = mlp
    op = Curvature(model, loss, batches)
    samples = [(x[i : i + 2], y[i : i + 2]) for x, y in batches for i in (0, 2)]
    with_op = noise_measure(model, loss, samples, 0, batches=batches, operator=op)
    assert op.products == with_op.variance.num_matvecs
    without = noise_measure(model, loss, samples, 0, batches=batches)
    np.testing.assert_array_equal(with_op.nodes, without.nodes)
    json.dumps(with_op.to_dict(), allow_nan=False)


def test_no_noise_is_no_noise():
    found = noise_measure(Centre(), bowl, [torch.ones(2, 3).double()] * 3)
    assert found.total == 0.0
    assert found.weights.sum() == 0.0
    assert found.noise_scale == 0.0
    assert found.integral(lambda nodes: nodes).value == 0.0


def test_nonsense_is_refused(mlp):
    model, loss, batches = mlp
    with pytest.raises(ProbeError, match=r"noise is a difference between batches; give at least two sample_batches"):
        noise_measure(model, loss, batches[:1])
    with pytest.raises(
        ProbeError, match=r"sample_batches differ in size, and with it in noise; give batches of the size"
    ):
        noise_measure(model, loss, batches)
    with pytest.raises(ProbeError, match=r"steps and vectors must be at least 1, got steps=0, vectors=8"):
        noise_measure(model, loss, [batches[0]] * 2, steps=0)
    with pytest.raises(ProbeError, match=r"a measure needs at least one node, got 0"):
        noise_measure(model, loss, [batches[0]] * 2).compressed(0)
