"""The local move: any elementwise torch optimizer on stacked rows, groups by columns, nothing written to."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from dissensus.algorithms import AlgorithmError, StackedEngine
from dissensus.algorithms.engines import layout
from dissensus.algorithms.engines.columns import Columns
from dissensus.algorithms.engines.layout import Layout
from dissensus.algorithms.engines.moves import Move, options_of, own_rate
from dissensus.theory import topology

ELEMENTWISE = {
    "sgd": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd-foreach": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "adam": partial(optim.Adam, lr=0.1, amsgrad=True),
    "adamw": partial(optim.AdamW, lr=0.1),
    "adamw-fused": partial(optim.AdamW, lr=0.1, fused=True),
    "nadam": partial(optim.NAdam, lr=0.1),
    "radam": partial(optim.RAdam, lr=0.1),
    "adamax": partial(optim.Adamax, lr=0.1),
    "adagrad": partial(optim.Adagrad, lr=0.1),
    "adadelta": partial(optim.Adadelta, lr=0.1),
    "rmsprop": partial(optim.RMSprop, lr=0.1, momentum=0.5, centered=True),
    "rprop": partial(optim.Rprop, lr=0.1),
    "asgd": partial(optim.ASGD, lr=0.1),
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()


COLUMNS = Columns.of(model())


class Moved:
    """A move of whole points, cut into strips and put together again."""

    def __init__(self, factory: Any, n: int, groups: Any = None, *, columnwise: bool = True, **options: Any) -> None:
        self.layout = Layout.of(n, COLUMNS, options_of(COLUMNS, groups), columnwise=columnwise)
        self.move = Move(factory, self.layout, **options)

    def __call__(self, x: Tensor, g: Tensor, lr: float | None) -> Tensor:
        self.move.begin(lr)
        parts = zip(self.layout.cut(x), self.layout.cut(g), strict=True)
        kept = [(a, b, a.clone(), b.clone()) for a, b in parts]
        moved = [self.move(k, a, b) for k, (a, b, _, _) in enumerate(kept)]
        assert all(torch.equal(a, c) and torch.equal(b, d) for a, b, c, d in kept), "an argument was written to"
        return self.layout.join(moved)


@pytest.fixture(params=["one strip", "a strip per parameter", "strips of 16 columns"])
def columnwise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """How the columns are cut."""
    monkeypatch.setattr(layout, "OWN_BLOCK", 1)
    monkeypatch.setattr(layout, "TOGETHER", 0)
    if request.param == "strips of 16 columns":
        monkeypatch.setattr(layout, "STRIP", 1)
    return request.param != "one strip"


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_stacked_rows_move_like_separate_models(name: str, columnwise: bool) -> None:
    torch.manual_seed(0)
    n, d = 3, COLUMNS.size
    move, x = Moved(ELEMENTWISE[name], n, columnwise=columnwise), torch.randn(n, d, dtype=torch.float64)
    rows = [nn.Parameter(r.clone()) for r in x]
    alone = [ELEMENTWISE[name]([r]) for r in rows]
    for _ in range(5):
        g = torch.randn(n, d, dtype=torch.float64)
        moved = move(x, g, 0.1)
        for r, optimizer, row in zip(rows, alone, g, strict=True):
            r.grad = row.clone()
            optimizer.step()
        expected = torch.stack([r.detach() for r in rows])
        if name == "adamw-fused":  # its kernel rounds the last numbers of a tensor that fill no vector differently
            torch.testing.assert_close(moved, expected, rtol=1e-14, atol=1e-15)
            moved = expected
        assert torch.equal(moved, expected)
        x = moved


def test_a_move_is_not_changed_by_the_next_one() -> None:
    move, x = Moved(ELEMENTWISE["sgd"], 2), torch.randn(2, COLUMNS.size, dtype=torch.float64)
    first = move(x, torch.ones_like(x), 0.1)
    kept = first.clone()
    move(first, torch.ones_like(x), 0.1)
    assert torch.equal(first, kept)


class Lamb(torch.optim.Optimizer):
    """Scales its step by the norm of the parameters: not elementwise."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"] * float(p.norm()))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (optim.LBFGS, "optimizer LBFGS is not elementwise: it searches along a line"),
        (optim.Adafactor, "optimizer Adafactor is not elementwise: its second moment is factored"),
        (optim.SparseAdam, "optimizer SparseAdam is not elementwise: it needs sparse gradients"),
        (partial(optim.Muon, lr=0.1), "optimizer Muon is not elementwise: it orthogonalises whole matrices; use SGD"),
        (Lamb, "optimizer Lamb is not elementwise .* a number moves differently when others are present"),
        (
            lambda p: "sgd",
            "optimizer must be a function of parameters that returns .* got str; write functools.partial",
        ),
        (partial(optim.SGD, lr=-1.0), "the optimizer cannot run on stacked workers: Invalid learning rate"),
    ],
)
def test_optimizers_that_cannot_be_stacked_are_refused(factory: Any, message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        Moved(factory, 2)


def test_param_groups_act_on_their_columns(columnwise: bool) -> None:
    def no_decay_on_biases(name: str, shape: torch.Size) -> dict[str, float]:
        return {"weight_decay": 0.0, "lr": 0.02} if name.endswith("bias") else {"weight_decay": 0.5}

    factory = partial(optim.SGD, lr=0.1, momentum=0.9)
    move = Moved(factory, 2, no_decay_on_biases, columnwise=columnwise)
    assert len(move.move.optimizer.param_groups) == 2
    torch.manual_seed(0)
    x = torch.randn(2, COLUMNS.size, dtype=torch.float64)
    start, steps = x, [torch.randn_like(x) for _ in range(3)]
    for g, lr in zip(steps, (0.1, 0.05, 0.2), strict=True):
        x = move(x, g, lr)
    for i in range(2):
        alone = model()
        COLUMNS.write(start[i], alone)
        named = list(alone.named_parameters())
        optimizer = factory([{"params": [p], **no_decay_on_biases(n, p.shape)} for n, p in named])
        base = [group["lr"] for group in optimizer.param_groups]
        for g, lr in zip(steps, (0.1, 0.05, 0.2), strict=True):
            for group, b in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = lr * b / 0.1
            for (name, p), part in zip(named, COLUMNS.unflatten(g[i]).values(), strict=True):
                assert name in COLUMNS.names
                p.grad = part.clone()
            optimizer.step()
        torch.testing.assert_close(x[i], COLUMNS.flatten(alone), rtol=1e-14, atol=1e-14)


def test_parameters_with_equal_options_are_one_group() -> None:
    assert len(Moved(optim.SGD, 2, lambda name, shape: {"weight_decay": 0.1}).move.optimizer.param_groups) == 1
    with pytest.raises(AlgorithmError, match=r"the options of parameter '0\.weight' must not contain 'params'"):
        Moved(optim.SGD, 2, lambda name, shape: {"params": []})
    with pytest.raises(AlgorithmError, match="optimizer SGD has no option 'wieght_decay'; did you mean 'weight_decay'"):
        Moved(optim.SGD, 2, lambda name, shape: {"wieght_decay": 0.1})


def test_workers_have_options_of_their_own(columnwise: bool) -> None:
    own = [{"lr": 0.1}, {"lr": 0.3, "weight_decay": 0.5}, {"lr": 0.3, "weight_decay": 0.5}, {}]
    factory = partial(optim.SGD, lr=0.1, momentum=0.9)
    move = Moved(
        factory, 4, lambda name, _: {"momentum": 0.5} if "bias" in name else {}, columnwise=columnwise, per_worker=own
    )
    torch.manual_seed(0)
    x = start = torch.randn(4, COLUMNS.size, dtype=torch.float64)
    steps = [torch.randn_like(x) for _ in range(3)]
    for g, lr in zip(steps, (0.1, 0.05, 0.2), strict=True):
        x = move(x, g, lr)
        for k, strip in enumerate(move.layout.strips):
            rate = move.move.rate(k)
            expected = torch.tensor([lr, 3 * lr, 3 * lr, lr], dtype=torch.float64)[:, None].expand(4, strip.width)
            torch.testing.assert_close(torch.as_tensor(rate).expand(4, strip.width), expected)
            decay = torch.as_tensor(move.move.decay(k)).expand(4, strip.width)
            assert torch.equal(decay, torch.tensor([0, 0.5, 0.5, 0]).double()[:, None].expand(4, strip.width))
    for i in range(4):
        alone = Moved(factory, 1, lambda name, _, i=i: own[i] | ({"momentum": 0.5} if "bias" in name else {}))
        row = start[i : i + 1]
        for g, lr in zip(steps, (0.1, 0.05, 0.2), strict=True):
            row = alone(row, g[i : i + 1], lr)
        assert torch.equal(row[0], x[i])
    with pytest.raises(AlgorithmError, match="per_worker has options for 3 workers, but there are 4"):
        Moved(factory, 4, per_worker=own[:3])
    with pytest.raises(AlgorithmError, match="the options of worker 1 must not contain 'params'"):
        Moved(factory, 2, per_worker=[{}, {"params": []}])


@pytest.mark.parametrize("scheduled", [False, True])
def test_the_rate_of_a_step_is_not_that_of_a_group_that_stands_still(scheduled: bool) -> None:
    engine = StackedEngine(
        model(), lambda m, b: m(b).square().mean(), algorithm="dsgd-ac", topology=topology("ring", 3),
        optimizer=partial(optim.SGD, lr=0.1), lr=None if scheduled else lambda t: 0.1 * 0.5**t,
        groups=lambda name, _: {"lr": 0.0} if name == "0.weight" else {"lr": 0.05}, gradients="vmap",
    )  # fmt: skip
    scheduler = optim.lr_scheduler.ExponentialLR(engine.optimizer, gamma=0.5) if scheduled else None
    before = engine.unflatten(engine.mean)["0.weight"].clone()
    records = []
    for _ in range(3):
        records.append(engine.step(torch.ones(3, 2, 4, dtype=torch.float64)))
        if scheduler is not None:
            scheduler.step()
    assert [r.lr for r in records] == pytest.approx([0.1, 0.05, 0.025], rel=1e-14)
    assert [r.gamma for r in records] == pytest.approx([1.0, 0.125, 0.125**2], rel=1e-13)
    torch.testing.assert_close(engine.unflatten(engine.mean)["0.weight"], before, rtol=1e-14, atol=0.0)
    with pytest.raises(AlgorithmError, match="optimizer must be a function of parameters"):
        own_rate(lambda p: "sgd")  # type: ignore[arg-type,return-value]


def test_only_the_decay_of_sgd_goes_through_the_gradient() -> None:
    for factory, expected in ((optim.SGD, 0.2), (optim.AdamW, 0.0), (optim.Adam, 0.0)):
        move = Moved(factory, 2, lambda name, _: {"weight_decay": 0.2}).move
        assert {move.decay(k) for k in range(len(move.pieces))} == {expected}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.ReLU(), "the model ReLU has no parameter that requires a gradient"),
        (
            lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()),
            "parameter '1.weight' is torch.float64 on cpu, but '0.weight' is torch.float32",
        ),
    ],
)
def test_models_that_are_no_row_of_numbers_are_refused(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        Columns.of(build())


def test_the_learning_rate_of_the_step_reaches_the_optimizer(schedules: dict) -> None:
    def loss(m: nn.Module, batch: Tensor) -> Tensor:
        return m(batch).sum()

    def points(lr: Any, factory: Any) -> Tensor:
        engine = StackedEngine(
            model(), loss, algorithm="dsgd", topology=schedules["ring"](3), optimizer=factory, lr=lr, gradients="vmap"
        )
        records = [engine.step(torch.ones(3, 1, 4, dtype=torch.float64)) for _ in range(2)]
        rates.append([r.lr for r in records])
        return engine.x

    rates: list[list[float]] = []
    by_schedule = points(lambda t: 0.3 / (t + 1), partial(optim.SGD, lr=7.0))
    assert torch.equal(points(None, partial(optim.SGD, lr=0.25)), points(0.25, partial(optim.SGD, lr=7.0)))
    assert rates == [[0.3, 0.15], [0.25, 0.25], [0.25, 0.25]]
    assert not torch.equal(by_schedule, points(0.3, optim.SGD))


@pytest.mark.parametrize("apart", [False, True])
def test_what_was_moved_does_not_stay_alive(columnwise, apart):
    moved = Moved(ELEMENTWISE["sgd"], 3, columnwise=columnwise, apart=apart)
    held = [p for group in moved.move.optimizer.param_groups for p in group["params"]]
    for _ in range(2):
        assert all(p.untyped_storage().nbytes() == p.element_size() for p in held)
        moved(torch.ones(3, COLUMNS.size).double(), torch.ones(3, COLUMNS.size).double(), None)
    assert sum(p.numel() for p in held) == 3 * COLUMNS.size


@pytest.mark.parametrize("factory", [partial(optim.AdamW, lr=0.1, weight_decay=0.2), partial(optim.SGD, momentum=0.9)])
@pytest.mark.parametrize("name", ["allreduce", "dsgd", "gradient-tracking", "avg-sam"])
def test_fused_kernels_get_numbers_that_follow_each_other(
    name: str, factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean is one row for all workers, a strip lies in a wider block, a param group may be some columns of a row."""
    monkeypatch.setattr(layout, "OWN_BLOCK", 1)
    monkeypatch.setattr(layout, "TOGETHER", 0)
    monkeypatch.setattr(layout, "STRIP", 1)

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 3)).double()

    def points(fused: bool) -> Tensor:
        engine = StackedEngine(
            network(), lambda m, b: m(b).square().mean(), algorithm=name, topology=topology("ring", 6), lr=0.1,
            optimizer=partial(factory, fused=fused), gradients="vmap",
            groups=lambda name, shape: {"weight_decay": 0.1} if name.endswith("weight") else {},
        )  # fmt: skip
        assert (len(engine._workers.layout.strips) > 4) == engine.algorithm.columnwise
        for t in range(4):
            generator = torch.Generator().manual_seed(t)
            engine.step(torch.randn(6, 5, 4, generator=generator, dtype=torch.float64))
        return engine.x

    # its kernels round the last numbers that fill no vector differently
    torch.testing.assert_close(points(True), points(False), rtol=1e-11, atol=1e-12)
