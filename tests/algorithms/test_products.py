"""The products of n linear layers, batched and worker by worker: the same to rounding, and which way is taken."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dissensus
from dissensus.algorithms import AlgorithmError, StackedEngine
from dissensus.algorithms.engines import layout, products, stepping
from dissensus.algorithms.engines.gradients import Found, GradientRoute

N = 3
SHAPES = [(1, 5, 7), (4, 1, 1), (7, 64, 33), (17, 784, 256), (47, 130, 70), (48, 130, 70), (200, 64, 65)]
"""(rows, in, out): on both sides of where the weights go first, and nothing a multiple of what a register holds."""
Made = list[tuple[torch.Size, torch.Size]]

has_the_other_library = pytest.mark.skipif(products._product() is None, reason="no oneDNN with wide registers here")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Every product is made alone, however small; and the shapes of those that were."""
    if products._product() is None:
        pytest.skip("no oneDNN with wide registers here")
    for limit in ("WORTH_A_CALL", "FEWEST_ROWS", "NARROWEST"):
        monkeypatch.setattr(products, limit, 0)
    return watched(monkeypatch)


def watched(monkeypatch: pytest.MonkeyPatch) -> Made:
    """The shapes of the products that are made alone from now on."""
    made: Made = []
    inner = products._product()

    def product(a: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        made.append((a.shape, w.shape))
        return inner(a, w, bias)

    monkeypatch.setattr(products, "_product", lambda: product)
    return made


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def close(found: Tensor, a: Tensor, b: Tensor, terms: int) -> None:
    """Within what rounding can do to sums of so many products, in any order: (terms + 1) u Σ |a||b|."""
    bound = (terms + 1) * torch.finfo(torch.float32).eps / 2 * 1.01 * (a.double().abs() @ b.double().abs())
    error = (found.double() - a.double() @ b.double()).abs()
    assert (error <= bound).all(), (error / bound).max()


@pytest.mark.parametrize(("rows", "into", "out"), SHAPES, ids=str)
def test_one_by_one_they_are_what_they_should_be(rows: int, into: int, out: int, alone: Made) -> None:
    x, w, b, g = drawn(N, rows, into), drawn(N, out, into), drawn(N, out), drawn(N, rows, out)
    with_one, with_b = torch.cat([x, torch.ones(N, rows, 1)], dim=2), torch.cat([w, b[:, :, None]], dim=2)
    close(products.forward(x, w, None), x, w.mT, into)
    close(products.forward(x, w, b), with_one, with_b.mT, into + 1)
    close(products.backward(g, w), g, w, out)
    close(products.gradient(g, x), g.mT, x, rows)
    assert len(alone) == 4 * N
    assert products.forward(x, w, b).is_contiguous()
    assert products.forward(x, w, None).is_contiguous()


@pytest.mark.parametrize("rows", [8, 60])
def test_a_worker_gets_the_same_bits_whoever_is_beside_it(rows: int, alone: Made) -> None:
    x, w, b, g = drawn(N, rows, 40), drawn(N, 30, 40), drawn(N, 30), drawn(N, rows, 30)
    calls: list[Callable[[slice], Tensor]] = [
        lambda k: products.forward(x[k], w[k], b[k]),
        lambda k: products.backward(g[k], w[k]),
        lambda k: products.gradient(g[k], x[k]),
    ]
    for call in calls:
        whole = call(slice(None))
        for i in range(N):
            assert torch.equal(call(slice(i, i + 1))[0], whole[i])
    assert alone


def test_gradients_are_written_where_workers_lie_apart(alone: Made) -> None:
    g, x = drawn(N, 20, 6), drawn(N, 20, 8)
    room = torch.full((N, 60), torch.nan)
    place = room[:, 5:53].view(N, 6, 8)
    assert products.gradient(g, x, out=place) is place
    close(place, g.mT, x, 20)
    assert room[:, :5].isnan().all()
    assert room[:, 53:].isnan().all()
    assert alone


def test_rows_that_all_workers_share_and_weights_that_lie_apart(alone: Made) -> None:
    x, room = drawn(20, 8).expand(N, 20, 8), drawn(N, 60)
    w = room[:, 5:53].view(N, 6, 8)
    close(products.forward(x, w, None), x, w.mT, 8)
    close(products.backward(products.forward(x, w, None), w), products.forward(x, w, None), w, 6)
    assert alone


@has_the_other_library
@pytest.mark.parametrize(
    ("rows", "into", "out", "alone"),
    [
        (16, 512, 384, True),  # 3 · 2^20 multiplications
        (16, 512, 383, False),
        (15, 1024, 1024, False),
        (1024, 64, 64, True),
        (2048, 63, 64, False),
        (2048, 64, 63, False),
    ],
)
def test_only_what_is_worth_a_call_is_made_alone(
    rows: int, into: int, out: int, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = watched(monkeypatch)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    x, w, g = drawn(N, rows, into), drawn(N, out, into), drawn(N, rows, out)
    products.forward(x, w, None)
    products.backward(g, w)
    products.gradient(g, x)
    assert len(made) == (3 * N if alone else 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    products.forward(x, w, None)
    assert len(made) == (3 * N if alone else 0), "two threads have half as much each"
    made.clear()
    products.forward(x.double(), w.double(), None)
    products.forward(x.bfloat16(), w.bfloat16(), None)
    assert not made


@has_the_other_library
@pytest.mark.parametrize(
    ("threads", "far", "alone"), [(2, N * 512 * 512, True), (2, N * 512 * 512 - 1, False), (1, 0, True)]
)
def test_gradients_that_lie_far_away_are_dearer_to_several_threads(
    threads: int, far: int, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = watched(monkeypatch)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(products, "FAR", far)
    for rows, expected in ((8 + 8 * threads, alone), (48, True)):  # 4 or 6, and 12 · 2^20 multiplications
        del made[:]
        products.gradient(drawn(N, rows, 512), drawn(N, rows, 512))
        assert len(made) == (N if expected else 0)
        products.forward(drawn(N, rows, 512), drawn(N, 512, 512), None)
        assert len(made) == (2 * N if expected else N), "products of few numbers are not"


def test_without_the_other_library_all_are_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_product", lambda: None)
    x, w, b, g = drawn(N, 64, 256), drawn(N, 256, 256), drawn(N, 256), drawn(N, 64, 256)
    assert torch.equal(products.forward(x, w, b), torch.baddbmm(b[:, None], x, w.mT))
    assert torch.equal(products.backward(g, w), torch.bmm(g, w))
    assert torch.equal(products.gradient(g, x), torch.bmm(g.mT, x))


@pytest.mark.parametrize("batch", [10, 50])
def test_an_engine_computes_the_same_either_way(batch: int, monkeypatch: pytest.MonkeyPatch, alone: Made) -> None:
    inputs, labels = drawn(N, batch, 12), torch.arange(N * batch).view(N, batch) % 4

    def trained() -> Tensor:
        torch.manual_seed(0)
        engine = StackedEngine(
            nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 9, bias=False), nn.Tanh(), nn.Linear(9, 4)),
            lambda model, b: nn.functional.cross_entropy(model(b[0]), b[1]),
            algorithm="dsgd",
            topology=dissensus.theory.topology("ring", N),
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
            gradients="vmap",
        )
        for _ in range(5):
            engine.step((inputs, labels))
        return engine.x

    found = trained()
    assert len(alone) == 5 * N * (3 + 3 + 2)  # three layers forward and their weights, two layers' inputs
    monkeypatch.setattr(products, "_product", lambda: None)
    expected = trained()
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0, atol=5 * 0.1 * 1e-6)  # five steps of gradients off by rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_said_to_stay_finite_does(dtype: torch.dtype) -> None:
    """Factors of every size, with a number that is not finite here and there: never told so wrongly, mostly told so."""
    generator, largest = torch.Generator().manual_seed(0), torch.tensor(torch.finfo(dtype).max, dtype=dtype)
    told = 0
    for trial in range(300):
        g, x = (torch.randn(N, 4, 5, generator=generator, dtype=dtype) for _ in range(2))
        exponent = float(torch.rand((), generator=generator, dtype=torch.float64)) * 1.1
        split = float(torch.rand((), generator=generator, dtype=torch.float64))
        g, x = g * largest ** (exponent * split), x * largest ** (exponent * (1 - split))
        if trial % 3 == 0:
            (g, x)[trial % 2][trial % N, 1, 2] = (torch.inf, -torch.inf, torch.nan)[trial // 3 % 3]
        said = products.stays_finite(g, x)
        told += said
        assert not said or bool(products.gradient(g, x).isfinite().all())
        assert said or trial % 3 == 0 or exponent > 0.4, "numbers far from overflow"
    assert 60 < told < 200
    assert not products.stays_finite(drawn(N, 5, 4).mT, drawn(N, 4, 5)), "nothing is said of what lies otherwise"


class Wide(nn.Module):
    """A weight larger than what makes its gradient, and something else that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x: Tensor, kind: str) -> Tensor:
        out = self.layer(x)
        if kind == "overflow":  # the loss is as finite as it can be, its gradient is not
            return ((out - self.layer.bias) * 1e20).sum()
        return out.mean() + (self.layer.weight.square().sum().sqrt() if kind == "elsewhere" else 0.0)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every parameter lies by itself, however small."""
    monkeypatch.setattr(layout, "TOGETHER", 0)
    monkeypatch.setattr(layout, "OWN_BLOCK", 1)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(("kind", "isolate"), [("overflow", False), ("overflow", True), ("elsewhere", False)])
def test_a_large_gradient_that_is_not_finite_is_told(kind: str, isolate: bool) -> None:
    engine = StackedEngine(
        Wide(),
        lambda model, batch: model(batch, kind),
        algorithm="dsgd",
        topology=dissensus.topology("ring", N),
        lr=0.1,
        gradients="vmap",
        on_nan="isolate" if isolate else "stop",
    )
    x = torch.zeros(N, 4, 64)
    x[1] = 1e20 if kind == "overflow" else 0.0
    if not isolate:
        who = 1 if kind == "overflow" else 0
        with pytest.raises(AlgorithmError, match=rf"worker {who} .*a gradient that is not finite"):
            engine.step(x)
        return
    engine.step(x)
    assert set(engine.isolated) == {1}


@pytest.mark.usefixtures("apart")
def test_nobody_looks_at_a_large_gradient_that_its_factors_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Found] = []
    inner = GradientRoute._vmap

    def watched_vmap(*args: object) -> Found:
        found.append(inner(*args))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(GradientRoute, "_vmap", watched_vmap)
    for kind, chunk, accumulate in (("plain", None, 1), ("plain", 2, 1), ("elsewhere", None, 1), ("plain", None, 2)):
        looked: list[int] = []
        monkeypatch.setattr(stepping, "not_finite", lambda value, looked=looked: looked.append(value.numel()))
        engine = StackedEngine(
            Wide(),
            lambda model, batch, kind=kind: model(batch, kind),
            algorithm="dsgd",
            topology=dissensus.topology("ring", N),
            lr=0.1,
            gradients="vmap",
            chunk=chunk,
            accumulate=accumulate,
        )
        engine.step(drawn(N, 4, 64))
        bounded = kind == "plain" and accumulate == 1
        assert found[-1].finite == ({"layer.weight"} if bounded else set())
        assert looked.count(N * 64 * 64) == (1 if bounded else 2), "new points, and gradients: a mean of several, too"
