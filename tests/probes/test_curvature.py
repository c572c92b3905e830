"""Products with the Hessian against a dense one that knows nothing of the code under test, and closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dissensus.probes import Curvature, GaussNewton, ProbeError, fastest_block
from dissensus.probes.batch_sum import Built
from dissensus.probes.routes import ROUTES


def looped_hessian(model, loss, batches, mode):
    """Double backward, coordinate by coordinate, on the model's own parameters; batches weighted by their samples."""
    model.train(mode == "train")
    chosen = [p for p in model.parameters() if p.requires_grad]
    d = sum(p.numel() for p in chosen)
    sizes = [len(batch[0]) if isinstance(batch, tuple) else len(batch) for batch in batches]
    total = torch.zeros(d, d, dtype=torch.float64)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for index, (batch, size) in enumerate(zip(batches, sizes, strict=True)):
            torch.manual_seed(index)
            slopes = torch.autograd.grad(loss(model, batch), chosen, create_graph=True)
            flat = torch.cat([slope.reshape(-1) for slope in slopes])
            for j in range(d):
                rows = torch.autograd.grad(flat[j], chosen, retain_graph=True, materialize_grads=True)
                total[j] += size / sum(sizes) * torch.cat([row.reshape(-1) for row in rows])
    return total


def test_products_are_those_of_the_dense_hessian(scene):
    model, loss, batches, mode = scene
    op = Curvature(model, loss, batches, mode=mode)
    ours = op.dense()
    truth = looped_hessian(model, loss, batches, mode)
    assert op.products == op.size == len(truth)
    assert (ours - truth).abs().max() <= 1e-12 * truth.abs().max()


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_every_route_gives_the_same_products(scene, route, request):
    if route == "linearized" and "encoder" in request.node.name:
        pytest.skip("tracing it takes seconds and shows nothing that the attention model does not")
    model, loss, batches, mode = scene
    truth = Curvature(model, loss, batches, mode=mode).dense()
    op = Curvature(model, loss, batches, mode=mode, route=route)
    assert (op.dense() - truth).abs().max() <= 1e-12 * truth.abs().max()
    assert op.route == route or op.reason.startswith(route)


