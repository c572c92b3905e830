"""Slices of the loss: closed forms on quadratics, filter normalisation by hand, what rescaling does to it."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dissensus.probes import Curvature, ProbeError, top_eigenvalues
from dissensus.probes.filter_norm import normalised
from dissensus.probes.slices import Slice, coordinates, loss_slice, principal_directions, random_directions


def cut(scene: Any, directions: Any, **more: Any) -> Slice:
    model, loss, batches = scene
    return loss_slice(model, loss, batches, directions, **more)


def test_a_slice_is_the_loss_on_the_grid(mlp):
    model, loss, batches = mlp
    landscape = Curvature(model, loss, batches).landscape
    rows = torch.randn(2, 31, generator=torch.Generator().manual_seed(0)).double()
    found = loss_slice(model, loss, batches, list(rows), reach=[0.5, 0.2], points=3)
    for i, a in enumerate((-0.5, 0, 0.5)):
        for j, b in enumerate((-0.2, 0, 0.2)):
            truth = landscape.value(landscape.point + a * rows[0] + b * rows[1])
            assert found.values[i, j] == pytest.approx(truth, rel=1e-13)
    assert found.evaluations == 9
    assert found.lowest == tuple(
        axis[i] for axis, i in zip(found.axes, np.unravel_index(found.values.argmin(), (3, 3)), strict=True)
    )
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["labels"] == ["direction 1", "direction 2"]


def test_along_an_eigenvector_a_slice_bends_with_the_eigenvalue(mlp):
    model, loss, batches = mlp
    op = Curvature(model, loss, batches)
    (pair,) = top_eigenvalues(op, 1, tol=1e-8)
    found = loss_slice(model, loss, batches, [pair.vector], reach=1e-3, points=3)
    bend = (found.values[0] - 2 * found.values[1] + found.values[2]) / 1e-6
    assert bend == pytest.approx(pair.value, rel=1e-4)


def test_filters_get_the_length_of_their_weights():
    shapes = {"conv": (3, 2, 2, 2), "gain": (3,), "line": (2, 5), "scalar": ()}
    draw = torch.Generator().manual_seed(0)
    point, direction = torch.randn(2, 38, generator=draw).double()
    found = normalised(direction, point, shapes)
    for start, rows, width in ((0, 3, 8), (27, 2, 5)):
        d, w, raw = (v[start : start + rows * width].reshape(rows, width) for v in (found, point, direction))
        torch.testing.assert_close(d.norm(dim=1), w.norm(dim=1))
        torch.testing.assert_close(d / d.norm(dim=1, keepdim=True), raw / raw.norm(dim=1, keepdim=True))
    assert not found[24:27].any()
    assert not found[37:].any()
    layer = normalised(direction, point, shapes, "layer")
    assert float(layer[:24].norm()) == pytest.approx(float(point[:24].norm()))
    assert float(normalised(direction, point, shapes, "none").norm()) == pytest.approx(float(point.norm()))
    still = normalised(torch.zeros(38).double(), point, shapes)
    assert not still.any()


def relu_net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()


def loss_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize(("factors", "blind"), [([3.0] * 6, True), ([0.2, 2, 3, 1, 0.5, 4], False)])
@pytest.mark.parametrize("normalisation", ["filter", "none"])
def test_filter_normalised_slices_do_not_see_layers_rescaled_but_see_neurons(factors, blind, normalisation):
    model = relu_net()
    draw = torch.Generator().manual_seed(0)
    batches = [(torch.randn(9, 4, generator=draw).double(), torch.randint(0, 3, (9,), generator=draw))]
    changed: Any = copy.deepcopy(model)
    scale = torch.tensor(factors).double()
    with torch.no_grad():
        changed[0].weight *= scale[:, None]
        changed[0].bias *= scale
        changed[2].weight /= scale
    first, second = (
        loss_slice(m, loss_of, batches, 1, points=5, normalisation=normalisation).values for m in (model, changed)
    )
    assert first[2] == pytest.approx(second[2], rel=1e-12)
    off = float(np.abs(first - second).max())
    assert (off < 1e-11) == (blind and normalisation == "filter")


def test_filter_normalised_slices_do_not_see_weights_before_batch_norm_rescaled():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3, eps=1e-30), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))
    model.double()
    draw = torch.Generator().manual_seed(0)
    batches = [(torch.randn(9, 1, 3, 3, generator=draw).double(), torch.randint(0, 3, (9,), generator=draw))]
    changed: Any = copy.deepcopy(model)
    scale = torch.tensor([0.5, 2, 3]).double()
    with torch.no_grad():
        changed[0].weight *= scale[:, None, None, None]
        changed[0].bias *= scale
    first, second = (loss_slice(m, loss_of, batches, 2, points=3, mode="train").values for m in (model, changed))
    np.testing.assert_allclose(first, second, rtol=1e-10)
    stored = [loss_slice(m, loss_of, batches, 2, points=3).values[1, 1] for m in (model, changed)]
    assert abs(stored[0] - stored[1]) > 1e-3, "in eval mode stored statistics make it another function"


def test_principal_directions_and_where_the_workers_are(mlp):
    landscape = Curvature(*mlp).landscape
    draw = torch.Generator().manual_seed(0)
    a, b = torch.linalg.qr(torch.randn(31, 2, generator=draw).double()).Q.T
    x = landscape.point + torch.tensor([[3.0, 1], [-3, 1], [3, -1], [-3, -1]]).double() @ torch.stack([a, b])
    rows, sizes = principal_directions(x, 2)
    assert sizes == pytest.approx([3.0, 1.0])
    assert abs(float(rows[0] @ a)) == pytest.approx(1)
    assert abs(float(rows[1] @ b)) == pytest.approx(1)
    found = cut(mlp, list(rows), workers=x, points=3)
    np.testing.assert_allclose(np.abs(found.marks), [[3.0, 1.0]] * 4)
    skewed = torch.stack([2 * a, a + b])
    np.testing.assert_allclose(
        coordinates(landscape, landscape.point + skewed, skewed), np.eye(2), atol=1e-12
    )  # directions need not be orthogonal


def test_random_directions_are_a_function_of_the_seed(mlp):
    landscape = Curvature(*mlp).landscape
    first, again, other = (random_directions(landscape, 2, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    one, two = cut(mlp, 1, points=3, seed=4), cut(mlp, 1, points=3, seed=4)
    assert (one.values == two.values).all()
    assert one.labels == ("random direction 1 (filter normalisation)",)


def test_nonsense_is_refused(mlp):
    with pytest.raises(ProbeError, match=r"a slice has one or two directions, got 3"):
        cut(mlp, 3)
    with pytest.raises(ProbeError, match=r"a slice has one or two directions, got 0"):
        cut(mlp, 0)
    with pytest.raises(ProbeError, match=r"a slice needs at least 3 points along an axis, got 2"):
        cut(mlp, 1, points=2)
    with pytest.raises(ProbeError, match=r"reach and labels go with the 1 directions, got reach=\[1, 2\]"):
        cut(mlp, 1, reach=[1, 2])
    with pytest.raises(ProbeError, match=r"reach and labels go with the 1 directions, got reach=-1"):
        cut(mlp, 1, reach=-1)
    with pytest.raises(ProbeError, match=r"unknown normalisation 'fliter'; there are filter, layer, none"):
        cut(mlp, 1, normalisation="fliter")
    with pytest.raises(ProbeError, match=r"direction \(3,\), point \(4,\) and shapes of 4 numbers differ"):
        normalised(torch.ones(3), torch.ones(4), {"a": (4,)})
    with pytest.raises(ProbeError, match=r"the disagreement of 2 workers has 1 principal directions, asked for 2"):
        principal_directions(torch.randn(2, 5), 2)
    with pytest.raises(ProbeError, match=r"the disagreement of 3 workers has 0 principal directions"):
        principal_directions(torch.ones(3, 5), 1)
