"""The recorded gradient: operations and models beyond the scenes, what it refuses, and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from dissensus.probes import Curvature, ProbeError
from dissensus.probes.routes import ROUTES, Built


def inputs(*shape: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, generator=draw).double(), torch.randint(0, 3, (shape[0],), generator=draw)


def layers(*middle: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(4, 6), *middle, nn.Linear(6, 3))


def pictures(*middle: nn.Module, width: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*middle, nn.Flatten(), nn.Linear(width, 3))


class Odd(nn.Module):
    """Slices, stacks, concatenates, divides, takes powers and maxima of moving things."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))
        self.scale = nn.Parameter(torch.tensor(1.3))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.einsum("bi,ji->bj", x, self.w)
        z = torch.stack([y, y.roll(1, 1)], 1)[:, :, :2] / (1 + self.scale**2)
        joined = torch.cat([z.flatten(1), y.amax(1, keepdim=True)], 1)
        return joined[:, [0, 2, 4]] * self.scale + y.softmax(1).cumsum(1) - y.sigmoid().log().mean(1, keepdim=True)


class Overwritten(nn.Module):
    """Writes over a tensor whose old value another operation has read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        bent = y.sigmoid()
        y.mul_(2)
        return self.last(bent + y)


class Padded(nn.Module):
    """A table with a row that autograd holds still."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(5, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():  # the row is not zero
            rows = (3 * x.abs()).long().clamp(max=4)
        return self.last((self.table(rows) + self.table.weight[0]).mean(1).tanh())


