"""Gauss-Newton products and their exact trace against Jacobians and Hessians that know nothing of the code."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from dissensus.probes import Curvature, ProbeError
from dissensus.probes.gauss_newton import GaussNewton
from dissensus.probes.gauss_newton_trace import gauss_newton_layer_traces, gauss_newton_trace
from dissensus.probes.sample_jacobians import SampleJacobians


def hessian(function):
    return jacrev(jacrev(function))


def dense_gauss_newton(model, batches, rest):
    """sum_b w_b J^T H J with J by reverse mode row after row, H by torch's own dense Hessian; in eval mode."""
    model.eval()
    sizes = [len(batch[0]) if isinstance(batch, tuple) else len(batch) for batch in batches]
    total = torch.zeros(())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for batch, size in zip(batches, sizes, strict=True):
            x = batch[0] if isinstance(batch, tuple) else batch[:, :-1]

            z = model(x)
            rows = []
            parameters = [p for p in model.parameters() if p.requires_grad]
            for entry in z.reshape(-1):
                slopes = torch.autograd.grad(entry, parameters, retain_graph=True, materialize_grads=True)
                rows.append(torch.cat([s.reshape(-1) for s in slopes]))
            jacobian = torch.stack(rows)
            curve = hessian(lambda out, batch=batch, z=z: rest(out.view_as(z), batch))(z.detach().reshape(-1))
            total = total + size / sum(sizes) * jacobian.T @ curve @ jacobian
    return total


def rest_of(loss):
    if loss.__name__ == "next_token":
        return lambda out, tokens: F.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())
    return lambda out, batch: F.cross_entropy(out, batch[1])


def test_products_are_those_of_jacobians_around_a_hessian(scene):
    model, loss, batches, mode = scene
    if mode == "train":
        pytest.skip("the oracle is written for eval mode")
    op = GaussNewton(model, loss, batches)
    truth = dense_gauss_newton(model, batches, rest_of(loss))
    ours = op.dense()
    assert (ours - truth).abs().max() <= 1e-12 * truth.abs().max()
    assert op.products == op.size


def test_the_trace_is_exact_for_every_parameter(scene, request):
    model, loss, batches, mode = scene
    op = GaussNewton(model, loss, batches, mode=mode)
    if "batch norm in train" in request.node.name:
        with pytest.raises(ProbeError, match=r"samples of batch 0 cannot be taken apart .*: BatchNorm or dropout"):
            gauss_newton_trace(op)
        return
    diagonal = op.landscape.split(op.dense().diagonal())
    layers = gauss_newton_layer_traces(op)
    assert layers.keys() == diagonal.keys()
    for name, found in layers.items():
        assert found.value == pytest.approx(float(diagonal[name].sum()), rel=1e-11)
        assert (found.stderr, found.interval_method, found.converged) == (0, "exact", True)
    whole = gauss_newton_trace(op)
    assert whole.value == pytest.approx(sum(found.value for found in layers.values()), rel=1e-13)
    assert 0 < whole.num_matvecs <= 25