@pytest.mark.parametrize("block", [1, 2, 3, 16])
def test_blocks_and_single_vectors_agree(mlp, block):
    op = Curvature(*mlp, block=block)
    rows = torch.randn(5, op.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = op.matvec(rows)
    alone = torch.stack([op.matvec(row) for row in rows])
    assert op.products == 10
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(op @ rows, together, rtol=0, atol=0)


def test_linear_regression_has_its_closed_form():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(11, 3, generator=draw).double(), torch.randn(11, 1, generator=draw).double()
    model = nn.Linear(3, 1, bias=False).double()
    op = Curvature(model, lambda m, b: F.mse_loss(m(b[0]), b[1]), [(x[:8], y[:8]), (x[8:], y[8:])])
    torch.testing.assert_close(op.dense(), 2 * x.T @ x / 11, rtol=1e-13, atol=1e-13)
    weight = model.weight.detach()[0]
    torch.testing.assert_close(op.gradient(), 2 * x.T @ (x @ weight - y[:, 0]) / 11, rtol=1e-13, atol=1e-13)


def test_logistic_regression_has_its_closed_form():
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(9, 3, generator=draw).double(), torch.randint(0, 2, (9,), generator=draw).double()
    model = nn.Linear(3, 1, bias=False).double()

    def loss(m, b):
        return F.binary_cross_entropy_with_logits(m(b[0])[:, 0], b[1])

    p = torch.sigmoid(x @ model.weight.detach()[0])
    truth = (x * (p * (1 - p))[:, None]).T @ x / 9
    op = Curvature(model, loss, [(x[:7], y[:7]), (x[7:], y[7:])])
    torch.testing.assert_close(op.dense(), truth, rtol=1e-13, atol=1e-13)


def test_given_weights_take_the_place_of_batch_sizes(mlp):
    model, loss, batches = mlp
    first, second = (Curvature(model, loss, [batch]).dense() for batch in batches)
    op = Curvature(model, loss, batches, weights=[3, 1])
    torch.testing.assert_close(op.dense(), 0.75 * first + 0.25 * second, rtol=1e-12, atol=1e-14)


def test_glob_patterns_choose_a_diagonal_block(mlp):
    model, loss, batches = mlp
    whole = Curvature(model, loss, batches).dense()
    chosen = Curvature(model, loss, batches, "2.*")
    assert chosen.landscape.names == ["2.weight", "2.bias"]
    torch.testing.assert_close(chosen.dense(), whole[16:, 16:], rtol=1e-12, atol=1e-14)
    scattered = Curvature(model, loss, batches, ["*.bias"])
    index = torch.cat([torch.arange(12, 16), torch.arange(28, 31)])
    torch.testing.assert_close(scattered.dense(), whole[index][:, index], rtol=1e-12, atol=1e-14)
    row = torch.arange(31.0)[None]
    assert scattered.select(row)[0].tolist() == index.tolist()


def test_a_loss_linear_in_the_parameters_has_no_curvature():
    model = nn.Linear(2, 1).double()
    op = Curvature(model, lambda m, b: m(b).mean(), [torch.ones(3, 2).double()])
    assert torch.equal(op.dense(), torch.zeros(3, 3, dtype=torch.float64))


def test_one_parameter():
    model = nn.Linear(1, 1, bias=False).double()
    op = Curvature(model, lambda m, b: (m(b) ** 4).mean(), [torch.tensor([[1.0], [2.0]]).double()])
    w = float(model.weight.detach())
    assert float(op.dense()) == pytest.approx(12 * w**2 * (1 + 16) / 2, rel=1e-13)


def test_batches_beyond_the_memory_are_built_again_each_time(mlp):
    kept, streamed = Curvature(*mlp), Curvature(*mlp, memory=0)
    torch.testing.assert_close(kept.dense(), streamed.dense(), rtol=1e-12, atol=1e-14)
    assert (kept.route, streamed.route) == ("recorded", "recorded")
    assert len(kept._kept) == 2
    assert len(streamed._kept) == 0


def test_the_point_stays_when_the_model_moves_on(mlp):
    model, loss, batches = mlp
    op = Curvature(model, loss, batches)
    before = Curvature(model, loss, batches).dense()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    assert torch.equal(op.dense(), before)


def test_double_precision_on_request(mlp):
    model, loss, batches = mlp
    truth = Curvature(model, loss, batches).dense()
    single = [(x.float(), y) for x, y in batches]
    low = Curvature(model.float(), loss, single)
    high = Curvature(model, loss, single, dtype=torch.float64)
    assert low.dtype == torch.float32
    assert high.dtype == torch.float64
    assert (high.dense() - truth).abs().max() <= 1e-6 * truth.abs().max()
    assert (low.dense() - truth).abs().max() <= 1e-5 * truth.abs().max()


def test_compiled_models_are_looked_through(mlp):
    model, loss, batches = mlp
    truth = Curvature(model, loss, batches).dense()
    compiled: Any = torch.compile(model, backend="eager")
    assert torch.equal(Curvature(compiled, loss, batches).dense(), truth)


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_the_mode_around_does_not_reach_in(mlp, context):
    model, loss, batches = mlp
    model, batches = model.float(), [(x.float(), y) for x, y in batches]
    truth = Curvature(model, loss, batches).dense()
    with context():
        assert torch.equal(Curvature(model, loss, batches).dense(), truth)


def test_buffers_that_count_do_not_count_for_us():
    class Counting(nn.Module):
        calls: torch.Tensor

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2).double())
            self.register_buffer("calls", torch.zeros(()).double())

        def forward(self, x):
            self.calls += 1
            return self.calls * (self.weight * x).sum()

    op = Curvature(Counting(), lambda m, b: m(b).square(), [torch.ones(1, 2).double()])
    for _ in range(2):
        assert torch.equal(op.matvec(torch.tensor([1.0, 0.0]).double()), torch.tensor([2.0, 2.0]).double())
        op._kept.clear()


