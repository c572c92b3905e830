"""The split into Gauss-Newton matrix and residual, and signs by sample, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dissensus.probes import Curvature, ProbeError, hessian_trace, layer_traces
from dissensus.probes.gauss_newton import GaussNewton
from dissensus.probes.model_curvature import ModelCurvature
from dissensus.probes.sample_signs import SampleSigns
from dissensus.probes.split_trace import Residual

APART = {"mlp", "dropout in eval", "convolution", "frozen layer"}
"""Scenes whose every layer is understood sample by sample."""


def lengths(op):
    return {name: shape.numel() for name, shape in op.landscape.shapes.items()}


def dense_layers(op, matrix):
    return np.array([float(part.sum()) for part in matrix.diagonal().split(list(lengths(op).values()))])


def test_the_curvature_of_the_model_is_h_minus_g(scene):
    model, loss, batches, mode = scene
    op = Curvature(model, loss, batches, mode=mode)
    truth = op.dense() - GaussNewton.of(op).dense()
    torch.testing.assert_close(ModelCurvature(op).dense(), truth, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sorted(APART))
def test_signs_by_sample_are_unbiased_for_every_parameter(scenes, name):
    build, loss, batches, mode = scenes[name]
    with torch.random.fork_rng():
        torch.manual_seed(7)
        op = Curvature(build().double(), loss, batches, mode=mode)
    made = SampleSigns(GaussNewton.of(op))
    truth = dense_layers(op, op.dense() - GaussNewton.of(op).dense())
    found, size = made.draw(3000, torch.Generator().manual_seed(1))
    error = found.std(0, ddof=1) / len(found) ** 0.5
    assert made.products == 3000
    assert size > 0 or np.abs(truth).sum() < 1e-12  # one layer alone is linear in its weights
    assert (np.abs(found.mean(0) - truth) <= 4.5 * error + 1e-12).all()
    assert (
        np.abs(found.mean(0) - truth).sum() <= 0.2 * np.abs(truth).sum() + 1e-12
    )  # the errors are small enough to tell


@pytest.mark.parametrize("width", [2, 5])
def test_several_positions_and_looked_up_rows(width):
    """An embedding and a layer that reads three positions (more or fewer than it reads numbers), some rows twice."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Embedding(4, width), nn.Tanh(), nn.Linear(width, 3), nn.Tanh(), nn.Flatten(), nn.Linear(9, 2)
    ).double()
    batches = [(torch.tensor([[0, 1, 1], [2, 2, 2], [3, 0, 2]]), torch.tensor([0, 1, 1]))]
    op = Curvature(model, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), batches)
    truth = dense_layers(op, op.dense() - GaussNewton.of(op).dense())
    found, _ = SampleSigns(GaussNewton.of(op)).draw(4000, torch.Generator().manual_seed(0))
    error = found.std(0, ddof=1) / len(found) ** 0.5
    assert (np.abs(found.mean(0) - truth) <= 4.5 * error + 1e-12).all()
    assert np.abs(found.mean(0) - truth).sum() <= 0.2 * np.abs(truth).sum()


def test_split_finds_the_trace_of_every_scene(scene):
    model, loss, batches, mode = scene
    op = Curvature(model, loss, batches, mode=mode)
    truth = float(op.dense().trace())
    try:
        made = hessian_trace(op, method="split", rtol=0.02, max_matvecs=4000, seed=2)
    except ProbeError as why:
        assert "train" in str(why) or "apart" in str(why) or "row per sample" in str(why)  # noqa: PT017
        made = hessian_trace(op, rtol=0.5, max_matvecs=4000)
        assert any(note.startswith("not split") for note in made.notes) or made.interval_method == "exact"
        return
    assert abs(made.value - truth) <= 4.5 * made.stderr + 1e-9 * abs(truth)


def test_piecewise_linear_networks_leave_nothing_to_sample():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    batch = torch.randn(40, 4).double(), torch.randint(0, 3, (40,))
    op = Curvature(model, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), [batch])
    made = hessian_trace(op, rtol=1e-6)
    assert made.value == pytest.approx(float(op.dense().trace()), rel=1e-9)
    assert (made.interval_method, made.stderr, made.converged, made.num_matvecs) == ("exact", 0, True, 3 + 1)
    assert made.notes == ("method: exact Gauss-Newton trace, the rest of the Hessian has none",)
    assert hessian_trace(op, max_matvecs=4, method="split").value == made.value


