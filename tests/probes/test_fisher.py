"""The empirical Fisher matrix against gradients taken one by one, and differences of operators."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dissensus.probes import Curvature, Matrix, ProbeError
from dissensus.probes.fisher import Fisher
from dissensus.probes.gauss_newton import GaussNewton
from dissensus.probes.operator import Difference

NAMES = ["mlp", "convolution", "attention", "tied weights", "frozen layer", "recurrent", "batch norm in eval"]


def looped(model, loss, batches):
    """Backward after backward, sample after sample; every sample counts the same."""
    model.eval()
    chosen = [p for p in model.parameters() if p.requires_grad]
    rows = []
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for batch in batches:
            for n in range(len(batch[0]) if isinstance(batch, tuple) else len(batch)):
                sample = tuple(t[n : n + 1] for t in batch) if isinstance(batch, tuple) else batch[n : n + 1]
                slopes = torch.autograd.grad(loss(model, sample), chosen, materialize_grads=True)
                rows.append(torch.cat([s.reshape(-1) for s in slopes]))
    stacked = torch.stack(rows)
    return stacked.T @ stacked / len(stacked)


@pytest.mark.parametrize("name", NAMES)
def test_products_and_trace_are_those_of_single_gradients(name, scenes):
    build, loss, batches, _ = scenes[name]
    torch.manual_seed(7)
    model = build().double()
    truth = looped(model, loss, batches)
    for memory in (1 << 30, 3000):
        op = Fisher(model, loss, batches, memory=memory)
        v = torch.randn(3, op.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        torch.testing.assert_close(op @ v, v @ truth, rtol=1e-11, atol=1e-13)
        trace = op.trace()
        assert trace.value == pytest.approx(float(truth.trace()), rel=1e-12)
        assert trace.stderr == 0
        assert op.products == 3


def test_samples_that_meet_have_no_fisher(scenes, mlp):
    build, loss, batches, mode = scenes["dropout in train"]
    with pytest.raises(ProbeError, match=r"gradients of the samples of batch 0 do not average to that of the batch"):
        Fisher(build().double(), loss, batches, mode=mode).matvec(torch.ones(31).double())
    model, _, batches = mlp
    op = Fisher(model, lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="sum"), batches)
    with pytest.raises(ProbeError, match=r"the loss is no mean over samples"):
        op.matvec(torch.ones(31).double())


def test_the_hessian_without_its_gauss_newton_part(mlp):
    model, loss, batches = mlp
    hessian, part = Curvature(model, loss, batches), GaussNewton(model, loss, batches)
    shared = GaussNewton.of(hessian)
    rest = Difference(hessian, shared)
    v = torch.randn(3, rest.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(rest.matvec(v), hessian.matvec(v) - part.matvec(v))
    assert (rest.products, shared.products) == (3, 3)
    assert (rest.size, rest.dtype, rest.device) == (hessian.size, hessian.dtype, hessian.device)


def test_differences_need_two_of_a_kind(mlp):
    a = Matrix(torch.eye(3).double())
    with pytest.raises(ProbeError, match=r"Difference: the first operator is 3 wide, .* on cpu, the second 2,"):
        Difference(a, Matrix(torch.eye(2).double()))
    with pytest.raises(ProbeError, match=r"Difference: wants a vector \(3,\)"):
        Difference(a, a).matvec(torch.ones(2).double())