def test_a_traced_program_that_is_wrong_is_left(mlp, monkeypatch):
    truth = Curvature(*mlp, route="double-backward").dense()
    honest = ROUTES["linearized"]

    def wrong(landscape, index):
        product = honest(landscape, index).product
        return Built(lambda block: product(block) * (1 + 1e-6), 0)

    monkeypatch.setitem(ROUTES, "linearized", wrong)
    op = Curvature(*mlp, route="linearized")
    assert torch.equal(op.dense(), truth)
    assert op.route == "double-backward"
    assert op.reason == "linearized: ProbeError: its product is 1e-06 away from the double-backward one"


def test_the_default_block_goes_by_the_work_and_the_route():
    model, draw = nn.Linear(64, 50), torch.Generator().manual_seed(0)
    x = torch.randn(1000, 64, generator=draw)

    def loss(m, b):
        return m(b).tanh().square().mean()

    def after(batch, **options):
        op = Curvature(model, loss, [batch], **options)
        op.matvec(torch.ones(1, op.size))
        return op.route, op.block

    assert after(x[:9]) == ("recorded", 16)
    assert after(x) == ("recorded", 8)
    assert after(x.repeat(2, 1)) == ("recorded", 4)
    assert after(x, block=16) == ("recorded", 16)
    assert after(x, route="double-backward") == ("double-backward", 1)
    assert after(x, route="double-backward", block=8) == ("double-backward", 8)
    assert after(x[:9], route="double-backward") == ("double-backward", 16)


def test_the_width_of_a_block_is_that_of_the_first_batch_for_good():
    model, draw = nn.Linear(64, 50), torch.Generator().manual_seed(0)
    few, many = (torch.randn(n, 64, generator=draw) for n in (9, 3000))
    for batches, width in (([few, many], 16), ([many, few], 4)):
        op = Curvature(model, lambda m, b: m(b).tanh().square().mean(), batches)
        block = torch.randn(20, op.size, generator=draw)
        first = op.matvec(block)
        assert op.block == width
        assert torch.equal(op.matvec(block), first)


def test_the_fastest_block_leaves_the_operator_as_it_was(mlp):
    op = Curvature(*mlp)
    assert fastest_block(op, sizes=(1, 4), repeats=1) in (1, 4)
    assert (op.products, op.block) == (0, 16)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[override]
        return grad_outputs[0]


def noisy(model, batch):
    return model(batch[0]).square().mean() * (1 + next(COUNTER))


COUNTER = iter(range(1000))