class Bend(nn.Module):
    """Bent for positive numbers only."""

    def forward(self, x):
        return torch.where(x > 0, x**2, x)


@pytest.mark.parametrize("order", [1, -1])
def test_one_batch_without_curvature_does_not_speak_for_the_others(order):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), Bend(), nn.Linear(3, 3)).double()
    for p in model[0].parameters():
        p.data.abs_()
    x, y = torch.rand(6, 2).double() + 1, torch.tensor([0, 1, 2, 0, 1, 1])
    batches = [(x, y), (-3 * x, y)][::order]
    op = Curvature(model, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), batches)
    made = hessian_trace(op, method="split", rtol=0.001)
    assert made.value == pytest.approx(float(op.dense().trace()), rel=0.002)


def test_signs_by_sample_are_quieter_than_signs_alike(mlp):
    model, loss, _ = mlp
    draw = torch.Generator().manual_seed(0)
    batch = torch.randn(200, 3, generator=draw).double(), torch.randint(0, 3, (200,), generator=draw)
    op = Curvature(model, loss, [batch])
    by_sample, _ = SampleSigns(GaussNewton.of(op)).draw(500, torch.Generator().manual_seed(0))
    z = (2 * torch.randint(0, 2, (500, op.size), generator=draw) - 1).double()
    alike = (z * ModelCurvature(op).matvec(z)).sum(1)
    assert by_sample.sum(1).std() * 3 < float(alike.std())


def test_intervals_of_the_split_hold(mlp):
    model, loss, _ = mlp
    draw = torch.Generator().manual_seed(0)
    batch = torch.randn(30, 3, generator=draw).double(), torch.randint(0, 3, (30,), generator=draw)
    op = Curvature(model, loss, [batch])
    truth = float(op.dense().trace())
    found = [hessian_trace(op, method="split", rtol=0.005, seed=seed, max_matvecs=300) for seed in range(60)]
    assert 0.90 <= np.mean([low <= truth <= high for low, high in (e.interval for e in found)]) <= 1.0


def test_batches_are_weighted_and_counted(mlp):
    op = Curvature(*mlp)
    made = hessian_trace(op, method="split", rtol=0.01, seed=1, max_matvecs=2000)
    assert abs(made.value - float(op.dense().trace())) <= 4.5 * made.stderr
    assert made.num_matvecs == made.samples + Residual(op).charged
    again = hessian_trace(op, method="split", rtol=0.01, seed=1, max_matvecs=2000)
    assert made.to_dict() == again.to_dict()


def test_layers_from_the_split(mlp):
    op = Curvature(*mlp)
    truth = dense_layers(op, op.dense())
    found = layer_traces(op, lengths(op), method="split", rtol=0.02, max_matvecs=3000)
    for value, made in zip(truth, found.values(), strict=True):
        assert abs(made.value - value) <= 4.5 * made.stderr + 1e-9
        assert made.converged
    joined = layer_traces(op, {"first": 16, "second": 15}, method="split", probes=64)
    assert joined["first"].samples == 64
    assert abs(joined["first"].value - truth[:2].sum()) <= 4.5 * joined["first"].stderr
    with pytest.raises(ProbeError, match=r"a piece ends inside parameter '0.weight': the exact trace of the Gauss-N"):
        layer_traces(op, {"a": 5, "b": 26}, method="split")


def test_a_penalty_on_weights_is_sampled_as_h_minus_g(mlp):
    model, loss, batches = mlp

    def penalised(m, b):
        return loss(m, b) + 0.05 * sum((p**4).sum() for p in m.parameters())

    op = Curvature(model, penalised, batches)
    made = hessian_trace(op, method="split", rtol=0.02, max_matvecs=4000)
    assert abs(made.value - float(op.dense().trace())) <= 4.5 * made.stderr
    assert "signs alike for all samples: a part of the loss reads parameters without the model" in made.notes
    with pytest.raises(ProbeError, match=r"a part of the loss reads parameters without the model, which is no curv"):
        ModelCurvature(op).matvec(torch.ones(op.size).double())


def test_budgets(mlp):
    op = Curvature(*mlp)
    with pytest.raises(ProbeError, match=r"max_matvecs=10 is too few for method 'split'; allow at least 19 products"):
        hessian_trace(op, method="split", max_matvecs=10)
