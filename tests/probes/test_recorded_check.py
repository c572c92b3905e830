"""What the check of a recorded program sees, and tensors and parameters that change behind its back."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from dissensus.probes import Curvature, ProbeError
from dissensus.probes.routes import ROUTES, Built


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_check_sees_at_any_scale(mlp, scale, monkeypatch):
    """Where squares over- or underflow in single precision, and where the fault hides behind a steeper parameter."""
    model, _, batches = mlp
    honest = ROUTES["recorded"]

    def wrong(landscape, index):
        product = honest(landscape, index).product
        return Built(lambda block: product(block) * (torch.arange(block.shape[1]) < 28), 0)

    monkeypatch.setitem(ROUTES, "recorded", wrong)
    single = [(x.float(), y) for x, y in batches]

    def loss(m, b):
        steep = (1e2 * m[0].bias).sin().sum()
        return scale * (steep + F.cross_entropy(m(b[0]), b[1]))

    op = Curvature(model.float(), loss, single)
    op.matvec(torch.ones(31))
    assert op.route == "double-backward"
    assert op.reason.startswith("recorded: ProbeError: its product is 1 away from the double-backward one")


def test_a_fault_for_some_vectors_only_is_seen(monkeypatch):
    """A flat parameter whose share in the product of a random vector is beyond the digits that are compared."""
    honest = ROUTES["recorded"]

    def wrong(landscape, index):
        product = honest(landscape, index).product
        return Built(lambda block: product(block * torch.tensor([1.0, 0.0])), 0)

    monkeypatch.setitem(ROUTES, "recorded", wrong)
    op = Curvature(
        nn.Linear(1, 1).double(), lambda m, b: (m.weight**2 / 2 + 5e-12 * m.weight * m.bias).sum(), [torch.ones(1, 1)]
    )
    assert torch.equal(op.dense(), torch.tensor([[1, 5e-12], [5e-12, 0]], dtype=torch.float64))
    assert op.reason.startswith("recorded: ProbeError: its product is ")


@pytest.mark.parametrize("route", ["recorded", "double-backward"])
def test_data_written_over_are_noticed(mlp, route):
    model, loss, batches = mlp
    batches = [(x.clone(), y) for x, y in batches]
    op = Curvature(model, loss, batches, route=route)
    op.dense()
    batches[0][0].mul_(2)
    with pytest.raises(ProbeError, match=r"were written over since the first product; hand over copies"):
        op.dense()


def test_a_loss_may_differentiate_on_its_own(mlp):
    """A penalty on the gradient with respect to the data, as in adversarial training."""
    model, loss, batches = mlp

    def penalised(m, b):
        x = b[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(m(x).square().sum(), x, create_graph=True)
        held = torch.autograd.grad(m(b[0]).sum(), m[2].bias)[0]
        return loss(m, b) + slope.square().mean() + held.sum()

    op = Curvature(model, penalised, batches)
    truth = Curvature(model, penalised, batches, route="double-backward")
    torch.testing.assert_close(op.dense(), truth.dense(), rtol=1e-12, atol=1e-14)
    assert op.route == "recorded"
    value = sum(len(b[1]) * float(penalised(model, b).detach()) for b in batches) / sum(len(b[1]) for b in batches)
    assert op.landscape.value() == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_speak_of_the_point_looked_at(mlp, reentrant):
    """What is computed again in the backward pass would find the parameters the model has by then."""
    model, loss, batches = mlp
    truth = Curvature(model, loss, batches).dense()

    def checkpointed(m, b):
        return F.cross_entropy(m[2](checkpoint(lambda x: m[1](m[0](x)), b[0], use_reentrant=reentrant)), b[1])

    op = Curvature(model, checkpointed, batches)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    assert torch.equal(op.dense(), truth)
    assert op.route == "recorded"
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    if reentrant:  # the library is as it was: this one wants backward()
        with pytest.raises(RuntimeError, match="use_reentrant=True"):
            torch.autograd.grad(checkpointed(model, (x, torch.tensor([0, 1]))), x)


def test_a_model_that_writes_over_its_parameters_is_refused():
    model = nn.Sequential(nn.Embedding(5, 4, max_norm=0.1), nn.Linear(4, 3)).double()
    batch = (torch.arange(5), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ProbeError, match=r"writes in place where it has to be differentiated .*max_norm"):
        Curvature(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), [batch])


def test_sparse_data_go_the_other_way(mlp):
    model, _, batches = mlp
    dense = [b[0] for b in batches]

    def loss(m, x, product=torch.mm):
        return (product(x, m[0].weight.T) + m[0].bias).tanh().square().mean()

    op = Curvature(model, lambda m, x: loss(m, x, torch.sparse.mm), [x.to_sparse() for x in dense], weights=[7, 4])
    torch.testing.assert_close(op.dense(), Curvature(model, loss, dense).dense(), rtol=1e-12, atol=1e-14)
    assert op.route == "double-backward"