REFUSED = [
    ({"mode": "test"}, r"mode must be 'eval' or 'train', got 'test'"),
    ({"model": 3}, r"model must be a torch.nn.Module, got int"),
    ({"batches": torch.ones(2, 3)}, r"batches must be a list of batches, got one Tensor; write \[batch\]"),
    ({"batches": (torch.ones(2, 3), torch.ones(2))}, r"batches must be a list of batches, got one tuple"),
    ({"batches": []}, r"batches is empty; give at least one batch"),
    ({"batches": [3.0]}, r"samples of batch 0 is unclear: it holds no tensor with a first dimension; give weights="),
    (
        {"batches": [(torch.ones(2, 3), torch.ones(3))]},
        r"samples of batch 0 is unclear: its tensors begin with \[2, 3\]",
    ),
    ({"weights": [1.0]}, r"weights has 1 entries for 2 batches; give one per batch"),
    ({"weights": [1.0, 0.0]}, r"the weight of batch 1 is 0.0; weights are positive numbers"),
    ({"parameters": "3.*"}, r"no parameter is called '3.\*'; there are 0.weight, 0.bias, 2.weight, 2.bias"),
    ({"model": nn.Tanh()}, r"the model has no parameters to look at"),
    ({"model": nn.Linear(3, 3).double().requires_grad_(False)}, r"no parameter requires a gradient \(all are frozen\)"),
    ({"loss": lambda m, b: m(b[0])}, r"must return one number as a tensor, got a tensor of shape \(7, 3\); average it"),
    ({"loss": lambda m, b: 1.0}, r"must return one number as a tensor, got float"),
    ({"loss": lambda m, b: m(b[0]).sum() * float("nan")}, r"is nan on batch 0 at this point: nothing to look at"),
    (
        {"loss": lambda m, b: m(b[0]).sum().detach()},
        r"does not depend on the chosen parameters: let loss\(model, batch\)",
    ),
    ({"loss": noisy}, r"on the same batch: it draws random numbers of its own; give it fixed data"),
    ({"block": 0}, r"block must be at least 1, got 0"),
    (
        {"route": "reverse"},
        r"unknown route 'reverse'; there are double-backward, recorded, linearized, forward-over-reverse, auto, ",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_what_cannot_be_looked_at_is_refused(mlp, change, message):
    model, loss, batches = mlp
    with pytest.raises(ProbeError, match=message):
        Curvature(**{"model": model, "loss": loss, "batches": batches, **change})


def test_integer_parameters_have_no_curvature(mlp):
    model, loss, batches = mlp
    model.steps = nn.Parameter(torch.zeros(1, dtype=torch.int64), requires_grad=False)
    with pytest.raises(ProbeError, match=r"parameter 'steps' is torch.int64: only real floating-point ones"):
        Curvature(model, loss, batches, "*")


def test_wrong_vectors_are_refused(mlp):
    op = Curvature(*mlp)
    with pytest.raises(ProbeError, match=r"Curvature: wants a vector \(31,\) or a block \(k, 31\), got \(3,\)"):
        op.matvec(torch.ones(3).double())
    with pytest.raises(ProbeError, match=r"wants a vector \(31,\) or a block \(k, 31\), got list"):
        op.matvec([1.0] * 31)  # type: ignore[arg-type]
    with pytest.raises(ProbeError, match=r"wants vectors of torch.float64, got torch.float32; convert them"):
        op.matvec(torch.ones(31))
    with pytest.raises(ProbeError, match=r"x must be a tensor of shape \(n, d\), one row per worker, got \(31,\)"):
        op.select(torch.ones(31))
    with pytest.raises(ProbeError, match=r"x has rows of 30 numbers, the model has 31 chosen parameters: flatten them"):
        op.select(torch.ones(2, 30))
    with pytest.raises(ProbeError, match=r"x has rows of 30 numbers, the model has 15 chosen or 31 parameters"):
        Curvature(*mlp, parameters="2.*").select(torch.ones(2, 30))


def test_a_loss_without_second_derivative_is_refused(mlp):
    model, _, batches = mlp
    op = Curvature(model, lambda m, b: Once.apply(m(b[0])).square().mean(), batches)
    with pytest.raises(ProbeError, match=r"cannot be differentiated twice on batch 0 .*custom autograd.Function"):
        op.dense()


def test_an_infinite_second_derivative_is_refused():
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    op = Curvature(model, lambda m, b: m(b).abs().pow(1.5).sum(), [torch.ones(1, 1).double()])
    with pytest.raises(ProbeError, match=r"a product with the Hessian is not finite"):
        op.matvec(torch.ones(1).double())


def test_large_numbers_are_finite_though_their_sum_is_not():
    op = Curvature(nn.Linear(4, 1, bias=False), lambda m, x: 1e38 * m(x).square().mean(), [torch.ones(1, 4)])
    found = op.matvec(torch.full((4,), 0.3))
    assert torch.allclose(found, torch.full((4,), 2.4e38))


@pytest.mark.parametrize("kind", [Curvature, GaussNewton])
def test_vectors_made_in_inference_mode_are_vectors(kind, mlp):
    op = kind(*mlp)
    with torch.inference_mode():
        block = torch.ones(3, op.size, dtype=op.dtype)
    assert torch.equal(op.matvec(block), op.matvec(torch.ones(3, op.size, dtype=op.dtype)))