class Scattered(nn.Module):
    """Indexing, scattering, sorting, masks and cumulative sums of what moves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.b = nn.Linear(4, 3), nn.Parameter(torch.linspace(-1, 1, 3))

    def forward(self, x: Tensor) -> Tensor:
        y, places = self.first(x), torch.arange(len(x)) % 3
        z = y.index_put((places[:2], places[1:3]), self.b[:2], accumulate=True)
        z = z.scatter_add(1, places[:, None], y[:, :1].sin()).cumsum(1) + y.sort(1)[0] + y.topk(3, 1)[0].exp()
        z = torch.where(x[:, :3] > 0, z, self.b * y).masked_fill(x[:, 1:] > 1, -2.0)
        return z + y.gather(1, places[:, None]) * y.logsumexp(1, keepdim=True)


class Overlaid(nn.Module):
    """Parameters that share storage, one that is transposed, one empty, one a single number, one unused."""

    def __init__(self) -> None:
        super().__init__()
        base = torch.linspace(-1, 1, 12).reshape(4, 3).double()
        self.w, self.b = nn.Parameter(base.t()), nn.Parameter(base.view(-1)[:3])
        self.scale, self.none = nn.Parameter(torch.tensor(1.3)), nn.Parameter(torch.zeros(0, 2))
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.w.t()).tanh() * self.scale.exp() + self.b + self.none.sum()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu in place": (layers(nn.ReLU(inplace=True)), (5, 4)),
    "silu and layer norm": (layers(nn.SiLU(), nn.LayerNorm(6)), (5, 4)),
    "gelu, plain norm": (layers(nn.GELU("tanh"), nn.LayerNorm(6, elementwise_affine=False)), (5, 4)),
    "softplus, elu": (layers(nn.Softplus(), nn.ELU()), (5, 4)),
    "group norm": (pictures(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Sigmoid(), width=64), (3, 1, 6, 6)),
    "strides and pools": (
        pictures(nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), nn.Tanh(), nn.AvgPool2d(2), width=16),
        (3, 2, 8, 8),
    ),
    "two convolutions": (
        pictures(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2, dilation=1), width=8),
        (3, 2, 8, 8),
    ),
    "grouped": (pictures(nn.Conv2d(2, 4, 3, groups=2), nn.Tanh(), nn.Conv2d(4, 2, 1), width=32), (3, 2, 6, 6)),
    "one dimension": (pictures(nn.Conv1d(2, 3, 3), nn.Tanh(), nn.Conv1d(3, 2, 1), width=8), (3, 2, 6)),
    "odd": (Odd, (5, 4)),
    "overwritten": (Overwritten, (5, 4)),
    "padding": (Padded, (5, 4)),
    "scattered": (Scattered, (5, 4)),
    "overlaid": (Overlaid, (5, 4)),
    "rms norm, one sample": (layers(nn.Mish(), nn.RMSNorm(6)), (1, 4)),
    "transposed, interpolated": (
        pictures(
            *(nn.Conv2d(2, 3, 2), nn.InstanceNorm2d(3, affine=True), nn.ConvTranspose2d(3, 2, 2, stride=2)),
            *(nn.ReflectionPad2d(1), nn.AdaptiveAvgPool2d(3), nn.Upsample(scale_factor=2, mode="bilinear")),
            width=72,
        ),
        (3, 2, 5, 5),
    ),
    "orthogonal": (
        lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3)),
        (5, 4),
    ),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_recorded_products_are_those_of_a_double_backward(name):
    build, shape = MODELS[name]
    torch.manual_seed(3)
    model, batch = build().double(), inputs(*shape)

    def loss(m, b):
        return F.cross_entropy(m(b[0]), b[1])

    ours = Curvature(model, loss, [batch], route="recorded", block=3)
    truth = Curvature(model, loss, [batch], route="double-backward", block=1)
    v = torch.randn(7, ours.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(ours @ v, truth @ v, rtol=1e-11, atol=1e-13)
    assert (ours.route, ours.reason) == ("recorded", "")


def stopped(m, b):
    out = m(b[0])
    return (out * out.detach()).mean()


def unwatched(m, b):
    out = m(b[0])
    with torch.no_grad():
        scale = out.sum()
    return (out * scale).square().mean()


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any, **_: Any) -> Any:
        return args[0].round()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return grad_outputs[0]


def straight(m, b):
    return Straight.apply(m(b[0])).square().mean()  # type: ignore[union-attr]


def overwriting(m, b):
    out = m(b[0])
    part = out[:, :1]
    part.mul_(2)
    return out.square().mean()


def remade(m, b):
    return m(b[0]).square().mean() * nn.Parameter(m[2].bias).sum()


def copied(m, b):
    return F.gumbel_softmax(m(b[0]), hard=True).mul(m[2].bias).sum()


def moved_away(m, b):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy):
        out = m(b[0]).tanh()
    return out.square().mean()


def hooked(m, b):
    out = m(b[0]).tanh()
    if out.requires_grad:
        out.register_hook(lambda slope: slope.detach() * out)
    return out.square().mean()


def spectral(m, b):
    return F.cross_entropy(m(b[0]), b[1]) + 1e-7 * torch.fft.rfft(m(b[0])).abs().square().mean()


def halved(m, b):
    return m(b[0]).float().exp().double().mean()


def patched(m, b):
    whole = torch.zeros(len(b[0]), 4, dtype=torch.float64)
    whole[:, :3] = m(b[0]).tanh()
    return whole.square().mean()


def drawn(m, b):
    return (m(b[0]) + torch.randn_like(m(b[0]))).square().mean()


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (remade, "recorded: ProbeError: it holds back a derivative before aten.sum.default"),
        (copied, "recorded: ProbeError: it holds back a derivative before aten.sub.Tensor"),
        (moved_away, "recorded: ProbeError: its backward pass reads what no operation made"),
        (hooked, "recorded: ProbeError: its product is "),
        (spectral, "recorded: ProbeError: it goes through torch.complex128 numbers"),
        (halved, "recorded: ProbeError: it goes through torch.float32 numbers"),
        (patched, "recorded: ProbeError: it reads through another view what was written in place"),
        (drawn, "recorded: ProbeError: it draws random numbers: aten.randn_like.default"),
        (stopped, "recorded: ProbeError: it holds back a derivative"),
        (unwatched, "recorded: ProbeError: it holds back a derivative"),
        (straight, "recorded: ProbeError: a custom autograd.Function has a derivative of its own"),
        (overwriting, "recorded: ProbeError: it writes in place into a part of a tensor: aten.mul_.Tensor"),
    ],
)
def test_what_cannot_be_recorded_goes_the_other_way(mlp, loss, reason):
    model, _, batches = mlp
    op, truth = Curvature(model, loss, batches), Curvature(model, loss, batches, route="double-backward")
    assert torch.equal(op.dense(), truth.dense())
    assert op.route == "double-backward"
    assert op.reason.startswith(reason)


def test_a_recorded_program_that_is_wrong_is_left(mlp, monkeypatch):
    truth = Curvature(*mlp, route="double-backward").dense()
    honest = ROUTES["recorded"]

    def wrong(landscape, index):
        product = honest(landscape, index).product
        return Built(lambda block: product(block) + 1e-6 * block, 0)

    monkeypatch.setitem(ROUTES, "recorded", wrong)
    op = Curvature(*mlp)
    assert torch.equal(op.dense(), truth)
    assert op.reason.startswith("recorded: ProbeError: its product is ")


def test_the_measured_choice_gives_the_same_products(mlp):
    op, truth = Curvature(*mlp, route="auto"), Curvature(*mlp)
    torch.testing.assert_close(op.dense(), truth.dense(), rtol=1e-12, atol=1e-14)
    assert op.route in ("recorded", "double-backward")
    assert op.block in (1, 4, 16)
    fixed = Curvature(*mlp, route="auto", block=3)
    fixed.matvec(torch.ones(31).double())
    assert fixed.block == 3


def test_finite_differences_say_how_wrong_they_are(mlp):
    op, truth = Curvature(*mlp, route="finite-difference"), Curvature(*mlp)
    v = torch.randn(4, op.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    v = torch.cat([v, torch.zeros(1, op.size).double()])
    assert op.error == 0
    found, exact = op @ v, truth @ v
    wrong = float((found - exact)[:4].norm(dim=1).div(exact[:4].norm(dim=1)).max())
    assert wrong <= 10 * op.error <= 1e-6
    assert torch.equal(found[4], torch.zeros(op.size).double())
    assert op.notes == ("products by finite differences: see .error",)


def test_finite_differences_need_one_derivative_only(mlp):
    model, _, batches = mlp

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any, **_: Any) -> Any:
            return args[0] * 1.0

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[override]
            return grad_outputs[0]

    def loss(m, b):
        return Once.apply(m(b[0])).square().mean()  # type: ignore[union-attr]

    with pytest.raises(ProbeError, match=r"route='finite-difference' needs one derivative only"):
        Curvature(model, loss, batches).dense()
    truth = Curvature(model, lambda m, b: m(b[0]).square().mean(), batches).dense()
    found = Curvature(model, loss, batches, route="finite-difference").dense()
    torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-8)


def test_single_precision_stays_single(mlp):
    model, loss, batches = mlp
    single = [(x.float(), y) for x, y in batches]
    truth = Curvature(model, loss, batches).dense()
    op = Curvature(model.float(), loss, single)
    assert op.dense().dtype == torch.float32
    assert op.route == "recorded"
    assert (op.dense() - truth).abs().max() <= 2e-6 * truth.abs().max()
    assert torch.equal(op.dense(), Curvature(model, loss, single).dense())  # same bits