def test_little_memory_changes_nothing(scenes):
    for name in ("mlp", "convolution"):
        build, loss, batches, mode = scenes[name]
        torch.manual_seed(7)
        model = build().double()
        roomy, tight = (GaussNewton(model, loss, batches, mode=mode, memory=memory) for memory in (1 << 30, 30_000))
        assert gauss_newton_trace(tight).value == pytest.approx(gauss_newton_trace(roomy).value, rel=1e-12)
        v = torch.randn(5, roomy.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        torch.testing.assert_close(tight @ v, roomy @ v, rtol=1e-12, atol=1e-14)


def test_linear_models_have_their_hessian():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(9, 3, generator=draw).double(), torch.randint(0, 2, (9,), generator=draw).double()
    model = nn.Linear(3, 1).double()

    def loss(m, b):
        return F.binary_cross_entropy_with_logits(m(b[0])[:, 0], b[1])

    batches = [(x[:7], y[:7]), (x[7:], y[7:])]
    truth = Curvature(model, loss, batches).dense()
    op = GaussNewton(model, loss, batches)
    torch.testing.assert_close(op.dense(), truth, rtol=1e-12, atol=1e-14)
    assert gauss_newton_trace(op).value == pytest.approx(float(truth.trace()), rel=1e-12)
    assert gauss_newton_trace(op).num_matvecs == 1


class Twice(nn.Module):
    """Embeds, reads positions, ties its table to the head, and writes into what it made."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)
        self.places = nn.Parameter(torch.ones(5, 3) / 7)
        self.bend = nn.Linear(3, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.places
        x = F.relu(self.bend(x), inplace=True)
        return self.head(x.transpose(0, 1).contiguous()).transpose(0, 1).mean(1)


def test_tied_tables_positions_and_writing_in_place():
    torch.manual_seed(1)
    model = Twice().double()
    tokens, labels = torch.randint(0, 4, (5, 5)), torch.randint(0, 4, (5,))
    op = GaussNewton(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), [(tokens, labels)])
    diagonal = op.landscape.split(op.dense().diagonal())
    for name, found in gauss_newton_layer_traces(op).items():
        assert found.value == pytest.approx(float(diagonal[name].sum()), rel=1e-11), name


def test_an_indefinite_loss_keeps_its_signs(mlp):
    model, _, batches = mlp
    op = GaussNewton(model, lambda m, b: m(b[0]).sin().mean(), batches)
    dense = op.dense()
    assert torch.linalg.eigvalsh(dense)[0] < 0 < torch.linalg.eigvalsh(dense)[-1]
    assert gauss_newton_trace(op).value == pytest.approx(float(dense.trace()), rel=1e-11)


def test_a_loss_linear_in_the_outputs_has_none(mlp):
    model, _, batches = mlp
    op = GaussNewton(model, lambda m, b: m(b[0]).mean(), batches)
    assert torch.equal(op.matvec(torch.ones(op.size).double()), torch.zeros(op.size).double())
    assert gauss_newton_trace(op).value == 0


def test_several_calls_are_all_outputs(mlp):
    model, _, batches = mlp

    def loss(m, b):
        first, second = m(b[0]), m(b[0].flip(1))
        return (first - second).square().mean() + F.cross_entropy(first, b[1])

    op = GaussNewton(model, loss, batches[:1])
    x, y = batches[0]
    named = {name: p.detach() for name, p in model.named_parameters()}

    def outputs(pieces):
        return torch.stack([functional_call(model, pieces, (x,)), functional_call(model, pieces, (x.flip(1),))])

    def rest(z):
        return (z[0] - z[1]).square().mean() + F.cross_entropy(z[0], y)

    z = outputs(named)
    jacobian = torch.cat([part.flatten(3).flatten(0, 2) for part in jacrev(outputs)(named).values()], 1)
    curve = hessian(rest)(z).reshape(z.numel(), -1)
    truth = jacobian.T @ curve @ jacobian
    torch.testing.assert_close(op.dense(), truth, rtol=1e-11, atol=1e-13)
    assert gauss_newton_trace(op).value == pytest.approx(float(truth.trace()), rel=1e-11)


def test_a_penalty_is_left_out_and_said(mlp):
    model, loss, batches = mlp
    plain = GaussNewton(model, loss, batches)

    def penalised(m, b):
        return loss(m, b) + 0.3 * sum(p.square().sum() for p in m.parameters())

    op = GaussNewton(model, penalised, batches)
    torch.testing.assert_close(op.dense(), plain.dense(), rtol=1e-12, atol=1e-14)
    assert op.notes == ("a part of the loss that reads parameters without the model is left out",)
    assert op.notes[0] in gauss_newton_trace(op).notes


def test_samples_that_meet_in_the_loss_have_no_trace(mlp):
    model, _, batches = mlp
    op = GaussNewton(model, lambda m, b: m(b[0]).mean(0).square().sum(), batches)
    with pytest.raises(ProbeError, match=r"loss of batch 0 has curvature between samples, so its trace is no sum"):
        gauss_newton_trace(op)


def test_samples_that_meet_in_the_model_have_no_trace(mlp):
    _, loss, batches = mlp

    class Meeting(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the base class calls it so
            made = super().forward(input)
            return made + made.roll(1, 0)

    op = GaussNewton(Meeting(3, 3).double(), loss, batches)
    with pytest.raises(ProbeError, match=r"cannot be taken apart .*alone, a sample gives another output"):
        gauss_newton_trace(op)


def test_what_cannot_be_split_is_refused(mlp):
    model, loss, batches = mlp
    with pytest.raises(ProbeError, match=r"cannot be split at the model's output: it never calls model"):
        GaussNewton(model, lambda m, b: m[2](m[0](b[0])).square().mean(), batches).dense()
    blind = nn.Sequential(nn.Linear(3, 3)).double()
    blind.forward = lambda x: x  # type: ignore[method-assign]
    with pytest.raises(ProbeError, match=r"it gets no tensor from model\(...\) that depends on the parameters"):
        GaussNewton(blind, lambda m, b: m(b[0]).mean() + m[0].weight.sum(), batches).dense()
    with pytest.raises(ProbeError, match=r"has 3 outputs per sample, .* most_outputs is 2; raise that"):
        gauss_newton_trace(GaussNewton(model, loss, batches), most_outputs=2)
    whole = nn.Sequential(nn.Flatten(), nn.Linear(3, 1)).double()
    inner = whole.forward
    whole.forward = lambda x: inner(x).mean()  # type: ignore[method-assign]
    with pytest.raises(ProbeError, match=r"returns a tensor of shape \(\) for the 7 samples of batch 0"):
        gauss_newton_trace(GaussNewton(whole, lambda m, b: m(b[0]).square(), batches))


def test_outputs_of_any_structure(mlp):
    model, loss, batches = mlp

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor, *, scale: float) -> dict:
            return {"logits": scale * self.inner(x), "seen": len(x)}

    def wrapped(m, b):
        assert isinstance(m, nn.Module)
        assert m.training is False
        return F.cross_entropy(m(b[0], scale=2.0)["logits"] / 2, b[1])

    op, plain = GaussNewton(Wrapped(), wrapped, batches), GaussNewton(model, loss, batches)
    torch.testing.assert_close(op.dense(), plain.dense(), rtol=1e-12, atol=1e-14)
    assert gauss_newton_trace(op).value == pytest.approx(gauss_newton_trace(plain).value, rel=1e-12)


class Shared(nn.Module):
    """A layer of one position used twice, one of three positions, one frozen weight with a free bias."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.along, self.out = nn.Linear(3, 3), nn.Linear(1, 2), nn.Linear(6, 3)
        self.out.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        return self.out(torch.tanh(self.along(x[..., None])).flatten(1))


class Looked(nn.Module):
    """A table whose rows are looked up, some twice, tied to the head; and a second table that is not tied."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.other, self.head = nn.Embedding(5, 4), nn.Embedding(5, 4), nn.Linear(4, 5)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(tokens) + self.other(tokens)).mean(1))


def saddle(model, batch):
    """Indefinite in the outputs of every sample, and another for each."""
    z = model(batch[0])
    bend = z[:, 0] * z[:, 1] - z[:, -1] ** 2 + z[:, 0] * z[:, 2].sin() + (z**3).sum(1) / 30
    return (batch[1] * bend).mean()


@pytest.mark.parametrize("build", [Shared, Looked])
def test_mixing_and_eigenvectors_agree_where_the_loss_bends_both_ways(build, monkeypatch):
    torch.manual_seed(2)
    model = build().double()
    tokens = torch.tensor([[0, 1, 1], [2, 2, 2], [3, 0, 2], [4, 1, 0]])
    inputs = tokens if build is Looked else torch.randn(4, 3).double()
    batches = [(inputs[:3], torch.tensor([1.0, -2.0, 0.5]).double()), (inputs[3:], torch.tensor([3.0]).double())]
    op = GaussNewton(model, saddle, batches)
    diagonal = op.landscape.split(op.dense().diagonal())
    solved, eigh = list[int](), torch.linalg.eigh

    def counted(matrix):
        solved.append(len(matrix))
        return eigh(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", counted)
    mixed = gauss_newton_layer_traces(op)
    assert not solved
    monkeypatch.setattr(importlib.import_module("dissensus.probes.gauss_newton_trace"), "MIXED", 0)
    eigen = gauss_newton_layer_traces(op)
    assert solved == [3, 1]
    scale = sum(float(part.abs().sum()) for part in diagonal.values())
    assert min(float(part.sum()) for part in diagonal.values()) < 0
    for name, truth in diagonal.items():
        assert mixed[name].value == pytest.approx(float(truth.sum()), abs=1e-12 * scale), name
        assert eigen[name].value == pytest.approx(float(truth.sum()), abs=1e-12 * scale), name


class Neighbours(nn.Sequential):
    """Two samples look at each other; all others are alone."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        made = super().forward(x)
        other = made.clone()
        other[0], other[1] = made[0] + 0.1 * made[1], made[1] + 0.1 * made[0]
        return other


@pytest.mark.parametrize("seed", range(12))
def test_two_samples_that_meet_are_found_out(seed):
    """A single pair, which one random half keeps together every second time."""
    torch.manual_seed(seed)
    model = Neighbours(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    batch = torch.randn(9, 3).double(), torch.randint(0, 3, (9,))
    op = GaussNewton(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), [batch], seed=seed)
    with pytest.raises(ProbeError, match=r"samples of batch 0 cannot be taken apart"):
        gauss_newton_trace(op)


def test_rounding_in_a_saturated_output_is_not_taken_for_samples_that_meet(monkeypatch):
    """Probabilities that are all but sure cancel in their backward, so that the units combine only to rounding."""
    torch.manual_seed(0)
    last = nn.Linear(4, 3)
    last.weight.data.mul_(300)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), last, nn.Softmax(1))
    batch = torch.randn(40, 3), torch.rand(40, 3)
    op = GaussNewton(model, lambda m, b: (m(b[0]) - b[1]).square().mean(), [batch])
    exact = gauss_newton_trace(op).value
    monkeypatch.delattr(SampleJacobians, "pulled")
    assert gauss_newton_trace(op).value == exact  # no parameter was taken sample by sample
    truth = GaussNewton(
        model.double(), lambda m, b: (m(b[0]) - b[1]).square().mean(), [(batch[0].double(), batch[1].double())]
    )
    assert exact == pytest.approx(gauss_newton_trace(truth).value, rel=1e-3)


def test_rounding_in_a_fitted_loss_is_not_taken_for_samples_that_meet():
    """Every label sure to six digits: H is what is left of numbers a million times as large."""
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    x = torch.eye(3).repeat(5, 1)
    model.weight.data.copy_(14 * torch.eye(3))
    found = gauss_newton_trace(GaussNewton(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), [(x, x.argmax(1))]))
    with torch.no_grad():
        p = torch.softmax(model.double()(x.double()), 1)
    assert found.value == pytest.approx(float(2 * (p * (1 - p)).sum(1).mean()), rel=0.2)
